"""What is sent to a bucket in one write, and what becomes of it if something comes in between. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ..exceptions import RateLimiterUnavailable
from ..repository_protocol import Outcome, Write
from .booking import Turn
from .door import Call
from .line import Ticket

MOOT = Outcome(True, None)
"""The outcome of an order that needs no write, such as a refund to a limit that is gone."""


class Sending(NamedTuple):
    """A group, those of it who go out now, and the write that carries out their orders, if it takes one."""

    group: list[Ticket]
    chosen: list[Ticket]
    write: Write | None
    turns: Sequence[Turn] = ()
    """What those are believed to get who wait."""


def outcome_of(call: Call, place: int, error: BaseException) -> Outcome | None:
    """What one write of an interrupted call came to; ``None`` if it is known to have done nothing."""
    if call.replies is None:
        return unknown(error) if call.asked else None
    reply = call.replies[place]
    return reply if reply.applied or reply.failure is not None else None


def unknown(error: BaseException) -> Outcome:
    """The outcome of an order whose write was out when something came in between."""
    return Outcome(False, None, failure=RateLimiterUnavailable(f"interrupted by {error!r}", ambiguous=True))


def interrupted(error: BaseException) -> Outcome:
    """The outcome of an order whose write was not."""
    return Outcome(False, None, failure=RateLimiterUnavailable(f"interrupted by {error!r}"))


LATE = Outcome(
    False, None, failure=RateLimiterUnavailable("no answer within the deadline of a call", ambiguous=True)
)
"""The outcome of an order that was still on its way when its time was over."""
