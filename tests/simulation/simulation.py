"""A deterministic world: many coroutines, one thread, every choice drawn from one seed.

Nothing here runs by itself. ``Simulation.run`` picks one task after another and steps it to its next
await; between steps time moves a little, and anything may happen that the scenario allows: a task is
cancelled, a process crashes. Two runs of one seed are the same run.
"""

from __future__ import annotations

import gc
import math
import random
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Coroutine, Generator, Mapping, Sequence
from enum import Enum
from typing import Any, Generic, NamedTuple, TypeVar

from tests.simulation.parking import Cancelled, Nap, Parked, SimSignal, pause
from zae_limiter.exceptions import RateLimiterUnavailable
from zae_limiter.repository_protocol import Backend, Changes, Item, Key, Outcome, Query, Swap, Update, Write
from zae_limiter.runtime.colour import Blocking, Signal
from zae_limiter.runtime.kept import may_wait
from zae_limiter.runtime.within import Lost
from zae_limiter.runtime.world import DRIFT, LOOK_MS, World
from zae_limiter.testing.stores import Fault, Wrapper

T = TypeVar("T")

DRIFTED_MS_MAX = 5_000
ROUNDING_MS = 2 + LOOK_MS
TICKS_MS = (0, 0, 0, 1, 1, 3)
"""How long a step may take."""

COLLECT_EVERY = 100
"""After how many steps garbage is collected: at any other time it would depend on what ran before."""


class Task(Generic[T]):
    """A coroutine that the simulation steps."""

    def __init__(self, coroutine: Coroutine[Any, Any, T], process: Process | None) -> None:
        self.coroutine, self.process = coroutine, process
        self.done = SimSignal()
        self.waiting = Parked()
        self.until_ms: float = math.inf
        self.to_throw: BaseException | None = None
        self.error: BaseException | None = None
        self.value: T | None = None
        self.interruptible = False

    def ready(self, now_ms: int) -> bool:
        signal = self.waiting.signal
        return self.to_throw is not None or signal is None or signal.given or now_ms >= self.until_ms

    def step(self, now_ms: int) -> None:
        error, self.to_throw = self.to_throw, None
        try:
            self.waiting = self.coroutine.send(None) if error is None else self.coroutine.throw(error)
            seconds = self.waiting.seconds
            self.until_ms = math.inf if seconds is None else now_ms + seconds * 1000
        except StopIteration as stop:
            self.value = stop.value
            self.done.give()
        except BaseException as failed:
            self.error = failed
            self.done.give()

    def result(self) -> T:
        if self.error is not None:
            raise self.error
        return self.value  # type: ignore[return-value]


class Process:
    """A client process: the clock of its machine may be off, and it may die with all its tasks.

    The simulation's time is the store's. A store that is elsewhere tells it with each reply, ``coarse_ms`` by
    ``coarse_ms``. One on the machine does not: its time is the machine's, and to set that forward is the same
    as to wait, so it may only be set back.
    """

    def __init__(self, simulation: Simulation, skew_ms: int = 0, coarse_ms: int = 0) -> None:
        self.simulation = simulation
        self.crashed = False
        self.died_ms: int | None = None
        self._skew_ms, self._drift_per_mille, self._since_ms = skew_ms, 0, simulation.now_ms
        self.world = World(self.clock_ms, lambda: float(simulation.now_ms), simulation.rng).for_store()
        self._coarse_ms, self._heard_ms = coarse_ms, simulation.now_ms
        self._bound_ms = self._lead_ms = float(coarse_ms)
        self.hear(simulation.now_ms, simulation.now_ms)  # a store is opened before it is used
        self.world.now_ms()

    def hear(self, sent_ms: int, shown_ms: int) -> None:
        """A reply is there to a request that was sent at an instant; the store's clock showed another."""
        if not self._coarse_ms:
            return
        now_ms = self.simulation.now_ms
        shown_ms -= shown_ms % self._coarse_ms
        self.world.observe(shown_ms, shown_ms + self._coarse_ms, sent_ms, now_ms)
        bound_ms, self._lead_ms = self._bounds_ms
        self._bound_ms = min(bound_ms, self._coarse_ms + now_ms - sent_ms)
        self._heard_ms = now_ms

    def honest_ms(self, told_ms: int) -> int:
        """What the process said the time is, as far as a clock that keeps its promise can have said that."""
        now_ms, error_ms = self.simulation.now_ms, math.ceil(max(self._bounds_ms)) + ROUNDING_MS
        self.simulation.clock_error_ms = max(self.simulation.clock_error_ms, error_ms)
        return max(now_ms - error_ms, min(now_ms + error_ms, told_ms))

    @property
    def _bounds_ms(self) -> tuple[float, float]:
        """How far off the clock may be: as much as the store is coarse and the best round trip took, and more
        as time goes by; or as it was before it heard that, if it stands still since."""
        passed_ms = self.simulation.now_ms - self._heard_ms
        bound_ms = self._bound_ms + DRIFT * passed_ms
        return bound_ms, max(bound_ms, self._lead_ms - passed_ms)

    def clock_ms(self) -> int:
        """What the machine's clock shows."""
        drifted_ms = (self.simulation.now_ms - self._since_ms) * self._drift_per_mille // 1000
        drifted_ms = max(-DRIFTED_MS_MAX, min(DRIFTED_MS_MAX, drifted_ms))
        return self.simulation.now_ms + self._skew_ms + drifted_ms

    def step_clock(self, by_ms: int) -> None:
        self._settle_clock()
        self._skew_ms += by_ms

    def drift_clock(self, per_mille: int) -> None:
        """Let the clock run fast or slow from now on, for a few seconds in all."""
        self._settle_clock()
        self._drift_per_mille = per_mille

    def _settle_clock(self) -> None:
        self._skew_ms = self.clock_ms() - self.simulation.now_ms
        self._drift_per_mille, self._since_ms = 0, self.simulation.now_ms

    def spawn(self, coroutine: Coroutine[Any, Any, T], *, interruptible: bool = False) -> Task[T]:
        task = self.simulation.add(coroutine, self)
        task.interruptible = interruptible
        return task

    @property
    def gone(self) -> bool:
        """Nothing of it will ever run again."""
        return self.crashed or self.simulation.over or self.simulation.ended

    def crash(self) -> None:
        self.crashed, self.died_ms = True, self.simulation.now_ms
        self.simulation.drop(lambda task: task.process is self)


class SimColour(Blocking):
    """How the coroutines of one simulated process wait for each other."""

    def __init__(self, process: Process) -> None:
        super().__init__()
        self._process = process

    async def together(self, coroutines: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
        tasks = [self._process.spawn(coroutine) for coroutine in coroutines]
        for task in tasks:
            await task.done.wait()
        return [task.result() for task in tasks]

    async def finish(
        self, coroutine: Coroutine[Any, Any, T], on_cancel: Callable[[], None] = lambda: None
    ) -> tuple[T, BaseException | None]:
        task = self._process.spawn(coroutine)
        interruption: BaseException | None = None
        while not task.done.given:
            try:
                await task.done.wait()
            except Cancelled as error:
                interruption = error
                on_cancel()
        if interruption is not None and task.error is not None:
            raise interruption
        return task.result(), interruption

    async def within(self, seconds: float, coroutine: Coroutine[Any, Any, T]) -> T:  # noqa: ARG002
        return await coroutine

    async def at_most(self, seconds: float, coroutine: Coroutine[Any, Any, T]) -> T | None:
        return await self.within(seconds, coroutine)

    async def keep(self, coroutine: Coroutine[Any, Any, T], lost: Lost) -> T:  # noqa: ARG002 - a process is there
        return await _Kept(self._process, coroutine)

    def may_wait(self, left_by: BaseException | None) -> bool:
        return not self._process.gone and may_wait(left_by)

    def carry_out(self, coroutine: Coroutine[Any, Any, None], lost: Lost) -> None:  # noqa: ARG002 - likewise
        if self._process.gone:
            coroutine.close()
        else:
            self._process.spawn(coroutine)

    def later(self, seconds: float, work: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
        async def run() -> None:
            await Nap().wait(seconds)
            await work()

        task = self._process.spawn(run())
        return lambda: self._process.simulation.drop(lambda other: other is task)

    async def sleep(self, seconds: float) -> None:
        await (Nap().wait(seconds) if seconds else pause())

    def signal(self) -> Signal:
        return SimSignal()

    def gone(self) -> Callable[[], bool]:
        return lambda: False  # a process that crashes takes its lines along


class _Kept(Generic[T]):
    """A coroutine that its process carries on, as cancelled, if whoever awaits it is thrown away."""

    def __init__(
        self, process: Process, coroutine: Coroutine[Any, Any, T], error: BaseException | None = None
    ) -> None:
        self._process, self._coroutine, self._error = process, coroutine, error

    def __await__(self) -> Generator[Parked, None, T]:
        coroutine, error = self._coroutine, self._error
        while True:
            try:
                parked = coroutine.send(None) if error is None else coroutine.throw(error)
            except StopIteration as done:
                result: T = done.value
                return result
            error = None
            try:
                yield parked
            except GeneratorExit:
                if self._process.gone:
                    coroutine.close()
                else:
                    self._process.spawn(_awaited(_Kept(self._process, coroutine, Cancelled())))
                raise
            except BaseException as thrown:  # whatever the way here has brought
                error = thrown


async def _awaited(kept: _Kept[T]) -> T:
    return await kept


class Simulation:
    """Steps tasks in an order drawn from the seed, until all are done."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.now_ms = 1_700_000_000_000
        self.steps = 0
        self.in_flight = 0
        self.clock_error_ms = 0
        """By how much a clock may be wrong in this world."""
        self.over = self.ended = False
        """It came to a bad end, and nothing goes on; or to any."""
        self.faults: Counter[str] = Counter()
        self.before_step: Callable[[], None] = lambda: None
        self._tasks: list[Task[Any]] = []

    def add(self, coroutine: Coroutine[Any, Any, T], process: Process | None) -> Task[T]:
        task = Task(coroutine, process)
        self._tasks.append(task)
        return task

    def drop(self, doomed: Callable[[Task[Any]], bool]) -> None:
        """Tasks that vanish as in a crash: they get no chance to await anything."""
        for task in [task for task in self._tasks if doomed(task)]:
            self._tasks.remove(task)
            task.coroutine.close()

    def interruptible(self) -> list[Task[Any]]:
        return [task for task in self._tasks if task.interruptible]

    def run(self, steps_max: int = 100_000) -> None:
        collects = gc.isenabled()
        gc.disable()  # garbage settles leases, so it is collected at chosen steps and not at any
        try:
            self._run(steps_max)
        finally:
            self.over, self.ended = bool(self._tasks), True
            self.drop(lambda _: True)
            if collects:
                gc.enable()

    def _run(self, steps_max: int) -> None:
        while self._tasks:
            self.steps += 1
            assert self.steps < steps_max, "the simulation does not come to an end"
            if self.steps % COLLECT_EVERY == 0:
                gc.collect(0)
            self.now_ms += TICKS_MS[int(self.rng.random() * len(TICKS_MS))]
            if not self.in_flight and self.rng.random() < 0.2:  # everybody idles for a while
                self.now_ms += self.rng.choice((1_000, 10_000, 100_000))
            self.before_step()
            ready = [task for task in self._tasks if task.ready(self.now_ms)]
            if not ready and self._tasks:
                soonest_ms = min(task.until_ms for task in self._tasks)
                assert soonest_ms < math.inf, "everybody waits for somebody"
                self.now_ms = math.ceil(soonest_ms)
                continue
            if not ready:
                return
            task = ready[int(self.rng.random() * len(ready))]
            task.step(self.now_ms)
            if task.done.given and task in self._tasks:
                self._tasks.remove(task)
                unexpected = task.interruptible and not isinstance(task.error, Cancelled)
                if task.error is not None and (unexpected or isinstance(task.error, AssertionError)):
                    raise task.error


class Trouble(Enum):
    THROTTLED = "throttled"
    """The store refuses every call at once."""
    GONE = "store gone"
    """Nothing reaches the store, and replies that are under way get lost."""
    PARTITION = "partition"
    """The same for one process only."""
    DELAY = "long delay"
    """Whatever is sent arrives when the spell is over."""


class Spell(NamedTuple):
    """Trouble that lasts, for everybody or for one process."""

    trouble: Trouble
    victim: Process | None
    until_ms: int


Perform = Callable[[Sequence[Write]], Coroutine[Any, Any, list[Outcome]]]


class Way(Wrapper, ABC):
    """The way from one process to the store: each write travels on its own, a transaction as one."""

    def __init__(self, process: Process, inner: Backend) -> None:
        super().__init__(inner)
        self._colour = SimColour(process)

    @property
    def colour(self) -> SimColour:
        return self._colour

    async def write_each(self, writes: Sequence[Write]) -> list[Outcome]:
        return await self._colour.together([self._write_one(write) for write in writes])

    async def transact_write(self, writes: Sequence[Write]) -> list[Outcome]:
        return await self._send(writes, self.inner.transact_write)

    async def _write_one(self, write: Write) -> Outcome:
        try:
            (outcome,) = await self._send([write], self.inner.write_each)
        except RateLimiterUnavailable as error:
            return Outcome(False, None, failure=error)
        return outcome

    @abstractmethod
    async def _send(self, writes: Sequence[Write], perform: Perform) -> list[Outcome]:
        """Bring writes to the store that performs them, and its answer back."""


class Network(Way):
    """A way on which requests and replies can get lost.

    ``on_apply`` sees every single write in the order of the store, and the image before it; ``on_send`` sees
    what sets out.
    """

    def __init__(
        self,
        process: Process,
        inner: Backend,
        fault_rate: float,
        on_apply: Callable[[Write, Item | None, Outcome], None],
        *,
        swaps: bool = False,
        weather: Callable[[Process], Spell | None] = lambda _: None,
        on_send: Callable[[Sequence[Write]], None] = lambda _: None,
    ) -> None:
        super().__init__(process, inner)
        self._process, self._weather, self._on_send = process, weather, on_send
        self._tells = swaps
        self._simulation = process.simulation
        self._fault_rate, self._on_apply = fault_rate, on_apply

    @property
    def swap(self) -> Swap | None:
        return self._swap if self._tells else None

    @property
    def changes(self) -> Changes | None:
        """Told at once, by a store that answers at once."""
        return super().changes if self._tells else None

    def calm(self) -> None:
        """Lose nothing any more."""
        self._fault_rate = 0.0

    async def batch_get(self, keys: Sequence[Key]) -> list[Item | None]:
        sent_ms = self._simulation.now_ms
        await self._fetch(Fault.LOST_REQUEST)
        items, shown_ms = await self.inner.batch_get(keys), self._simulation.now_ms
        await self._fetch(Fault.LOST_REPLY)
        self._process.hear(sent_ms, shown_ms)
        return items

    async def query(self, query: Query) -> Any:
        sent_ms = self._simulation.now_ms
        await self._fetch(Fault.LOST_REQUEST)
        page, shown_ms = await self.inner.query(query), self._simulation.now_ms
        await self._fetch(Fault.LOST_REPLY)
        self._process.hear(sent_ms, shown_ms)
        return page

    def _swap(self, key: Key, image: Item, changed: Mapping[str, int], *given: int | None) -> Item | None:
        """At once or not at all, as with a file of this machine; now and then nobody knows which."""
        swap = self.inner.swap
        assert swap is not None
        fate = self._simulation.rng.random()
        if fate < self._fault_rate or self._weather(self._process) is not None:
            return None
        new = swap(key, image, changed, *given)
        if new is not None:
            self._on_apply(Update(key, set=dict(changed)), image, Outcome(True, new))
            if fate < 2 * self._fault_rate:
                raise self._failed(Fault.LOST_REPLY)
        return new

    async def _send(self, writes: Sequence[Write], perform: Perform) -> list[Outcome]:
        self._on_send(writes)
        if self._simulation.rng.random() < self._fault_rate:
            await pause()
            raise self._failed(Fault.UNREACHABLE)
        sent_ms = self._simulation.now_ms
        await self._travel(Fault.LOST_REQUEST)
        before = await self.inner.batch_get([write.key for write in writes])
        outcomes = await perform(writes)
        for write, image, outcome in zip(writes, before, outcomes, strict=True):
            self._on_apply(write, image, outcome)
        shown_ms = self._simulation.now_ms
        await self._travel(Fault.LOST_REPLY)
        self._process.hear(sent_ms, shown_ms)
        return outcomes

    async def _fetch(self, fault: Fault) -> None:
        """A read that gets lost has surely changed nothing."""
        try:
            await self._travel(fault)
        except RateLimiterUnavailable as failure:
            raise RateLimiterUnavailable(str(failure)) from failure

    async def _travel(self, fault: Fault) -> None:
        await pause()
        spell = self._weather(self._process)
        if spell is not None and spell.trouble is Trouble.DELAY:
            await SimSignal().wait((spell.until_ms - self._simulation.now_ms) / 1000)
        elif spell is not None and fault is Fault.LOST_REPLY and spell.trouble is not Trouble.THROTTLED:
            raise self._failed(fault)
        elif spell is not None and fault is Fault.LOST_REQUEST:
            raise self._failed(Fault.UNREACHABLE)
        while self._simulation.rng.random() < 0.2:  # some packets take the long way
            await pause()
        if self._simulation.rng.random() < self._fault_rate:
            raise self._failed(fault)

    def _failed(self, fault: Fault) -> RateLimiterUnavailable:
        self._simulation.faults[fault.value] += 1
        return fault.failure()
