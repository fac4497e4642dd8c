"""``Repository``: the typed records of one namespace of one store, and how to open it."""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, Concatenate, Final, ParamSpec, Self, TypeVar, Unpack, cast
from urllib.parse import parse_qs, urlsplit

from .backends import open_backend, store_world
from .exceptions import InfrastructureError, NamespaceNotFoundError, RateLimiterUnavailable, without_secrets
from .models import BackendCapabilities, Namespace, StackOptions
from .naming import validate_namespace
from .records import (
    audit,
    capacity,
    config,
    entities,
    namespaces,
    operating,
    reports,
    switching,
    usage,
    versions,
)
from .records.buckets import BucketRecords
from .records.connection import Connection, Options
from .records.items import namespace_item
from .records.scope import Scope
from .repository_protocol import Backend, Item
from .runtime.colour import Blocking, Colour, Method
from .runtime.world import World
from .schema import REGISTRY, namespace_key, nsid_key, version_key
from .settings import DEFAULT_NAMESPACE, NAMESPACE_VARIABLE, Settings, client_of, settings_of

if TYPE_CHECKING:
    from .builder import RepositoryBuilder
    from .infra.stack_manager import StackManager

P = ParamSpec("P")
T = TypeVar("T")


def scoped(function: Callable[Concatenate[Scope, P], T]) -> Method[P, T]:
    """A function over a scope as a method of a repository: same signature, same docstring."""
    perform: Callable[..., Any] = function

    def call(self: Repository, /, *args: Any, **kwargs: Any) -> Any:
        return perform(self._scope, *args, **kwargs)

    async def wait(self: Repository, /, *args: Any, **kwargs: Any) -> Any:
        return await perform(self._scope, *args, **kwargs)

    method: Any = functools.wraps(function)(wait if inspect.iscoroutinefunction(function) else call)
    signature = inspect.signature(function)
    _, *seen = signature.parameters.values()
    own = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    method.__signature__ = signature.replace(parameters=[own, *seen])
    return cast("Method[P, T]", method)


class Repository(BucketRecords):
    """Entities, limits, buckets, usage, audit events, namespaces and versions, as typed records.

    Open one with ``await Repository.open(store="sqlite:///limits.db")``.
    """

    _is_guest = False
    """Whether somebody else opened the store and will close it."""

    def __init__(self, connection: Connection, namespace_name: str = "", namespace_id: str = "") -> None:
        if not isinstance(connection, Connection):
            raise TypeError(
                f"open a repository with `await {type(self).__name__}.open(stack={connection!r})`"
            )
        super().__init__(connection, namespace_name, namespace_id)

    def __repr__(self) -> str:
        kind, is_closed = type(self).__name__, self._scope.is_closed or self._connection.is_closed
        where = f"{kind} of namespace {self.namespace_name!r} in {without_secrets(self.store)!r}"
        return f"<{where}, closed>" if is_closed else f"<{where}>"

    @classmethod
    async def open(cls, namespace: str | None = None, **settings: Unpack[Settings]) -> Self:
        """Open a store and a namespace of it, which is registered if it is missing.

        Namespace: the argument, else ``ZAEL_NAMESPACE``, else ``default``. Store: ``store``, a URL; else
        ``stack``, a DynamoDB table of that name; else ``ZAE_LIMITER_STORE``; else ``ZAEL_STACK``; else the
        embedded SQLite file. Nothing is ever deployed.
        """
        return await cls._open(settings, namespace, sync=False)

    @classmethod
    async def connect(cls, namespace: str | None = None, **settings: Unpack[Settings]) -> Self:
        """Like ``open``, but writes nothing: a namespace that is missing is ``NamespaceNotFoundError``."""
        return await cls._open(settings, namespace, sync=False, register=False)

    @classmethod
    def builder(cls) -> RepositoryBuilder:
        """Say option by option what to open, then ``await .build()``."""
        from .builder import RepositoryBuilder

        return RepositoryBuilder()

    @classmethod
    async def _open(
        cls,
        settings: Settings,
        namespace: str | None,
        *,
        sync: bool,
        register: bool = True,
        default_only: bool = False,
        prepare: Callable[[Repository], Awaitable[None]] | None = None,
    ) -> Self:
        url, options, given = settings_of(settings, sync=sync)
        world, client = store_world(url, given), client_of(settings)
        backend = open_backend(url, sync=sync, world=world, timeout_ms=settings.get("timeout_ms"), **client)
        connection = Connection(backend, world, options, url)
        connection.client = client
        return await cls._enter_connection(
            connection, namespace, register=register, default_only=default_only, prepare=prepare
        )

    @classmethod
    async def over(
        cls,
        backend: Backend,
        namespace: str | None = None,
        options: Options | None = None,
        world: World | None = None,
        *,
        url: str = "",
        register: bool = True,
    ) -> Self:
        """A repository over a backend of your own making.

        ``world`` is the one that the backend was opened with, if it has a clock of its own to tell.
        """
        connection = Connection(backend, world or World(), options or Options(), url)
        return await cls._enter_connection(connection, namespace, register=register)

    @classmethod
    async def _enter_connection(
        cls,
        connection: Connection,
        namespace: str | None,
        *,
        register: bool,
        default_only: bool = False,
        prepare: Callable[[Repository], Awaitable[None]] | None = None,
    ) -> Self:
        """A view of a namespace, for which ``prepare`` may do something before versions are checked.

        A missing namespace is registered if ``register`` says so; with ``default_only`` only the default one.
        """
        backend, registry = connection.backend, cls(connection, REGISTRY, REGISTRY)
        if namespace is None:  # an empty name is a mistake, and must not lead to somebody else's data
            namespace = os.environ.get(NAMESPACE_VARIABLE) or DEFAULT_NAMESPACE
        name = validate_namespace(namespace)
        try:
            if not backend.capabilities.made_before:
                await backend.setup()
            await connection.notice_changes()
            names = [DEFAULT_NAMESPACE, name] if default_only and name != DEFAULT_NAMESPACE else [name]
            *items, version = await registry._look(names)
            opened = registry
            for one, item in zip(names, items, strict=True):
                may_register = register and (not default_only or one == DEFAULT_NAMESPACE)
                if (found := namespaces.named(one, item)) is None and may_register:
                    # Whoever is refused leaves nothing; a namespace that is not there yet has no say in that.
                    await versions.check_record(registry._scope, version, register=True)
                    found = await namespaces.registered(registry._scope, one)
                    version = await registry._scope.get(version_key())
                opened = registry._view(one, found)
            if prepare is not None:
                await prepare(opened)
                version = await registry._scope.get(version_key())
            await versions.check_record(opened._scope, version, register=register)
            return opened
        except BaseException:
            await backend.close()
            raise

    async def _look(self, names: Sequence[str]) -> list[Item | None]:
        """What the registry says of some names and of versions, in one read.

        A store that is made before it is opened is looked at only if this read does not tell that it is one
        of ours: whoever wrote the record of versions had looked.
        """
        backend, keys = self._scope.backend, [*map(namespace_key, names), version_key()]
        try:
            items = await backend.batch_get(keys)
        except RateLimiterUnavailable as error:
            if error.misconfigured != "table" and not error.impossible:
                raise
            await backend.setup()  # it says more of what is wrong, or waits for a table that is being made
            return await backend.batch_get(keys)
        if items[-1] is None and backend.capabilities.made_before:
            await backend.setup()
        return items

    async def namespace(self, name: str) -> Self:
        """A view of another namespace that shares client and caches; it must be registered.

        Closing it closes nothing else; closing the repository closes all views of it.
        """
        view = self._view(name, await self.get_namespace(name))
        view._is_guest = True
        return view

    def _view(self, name: str, found: Namespace | None) -> Self:
        if found is None:
            message = f"namespace {name!r} does not exist; register_namespace makes it"
            raise NamespaceNotFoundError(message, namespace_name=name)
        self._connection.learn(nsid_key(found.namespace_id), namespace_item(found))
        return type(self)(self._connection, found.namespace_name, found.namespace_id)

    create_entity: Final = scoped(entities.create_entity)
    get_entity: Final = scoped(entities.get_entity)
    update_entity: Final = scoped(entities.update_entity)
    set_parent: Final = scoped(entities.set_parent)
    delete_entity: Final = scoped(entities.delete_entity)
    get_children: Final = scoped(entities.get_children)
    list_entities: Final = scoped(entities.list_entities)

    set_system_defaults: Final = scoped(config.set_system_defaults)
    get_system_defaults: Final = scoped(config.get_system_defaults)
    delete_system_defaults: Final = scoped(config.delete_system_defaults)
    set_resource_defaults: Final = scoped(config.set_resource_defaults)
    get_resource_defaults: Final = scoped(config.get_resource_defaults)
    delete_resource_defaults: Final = scoped(config.delete_resource_defaults)
    list_resources_with_defaults: Final = scoped(config.list_resources_with_defaults)
    set_limits: Final = scoped(config.set_limits)
    get_limits: Final = scoped(config.get_limits)
    delete_limits: Final = scoped(config.delete_limits)
    list_entities_with_custom_limits: Final = scoped(config.list_entities_with_custom_limits)
    list_resources_with_entity_configs: Final = scoped(config.list_resources_with_entity_configs)
    get_config: Final = scoped(config.get_config)
    set_config: Final = scoped(config.set_config)
    disable: Final = scoped(switching.disable)
    enable: Final = scoped(switching.enable)
    bypass: Final = scoped(switching.bypass)
    list_switches: Final = scoped(switching.list_switches)
    set_entity_cascade: Final = scoped(config.set_entity_cascade)
    set_resource_cascade: Final = scoped(config.set_resource_cascade)
    batch_get_configs: Final = scoped(config.batch_get_configs)
    resolve_limits: Final = scoped(config.resolve_limits)
    invalidate_config_cache: Final = scoped(config.invalidate_config_cache)
    get_cache_stats: Final = scoped(config.get_cache_stats)

    register_namespace: Final = scoped(namespaces.register_namespace)
    register_namespaces: Final = scoped(namespaces.register_namespaces)
    get_namespace: Final = scoped(namespaces.get_namespace)
    list_namespaces: Final = scoped(namespaces.list_namespaces)
    list_orphan_namespaces: Final = scoped(namespaces.list_orphan_namespaces)
    delete_namespace: Final = scoped(namespaces.delete_namespace)
    recover_namespace: Final = scoped(namespaces.recover_namespace)
    purge_namespace: Final = scoped(namespaces.purge_namespace)

    top_up: Final = scoped(operating.top_up)
    reset: Final = scoped(operating.reset)
    forgive: Final = scoped(operating.forgive)

    get_buckets: Final = scoped(capacity.get_buckets)
    get_resource_buckets: Final = scoped(capacity.get_resource_buckets)
    batch_get_buckets: Final = scoped(capacity.batch_get_buckets)
    get_resource_capacity: Final = scoped(capacity.get_resource_capacity)
    transact_write: Final = scoped(capacity.transact_write)
    write_each: Final = scoped(capacity.write_each)

    get_audit_events: Final = scoped(audit.get_audit_events)
    get_reports: Final = scoped(reports.get_reports)
    get_usage_snapshots: Final = scoped(usage.get_usage_snapshots)
    get_usage_summary: Final = scoped(usage.get_usage_summary)
    get_version_record: Final = scoped(versions.get_version_record)
    set_version_record: Final = scoped(versions.set_version_record)

    @property
    def namespace_name(self) -> str:
        """The name of the namespace."""
        return self._namespace_name

    @property
    def namespace_id(self) -> str:
        """The opaque prefix of every key of this namespace."""
        return self._namespace_id

    @property
    def store(self) -> str:
        """The URL that was opened."""
        return self._connection.url

    @property
    def table_name(self) -> str | None:
        """The table, if the store is one of DynamoDB's."""
        return self._scope.table_name

    @property
    def capabilities(self) -> BackendCapabilities:
        """What the store can do."""
        return self._connection.backend.capabilities

    @property
    def region(self) -> str | None:
        """The region that the store was opened with, if one was named."""
        return self._url_option("region")

    @property
    def endpoint_url(self) -> str | None:
        """The endpoint that the store was opened with, if one was named."""
        return self._url_option("endpoint_url")

    def _url_option(self, name: str) -> str | None:
        """What the URL of the store says; ``None`` leaves it to the environment."""
        return parse_qs(urlsplit(self.store).query).get(name, [None])[0]

    @property
    def colour(self) -> Colour:
        """How its coroutines wait."""
        return self._connection.backend.colour

    async def create_table(self) -> None:
        """Make the table unless it is there; stores without tables make what they need by themselves."""
        await getattr(self._backend, "create_table", self._backend.setup)()

    async def delete_table(self) -> None:
        """Delete the table with all namespaces in it."""
        delete = getattr(self._backend, "delete_table", None)
        if delete is None:
            lacks = f"a {self.capabilities.name} store has no table to delete"
            raise InfrastructureError(f"{lacks}; remove what its URL names")
        await delete()

    async def create_stack(self, stack_options: StackOptions | None = None) -> None:
        """Deploy a stack around this table; ``StackAlreadyExistsError`` if it has one."""
        async with self._stack_manager() as manager:
            await manager.create(stack_options)

    async def delete_stack(self) -> None:
        """Delete the stack around this table. The table itself stays, with all that is in it."""
        async with self._stack_manager() as manager:
            await manager.delete()

    def _stack_manager(self) -> StackManager:
        from .infra.stack_manager import manager_of

        if urlsplit(self.store).scheme != "dynamodb":
            raise InfrastructureError(f"a {self.capabilities.name} store has no stack; only DynamoDB's have")
        sync = isinstance(self.colour, Blocking)
        return manager_of(self.store, sync=sync, world=self._world, **self._connection.client)

    async def ping(self) -> bool:
        """Whether the store answers."""
        try:
            await self._scope.get(version_key())
        except RateLimiterUnavailable:
            return False
        return True

    async def close(self) -> None:
        """Let go of the store. Whatever is asked of it afterwards is ``ClosedError``."""
        self._scope.is_closed = True
        self.plans.clear()
        if not self._is_guest:
            await self._connection.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()
