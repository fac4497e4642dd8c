"""Waiting one's turn: a need that does not fit now is booked, and its work begins at the slot.

Whoever waits for one bucket books there and sleeps; nobody asks again and again. Where several buckets
are asked, only those are booked that cannot give now, all for the same instant. The others are asked when
that has come, so that meanwhile they are there for everybody. Who finds one of them empty then begins anew.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias

from ..exceptions import RateLimiterUnavailable, RateLimitExceeded
from .demand import BookedDemand, BucketDemand
from .group_commit import BucketWriter
from .holding import Holding
from .posting import Booking
from .settle import Charge, answered_for, give_back

ROUNDS_MAX = 64
"""How often somebody begins anew because a bucket that could give had nothing left when its turn had come."""

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
        short = await _short_of(writer, demands, taking) if len(demands) > 1 else list(demands)
        if isinstance(short, Charge):
            return short
        rest = [demand for demand in demands if demand not in short]
        booked = answered_for(writer)
        try:
            at_ms = await _book(writer, short, taking, latest_ms, booked)
            if at_ms > writer.world.now_ms():
                holding._waited_ms = at_ms - since_ms
            await _sleep_until(writer, at_ms)
            booked[:] = [BucketDemand(*demand) for demand in booked]  # its turn has come
            if await _took_besides(writer, rest, taking, booked):
                return booked
        except GeneratorExit:  # a coroutine that is thrown away may not await any more
            del booked[:]
            raise
        except BaseException:
            await give_back(writer, booked)
            raise
        await give_back(writer, booked)
    place = demands[0].account.key.partition
    raise RateLimiterUnavailable(f"{place!r} had its turn {ROUNDS_MAX} times when another bucket was empty")


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


async def _short_of(
    writer: BucketWriter, demands: Sequence[BucketDemand], taking: Take
) -> Charge[BucketDemand] | list[BucketDemand]:
    """Take all demands, or tell who of several buckets cannot give now, the longest wait first."""
    try:
        return await taking(writer, demands)
    except RateLimitExceeded as refusal:
        waits: dict[tuple[str, str], float] = {}
        for status in refusal.statuses:
            if status.exceeded:
                place = status.entity_id, status.resource
                waits[place] = max(waits.get(place, 0.0), status.retry_after_seconds)
        short = [d for d in demands if (d.account.entity_id, d.account.resource) in waits]
        return sorted(short, key=lambda d: -waits[d.account.entity_id, d.account.resource])


async def _book(
    writer: BucketWriter,
    demands: Sequence[BucketDemand],
    taking: Take,
    latest_ms: int,
    booked: Charge[BucketDemand],
) -> int:
    """Book demands, all for the same instant, and return that.

    What is booked for an earlier one would be debited before its work begins, so it is booked again.
    """
    at_ms = 0
    for _ in range(ROUNDS_MAX):
        slots = []
        for demand in demands:
            part = await taking(writer, [demand], booking=Booking(latest_ms, at_ms))
            slots.append(max((d.booking.latest_ms for d in part if isinstance(d, BookedDemand)), default=0))
            at_ms = max(at_ms, slots[-1])
            booked += part
            del part[:]
        if min(slots) == at_ms:
            return at_ms
        await give_back(writer, booked)
    raise RateLimiterUnavailable(f"{demands[0].account.key.partition!r} changed under every attempt")


async def _sleep_until(writer: BucketWriter, at_ms: int) -> None:
    world = writer.world
    while (left_ms := at_ms - world.now_ms()) > 0:
        if world.nap is not None:
            world.nap(left_ms / 1000)
            left_ms = 0
        await writer.colour.sleep(min(left_ms / 1000, NAP_SECONDS_MAX))
