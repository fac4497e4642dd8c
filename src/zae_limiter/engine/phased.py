"""A bucket with limits whose numbers change with the time of day, as of an instant. Pure.

A bucket has the numbers of one phase, and ``ph`` says when that began. Whoever finds it in an earlier phase
than that of the instant follows it through the boundaries: what it is then, with its origin at the last, is
what every reader goes by, and what the next write makes of it. The instant of a bucket is never before its
origin or its phase, unless these lie ahead by mistake: so no phase goes back, whatever the clocks say.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ..models.schedules import schedule_of
from ..naming import WCU
from ..repository_protocol import Item, Value
from ..runtime.world import AHEAD_MS_MAX
from ..schema import (
    BOOKED,
    PHASE,
    booking_attributes,
    bucket_limit_names,
    limit_attributes,
    number,
    rate_attributes,
    stored_rate,
)
from .account import Terms
from .law import Rate, balance, gain
from .line_over import is_over_by, unbooked
from .phases import crossed, held_at, rate_at


def instant(image: Item | None, now_ms: int) -> int:
    """The instant by whose numbers a bucket goes."""
    if image is None:
        return now_ms
    known = (number(image, attribute) for attribute in ("rf", PHASE))
    return max([now_ms, *(at_ms for at_ms in known if at_ms - now_ms <= AHEAD_MS_MAX)])


def begun_ms(rates: Mapping[str, Rate], at_ms: int) -> int | None:
    """Since when all of some rates have the numbers of an instant; ``None`` if none has a schedule."""
    texts = [rate.schedule for rate in rates.values() if rate.schedule is not None]
    return max((schedule_of(text).phase(at_ms).start_ms for text in texts), default=None)


def ends_ms(rates: Mapping[str, Rate], at_ms: int) -> int | None:
    """Until when they have them."""
    texts = [rate.schedule for rate in rates.values() if rate.schedule is not None]
    return min((schedule_of(text).phase(at_ms).end_ms for text in texts), default=None)


def terms_at(terms: Terms, at_ms: int) -> Terms:
    """Terms with the numbers of an instant."""
    if not terms.scheduled:
        return terms
    for known in terms.phased:
        if known.phase_ms is not None and known.phase_ms <= at_ms < known.until_ms:
            return known
    rates = {name: rate_at(rate, at_ms) for name, rate in terms.rates.items()}
    began_ms, end_ms = begun_ms(rates, at_ms), ends_ms(rates, at_ms)
    assert began_ms is not None
    assert end_ms is not None
    found = replace(terms, rates=rates, phase_ms=began_ms, until_ms=end_ms)
    terms.phased[:] = [found]
    return found


def in_phase(image: Item, now_ms: int) -> Item:
    """A bucket as it is in the phase of an instant; the very image if that is the one it is in."""
    if PHASE not in image:
        return image
    rates = {
        name: rate for name in bucket_limit_names(image) if (rate := stored_rate(image, name)) is not None
    }
    origin_ms, at_ms = number(image, "rf"), instant(image, now_ms)
    since_ms = min(max(origin_ms, number(image, PHASE)), at_ms)
    end_ms, begins_ms = ends_ms(rates, since_ms), begun_ms(rates, at_ms)
    if end_ms is None or begins_ms is None:
        return image
    is_ahead = origin_ms > at_ms
    if at_ms < end_ms and not is_ahead:
        return image
    begins_ms = begins_ms if is_ahead else max(begins_ms, origin_ms)
    if not is_ahead and is_over_by(image, end_ms):
        image = unbooked(image)  # by the numbers that counted when everybody had had its turn
    view: dict[str, Value] = {**image, PHASE: begins_ms}
    for name, rate in rates.items():
        tokens = limit_attributes(name).tk
        stored, after = number(image, tokens), rate_at(rate, at_ms)
        if rate.schedule is None:
            view[tokens] = stored if is_ahead else stored + gain(rate, origin_ms, begins_ms)
        elif is_ahead:
            view[tokens] = crossed(rate, after, min(stored, rate.capacity_milli))
        else:
            # Who booked before somebody set this schedule may wait beyond its boundaries.
            view[tokens] = held_at(rate, stored, origin_ms, since_ms, begins_ms, number(image, BOOKED))
        view |= rate_attributes(name, after)
        if (
            rate.schedule is not None
            and (booked := booking_attributes(name)).high in image
            and BOOKED in image
        ):
            view[booked.high] = view[booked.higher] = after.capacity_milli
    if is_ahead:
        view["rf"] = at_ms  # else others would take these numbers for those of its origin
        return view
    if (writes := stored_rate(image, WCU)) is not None:
        tokens = limit_attributes(WCU).tk
        view[tokens] = balance(writes, number(image, tokens), origin_ms, begins_ms)
    view["rf"] = begins_ms
    return view


def unphased(image: Item) -> Item:
    """A bucket without its phase: for whoever goes by the numbers that it has."""
    return {name: value for name, value in image.items() if name != PHASE}
