"""Limits whose numbers change with the time of day, judged by a wall clock that is looked at every minute.

Processes take from a bucket with a schedule, a plain limit and a soft one beside it, some of them with
``wait``, some with a parent that has a schedule of its own. Time jumps to boundaries and over many of them,
over changes of clocks too; schedules are changed. After every write a bucket must hold what the ideal one
does, by the numbers of the wall clock; in the end no more may have begun in any interval than was there.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import NamedTuple
from unittest import mock

from tests.simulation.books import Books
from tests.simulation.calendars import UNDER_WAY_MS, Awake
from tests.simulation.ideal import Intent, WatchedWriter
from tests.simulation.parking import Cancelled, Nap, pause
from tests.simulation.schedule_ideal import (
    DAY_MS,
    SOFT,
    SPAN_DAYS,
    WINDOWS,
    Starts,
    Tide,
    instant_ms,
    is_put_right,
    since_ms,
    tide,
    timetable,
)
from tests.simulation.simulation import Network, Process, Simulation
from zae_limiter.backends.memory import MemoryBackend
from zae_limiter.engine.law import Rate
from zae_limiter.engine.refusal import TOGETHER_MAX
from zae_limiter.exceptions import RateLimiterUnavailable, RateLimitExceeded
from zae_limiter.limiter import RateLimiter
from zae_limiter.models import Limit
from zae_limiter.records.connection import Connection, Options
from zae_limiter.repository import Repository
from zae_limiter.repository_protocol import Item, Outcome, Write
from zae_limiter.runtime.colour import run_sync
from zae_limiter.runtime.world import AHEAD_MS_MAX
from zae_limiter.schema import (
    BOOKED,
    booking_attributes,
    bucket_key,
    bucket_limit_names,
    limit_attributes,
    number,
    stored_rate,
)

RESOURCE, CHILD, PARENT = "api", "user", "team"
RATED, PLAIN = "rated", "plain"
JUMPS_DAYS = 2
RUSH_STEPS = 30
GRID_MS = 256
"""The end of a line is told in such steps."""

SCENES = (
    ("Europe/Berlin", datetime(2026, 3, 28, 22, tzinfo=UTC)),  # clocks are set that night
    ("Europe/Berlin", datetime(2026, 10, 24, 22, tzinfo=UTC)),
    ("America/New_York", datetime(2026, 3, 8, 5, tzinfo=UTC)),
    ("America/New_York", datetime(2026, 11, 1, 4, tzinfo=UTC)),
    ("Australia/Lord_Howe", datetime(2026, 4, 4, 13, tzinfo=UTC)),  # by half an hour
    ("Australia/Lord_Howe", datetime(2026, 10, 3, 13, tzinfo=UTC)),
    ("Asia/Kathmandu", datetime(2026, 5, 29, 1, tzinfo=UTC)),
    ("UTC", datetime(2026, 11, 28, 23, tzinfo=UTC)),
)


class Seen(NamedTuple):
    """What a write has left of a limit."""

    now_ms: int
    at_ms: int
    level: int
    is_waited_for: bool


class Divided(Exception):
    """A bucket was split, for it seemed worn out by a clock that was behind; others judge shards."""


class Schedules:
    """One seed's world."""

    def __init__(self, seed: int) -> None:
        self.simulation = Simulation(seed)
        rng = self.simulation.rng = random.Random(f"schedules {seed}")
        self.zone, start = rng.choice(SCENES)
        self.start_ms = int(start.timestamp()) * 1000
        self.simulation.now_ms = self.start_ms + rng.randrange(3 * 3_600_000)
        self.fault_rate = rng.choice((0.0, 0.0, 0.05))
        self.cancel_rate, self.crash_rate = rng.choice((0.0, 0.02)), rng.choice((0.0, 0.003))
        self.coarse_ms = rng.choice((0, 1, 1_000, 1_000))
        """How exactly the store tells its time; 0 where all clocks are right."""
        self.payers = rng.choice(((CHILD,), (CHILD,), (CHILD, PARENT)))
        self.waits = rng.random() < 0.6
        self.store = MemoryBackend(Process(self.simulation).world)
        self.store.capabilities = replace(
            self.store.capabilities, hot_partitions=rng.random() < 0.3, atomic_batches=rng.random() < 0.3
        )
        self.setup = run_sync(Repository.over(self.store, world=Process(self.simulation).world))
        self.keys = {bucket_key(self.setup.namespace_id, who, RESOURCE): who for who in self.payers}
        self.intents: dict[int, Intent] = {}
        self.ideals: dict[tuple[str, str], Tide] = {}
        self.seen: dict[tuple[str, str], list[Seen]] = {}
        self.books, self.starts = Books(), Starts(self.simulation, self.start_ms)
        self.is_changing, self.changed_ms = False, 0
        self.rush = 0
        """For how many steps more nobody sleeps, because a phase has begun."""
        self.limits = {who: self._choice() for who in self.payers}
        run_sync(self._prepare())
        self.processes = [self._hire() for _ in range(rng.choice((2, 2, 3)))]
        if rng.random() < 0.4:
            process = self._process()
            process.spawn(self._administer(self._open(process)))
        self.simulation.before_step = self._strike

    async def _prepare(self) -> None:
        for who in reversed(self.payers):
            is_child = who == CHILD and len(self.payers) > 1
            await self.setup.create_entity(who, parent_id=PARENT if is_child else None, cascade=is_child)
            await self.setup.set_limits(who, self.limits[who], RESOURCE)

    def _choice(self) -> list[Limit]:
        """Limits as somebody may set them: one has a schedule, mostly; others may have one."""
        rng = self.simulation.rng
        plain = Limit(PLAIN, rng.choice((10, 40)), rng.choice((5, 20)), 60)
        soft = Limit(SOFT, 5, 5, 60, soft=True)
        rated = Limit(RATED, *rng.choice(((4, 2), (6, 6), (20, 5))), rng.choice((60, 60, 600, 3_600)))
        return [
            rated if rng.random() < 0.1 else self._scheduled(rated),
            self._scheduled(plain) if rng.random() < 0.2 else plain,
            self._scheduled(soft) if rng.random() < 0.5 else soft,
        ]

    def _scheduled(self, limit: Limit) -> Limit:
        rng = self.simulation.rng
        first = rng.randrange(len(WINDOWS))
        for window in [*WINDOWS, *WINDOWS][first : first + rng.choice((1, 1, 2))]:
            amount = rng.choice((1, 3, 12, 40))
            limit = limit.during(window, amount, burst=amount * rng.choice((1, 1, 2)), tz=self.zone)
        return limit

    def _process(self) -> Process:
        skew_ms = self.simulation.rng.choice((-800, 0, 300, 800, 3_600_000)) if self.coarse_ms else 0
        return Process(self.simulation, skew_ms, self.coarse_ms)

    def _open(self, process: Process) -> Repository:
        network = Network(process, self.store, self.fault_rate, partial(self._see, process))
        connection = Connection(network, process.world, Options(60.0))
        connection.writer = WatchedWriter(process, network, self.intents)
        return Repository(connection, self.setup.namespace_name, self.setup.namespace_id)

    def _hire(self) -> Process:
        process = self._process()
        limiter = RateLimiter(self._open(process))
        for _ in range(self.simulation.rng.choice((1, 1, 2))):
            process.spawn(self._work(limiter), interruptible=True)
        return process

    def _see(self, process: Process, write: Write, before: Item | None, outcome: Outcome) -> None:
        """The ideals do what a write did, and must hold what is stored then."""
        intent, image, who = self.intents.pop(id(write), None), outcome.item, self.keys.get(write.key)
        if who is None or not outcome.applied or image is None:
            return
        if number(image, "shard_count") > 1:
            assert self.coarse_ms, f"{who} was split by clocks that are right"
            self.simulation.faults["split beside a schedule"] += 1
            raise Divided(who)
        if intent is None:
            return
        at_ms, names = instant_ms(before, image, intent, self.start_ms), bucket_limit_names(image)
        for name in names:
            if (who, name) not in self.ideals:
                rate = stored_rate(image, name)
                assert rate is not None
                self.ideals[who, name] = tide(rate, rate.capacity_milli, at_ms, self.start_ms)
                self.seen[who, name] = []
            self._compare(who, name, before or {}, image, intent, at_ms)
        until_ms = number(image, BOOKED)
        if until_ms > number(before or {}, BOOKED):
            end_ms = min(self.ideals[who, name].end_ms() for name in names)
            assert until_ms < end_ms + GRID_MS, f"somebody waits for {who} until {until_ms}, not {end_ms}"
        self.starts.see(write.key, before, image, intent, process)

    def _compare(self, who: str, name: str, before: Item, image: Item, intent: Intent, at_ms: int) -> None:
        ideal, rate, attributes = self.ideals[who, name], stored_rate(image, name), limit_attributes(name)
        assert rate is not None
        origin_ms = number(before, "rf")
        if is_put_right(before, image):
            ahead_ms, kept_ms = origin_ms - intent.client_ms, at_ms - intent.client_ms
            assert ahead_ms > AHEAD_MS_MAX >= kept_ms, f"{who} was set back from {origin_ms} to {at_ms}"
            ideal.go_back(before, name, at_ms)
            origin_ms = number(image, "rf")
            self.simulation.faults["phase put right"] += 1
        ideal.advance(max(at_ms, ideal.at_ms))
        found_ms = max(min(intent.client_ms, at_ms), origin_ms)
        counted = _accrued(ideal.rate, found_ms, ideal.at_ms)  # by a clock that is ahead
        lost = 0
        if (ideal.rate.schedule, ideal.rate.refill_period_ms) != (rate.schedule, rate.refill_period_ms) or (
            rate.schedule is None and rate != ideal.rate
        ):
            lost, ideal.at_ms = counted, at_ms  # from when the other numbers count
            ideal.change(rate)
            self.changed_ms = self.simulation.now_ms
            self.simulation.faults["schedule changed"] += 1
        is_behind = rate != ideal.rate
        assert not is_behind or not any((p.need or p.debit) for p in intent.postings), (
            f"{who} goes by {rate} at {at_ms}, not by {ideal.rate}"
        )
        taken = number(image, attributes.tc) - number(before, attributes.tc)
        need = 0 if name == SOFT or intent.waits else intent.needs.get(name, 0)
        there = ideal.level
        assert not need or need <= there, f"{need} of {name} of {who} were admitted where {there} are there"
        ideal.level = min(ideal.rate.capacity_milli, ideal.level - taken)
        tokens = number(image, attributes.tk) + _accrued(rate, number(image, "rf"), since_ms(image))
        stored = Tide(rate, tokens, since_ms(image), start_ms=self.start_ms).at(ideal.at_ms)
        said = f"{who} holds {stored} of {name} at {ideal.at_ms}, {ideal.level} are right: {rate}"
        # What others have counted has not come yet by a clock that is behind: it finds room when it comes.
        most, is_line = ideal.level + counted, BOOKED in image or BOOKED in before
        back = number(image, booking_attributes(name).back)
        whole = min(stored + back, ideal.rate.capacity_milli)
        assert whole <= most, said
        if not is_line and not is_behind:
            assert stored >= ideal.level - lost, said
        if BOOKED in image:
            ideal.level = max(ideal.level, whole)
        else:
            ideal.level = min(ideal.level, stored) if is_line else stored
        self.seen[who, name].append(Seen(self.simulation.now_ms, ideal.at_ms, ideal.level, is_line))

    def _strike(self) -> None:
        """Time jumps while nobody is on the way; people are interrupted, and processes die."""
        rng, simulation = self.simulation.rng, self.simulation
        if rng.random() < self.cancel_rate and (victims := simulation.interruptible()):
            rng.choice(victims).to_throw = Cancelled()
        alive = [process for process in self.processes if not process.crashed]
        if rng.random() < self.crash_rate and len(alive) > 1:
            rng.choice(alive).crash()
            simulation.faults["crashed beside a schedule"] += 1
        if self.coarse_ms and alive and rng.random() < 0.01:
            rng.choice(alive).step_clock(rng.choice((-7_200_000, -400, 400, 3_600_000)))
        if self.rush:
            self.rush -= 1
            simulation.in_flight -= not self.rush
        is_late = simulation.now_ms > self.start_ms + JUMPS_DAYS * DAY_MS
        if not simulation.in_flight and not is_late and rng.random() < 0.3:
            after_ms = simulation.now_ms + rng.choice((1, 60_000, 3_600_000, 3_600_000, 14 * 3_600_000))
            ends = [ideal.end_ms() for ideal in self.ideals.values()]
            soon = [end_ms for end_ms in ends if simulation.now_ms < end_ms < after_ms + DAY_MS]
            if not soon or rng.random() < 0.25:
                simulation.now_ms = after_ms
                return
            early_ms = rng.choice((0, 1, *2 * (self.coarse_ms // 2,)))  # by some clocks it has begun
            simulation.now_ms = max(simulation.now_ms, rng.choice(soon) - early_ms)
            self.rush = RUSH_STEPS
            simulation.in_flight += 1
            simulation.faults["jumped to a phase"] += 1

    async def _administer(self, repository: Repository) -> None:
        """Set other limits now and then; whoever is not answered tries again."""
        rng = self.simulation.rng
        for _ in range(rng.choice((1, 2))):
            for _ in range(rng.randrange(60)):
                await pause()
            who = rng.choice(self.payers)
            self.limits[who], self.is_changing = self._choice(), True
            while self.is_changing:
                try:
                    await repository.set_limits(who, self.limits[who], RESOURCE)
                    # Whoever had found no bucket by then was refused by the limits of before.
                    self.is_changing, self.changed_ms = False, self.simulation.now_ms
                except RateLimiterUnavailable:
                    continue

    async def _work(self, limiter: RateLimiter) -> None:
        for _ in range(self.simulation.rng.choice((2, 3, 5))):
            try:
                await self._attempt(limiter)
            except Cancelled:
                self.simulation.faults["cancelled"] += 1

    async def _attempt(self, limiter: RateLimiter) -> None:
        rng, asked_ms = self.simulation.rng, self.simulation.now_ms
        amounts = {RATED: rng.choice((1, 1, 1, 2, 2, 5, 12)), PLAIN: rng.choice((1, 4)), SOFT: 1}
        amounts = {name: amounts[name] for name in rng.choice(((RATED,), (RATED, PLAIN), tuple(amounts)))}
        wait = rng.choice((5.0, 120.0, 3_600.0, 20_000.0)) if self.waits and rng.random() < 0.6 else None
        most, consumed, counted = Counter(amounts), Counter[str](), limiter.refunds_lost
        certain, asked = True, limiter.acquire(CHILD, RESOURCE, amounts, wait=wait)
        try:
            async with Awake(asked, self.simulation) as lease:
                await self._be_at_work()
                if rng.random() < 0.4:
                    totals = {name: rng.choice((0, amount, 2 * amount)) for name, amount in amounts.items()}
                    most |= Counter(totals)
                    await lease.settle(totals)
                if rng.random() < 0.3:
                    await lease.cancel()
                consumed = Counter({} if lease._state == "cancelled" else lease.consumed)
        except RateLimitExceeded as refusal:
            self._check_refusal(refusal, asked_ms, wait)
        except (RateLimiterUnavailable, Cancelled, GeneratorExit) as error:
            certain = isinstance(error, Cancelled) and not self.fault_rate
            if not isinstance(error, RateLimiterUnavailable):
                raise
            self._check_unavailable(error)
        finally:
            if certain and limiter.refunds_lost == counted and (consumed or not self.fault_rate):
                self.books.enter(self.payers, consumed, consumed)
            else:
                self.books.enter(self.payers, {}, most)

    def _check_unavailable(self, error: BaseException) -> None:
        assert self.fault_rate, f"nothing was lost, and {error}"

    async def _be_at_work(self) -> None:
        """Work for a moment, or over a boundary."""
        rng = self.simulation.rng
        if rng.random() < 0.2:
            await Nap().wait(rng.choice((1, 90, 1_800)))
        for _ in range(rng.choice((1, 1, 10))):
            await pause()

    def _check_refusal(self, refusal: RateLimitExceeded, asked_ms: int, wait: float | None) -> None:
        """Nothing that fits is refused, by limits that everybody knows."""
        simulation, error_ms = self.simulation, self.simulation.clock_error_ms
        simulation.faults["schedule refused"] += 1
        assert SOFT not in [status.limit_name for status in refusal.violations], "a soft limit refused"
        if self.is_changing or asked_ms - error_ms < self.changed_ms or not self._is_agreed():
            return
        if wait is not None:
            told_ms, left_ms = refusal.retry_after_seconds * 1000, wait * 1000 - simulation.now_ms + asked_ms
            is_late = told_ms == math.inf or told_ms > left_ms - 2 * error_ms - 1
            assert is_late, f"{wait} s were too short for {refusal}"
            return
        for status in refusal.violations:
            lowest = self._lowest((status.entity_id, status.limit_name), asked_ms - error_ms - UNDER_WAY_MS)
            assert lowest is None or lowest < status.requested * 1000, (
                f"{status} was refused, and {lowest} were there"
            )

    def _is_agreed(self) -> bool:
        """Whether all buckets have the limits that were set last."""
        for (who, name), ideal in self.ideals.items():
            (limit,) = (limit for limit in self.limits[who] if limit.name == name)
            fresh = tide(Rate.of(limit), 0, ideal.at_ms, self.start_ms)
            if fresh.rate != ideal.rate:
                return False
        return True

    def _lowest(self, of: tuple[str, str], since_ms: int) -> int | None:
        """What was there at least from an instant on, for somebody whose clock showed no later one.

        ``None`` where that cannot be said: numbers have changed meanwhile, or somebody waits.
        """
        until_ms, error_ms = self.simulation.now_ms, self.simulation.clock_error_ms
        if of not in self.ideals:
            return None
        earlier = [one for one in self.seen[of] if one.now_ms < since_ms]
        seen = [*earlier[-1:], *(one for one in self.seen[of] if one.now_ms >= since_ms)]
        first = tide(self.ideals[of].rate, 0, since_ms, self.start_ms)
        if first.end_ms() <= until_ms + error_ms or any(one.is_waited_for for one in seen):
            return None
        sure = [self.ideals[of].rate.capacity_milli]
        for one in seen:
            at = tide(self.ideals[of].rate, one.level, one.at_ms, self.start_ms)
            later_ms = max(one.at_ms, since_ms)
            sure.append(at.at(later_ms) - _accrued(first.rate, since_ms, later_ms) * (one.at_ms > since_ms))
        return min(sure)

    def run(self) -> None:
        with suppress(Divided):
            self._run()

    def _run(self) -> None:
        with self.starts.watching():
            self.simulation.run()
        self.simulation.faults["waited by a schedule"] += self.starts.waited
        self.starts.check()
        for key, who in self.keys.items():
            (image,) = run_sync(self.store.batch_get([key]))
            for name in (RATED, PLAIN, SOFT):
                self.books.check(who, name, number(image or {}, limit_attributes(name).tc))
        with mock.patch("zae_limiter.runtime.colour.Blocking.sleep", _no_sleep):  # time is set by hand
            self._check_waits()

    def _check_waits(self) -> None:
        """A wait that is told is exact: a millisecond before it ends one is refused, at its end admitted."""
        simulation, self.fault_rate, simulation.before_step = self.simulation, 0.0, lambda: None
        images = run_sync(self.store.batch_get(list(self.keys)))
        simulation.now_ms = max(simulation.now_ms, *(number(image or {}, BOOKED) for image in images))
        latecomer = RateLimiter(self._open(Process(simulation)))
        simulation.add(_is_admitted(latecomer, {SOFT: 1}), None)  # by the last limits, and nobody waits
        simulation.run()
        simulation.now_ms += 2 * simulation.clock_error_ms + 1_000
        limiter = RateLimiter(self.setup)
        self.setup.invalidate_config_cache()
        for need in ({RATED: 1}, {RATED: 5, PLAIN: 4}, {RATED: 3, SOFT: 9}, {RATED: 12}):
            wait_seconds = run_sync(limiter.time_until_available(CHILD, RESOURCE, need))
            told_ms = simulation.now_ms + wait_seconds * 1000
            if told_ms > self.start_ms + (SPAN_DAYS - 1) * DAY_MS:
                self._check_never(need, told_ms)
                continue
            told_ms = round(told_ms)
            for at_ms in (told_ms - 1, told_ms) if wait_seconds else (told_ms,):
                simulation.now_ms = at_ms
                there = self._is_there(need, at_ms)
                if at_ms == told_ms and not there and self._is_given_up(need, told_ms):
                    break
                assert there is (at_ms == told_ms), f"a wait until {told_ms} was told for {need}"
                assert run_sync(_is_admitted(limiter, need)) is there, f"{need} was to pass at {told_ms}"
            else:
                for (_, name), ideal in self.ideals.items():
                    ideal.advance(told_ms)
                    ideal.level -= need.get(name, 0) * 1000
                simulation.faults["waited for a phase"] += wait_seconds > 0

    def _is_given_up(self, need: Mapping[str, int], told_ms: int) -> bool:
        """Whether somebody was told to ask again: its limits do not have enough at once for long."""
        phases = 0
        for (_, name), ideal in self.ideals.items():
            if name in need and ideal.rate.schedule is not None:
                changes = timetable(ideal.rate.schedule, self.start_ms).changes(ideal.at_ms, told_ms)
                phases += sum(1 for _ in changes)
        return phases >= TOGETHER_MAX

    def _is_there(self, need: Mapping[str, int], at_ms: int) -> bool:
        hard = {of: ideal for of, ideal in self.ideals.items() if of[1] in need and of[1] != SOFT}
        return all(ideal.at(at_ms) >= need[name] * 1000 for (_, name), ideal in hard.items())

    def _check_never(self, need: Mapping[str, int], told_ms: float) -> None:
        """Who is told that it takes for ever, or very long, finds nothing sooner."""
        last_ms = self.start_ms + (SPAN_DAYS - 1) * DAY_MS
        hard = [(replace(it), need[n]) for (_, n), it in self.ideals.items() if n in need and n != SOFT]
        for at_ms in range(self.simulation.now_ms, last_ms, 3_607_000):
            for ideal, _ in hard:
                ideal.advance(at_ms)
            there = all(ideal.level >= amount * 1000 for ideal, amount in hard)
            assert not there, f"{need} was to pass at {told_ms}, and does at {at_ms}"


def _accrued(rate: Rate, since_ms: int, until_ms: int) -> int:
    """What a rate brings between two instants of one phase."""
    amount, period_ms = rate.refill_amount_milli, rate.refill_period_ms
    return max(0, until_ms * amount // period_ms - since_ms * amount // period_ms)


async def _no_sleep(*_: object) -> None:
    """Look again at once."""


async def _is_admitted(limiter: RateLimiter, need: Mapping[str, int]) -> bool:
    try:
        async with limiter.acquire(CHILD, RESOURCE, need):
            return True
    except RateLimitExceeded:
        return False
