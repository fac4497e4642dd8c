"""A visit to the lines: one caller's orders, from standing in line to the last outcome.

Most who come are answered where they wait. Who is called to lead writes for all who are in line, by way of
its writer. Nobody waits for longer than some calls take.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..exceptions import RateLimiterUnavailable
from ..repository_protocol import Outcome
from ..runtime.colour import Signal
from .line import WITHDRAWN, Line, Ticket
from .posting import Order
from .sending import LATE, interrupted, unknown

if TYPE_CHECKING:
    from .group_commit import BucketWriter

SHARE_LEFT_MIN = 0.9
"""With less of its deadline left, who leads does not wait for the end of the call."""

PATIENCE_CALLS = 2
"""How many times the deadline of a call somebody waits in line: one call is in flight, one is its own."""

FAULTS_MAX = 2
"""How often somebody in line may be interrupted before it leaves whatever it stands there for."""

OVERDUE_CALLS = 1.5
"""After how many times the deadline of a call a line that has not moved has lost its leader."""


class Visit:
    """One caller's orders, from standing in line to the last outcome."""

    withdrawn: Outcome | None = None
    """The outcome of the tickets that were taken back, if they were."""
    interruption: BaseException | None = None
    signal: Signal | None = None
    seen: Sequence[tuple[Line, int]] = ()
    _slept_ms: float = 0.0  # which counts as waiting too, for a world whose clock stands still

    def __init__(self, writer: BucketWriter, orders: Sequence[Order], *, binding: bool) -> None:
        self._writer = writer
        self.binding: bool = binding
        self._call_ms, self._since_ms = writer.backend.capabilities.timeout_ms, writer.world.ticks_ms()
        # Who cannot be told no is not kept waiting either: not longer than a call takes.
        self._late_ms = self._call_ms if binding else None
        self.tickets: Sequence[Ticket] = [Ticket(order, writer.colour.gone(), self) for order in orders]

    async def answers(self) -> list[Outcome]:
        """Stand in line and wait once; nothing if more has to be done than that."""
        lines, nap_ms = self._writer.lines, OVERDUE_CALLS * self._call_ms
        try:
            _, signal = lines.call_of(self, self._writer.colour)
            if signal is None:
                return []
            await signal.wait(nap_ms / 1000)
            if not signal.given:
                self._overslept(nap_ms)
        except GeneratorExit:  # a coroutine that is thrown away may not await any more
            lines.throw_away_all(self)
            raise
        except BaseException as error:  # returned beside the outcomes
            self.interruption = error
            self.withdraw()
            return []
        found = [ticket.outcome for ticket in self.tickets if ticket.outcome is not None]
        return found if len(found) == len(self.tickets) else []

    async def run(self) -> list[Outcome]:
        """Stand in line, lead when it is one's turn, and return when every order has its outcome."""
        writer, lines, faults = self._writer, self._writer.lines, 0
        alone = self.signal is None and len(self.tickets) == 1
        while True:
            try:
                groups, signal = lines.call_of(self, writer.colour)
                if (groups or signal) and (left_ms := self._time_left()) is not None:
                    return await self._in_time(left_ms)
                if signal is not None:
                    alone = False
                    nap_ms = self._nap_ms()
                    await signal.wait(nap_ms / 1000)
                    if not signal.given:
                        self._overslept(nap_ms)
                elif not groups:
                    return [ticket.outcome for ticket in self.tickets if ticket.outcome is not None]
                elif alone:
                    alone = False
                    outcome = await writer.write_alone(self.tickets[0], lines)
                    if outcome is not None:
                        return [outcome]
                    if self.withdrawn is not None:
                        lines.withdraw(self, self.withdrawn)
                else:
                    await writer.serve(groups)
            except GeneratorExit:  # a coroutine that is thrown away may not await any more
                lines.throw_away_all(self)
                raise
            except BaseException as error:  # returned beside the outcomes
                faults += 1
                if faults > FAULTS_MAX:
                    lines.withdraw(self, interrupted(error))
                    return [ticket.outcome or unknown(error) for ticket in self.tickets]
                self.interruption = error
                self.withdraw()

    def _waited_ms(self) -> float:
        return max(self._writer.world.ticks_ms() - self._since_ms, self._slept_ms)

    def _time_left(self) -> float | None:
        """How much of a deadline is left, if that is too little for a call."""
        if self._late_ms is None:
            return None
        left_ms = self._late_ms - self._waited_ms()
        return max(0.0, left_ms) if left_ms < SHARE_LEFT_MIN * self._late_ms else None

    async def _in_time(self, left_ms: float) -> list[Outcome]:
        """Go on, but wait no longer than this for what comes of it."""
        self._late_ms, self._since_ms, self._slept_ms = None, self._writer.world.ticks_ms(), 0.0
        outcomes = await self._writer.colour.at_most(left_ms / 1000, self.run())
        return outcomes or [ticket.outcome or LATE for ticket in self.tickets]

    def _nap_ms(self) -> float:
        """How long to wait for an answer or a call before one looks whether the line moves."""
        waited_ms, nap_ms = self._waited_ms(), OVERDUE_CALLS * self._call_ms
        if self.withdrawn is None:
            nap_ms = max(0.0, min(nap_ms, PATIENCE_CALLS * self._call_ms - waited_ms))
        return nap_ms if self._late_ms is None else min(nap_ms, self._late_ms - waited_ms)

    def _overslept(self, nap_ms: float) -> None:
        """Lead a line that has not moved meanwhile, or leave one that does not come to oneself."""
        self._slept_ms += nap_ms
        overtaken = nap_ms >= OVERDUE_CALLS * self._call_ms and self._writer.lines.overtake(self)
        patience_ms = PATIENCE_CALLS * self._call_ms
        if not overtaken and self.withdrawn is None and self._waited_ms() >= patience_ms:
            partition = self.tickets[0].order.account.key.partition
            failure = RateLimiterUnavailable(f"waited {patience_ms:.0f} ms in line for {partition!r}")
            self._writer.lines.withdraw(self, Outcome(False, None, failure=failure))

    def withdraw(self) -> None:
        """Take back what is not in flight, if it can be."""
        if not self.binding:
            self._writer.lines.withdraw(self, WITHDRAWN)
