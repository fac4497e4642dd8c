"""Every order in which things can happen, one run after another.

A run is a simulation that asks before each event which one is to be next. ``Search`` answers: it goes
through all answers depth first, each run from the start along the answers of the last one. Two orders
that differ only in events which cannot notice each other are the same order, and only one of them is
run: who has explored an event lets it *sleep* until something happens that has to do with it.

An event is a step of a task that waits at a ``Stop``, or a fault that befalls it there. Everything
between two stops is inside one process and happens at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Coroutine, Generator, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from typing import Any, NamedTuple, TypeVar

from tests.simulation.parking import Cancelled, Nap
from tests.simulation.simulation import Perform, Process, Simulation, Task, Way
from zae_limiter.exceptions import RateLimiterUnavailable
from zae_limiter.repository_protocol import (
    Backend,
    Changes,
    Item,
    Key,
    Outcome,
    Page,
    Query,
    Swap,
    Update,
    Write,
)
from zae_limiter.testing.stores import Fault

T = TypeVar("T")


class Place(Enum):
    """Where a task waits to be let on."""

    STEP = "step"
    """Before the next thing that a client does."""
    PATIENCE = "patience"
    """Before time passes, for everybody."""
    CHANGE = "change"
    """Before something happens to records of the store, all at once."""
    SLEEP = "sleep"
    """Until an instant, to which the clock goes on for everybody."""
    PAUSE = "pause"
    """While others are given a chance to go first."""
    REQUEST = "request"
    """Before a call reaches the store."""
    REPLY = "reply"
    """Before the answer is back."""


_TIMELESS = frozenset(Place) - {Place.PATIENCE, Place.SLEEP}


class Act(Enum):
    GO = "go"
    LOST_REQUEST = "lost request"
    LOST_REPLY = "lost reply"
    UNREACHABLE = "unreachable"
    LOST_COMMIT = "lost commit"
    """A swap happens, and nobody can tell."""
    CANCEL = "cancel"
    CRASH = "crash"


class Event(NamedTuple):
    """Something that can happen next: to which task of which process, and what others notice of it."""

    process: int
    task: int
    act: Act
    place: Place
    sees: frozenset[Key] = frozenset()
    changes: frozenset[Key] = frozenset()

    def concerns(self, other: Event) -> bool:
        """Whether it matters which of the two comes first."""
        if self.process == other.process or not _TIMELESS.issuperset((self.place, other.place)):
            return True
        # Only so many faults happen in a run, so that one may rule out another.
        faults = self.act is not Act.GO and other.act is not Act.GO
        return faults or not (
            self.changes.isdisjoint(other.sees | other.changes) and self.sees.isdisjoint(other.changes)
        )


class Stop:
    """Awaited where the search decides who goes on."""

    signal = None
    seconds = None

    def __init__(
        self,
        place: Place,
        writes: Sequence[Write] = (),
        *,
        sees: Iterable[Key] = (),
        changes: Iterable[Key] = (),
    ) -> None:
        self.place, self.writes, self.sees = place, writes, frozenset(sees)
        self.changes = frozenset(changes or (write.key for write in writes))

    def __await__(self) -> Generator[Stop, None, None]:
        yield self


class Redundant(BaseException):
    """All that can follow has been seen in another order."""


class _Node:
    """A point at which a run has a choice."""

    def __init__(self, events: Sequence[Event], asleep: set[Event]) -> None:
        self.events, self.asleep = events, asleep
        self.chosen = self._next()

    def _next(self) -> Event | None:
        return next((event for event in self.events if event not in self.asleep), None)

    def advance(self) -> bool:
        """Turn to the next event; false if there is none."""
        assert self.chosen is not None
        self.asleep.add(self.chosen)
        self.chosen = self._next()
        return self.chosen is not None


class Search:
    """Chooses for one run after another until nothing is left to choose."""

    def __init__(self) -> None:
        self._path: list[_Node] = []
        self._depth = 0

    def runs(self) -> Iterator[None]:
        """Yields before each run."""
        while True:
            self._depth = 0
            yield
            while self._path and not (self._path[-1].chosen and self._path[-1].advance()):
                self._path.pop()
            if not self._path:
                return

    def choose(self, events: Sequence[Event]) -> Event:
        if self._depth == len(self._path):
            self._path.append(_Node(events, self._sleeping()))
        node = self._path[self._depth]
        self._depth += 1
        if node.chosen is None:
            raise Redundant
        assert list(node.events) == list(events), "the same choices led to another run"
        return node.chosen

    def _sleeping(self) -> set[Event]:
        if not self._path:
            return set()
        node = self._path[-1]
        assert node.chosen is not None
        return {event for event in node.asleep if not event.concerns(node.chosen)}

    @property
    def trace(self) -> list[str]:
        """The choices of the present run, for people."""
        chosen = [node.chosen for node in self._path[: self._depth] if node.chosen is not None]
        return [f"{e.process}.{e.task} {e.place.value}: {e.act.value}" for e in chosen]


NOWHERE: tuple[Place, frozenset[Key], frozenset[Key]] = Place.STEP, frozenset(), frozenset()


def stop_of(task: Task[Any]) -> Stop | None:
    """Where a task waits to be let on, if it waits for that."""
    waiting: object = task.waiting
    if isinstance(waiting, Stop):
        return waiting
    if isinstance(task.waiting.signal, Nap):
        return ASLEEP
    return PAUSED if task.waiting.signal is None else None


PAUSED, ASLEEP = Stop(Place.PAUSE), Stop(Place.SLEEP)

ACTS: Mapping[Place, Sequence[Act]] = {
    Place.STEP: (Act.GO,),
    Place.PATIENCE: (Act.GO,),
    Place.CHANGE: (Act.GO,),
    Place.PAUSE: (Act.GO,),
    Place.SLEEP: (Act.GO,),
    Place.REQUEST: (Act.GO, Act.LOST_REQUEST, Act.UNREACHABLE),
    Place.REPLY: (Act.GO, Act.LOST_REPLY),
}
FAULTS = {
    Act.LOST_REQUEST: Fault.LOST_REQUEST,
    Act.LOST_REPLY: Fault.LOST_REPLY,
    Act.UNREACHABLE: Fault.UNREACHABLE,
}


class Explorer(Simulation):
    """A simulation without dice: a search decides, and time passes only where a task lets it."""

    def __init__(self, faults_max: int, swapped: Key | None = None) -> None:
        super().__init__(0)
        self.faults_max, self.swapped = faults_max, swapped
        """``swapped`` is the item that any step of a client may change at once."""
        self.search: Search | None = None
        """Nobody has a choice as long as there is none."""
        self.processes: list[Process] = []
        self.losing_commit = False
        self.on_fault: Callable[[Act, Task[Any]], None] = lambda *_: None
        self._ids: dict[Task[Any], tuple[int, int]] = {}
        self._spawned: dict[int, int] = {}
        self._fresh: set[Task[Any]] = set()

    def add(self, coroutine: Coroutine[Any, Any, T], process: Process | None) -> Task[T]:
        task = super().add(coroutine, process)
        assert process is not None
        if process not in self.processes:
            self.processes.append(process)
        number = self.processes.index(process)
        self._spawned[number] = self._spawned.get(number, 0) + 1
        self._ids[task] = number, self._spawned[number]
        self._fresh.add(task)
        return task

    def _run(self, steps_max: int) -> None:
        for _ in range(steps_max):
            self._settle()
            events = {event: task for task in self._tasks for event in self._events(task)}
            if not events:
                assert not self._tasks, "everybody waits for somebody"
                return
            event = next(iter(events)) if self.search is None else self.search.choose(list(events))
            self._perform(event, events[event])
        raise AssertionError("the run does not come to an end")

    def _settle(self) -> None:
        """Let everybody go on who waits for nothing that has to be chosen."""
        while task := next((task for task in self._tasks if self._goes_on(task)), None):
            self._step(task)

    def _goes_on(self, task: Task[Any]) -> bool:
        signal = task.waiting.signal
        return task in self._fresh or task.to_throw is not None or (signal is not None and signal.given)

    def _events(self, task: Task[Any]) -> Iterator[Event]:
        number, serial = self._ids[task]
        stop = stop_of(task)
        place, sees, changes = (stop.place, stop.sees, stop.changes) if stop else NOWHERE
        acts = list(ACTS[place]) if stop else []
        if place is Place.SLEEP and task.until_ms > min(
            t.until_ms for t in self._tasks if stop_of(t) is ASLEEP
        ):
            acts = []  # somebody else is awake before
        if self.swapped is not None and place is Place.STEP and acts:
            acts.append(Act.LOST_COMMIT)
            changes = frozenset({self.swapped})
        if task.interruptible:
            acts.append(Act.CANCEL)
            first = next(
                other for other in self._tasks if other.interruptible and other.process is task.process
            )
            if task is first:  # a process has only one life
                acts.append(Act.CRASH)
        for act in acts:
            if act is Act.GO or (self.search is not None and sum(self.faults.values()) < self.faults_max):
                reaches = act in (Act.GO, Act.LOST_COMMIT) and place is not Place.REPLY
                yield Event(number, serial, act, place, *((sees, changes) if reaches else ()))

    def _soonest_ms(self) -> float:
        return min(task.until_ms for task in self._tasks if stop_of(task) is ASLEEP)

    def _perform(self, event: Event, task: Task[Any]) -> None:
        act = event.act
        if act is not Act.GO:
            self.faults[act.value] += 1
            self.on_fault(act, task)
        if act is Act.CRASH:
            self.processes[event.process].crash()
            return
        if act is Act.CANCEL:
            task.to_throw = Cancelled()
        elif act in FAULTS:
            task.to_throw = FAULTS[act].failure()
        elif event.place is Place.SLEEP:
            self.now_ms = max(self.now_ms, math.ceil(task.until_ms))
        self.losing_commit = act is Act.LOST_COMMIT
        self._step(task)
        self.losing_commit = False

    def _step(self, task: Task[Any]) -> None:
        self.steps += 1
        self._fresh.discard(task)
        task.step(self.now_ms)
        if task.done.given:
            self._tasks.remove(task)
            expected = isinstance(task.error, Cancelled | RateLimiterUnavailable) and not task.interruptible
            if task.error is not None and not expected:
                raise task.error


OnCall = Callable[[Sequence[Key]], None]
OnApply = Callable[[Write, Item | None, Outcome], None]


class Line(Way):
    """A way on which every call stops before it arrives, and on its way back."""

    def __init__(
        self, process: Process, inner: Backend, on_call: OnCall, on_apply: OnApply, *, swaps: bool
    ) -> None:
        super().__init__(process, inner)
        assert isinstance(process.simulation, Explorer)
        self._explorer = process.simulation
        self._on_call, self._on_apply = on_call, on_apply
        self._tells = swaps

    async def batch_get(self, keys: Sequence[Key]) -> list[Item | None]:
        await Stop(Place.REQUEST, sees=keys)
        self._on_call(keys)
        items = await self.inner.batch_get(keys)
        await Stop(Place.REPLY)
        return items

    async def query(self, query: Query) -> Page:
        await Stop(Place.REQUEST)  # of what does not change in any story
        page = await self.inner.query(query)
        await Stop(Place.REPLY)
        return page

    async def _send(self, writes: Sequence[Write], perform: Perform) -> list[Outcome]:
        await Stop(Place.REQUEST, writes)
        keys = [write.key for write in writes]
        before = await self.inner.batch_get(keys)
        self._on_call(keys)
        outcomes = await perform(writes)
        for write, image, outcome in zip(writes, before, outcomes, strict=True):
            self._on_apply(write, image, outcome)
        self._on_call(keys)
        await Stop(Place.REPLY, writes)
        return outcomes

    @property
    def swap(self) -> Swap | None:
        return self._swap if self._tells else None

    @property
    def changes(self) -> Changes | None:
        """Told at once, by a store that answers at once."""
        return super().changes if self._tells else None

    def _swap(
        self,
        key: Key,
        image: Item,
        changed: Mapping[str, int],
        changes: int | None = None,
        at_ms: int | None = None,
    ) -> Item | None:
        swap = self.inner.swap
        assert swap is not None
        self._on_call([key])
        new = swap(key, image, changed, changes, at_ms)
        if new is not None:
            self._on_apply(Update(key, set=dict(changed)), image, Outcome(True, new))
            if self._explorer.losing_commit:
                raise Fault.LOST_REPLY.failure()
        return new
