"""A bucket whose line is over: everybody who waited for it has had its turn. Pure.

What came back meanwhile was set aside for those who book later, and is there for all then. It must not know
of writes: whoever finds such a bucket goes by it as it would be without the line.
"""

from __future__ import annotations

from ..repository_protocol import Item
from ..schema import (
    BOOKED,
    BOOKED_SINCE,
    booking_attributes,
    bucket_limit_names,
    is_booking,
    limit_attributes,
    number,
    stored_rate,
)
from .law import gain

GRID_MS = 256
"""The end of a line moves in such steps, so that those who move it at the same time move it alike."""


def on_grid(until_ms: int) -> int:
    """The end of a line in which somebody waits until an instant."""
    return -(-until_ms // GRID_MS) * GRID_MS


def is_over_by(image: Item, end_ms: int) -> bool:
    """Whether a line ends with a phase, beyond which nobody was booked."""
    return BOOKED in image and number(image, BOOKED) <= on_grid(end_ms - 1)


def unbooked(image: Item) -> Item:
    """A bucket whose line is over as it would be without it: what came back meanwhile is there for all."""
    ours = BOOKED, BOOKED_SINCE
    plain = {name: value for name, value in image.items() if name not in ours and not is_booking(name)}
    origin_ms, over_ms = number(image, "rf"), number(image, BOOKED)
    for name in bucket_limit_names(image):
        tokens, rate, names = limit_attributes(name).tk, stored_rate(image, name), booking_attributes(name)
        stored, back = number(image, tokens), number(image, names.back)
        if rate is not None and back > 0:
            room = rate.capacity_milli - gain(rate, origin_ms, over_ms)
            plain[tokens] = max(stored, min(stored + back, room))
    return plain
