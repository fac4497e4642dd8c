"""How one limit of a bucket stands: its rate, and what was stored when."""

from __future__ import annotations

from typing import NamedTuple

from .law import Rate, balance, floored, gain, retry_after_ms


class Level(NamedTuple):
    """One limit of a bucket as its users see it: a rate, and what was stored when."""

    rate: Rate
    tokens_milli: int
    origin_ms: int
    cut_milli: int | None = None
    """What a cut that is still to be carried out takes away."""
    back_milli: int = 0
    """What came back for those who book later, and is there for all when everybody has had its turn."""
    over_ms: int = 0
    """When everybody has had its turn."""

    def balance(self, now_ms: int) -> int:
        tokens = self.tokens_milli
        if self.back_milli and now_ms >= self.over_ms:  # as much of it as there is room for then
            room = self.rate.capacity_milli - gain(self.rate, self.origin_ms, self.over_ms)
            tokens = max(tokens, min(tokens + self.back_milli, room))
        held = balance(self.rate, tokens, self.origin_ms, now_ms)
        if self.cut_milli is None:
            return held
        return floored(held, held + self.cut_milli, self.rate.capacity_milli)

    def retry_after_ms(self, need_milli: int, now_ms: int) -> float:
        rate, tokens, origin_ms = self.rate, self.tokens_milli, self.origin_ms
        wait = retry_after_ms(rate, tokens, origin_ms, need_milli, now_ms)
        if not self.back_milli:
            return wait
        whole = retry_after_ms(rate, tokens + self.back_milli, origin_ms, need_milli, now_ms)
        return min(wait, max(whole, self.over_ms - now_ms))
