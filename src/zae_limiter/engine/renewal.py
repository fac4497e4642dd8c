"""Renewing seats: whoever works for longer than a ``hold`` keeps its seat, without doing anything for it.

One timer of a process looks after all seats that its leases hold. Those of one bucket that were taken within
an eighth of a ``hold`` are renewed together, by one write, when about half of their time is over. A lease
that is dropped without a word is not renewed any more. A renewal whose reply was lost is sent again, and the
bucket tells by its mark whether it was written before. What could not be renewed in time is told: others may
have its seat while its work goes on.
"""

from __future__ import annotations

import math
import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING, NamedTuple
from weakref import WeakKeyDictionary

from ..repository_protocol import Outcome
from ..runtime.colour import ForkSafe, Signal
from .bucket_view import outlived
from .demand import Seat
from .law import Rate
from .mishaps import Mishap
from .posting import Order, Posting
from .seats import TICK_MS, SeatMove, due_ms, rate_by_now, renewals, surely_unwritten, until

if TYPE_CHECKING:
    from .group_commit import BucketWriter

RETRY_PART = 16
"""A renewal that did not get through is tried again after such a part of a ``hold``."""

INTERRUPTED_MS = 1_000 // RETRY_PART
"""After how long one is made anew that was interrupted: such a part of the shortest ``hold``."""

MARKS = 16**8
"""How many marks of renewals there are; eight of them are told apart."""

_moving = ForkSafe(threading.RLock)
"""Around what says whether a seat is renewed: garbage may be collected within it, and end another lease."""


class _Watch:
    """The seats that are looked after in one place, and when that is to be done next."""

    def __init__(self) -> None:
        self.seats: WeakKeyDictionary[Seat, None] = WeakKeyDictionary()
        self.at_ms = math.inf
        self.cancel: Callable[[], None] | None = None


class _Batch(NamedTuple):
    """Seats of one bucket that are held until the same instant, and are renewed together or not at all."""

    seats: Sequence[Seat]
    later: int
    done: Signal
    mark: str
    before: Sequence[str]
    """The renewals that the bucket told of before."""

    @property
    def order(self) -> Order:
        first, count = self.seats[0], sum(seat.count for seat in self.seats)
        move = SeatMove(first.name, first.until, -count, later=self.later, mark=self.mark)
        return Order(first.account, Posting(seats=(move,)))


class Renewals:
    """Looks after the seats of one process."""

    def __init__(self, writer: BucketWriter) -> None:
        self._writer = writer
        self.lost: int = 0
        """How many seats could not be renewed in time, each of them logged."""
        self._watches = ForkSafe(_Watch, writer.colour.home)

    def add(self, seat: Seat) -> None:
        """Look after a seat from now on."""
        watch = self._watches.get()
        with _moving.get():
            watch.seats[seat] = None
        self._wake(watch, due_ms(self._rate(seat), seat.until))

    def _rate(self, seat: Seat) -> Rate:
        account = seat.account
        return rate_by_now(account.terms.rates[seat.name], self._writer.image(account.key), seat.name)

    def miss(self, order: Order, still: Sequence[Order]) -> None:
        """Count seats that were to be given back and that somebody else has got meanwhile."""
        count = -sum(move.amount for move in order.posting.seats)
        count += sum(move.amount for left in still for move in left.posting.seats)
        if count > 0:
            self.lost += count
            told = "%s: %d seats were not renewed in time: others had them while the work went on"
            where = order.account.key.partition
            self._writer.mishaps.note(Mishap.SEAT_LOST, order.account, told, where, count, count=count)

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
        again_ms: float = self._writer.world.now_ms() + INTERRUPTED_MS
        try:
            again_ms = await self.renew()
        except GeneratorExit:  # the loop or the process is gone, and nobody goes on
            again_ms = math.inf
            raise
        finally:  # whoever cancels all tasks that there are does not end the work of those who go on
            if again_ms < math.inf:
                self._wake(watch, again_ms)

    async def renew(self) -> float:
        """Renew what is due; returns when the next is."""
        batches, next_ms = self._due(self._watches.get(), self._writer.world.now_ms())
        return min(next_ms, await self._send(batches))

    async def resolve(self, seats: Sequence[Seat]) -> None:
        """Find out where seats are whose lease ends after a reply was lost, or count them as lost."""
        doubts = {id(seat.doubt): seat.doubt for seat in seats if isinstance(seat.doubt, _Batch)}
        again = [self._begun(batch) for batch in doubts.values()]
        await self._send([batch for batch in again if batch is not None])
        self._lose(
            [s for s in seats if s.doubt is not None and not s.is_lost], "its renewal was not answered"
        )

    def _begun(self, batch: _Batch) -> _Batch | None:
        """Another attempt at a renewal, unless one is under way."""
        with _moving.get():
            if any(seat.moving is not None for seat in batch.seats):
                return None
            batch = batch._replace(done=self._writer.colour.signal())
            for seat in batch.seats:
                seat.moving = batch.done
            return batch

    async def _send(self, batches: Sequence[_Batch]) -> float:
        writer, next_ms = self._writer, math.inf
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
        doubts: dict[int, _Batch] = {}
        next_ms = math.inf
        with _moving.get():
            for seat in list(watch.seats):
                if seat.is_over or seat.is_lost:
                    del watch.seats[seat]
                    continue
                at_ms = due_ms(self._rate(seat), seat.until)
                if isinstance(seat.doubt, _Batch):
                    doubts[id(seat.doubt)] = seat.doubt
                elif at_ms > now_ms:
                    next_ms = min(next_ms, at_ms)
                elif seat.moving is None:
                    groups[seat.account.key, seat.account.life, seat.name, seat.until].append(seat)
            again = [self._begun(batch) for batch in doubts.values()]
            batches = [batch for batch in again if batch is not None]
            for seats in groups.values():
                done, mark = self._writer.colour.signal(), self._writer.world.random.randrange(MARKS)
                told = renewals(self._writer.image(seats[0].account.key))
                batches.append(_Batch(seats, until(self._rate(seats[0]), now_ms), done, f"{mark:x}", told))
                for seat in seats:
                    seat.moving = done
        return batches, next_ms

    def _note(self, batch: _Batch, outcome: Outcome) -> float:
        """Note what became of some seats; returns when they are to be renewed next."""
        first, now_ms, failure = batch.seats[0], self._writer.world.now_ms(), outcome.failure
        rate, is_here = self._rate(first), not outlived(first.account, outcome.item)
        if outcome.item is not None and is_here and (outcome.applied or batch.mark in renewals(outcome.item)):
            with _moving.get():
                for seat in batch.seats:
                    seat.until, seat.doubt = batch.later, None
            return due_ms(rate, batch.later)
        was_in_doubt = first.doubt is not None
        may_be_held = failure is not None  # there is nothing to find out where no bucket is
        if failure is None and outcome.item is not None:
            may_be_held = not was_in_doubt or surely_unwritten(batch.mark, batch.before, outcome.item)
        if may_be_held and now_ms < first.until * TICK_MS:
            doubt = batch if was_in_doubt or (failure is not None and failure.ambiguous) else None
            with _moving.get():
                for seat in batch.seats:
                    seat.doubt = doubt
            return now_ms + rate.refill_period_ms / RETRY_PART
        self._lose(batch.seats, failure or "it was given to somebody else")
        return math.inf

    def _lose(self, seats: Sequence[Seat], why: object) -> None:
        """Count seats that nobody can tell of any more, and log it."""
        count = 0
        with _moving.get():
            for seat in seats:
                seat.is_lost, seat.doubt = True, None
                count += seat.count
        self.lost += count
        if seats:
            at, name = seats[0].account, seats[0].name
            told = (
                "%s: %d of %s could not be renewed in time: others may have the seat while the work goes on"
            )
            details = f"{told}: %s", at.key.partition, count, name, why
            self._writer.mishaps.note(Mishap.SEAT_LOST, at, *details, count=count)
