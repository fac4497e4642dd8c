"""A store with two tenants in it, made once and copied for every example.

Both tenants have the same names everywhere, so that whatever reaches the wrong one finds something.
``neighbour`` is an entity that nothing ever happens to: it must work whatever happens to the others.
"""

import functools
from collections.abc import Mapping
from typing import Any, NamedTuple

from zae_limiter import (
    Limit,
    RateLimiter,
    RateLimitExceeded,
    Repository,
    SyncRateLimiter,
    SyncRepository,
    ZAELimiterError,
)
from zae_limiter.backends.memory import MemoryBackend
from zae_limiter.backends.shelf import Shelf
from zae_limiter.models import UsageWindow
from zae_limiter.records.connection import Connection, Options
from zae_limiter.records.items import usage_counter, usage_row
from zae_limiter.repository_protocol import Backend, Item, Key, Update
from zae_limiter.runtime.world import World
from zae_limiter.testing import ManualClock

RPM = Limit.per_minute("rpm", 60)
LIMITS = [RPM, Limit.per_minute("tokens.in", 1000)]
HOME, ABROAD, LOST = "home", "abroad", "lost"
ENTITIES = ("org-1", "user-1", "user-2", "neighbour")
RESOURCES = ("gpt-4", "other")

Contents = Mapping[Key, Item]


class Template(NamedTuple):
    """A furnished store, and what one has to know about it."""

    contents: Contents
    now_ms: int
    ids: Mapping[str, str]
    """The id of each namespace, by name; ``lost`` is one that was deleted."""
    event_id: str
    cursors: tuple[str, ...]


@functools.cache
def template() -> Template:
    clock = ManualClock()
    backend = MemoryBackend(clock.world)
    home = SyncRepository.over(backend, HOME, world=clock.world)
    home.register_namespaces([ABROAD, LOST])
    for name in (HOME, ABROAD, LOST):
        furnish(home.namespace(name), clock.now_ms)
    ids = {one.namespace_name: one.namespace_id for one in home.list_namespaces()}
    home.delete_namespace(LOST)
    _, entities = home.list_entities(1)
    _, usage = home.get_usage_snapshots("user-1", limit=1)
    _, of_resource = home.get_usage_snapshots(resource="gpt-4", limit=1)
    _, abroad = home.namespace(ABROAD).list_entities(1)
    cursors = tuple(cursor for cursor in (entities, usage, of_resource, abroad) if cursor is not None)
    event_id = home.get_audit_events("user-1")[0].event_id
    return Template(backend.snapshot(), clock.now_ms, ids, event_id, cursors)


def furnish(repository: SyncRepository, now_ms: int) -> None:
    """Some of every kind of record."""
    repository.set_system_defaults(LIMITS, "block", "admin")
    repository.set_resource_defaults("gpt-4", LIMITS)
    repository.create_entity("org-1", "Organisation")
    repository.create_entity("user-1", "User", "org-1", True, {"plan": "free"}, "admin")
    repository.create_entity("user-2", parent_id="org-1")
    repository.create_entity("neighbour")
    repository.set_limits("user-1", [RPM], "other")
    repository.set_limits("neighbour", [RPM])
    limiter = SyncRateLimiter(repository)
    for entity_id in ENTITIES:
        for resource in RESOURCES:
            with limiter.acquire(entity_id, resource, {"rpm": 1}):
                pass
    for entity_id in ENTITIES:
        for window in UsageWindow:
            place = repository.namespace_id, entity_id, "gpt-4", window, now_ms
            key, attributes = usage_row(*place)
            counted = {usage_counter("rpm"): 1, "total_events": 1}
            repository.write_each([Update(key, counted, {**attributes, "ttl": 2**31})])


class Tenants:
    """Both tenants as one process of one colour sees them, over a store of its own."""

    def __init__(self, colour: str, backend: Backend, world: World, ids: Mapping[str, str]) -> None:
        self.backend, self.ids = backend, ids
        connection = Connection(backend, world, Options())
        views = {name: Repository(connection, name, ids[name]) for name in (HOME, ABROAD)}
        self.repository: Any = views[HOME] if colour == "async" else SyncRepository(views[HOME])
        self.limiter: Any = (RateLimiter if colour == "async" else SyncRateLimiter)(self.repository)
        self.tenants = tuple(SyncRateLimiter(SyncRepository(view)) for view in views.values())


def in_memory(colour: str, kind: type[MemoryBackend] = MemoryBackend) -> tuple[Tenants, MemoryBackend]:
    """A stage on a copy of the furnished store."""
    known = template()
    shelf = Shelf()
    shelf.items = dict(known.contents)  # a store replaces items, it never changes one
    clock = ManualClock(known.now_ms, seed=1)
    backend = kind(clock.world, shelf)
    return Tenants(colour, backend, clock.world, known.ids), backend


def contents(backend: MemoryBackend) -> Contents:
    return dict(backend._shelf.items)


def without_buckets(contents: Contents) -> dict[Key, Item]:
    return {key: item for key, item in contents.items() if key.sort != "#STATE"}


def check_refused(error: ZAELimiterError, before: Contents, after: Contents) -> None:
    """A call that was refused has written nothing.

    A demand that does not fit may still have put a bucket's numbers right, or taken from the first of two
    buckets and given back.
    """
    if isinstance(error, RateLimitExceeded):
        before, after = without_buckets(before), without_buckets(after)
    assert before == after, f"{error!r} left a trace"
