"""Waiting one's turn: a need that does not fit now is booked, and its work begins at the slot.

Whoever waits for one bucket books there and sleeps; nobody asks again and again. Where several buckets
are asked, only those are booked that cannot give now, all for the same instant. The others are asked when
that has come, so that meanwhile they are there for everybody. Who finds one of them empty then begins anew.

Nobody is booked for a boundary of a quota or a session that is far, if it also takes of limits which could
give sooner: those would be closed to everybody until then. It sleeps until it is near, and books then.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple, TypeAlias

from ..exceptions import ClosedError, RateLimiterUnavailable, RateLimitExceeded
from ..models import LimitStatus
from .booking import NEAR_MS, nears_ms
from .bucket_view import shard_count
from .demand import BookedDemand, BucketDemand, by_bucket, hard_and_soft
from .group_commit import BucketWriter
from .holding import Holding
from .phased import begun_ms
from .posting import Booking
from .seat_wait import AskedAnew, SeatWait
from .settle import Charge, answered_for, give_back
from .split import known_images, levels
from .take import Contended

ROUNDS_MAX = 64
"""How often somebody begins anew because a bucket that could give had nothing left when its turn had come."""

LEAD_MS = 1_000
"""How much longer before a turn than it takes itself another bucket is looked at again."""

NAP_SECONDS_MAX = 60.0
"""After which a sleeper looks at the clock, which may have been set."""

Take: TypeAlias = Callable[..., Awaitable[Charge[BucketDemand]]]


async def wait_for(
    holding: Holding, demands: Sequence[BucketDemand], taking: Take, asked_anew: AskedAnew
) -> Charge[BucketDemand]:
    """Take every demand when its turn has come, or none if that is too late.

    ``asked_anew`` tells what is asked of which buckets by now, for those who book nothing meanwhile.
    """
    room = holding._buckets.writer.waiting_room.get()
    room.waiting += 1
    try:
        while demands:
            if any(not demand.account.terms.seats.isdisjoint(demand.amounts) for demand in demands):
                return await SeatWait(holding, taking, asked_anew, _wait_for).take(demands)
            if (taken := await _wait_for(holding, demands, taking)) is not None:
                return taken
            demands = await asked_anew()
        return answered_for(holding._buckets.writer)
    finally:
        room.waiting -= 1


async def _wait_for(
    holding: Holding, demands: Sequence[BucketDemand], taking: Take
) -> Charge[BucketDemand] | None:
    """The same without seats; ``None`` if a boundary that was far is near now, and it is time to ask anew."""
    writer = holding._buckets.writer
    assert holding._wait_ms is not None
    assert holding._latest_ms is not None
    latest_ms, since_ms = holding._latest_ms, holding._latest_ms - holding._wait_ms
    refused: RateLimitExceeded | None = None
    everything, (demands, soft) = demands, hard_and_soft(demands)
    for attempt in range(ROUNDS_MAX):
        statuses: Sequence[LimitStatus] = ()
        short = [_Wait(demands[0], 0.0)] if demands else []
        if len(demands) != 1 or soft:
            try:
                taken = await taking(writer, everything)
                has_waited = attempt or holding._waited_ms
                holding._waited_ms = writer.world.now_ms() - since_ms if has_waited else 0
                return taken
            except RateLimitExceeded as refusal:
                statuses = refusal.statuses
                short = _short_of(demands, statuses)
            except Contended:
                if writer.world.now_ms() >= latest_ms:
                    raise
                continue
        waited_for = [it.demand for it in short]
        rest = [*(demand for demand in demands if demand not in waited_for), *soft]
        booked = answered_for(writer)
        try:
            at_ms, later = await _book(writer, short, taking, Booking(latest_ms, since_ms=since_ms), booked)
            at_ms = max(at_ms, now_ms := writer.world.now_ms())
            if attempt or at_ms > now_ms or holding._waited_ms:
                holding._waited_ms = at_ms - since_ms
            await _sleep_until(writer, at_ms)
            booked[:] = [BucketDemand(*demand) for demand in booked]  # its turn has come
            refused = await _refused_besides(writer, by_bucket([*rest, *later]), taking, booked)
            if refused is None:
                return booked
        except RateLimitExceeded as refusal:
            refused = _of_all(refusal, statuses)
            await give_back(writer, booked)
            now_ms = writer.world.now_ms()
            near_ms = _near_ms(demands, refusal, since_ms, now_ms)
            if near_ms is not None and now_ms + refusal.retry_after_seconds * 1000 <= latest_ms:
                await _sleep_until(writer, near_ms)
                holding._waited_ms = writer.world.now_ms() - since_ms
                return None
            await _outwait(writer, waited_for, refused, latest_ms)
        except GeneratorExit:  # a coroutine that is thrown away may not await any more
            del booked[:]
            raise
        except BaseException as error:
            await give_back(writer, booked)
            if not isinstance(error, Contended) or writer.world.now_ms() >= latest_ms:
                raise  # who has time left asks anew where others were faster
        await give_back(writer, booked)
    if refused is not None:
        raise refused
    places = " and ".join(repr(demand.account.key.partition) for demand in demands)
    raise RateLimiterUnavailable(f"{places} would not hold still at {ROUNDS_MAX} turns")


async def _refused_besides(
    writer: BucketWriter, demands: Sequence[BucketDemand], taking: Take, booked: Charge[BucketDemand]
) -> RateLimitExceeded | None:
    """Take from the buckets that could give when others had to be waited for, unless they refuse now."""
    if not demands:
        return None
    try:
        taken = await taking(writer, demands)
    except RateLimitExceeded as refusal:
        return refusal
    booked += taken
    del taken[:]
    return None


class _Wait(NamedTuple):
    """A demand on a bucket that cannot give now, and how long that is so."""

    demand: BucketDemand
    wait_ms: float


def _short_of(demands: Sequence[BucketDemand], statuses: Sequence[LimitStatus]) -> list[_Wait]:
    """Who of several buckets cannot give now, the longest wait first."""
    waits: dict[tuple[str, str], float] = {}
    for status in statuses:
        if status.exceeded:
            place = status.entity_id, status.resource
            waits[place] = max(waits.get(place, 0.0), status.retry_after_seconds * 1000)
    short = [_Wait(d, waits.get((d.account.entity_id, d.account.resource), 0.0)) for d in demands]
    return sorted((it for it in short if it.wait_ms), key=lambda it: -it.wait_ms)


def _of_all(refusal: RateLimitExceeded, statuses: Sequence[LimitStatus]) -> RateLimitExceeded:
    """The refusal of one bucket, and beside it how the others stood."""
    told = {(status.entity_id, status.resource) for status in refusal.statuses}
    others = [status for status in statuses if (status.entity_id, status.resource) not in told]
    return RateLimitExceeded([*refusal.statuses, *others]) if others else refusal


async def _book(
    writer: BucketWriter, short: Sequence[_Wait], taking: Take, booking: Booking, booked: Charge[BucketDemand]
) -> tuple[int, list[BucketDemand]]:
    """Book demands, all for the same instant; returns that, and whom to ask only then.

    The longest wait is booked at once. The others are looked at again shortly before, so that they are there
    for everybody meanwhile: those that will not have enough are booked as well.
    """
    (first, _), *others = short
    at_ms, asked, rest = await _booked(writer, first, taking, booking, booked), [first], []
    for demand, wait_ms in others:
        ahead_ms = math.ceil(min(wait_ms, at_ms))
        if len(demand.amounts) > 1 and any(demand.account.terms.rates[n].accrual for n in demand.amounts):
            ahead_ms = min(ahead_ms, NEAR_MS)  # else nobody could use the rest of it for so long
        await _sleep_until(writer, at_ms - ahead_ms - LEAD_MS)
        await writer.look([demand.account.key])
        if _can_give(writer, demand, at_ms):
            rest.append(demand)
        else:
            at_ms = await _booked(writer, demand, taking, booking._replace(earliest_ms=at_ms), booked)
            asked.append(demand)
    for _ in range(ROUNDS_MAX):
        early = [it for it in booked if isinstance(it, BookedDemand) and it.booking.latest_ms < at_ms]
        if not early or at_ms <= writer.world.now_ms():
            break
        # What is debited before its work begins would make room for others, so it is booked again.
        leaving = answered_for(writer, early)
        booked[:] = [it for it in booked if it not in early]
        await give_back(writer, leaving)
        places = [it.account.whole_key for it in early]
        for demand in asked:
            if demand.account.whole_key in places:
                at_ms = await _booked(writer, demand, taking, booking._replace(earliest_ms=at_ms), booked)
    return at_ms, rest


async def _booked(
    writer: BucketWriter, demand: BucketDemand, taking: Take, booking: Booking, booked: Charge[BucketDemand]
) -> int:
    """Book one demand; returns when it and those that it shall not be before have their turn."""
    part = await taking(writer, [demand], booking=booking)
    at_ms = _turn_ms(part, booking.earliest_ms)
    booked += part
    del part[:]
    return at_ms


def _can_give(writer: BucketWriter, demand: BucketDemand, at_ms: int) -> bool:
    """Whether a bucket is believed to have enough by then, if nobody else takes anything."""
    account, now_ms = demand.account, writer.world.now_ms()
    images = known_images(writer, account)
    waits = [levels(account, images, n, now_ms).retry_after_ms(a, now_ms) for n, a in demand.amounts.items()]
    return now_ms + max(waits) <= at_ms


def _turn_ms(booked: Sequence[BucketDemand], at_ms: int) -> int:
    """When all have had their slots who were booked for an instant."""
    return max([at_ms, *(it.booking.latest_ms for it in booked if isinstance(it, BookedDemand))])


def _near_ms(
    demands: Sequence[BucketDemand], refusal: RateLimitExceeded, since_ms: int, now_ms: int
) -> int | None:
    """When a boundary is near that somebody was not booked for because it is far, if that is why."""
    for account, amounts in demands:
        place = account.entity_id, account.resource
        told = [s for s in refusal.statuses if (s.entity_id, s.resource) == place and s.limit_name in amounts]
        slots = {status.limit_name: now_ms + status.retry_after_seconds * 1000 for status in told}
        accruals = {name: account.terms.rates[name].accrual for name in slots}
        near_ms = nears_ms(accruals, slots, since_ms) if slots else None
        if near_ms is not None and near_ms > now_ms:
            return near_ms
    return None


async def _outwait(
    writer: BucketWriter, demands: Sequence[BucketDemand], refusal: RateLimitExceeded, latest_ms: int
) -> None:
    """Wait until the shards of a bucket have together what none can be booked for, if there is time.

    Where numbers change with the time of day nobody is booked beyond that: who fits later books anew when
    the phase begins that it is told to fit in.
    """
    now_ms = writer.world.now_ms()
    at_ms = now_ms + refusal.retry_after_seconds * 1000
    if at_ms > latest_ms:
        raise refusal
    begins = [begun_ms(demand.account.terms.rates, math.ceil(at_ms)) for demand in demands]
    known = [begin_ms for begin_ms in begins if begin_ms is not None]
    if not known and all(shard_count(writer.image(d.account.key)) == 1 for d in demands):
        raise refusal
    begin_ms = max(known, default=now_ms)
    await _sleep_until(writer, begin_ms if begin_ms > now_ms else math.ceil(at_ms))


async def _sleep_until(writer: BucketWriter, at_ms: int) -> None:
    """Sleep until the turn has come, or until somebody closes the store."""
    world, room = writer.world, writer.waiting_room.get()
    while (left_ms := at_ms - world.now_ms()) > 0:
        if world.nap is not None:
            world.nap(left_ms / 1000)
            await writer.colour.sleep(0)
        else:
            await room.closing.wait(min(left_ms / 1000, NAP_SECONDS_MAX))
        if room.closing.given:
            raise ClosedError("it was closed while this acquire waited for its turn")
