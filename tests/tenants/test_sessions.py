"""A long life of two tenants in one store: neither ever leaves a trace in the other's records."""

import random
from typing import Any

import pytest

from tests.fuzz.figures import EXAMPLES
from tests.fuzz.outcomes import outcome
from tests.fuzz.surface import REPOSITORY, usual_arguments
from tests.fuzz.tenants import ABROAD, ENTITIES, HOME, RESOURCES, contents, in_memory, template
from tests.odd_stores import HotMemory
from tests.tenants.places import (
    ABOUT_THE_STORE,
    ENDING,
    REGISTRY,
    of_tenant,
    places_of,
    places_written,
    writes_of,
)
from zae_limiter import SyncRateLimiter, SyncRepository
from zae_limiter.backends.change_log import log_of
from zae_limiter.backends.memory import MemoryBackend
from zae_limiter.operate.manifest import SyncStoredLimits, parse
from zae_limiter.records.connection import Connection, Options
from zae_limiter.repository import Repository
from zae_limiter.runtime.colour import run_sync
from zae_limiter.testing import ManualClock, RecordingBackend
from zae_limiter_aggregator import AggregatorSettings
from zae_limiter_aggregator.runner import LogSource

STEPS = EXAMPLES or 600
MANIFESTS = (
    "{}",
    "system: {limits: {rpm: {capacity: 50}, tokens.in: {capacity: 900}}}",
    "resources: {gpt-4: {limits: {rpm: {capacity: 40}}}}",
    "entities: {user-1: {resources: {gpt-4: {limits: {rpm: {capacity: 9}}}}}}",
)


def act(limiter: SyncRateLimiter, rng: random.Random, ids: dict[str, str]) -> str:
    """Something that a tenant does, by chance; its name."""
    repository = limiter.repository
    kind = rng.random()
    if kind < 0.5:
        entity_id, resource = rng.choice(ENTITIES), rng.choice(RESOURCES)
        outcome(lambda: use(limiter, entity_id, resource, rng))
        return "acquire"
    if kind < 0.6:
        outcome(lambda: SyncStoredLimits(repository).apply(parse(rng.choice(MANIFESTS))))
        return "apply"
    name = rng.choice(sorted(set(REPOSITORY) - ENDING))
    given = usual_arguments(rng, REPOSITORY[name], ids)
    outcome(lambda: getattr(repository, name)(**given))
    return name


def use(limiter: SyncRateLimiter, entity_id: str, resource: str, rng: random.Random) -> None:
    with limiter.acquire(entity_id, resource, {"rpm": rng.randint(1, 5)}) as lease:
        lease.adjust(rpm=rng.randint(-1, 9))
        if rng.random() < 0.2:
            raise LookupError  # the work fails, and everything is given back


@pytest.mark.parametrize("kind", [MemoryBackend, HotMemory])
@pytest.mark.parametrize("seed", range(2))
def test_two_tenants_never_meet(kind: type[MemoryBackend], seed: int) -> None:
    """Every key and index entry that is read or written is the tenant's own, and the other's bytes stay."""
    _, backend = in_memory("sync", kind)
    rng, clock, ids = random.Random(seed), ManualClock(template().now_ms, seed), dict(template().ids)
    log = LogSource(backend, log_of(backend), clock.world, AggregatorSettings())
    tenants: dict[str, tuple[SyncRateLimiter, RecordingBackend]] = {}
    for name in (HOME, ABROAD):
        recorder = RecordingBackend(backend)
        connection = Connection(recorder, clock.world, Options())
        tenants[name] = SyncRateLimiter(SyncRepository(Repository(connection, name, ids[name]))), recorder
    done: set[str] = set()
    for _ in range(STEPS):
        name, other = rng.sample((HOME, ABROAD), 2)
        limiter, recorder = tenants[name]
        theirs = of_tenant(contents(backend), ids[other])
        recorder.forget()
        acted = _suppressed(limiter, rng, {**ids, HOME: ids[name]})
        done.add(acted)
        allowed = {REGISTRY} if acted in ABOUT_THE_STORE else {ids[name]}
        assert places_of(recorder) <= allowed, acted
        assert of_tenant(contents(backend), ids[other]) == theirs, acted
        clock.advance(rng.random() * 20)
        if rng.random() < 0.1:
            count_usage(backend, log, ids)
    assert done >= {"acquire", "apply", "create_entity", "set_limits", "delete_entity"}


def _suppressed(limiter: SyncRateLimiter, rng: random.Random, ids: dict[str, str]) -> str:
    try:
        return act(limiter, rng, ids)
    except LookupError:
        return "acquire"


def count_usage(backend: Any, log: LogSource, ids: dict[str, str]) -> None:
    """The aggregator serves all; what it writes for a bucket stays in the bucket's namespace."""
    recorder = RecordingBackend(backend)
    busy = {key.partition.partition("/")[0] for key in _logged(log)}
    log._backend = recorder
    tally = run_sync(log.step())
    assert tally.failed == {}
    for write in writes_of(recorder):
        assert len(places_written(write)) == 1
        assert places_written(write) <= busy <= {ids[HOME], ids[ABROAD]}


def _logged(log: LogSource) -> list[Any]:
    return [entry.key for entry in log._log.read(10_000)]
