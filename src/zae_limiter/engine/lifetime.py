"""How long a bucket lives: until it has been full for a while, so that nothing is lost with it. Pure."""

from __future__ import annotations

import math

from ..repository_protocol import NOTHING, Condition, Exists, Item, Key, Update, Value
from ..schema import limit_attributes, number, pinned
from .account import Terms
from .bucket_view import has_terms, level
from .law import fill_ms


def lasts(terms: Terms, image: Item, now_ms: int) -> bool:
    """Whether a glance shows that a bucket is full before it disappears: it has no debts, and time enough."""
    if "ttl" not in image:
        return True
    if number(image, "ttl") * 1000 < now_ms + terms.lasting_ms or not has_terms(image, terms):
        return False
    return all(number(image, limit_attributes(name).tk) >= 0 for name in terms.rates)


def prolong(terms: Terms, key: Key, image: Item, now_ms: int) -> Update | None:
    """The write that keeps a bucket alive whose debts outgrew its ``ttl``, if there is such a need.

    Two debits may each have been within the ``ttl`` they saw and be beyond it together.
    """
    set_: dict[str, Value] = {}
    levels = [level(terms, name, image, now_ms) for name in terms.rates]
    full_in_ms = max(fill_ms(at.rate, at.rate.capacity_milli - at.balance(now_ms)) for at in levels)
    when = keep_alive(terms, image, set_, now_ms, full_in_ms)
    return Update(key, NOTHING, set_, (Exists(), *when)) if set_ else None


def keep_alive(
    terms: Terms, image: Item, set_: dict[str, Value], now_ms: int, full_in_ms: int
) -> tuple[Condition, ...]:
    """Move ``ttl`` ahead when a write would leave a bucket that could disappear before it is full.

    It is pinned when it moves, lest a client that knows of less debt should move it back. It moves
    before it is too short for an acquire to take at once, which would have to write until it moves.
    """
    present = number(image, "ttl") or None
    if not terms.ttl_fills:
        if present is not None:
            set_["ttl"] = None
        return ()
    if present is not None and present * 1000 >= now_ms + max(full_in_ms + terms.fill_ms, terms.lasting_ms):
        return ()
    if present is None and has_terms(image, terms):
        return ()
    set_["ttl"] = ttl_seconds(terms, now_ms, full_in_ms)
    return pinned(image, "ttl")


def ttl_seconds(terms: Terms, now_ms: int, full_in_ms: int) -> int:
    """When a bucket may disappear that nobody uses, and that is full by then for a while."""
    idle_ms = terms.ttl_fills * terms.fill_ms
    return math.ceil((now_ms + max(idle_ms, full_in_ms + 3 * terms.fill_ms)) / 1000)
