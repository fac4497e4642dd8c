"""What a take leaves of a bucket that is exactly as it was seen: for stores that replace it at once. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from ..repository_protocol import Item
from .account import Terms
from .law import gain


def spent(terms: Terms, needs: Mapping[str, int], image: Item, now_ms: int) -> dict[str, int] | None:
    """What a write would leave of a bucket that is exactly its image; ``None`` if it does not fit."""
    numbers: Mapping[str, int] = image  # type: ignore[assignment]  # as far as the terms name them
    origin_ms, changed = numbers["rf"], {}
    for name, need in needs.items():
        if name not in terms.slots:
            return None
        capacity, amount, period, tokens, counter, least = terms.slots[name]
        if now_ms <= origin_ms:
            gained = 0
        elif period:
            gained = now_ms * amount // period - origin_ms * amount // period
        else:
            gained = gain(terms.rates[name], origin_ms, now_ms)
        found = min(numbers[tokens] + gained, capacity)
        if found - need < least:
            return None
        changed[tokens] = found - gained - need
        changed[counter] = numbers[counter] + need
    return changed
