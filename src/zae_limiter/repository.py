"""``Repository``: the typed records of one namespace of one store, and how to open it."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import fields
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Self, TypedDict, TypeVar, Unpack, cast
from urllib.parse import parse_qs, urlencode, urlsplit

from ._colour import Blocking, Colour
from .backends import default_url, open_backend, store_world
from .exceptions import InfrastructureError, NamespaceNotFoundError, ValidationError
from .models import (
    BackendCapabilities,
    LimiterConfig,
    OnUnavailable,
    StackOptions,
    UsageWindow,
    check_count,
)
from .naming import validate_namespace, validate_stack_name
from .records.capacity import CapacityRecords
from .records.config import ConfigRecords
from .records.connection import Connection, Options
from .records.namespaces import NamespaceRecords
from .records.usage import UsageRecords
from .records.versions import VersionRecords
from .repository_protocol import Backend
from .schema import REGISTRY, nsid_key, version_key
from .schema_records import namespace_item
from .world import World

if TYPE_CHECKING:
    from .infra.stack_manager import StackManager

CACHE_TTL_SECONDS_MAX = 86_400
REMEMBERED_MIN = 1_000
"""A process must not forget a bucket while it is working on it."""

DEFAULT_NAMESPACE = "default"
STORE_VARIABLE = "ZAE_LIMITER_STORE"
STACK_VARIABLE = "ZAEL_STACK"
NAMESPACE_VARIABLE = "ZAEL_NAMESPACE"


class Settings(TypedDict, total=False):
    """What may be said when a repository is opened."""

    store: str | None
    stack: str | None
    region: str | None
    endpoint_url: str | None
    config_cache_ttl: float
    bucket_ttl_multiplier: int
    on_unavailable: OnUnavailable | str
    usage_retention_days: int
    audit_retention_days: int
    remembered_max: int
    """How many records, buckets and plans this process keeps in memory, each."""
    timeout_ms: int | None
    session: Any
    """A boto3 or botocore session, for DynamoDB."""
    config: Any
    """A botocore ``Config``, for DynamoDB; retries stay switched off."""
    world: World | None


OPTION_FIELDS = {
    "config_cache_ttl": "config_cache_ttl_seconds",
    "bucket_ttl_multiplier": "bucket_ttl_multiplier",
    "on_unavailable": "on_unavailable",
    "usage_retention_days": "usage_retention_days",
    "audit_retention_days": "audit_retention_days",
    "remembered_max": "remembered_max",
}


class Repository(ConfigRecords, CapacityRecords, UsageRecords, NamespaceRecords, VersionRecords):
    """Entities, limits, buckets, usage, audit events, namespaces and versions, as typed records.

    Open one with ``await Repository.open(store="sqlite:///limits.db")``.
    """

    _is_guest = False
    """Whether somebody else opened the store and will close it."""

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
        return RepositoryBuilder()

    @classmethod
    async def _open(
        cls,
        settings: Settings,
        namespace: str | None,
        *,
        sync: bool,
        register: bool = True,
        prepare: Callable[[Repository], Awaitable[None]] | None = None,
    ) -> Self:
        url, options, given = settings_of(settings)
        world, client = store_world(url, given), client_of(settings)
        backend = open_backend(url, sync=sync, world=world, timeout_ms=settings.get("timeout_ms"), **client)
        connection = Connection(backend, world, options, url)
        connection.client = client
        return await cls._enter_connection(connection, namespace, register=register, prepare=prepare)

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
        prepare: Callable[[Repository], Awaitable[None]] | None = None,
    ) -> Self:
        """A view of a namespace, for which ``prepare`` may do something before versions are checked."""
        backend = connection.backend
        if namespace is None:  # an empty name is a mistake, and must not lead to somebody else's data
            namespace = os.environ.get(NAMESPACE_VARIABLE) or DEFAULT_NAMESPACE
        name = validate_namespace(namespace)
        try:
            await backend.setup()
            await connection.notice_changes()
            opened = await cls(connection, REGISTRY, REGISTRY)._enter(name, register=register)
            if prepare is not None:
                await prepare(opened)
            await opened._check_versions(register=register)
            return opened
        except BaseException:
            await backend.close()
            raise

    async def namespace(self, name: str) -> Self:
        """A view of another namespace that shares client and caches; it must be registered.

        Closing it closes nothing else; closing the repository closes all views of it.
        """
        view = await self._enter(validate_namespace(name), register=False)
        view._is_guest = True
        return view

    async def _enter(self, name: str, *, register: bool) -> Self:
        found = await self.get_namespace(name)
        if found is None and register:
            # Whoever is refused leaves nothing, and a namespace that is not there yet has no say in that.
            await self._check_versions(register=True)
            found = await self.register_namespace(name)
        if found is None:
            raise NamespaceNotFoundError(f"namespace {name!r} does not exist; register_namespace makes it")
        self._connection.learn(nsid_key(found.namespace_id), namespace_item(found))
        return type(self)(self._connection, found.namespace_name, found.namespace_id)

    @property
    def capabilities(self) -> BackendCapabilities:
        return self._connection.backend.capabilities

    @property
    def store(self) -> str:
        """The URL that was opened."""
        return self._connection.url

    @property
    def table_name(self) -> str | None:
        """The table, if the store is one of DynamoDB's."""
        parts = urlsplit(self.store)
        return parts.netloc if parts.scheme == "dynamodb" else getattr(self._backend, "table_name", None)

    @property
    def stack_name(self) -> str | None:
        """The stack around the table, which has the table's name."""
        return self.table_name

    @property
    def region(self) -> str | None:
        return self._url_option("region")

    @property
    def endpoint_url(self) -> str | None:
        return self._url_option("endpoint_url")

    def _url_option(self, name: str) -> str | None:
        """What the URL of the store says; ``None`` leaves it to the environment."""
        return parse_qs(urlsplit(self.store).query).get(name, [None])[0]

    @property
    def colour(self) -> Colour:
        return self._connection.backend.colour

    async def create_table(self) -> None:
        """Make the table unless it is there; stores without tables make what they need by themselves."""
        await self._provision("create_table", otherwise=self._backend.setup)

    async def delete_table(self) -> None:
        """Delete the table with all namespaces in it."""
        await self._provision("delete_table")

    async def _provision(self, verb: str, otherwise: Callable[[], Awaitable[None]] | None = None) -> None:
        perform = getattr(self._backend, verb, otherwise)
        if perform is None:
            raise InfrastructureError(
                f"a {self.capabilities.name} store has no table to delete; remove what its URL names"
            )
        await perform()

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

    async def ping(self) -> None:
        """Ask the store something; raises ``RateLimiterUnavailable`` if it does not answer."""
        await self._get(version_key())

    async def close(self) -> None:
        """Let go of the store. Whatever is asked of it afterwards is ``ClosedError``."""
        self._is_closed = True
        self.tills.clear()
        if not self._is_guest:
            await self._connection.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()


T = TypeVar("T")
B = TypeVar("B", bound="RepositoryOptions")


class _Option(Generic[T]):
    """A method of a builder that notes one option and returns the builder."""

    def __set_name__(self, owner: type[RepositoryOptions], name: str) -> None:
        self._name = name

    def __get__(self, builder: B, owner: type[B]) -> Callable[[T], B]:
        return partial(builder._noted, self._name)


class RepositoryOptions:
    """What can be said to a builder, one method for each option; said twice, the last word counts."""

    def __init__(self) -> None:
        self._said: dict[str, Any] = {}

    # What is opened, and how it behaves.
    store = _Option[str]()
    stack = _Option[str]()
    region = _Option[str]()
    endpoint_url = _Option[str]()
    namespace = _Option[str]()
    config_cache_ttl = _Option[float]()
    remembered_max = _Option[int]()
    bucket_ttl_multiplier = _Option[int]()
    on_unavailable = _Option[OnUnavailable | str]()
    usage_retention_days = _Option[int]()
    audit_retention_days = _Option[int]()
    auto_update = _Option[bool]()
    timeout_ms = _Option[int]()
    session = _Option[Any]()
    config = _Option[Any]()
    world = _Option[World]()

    # What a stack is deployed with.
    stack_options = _Option[StackOptions]()
    snapshot_windows = _Option[Sequence[UsageWindow | str]]()
    enable_aggregator = _Option[bool]()
    pitr_recovery_days = _Option[int]()
    log_retention_days = _Option[int]()
    lambda_timeout = _Option[int]()
    lambda_memory = _Option[int]()
    enable_alarms = _Option[bool]()
    alarm_sns_topic = _Option[str]()
    lambda_duration_threshold_pct = _Option[int]()
    permission_boundary = _Option[str]()
    role_name_format = _Option[str]()
    policy_name_format = _Option[str]()
    enable_audit_archival = _Option[bool]()
    audit_archive_glacier_days = _Option[int]()
    enable_tracing = _Option[bool]()
    create_iam_roles = _Option[bool]()
    create_iam = _Option[bool]()
    aggregator_role_arn = _Option[str]()
    enable_deletion_protection = _Option[bool]()
    kms_key_arn = _Option[str]()
    role_principals = _Option[Sequence[str]]()
    tags = _Option[Mapping[str, str]]()

    def _noted(self, name: str, value: Any) -> Self:
        self._said[name] = value
        return self

    @property
    def settings(self) -> Settings:
        """What ``Repository.open`` is told."""
        return cast(Settings, {n: v for n, v in self._said.items() if n in Settings.__annotations__})

    @property
    def deployment(self) -> StackOptions | None:
        """What a stack would be deployed with; ``None`` if no stack was asked for."""
        said = {n: v for n, v in self._said.items() if n in STACK_FIELDS}
        whole = self._said.get("stack_options")
        if whole is None and not said.keys() - Settings.__annotations__.keys():
            return None
        if not isinstance(whole, StackOptions | None):
            raise ValidationError("stack_options", whole, "pass StackOptions")
        if "snapshot_windows" in said:
            windows = said["snapshot_windows"]
            if not isinstance(windows, list | tuple):
                raise ValidationError("snapshot_windows", windows, "pass a list, such as ['hourly', 'daily']")
            said["snapshot_windows"] = tuple(map(UsageWindow.of, windows))
        stated = {n: getattr(whole, n) for n in STACK_FIELDS if whole is not None}
        return StackOptions(**{**stated, **said})

    async def _build(self, *, sync: bool) -> Repository:
        settings, options = self.settings, self.deployment
        namespace = self._said.get("namespace")
        if options is not None:
            await self._provision(options, settings, namespace, sync=sync)
        return await Repository._open(settings, namespace, sync=sync, prepare=self._update_lambda)

    async def _provision(
        self, options: StackOptions, settings: Settings, namespace: str | None, *, sync: bool
    ) -> None:
        """Deploy what is missing of the stack; everything said is checked before."""
        from .infra.stack_manager import manager_of

        url, _, world = settings_of(settings)
        if namespace is not None:
            validate_namespace(namespace)
        if urlsplit(url).scheme != "dynamodb":
            raise ValidationError("store", url, "options of a stack need one; name it with .stack(…)")
        async with manager_of(url, sync=sync, world=world, **client_of(settings)) as manager:
            await manager.ensure(options)

    async def _update_lambda(self, repository: Repository) -> None:
        """Bring an older aggregator up to date, if that is wanted: said here, or at the system level.

        Whoever deploys a stack here wants it current, unless somebody said otherwise.
        """
        if urlsplit(repository.store).scheme != "dynamodb":
            return
        wanted = self._said.get("auto_update")
        if wanted is None:
            wanted = (await repository.get_config("system") or LimiterConfig()).auto_update
        if wanted or (wanted is None and self.deployment is not None):
            async with repository._stack_manager() as manager:
                await manager.auto_update()


STACK_FIELDS = frozenset(field.name for field in fields(StackOptions))


class RepositoryBuilder(RepositoryOptions):
    """Opens a repository, said option by option.

    >>> import asyncio
    >>> async def work():
    ...     repository = await Repository.builder().store("memory://").namespace("team-a").build()
    ...     async with repository:
    ...         return repository.namespace_name
    >>> asyncio.run(work())
    'team-a'
    """

    async def build(self) -> Repository:
        """Deploy the stack that the options ask for, open the store, register the namespace, check versions.

        Without any option of a stack nothing is deployed.
        """
        return await self._build(sync=False)


def client_of(settings: Settings) -> dict[str, Any]:
    """What only the client of DynamoDB understands."""
    return {name: settings[name] for name in ("session", "config") if settings.get(name)}


def settings_of(settings: Settings) -> tuple[str, Options, World]:
    """Settings, checked and completed: the store's URL, the options and the world."""
    if unknown := sorted(set(settings) - Settings.__annotations__.keys()):
        raise ValidationError("setting", unknown[0], f"use {', '.join(Settings.__annotations__)}")
    world = settings.get("world")
    if not isinstance(world, World | None):
        raise ValidationError("world", world, "pass a World, or leave it out")
    return store_url(settings), options_of(settings), world or World()


def options_of(settings: Settings) -> Options:
    given: dict[str, Any] = {
        field: settings[name]  # type: ignore[literal-required]
        for name, field in OPTION_FIELDS.items()
        if name in settings
    }
    if "on_unavailable" in given:
        given["on_unavailable"] = OnUnavailable.of(given["on_unavailable"])
    ttl = given.get("config_cache_ttl_seconds", 0)
    if isinstance(ttl, bool) or not isinstance(ttl, int | float) or not 0 <= ttl <= CACHE_TTL_SECONDS_MAX:
        raise ValidationError(
            "config_cache_ttl", ttl, f"use seconds, at most {CACHE_TTL_SECONDS_MAX}; 0 disables"
        )
    for name in ("bucket_ttl_multiplier", "usage_retention_days", "audit_retention_days"):
        if name in given:
            check_count(name, given[name], 10_000, 0)
    if "remembered_max" in given:
        check_count("remembered_max", given["remembered_max"], 10**9, REMEMBERED_MIN)
    return Options(**given)


def store_url(settings: Settings) -> str:
    """The URL of the store that the settings and the environment ask for."""
    store, stack = settings.get("store"), settings.get("stack")
    if store is not None:
        if stack is not None:
            raise ValidationError("store", store, "give either store= or stack=, not both")
        return store
    if stack is None:
        if os.environ.get(STORE_VARIABLE):
            return os.environ[STORE_VARIABLE]
        stack = os.environ.get(STACK_VARIABLE) or None
    if stack is None:
        return default_url()
    query = urlencode({n: settings[n] for n in ("region", "endpoint_url") if settings.get(n)})
    return f"dynamodb://{validate_stack_name(stack)}{'?' if query else ''}{query}"
