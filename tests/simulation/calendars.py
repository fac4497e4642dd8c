"""Calendar quotas and session windows, judged by a wall clock that is looked at every quarter of an hour.

Processes take from one bucket with a quota, and in some worlds with a session and a plain rate beside it.
Time jumps to boundaries and over them: changes of clocks, ends of months, a leap day. The ideal bucket hears
of every write and holds what a boundary brings from when the writer's clock had passed it, once; what is
stored must be the same to the millitoken.
"""

from __future__ import annotations

import random
from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from tests.simulation.books import Books
from tests.simulation.calendar_ideal import DAY_MS, MARKS, SESSION, SPAN_DAYS, Ideal, Numbers, boundaries
from tests.simulation.ideal import Intent, WatchedWriter
from tests.simulation.parking import Cancelled, pause
from tests.simulation.simulation import Network, Process, Simulation
from zae_limiter.acquisition import Acquisition
from zae_limiter.backends.memory import MemoryBackend
from zae_limiter.exceptions import RateLimiterUnavailable, RateLimitExceeded
from zae_limiter.lease import Lease
from zae_limiter.limiter import RateLimiter
from zae_limiter.models import Limit
from zae_limiter.records.connection import Connection, Options
from zae_limiter.repository import Repository
from zae_limiter.repository_protocol import Item, Outcome, Write
from zae_limiter.runtime.colour import run_sync
from zae_limiter.schema import bucket_key, bucket_limit_names, kind_attributes, limit_attributes, number

WHO, RESOURCE = "somebody", "api"
QUOTA, RATE = "quota", "rate"
JUMPS_DAYS = 30
WINDOW_SECONDS = 3 * 3600
UNDER_WAY_MS = 500
"""Longer than a reply takes here."""

SCENES = (
    ("Europe/Berlin", datetime(2026, 3, 28, 20, tzinfo=UTC)),  # clocks are set that night
    ("Europe/Berlin", datetime(2026, 10, 24, 20, tzinfo=UTC)),
    ("America/New_York", datetime(2026, 3, 8, 3, tzinfo=UTC)),
    ("America/New_York", datetime(2026, 10, 31, 22, tzinfo=UTC)),  # and the month ends
    ("Australia/Lord_Howe", datetime(2026, 4, 4, 11, tzinfo=UTC)),  # by half an hour
    ("Australia/Lord_Howe", datetime(2026, 10, 3, 11, tzinfo=UTC)),
    ("Asia/Kathmandu", datetime(2024, 2, 27, 15, tzinfo=UTC)),  # a leap day
    ("UTC", datetime(2026, 12, 30, 21, tzinfo=UTC)),
)


class Awake:
    """An acquire during which nobody sleeps: who asks is answered, by replies that are under way, soon."""

    def __init__(self, acquisition: Acquisition, simulation: Simulation) -> None:
        self._acquisition, self._simulation = acquisition, simulation

    async def __aenter__(self) -> Lease:
        self._simulation.in_flight += 1
        try:
            return await self._acquisition.__aenter__()
        finally:
            self._simulation.in_flight -= 1

    async def __aexit__(self, *left_by: Any) -> None:
        await self._acquisition.__aexit__(*left_by)


class Calendars:
    """One seed's world."""

    def __init__(self, seed: int) -> None:
        self.simulation = Simulation(seed)
        rng = self.simulation.rng = random.Random(f"calendars {seed}")
        self.zone, start = rng.choice(SCENES)
        self.start_ms = int(start.timestamp()) * 1000
        self.simulation.now_ms = self.start_ms + rng.randrange(3_600_000)
        self.fault_rate = rng.choice((0.0, 0.0, 0.05))
        self.cancel_rate, self.crash_rate = rng.choice((0.0, 0.03)), rng.choice((0.0, 0.005))
        self.coarse_ms = rng.choice((0, 1, 1_000))
        """How exactly the store tells its time; 0 where all clocks are right."""
        self.beside = rng.choice(((), (SESSION,), (SESSION, RATE), (RATE,)))
        self.store = MemoryBackend(Process(self.simulation).world)
        self.setup = run_sync(Repository.over(self.store, world=Process(self.simulation).world))
        self.key = bucket_key(self.setup.namespace_id, WHO, RESOURCE)
        self.intents: dict[int, Intent] = {}
        self.ideals: dict[str, Ideal] = {}
        self.books = Books()
        self.limits = self._choice()
        self.is_changing, self.changed_ms = False, 0
        run_sync(self.setup.set_limits(WHO, self.limits, RESOURCE))
        self.processes = [self._hire() for _ in range(rng.choice((1, 2, 2)))]
        if rng.random() < 0.5:
            process = self._process()
            process.spawn(self._administer(self._open(process)))
        self.simulation.before_step = self._strike

    def _choice(self) -> list[Limit]:
        """Limits as somebody may set them: a quota, or sometimes a rate in its place."""
        rng = self.simulation.rng
        period, zone = rng.choice((*MARKS,)), rng.choice((self.zone, self.zone, self.zone, "UTC"))
        amount = rng.choice((3, 5, 8))
        quota = Limit._quota(QUOTA, amount, amount * rng.choice((1, 1, 2)), f"{period}@{zone}", None)
        beside = {
            SESSION: Limit.session(SESSION, rng.choice((2, 4, 6)), WINDOW_SECONDS),
            RATE: Limit.per_minute(RATE, rng.choice((7, 20))),
        }
        is_plain = rng.random() < 0.15
        first = Limit(QUOTA, amount, rng.choice((1, amount)), 3_607) if is_plain else quota
        return [first, *(beside[name] for name in self.beside)]

    def _process(self) -> Process:
        skew_ms = self.simulation.rng.choice((0, -300, 300, 3_600_000)) if self.coarse_ms else 0
        return Process(self.simulation, skew_ms, self.coarse_ms)

    def _open(self, process: Process) -> Repository:
        network = Network(process, self.store, self.fault_rate, self._see)
        connection = Connection(network, process.world, Options(60.0))
        connection.writer = WatchedWriter(process, network, self.intents)
        return Repository(connection, self.setup.namespace_name, self.setup.namespace_id)

    def _hire(self) -> Process:
        process = self._process()
        limiter = RateLimiter(self._open(process))
        for _ in range(self.simulation.rng.choice((1, 2, 2))):
            process.spawn(self._work(limiter), interruptible=True)
        return process

    def _see(self, write: Write, before: Item | None, outcome: Outcome) -> None:
        """The ideal does what a write did, and must hold what is stored then."""
        intent, image = self.intents.pop(id(write), None), outcome.item
        if write.key != self.key or not outcome.applied or image is None:
            return
        # Somebody whose clock is behind finds what was counted before.
        told_ms = self.simulation.now_ms if intent is None else intent.client_ms
        at_ms, origin_ms = max(told_ms, number(before or {}, "rf")), number(image, "rf")
        for name in bucket_limit_names(image):
            numbers, attributes = Numbers.stored(image, name), limit_attributes(name)
            if name not in self.ideals:
                self.ideals[name] = Ideal(numbers, at_ms, self.start_ms)
            ideal = self.ideals[name]
            ideal.advance(at_ms)
            lost = 0
            if ideal.numbers != numbers:
                lost = ideal.counted_since(at_ms)
                ideal.change(numbers)
                self.changed_ms = self.simulation.now_ms
                self.simulation.faults["calendar changed"] += 1
            taken = number(image, attributes.tc) - number(before or {}, attributes.tc)
            ideal.take(0 if intent is None else intent.needs.get(name, 0), taken, at_ms)
            began_ms = number(image, kind_attributes(name).ws)
            assert began_ms == ideal.began_ms, f"a window began at {began_ms}, not {ideal.began_ms}"
            stored = ideal.held(number(image, attributes.tk), origin_ms, ideal.at_ms)
            # What others have counted has not come yet by a clock that is behind: it finds room when it
            # comes, and comes by the numbers of then.
            least, most = ideal.level - lost, ideal.level + ideal.counted_since(at_ms)
            assert least <= stored <= most, (
                f"{stored} of {name} are there, {ideal.level} are right: {numbers}"
            )
            ideal.level = stored
            ideal.levels.append((self.simulation.now_ms, ideal.at_ms, stored))

    def _strike(self) -> None:
        """Time jumps while nobody is on the way; people are interrupted, and processes die."""
        rng, simulation = self.simulation.rng, self.simulation
        if rng.random() < self.cancel_rate and (victims := simulation.interruptible()):
            rng.choice(victims).to_throw = Cancelled()
        alive = [process for process in self.processes if not process.crashed]
        if rng.random() < self.crash_rate and len(alive) > 1:
            rng.choice(alive).crash()
        is_late = simulation.now_ms > self.start_ms + JUMPS_DAYS * DAY_MS
        if not simulation.in_flight and not is_late and rng.random() < 0.2:
            after_ms = simulation.now_ms + rng.choice((1, 3_600_000, 5_400_000, DAY_MS))
            ends = [ideal.began_ms + ideal.numbers.period_ms for ideal in self.ideals.values()]
            quota = self.ideals.get(QUOTA)
            if quota is not None and quota.numbers.accrual is not None:
                known = boundaries(quota.numbers.accrual, self.start_ms)
                ends += known[bisect_right(known, after_ms) :][:1]
            soon = [end_ms for end_ms in ends if simulation.now_ms < end_ms < after_ms + 32 * DAY_MS]
            jump_ms = rng.choice(soon) + rng.choice((-1_000, -1, 0, 1)) if soon else after_ms
            simulation.now_ms = max(simulation.now_ms, jump_ms)
            simulation.faults["jumped to a boundary"] += bool(soon)

    async def _administer(self, repository: Repository) -> None:
        """Set other limits now and then; whoever is not answered tries again."""
        rng = self.simulation.rng
        for _ in range(rng.choice((1, 2))):
            for _ in range(rng.randrange(60)):
                await pause()
            self.limits, self.is_changing = self._choice(), True
            while self.is_changing:
                try:
                    await repository.set_limits(WHO, self.limits, RESOURCE)
                    self.is_changing = False
                except RateLimiterUnavailable:
                    continue

    async def _work(self, limiter: RateLimiter) -> None:
        for _ in range(self.simulation.rng.choice((2, 4, 4))):
            try:
                await self._attempt(limiter)
            except Cancelled:
                self.simulation.faults["cancelled"] += 1

    async def _attempt(self, limiter: RateLimiter) -> None:
        rng, asked_ms = self.simulation.rng, self.simulation.now_ms
        amounts = {QUOTA: rng.choice((1, 2, 3, 5)), **{name: rng.choice((1, 2)) for name in self.beside}}
        most, consumed, counted = Counter(amounts), Counter[str](), limiter.refunds_lost
        certain = True
        try:
            async with Awake(limiter.acquire(WHO, RESOURCE, amounts), self.simulation) as lease:
                for _ in range(rng.choice((1, 1, 10))):
                    await pause()
                if rng.random() < 0.4:
                    totals = {name: rng.choice((0, amount, 2 * amount)) for name, amount in amounts.items()}
                    most |= Counter(totals)
                    await lease.settle(totals)
                if rng.random() < 0.2:
                    await lease.cancel()
                consumed = Counter({} if lease._state == "cancelled" else lease.consumed)
        except RateLimitExceeded as refusal:
            self._check_refusal(refusal, asked_ms)
        except (RateLimiterUnavailable, Cancelled, GeneratorExit) as error:
            certain = isinstance(error, Cancelled) and not self.fault_rate
            if not isinstance(error, RateLimiterUnavailable):
                raise
        finally:
            if certain and limiter.refunds_lost == counted and (consumed or not self.fault_rate):
                self.books.enter((WHO,), consumed, consumed)
            else:
                self.books.enter((WHO,), {}, most)

    def _check_refusal(self, refusal: RateLimitExceeded, asked_ms: int) -> None:
        """Nothing that fits is refused, by limits that everybody knows and replies that were under way."""
        self.simulation.faults["quota refused"] += 1
        since_ms = asked_ms - self.simulation.clock_error_ms - UNDER_WAY_MS
        known = {limit.name: Numbers.of(limit) for limit in self.limits}
        agreed = all(known[name] == ideal.numbers for name, ideal in self.ideals.items())
        if since_ms < self.changed_ms or self.is_changing or not agreed or not self.ideals:
            return  # while there is no bucket, nobody tells whoever remembers former limits
        for status in refusal.violations:
            if status.requested * 1000 > known[status.limit_name].capacity:
                continue
            lowest = self.ideals[status.limit_name].lowest(since_ms)
            assert lowest < status.requested * 1000, f"{status} was refused, and {lowest} were there"

    def run(self) -> None:
        self.simulation.run()
        (image,) = run_sync(self.store.batch_get([self.key]))
        for name in self.ideals:
            self.books.check(WHO, name, number(image or {}, limit_attributes(name).tc))
        self._check_waits()

    def _check_waits(self) -> None:
        """A wait that is told is exact: a millisecond before it ends one is refused, at its end admitted."""
        simulation, self.fault_rate, simulation.before_step = self.simulation, 0.0, lambda: None
        needs = [{QUOTA: 1}, {QUOTA: 3, **dict.fromkeys(self.beside, 2)}, {QUOTA: 3}]
        latecomer = RateLimiter(self._open(Process(simulation)))
        simulation.add(_is_admitted(latecomer, needs[0]), None)  # from then on the bucket has the last limits
        simulation.run()
        simulation.now_ms += 2 * simulation.clock_error_ms + 1_000
        limiter = RateLimiter(self.setup)
        self.setup.invalidate_config_cache()
        for need in needs:
            wait_seconds = run_sync(limiter.time_until_available(WHO, RESOURCE, need))
            told_ms = simulation.now_ms + wait_seconds * 1000
            if told_ms > self.start_ms + (SPAN_DAYS - 1) * DAY_MS:
                return
            told_ms = round(told_ms)
            for at_ms in (told_ms - 1, told_ms) if wait_seconds else (told_ms,):
                simulation.now_ms = at_ms
                there = all(self.ideals[name].level_at(at_ms) >= need[name] * 1000 for name in need)
                assert there is (at_ms == told_ms), f"a wait until {told_ms} was told for {need}"
                assert run_sync(_is_admitted(limiter, need)) is there, f"{need} was to pass at {told_ms}"
            for name, amount in need.items():
                self.ideals[name].advance(told_ms)
                self.ideals[name].take(amount * 1000, amount * 1000, told_ms)
            simulation.faults["waited for a boundary"] += wait_seconds > 0


async def _is_admitted(limiter: RateLimiter, need: Mapping[str, int]) -> bool:
    try:
        async with limiter.acquire(WHO, RESOURCE, need):
            return True
    except RateLimitExceeded:
        return False
