"""Sending a request until there is an answer or the time is up.

This is the place that repeats requests. Throttles and conflicts did not happen, and neither did
what never reached DynamoDB: both are repeated, with jitter. A request whose reply was lost is repeated
only if a second arrival changes nothing; otherwise its failure says ``ambiguous``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NoReturn, TypeVar

from ...runtime.world import World
from .expressions import Payload, Request
from .failures import failure
from .transport import NoReply, NotConfigured, ServiceError, Transport, TransportError, understood

T = TypeVar("T")

ATTEMPTS_MAX = 16
PAUSE_MIN_MS, PAUSE_MAX_MS = 10, 200
LEFT_SHARE_MIN = 0.1
"""An attempt with less than this of the call's time left would be cut off, and then nobody knows."""

READS = frozenset({"BatchGetItem", "DescribeTable", "Query", "Scan"})

# A transaction has a token, and a table is made, deleted and given its TTL and an index only once.
HARMLESS_TWICE = READS | {
    "CreateTable",
    "DeleteTable",
    "TransactWriteItems",
    "UpdateTable",
    "UpdateTimeToLive",
}

NO_REFUSALS: Mapping[str, Callable[[ServiceError], NoReturn]] = {}


class Calls:
    """Requests about one table, each with a deadline."""

    def __init__(self, table_name: str, transport: Transport, world: World, timeout_ms: int) -> None:
        self.table_name, self.transport = table_name, transport
        self._world, self.timeout_ms = world, timeout_ms

    def deadline(self, timeout_ms: int | None = None) -> float:
        return self._world.ticks_ms() + (timeout_ms or self.timeout_ms)

    def token(self) -> str:
        """A fresh name for a transaction."""
        return f"{self._world.random.getrandbits(128):032x}"

    async def send(
        self,
        operation: str,
        payload: Request,
        until_ms: float | None = None,
        expected: frozenset[str] = frozenset(),
    ) -> Payload:
        """The answer to a request, as it is.

        Refusals whose code is ``expected`` come out as ``ServiceError``, all other trouble as
        ``RateLimiterUnavailable``.
        """
        return await self.ask(operation, payload, _as_it_is, until_ms, dict.fromkeys(expected, refuse))

    async def ask(
        self,
        operation: str,
        payload: Request,
        read: Callable[[Payload], T],
        until_ms: float | None = None,
        refusals: Mapping[str, Callable[[ServiceError], T]] = NO_REFUSALS,
    ) -> T:
        """What the answer to a request says to ``read``, or a refusal to the reader of its code.

        All other trouble is ``RateLimiterUnavailable``, and so is an answer that its reader cannot read.
        """
        now_ms = self._world.ticks_ms()
        until_ms = until_ms or now_ms + self.timeout_ms
        if until_ms - now_ms < self.timeout_ms * LEFT_SHARE_MIN:
            spent = NoReply("what came before it took all the time", ambiguous=False)
            raise failure(spent, operation, self.table_name, ambiguous=False)
        maybe_applied = False
        attempt = 0
        while True:
            failed: TransportError
            try:
                try:
                    reply = await self.transport.call(operation, payload, until_ms - now_ms)
                except ServiceError as refused:
                    if refused.transient or refused.code not in refusals:
                        raise
                    return understood(refusals[refused.code], refused)
                return understood(read, reply)
            except ServiceError as error:
                if error.code in refusals and not error.transient:
                    raise
                failed, again = error, error.transient
            except NoReply as error:
                maybe_applied = maybe_applied or (error.ambiguous and operation not in READS)
                failed, again = error, operation in HARMLESS_TWICE or not error.ambiguous
            except NotConfigured as error:
                failed, again = error, False
            attempt += 1
            if not (again and await self.pause(attempt, until_ms)):
                raise failure(failed, operation, self.table_name, ambiguous=maybe_applied) from failed
            now_ms = self._world.ticks_ms()

    async def pause(self, attempt: int, until_ms: float, pause_max_ms: int = PAUSE_MAX_MS) -> bool:
        """Wait a little longer after each attempt; false when there is no time for another one."""
        longest_ms = min(pause_max_ms, PAUSE_MIN_MS * 2 ** min(attempt, 10))
        # Callers that were turned away together must not come back together.
        pause_ms = self._world.random.uniform(longest_ms / 2, longest_ms)
        left_ms = until_ms - self._world.ticks_ms() - pause_ms
        if attempt >= ATTEMPTS_MAX or left_ms < self.timeout_ms * LEFT_SHARE_MIN:
            return False
        await self.transport.lanes.sleep(pause_ms / 1000)
        return True


def _as_it_is(reply: Payload) -> Payload:
    return reply


def refuse(error: ServiceError) -> NoReturn:
    """The reader of a refusal that is for the caller to catch."""
    raise error
