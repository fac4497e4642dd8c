"""Cancelling, timing out and throwing away at every await point of an acquire and of a lease.

The event loop of these tests counts its turns instead of seconds, and each call to the store takes
some turns, so "interrupt it at turn 17" is exact. Every scenario is interrupted at turn 0, 1, 2, …
until it ends before it is hit. Afterwards at once the books must be right: work that came to its end
is paid for, all other work has cost nothing. A coroutine that is thrown away may not wait for that: then they
are right when the loop has carried out the rest, and what was done under a lease until then is paid for.
"""

# Blocks that fail under a lease are what is tested here, and they hold more than one statement.
# ruff: noqa: PT012

import asyncio
import inspect
import itertools
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest

from tests.flow.clients import EMBEDDED, RESOURCE, Client, Store, rpm
from tests.odd_stores import Slow
from tests.simulation.readers import Steps
from zae_limiter import Lease, LeaseExpiredError, RateLimitExceeded
from zae_limiter.runtime.kept import _running
from zae_limiter.runtime.loops import Asyncio

embedded = pytest.mark.parametrize("store", EMBEDDED, indirect=True)
"""A store on the wire answers in its own time, not after some turns."""

CAPACITY = 100
TURNS_MAX = 1000
TURN = 2**-10
"""What the event loop takes for the seconds of one turn: an exact float, and about a millisecond."""


class TurnLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock counts its turns."""

    turns = 0

    def time(self) -> float:
        return self.turns * TURN

    def _run_once(self) -> None:
        self.turns += 1
        super()._run_once()  # type: ignore[misc]


@pytest.fixture
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner(loop_factory=TurnLoop) as it:
        yield it


class Failed(Exception):
    """The work went wrong."""


class ThrownAway(Exception):
    """The work was not finished, and nobody will."""


@dataclass
class Work:
    """One piece of work under a lease: where it is, and what it owes for having got there."""

    client: Client
    entity_id: str
    phase: str = "entering"
    cost: int = 0

    async def run(self, body: "Body") -> None:
        async with self.client.limiter.acquire(self.entity_id, RESOURCE, {"rpm": 10}) as lease:
            self.phase = "inside"
            try:
                await body(lease)
            except Failed:
                self.phase = "leaving"
                raise
            except GeneratorExit:
                self.cost = lease.consumed["rpm"]
                raise
            self.phase, self.cost = "leaving", lease.consumed["rpm"]
        self.phase = "done"


Body = Callable[[Lease], Awaitable[None]]


async def nothing(lease: Lease) -> None:
    del lease
    await asyncio.sleep(0)


async def consume(lease: Lease) -> None:
    await lease.consume(rpm=5)


async def refused_consume(lease: Lease) -> None:
    with pytest.raises(RateLimitExceeded):
        await lease.consume(rpm=CAPACITY)


async def adjust_up(lease: Lease) -> None:
    await asyncio.sleep(0)
    await lease.adjust(rpm=CAPACITY)


async def adjust_down(lease: Lease) -> None:
    await asyncio.sleep(0)
    await lease.release(rpm=4)


async def fail(lease: Lease) -> None:
    await lease.consume(rpm=5)
    raise Failed


BODIES = [nothing, consume, refused_consume, adjust_up, adjust_down, fail]


# How the work is interrupted when the loop has made so many turns.


async def cancel(work: Coroutine[Any, Any, None], turns: int) -> None:
    task = asyncio.ensure_future(work)
    asyncio.get_running_loop().call_later(turns * TURN, task.cancel)
    await task


async def cancel_again(gap: int, work: Coroutine[Any, Any, None], turns: int) -> None:
    task = asyncio.ensure_future(work)
    for delay in (turns, turns + gap, turns + 2 * gap):
        asyncio.get_running_loop().call_later(delay * TURN, task.cancel)
    await task


async def time_out(work: Coroutine[Any, Any, None], turns: int) -> None:
    async with asyncio.timeout(turns * TURN):
        await work


async def wait_for(work: Coroutine[Any, Any, None], turns: int) -> None:
    await asyncio.wait_for(work, turns * TURN)


async def throw_away(work: Coroutine[Any, Any, None], turns: int) -> None:
    await Steps(work, turns)
    if inspect.getcoroutinestate(work) == inspect.CORO_CLOSED:
        return
    work.close()
    while _running:
        await asyncio.wait(_running)
    raise ThrownAway


Interrupt = Callable[[Coroutine[Any, Any, None], int], Coroutine[Any, Any, None]]
INTERRUPTS: dict[str, tuple[Interrupt, type[BaseException]]] = {
    "cancel": (cancel, asyncio.CancelledError),
    "cancel, again next turn": (partial(cancel_again, 1), asyncio.CancelledError),
    "cancel, again later": (partial(cancel_again, 4), asyncio.CancelledError),
    "timeout": (time_out, TimeoutError),
    "wait_for": (wait_for, TimeoutError),
    "throw away": (throw_away, ThrownAway),
}


async def at_every_turn(
    prepare: Callable[[int], Awaitable[tuple[Coroutine[Any, Any, None], Callable[[], Awaitable[None]]]]],
    how: str,
) -> int:
    """Interrupt fresh work at each turn until it ends by itself; how often it was interrupted."""
    interrupt, expected = INTERRUPTS[how]
    for turns in itertools.count():
        assert turns < TURNS_MAX, "the work never ends"
        work, check = await prepare(turns)
        ended: BaseException | None = None
        try:
            await interrupt(work, turns)
        except (asyncio.CancelledError, TimeoutError, ThrownAway, Failed, RateLimitExceeded) as error:
            ended = error
        work.close()
        await check()
        if not isinstance(ended, (asyncio.CancelledError, TimeoutError, ThrownAway)):
            return turns
        assert type(ended) is expected, f"interrupted at turn {turns} the caller sees {ended!r}"
    raise AssertionError


async def expect(store: Store, used: int, *entity_ids: str) -> None:
    for entity_id in entity_ids:
        if await store.bucket(entity_id) is None:
            assert used == 0
        else:
            found = (await store.used(entity_id), await store.left(entity_id))
            assert found == (used, CAPACITY - used), entity_id


@embedded
@pytest.mark.parametrize("how", INTERRUPTS)
@pytest.mark.parametrize("body", BODIES, ids=lambda body: body.__name__)
async def test_lease_interrupted_at_every_turn(store: Store, body: Body, how: str) -> None:
    """Enter, consume, clean end and exceptional end of a warm process."""
    client = await store.client(wrap=partial(Slow, turns=2))
    await client.repository.set_system_defaults([rpm(CAPACITY)])
    phases = set()

    async def prepare(turns: int) -> Any:
        work = Work(client, f"key-{turns}")
        await client.take(work.entity_id, {"rpm": 1})

        async def check() -> None:
            phases.add(work.phase)
            await expect(store, 1 + work.cost, work.entity_id)

        return work.run(body), check

    assert await at_every_turn(prepare, how) >= 4
    left_by_writing = body in (adjust_up, adjust_down, fail)
    assert phases >= {"entering", "inside"} | ({"leaving"} if left_by_writing else set())
    assert client.limiter.refunds_lost == 0


SETTINGS = ["first", "cold", "cascade", "cascade cold", "transacted", "transacted cascade", "new config"]


@embedded
@pytest.mark.parametrize("how", INTERRUPTS)
@pytest.mark.parametrize("setting", SETTINGS)
async def test_acquire_interrupted_at_every_turn(store: Store, setting: str, how: str) -> None:
    """An acquire that reads first, makes a bucket, charges a parent, transacts, or meets newer limits."""
    admin = await store.client()
    limits = [rpm(CAPACITY)]
    await admin.repository.set_system_defaults(limits)
    payers = ["key", "parent"] if "cascade" in setting else ["key"]

    async def prepare(turns: int) -> Any:
        names = [f"{payer}-{turns}" for payer in payers]
        if len(names) > 1:
            await admin.repository.create_entity(names[1])
            await admin.repository.create_entity(names[0], parent_id=names[1], cascade=True)
        client = await store.client(
            wrap=partial(Slow, turns=2), speculative_writes="transacted" not in setting
        )
        before = 0
        if setting not in ("first", "cascade cold"):
            await (admin if setting == "cold" else client).take(names[0], {"rpm": 1})
            before = 1
        if setting == "new config":
            await admin.repository.set_system_defaults(limits)
            await admin.take(names[0], {"rpm": 1})
            before = 2
        work = Work(client, names[0])

        async def check() -> None:
            await expect(store, before + work.cost, *names)
            assert client.limiter.refunds_lost == 0

        return work.run(nothing), check

    assert await at_every_turn(prepare, how) >= 4


@embedded
@pytest.mark.parametrize("how", INTERRUPTS)
@pytest.mark.parametrize("broke", ["key", "parent"])
async def test_refusal_interrupted_at_every_turn(store: Store, broke: str, how: str) -> None:
    """An acquire that one of two buckets refuses: the other is made whole, however impatient the caller."""
    admin = await store.client()
    await admin.repository.set_system_defaults([rpm(CAPACITY)])
    client = await store.client(wrap=partial(Slow, turns=2))

    async def prepare(turns: int) -> Any:
        names = {payer: f"{payer}-{turns}" for payer in ("key", "parent")}
        await admin.repository.create_entity(names["parent"])
        await admin.repository.create_entity(names["key"], parent_id=names["parent"], cascade=True)
        if broke == "key":
            await admin.repository.set_limits(names["key"], [rpm(5)])
        await client.take(names["key"], {"rpm": 1})
        if broke == "parent":
            await admin.take(names["parent"], {"rpm": CAPACITY - 1})

        async def check() -> None:
            assert await store.used(names["key"]) == 1
            assert await store.used(names["parent"]) == (1 if broke == "key" else CAPACITY)

        return Work(client, names["key"]).run(nothing), check

    assert await at_every_turn(prepare, how) >= 4


@embedded
@pytest.mark.parametrize("how", ["cancel", "timeout", "throw away"])
@pytest.mark.parametrize("victim", [0, 2, 4])
async def test_one_of_a_crowd_interrupted_at_every_turn(store: Store, victim: int, how: str) -> None:
    """Several leases of one process on one bucket: interrupting one takes nothing from the others."""
    client = await store.client(wrap=partial(Slow, turns=2))
    await client.repository.set_system_defaults([rpm(CAPACITY)])

    async def prepare(turns: int) -> Any:
        entity_id = f"key-{turns}"
        await client.take(entity_id, {"rpm": 1})
        crowd = [Work(client, entity_id) for _ in range(5)]
        bodies = [consume, adjust_down, nothing, adjust_down, nothing]
        others = [
            asyncio.ensure_future(work.run(body))
            for number, (work, body) in enumerate(zip(crowd, bodies, strict=True))
            if number < victim
        ]

        async def hit() -> None:
            work = crowd[victim].run(bodies[victim])
            task = asyncio.ensure_future(asyncio.sleep(0) if how == "throw away" else work)
            others.extend(
                asyncio.ensure_future(crowd[number].run(bodies[number])) for number in range(victim + 1, 5)
            )
            if how == "throw away":
                await work
            try:
                await task
            except asyncio.CancelledError:
                # It was not this coroutine alone that was cancelled: wait for the task as its owner would.
                await asyncio.wait([task])
                raise

        async def check() -> None:
            await asyncio.gather(*others)
            assert [work.phase for work in crowd].count("done") >= len(others)
            await expect(store, 1 + sum(work.cost for work in crowd), entity_id)

        return hit(), check

    assert await at_every_turn(prepare, how) >= 4


@embedded
@pytest.mark.parametrize("admitted", [3, 4])
async def test_crowd_that_is_cancelled_together(store: Store, admitted: int) -> None:
    """All tasks of a process are cancelled at once, at every turn, with room for only some of them."""
    client = await store.client(wrap=partial(Slow, turns=2))
    capacity = 10 * admitted + 1
    await client.repository.set_system_defaults([rpm(capacity)])
    for turns in range(TURNS_MAX):
        entity_id = f"key-{turns}"
        await client.take(entity_id, {"rpm": 1})
        crowd = [Work(client, entity_id) for _ in range(5)]
        tasks = [asyncio.ensure_future(work.run(adjust_down)) for work in crowd]
        for _ in range(turns):
            await asyncio.sleep(0)
        pending = [task for task in tasks if not task.done()]
        for task in pending:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        kinds = {type(result) for result in results}
        assert kinds <= {type(None), RateLimitExceeded, asyncio.CancelledError}
        used = 1 + sum(work.cost for work in crowd)
        assert (await store.used(entity_id), await store.left(entity_id)) == (used, capacity - used)
        if not pending:
            break
    assert turns >= 8


@embedded
async def test_consume_that_outlives_its_failed_lease(store: Store) -> None:
    """A consume still on its way when the work fails is given back, and its task is told."""
    client = await store.client(wrap=partial(Slow, turns=3))
    await client.repository.set_system_defaults([rpm(CAPACITY)])
    consuming: asyncio.Task[None] | None = None
    with pytest.raises(Failed):
        async with client.limiter.acquire("key", RESOURCE, {"rpm": 10}) as lease:
            consuming = asyncio.ensure_future(lease.consume(rpm=5))
            await asyncio.sleep(0)
            raise Failed
    with pytest.raises(LeaseExpiredError):
        await consuming
    await expect(store, 0, "key")


@embedded
async def test_timeout_around_the_work_alone(store: Store) -> None:
    """A timeout inside the block, caught inside the block, leaves the lease in order."""
    client = await store.client(wrap=partial(Slow, turns=2))
    await client.repository.set_system_defaults([rpm(CAPACITY)])
    async with client.limiter.acquire("key", RESOURCE, {"rpm": 10}) as lease:
        for turns in range(8):
            try:
                async with asyncio.timeout(turns * TURN):
                    await lease.consume(rpm=5)
            except TimeoutError:
                pass
        cost = lease.consumed["rpm"]
        assert cost < 50, "some of them were interrupted"
        assert not asyncio.current_task().cancelling()  # type: ignore[union-attr]
    await expect(store, cost, "key")


@embedded
async def test_cancelled_reader_does_not_fail_the_others(store: Store) -> None:
    """Tasks that wait for a record which a cancelled task was fetching fetch it themselves."""
    admin = await store.client()
    await admin.repository.set_system_defaults([rpm(CAPACITY)])
    for turns in range(12):
        client = await store.client(wrap=partial(Slow, turns=3))
        tasks = [asyncio.ensure_future(client.take(f"key-{turns}", {"rpm": 1})) for _ in range(3)]
        for _ in range(turns):
            await asyncio.sleep(0)
        tasks[0].cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert results[1:] == [None, None]
        used = sum(result is None for result in results)
        await expect(store, used, f"key-{turns}")


@pytest.mark.parametrize("turns", [0, 1, 2])
async def test_cancelled_while_one_thing_is_finished_within_another(turns: int) -> None:
    """Both run to their ends, and the cancellation is told to who asked for the outer one."""

    async def work() -> str:
        for _ in range(3):
            await asyncio.sleep(TURN)
        return "done"

    async def outer() -> Any:
        return await Asyncio().finish(Asyncio().finish(work()))

    task = asyncio.ensure_future(outer())
    await asyncio.sleep(turns * TURN)
    task.cancel()
    (result, _), interruption = await task
    assert result == "done"
    assert isinstance(interruption, asyncio.CancelledError)
