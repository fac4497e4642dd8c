"""Sharing: other processes see refusals soon, on every store, and nobody pays for it but a write a second."""

import asyncio
from collections.abc import Callable

import pytest

from tests.patience import PATIENCE_SECONDS, wait_until
from tests.stores import STORES
from zae_limiter import (
    Limit,
    PermissionDenied,
    RateLimiter,
    RateLimiterUnavailable,
    RateLimitExceeded,
    Repository,
    SyncRateLimiter,
    SyncRepository,
)
from zae_limiter.records import reports
from zae_limiter.telemetry import ProcessReport, Telemetry
from zae_limiter.testing import Fault, FaultyBackend, ManualClock, RecordingBackend

LIMITS = [Limit.per_minute("rpm", 2)]


async def use(limiter: RateLimiter, times: int, entity_id: str = "key-1") -> None:
    for _ in range(times):
        try:
            async with limiter.acquire(entity_id, "gpt-4", {"rpm": 1}, LIMITS):
                pass
        except RateLimitExceeded:
            pass


async def heard(repository: Repository, is_so: Callable[[list[ProcessReport]], bool]) -> list[ProcessReport]:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not is_so(found := await repository.get_reports()):  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    return found


async def test_another_process_sees_refusals(url: str) -> None:
    """Whoever reads sees them, by the process that refused; and what is told later replaces it."""
    async with RateLimiter.open(url) as here, RateLimiter.open(url) as there:
        with Telemetry(here, name="worker-1") as telemetry:
            telemetry.share()
            await use(here, 5)
            (report,) = await heard(
                there.repository, lambda found: bool(found) and sum(r.count for r in found[0].refusals) == 3
            )
            assert (report.name, report.refusals[0].process) == ("worker-1", "worker-1")
            (refusal,) = report.refusals
            assert (refusal.entity_id, refusal.resource, refusal.limits) == ("key-1", "gpt-4", ("rpm",))
            assert refusal.requested == {"rpm": 1}
            await use(here, 4, "key-2")
            (report,) = await heard(there.repository, lambda found: found[0].refused == 5)
            assert report.admitted == 4
            assert {one.entity_id for one in report.refusals} == {"key-1", "key-2"}


async def test_others_see_what_a_switch_refused(url: str) -> None:
    """Soon, with its reason, and though nothing else has happened; it is no limit's doing."""
    async with RateLimiter.open(url) as here, RateLimiter.open(url) as there:
        await here.disable(entity_id="key-1", reason="unpaid")
        with Telemetry(here) as telemetry:
            telemetry.share()
            for _ in range(3):
                with pytest.raises(PermissionDenied):
                    async with here.acquire("key-1", "gpt-4", {"rpm": 1}, LIMITS):
                        pass
            (report,) = await heard(
                there.repository, lambda found: bool(found) and sum(r.count for r in found[0].refusals) == 3
            )
            (refusal,) = report.refusals
            assert (refusal.entity_id, refusal.resource, refusal.requested) == ("key-1", "gpt-4", {"rpm": 1})
            assert (refusal.limits, refusal.reason, refusal.retry_after_ms) == ((), "unpaid", None)


async def test_the_wait_for_a_seat_is_told_as_the_latest(url: str) -> None:
    """For it is free as soon as somebody is done; the wait for a rate is what it is."""
    seats = [Limit.concurrent("parallel", 1, hold="5m"), Limit.per_minute("rpm", 2)]
    async with RateLimiter.open(url) as limiter:
        with Telemetry(limiter) as telemetry:
            async with limiter.acquire("key-1", "gpt-4", {"parallel": 1, "rpm": 1}, seats):
                for amounts in ({"parallel": 1}, {"rpm": 2}):
                    with pytest.raises(RateLimitExceeded):
                        async with limiter.acquire("key-1", "gpt-4", amounts, seats):
                            pass
            found = {one.limits: one.is_latest for one in telemetry.recent}
            assert found == {("parallel",): True, ("rpm",): False}


def test_a_sync_limiter_shares_too(tmp_path: object) -> None:
    """By a thread that waits, for nothing suspends there."""
    with SyncRateLimiter.open(f"sqlite:///{tmp_path}/limits.db") as limiter, Telemetry(limiter) as telemetry:
        telemetry.share()
        for _ in range(4):
            try:
                with limiter.acquire("key-1", "gpt-4", {"rpm": 1}, LIMITS):
                    pass
            except RateLimitExceeded:
                pass
        wait_until(lambda: [one.refused for one in limiter.repository.get_reports()] == [2])


async def stepped(
    clock: ManualClock, tmp_path: object, kind: str = "sqlite"
) -> tuple[RateLimiter, Telemetry, RecordingBackend]:
    recording = RecordingBackend(STORES[kind](tmp_path, clock.world)())  # type: ignore[arg-type]
    limiter = RateLimiter(await Repository.over(recording, world=clock.world))
    return limiter, Telemetry(limiter), recording


async def test_nothing_is_written_while_nothing_happens(clock: ManualClock, tmp_path: object) -> None:
    """And one row at most each time, whatever happened."""
    limiter, telemetry, recording = await stepped(clock, tmp_path)
    telemetry.share()
    sharing = telemetry.sharing
    assert sharing is not None
    recording.forget()
    await sharing.tell()
    assert recording.calls == []
    await use(limiter, 30)
    recording.forget()
    await sharing.tell()
    assert [(verb, len(given)) for verb, given in recording.calls] == [("write_each", 1)]
    recording.forget()
    clock.advance(1_000)
    await sharing.tell()
    assert recording.calls == []
    telemetry.close()
    await limiter.close()


async def test_processes_find_places_of_their_own(
    clock: ManualClock, tmp_path: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each tries until it has one; where there is none it is not heard, and does no harm."""
    monkeypatch.setattr(reports, "PLACES", 3)
    monkeypatch.setattr("zae_limiter.telemetry.sharing.PLACES", 3)
    open_backend = STORES["memory"](tmp_path, clock.world)  # type: ignore[arg-type]
    processes = []
    for number in range(4):
        limiter = RateLimiter(await Repository.over(open_backend(), world=clock.world))
        telemetry = Telemetry(limiter, name=f"p{number}")
        telemetry.share()
        await use(limiter, 1, f"key-{number}")
        assert telemetry.sharing is not None
        waits = [await telemetry.sharing.tell() for _ in range(3)]
        processes.append((limiter, telemetry, waits))
    found = await processes[0][0].repository.get_reports()
    assert {one.name for one in found} == {"p0", "p1", "p2"}
    assert max(processes[3][2]) >= 60_000
    for limiter, telemetry, _ in processes:
        telemetry.close()
        await limiter.close()


async def test_a_place_that_was_lost_is_looked_for_anew(clock: ManualClock, tmp_path: object) -> None:
    """Whoever was silent for so long that another took its place is heard again."""
    limiter, telemetry, _ = await stepped(clock, tmp_path)
    telemetry.share()
    sharing = telemetry.sharing
    assert sharing is not None
    await use(limiter, 1)
    await sharing.tell()
    (first,) = await limiter.repository.get_reports()
    clock.advance(reports.SILENT_MS / 1000 + 1)
    key = reports.report_key(limiter.repository.namespace_id, sharing._voice.get().place)  # type: ignore[arg-type]
    (row,) = await limiter.repository._backend.batch_get([key])
    assert row is not None
    thief = {**row, "of": "thief", "seen_ms": clock.now_ms}
    await limiter.repository.write_each([reports.Update(key, set=thief)])
    await use(limiter, 1)
    for _ in range(3):
        await sharing.tell()
    found = {one.process_id: one.admitted for one in await limiter.repository.get_reports()}
    assert found == {"thief": 1, first.process_id: 2}
    telemetry.close()
    await limiter.close()


async def test_a_store_that_is_gone_delays_nobody(clock: ManualClock, tmp_path: object) -> None:
    """Acquires of a limiter that shares go on as their policy says, and what was not told is told later."""
    faulty = FaultyBackend(STORES["sqlite"](tmp_path, clock.world)())  # type: ignore[arg-type]
    limiter = RateLimiter(await Repository.over(faulty, world=clock.world))
    await limiter.set_system_defaults(LIMITS, on_unavailable="allow")
    telemetry = Telemetry(limiter)
    telemetry.share()
    await use(limiter, 1)
    faulty.always = Fault.UNREACHABLE
    await use(limiter, 3)
    assert telemetry.sharing is not None
    await telemetry.sharing._run()
    faulty.always = None
    await telemetry.sharing.tell()
    (report,) = await limiter.repository.get_reports()
    assert (report.admitted, report.degraded) == (1, 3)
    telemetry.close()
    await limiter.close()


async def test_a_reply_that_was_lost_leaves_no_second_row(clock: ManualClock, tmp_path: object) -> None:
    """A process that cannot know whether it was heard is heard once, in the place that it had chosen."""
    faulty = FaultyBackend(STORES["memory"](tmp_path, clock.world)())  # type: ignore[arg-type]
    limiter = RateLimiter(await Repository.over(faulty, world=clock.world))
    telemetry = Telemetry(limiter)
    telemetry.share()
    sharing = telemetry.sharing
    assert sharing is not None
    for admitted in (1, 2):
        await use(limiter, 1, f"key-{admitted}")
        faulty.faults = [Fault.LOST_REPLY]
        with pytest.raises(RateLimiterUnavailable):
            await sharing.tell()
        clock.advance(1)
        await sharing.tell()
        (report,) = await limiter.repository.get_reports()
        assert (report.admitted, report.process_id) == (admitted, sharing.process_id)
    telemetry.close()
    await limiter.close()


def test_it_ends_with_the_telemetry() -> None:
    """Nothing is told after that, and no thread is left that waits."""
    with SyncRateLimiter(SyncRepository.open(store="memory://")) as limiter:
        telemetry = Telemetry(limiter)
        telemetry.share()
        telemetry.close()
        for _ in range(4):
            try:
                with limiter.acquire("key-1", "gpt-4", {"rpm": 1}, LIMITS):
                    pass
            except RateLimitExceeded:
                pass
        assert limiter.repository.get_reports() == []
        assert telemetry.sharing is not None
        assert telemetry.sharing._voice.peek() is None
