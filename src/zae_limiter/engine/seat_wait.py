"""Waiting for a seat: until somebody who has one gives it back.

Nobody can say when that will be, so nothing is booked and nobody holds anything meanwhile. Whoever of a
process asked first tries first. It is woken when a lease of the process ends, and looks again after a while,
for leases of others end too. It begins as soon as all that it asked for is there at once.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias

from ..exceptions import ClosedError, RateLimitExceeded
from ..models.accruals import CONCURRENT
from .demand import BucketDemand
from .holding import Holding
from .settle import Charge, answered_for
from .waiting_room import SeatWaiter

LOOK_SECONDS_MIN, LOOK_SECONDS_MAX = 0.02, 1.0
"""How long whoever is first waits before it looks again, each time twice as long."""

Take: TypeAlias = Callable[..., Awaitable[Charge[BucketDemand]]]
AskedAnew: TypeAlias = Callable[[], Awaitable[Sequence[BucketDemand]]]


async def wait_for_seats(
    holding: Holding, demands: Sequence[BucketDemand], taking: Take, asked_anew: AskedAnew
) -> Charge[BucketDemand]:
    """Take every demand as soon as all of them fit, or none if that is too late.

    Nothing is booked, so each look is at the limits and switches as they are by then.
    """
    writer = holding._buckets.writer
    assert holding._wait_ms is not None
    assert holding._latest_ms is not None
    latest_ms, since_ms = holding._latest_ms, holding._latest_ms - holding._wait_ms
    keys = [d.account.key for d in demands if not d.account.terms.seats.isdisjoint(d.amounts)]
    me, look_seconds, has_waited = SeatWaiter(writer.seat_line, keys, writer.colour), LOOK_SECONDS_MIN, False
    try:
        while True:
            left_ms = latest_ms - writer.world.now_ms()
            if me.is_first or left_ms <= 0:
                if has_waited and not (demands := await asked_anew()):
                    return answered_for(writer)
                try:
                    taken = await taking(writer, demands)
                    holding._waited_ms = writer.world.now_ms() - since_ms if has_waited else 0
                    return taken
                except RateLimitExceeded as refusal:
                    left_ms = latest_ms - writer.world.now_ms()
                    if left_ms <= 0 or not _can_come(refusal, left_ms):
                        raise
                seconds = min(look_seconds * writer.world.random.uniform(0.5, 1), left_ms / 1000)
                look_seconds = min(2 * look_seconds, LOOK_SECONDS_MAX)
            else:
                seconds = left_ms / 1000
            has_waited = True
            if writer.world.nap is not None:
                writer.world.nap(min(seconds, LOOK_SECONDS_MAX))
                await writer.colour.sleep(0)
            else:
                await me.wait(seconds)
            if writer.waiting_room.get().closing.given:
                raise ClosedError("it was closed while this acquire waited for its turn")
    finally:
        me.leave()


def _can_come(refusal: RateLimitExceeded, left_ms: float) -> bool:
    """Whether all that is missing may be there in time: seats at any time, all else when it has accrued."""
    for status in refusal.statuses:
        is_seat = status.limit.accrual == CONCURRENT and status.requested <= status.limit.capacity
        if status.exceeded and not is_seat and status.retry_after_seconds * 1000 > left_ms:
            return False
    return True
