"""Sending a request until there is an answer or the time is up: the place that repeats requests.

Throttles and conflicts did not happen, and neither did what never reached DynamoDB: both are repeated, with
jitter. A request whose reply was lost is repeated only if a second arrival changes nothing; otherwise its
failure says ``ambiguous``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

from ...runtime.world import World
from .expressions import Payload, Request
from .transport import NoReply, ServiceError, Transport, TransportError, failure, unreadable

T = TypeVar("T")

ATTEMPTS_MAX = 16
PAUSE_MIN_MS, PAUSE_MAX_MS = 10, 200
LEFT_SHARE_MIN = 0.1
"""An attempt with less than this of the call's time left would be cut off, and then nobody knows."""

READS = frozenset({"BatchGetItem", "DescribeTable", "Query", "Scan"})
HARMLESS_TWICE = READS | {
    "CreateTable",
    "DeleteTable",
    "TransactWriteItems",
    "UpdateTable",
    "UpdateTimeToLive",
}
"""A transaction has a token, and a table is made, deleted and given its TTL and an index only once."""


class Calls:
    """Requests about one table, each with a deadline."""

    def __init__(self, table_name: str, transport: Transport, world: World, timeout_ms: int) -> None:
        self.table_name = table_name
        self.transport = transport
        self.timeout_ms = timeout_ms
        self.ticks_ms: Final = world.ticks_ms
        self._random = world.random
        self._left_ms_min = timeout_ms * LEFT_SHARE_MIN

    def deadline(self, timeout_ms: int | None = None) -> float:
        return self.ticks_ms() + (timeout_ms or self.timeout_ms)

    def token(self) -> str:
        """A fresh name for a transaction."""
        return f"{self._random.getrandbits(128):032x}"

    async def send(self, operation: str, request: Request, expected: frozenset[str] = frozenset()) -> Payload:
        """The answer to a request, as it is; a refusal whose code is ``expected`` comes out as it is, too."""
        reply: Payload | ServiceError
        reply = await self.ask(operation, request, as_it_is, refusals=dict.fromkeys(expected, as_it_is))
        if isinstance(reply, ServiceError):
            raise reply
        return reply

    async def ask(
        self,
        operation: str,
        request: Request,
        read: Callable[[Payload], T],
        until_ms: float | None = None,
        refusals: Mapping[str, Callable[[ServiceError], T]] | None = None,
        now_ms: float | None = None,
    ) -> T:
        """What the answer to a request says to ``read``, or a refusal to the reader of its code.

        All other trouble is ``RateLimiterUnavailable``, and so is an answer that its reader cannot read.
        """
        now_ms = self.ticks_ms() if now_ms is None else now_ms
        until_ms = until_ms or now_ms + self.timeout_ms
        if until_ms - now_ms < self._left_ms_min:
            spent = NoReply("what came before it took all the time", ambiguous=False)
            raise failure(spent, operation, self.table_name, ambiguous=False)
        maybe_applied = False
        attempt = 0
        while True:
            answer: Any = None
            reader: Callable[[Any], T] = read
            failed: TransportError
            try:
                answer = await self.transport.call(operation, request, until_ms - now_ms)
            except ServiceError as error:
                failed = error
                if refusals and error.code in refusals and not error.transient:
                    answer, reader = error, refusals[error.code]
            except TransportError as error:
                failed = error
            if answer is not None:
                try:
                    return reader(answer)
                except Exception as error:
                    failed = unreadable(error)
            attempt += 1
            maybe_applied |= failed.ambiguous and operation not in READS
            again = failed.transient or (failed.ambiguous and operation in HARMLESS_TWICE)
            if not (again and await self.pause(attempt, until_ms)):
                raise failure(failed, operation, self.table_name, ambiguous=maybe_applied) from failed
            now_ms = self.ticks_ms()

    async def pause(self, attempt: int, until_ms: float, pause_max_ms: int = PAUSE_MAX_MS) -> bool:
        """Wait a little longer after each attempt; false when there is no time for another one."""
        longest_ms = min(pause_max_ms, PAUSE_MIN_MS * 2 ** min(attempt, 10))
        # Callers that were turned away together must not come back together.
        pause_ms = self._random.uniform(longest_ms / 2, longest_ms)
        left_ms = until_ms - self.ticks_ms() - pause_ms
        if attempt >= ATTEMPTS_MAX or left_ms < self._left_ms_min:
            return False
        await self.transport.fanout.sleep(pause_ms / 1000)
        return True


def as_it_is(answer: Any) -> Any:
    """The reader of an answer that its caller takes apart."""
    return answer
