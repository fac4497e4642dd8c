"""FunctionCalls of a store's functions, each with a deadline: the place that repeats what may be repeated.

What never reached the server, and what it rolled back because of somebody else, did not happen: it is tried
again, with jitter, while there is time. A call whose answer was lost is repeated only if a second arrival
changes nothing; otherwise its failure says ``ambiguous``. Every answer tells the server's time, and how often
limits changed on which many depend.
"""

from __future__ import annotations

import threading
from collections.abc import AsyncGenerator, Awaitable, Callable
from functools import partial
from typing import Any, Final, Protocol

from ...runtime.colour import Colour, ForkSafe, until_shutdown
from ...runtime.world import World
from ..pool import Pool, Pooled
from .address import Address
from .encoding import Said, answer_from
from .trouble import LostReply, Trouble, discreet, failure
from .wire import Wire

ATTEMPTS_MAX = 16
PAUSE_MIN_MS, PAUSE_MAX_MS = 5, 200
LEFT_SHARE_MIN = 0.1
"""An attempt with less than this of the call's time left would be cut off, and then nobody knows."""


class Link(Pooled, Protocol):
    """A connection as its colour uses it."""

    wire: Wire

    def exchange(self, statement: bytes, arguments: list[bytes], until_ms: float) -> Awaitable[bytes]:
        """Send a statement and return its answer, or raise ``Trouble`` by the time given."""


class Links(Protocol):
    """How one colour connects."""

    @property
    def colour(self) -> Colour: ...

    async def connect(self, until_ms: float) -> Link: ...


class FunctionCalls:
    """FunctionCalls of the functions of one schema."""

    def __init__(self, address: Address, network: Links, world: World) -> None:
        self.address = address
        self.colour: Final = network.colour
        self.world = world
        self.timeout_ms: int = address.timeout_ms
        self.ticks_ms: Final = world.ticks_ms
        self._connect = network.connect
        self._pools = ForkSafe(self._make_pool, self.colour.home, Pool.close)
        self._statements: dict[str, bytes] = {}
        self.news: int = 0
        self._counter = 0
        self._hearing = ForkSafe(threading.Lock)

    def deadline(self) -> float:
        return self.ticks_ms() + self.timeout_ms

    async def ask(
        self,
        function: str,
        argument: Callable[[float], bytes],
        until_ms: float,
        read: Callable[[Any, bool], Any] = Said,
        *,
        repeatable: bool = True,
        is_sent: Callable[[bool], None] = lambda _: None,
    ) -> Any:
        """What a function answers to an argument that may say how much time is left.

        Whatever ``read`` fails at is no answer.
        """
        attempt, maybe_applied = 0, False
        while True:
            try:
                return await self._once(function, argument, until_ms, read, is_sent)
            except Trouble as trouble:
                failed = trouble
            attempt += 1
            maybe_applied |= failed.ambiguous and not repeatable
            again = failed.transient or (failed.ambiguous and repeatable)
            if again and not failed.ambiguous:
                is_sent(False)
            if not (again and await self._pause(attempt, until_ms)):
                raise failure(failed, function, self.address.place, ambiguous=maybe_applied) from failed

    async def close(self) -> None:
        pool = self._pools.forget()
        if pool is not None:
            guard: AsyncGenerator[None, None] | None = pool.guard
            pool.guard = None
            pool.close()
            if guard is not None:
                await guard.aclose()

    def hear(self, counter: int, *, is_own: bool = False) -> None:
        """Take note of how often limits changed; what this client has changed itself is no news to it."""
        if counter != self._counter:  # it may be a smaller one after a failover
            with self._hearing.get():
                self.news += counter != self._counter and not (is_own and counter == self._counter + 1)
                self._counter = counter

    async def _once(
        self,
        function: str,
        argument: Callable[[float], bytes],
        until_ms: float,
        read: Callable[[Any, bool], Any],
        is_sent: Callable[[bool], None],
    ) -> Any:
        pool = self._pools.get()
        connection = await pool.take(until_ms)
        sent_ms = self.ticks_ms()
        try:
            is_sent(True)
            sent = argument(until_ms - sent_ms)
            reply = await connection.exchange(self._statement(function), [sent] if sent else [], until_ms)
        except Trouble:
            self._put_back(pool, connection)
            raise
        except BaseException:
            pool.drop(connection)
            raise
        received_ms = self.ticks_ms()
        self._put_back(pool, connection)
        try:
            answer = answer_from(reply)
            found = read(answer.said, answer.odd)
            self.world.observe(answer.at_ms, answer.at_ms, sent_ms, received_ms)
            self.hear(answer.counter, is_own=answer.is_own)
        except Exception as error:
            raise LostReply(f"the answer cannot be read: {discreet(repr(error))}", ambiguous=True) from error
        return found

    def _put_back(self, pool: Pool[Link], connection: Link) -> None:
        if connection.wire.usable:
            pool.give(connection, self.ticks_ms())
        else:
            pool.drop(connection)

    async def _pause(self, attempt: int, until_ms: float) -> bool:
        """Wait a little longer after each attempt; false when there is no time for another one."""
        longest_ms = min(PAUSE_MAX_MS, PAUSE_MIN_MS * 2 ** min(attempt, 10))
        # Callers that were turned away together must not come back together.
        pause_ms = self.world.random.uniform(longest_ms / 2, longest_ms)
        left_ms = until_ms - self.ticks_ms() - pause_ms
        if attempt >= ATTEMPTS_MAX or left_ms < self.timeout_ms * LEFT_SHARE_MIN:
            return False
        await self.colour.sleep(pause_ms / 1000)
        return True

    def _statement(self, function: str) -> bytes:
        known = self._statements.get(function)
        if known is None:
            arguments = "" if function == "look" else "$1"
            known = f"SELECT {self.address.schema}.{function}({arguments})".encode()
            self._statements[function] = known
        return known

    def _make_pool(self) -> Pool[Link]:
        busy = partial(LostReply, ambiguous=False)
        pool = Pool(self._connect, self.address.pool, self.colour.signal, self.ticks_ms, busy)
        if self.colour.home is not None:

            async def shut() -> None:
                pool.guard = None
                pool.close()

            pool.guard = until_shutdown(shut)
        return pool
