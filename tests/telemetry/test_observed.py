"""What is counted is what a program did, whatever it did, in both colours and on every kind of store."""

import asyncio
import gc
import os
import sys
import threading
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.stores import url_of
from tests.telemetry.test_exposition import samples
from zae_limiter import (
    Demand,
    Limit,
    PermissionDenied,
    RateLimiter,
    RateLimitExceeded,
    ResourceDisabled,
    SyncRateLimiter,
    ValidationError,
)
from zae_limiter.limiter import PLAIN
from zae_limiter.telemetry import EventKind, Telemetry, TelemetryEvent
from zae_limiter.telemetry.cells import LIMITS_MAX, RESOURCES_MAX
from zae_limiter.telemetry.observer import AskedDemand

LIMITS = [Limit.per_hour("rpm", 9), Limit.per_hour("tpm", 500)]
STEP = st.tuples(
    st.sampled_from(["block", "settle", "back", "raise", "open", "cancel", "consume", "joint", "wrong"]),
    st.sampled_from(["gpt-4", "search"]),
    st.integers(1, 5),
    st.integers(-3, 3),
)


class Books:
    """What a program knows of its own acquires."""

    def __init__(self) -> None:
        self.results: Counter[tuple[str, str]] = Counter()
        self.tokens: Counter[tuple[str, str, str]] = Counter()
        self.ends: Counter[tuple[str, str]] = Counter()
        self.refused_jointly = 0

    def admit(self, resource: str, amount: int) -> None:
        self.results["admitted", resource] += 1
        self.tokens["taken", resource, "rpm"] += amount

    def end(self, resource: str, held: int, change: int, *, failed: bool) -> None:
        if failed:
            self.ends["refunded", resource] += 1
            self.tokens["returned", resource, "rpm"] += held
        elif change:
            self.ends["settled", resource] += 1
            self.tokens["settled" if change > 0 else "returned", resource, "rpm"] += abs(change)
        else:
            self.ends["committed", resource] += 1


class Broken(Exception):
    """The work failed."""


async def play(limiter: Any, steps: list[tuple[str, str, int, int]], books: Books) -> None:
    """Run steps, and note what became of them by what the calls themselves say."""
    for what, resource, amount, change in steps:
        try:
            if what == "joint":
                await together(limiter, amount, books)
            elif what == "wrong":
                try:
                    async with limiter.acquire("key-1", resource, {"nothing": 1}):
                        pass
                except ValidationError:
                    books.results["failed", resource] += 1
            else:
                await alone(limiter, what, resource, amount, max(change, -amount), books)
        except RateLimitExceeded:
            asked = ("gpt-4", "search") if what == "joint" else (resource,)
            for one in asked:
                books.results["refused", one] += 1
            books.refused_jointly += len(asked) - 1


async def alone(limiter: Any, what: str, resource: str, amount: int, change: int, books: Books) -> None:
    needs = {"rpm": amount}
    if what in ("open", "cancel"):
        lease = await limiter.acquire("key-1", resource, needs)
        books.admit(resource, amount)
        await (lease.commit() if what == "open" else lease.cancel())
        books.end(resource, amount, 0, failed=what == "cancel")
        return
    held, noted = amount, 0
    try:
        async with limiter.acquire("key-1", resource, needs) as lease:
            books.admit(resource, amount)
            if what == "settle":
                await lease.adjust(rpm=change)
                noted = change
            elif what == "back":
                await lease.release(rpm=amount)
                noted = -amount
            elif what == "consume":
                try:
                    await lease.consume(rpm=amount)
                    books.admit(resource, amount)
                    held += amount
                except RateLimitExceeded:
                    books.results["refused", resource] += 1
            elif what == "raise":
                raise Broken
    except Broken:
        books.end(resource, held, noted, failed=True)
    else:
        books.end(resource, held, noted, failed=False)


async def together(limiter: Any, amount: int, books: Books) -> None:
    demands = [Demand("key-1", "gpt-4", {"rpm": amount}), Demand("key-1", "search", {"rpm": 1})]
    async with limiter.acquire(demands):
        pass
    for resource, taken in (("gpt-4", amount), ("search", 1)):
        books.admit(resource, taken)
        books.end(resource, taken, 0, failed=False)


def compare(telemetry: Telemetry, books: Books) -> None:
    found = samples(telemetry.prometheus_text())
    results: Counter[tuple[str, str]] = Counter()
    tokens: Counter[tuple[str, str, str]] = Counter()
    ends: Counter[tuple[str, str]] = Counter()
    for (name, labels), value in found.items():
        said = dict(labels)
        if name == "zae_limiter_acquire_total":
            results[said["result"], said["resource"]] += int(value)
        elif name == "zae_limiter_tokens_total":
            tokens[said["kind"], said["resource"], said["limit"]] += int(value)
        elif name == "zae_limiter_leases_ended_total":
            ends[said["result"], said["resource"]] += int(value)
        elif name == "zae_limiter_leases_active":
            assert value == 0
    assert +results == +books.results
    assert +tokens == +books.tokens
    assert +ends == +books.ends
    assert telemetry.counters.admitted == sum(n for (what, _), n in results.items() if what == "admitted")
    assert sum(one.count for one in telemetry.recent) == telemetry.counters.refused - books.refused_jointly


async def story(limiter: RateLimiter, steps: list[tuple[str, str, int, int]]) -> None:
    await limiter.set_system_defaults(LIMITS)
    books = Books()
    with Telemetry(limiter) as telemetry:
        await play(limiter, steps, books)
        compare(telemetry, books)


@settings(max_examples=60, deadline=None)
@given(steps=st.lists(STEP, max_size=25))
def test_counters_are_what_a_program_did(steps: list[tuple[str, str, int, int]]) -> None:
    """Admitted, refused, wrong, settled, given back, consumed, for several demands at once."""

    async def run() -> None:
        async with RateLimiter.open("memory://") as limiter:
            await story(limiter, steps)

    asyncio.run(run())


MIXED = [
    (what, resource, amount, change)
    for amount, change in ((1, 2), (2, -1), (1, 0))
    for what in ("block", "settle", "back", "raise", "open", "cancel", "consume", "joint", "wrong")
    for resource in ("gpt-4", "search")
]


async def test_on_every_store(url: str) -> None:
    """The same on stores that are waited for, whose acquires take another way."""
    async with RateLimiter.open(url) as limiter:
        await story(limiter, MIXED)


@settings(max_examples=40, deadline=None)
@given(steps=st.lists(st.tuples(st.integers(1, 4), st.integers(-4, 3), st.booleans()), max_size=25))
def test_counters_of_a_sync_limiter(steps: list[tuple[int, int, bool]]) -> None:
    """The sync twin counts the same."""
    books = Books()
    with SyncRateLimiter.open("memory://") as limiter, Telemetry(limiter) as telemetry:
        limiter.set_system_defaults(LIMITS)
        for amount, change, fails in steps:
            change = max(change, -amount)  # noqa: PLW2901
            try:
                with limiter.acquire("key-1", "gpt-4", {"rpm": amount}) as lease:
                    books.admit("gpt-4", amount)
                    lease.adjust(rpm=change)
                    if fails:
                        raise Broken
                books.end("gpt-4", amount, change, failed=False)
            except Broken:
                books.end("gpt-4", amount, change, failed=True)
            except RateLimitExceeded:
                books.results["refused", "gpt-4"] += 1
        compare(telemetry, books)


async def test_switches_and_waits_are_told_apart() -> None:
    """Off for all, off for one, past the limits; and how long somebody waited."""
    async with RateLimiter.open("memory://") as limiter:
        await limiter.set_system_defaults([Limit.per_second("rps", 50)])
        with Telemetry(limiter) as telemetry:
            await limiter.disable(resource="off", reason="away")
            await limiter.disable(entity_id="bad", reason="unpaid")
            await limiter.bypass(resource="free")
            with pytest.raises(ResourceDisabled):
                await limiter.acquire("k", "off", {"rps": 1})
            with pytest.raises(PermissionDenied):
                await limiter.acquire("bad", "r", {"rps": 1})
            async with limiter.acquire("k", "free", {"rps": 1}):
                assert telemetry.counters.leases_open == 1
            async with limiter.acquire("k", "r", {"rps": 50}):
                pass
            async with limiter.acquire("k", "r", {"rps": 2}, wait=60):
                pass
            counters = telemetry.counters
            assert (counters.disabled, counters.denied, counters.bypassed) == (1, 1, 1)
            assert (counters.admitted, counters.leases_open) == (2, 0)
            assert telemetry.observer.cells["r"].waits.count == 1


def test_entities_make_no_series() -> None:
    """A million of them leave the number of series as it was; and other names are bounded, too."""
    with SyncRateLimiter.open("memory://") as limiter, Telemetry(limiter) as telemetry:
        limits = [Limit.per_hour("rpm", 1)]
        refusal = None
        for _ in range(2):
            try:
                with limiter.acquire("key-0", "gpt-4", {"rpm": 1}, limits):
                    pass
            except RateLimitExceeded as error:
                refusal = error
        assert refusal is not None
        before = set(samples(telemetry.prometheus_text()))
        observer, needs = telemetry.observer, {"rpm": 1_000}
        for number in range(1_000_000):
            refusal.entity_id = f"key-{number}"
            observer.refuse([AskedDemand(refusal.entity_id, "gpt-4", needs)], refusal)
        for number in range(2_000):
            with limiter.acquire(f"other-{number}", "gpt-4", {"rpm": 1}, limits):
                pass
        assert set(samples(telemetry.prometheus_text())) == before
        assert telemetry.counters.refused == 1_000_001
        assert len(telemetry.recent) <= 200
        for number in range(3 * RESOURCES_MAX):
            for name in range(10):
                one = [Limit.per_hour(f"l{name}-{number}", 1)]
                with limiter.acquire("k", f"resource-{number}", {one[0].name: 1}, one):
                    pass
        found = samples(telemetry.prometheus_text())
        assert len({dict(labels).get("resource") for _, labels in found} - {None}) <= RESOURCES_MAX
        tokens = [value for (name, _), value in found.items() if name == "zae_limiter_tokens_total"]
        assert len(tokens) <= LIMITS_MAX + RESOURCES_MAX
        assert sum(tokens) == 2_001 + 6_000


def test_a_hook_that_raises_reaches_nobody(caplog: pytest.LogCaptureFixture) -> None:
    """The acquire is refused as ever, others are told, and it is logged once."""
    seen: list[TelemetryEvent] = []

    def raising(event: TelemetryEvent) -> None:
        raise Broken(event)

    with (
        SyncRateLimiter.open("memory://") as limiter,
        Telemetry(limiter, on_event=raising),
        Telemetry(limiter, on_event=seen.append),
    ):
        for _ in range(3):
            with (
                pytest.raises(RateLimitExceeded),
                limiter.acquire("k", "r", {"rpm": 2}, [Limit.per_hour("rpm", 1)]),
            ):
                pass
    assert [event.kind for event in seen] == [EventKind.REFUSED] * 3
    assert len([r for r in caplog.records if "hook for events raised" in r.message]) == 1


def test_soft_limits_are_told() -> None:
    """Work that a soft limit would have refused is admitted, and its entity and limits are in the event."""
    seen: list[TelemetryEvent] = []
    with SyncRateLimiter.open("memory://") as limiter, Telemetry(limiter, on_event=seen.append) as telemetry:
        with limiter.acquire("k", "r", {"rpm": 2}, [Limit.per_hour("rpm", 1).softly()]):
            pass
        assert telemetry.counters.soft_exceeded == 1
    assert [(e.kind, e.entity_id, e.limits) for e in seen] == [(EventKind.SOFT_EXCEEDED, "k", ("rpm",))]


def test_two_who_look_see_the_same_and_the_last_takes_it_off() -> None:
    """Closing one leaves the other as it was; after both, leases and store are the plain ones."""
    with SyncRateLimiter.open("memory://") as limiter:
        plain = limiter._async.repository._connection.backend
        one, two = Telemetry(limiter), Telemetry(limiter)
        limits = [Limit.per_hour("rpm", 9)]
        with limiter.acquire("k", "r", {"rpm": 1}, limits):
            one.close()
            one.close()
        with limiter.acquire("k", "r", {"rpm": 1}, limits):
            pass
        assert one.counters == two.counters
        assert two.counters.admitted == 2
        two.close()
        with limiter.acquire("k", "r", {"rpm": 1}, limits):
            pass
        assert two.counters.admitted == 2
        made = limiter._async
        assert (made._lease_type, made._acquisition_type, made._joint_types) == PLAIN
        assert made.repository._connection.backend is made.repository.writer.backend is plain
        with Telemetry(limiter) as again, limiter.acquire("k", "r", {"rpm": 1}, limits):
            assert (again.counters.admitted, again.counters.leases_open) == (3, 1)


def test_a_limiter_that_is_closed_can_be_read() -> None:
    """The numbers stay, and closing the telemetry afterwards is no trouble."""
    limiter = SyncRateLimiter.open("memory://")
    telemetry = Telemetry(limiter)
    telemetry.share()
    with limiter.acquire("k", "r", {"rpm": 1}, [Limit.per_hour("rpm", 9)]):
        pass
    limiter.close()
    assert telemetry.counters.admitted == 1
    assert samples(telemetry.prometheus_text())
    telemetry.close()


def test_many_threads_lose_no_count() -> None:
    """However often they take turns, where a GIL makes an addition one step."""
    each, interval = 400, sys.getswitchinterval()
    with SyncRateLimiter.open("memory://") as limiter, Telemetry(limiter) as telemetry:
        limits = [Limit.per_hour("rpm", 10**6)]

        def work() -> None:
            for _ in range(each):
                with limiter.acquire("k", "r", {"rpm": 1}, limits) as lease:
                    lease.adjust(rpm=1)

        sys.setswitchinterval(1e-6)
        try:
            threads = [threading.Thread(target=work) for _ in range(8)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        finally:
            sys.setswitchinterval(interval)
        cell = telemetry.observer.cells["r"]
        assert (cell.admitted, cell.settled_leases, cell.open) == (8 * each, 8 * each, 0)
        assert (cell.taken["rpm"], cell.settled["rpm"]) == (8 * each * 1000, 8 * each * 1000)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_forked_child_begins_at_zero(tmp_path: Path) -> None:
    """What its parent had counted is told by the parent; the child counts its own."""
    with SyncRateLimiter.open(url_of("sqlite", tmp_path)) as limiter, Telemetry(limiter) as telemetry:
        limits = [Limit.per_hour("rpm", 9)]
        with limiter.acquire("k", "r", {"rpm": 1}, limits):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)
                child = os.fork()
            if not child:
                code = 1
                try:
                    before = telemetry.counters
                    with limiter.acquire("k", "r", {"rpm": 1}, limits):
                        pass
                    after = telemetry.counters
                    code = 0 if (before.admitted, after.admitted, after.leases_open) == (0, 1, 0) else 2
                finally:
                    os._exit(code)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
            assert (telemetry.counters.admitted, telemetry.counters.leases_open) == (1, 1)


async def test_a_forgotten_lease_is_open_no_more() -> None:
    """Whoever opened it and dropped it is warned, and it is counted."""
    async with RateLimiter.open("memory://") as limiter:
        with Telemetry(limiter) as telemetry:
            lease = await limiter.acquire("k", "r", {"rpm": 1}, [Limit.per_hour("rpm", 9)])
            assert telemetry.counters.leases_open == 1
            with pytest.warns(ResourceWarning):  # noqa: PT031 - it is collected at one of the two
                del lease
                gc.collect()
            assert telemetry.counters.leases_open == 0
            assert telemetry.observer.cells["r"].forgotten == 1
