"""``Repository``: the typed records of one namespace of one store, and how to open it."""

from __future__ import annotations

import os
from types import TracebackType
from typing import Any, Self, TypedDict, Unpack
from urllib.parse import urlencode

from ._colour import Colour
from .backends import default_url, open_backend
from .exceptions import NamespaceNotFoundError, ValidationError
from .models import BackendCapabilities, OnUnavailable, check_count
from .naming import validate_namespace, validate_stack_name
from .records.config import ConfigRecords
from .records.connection import Connection, Options
from .records.namespaces import NamespaceRecords
from .repository_protocol import Backend, Key
from .schema import REGISTRY, pk_system, sk_version
from .world import World

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
    world: World | None


OPTION_FIELDS = {
    "config_cache_ttl": "config_cache_ttl_seconds",
    "bucket_ttl_multiplier": "bucket_ttl_multiplier",
    "on_unavailable": "on_unavailable",
    "usage_retention_days": "usage_retention_days",
    "audit_retention_days": "audit_retention_days",
}


class Repository(ConfigRecords, NamespaceRecords):
    """Entities, limits, buckets, audit events and namespaces, as typed records.

    Open one with ``await Repository.open(store="sqlite:///limits.db")``.
    """

    @classmethod
    async def open(cls, namespace: str | None = None, **settings: Unpack[Settings]) -> Self:
        """Open a store and a namespace of it, which is registered if it is missing.

        Namespace: the argument, else ``ZAEL_NAMESPACE``, else ``default``. Store: ``store``, a URL; else
        ``stack``, a DynamoDB table of that name; else ``ZAE_LIMITER_STORE``; else ``ZAEL_STACK``; else the
        embedded SQLite file. Nothing is ever deployed.
        """
        return await cls._open(settings, namespace, sync=False, register=True)

    @classmethod
    async def connect(cls, namespace: str | None = None, **settings: Unpack[Settings]) -> Self:
        """Like ``open``, but a namespace that is missing is ``NamespaceNotFoundError``."""
        return await cls._open(settings, namespace, sync=False, register=False)

    @classmethod
    async def _open(cls, settings: Settings, namespace: str | None, *, sync: bool, register: bool) -> Self:
        url, options, world = settings_of(settings)
        backend = open_backend(url, sync=sync, world=world)
        return await cls.over(backend, namespace, options, world, url=url, register=register)

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
        """A repository over a backend of your own making."""
        connection = Connection(backend, world or World(), options or Options(), url)
        name = validate_namespace(namespace or os.environ.get(NAMESPACE_VARIABLE) or DEFAULT_NAMESPACE)
        try:
            await backend.setup()
            return await cls(connection, REGISTRY, REGISTRY)._enter(name, register=register)
        except BaseException:
            await backend.close()
            raise

    async def namespace(self, name: str) -> Self:
        """A view of another namespace that shares client and caches; it must be registered."""
        return await self._enter(validate_namespace(name), register=False)

    async def _enter(self, name: str, *, register: bool) -> Self:
        found = await (self.register_namespace(name) if register else self.get_namespace(name))
        if found is None:
            raise NamespaceNotFoundError(f"namespace {name!r} does not exist; register_namespace makes it")
        return type(self)(self._connection, found.namespace_name, found.namespace_id)

    @property
    def capabilities(self) -> BackendCapabilities:
        return self._backend.capabilities

    @property
    def store(self) -> str:
        """The URL that was opened."""
        return self._connection.url

    @property
    def colour(self) -> Colour:
        return self._backend.colour

    async def ping(self) -> None:
        """Ask the store something; raises ``RateLimiterUnavailable`` if it does not answer."""
        await self._get(Key(pk_system(REGISTRY), sk_version()))

    async def close(self) -> None:
        await self._backend.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()


def settings_of(settings: Settings) -> tuple[str, Options, World]:
    """Settings, checked and completed: the store's URL, the options and the world."""
    if unknown := sorted(set(settings) - Settings.__annotations__.keys()):
        raise ValidationError("setting", unknown[0], f"use {', '.join(Settings.__annotations__)}")
    return store_url(settings), options_of(settings), settings.get("world") or World()


def options_of(settings: Settings) -> Options:
    given: dict[str, Any] = {
        field: settings[name]  # type: ignore[literal-required]
        for name, field in OPTION_FIELDS.items()
        if name in settings
    }
    if "on_unavailable" in given:
        given["on_unavailable"] = OnUnavailable.of(given["on_unavailable"])
    if given.get("config_cache_ttl_seconds", 0) < 0:
        raise ValidationError(
            "config_cache_ttl", given["config_cache_ttl_seconds"], "use seconds; 0 disables"
        )
    for name in ("bucket_ttl_multiplier", "usage_retention_days", "audit_retention_days"):
        if name in given:
            check_count(name, given[name], 10_000, 0)
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
