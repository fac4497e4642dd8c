"""Learned estimates: reservations cover what is used, many more calls get in, and balances are exact."""

import heapq
import random
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from tests.patience import wait_until
from zae_limiter import (
    Limit,
    RateLimiterUnavailable,
    RateLimitExceeded,
    SyncLease,
    SyncRateLimiter,
    SyncRepository,
    ValidationError,
)
from zae_limiter.backends.memory import MemoryBackend
from zae_limiter.backends.shelf import Shelf
from zae_limiter.llm import LearnedEstimates, SyncLearnedEstimates
from zae_limiter.llm.estimates import cap_class
from zae_limiter.llm.sketch import ENDS, bin_of
from zae_limiter.models import TOKENS_MAX
from zae_limiter.records.estimates import GENERATIONS
from zae_limiter.repository_protocol import Backend
from zae_limiter.testing import Fault, FaultyBackend, ManualClock, RecordingBackend

MODEL, CAP = "gpt-4o", 4_096
REFRESH_SECONDS = 5
TPM = Limit.per_minute("tpm", 60_000)
"""A token a millisecond, so that balances are whole numbers at every instant."""


class Call(NamedTuple):
    """One call of a trace, in milliseconds: when it comes, how long it takes, and what it uses."""

    at_ms: int
    lasts_ms: int
    used: int


def trace(seed: int, calls: int) -> list[Call]:
    """Every two minutes 200 calls in twenty seconds, of which half use 200 tokens, and few all they may."""
    chance, at_ms, made = random.Random(seed), 0, []
    for number in range(calls):
        used = min(CAP, round(chance.lognormvariate(5.3, 0.9)))
        made.append(Call(at_ms, 2_000 + used * 40, used))
        at_ms += 1 + round(chance.expovariate(1 / 99)) + (100_000 if number % 200 == 199 else 0)
    return made


def opened(clock: ManualClock, backend: Backend | None = None) -> SyncRepository:
    return SyncRepository.over(backend or MemoryBackend(clock.world), world=clock.world)


class Replay:
    """A trace against one bucket: each call reserves, works, settles what it used and is observed."""

    def __init__(self, reserving: Callable[[SyncRateLimiter], "Reserving"]) -> None:
        self.clock = ManualClock()
        self.since_ms = self.clock.now_ms
        self.limiter = SyncRateLimiter(opened(self.clock))
        self.reserving = reserving(self.limiter)
        self.at_work: list[tuple[int, int, Call, SyncLease]] = []
        self.admitted = self.covered = self.used = 0
        self.balance, self.balance_at_ms = TPM.capacity, self.since_ms

    def play(self, calls: list[Call]) -> "Replay":
        for number, call in enumerate(calls):
            self._end_until(self.since_ms + call.at_ms)
            self.clock.now_ms = self.since_ms + call.at_ms
            reserved = self.reserving.reserve(self.clock.now_ms)
            try:
                lease = self.limiter.acquire("key", MODEL, {"tpm": reserved}, [TPM]).open()
            except RateLimitExceeded:
                continue
            self._book(-reserved)
            self.admitted, self.covered = self.admitted + 1, self.covered + (call.used <= reserved)
            heapq.heappush(self.at_work, (self.clock.now_ms + call.lasts_ms, number, call, lease))
        self._end_until(None)
        return self

    def _end_until(self, at_ms: int | None) -> None:
        """End the calls that are over by then, or all of them now."""
        while self.at_work and (at_ms is None or self.at_work[0][0] <= at_ms):
            over_ms, _, call, lease = heapq.heappop(self.at_work)
            self.clock.now_ms = self.clock.now_ms if at_ms is None else over_ms
            self._book(lease.consumed["tpm"] - call.used)
            lease.settle(tpm=call.used)
            lease.commit()
            self.used += call.used
            self.reserving.observe(call.used)

    def _book(self, change: int) -> None:
        """What the bucket must hold: a token more with each millisecond, at most its capacity."""
        since_ms, self.balance_at_ms = self.balance_at_ms, self.clock.now_ms
        self.balance = min(self.balance + self.clock.now_ms - since_ms, TPM.capacity) + change

    def check_books(self) -> None:
        """The bucket holds what it must, and has counted what was used and nothing else."""
        self._book(0)
        assert self.limiter.available("key", MODEL, [TPM]) == {"tpm": min(self.balance, TPM.capacity)}
        (state,) = self.limiter.repository.get_bucket("key", MODEL)
        assert state.total_consumed_milli == self.used * 1000


class Reserving:
    """Reserve the cap, as gateways do."""

    def __init__(self, limiter: SyncRateLimiter) -> None:
        del limiter

    def reserve(self, now_ms: int) -> int:
        del now_ms
        return CAP

    def observe(self, used: int) -> None: ...


class Learning(Reserving):
    """Reserve what was learned; time stands still, so nothing is left to the background."""

    def __init__(self, limiter: SyncRateLimiter) -> None:
        self.estimates = SyncLearnedEstimates(limiter)
        self.refresh_at_ms = 0

    def reserve(self, now_ms: int) -> int:
        if now_ms >= self.refresh_at_ms:
            self.estimates.refresh()
            self.refresh_at_ms = now_ms + REFRESH_SECONDS * 1000
        return self.estimates.reserve(MODEL, CAP)

    def observe(self, used: int) -> None:
        self.estimates.observe(MODEL, CAP, used)


@pytest.mark.parametrize("seed", [1, 2])
def test_on_a_long_tailed_trace(seed: int) -> None:
    """95 % of reservations cover what is used, twice as many calls get in, and the balance is exact."""
    calls = trace(seed, 3_000)
    capped, learned = Replay(Reserving).play(calls), Replay(Learning).play(calls)
    assert capped.covered == capped.admitted
    assert learned.covered >= 0.95 * learned.admitted
    assert learned.admitted >= 2 * capped.admitted
    for replay in (capped, learned):
        replay.check_books()
    assert learned.balance < TPM.capacity, "else the bucket is full, and every mistake is forgotten"


class Estimating:
    """Calls one after another on a clock that is set, and what is reserved for them."""

    def __init__(self, backend: Backend | None = None, clock: ManualClock | None = None, **how: Any) -> None:
        self.clock = clock or ManualClock()
        self.repository = opened(self.clock, backend)
        self.estimates = SyncLearnedEstimates(self.repository, **how)
        self.chance = random.Random(5)

    def call(self, times: int, scale: float = 1.0, every_seconds: float = 0.2) -> float:
        """So many calls, several times as long as usual; which share was covered."""
        covered = 0
        for number in range(times):
            if number % 25 == 0:
                self.estimates.refresh()
            used = min(CAP, round(scale * self.chance.lognormvariate(4.5, 0.6)))
            covered += used <= self.estimates.reserve(MODEL, CAP)
            self.estimates.observe(MODEL, CAP, used)
            self.clock.advance(every_seconds)
        self.estimates.refresh()
        return covered / times

    @property
    def reserves(self) -> int:
        return self.estimates.reserve(MODEL, CAP)


def test_it_follows_a_change() -> None:
    """Calls that get longer are covered again within a generation, and shorter ones reserve less soon."""
    it = Estimating(generation_seconds=60, enough=300)
    it.call(1_500)
    usual = it.reserves
    it.call(300, scale=4)  # a generation in which it learns
    assert it.call(1_500, scale=4) >= 0.95
    assert it.reserves >= 3 * usual
    it.call(600)
    assert it.reserves <= usual * 9 / 8


def test_a_cold_start_reserves_the_cap() -> None:
    """And so does a model, or a class of caps, that nobody has seen."""
    it = Estimating()
    assert it.call(75) == 1
    assert it.reserves == CAP
    it.call(100)
    assert it.reserves < CAP
    assert it.estimates.reserve("other", CAP) == CAP
    assert it.estimates.reserve(MODEL, 2 * CAP) == 2 * CAP
    assert it.estimates.reserve(MODEL, CAP // 2 + 1) == min(it.reserves, CAP // 2 + 1)


@pytest.mark.parametrize(
    ("cap", "known"),
    [(0, 16), (1, 16), (16, 16), (17, 32), (4_096, 4_096), (4_097, 8_192), (TOKENS_MAX, 2**40)],
)
def test_caps_are_learned_in_classes(cap: int, known: int) -> None:
    """Of which there are few, whatever callers choose."""
    assert cap_class(cap) == known


def test_what_is_old_is_forgotten() -> None:
    """Without calls for as long as generations are kept, it is the cap again, with a store or without."""
    clock = ManualClock()
    store = FaultyBackend(MemoryBackend(clock.world))
    it = Estimating(store, clock, generation_seconds=60)
    it.call(300)
    assert it.reserves < CAP
    store.always = Fault.UNREACHABLE
    clock.advance(60 * (GENERATIONS - 1))
    assert it.reserves < CAP
    clock.advance(60)
    assert it.reserves == CAP
    store.always = None
    it.estimates.refresh()
    assert it.reserves == CAP


def test_no_call_waits_for_the_store() -> None:
    """A store that is gone costs nobody time: what is known stands, and nothing is asked on the way."""
    clock = ManualClock()
    recording = RecordingBackend(MemoryBackend(clock.world))
    it = Estimating(recording, clock)
    it.call(200)
    recording.forget()
    reserved = [it.estimates.reserve(MODEL, CAP) for _ in range(50)]
    for _ in range(50):
        it.estimates.observe(MODEL, CAP, 100)
    assert (len(set(reserved)), recording.calls) == (1, [])


def test_calls_refresh_in_the_background() -> None:
    """The first one that comes when it is due begins that, waits for nothing, and the next ones profit."""
    clock = ManualClock()
    shelf = Shelf()
    others = Estimating(MemoryBackend(clock.world, shelf), clock)
    others.call(200)
    it = Estimating(MemoryBackend(clock.world, shelf), clock)
    assert it.reserves == CAP
    wait_until(lambda: it.reserves < CAP)
    it.estimates.observe(MODEL, CAP, 1)
    before = len(it.estimates._async._learned.get().sketches)
    clock.advance(10)
    it.estimates.reserve(MODEL, CAP)
    wait_until(lambda: not any(one.pending for one in it.estimates._async._learned.get().sketches.values()))
    assert before == 1


async def test_async_calls_refresh_in_the_background(tmp_path: Any) -> None:
    """On the event loop, between other tasks."""
    import asyncio

    from zae_limiter import RateLimiter

    url = f"sqlite:///{tmp_path}/limits.db"
    async with RateLimiter.open(url) as limiter, LearnedEstimates(limiter) as estimates:
        for _ in range(100):
            estimates.observe(MODEL, CAP, 300)
        assert await estimates.reserve(MODEL, CAP) == CAP
        async with asyncio.timeout(600):
            while await estimates.reserve(MODEL, CAP) == CAP:  # noqa: ASYNC110 - nobody is told of it
                await asyncio.sleep(0.005)
        assert await estimates.reserve(MODEL, CAP) == ENDS[bin_of(300)]


def test_leaving_stores_what_was_observed() -> None:
    """The next process begins with it."""
    clock, shelf = ManualClock(), Shelf()
    with SyncLearnedEstimates(opened(clock, MemoryBackend(clock.world, shelf))) as estimates:
        for _ in range(100):
            estimates.observe(MODEL, CAP, 300)
    it = Estimating(MemoryBackend(clock.world, shelf), clock)
    it.estimates.reserve(MODEL, CAP)
    it.estimates.refresh()
    assert it.reserves == ENDS[bin_of(300)]


def test_what_a_process_remembers_is_bounded() -> None:
    """Names that users make up push each other out, not those that are in use."""
    it = Estimating(sketches_max=10)
    it.call(100)
    for number in range(1_000):
        it.estimates.observe(f"made-up-{number}", CAP, 1)
        it.estimates.observe(MODEL, CAP, 1)
    assert len(it.estimates._async._learned.get().sketches) == 10
    it.estimates.refresh()
    assert it.reserves < CAP


def test_names_that_are_only_asked_for_push_nobody_out() -> None:
    """However many one tenant makes up: what is known of others stays, and what they observed is stored."""
    it = Estimating(sketches_max=10)
    it.call(200)
    usual = it.reserves
    for _ in range(600):
        it.estimates.observe(MODEL, CAP, 2_000)  # not stored yet
    for number in range(100):
        assert it.estimates.reserve(f"made-up-{number}", CAP) == CAP
    assert it.reserves == usual < 2_000
    it.estimates.refresh()
    assert it.reserves >= 2_000
    for number in range(100):  # calls that somebody served all the same
        it.estimates.observe(f"made-up-{number}", CAP, 1)
    assert it.reserves >= 2_000
    it.clock.advance(900 * GENERATIONS)
    for number in range(10):  # what is old counts for nothing
        it.estimates.reserve(f"new-{number}", CAP)
    assert it.reserves == CAP


@pytest.mark.parametrize("is_down", [False, True])
def test_what_makes_room_is_stored_before(is_down: bool) -> None:
    """Also if the store was gone for a while, and if somebody asks for it again meanwhile."""
    clock, shelf = ManualClock(), Shelf()
    store = FaultyBackend(MemoryBackend(clock.world, shelf))
    it = Estimating(store, clock, sketches_max=10)
    for _ in range(100):
        for number in range(18):
            it.estimates.observe(f"model-{number}", CAP, 300)
    if is_down:
        store.always = Fault.UNREACHABLE
        with pytest.raises(RateLimiterUnavailable):
            it.estimates.refresh()
        store.always = None
        it.estimates.observe("model-0", CAP, 300)
    it.estimates.refresh()
    assert it.estimates._async._learned.get().leaving == {}
    other = Estimating(MemoryBackend(clock.world, shelf), clock)
    for _ in range(2):
        reserved = [other.estimates.reserve(f"model-{number}", CAP) for number in range(18)]
        other.estimates.refresh()
    assert reserved == [ENDS[bin_of(300)]] * 18


def test_threads_observe_together() -> None:
    """No call is lost, and none counts twice."""
    it = Estimating()

    def observe() -> None:
        for number in range(500):
            it.estimates.observe(MODEL, CAP, 100)
            if number % 100 == 0:
                it.estimates.refresh()

    threads = [threading.Thread(target=observe) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    it.estimates.refresh()
    (sketch,) = it.estimates._async._learned.get().sketches.values()
    assert [sum(counts.values()) for counts in sketch.counts.values() if counts] == [2_000]


@pytest.fixture
def estimates() -> SyncLearnedEstimates:
    return Estimating().estimates


@pytest.mark.parametrize(
    ("given", "field"),
    [
        (("gpt#4", CAP, 1), "model"),
        (("", CAP, 1), "model"),
        (("x" * 300, CAP, 1), "model"),
        ((None, CAP, 1), "model"),
        ((["gpt-4"], CAP, 1), "model"),
        ((MODEL, -1, 1), "cap"),
        ((MODEL, True, 1), "cap"),
        ((MODEL, TOKENS_MAX + 1, 1), "cap"),
        ((MODEL, CAP, -1), "used"),
        ((MODEL, CAP, 1.5), "used"),
    ],
)
def test_odd_calls_are_refused(
    given: tuple[Any, Any, Any], field: str, estimates: SyncLearnedEstimates
) -> None:
    """With what is wrong about them, and nothing is remembered."""
    with pytest.raises(ValidationError, match=field):
        estimates.observe(*given)
    if field != "used":
        with pytest.raises(ValidationError, match=field):
            estimates.reserve(*given[:2])
    assert repr(estimates) == "<SyncLearnedEstimates of 0 kinds of calls>"


@pytest.mark.parametrize(
    "how",
    [
        {"quantile": 1.0},
        {"quantile": 0.2},
        {"quantile": "0.95"},
        {"refresh_seconds": 0},
        {"generation_seconds": 1},
        {"enough": 0},
        {"sketches_max": 0},
    ],
)
def test_odd_settings_are_refused(how: dict[str, Any]) -> None:
    """When the object is made."""
    with pytest.raises(ValidationError, match=next(iter(how))):
        Estimating(**how)
    for kind in (LearnedEstimates, SyncLearnedEstimates):
        with pytest.raises(ValidationError, match="limiter"):
            kind("memory://")  # type: ignore[arg-type]
