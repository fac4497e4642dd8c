"""A wire to DynamoDB that replays answers, under a clock that only sleeping moves."""

import random

from zae_limiter.backends.dynamodb import DynamoDBBackend
from zae_limiter.backends.dynamodb.expressions import Payload, Request, fields_of
from zae_limiter.backends.dynamodb.retries import Calls
from zae_limiter.backends.dynamodb.transport import TransportError
from zae_limiter.runtime.colour import Blocking
from zae_limiter.runtime.world import World


class Clock(Blocking):
    """A colour whose sleeps take no time but are remembered, and the clock that they move."""

    def __init__(self) -> None:
        super().__init__()
        self.now_ms = 0.0
        self.slept_ms: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.slept_ms.append(seconds * 1000)
        self.now_ms += seconds * 1000

    @property
    def world(self) -> World:
        return World(ticks_ms=lambda: self.now_ms, random=random.Random(1))


class Script:
    """A transport that replays answers; the last one is repeated. Each call takes ``call_ms``."""

    def __init__(self, *answers: Payload | TransportError, call_ms: float = 1) -> None:
        self.clock = Clock()
        self.colour = self.fanout = self.clock
        self.sent: list[tuple[str, Payload, float]] = []
        self._answers = list(answers)
        self._call_ms = call_ms

    async def call(self, operation: str, payload: Request, timeout_ms: float) -> Payload:
        self.sent.append((operation, fields_of(payload), timeout_ms))
        self.clock.now_ms += self._call_ms
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(answer, TransportError):
            raise answer
        return answer

    async def close(self) -> None:
        pass

    @property
    def operations(self) -> list[str]:
        return [operation for operation, _, _ in self.sent]

    def backend(self, timeout_ms: int = 1000) -> DynamoDBBackend:
        return DynamoDBBackend(Calls("table", self, self.clock.world, timeout_ms))
