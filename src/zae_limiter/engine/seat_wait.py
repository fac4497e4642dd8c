"""Waiting for a seat: until somebody who has one gives it back.

Nobody can say when that will be, so no seat is booked. Whoever of a process asked first tries first. It is
woken when a lease of the process ends, and looks again after a while, for leases of others end too. It
announces itself on the buckets that it finds short of seats, so that nobody who asked later goes before it.

It begins as soon as all that it asked for is there. Where only something else is missing than seats, that is
booked, as by anybody who waits for it, and held from its turn on until the seats are there as well.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TypeAlias

from ..exceptions import ClosedError, RateLimitExceeded
from ..models.accruals import CONCURRENT
from ..repository_protocol import Item, Update
from .account import Account
from .announced import TICKETS_PER_MS, ahead
from .announcing import announce, withdraw
from .demand import BucketDemand, seats_and_rest, with_ticket
from .door import write_each
from .holding import Holding
from .refusal import refusal_of
from .settle import Charge, answered_for, give_back
from .take import Contended
from .waiting_room import Comer

LOOK_SECONDS_MIN, LOOK_SECONDS_MAX = 0.02, 1.0
"""How long whoever is first waits before it looks again, each time twice as long until the line moves."""

TELL_ATTEMPTS_MAX = 4
"""How often an announcement is written anew for a bucket that changes under it; the next look does it too."""

Take: TypeAlias = Callable[..., Awaitable[Charge[BucketDemand]]]
AskedAnew: TypeAlias = Callable[[], Awaitable[Sequence[BucketDemand]]]
Book: TypeAlias = Callable[[Holding, Sequence[BucketDemand], Take], Awaitable[Charge[BucketDemand] | None]]


class SeatWait:
    """An acquire that waits for seats, and perhaps for more."""

    def __init__(self, holding: Holding, taking: Take, asked_anew: AskedAnew, book: Book) -> None:
        self._holding, self._taking, self._asked_anew, self._book = holding, taking, asked_anew, book
        self._writer = writer = holding._buckets.writer
        assert holding._wait_ms is not None
        assert holding._latest_ms is not None
        self._latest_ms, self._since_ms = holding._latest_ms, holding._latest_ms - holding._wait_ms
        self._ticket = self._since_ms * TICKETS_PER_MS + writer.world.random.randrange(TICKETS_PER_MS)
        self._look_seconds, self._ahead = LOOK_SECONDS_MIN, list[int]()
        self._told: dict[object, Account] = {}
        """Where it is announced, as far as it knows."""
        self._held = answered_for(writer)
        """What it has already, of all that is no seat."""

    async def take(self, demands: Sequence[BucketDemand]) -> Charge[BucketDemand]:
        """Take every demand as soon as all of them fit, or none if that is too late.

        No seat is booked, so each look is at the limits and switches as they are by then.
        """
        keys = [d.account.key for d in demands if not d.account.terms.seats.isdisjoint(d.amounts)]
        me = Comer(self._writer.seat_line, keys, self._writer.colour)
        try:
            me.join()
            return await self._take(me, demands)
        except GeneratorExit:  # a coroutine that is thrown away may not await any more
            del self._held[:]
            raise
        except BaseException:
            _, interruption = await self._writer.colour.finish(self._withdraw())
            await give_back(self._writer, self._held)
            if interruption is not None:
                raise interruption from None
            raise
        finally:
            me.leave()

    async def _take(self, me: Comer, demands: Sequence[BucketDemand]) -> Charge[BucketDemand]:
        writer, has_waited = self._writer, False
        while True:
            left_ms = self._latest_ms - writer.world.now_ms()
            seconds = left_ms / 1000
            if me.is_first or left_ms <= 0:
                if has_waited and not (demands := await self._asked_anew()):
                    await self._withdraw()
                    await give_back(writer, self._held)
                    return self._held
                wanted = seats_and_rest(demands)[0] if self._held else demands
                try:
                    taken = await self._taking(writer, [with_ticket(it, self._ticket) for it in wanted])
                except RateLimitExceeded as refusal:
                    if await self._booked(me, refusal, demands):
                        has_waited = True
                        continue
                    seconds = await self._next_look(refusal, wanted)
                except Contended:
                    if self._left_ms <= 0:
                        raise
                    seconds = self._pause()  # others were faster, and nobody has said that it is too late
                else:
                    self._held += [with_ticket(demand, None) for demand in taken]
                    del taken[:]
                    if has_waited:
                        self._holding._waited_ms = writer.world.now_ms() - self._since_ms
                    return self._held
            elif not has_waited and (hopeless := await self._hopeless(demands)) is not None:
                raise hopeless
            has_waited = True
            if writer.world.nap is not None:
                writer.world.nap(min(seconds, LOOK_SECONDS_MAX))
                await writer.colour.sleep(0)
            else:
                await me.wait(seconds)
            if writer.waiting_room.get().closing.given:
                raise ClosedError("it was closed while this acquire waited for its turn")

    async def _hopeless(self, demands: Sequence[BucketDemand]) -> RateLimitExceeded | None:
        """The refusal of somebody behind others who cannot have all in time, once its buckets were read."""
        for is_sure in (False, True):
            refusal = refusal_of(self._writer, demands, self._writer.world.now_ms())
            if refusal is None or _can_come(refusal, self._left_ms):
                return None
            if not is_sure:
                await self._writer.look([demand.account.key for demand in demands])
        return refusal

    async def _booked(self, me: Comer, refusal: RateLimitExceeded, demands: Sequence[BucketDemand]) -> bool:
        """Get all that is no seat, if there are seats and only that is missing; whether it is there now.

        One of a process does so at a time: what it holds by then is used later than it was taken.
        """
        short = [status for status in refusal.statuses if status.exceeded]
        if self._held or any(status.limit.accrual == CONCURRENT for status in short):
            me.is_aside = False
            return False
        if self._latest_ms <= self._writer.world.now_ms() or not _can_come(refusal, self._left_ms):
            return False
        me.step_aside()
        if me.ahead:
            return False
        _, rest = seats_and_rest(demands)
        held = await self._book(self._holding, rest, self._taking)
        self._held = self._held if held is None else held
        me.is_aside = False
        return True

    @property
    def _left_ms(self) -> int:
        return self._latest_ms - self._writer.world.now_ms()

    async def _next_look(self, refusal: RateLimitExceeded, wanted: Sequence[BucketDemand]) -> float:
        """Let others know, and say when to look again; too late is a refusal."""
        left_ms = self._left_ms
        if left_ms <= 0 or not _can_come(refusal, left_ms):
            raise refusal
        missing = (s for s in refusal.statuses if s.exceeded and s.limit.accrual == CONCURRENT)
        short = {(status.entity_id, status.resource) for status in missing}
        places = [n for n, d in enumerate(wanted) if (d.account.entity_id, d.account.resource) in short]
        now_ms, before = self._writer.world.now_ms(), list[int]()
        # A bucket that is asked before one that is short keeps what it would give: the others behind it too.
        for account, amounts in wanted[: max(places, default=-1) + 1]:
            seats = {name: amounts[name] // 1000 for name in account.terms.seats.intersection(amounts)}
            if (account.entity_id, account.resource) in short or account.key in self._told:
                self._told[account.key] = account
                # Whoever is cancelled meanwhile has to know what it has said, to take it back.
                tell = self._tell(account, partial(announce, account, seats, self._ticket))
                _, interruption = await self._writer.colour.finish(tell)
                if interruption is not None:
                    raise interruption
            image = self._writer.image(account.key) or {}
            before += [len(ahead(image, name, self._ticket, now_ms)) for name in seats]
        if not short:  # of what only accrues: nobody gives that back, and who is before it wakes it
            return min(max(refusal.retry_after_seconds, LOOK_SECONDS_MIN), max(0, left_ms) / 1000)
        if before != self._ahead:
            self._ahead, self._look_seconds = before, LOOK_SECONDS_MIN
        return self._pause()

    def _pause(self) -> float:
        """How long until the next look, twice as long each time."""
        seconds = self._look_seconds * self._writer.world.random.uniform(0.5, 1)
        self._look_seconds = min(2 * self._look_seconds, LOOK_SECONDS_MAX)
        return min(seconds, max(0, self._left_ms) / 1000)

    async def _withdraw(self) -> None:
        """Let nobody step back for somebody who has given up."""
        while self._told:
            _, account = self._told.popitem()
            names = account.terms.seats
            await self._tell(account, partial(withdraw, account, names, self._ticket))

    async def _tell(self, account: Account, shape: Callable[[Item | None, int], Update | None]) -> None:
        """Write what others are to know, if they do not know it; a store that is gone is not told."""
        writer = self._writer
        for _ in range(TELL_ATTEMPTS_MAX):
            write = shape(writer.image(account.key), writer.world.now_ms())
            if write is None:
                return
            (outcome,) = await write_each(writer.backend, writer, [write])
            if outcome.applied or outcome.failure is not None:
                return


def _can_come(refusal: RateLimitExceeded, left_ms: float) -> bool:
    """Whether all that is missing may be there in time: seats at any time, all else when it has accrued."""
    for status in refusal.statuses:
        is_seat = status.limit.accrual == CONCURRENT and status.requested <= status.limit.capacity
        if status.exceeded and not is_seat and status.retry_after_seconds * 1000 > left_ms:
            return False
    return True
