"""What the engine takes: the requests of a case over our transport, with nothing of a limiter around them.

A limiter makes the buckets of a case on a table of its own, and works once while its requests are written
down. From then on these are sent again and again from as many tasks: same transport, same items, same
conditions. A bucket that several tasks want at once is written by one of them for all, as ours does; whoever
did less would not be limited by the engine but by itself. What we reach of that is our share of the ceiling.
"""

from __future__ import annotations

import asyncio
import json
import re
import threading
from collections.abc import Awaitable, Callable
from functools import partial
from itertools import count, cycle
from typing import Any

from .cases import CEILING, PAUSE_S, RESOURCE, Case
from .loops import Tally, async_loop, paced_loop, sync_loop, threads_loop
from .tables import PARENT, TIMEOUT_MS, AsyncBench, limits_of, make_table, our_url, table_name

RECORDED_REFUSALS = 50
FAR = 10**15
"""Beyond all stored tokens: what a request that is sent again compares with, so that it is not refused."""
Recorded = tuple[str, str]


class Tape:
    """A transport that writes down what it sends while somebody records."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self.recorded: list[Recorded] = []

    @property
    def colour(self) -> Any:
        return self.inner.colour

    @property
    def fanout(self) -> Any:
        return self.inner.fanout

    async def call(self, operation: str, request: Any, timeout_ms: float) -> Any:
        text = request if isinstance(request, str) else json.dumps(request, separators=(",", ":"))
        self.recorded.append((operation, text))
        return await self.inner.call(operation, request, timeout_ms)

    async def close(self) -> None:
        await self.inner.close()


def repeatable(request: str) -> str:
    """An update whose bounds hold however often it has been carried out."""
    fields = json.loads(request)
    values = fields["ExpressionAttributeValues"]
    for comparison, far in ((">=", -FAR), ("<=", FAR)):
        for mark in re.findall(rf"{comparison} (:\w+)", fields["ConditionExpression"]):
            values[mark] = {"N": str(far)}
    return json.dumps(fields, separators=(",", ":"))


class Lane:
    """One request at a time; those who come meanwhile share the next one."""

    def __init__(self, send: Callable[[], Awaitable[object]]) -> None:
        self._send = send
        self._flight: asyncio.Future[None] | None = None
        self._group: asyncio.Future[None] | None = None

    async def ride(self) -> None:
        if self._group is not None:
            return await self._group
        group = self._group = asyncio.get_running_loop().create_future()
        if self._flight is not None:
            await asyncio.wait([self._flight])
        self._group, self._flight = None, group
        try:
            await self._send()
        except Exception as error:
            group.set_exception(error)
            group.exception()  # it is told to the others, if there are any
            raise
        else:
            group.set_result(None)
        finally:
            if self._flight is group:
                self._flight = None
        return None


class ThreadLane:
    """The same for threads."""

    def __init__(self, send: Callable[[], object]) -> None:
        self._send = send
        self._lock, self._way = threading.Lock(), threading.Lock()
        self._group: threading.Event | None = None
        self.waiting = 0
        """How many there are in the group that has not been sent yet."""

    def ride(self) -> None:
        with self._lock:
            self.waiting += 1
            group, leads = self._group, self._group is None
            if group is None:
                group = self._group = threading.Event()
        if not leads:
            group.wait()
            return
        with self._way:
            with self._lock:
                self._group, self.waiting = None, 0
            try:
                self._send()
            finally:
                group.set()


class CeilingBench(AsyncBench):
    """The engine in one async case."""

    def __init__(self, endpoint: str, case: Case) -> None:
        super().__init__(CEILING, endpoint, case)

    async def _found(self) -> None:
        from zae_limiter import RateLimiter, Repository
        from zae_limiter.backends.dynamodb import open_backend
        from zae_limiter.backends.dynamodb.transport import ServiceError
        from zae_limiter.runtime.world import World

        self._refusal = ServiceError
        table, world = table_name(CEILING, self._case.name), World().for_store()
        await make_table(CEILING, self._endpoint, table)
        backend = open_backend(our_url(self._endpoint, table), world=world, timeout_ms=TIMEOUT_MS)
        self._tape = Tape(backend.calls.transport)
        backend.calls.transport = self._tape
        self._repository = await Repository.over(backend, world=world)
        self._limiter = RateLimiter(repository=self._repository)
        await self._repository.set_resource_defaults(RESOURCE, limits_of(self._case))

    async def _prepare(self) -> None:
        await super()._prepare()
        case = self._case
        if case.refused:
            self._step = await self._refused()
        elif not case.entities:
            self._step = await self._first()
        else:
            self._tape.recorded.clear()
            await self._acquire_each(f"key-{number:04}" for number in range(case.entities))
            # Now and then a limiter also reads; a bare client has nothing to look up.
            updates = [it for it in self._tape.recorded if it[0] == "UpdateItem"]
            self.updates = [(operation, repeatable(text)) for operation, text in updates]
            self._step = self._with_parent(self.updates) if case.cascade else self._alone(self.updates)

    def arrange(self, **_: object) -> None:
        """Nothing."""

    async def _recorded(self, entity: str) -> list[Recorded]:
        """The requests of one acquire."""
        self._tape.recorded.clear()
        try:
            await self._acquire(entity)
        except Exception:
            if not self._case.refused:
                raise
        return list(self._tape.recorded)

    def _send(self, recorded: Recorded) -> Awaitable[object]:
        return self._tape.inner.call(*recorded, TIMEOUT_MS)

    def _alone(self, updates: list[Recorded]) -> Callable[[], Awaitable[object]]:
        """The updates of an acquire one after another; a bucket that all want is written for all."""
        if self._case.entities > 1:
            following = cycle(updates)
            return lambda: self._send(next(following))

        lanes = [Lane(partial(self._send, update)) for update in updates]

        async def step() -> None:
            for lane in lanes:
                await lane.ride()

        return step

    def _with_parent(self, updates: list[Recorded]) -> Callable[[], Awaitable[object]]:
        """The child's update and the parent's at once, the parent's shared."""
        of_parent = f"/BUCKET#{PARENT}#"
        lane = Lane(partial(self._send, next(it for it in updates if of_parent in it[1])))
        children = cycle([it for it in updates if of_parent not in it[1]])
        return lambda: asyncio.gather(self._send(next(children)), lane.ride())

    async def _first(self) -> Callable[[], Awaitable[object]]:
        """A read and a write for somebody new each time."""
        await self._acquire("template-one")  # from here on what all entities share is known
        recorded = await self._recorded("template-two")
        names = (f"entity-{number:05}" for number in count())

        async def step() -> None:
            name = next(names)
            for operation, text in recorded:
                await self._send((operation, text.replace("template-two", name)))

        return step

    async def _refused(self) -> Callable[[], Awaitable[object]]:
        await self._acquire_each(names := [next(self._fresh) for _ in range(RECORDED_REFUSALS)])
        refusals = [(await self._recorded(name))[-1] for name in names]
        following = cycle(refusals)
        return lambda: self._send(next(following))

    async def _round(self, seconds: float) -> dict[str, Any]:
        tally = Tally(self._refusal, is_refusal_wanted=bool(self._case.refused))
        if self._case.refill:
            return await paced_loop(self._step, PAUSE_S, seconds, tally)
        return await async_loop(self._step, self._case.tasks, seconds, tally)


class SyncCeilingBench:
    """The engine in one sync case: the same requests from threads."""

    def __init__(self, endpoint: str, case: Case) -> None:
        self._async, self._endpoint, self._case = CeilingBench(endpoint, case), endpoint, case

    def found(self) -> None:
        self._async.found()

    def prepare(self) -> None:
        from zae_limiter.backends.dynamodb import open_backend
        from zae_limiter.runtime.colour import run_sync

        self._async.prepare()
        (update,) = self._async.updates
        url = our_url(self._endpoint, table_name(CEILING, self._case.name))
        self._backend = open_backend(url, sync=True, timeout_ms=TIMEOUT_MS)
        transport, self._run_sync = self._backend.calls.transport, run_sync

        def send() -> object:
            return run_sync(transport.call(*update, TIMEOUT_MS))

        self._step = send if self._case.tasks == 1 else ThreadLane(send).ride

    def arrange(self) -> None:
        """Nothing."""

    def round(self, seconds: float) -> dict[str, Any]:
        tally = Tally(PermissionError)
        if self._case.tasks == 1:
            return sync_loop(self._step, seconds, tally)
        return threads_loop(self._step, self._case.tasks, seconds, tally)

    def close(self) -> None:
        self._run_sync(self._backend.close())
        self._async.close()
