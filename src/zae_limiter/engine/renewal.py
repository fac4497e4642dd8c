"""Renewing seats: whoever works for longer than a ``hold`` keeps its seat, without doing anything for it.

One timer of a process looks after all seats that its leases hold. Those of one bucket that were taken within
an eighth of a ``hold`` are renewed together, by one write, when about half of their time is over. A lease
that is dropped without a word is not renewed any more. What could not be renewed in time is told: others may
have its seat while its work goes on.
"""

from __future__ import annotations

import logging
import math
import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING, NamedTuple
from weakref import WeakKeyDictionary

from ..repository_protocol import Outcome
from ..runtime.colour import ForkSafe, Signal
from .demand import Seat
from .posting import Order, Posting
from .seats import TICK_MS, SeatMove, due_ms, until

if TYPE_CHECKING:
    from .group_commit import BucketWriter

logger = logging.getLogger("zae_limiter")

RETRY_PART = 16
"""A renewal that did not get through is tried again after such a part of a ``hold``."""

_moving = ForkSafe(threading.RLock)
"""Around what says whether a seat is renewed: garbage may be collected within it, and end another lease."""


class _Watch:
    """The seats that are looked after in one place, and when that is to be done next."""

    def __init__(self) -> None:
        self.seats: WeakKeyDictionary[Seat, None] = WeakKeyDictionary()
        self.at_ms = math.inf
        self.cancel: Callable[[], None] | None = None


class _Batch(NamedTuple):
    """Seats of one bucket that are held until the same instant."""

    seats: Sequence[Seat]
    later: int
    done: Signal

    @property
    def order(self) -> Order:
        first, count = self.seats[0], sum(seat.count for seat in self.seats)
        return Order(
            first.account, Posting(seats=(SeatMove(first.name, first.until, -count, later=self.later),))
        )


class Renewals:
    """Looks after the seats of one process."""

    def __init__(self, writer: BucketWriter) -> None:
        self._writer = writer
        self.lost = 0
        """How many seats could not be renewed in time, each of them logged."""
        self._watches = ForkSafe(_Watch, writer.colour.home)

    def add(self, seat: Seat) -> None:
        """Look after a seat from now on."""
        watch = self._watches.get()
        with _moving.get():
            watch.seats[seat] = None
        self._wake(watch, due_ms(seat.account.terms.rates[seat.name], seat.until))

    def miss(self, order: Order, still: Sequence[Order]) -> None:
        """Count seats that were to be given back and that somebody else has got meanwhile."""
        count = -sum(move.amount for move in order.posting.seats)
        count += sum(move.amount for left in still for move in left.posting.seats)
        if count > 0:
            self.lost += count
            told = "%s: %d seats were not renewed in time: others had them while the work went on"
            logger.warning(told, order.account.key.partition, count)

    def end(self, seat: Seat) -> bool:
        """Look after a seat no longer; whether it was not lost. It may be on the move just now."""
        with _moving.get():
            seat.is_over = True
            return not seat.is_lost

    def close(self) -> None:
        """Renew nothing any more."""
        for watch in self._watches.forget_all():
            if watch.cancel is not None:
                watch.cancel()

    def _wake(self, watch: _Watch, at_ms: float) -> None:
        """Be there at an instant, or before."""
        writer = self._writer
        with _moving.get():
            if at_ms >= watch.at_ms:
                return
            if watch.cancel is not None:
                watch.cancel()
            watch.at_ms = at_ms
            seconds = max(0.0, at_ms - writer.world.now_ms()) / 1000
            watch.cancel = writer.colour.later(seconds, self._run)

    async def _run(self) -> None:
        watch = self._watches.get()
        watch.at_ms, watch.cancel = math.inf, None
        again_ms = await self.renew()
        if again_ms < math.inf:
            self._wake(watch, again_ms)

    async def renew(self) -> float:
        """Renew what is due; returns when the next is."""
        writer, watch = self._writer, self._watches.get()
        batches, next_ms = self._due(watch, writer.world.now_ms())
        by_bucket: dict[object, list[_Batch]] = defaultdict(list)
        for batch in batches:
            by_bucket[batch.seats[0].account.key].append(batch)
        try:
            for together in zip_longest(*by_bucket.values()):
                going = [batch for batch in together if batch is not None]
                outcomes, interruption = await writer.post([batch.order for batch in going])
                for batch, outcome in zip(going, outcomes, strict=True):
                    next_ms = min(next_ms, self._note(batch, outcome))
                if interruption is not None:
                    raise interruption
        finally:
            for batch in batches:
                with _moving.get():
                    for seat in batch.seats:
                        seat.moving = None
                batch.done.give()
        return next_ms

    def _due(self, watch: _Watch, now_ms: int) -> tuple[list[_Batch], float]:
        """What is to be renewed now, and when there is more."""
        groups: dict[object, list[Seat]] = defaultdict(list)
        next_ms = math.inf
        with _moving.get():
            for seat in list(watch.seats):
                if seat.is_over or seat.is_lost:
                    del watch.seats[seat]
                    continue
                at_ms = due_ms(seat.account.terms.rates[seat.name], seat.until)
                if at_ms > now_ms:
                    next_ms = min(next_ms, at_ms)
                elif seat.moving is None:
                    groups[seat.account.key, seat.account.life, seat.name, seat.until].append(seat)
            batches = []
            for seats in groups.values():
                rate, done = seats[0].account.terms.rates[seats[0].name], self._writer.colour.signal()
                batches.append(_Batch(seats, until(rate, now_ms), done))
                for seat in seats:
                    seat.moving = done
        return batches, next_ms

    def _note(self, batch: _Batch, outcome: Outcome) -> float:
        """Note what became of some seats; returns when they are to be renewed next."""
        first, now_ms = batch.seats[0], self._writer.world.now_ms()
        rate, failure = first.account.terms.rates[first.name], outcome.failure
        if outcome.applied and outcome.item is not None:
            for seat in batch.seats:
                seat.until = batch.later
            return due_ms(rate, batch.later)
        in_time = now_ms < first.until * TICK_MS
        was_busy = not outcome.applied and failure is None and outcome.item is not None
        if in_time and (was_busy or (failure is not None and not failure.ambiguous)):
            return now_ms + rate.refill_period_ms / RETRY_PART
        count = 0
        with _moving.get():
            for seat in batch.seats:
                seat.is_lost = True
                count += seat.count
        self.lost += count
        logger.warning(
            "%s: %d of %s could not be renewed in time: others may have the seat while the work goes on: %s",
            *(first.account.key.partition, count, first.name, failure or "it was given to somebody else"),
        )
        return math.inf
