"""Stores around other stores: one that keeps count, one that fails on command."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from enum import Enum
from typing import Any, TypeVar

from ..backends.around import Around
from ..exceptions import RateLimiterUnavailable
from ..repository_protocol import Backend, Outcome, Swap

A = TypeVar("A")
T = TypeVar("T")


class Wrapper(Around):
    """A store that passes everything on, and sees every write."""

    @property
    def swap(self) -> Swap | None:
        """None: nothing is answered at once."""
        return None


class RecordingBackend(Wrapper):
    """Remembers every call: its verb and what it was given.

    ``round_trips`` counts calls, which is what they cost in latency; ``writes`` counts single writes,
    which is what they cost in money.
    """

    def __init__(self, inner: Backend) -> None:
        super().__init__(inner)
        self.calls: list[tuple[str, tuple[object, ...]]] = []

    @property
    def round_trips(self) -> int:
        """How many calls there were."""
        return len(self.calls)

    @property
    def verbs(self) -> Counter[str]:
        """How many there were of each verb."""
        return Counter(verb for verb, _ in self.calls)

    @property
    def writes(self) -> int:
        """How many items were to be written, one by one or together."""
        return sum(len(given) for verb, given in self.calls if verb in ("write_each", "transact_write"))

    def forget(self) -> None:
        """Begin to count anew."""
        self.calls.clear()

    async def _ask(self, verb: str, ask: Callable[[A], Awaitable[T]], given: Any) -> T:
        self.calls.append((verb, (given,) if verb == "query" else tuple(given)))
        return await ask(given)


class Fault(Enum):
    """What can happen to a call on its way."""

    LOST_REQUEST = "lost request"
    LOST_REPLY = "lost reply"
    UNREACHABLE = "unreachable"

    def failure(self) -> RateLimiterUnavailable:
        """A client cannot tell a lost request from a lost reply, only that it never reached anybody."""
        ambiguous = self is not Fault.UNREACHABLE
        return RateLimiterUnavailable(f"simulated fault: {self.value}", ambiguous=ambiguous)


class FaultyBackend(Wrapper):
    """Lets calls fail: ``faults`` says what happens to the next calls, ``None`` lets one pass.

    When the list is used up everything passes, unless ``always`` is set.
    """

    def __init__(self, inner: Backend, faults: Iterable[Fault | None] = ()) -> None:
        super().__init__(inner)
        self.faults: list[Fault | None] = list(faults)
        self.always: Fault | None = None

    async def _ask(self, verb: str, ask: Callable[[A], Awaitable[Any]], given: Any) -> Any:
        fault = self.faults.pop(0) if self.faults else self.always
        if fault is None:
            return await ask(given)
        if fault is Fault.LOST_REPLY and verb in ("write_each", "transact_write"):
            await ask(given)
        if verb == "write_each":
            return [Outcome(False, None, failure=fault.failure()) for _ in given]
        raise fault.failure()
