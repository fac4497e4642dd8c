"""What holds when a simulated world has come to rest: everybody is done, nothing is lost any more."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from itertools import pairwise
from typing import Any

from tests.simulation.actors import Tenant
from tests.simulation.simulation import Simulation
from zae_limiter.backends.memory import MemoryBackend
from zae_limiter.engine.bucket_view import has_terms, level
from zae_limiter.engine.law import Rate
from zae_limiter.engine.seen_buckets import REFUSAL_MS_MAX
from zae_limiter.engine.split import shard_account, survey
from zae_limiter.exceptions import RateLimitExceeded
from zae_limiter.limiter import RateLimiter
from zae_limiter.models import Limit, NamespaceStatus
from zae_limiter.records.items import namespace_of
from zae_limiter.repository import Repository
from zae_limiter.repository_protocol import Item, Key
from zae_limiter.runtime.colour import run_sync
from zae_limiter.schema import (
    bucket_key,
    nsid_key,
    number,
    sk_config,
    sk_entity_configs,
    sk_meta,
    stored_rate,
)

NEVER_SECONDS = 10**7


def check_namespaces(setup: Repository, store: MemoryBackend, tenants: Sequence[Tenant]) -> None:
    """A name leads to an id that knows it; a namespace is as it was, or was purged and left nothing."""
    items = store._shelf.items
    by_name = {space.namespace_name: space for space in run_sync(setup.list_namespaces())}
    orphans = {space.namespace_id: space for space in run_sync(setup.list_orphan_namespaces())}
    for space in by_name.values():
        twin = items.get(nsid_key(space.namespace_id))
        assert twin is not None, f"{space} has no record of its id"
        assert namespace_of(twin) == space, f"{space} is {twin} by its id"
    for name, namespace_id, belongings in tenants:
        orphan = orphans.get(namespace_id)
        is_used = name in by_name and by_name[name].namespace_id == namespace_id
        assert orphan is None or not is_used, f"{orphan} is still called {name}"
        if orphan is not None and orphan.status is NamespaceStatus.PURGING:
            run_sync(setup.purge_namespace(namespace_id))  # it goes on where it was interrupted
            orphan = None
        left = {key for key in items if key.partition.startswith(f"{namespace_id}/")}
        expected = belongings if orphan is not None or is_used else frozenset()
        assert left == expected, f"{name} has {sorted(left)}, not {sorted(expected)}"


def check_counts(store: MemoryBackend, namespace_id: str) -> None:
    """A parent knows how many children it has, and a resource how many entities have limits of their own."""
    items, prefix = store._shelf.items, f"{namespace_id}/"
    own = {key: item for key, item in items.items() if key.partition.startswith(prefix)}
    entities = {key: item for key, item in own.items() if key.sort == sk_meta()}
    children = Counter(item["parent_id"] for item in entities.values() if item.get("parent_id") is not None)
    counted = {item["entity_id"]: number(item, "children") for item in entities.values()}
    assert +Counter(counted) == children, f"{counted} children were counted, there are {children}"
    configs = [key.sort.removeprefix(sk_config("")) for key, item in own.items() if _is_own(key, item)]
    counts = [item for key, item in own.items() if key.sort == sk_entity_configs()]
    noted = {str(item["resource"]): number(item, "entities") for item in counts}
    assert +Counter(noted) == Counter(configs), f"{noted} entities with limits were counted, not {configs}"


def _is_own(key: Key, item: Item) -> bool:
    """Whether a record holds limits that an entity has of its own; a deleted one is in no index."""
    return key.sort.startswith(sk_config("")) and "GSI3PK" in item


def check_waits(simulation: Simulation, setup: Repository, entities: Sequence[str], resource: str) -> None:
    """A wait that was told is exact: a millisecond before it ends one is refused, at its end admitted.

    One shard that is in debt does not hold up the others, so who meets those may be admitted sooner. And
    who is refused by a bucket with older limits changes them, so it fills at another rate from then on.
    """
    limiter = RateLimiter(setup)
    for entity_id in entities:
        for need in ({"fast": 3}, {"fast": 1, "slow": 4}):
            setup.invalidate_config_cache()
            wait_seconds = run_sync(limiter.time_until_available(entity_id, resource, need))
            if math.isinf(wait_seconds):
                continue
            wait_ms = round(wait_seconds * 1000)
            if wait_ms > 0:
                simulation.now_ms += wait_ms - 1
                assert not (
                    _is_settled(setup, entity_id, resource, simulation.now_ms)
                    and _admits(limiter, entity_id, resource, need)
                ), f"{entity_id} was told to wait too long"
                simulation.now_ms += 1
            assert _admits(limiter, entity_id, resource, need), f"{entity_id} was told to come too soon"


def _is_settled(setup: Repository, entity_id: str, resource: str, now_ms: int) -> bool:
    """Whether an entity's buckets go by the present limits, and no shard is in debt."""
    accounts = run_sync(setup.plan(entity_id, resource, None)).accounts
    for account, images in zip(accounts, run_sync(survey(setup.writer, accounts)), strict=True):
        for shard_id, image in enumerate(images):
            terms = shard_account(account, shard_id, image).terms
            if image is not None and not has_terms(image, terms):
                return False
            if len(images) > 1 and any(
                level(terms, n, image, now_ms).balance(now_ms) < 0 for n in terms.rates
            ):
                return False
    return True


def _admits(limiter: RateLimiter, entity_id: str, resource: str, need: dict[str, int]) -> bool:
    async def attempt() -> None:
        async with limiter.acquire(entity_id, resource, need):
            pass

    try:
        run_sync(attempt())
    except RateLimitExceeded:
        return False
    return True


def check_convergence(
    simulation: Simulation,
    setup: Repository,
    repositories: Sequence[Repository],
    entity_id: str,
    resource: str,
    ttl_seconds: float,
) -> None:
    """When caches have expired everybody goes by what is stored, and so does the bucket once it is used."""
    setup.invalidate_config_cache()
    limits, _, _ = run_sync(setup.resolve_limits(entity_id, resource))
    assert limits is not None
    simulation.now_ms += math.ceil(ttl_seconds * 1000)

    async def look(repository: Repository) -> None:
        found, _, source = await repository.resolve_limits(entity_id, resource)
        assert found == limits, f"{entity_id} has {limits}, somebody goes by {found} of {source}"
        try:
            async with RateLimiter(repository).acquire(entity_id, resource, {"fast": 1}):
                pass
        except RateLimitExceeded:
            pass

    for repository in repositories:
        simulation.add(look(repository), None)
        simulation.run()
    if repositories:
        _check_numbers(setup, entity_id, resource, limits)


def check_changes(
    simulation: Simulation,
    setup: Repository,
    repositories: Sequence[Repository],
    entity_id: str,
    resource: str,
    choices: Sequence[Sequence[Limit]],
) -> None:
    """What one process sets for an entity binds every other, warm as they are, at its next acquire.

    Who was refused just before may be told so again by memory: it is bound a second later.
    """

    async def use(repository: Repository) -> bool:
        with suppress(RateLimitExceeded):
            async with RateLimiter(repository).acquire(entity_id, resource, {"fast": 1}):
                return True
        return False

    for setter in repositories[:1]:
        _settle(simulation, *map(use, repositories))
        for user in repositories[1:]:
            limits = list(simulation.rng.choice(choices))
            _settle(simulation, setter.set_limits(entity_id, limits, resource))
            first = simulation.add(use(user), None)
            simulation.run()
            if not first.value:
                simulation.now_ms += REFUSAL_MS_MAX + 1
                _settle(simulation, use(user))
            _check_numbers(setup, entity_id, resource, limits)


def check_families(
    simulation: Simulation, repositories: Sequence[Repository], resource: str, limits: Sequence[Limit]
) -> None:
    """Somebody above who would refuse holds nobody who is not below it any more, whoever changed that."""
    rng = simulation.rng

    async def make(setter: Repository, *chain: str) -> None:
        await setter.set_resource_cascade(resource, None)  # which would overrule what an entity does
        await setter.create_entity(chain[0])
        await setter.set_limits(chain[0], [Limit("fast", 2, 1, NEVER_SECONDS)], resource)
        for above, below in pairwise(chain):
            await setter.create_entity(below, parent_id=above, cascade=True)
            await setter.set_limits(below, limits, resource)

    async def use(user: Repository, child: str, amount: int) -> None:
        async with RateLimiter(user).acquire(child, resource, {"fast": amount}):
            pass

    for place, user in enumerate(repositories[1:]):
        setter, child = repositories[0], f"leaver-{place}"
        between = [f"between-{place}-{n}" for n in range(rng.choice((0, 0, 1, 2)))]
        chain = [f"former-{place}", *between, child]
        who = rng.choice(chain[1:])
        ways: list[Coroutine[Any, Any, Any]] = [
            setter.update_entity(who, cascade=False),
            setter.update_entity(who, parent_id=None),
            setter.set_entity_cascade(who, False, resource),
        ]
        leave = ways.pop(rng.randrange(len(ways)))
        for other in ways:
            other.close()
        _settle(simulation, make(setter, *chain), use(user, child, 1), leave)
        last = simulation.add(use(user, child, 3), None)
        simulation.run()
        assert last.error is None, f"{child} is held by who was above {who}: {last.error!r}"


def _settle(simulation: Simulation, *steps: Coroutine[Any, Any, Any]) -> None:
    for step in steps:
        simulation.add(step, None)
        simulation.run()


def _check_numbers(setup: Repository, entity_id: str, resource: str, limits: Sequence[Limit]) -> None:
    """A bucket of one shard goes by these limits."""
    (image,) = run_sync(setup.writer.look([bucket_key(setup.namespace_id, entity_id, resource)]))
    if image is not None and number(image, "shard_count", 1) == 1:
        for limit in limits:
            assert stored_rate(image, limit.name) == Rate.of(limit), (
                f"{entity_id} goes by older limits: {image}"
            )
