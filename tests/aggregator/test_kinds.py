"""Every kind of limit and the aggregator: use is counted, and a bucket holds what it would have held."""

import contextlib
import threading
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from zlib import crc32

import pytest

from tests.quotas import instant
from tests.stores import STORES, url_of
from zae_limiter import Limit, SyncRateLimiter, SyncRepository
from zae_limiter.backends import open_backend
from zae_limiter.backends.memory import MemoryBackend
from zae_limiter.repository_protocol import Backend, Item, Key
from zae_limiter.runtime.colour import run_sync
from zae_limiter.schema import bucket_key
from zae_limiter.testing import ManualClock
from zae_limiter_aggregator import AggregatorSettings, Change
from zae_limiter_aggregator.buckets import aggregate_bucket_states, try_refill_bucket
from zae_limiter_aggregator.changes import Span
from zae_limiter_aggregator.runner import follow, source_of

QUOTA = Limit.per_month("usd", 1_000, tz="Europe/Berlin")
SESSION = Limit.session("msgs", 50, "5h")
SEATS = Limit.concurrent("seats", 3, hold="10m")
SCHEDULE = Limit.per_minute("rpm", 60).during("* 9-16 * * *", 600)
SOFT = Limit.per_minute("tpm", 100).softly()
EVENING = instant("2026-03-30T19:00Z")


def fresh_url(kind: str, folder: Path) -> str:
    """A store of a kind; a table has its stream."""
    if kind != "dynamodb":
        return url_of(kind, folder)
    from tests.dynamodb.tables import make_table
    from tests.engines import dynamodb_local

    return dynamodb_local.url(make_table(with_stream=True), timeout_ms=60_000)


def image_of(backend: Backend, key: Key) -> Item:
    (image,) = run_sync(backend.batch_get([key]))
    assert image is not None
    return image


@pytest.mark.parametrize("kind", STORES)
def test_use_of_every_kind_is_counted(kind: str, tmp_path: Path) -> None:
    """One bucket with all of them: settled, refunded and still held. It holds what it did, now and later.

    A seat is counted once for each lease that was not refunded, whether it is free again or not.
    """
    url = fresh_url(kind, tmp_path)
    clock = ManualClock(EVENING, seed=crc32(url.encode()))
    limits = [QUOTA, SESSION, SEATS, SCHEDULE, SOFT]
    needs = {"usd": 40, "msgs": 2, "seats": 1, "rpm": 3, "tpm": 150}
    backend = open_backend(url, sync=True, world=clock.world)
    with SyncRateLimiter(SyncRepository.over(backend, world=clock.world)) as limiter:
        with limiter.acquire("key", "api", needs, limits) as lease:
            lease.settle(usd=60)
        clock.advance(100)
        with contextlib.suppress(KeyError), limiter.acquire("key", "api", needs, limits):
            raise KeyError
        held = limiter.acquire("key", "api", needs, limits).open()

        def holds() -> list[dict[str, int]]:
            at_ms, found = clock.now_ms, list[dict[str, int]]()
            for seconds in (0, 30, 500, 10 * 86_400):
                clock.now_ms = at_ms + seconds * 1_000
                found.append(limiter.available("key", "api", limits))
            clock.now_ms = at_ms
            return found

        before = holds()
        reader = open_backend(url, sync=True, world=clock.world)
        source = source_of(reader, url, clock.world, AggregatorSettings())
        total = follow(source, until_idle=True, stop=threading.Event(), tell=lambda *_: None)
        run_sync(reader.close())
        assert (total.failed, total.passed_over, total.troubles) == ({}, 0, 0)
        # Where others read the buckets too it refilled this one, which had little left of what it had used.
        assert (total.refills_written == 1) is (kind == "dynamodb")
        assert holds() == before

        counted = Counter[str]()
        snapshots, _ = limiter.get_usage_snapshots(entity_id="key", window_type="hourly")
        for snapshot in snapshots:
            counted.update(snapshot.counters)
        assert counted == {"usd": 100, "msgs": 4, "seats": 2, "rpm": 6, "tpm": 300}
        held.commit()


@pytest.mark.parametrize(
    ("limit", "amount", "wait_seconds", "later_seconds"),
    [
        (QUOTA, 900, 100, (0, 3_600, 2 * 86_400, 40 * 86_400)),
        (QUOTA, 900, 2 * 86_400, (0, 3_600, 40 * 86_400)),
        (SESSION, 40, 100, (0, 17_899, 17_900, 40_000)),
        (SESSION, 40, 18_100, (0, 17_999, 18_000, 40_000)),
        (SEATS, 1, 100, (0, 600, 700, 3_600)),
        (SCHEDULE, 60, 61, (0, 3_600, 50_340, 50_400)),
    ],
    ids=["quota", "quota, next month", "session", "session, over", "seat", "schedule"],
)
def test_a_refill_changes_nothing_for_any_kind(
    limit: Limit, amount: int, wait_seconds: int, later_seconds: Sequence[int]
) -> None:
    """A rate beside it is empty, so it is refilled; ever after it holds what its untouched twin does."""
    clock = ManualClock(EVENING)
    backend = MemoryBackend(clock.world)
    with SyncRateLimiter(SyncRepository.over(backend, world=clock.world)) as limiter:
        limits = [limit, Limit.per_day("tokens", 1_000)]
        leases = [
            limiter.acquire(name, "api", {limit.name: amount, "tokens": 1_000}, limits).open()
            for name in ("tended", "left")
        ]
        clock.advance(wait_seconds)
        key = bucket_key(limiter.repository.namespace_id, "tended", "api")
        before = image_of(backend, key)
        seen = aggregate_bucket_states([Change(key, None, before, clock.now_ms, Span(EVENING, 0, 1))])[key]
        assert run_sync(try_refill_bucket(backend, clock.world, seen))
        assert image_of(backend, key)["rf"] != before["rf"]
        for seconds in later_seconds:
            clock.now_ms = EVENING + (wait_seconds + seconds) * 1000
            tended, left = (limiter.available(name, "api", limits) for name in ("tended", "left"))
            assert tended == left
        for lease in leases:
            lease.commit()
        assert limiter.available("tended", "api", limits) == limiter.available("left", "api", limits)


def test_a_bucket_of_a_former_phase_is_not_refilled() -> None:
    """Whoever uses it next brings it into the phase of the instant; until then its numbers are of another."""
    clock = ManualClock(EVENING)
    backend = MemoryBackend(clock.world)
    with SyncRateLimiter(SyncRepository.over(backend, world=clock.world)) as limiter:
        limits = [SCHEDULE, Limit.per_day("tokens", 1_000)]
        with limiter.acquire("key", "api", {"rpm": 60, "tokens": 1_000}, limits):
            pass
        key = bucket_key(limiter.repository.namespace_id, "key", "api")
        before = image_of(backend, key)
        clock.advance(14 * 3_600)
        seen = aggregate_bucket_states([Change(key, None, before, clock.now_ms, Span(EVENING, 0, 1))])[key]
        assert not run_sync(try_refill_bucket(backend, clock.world, seen))
        assert image_of(backend, key) == before
