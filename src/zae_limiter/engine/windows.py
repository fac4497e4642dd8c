"""Session windows: a limit that is full when its window is over, and the next one begins with a use. Pure.

A bucket keeps for each such limit when its window began. From then on the law counts a step for each length
of the window, so that debt is paid though nobody uses it. The write that first takes from a limit whose
window is over begins another one, by a rebase: that moves the origin, so whatever was shaped for the window
before is refused. While somebody waits for the bucket no window begins: slots were given by the one there is.
"""

from __future__ import annotations

from dataclasses import replace

from ..models.accruals import SESSION, window, window_start
from ..repository_protocol import Item
from ..schema import BOOKED, kind_attributes, number, stored_rate
from .account import Account, Terms
from .bucket_view import level
from .law import Rate
from .posting import Posting
from .soft import hard


def begins(terms: Terms, posting: Posting, image: Item, now_ms: int) -> bool:
    """Whether a need is the first of a window, of a bucket that has the terms; who waits begins none."""
    asked = terms.windows & posting.need.keys()
    if BOOKED in image or not any(is_over(image, name, now_ms) for name in asked):
        return False
    return not (posting.booking or posting.turns) or all(
        level(terms, name, image, now_ms).balance(now_ms) >= need
        for name, need in hard(terms, posting.need).items()
    )


def is_over(image: Item, name: str, now_ms: int) -> bool:
    """Whether the window of a limit is over, or none has begun."""
    rate, began_ms = stored_rate(image, name), number(image, kind_attributes(name).ws)
    return began_ms <= 0 or rate is None or now_ms - began_ms >= rate.refill_period_ms


def begun(rate: Rate, now_ms: int) -> Rate:
    """A rate whose window begins now, if it is one of a session."""
    return rate._replace(accrual=window(rate.refill_period_ms, now_ms)) if rate.accrual == SESSION else rate


def carried_on(rate: Rate, image: Item, name: str) -> Rate:
    """A rate with the window that a bucket is in, if it is one of a session."""
    before = stored_rate(image, name)
    began_ms = None if before is None or before.accrual is None else window_start(before.accrual)
    return begun(rate, began_ms or 0)


def with_windows(account: Account, image: Item) -> Account:
    """An account under the windows that its bucket is in."""
    terms = account.terms
    rates = {name: carried_on(rate, image, name) for name, rate in terms.rates.items()}
    return account._replace(terms=replace(terms, rates=rates))
