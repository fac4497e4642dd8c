"""What holds when a simulated world has come to rest: everybody is done, nothing is lost any more."""

from __future__ import annotations

import math
from collections.abc import Sequence

from .._colour import run_sync
from ..backends.memory import MemoryBackend
from ..bucket import Rate
from ..exceptions import RateLimitExceeded
from ..limiter import RateLimiter
from ..models import NamespaceStatus
from ..repository import Repository
from ..schema import bucket_key, number, stored_rate
from .simulation import Simulation


def check_purged(setup: Repository, store: MemoryBackend, namespace_id: str) -> None:
    """A purge that was interrupted is finished, and leaves nothing behind."""
    known = {space.namespace_id: space for space in run_sync(setup.list_orphan_namespaces())}
    if namespace_id in known:
        assert known[namespace_id].status is not NamespaceStatus.ACTIVE
        run_sync(setup.purge_namespace(namespace_id))
    left = [key for key in store._shelf.items if key.partition.startswith(f"{namespace_id}/")]
    assert not left, f"a purge left {left}"


def check_waits(simulation: Simulation, setup: Repository, entities: Sequence[str], resource: str) -> None:
    """A wait that was told is exact: a millisecond before it ends one is refused, at its end admitted."""
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
                assert not _admits(limiter, entity_id, resource, need), (
                    f"{entity_id} was told to wait too long"
                )
                simulation.now_ms += 1
            assert _admits(limiter, entity_id, resource, need), f"{entity_id} was told to come too soon"


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
    simulation.now_ms += math.ceil(ttl_seconds * 1000) + 20_000  # clocks may be behind

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
    if not repositories:
        return
    (image,) = run_sync(setup.teller.look([bucket_key(setup.namespace_id, entity_id, resource)]))
    if image is not None and number(image, "shard_count", 1) == 1:
        for limit in limits:
            assert stored_rate(image, limit.name) == Rate.of(limit), (
                f"{entity_id} goes by older limits: {image}"
            )
