"""The theorem we sell, through the public API, on a store in memory and a clock that is set by hand.

In every interval a limit admits, net of refunds, at most its capacity plus what accrues in the
interval; nothing that fits is refused; no token is lost.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zae_limiter import Limit, RateLimitExceeded, SyncLease, SyncRateLimiter, SyncRepository, ValidationError
from zae_limiter.backends.memory import MemoryBackend
from zae_limiter.bucket import refill_bucket
from zae_limiter.engine.law import Rate
from zae_limiter.testing import ManualClock

ENTITY, RESOURCE = "user-1", "gpt-4"
REFUSAL_REMEMBERED_MS = 1000
"""For so long a process trusts a refusal of its own; only a refund of another process proves it wrong."""


class Stage:
    """One store, one clock, and as many processes as are asked for."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.store = MemoryBackend(self.clock.world)

    def process(self, **settings_: Any) -> SyncRateLimiter:
        return SyncRateLimiter(SyncRepository.over(self.store, world=self.clock.world), **settings_)


def admitted(limiter: SyncRateLimiter, limits: Sequence[Limit], **amounts: int) -> bool:
    """Whether a demand is admitted now; if so it stays spent."""
    try:
        with limiter.acquire(ENTITY, RESOURCE, amounts, limits):
            return True
    except RateLimitExceeded:
        return False


def refusal(limiter: SyncRateLimiter, limits: Sequence[Limit], **amounts: int) -> RateLimitExceeded:
    with pytest.raises(RateLimitExceeded) as caught, limiter.acquire(ENTITY, RESOURCE, amounts, limits):
        pass
    return caught.value


def accrued(limit: Limit, since_ms: int, until_ms: int) -> int:
    """Millitokens that a limit brings in an interval, counted from the epoch."""
    amount, period = limit.refill_amount * 1000, limit.refill_period_seconds * 1000
    return until_ms * amount // period - since_ms * amount // period


# The theorem as a property.

LIMITS = (
    (Limit("fast", 5, 35, 60), Limit("slow", 3, 1, 3600)),
    (Limit("fast", 1, 1000, 1), Limit("slow", 8, 100, 86_400)),
    (Limit("fast", 100, 7, 1), Limit("slow", 2, 3, 7)),
)


class Wait(NamedTuple):
    milliseconds: int


class Take(NamedTuple):
    """A process asks for a lease, and holds it if it gets it."""

    process: int
    amounts: dict[str, int]


class More(NamedTuple):
    """A lease that is held asks for more."""

    lease: int
    amounts: dict[str, int]


class Change(NamedTuple):
    """A lease that is held notes a difference."""

    lease: int
    name: str
    tokens: int


class End(NamedTuple):
    """A lease that is held ends, well or not."""

    lease: int
    well: bool


amounts = st.dictionaries(st.sampled_from(("fast", "slow")), st.integers(1, 4), min_size=1)
some_lease = st.integers(0, 3)
steps = st.one_of(
    st.builds(Wait, st.integers(1, 3000) | st.sampled_from((1, 60_000, 3_600_000, 36_000_000))),
    st.builds(Take, st.integers(0, 1), amounts),
    st.builds(Take, st.integers(0, 1), amounts),
    st.builds(More, some_lease, amounts),
    st.builds(Change, some_lease, st.sampled_from(("fast", "slow")), st.integers(-4, 9)),
    st.builds(End, some_lease, st.booleans()),
)


class Held(NamedTuple):
    lease: SyncLease
    leave: Callable[..., None]
    taken: Counter[str]
    adjusted: Counter[str]


class Ledger:
    """What the law says a bucket holds, and every admission and refund there was."""

    def __init__(self, limits: Sequence[Limit], now_ms: int) -> None:
        self.limits = {limit.name: limit for limit in limits}
        self.level = {limit.name: limit.capacity_milli for limit in limits}
        self.consumed: Counter[str] = Counter()
        self.net: list[tuple[int, str, int]] = []
        self.now_ms = now_ms

    def advance(self, now_ms: int) -> None:
        for name, limit in self.limits.items():
            gained = accrued(limit, self.now_ms, now_ms)
            self.level[name] = min(limit.capacity_milli, self.level[name] + gained)
        self.now_ms = now_ms

    def covers(self, amounts: dict[str, int]) -> bool:
        return all(self.level[name] >= amount * 1000 for name, amount in amounts.items())

    def admit(self, amounts: dict[str, int]) -> None:
        for name, amount in amounts.items():
            self.debit(name, amount)
            self.net.append((self.now_ms, name, amount * 1000))

    def debit(self, name: str, amount: int) -> None:
        self.level[name] -= amount * 1000
        self.consumed[name] += amount

    def refund(self, name: str, amount: int) -> None:
        self.level[name] = min(self.limits[name].capacity_milli, self.level[name] + amount * 1000)
        self.consumed[name] -= amount
        self.net.append((self.now_ms, name, -amount * 1000))

    def check_every_interval(self) -> None:
        for name, limit in self.limits.items():
            events = [(at_ms, milli) for at_ms, other, milli in self.net if other == name]
            for first, (start_ms, _) in enumerate(events):
                sums = accumulate(milli for _, milli in events[first:])
                for (end_ms, _), total in zip(events[first:], sums, strict=True):
                    assert total <= limit.capacity_milli + accrued(limit, start_ms, end_ms)


class Play:
    """A list of steps, carried out by two processes and by the ledger."""

    def __init__(self, limits: Sequence[Limit], *, speculative: bool) -> None:
        self.stage, self.limits = Stage(), limits
        self.processes = [self.stage.process(speculative_writes=speculative) for _ in range(2)]
        self.ledger = Ledger(limits, self.stage.clock.now_ms)
        self.held: list[Held] = []
        self.refused_ms = 0

    def carry_out(self, step: Wait | Take | More | Change | End) -> None:
        match step:
            case Wait(milliseconds):
                self.stage.clock.now_ms += milliseconds
                self.ledger.advance(self.stage.clock.now_ms)
            case Take(process, wanted):
                acquisition = self.processes[process].acquire(ENTITY, RESOURCE, wanted, self.limits)
                lease = self.ask(wanted, acquisition.__enter__)
                if lease is not None:
                    self.held.append(Held(lease, acquisition.__exit__, Counter(wanted), Counter()))
            case More(index, wanted) if self.held:
                held = self.held[index % len(self.held)]
                if self.ask(wanted, lambda: held.lease.consume(wanted) or held) is not None:
                    held.taken.update(wanted)
            case Change(index, name, tokens) if self.held:
                held = self.held[index % len(self.held)]
                if held.taken[name] + held.adjusted[name] + tokens >= 0:
                    held.lease.adjust({name: tokens})
                    held.adjusted[name] += tokens
            case End(index, well) if self.held:
                self.end(self.held.pop(index % len(self.held)), well=well)

    def ask(self, wanted: dict[str, int], take: Callable[[], Any]) -> Any:
        """Demand something that must be admitted exactly if the ledger covers it."""
        try:
            got = take()
        except RateLimitExceeded as error:
            refused = error
        else:
            assert self.ledger.covers(wanted), "more was admitted than was there"
            self.ledger.admit(wanted)
            return got
        # A process may trust a refusal for a moment although another one has given back since.
        lately = self.ledger.now_ms - self.refused_ms <= REFUSAL_REMEMBERED_MS
        assert lately or not self.ledger.covers(wanted), "what fits was refused"
        assert [s.limit_name for s in refused.statuses] == list(wanted)
        self.refused_ms = self.ledger.now_ms
        return None

    def end(self, held: Held, *, well: bool) -> None:
        if well:
            assert held.lease.consumed == {n: held.taken[n] + held.adjusted[n] for n in held.lease.consumed}
            held.leave(None, None, None)
            for name, tokens in held.adjusted.items():
                if tokens > 0:
                    self.ledger.debit(name, tokens)
                elif tokens < 0:
                    self.ledger.refund(name, -tokens)
        else:
            held.leave(KeyboardInterrupt, KeyboardInterrupt(), None)
            for name, tokens in held.taken.items():
                self.ledger.refund(name, tokens)

    def check_books(self) -> None:
        """Both processes see the level of the ledger, and the store has its total."""
        there = {name: level // 1000 for name, level in self.ledger.level.items()}
        for process in self.processes:
            assert process.available(ENTITY, RESOURCE, self.limits) == there
        states = self.processes[0].repository.get_bucket(ENTITY, RESOURCE)
        stored = {state.limit_name: state.total_consumed_milli for state in states}
        assert stored == {name: self.ledger.consumed[name] * 1000 for name in stored}


@given(st.sampled_from(LIMITS), st.booleans(), st.lists(steps, min_size=10, max_size=40))
@settings(max_examples=50)
def test_the_theorem(limits: Sequence[Limit], speculative: bool, program: list[Any]) -> None:
    """Whatever two processes demand, adjust, abandon and wait for, the law holds at every step."""
    play = Play(limits, speculative=speculative)
    for step in program:
        play.carry_out(step)
        play.check_books()
    while play.held:
        play.end(play.held.pop(), well=True)
        play.check_books()
    play.ledger.check_every_interval()


@given(
    st.sampled_from(LIMITS), st.lists(st.tuples(st.integers(0, 90_000), amounts), min_size=10, max_size=40)
)
@settings(max_examples=25)
def test_one_process_refuses_nothing_that_fits(
    limits: Sequence[Limit], program: list[tuple[int, dict[str, int]]]
) -> None:
    """Without another process there is no slack at all, not even for a moment."""
    stage = Stage()
    limiter, ledger = stage.process(), Ledger(limits, stage.clock.now_ms)
    for wait_ms, wanted in program:
        stage.clock.now_ms += wait_ms
        ledger.advance(stage.clock.now_ms)
        fits = ledger.covers(wanted)
        assert admitted(limiter, limits, **wanted) is fits
        if fits:
            ledger.admit(wanted)
    ledger.check_every_interval()


# The named cases, each of which the design before this one got wrong.

HUNDRED = [Limit.per_minute("rpm", 100)]


@pytest.mark.parametrize("speculative", [True, False])
@pytest.mark.parametrize("used", [0, 1, 50, 100])
@pytest.mark.parametrize("lump", [1, 10, 30])
def test_an_idle_bucket_admits_its_capacity_once(speculative: bool, used: int, lump: int) -> None:
    """A bucket of 100 left idle for an hour admits exactly 100 at once, not 190."""
    stage = Stage()
    limiter, other = stage.process(speculative_writes=speculative), stage.process()
    if used:
        assert admitted(limiter, HUNDRED, rpm=used)
        assert other.available(ENTITY, RESOURCE, HUNDRED) == {"rpm": 100 - used}
    stage.clock.advance(3600)
    passed = [admitted((limiter, other)[i % 2], HUNDRED, rpm=lump) for i in range(300 // lump)]
    assert sum(passed) * lump == 100 // lump * lump
    assert limiter.available(ENTITY, RESOURCE, HUNDRED) == {"rpm": 100 % lump}


def test_an_abandoned_lease_fills_a_full_bucket_no_further() -> None:
    """Refunds to a bucket that has filled up meanwhile are not there twice."""
    stage = Stage()
    limiter = stage.process()

    def fail_after_an_hour() -> None:
        with limiter.acquire(ENTITY, RESOURCE, {"rpm": 90}, HUNDRED):
            stage.clock.advance(3600)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail_after_an_hour()
    assert sum(admitted(limiter, HUNDRED, rpm=10) for _ in range(30)) == 10


def test_a_limit_polled_every_millisecond_admits_its_rate() -> None:
    """35 a minute, asked for one every millisecond for 200 s: capacity and accrual, not 1.7 times that.

    The bucket is refilled at every poll, which is what made an inexact one drift.
    """
    limit, start_ms = Limit.per_minute("rpm", 35), ManualClock().now_ms
    rate, stored, origin_ms, passed = Rate.of(limit), limit.capacity_milli, start_ms, 0
    for now_ms in range(start_ms, start_ms + 200_001):
        stored, origin_ms = refill_bucket(stored, origin_ms, now_ms, *rate[:3])
        if stored >= 1000:
            stored, passed = stored - 1000, passed + 1
    assert passed == (limit.capacity_milli + accrued(limit, start_ms, start_ms + 200_000)) // 1000 == 151


def test_polling_a_limiter_every_millisecond_admits_the_rate() -> None:
    """The same through the front door, for 2 s."""
    stage, limits = Stage(), [Limit.per_minute("rpm", 35)]
    limiter, start_ms, passed = stage.process(), stage.clock.now_ms, 0
    for _ in range(2_001):
        passed += admitted(limiter, limits, rpm=1)
        stage.clock.now_ms += 1
    assert passed == (limits[0].capacity_milli + accrued(limits[0], start_ms, start_ms + 2_000)) // 1000 == 36


def test_slow_limits_keep_their_rate_beside_a_fast_one() -> None:
    """1 an hour and 100 a day accrue what they should while 1,000 a second are in use in the same bucket."""
    limits = [Limit.per_second("fast", 1000), Limit.per_hour("hourly", 1), Limit.per_day("daily", 100)]
    stage = Stage()
    limiter, start_ms = stage.process(), stage.clock.now_ms
    passed: Counter[str] = Counter()
    for turn in range(1_801):
        passed["fast"] += 1000 * admitted(limiter, limits, fast=1000)
        if turn % 6 == 0:
            passed["hourly"] += admitted(limiter, limits, hourly=1)
            passed["daily"] += admitted(limiter, limits, daily=1)
        stage.clock.advance(2)
    brought = {
        x.name: (x.capacity_milli + accrued(x, start_ms, start_ms + 3_600_000)) // 1000 for x in limits
    }
    assert passed["fast"] == 1_801_000
    del passed["fast"], brought["fast"]  # of which more accrued than was asked for
    assert passed == brought == {"hourly": 2, "daily": 104}


limits_of_any_rate = st.builds(
    Limit, st.just("rpm"), st.integers(1, 500), st.integers(1, 500), st.sampled_from((1, 7, 60, 3600, 86_400))
)


@given(limits_of_any_rate, st.integers(0, 10**9), st.data())
@settings(max_examples=30)
def test_retry_after_is_exact(limit: Limit, start_ms: int, data: st.DataObject) -> None:
    """At that millisecond the demand is admitted, one millisecond earlier it is refused."""
    stage, limits = Stage(), [limit]
    stage.clock.now_ms += start_ms
    limiter = stage.process()
    used = data.draw(st.integers(1, limit.capacity))
    wanted = data.draw(st.integers(limit.capacity - used + 1, limit.capacity))
    assert admitted(limiter, limits, rpm=used)
    error = refusal(limiter, limits, rpm=wanted)
    wait_ms = error.as_dict()["retry_after_ms"]
    assert error.retry_after_seconds * 1000 == pytest.approx(wait_ms)
    assert (
        limiter.time_until_available(ENTITY, RESOURCE, {"rpm": wanted}, limits) == error.retry_after_seconds
    )
    stage.clock.now_ms += wait_ms - 1
    assert refusal(limiter, limits, rpm=wanted).as_dict()["retry_after_ms"] == 1
    assert refusal(stage.process(), limits, rpm=wanted).as_dict()["retry_after_ms"] == 1
    stage.clock.now_ms += 1
    assert limiter.time_until_available(ENTITY, RESOURCE, {"rpm": wanted}, limits) == 0
    assert admitted(limiter, limits, rpm=wanted)


def test_a_wait_covers_every_limit_of_a_demand() -> None:
    """With several limits the longest wait is the one that is told, and it is exact too."""
    stage = Stage()
    limits = [Limit.per_minute("rpm", 60), Limit.per_hour("tpm", 3600)]
    limiter = stage.process()
    assert admitted(limiter, limits, rpm=60, tpm=3600)
    error = refusal(limiter, limits, rpm=2, tpm=7)
    assert [(s.limit_name, s.retry_after_seconds) for s in error.statuses] == [("rpm", 2.0), ("tpm", 7.0)]
    stage.clock.now_ms += 6_999
    assert [s.limit_name for s in refusal(limiter, limits, rpm=2, tpm=7).violations] == ["tpm"]
    stage.clock.now_ms += 1
    assert admitted(limiter, limits, rpm=2, tpm=7)


def test_debt_is_paid_before_anything_is_admitted() -> None:
    """1,500 tokens of debt at 1,000 a minute take a minute and a half."""
    stage, limits = Stage(), [Limit.per_minute("tpm", 1000)]
    limiter = stage.process()
    with limiter.acquire(ENTITY, RESOURCE, {"tpm": 1000}, limits) as lease:
        lease.adjust(tpm=1500)
    assert limiter.available(ENTITY, RESOURCE, limits) == {"tpm": -1500}
    assert refusal(limiter, limits, tpm=1).retry_after_seconds == 90.06
    stage.clock.now_ms += 90_059
    assert not admitted(limiter, limits, tpm=1)
    stage.clock.now_ms += 1
    assert admitted(limiter, limits, tpm=1)


def test_more_than_the_capacity_never_passes() -> None:
    """Such a demand is told so at once, on a fresh bucket and on a full one."""
    stage = Stage()
    limiter = stage.process()
    for _ in range(2):
        error = refusal(limiter, HUNDRED, rpm=101)
        assert (error.retry_after_seconds, error.as_dict()["retry_after_ms"]) == (float("inf"), None)
        assert admitted(limiter, HUNDRED, rpm=1)
        stage.clock.advance(3600)


# Limits that change under a process that remembers the old ones.


def test_a_cut_is_kept_by_a_process_that_remembers_more() -> None:
    """A limit cut from 100 to 5 holds at once for a process that has 100 in its cache."""
    stage = Stage()
    behind, ahead = stage.process(), stage.process()
    ahead.repository.set_resource_defaults(RESOURCE, [Limit.per_hour("rpm", 100)])
    with behind.acquire("somebody", RESOURCE, {"rpm": 1}):
        pass
    ahead.repository.set_resource_defaults(RESOURCE, [Limit.per_hour("rpm", 5)])
    with ahead.acquire(ENTITY, RESOURCE, {"rpm": 5}):
        pass
    with pytest.raises(RateLimitExceeded), behind.acquire(ENTITY, RESOURCE, {"rpm": 1}):
        pass
    assert ahead.available(ENTITY, RESOURCE) == {"rpm": 0}


def test_a_look_does_not_bring_old_limits_back() -> None:
    """A process that sees a bucket under newer limits does not spend from it under its own."""
    stage = Stage()
    behind, ahead = stage.process(), stage.process()
    ahead.repository.set_resource_defaults(RESOURCE, [Limit.per_hour("rpm", 100)])
    with behind.acquire(ENTITY, RESOURCE, {"rpm": 1}):
        pass
    ahead.repository.set_resource_defaults(RESOURCE, [Limit.per_hour("rpm", 5)])
    with ahead.acquire(ENTITY, RESOURCE, {"rpm": 4}):
        pass
    behind.available(ENTITY, RESOURCE)
    with pytest.raises(RateLimitExceeded), behind.acquire(ENTITY, RESOURCE, {"rpm": 1}):
        pass


def test_a_limit_that_was_removed_is_named() -> None:
    """A process that still asks for it learns that it is gone, and nothing stays taken."""
    stage = Stage()
    behind, ahead = stage.process(), stage.process()
    rpm, tpm = Limit.per_hour("rpm", 10), Limit.per_hour("tpm", 10)
    ahead.repository.set_resource_defaults(RESOURCE, [rpm, tpm])
    with behind.acquire(ENTITY, RESOURCE, {"rpm": 1, "tpm": 1}):
        pass
    ahead.repository.set_resource_defaults(RESOURCE, [rpm])
    with ahead.acquire(ENTITY, RESOURCE, {"rpm": 1}):
        pass
    with (
        pytest.raises(ValidationError, match="invalid limit name 'tpm'"),
        behind.acquire(ENTITY, RESOURCE, {"rpm": 1, "tpm": 1}),
    ):
        pass
    assert ahead.available(ENTITY, RESOURCE) == {"rpm": 8}


def test_a_lease_settles_without_undoing_a_change() -> None:
    """A limit that was added while a lease was held keeps what was used of it."""
    stage = Stage()
    behind, ahead = stage.process(), stage.process()
    rpm, tpm = Limit.per_hour("rpm", 10), Limit.per_hour("tpm", 10)
    ahead.repository.set_resource_defaults(RESOURCE, [rpm])
    with behind.acquire(ENTITY, RESOURCE, {"rpm": 1}) as lease:
        ahead.repository.set_resource_defaults(RESOURCE, [rpm, tpm])
        with ahead.acquire(ENTITY, RESOURCE, {"tpm": 10}):
            pass
        lease.adjust(rpm=1)
    assert ahead.available(ENTITY, RESOURCE) == {"rpm": 8, "tpm": 0}
