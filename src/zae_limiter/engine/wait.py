"""Waiting one's turn: a need that does not fit now is booked, and its work begins at the slot.

Whoever waits for one bucket books there and sleeps; nobody asks again and again. Where several buckets
are asked, only those are booked that cannot give now, all for the same instant. The others are asked when
that has come, so that meanwhile they are there for everybody. Who finds one of them empty then begins anew.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from ..exceptions import RateLimiterUnavailable, RateLimitExceeded
from ..models import LimitStatus
from .bucket_view import level, shard_count
from .demand import BookedDemand, BucketDemand
from .group_commit import BucketWriter
from .holding import Holding
from .posting import Booking
from .settle import Charge, answered_for, give_back

ROUNDS_MAX = 64
"""How often somebody begins anew because a bucket that could give had nothing left when its turn had come."""

LEAD, LEAD_MS = 2, 1_000
"""How long before a turn another bucket is booked for it: so many times its own wait, and so much more."""

LEAVING_MAX = 1_000
"""How often somebody who leaves lets others go first."""

NAP_SECONDS_MAX = 60.0
"""After which a sleeper looks at the clock, which may have been set."""

Take: TypeAlias = Callable[..., Awaitable[Charge[BucketDemand]]]


async def wait_for(holding: Holding, demands: Sequence[BucketDemand], taking: Take) -> Charge[BucketDemand]:
    """Take every demand when its turn has come, or none if that is too late."""
    writer = holding._buckets.writer
    assert holding._wait_ms is not None
    if holding._latest_ms is None:
        holding._latest_ms = writer.world.now_ms() + holding._wait_ms
    latest_ms, since_ms = holding._latest_ms, holding._latest_ms - holding._wait_ms
    for _ in range(ROUNDS_MAX):
        statuses: Sequence[LimitStatus] = ()
        short = [_Wait(demands[0], 0.0)]
        if len(demands) > 1:
            try:
                return await taking(writer, demands)
            except RateLimitExceeded as refusal:
                statuses = refusal.statuses
                short = _short_of(demands, statuses)
        waited_for = [it.demand for it in short]
        rest = [demand for demand in demands if demand not in waited_for]
        booked = answered_for(writer)
        try:
            at_ms = await _book(writer, short, taking, latest_ms, booked)
            if at_ms > writer.world.now_ms():
                holding._waited_ms = at_ms - since_ms
            await _sleep_until(writer, at_ms)
            booked[:] = [BucketDemand(*demand) for demand in booked]  # its turn has come
            if await _took_besides(writer, rest, taking, booked):
                return booked
        except RateLimitExceeded as refusal:
            await give_back(writer, booked)
            await _outwait_shards(writer, waited_for, _of_all(refusal, statuses), latest_ms)
        except GeneratorExit:  # a coroutine that is thrown away may not await any more
            del booked[:]
            raise
        except BaseException:
            await writer.colour.finish(_leave(writer, booked))
            raise
        await give_back(writer, booked)
    place = demands[0].account.key.partition
    raise RateLimiterUnavailable(f"{place!r} had its turn {ROUNDS_MAX} times when another bucket was empty")


async def _leave(writer: BucketWriter, booked: Charge[BucketDemand]) -> None:
    """Give back what was booked, after those of this process who booked later and leave as well.

    Each of them is the last then, and leaves the bucket as if it had not come.
    """
    mine = [it for it in booked if isinstance(it, BookedDemand)]
    for it in mine:
        writer.leaving.setdefault(it.account.key, []).append(it.booking.left)
    try:
        for _ in range(LEAVING_MAX):
            await writer.colour.sleep(0)
            if not any(_is_behind(other, it) for it in mine for other in writer.leaving[it.account.key]):
                break
        await give_back(writer, booked)
    finally:
        for it in mine:
            writer.leaving[it.account.key].remove(it.booking.left)
            if not writer.leaving[it.account.key]:
                del writer.leaving[it.account.key]


def _is_behind(left: Mapping[str, int], demand: BookedDemand) -> bool:
    """Whether what somebody else has left shows that it booked later."""
    mine = demand.booking.left
    return any(left[name] < mine[name] for name in mine.keys() & left.keys())


async def _took_besides(
    writer: BucketWriter, demands: Sequence[BucketDemand], taking: Take, booked: Charge[BucketDemand]
) -> bool:
    """Take from the buckets that could give when others had to be waited for; false if they cannot now."""
    if not demands:
        return True
    try:
        taken = await taking(writer, demands)
    except RateLimitExceeded:
        return False
    booked += taken
    del taken[:]
    return True


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
    writer: BucketWriter,
    short: Sequence[_Wait],
    taking: Take,
    latest_ms: int,
    booked: Charge[BucketDemand],
) -> int:
    """Book demands, all for the same instant, and return that.

    The longest wait is booked at once. The others, so that they are there for everybody meanwhile, are booked
    when the turn is no further away than they take themselves.
    """
    at_ms, slots = 0, list[tuple[BucketDemand, BookedDemand]]()
    for demand, wait_ms in short:
        await _sleep_until(writer, at_ms - LEAD * math.ceil(min(wait_ms, at_ms)) - LEAD_MS)
        part = await taking(writer, [demand], booking=Booking(latest_ms, at_ms))
        at_ms = _turn_ms(part, at_ms)
        slots += [(demand, given) for given in part if isinstance(given, BookedDemand)]
        booked += part
        del part[:]
    for demand, given in slots:
        slot_ms = max(given.booking.latest_ms, writer.world.now_ms())
        if slot_ms < at_ms and _flows_over(writer, given, at_ms):
            # What is debited before its work begins has made room for others, so it is booked again.
            early = answered_for(writer, [given])
            booked.remove(given)
            await give_back(writer, early)
            part = await taking(writer, [demand], booking=Booking(latest_ms, at_ms))
            at_ms = _turn_ms(part, at_ms)
            booked += part
            del part[:]
    return at_ms


def _turn_ms(booked: Sequence[BucketDemand], at_ms: int) -> int:
    """When all have had their slots who were booked for an instant."""
    return max([at_ms, *(it.booking.latest_ms for it in booked if isinstance(it, BookedDemand))])


def _flows_over(writer: BucketWriter, demand: BucketDemand, at_ms: int) -> bool:
    """Whether a bucket is full by then."""
    image = writer.image(demand.account.key)
    levels = (level(demand.account.terms, name, image, at_ms) for name in demand.amounts)
    return any(at.balance(at_ms) >= at.rate.capacity_milli for at in levels)


async def _outwait_shards(
    writer: BucketWriter, demands: Sequence[BucketDemand], refusal: RateLimitExceeded, latest_ms: int
) -> None:
    """Wait until the shards of a bucket have together what none can be booked for, if there is time."""
    at_ms = writer.world.now_ms() + refusal.retry_after_seconds * 1000
    if at_ms > latest_ms or all(shard_count(writer.image(d.account.key)) == 1 for d in demands):
        raise refusal
    await _sleep_until(writer, math.ceil(at_ms))


async def _sleep_until(writer: BucketWriter, at_ms: int) -> None:
    world = writer.world
    while (left_ms := at_ms - world.now_ms()) > 0:
        if world.nap is not None:
            world.nap(left_ms / 1000)
            left_ms = 0
        await writer.colour.sleep(min(left_ms / 1000, NAP_SECONDS_MAX))
