"""How a bucket that is written too often is spread over several items: pure.

A limit of a bucket is spread over a power of two of shards, 0 to k - 1, at most as many as the bucket
has. The shares of its capacity and refill add up to exactly the whole, the remainder going to the
first shards. Doubling splits each shard ``i`` into ``i`` and ``i + k``: the shares of the two are the
halves of the old one, rounded up and down, so a split needs to know nothing but the shard itself and
moves tokens without making any.

A limit is not split further when its shares would become smaller than a request it has admitted;
it then stays on the first shards while others spread on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..models.schedules import mapped, schedule_of
from .law import Rate
from .level import Level, reset_ms
from .phases import PHASES_MAX

SHARDS_MAX = 32


def share(total: int, shard_id: int, count: int) -> int:
    """The part of a whole that belongs to one of ``count`` shards."""
    return total // count + (shard_id < total % count)


def halves(amount: int) -> tuple[int, int]:
    """What a shard keeps of its share, and what the new one gets."""
    return amount - amount // 2, amount // 2


def share_rate(rate: Rate, shard_id: int, count: int) -> Rate:
    """One shard's part of a limit."""
    part = rate._replace(
        capacity_milli=share(rate.capacity_milli, shard_id, count),
        refill_amount_milli=share(rate.refill_amount_milli, shard_id, count),
    )
    if rate.schedule is None:
        return part
    return part._replace(schedule=mapped(rate.schedule, lambda whole: share(whole, shard_id, count)))


def splits_further(share_milli: int, largest_milli: int) -> bool:
    """Whether half a share is still at least one token, and at least what was once asked for at once."""
    return share_milli // 2 >= max(1000, largest_milli)


def parent_of(shard_id: int) -> int:
    """The shard that a shard was split from."""
    assert shard_id > 0, "shard 0 is there from the beginning"
    return shard_id - birth_count(shard_id)


def birth_count(shard_id: int) -> int:
    """How many shards there were when this one was split off."""
    return 1 << (shard_id.bit_length() - 1)


class Spread:
    """One limit over its shards: several balances that count as one."""

    def __init__(self, parts: Sequence[Level]) -> None:
        self._parts = parts

    def balance(self, now_ms: int) -> int:
        return sum(part.balance(now_ms) for part in self._parts)

    def booked_until_ms(self, now_ms: int) -> int | None:
        """By when everybody has had its turn who waits; ``None`` if that is not what keeps it below zero."""
        owing = [part.over_ms for part in self._parts if part.over_ms > now_ms and part.balance(now_ms) < 0]
        return max(owing, default=None) if self.balance(now_ms) < 0 else None

    def reset_ms(self, now_ms: int) -> float:
        """How long until it begins anew, or is full."""
        return reset_ms((part.rate for part in self._parts), self.full_after_ms(now_ms), now_ms)

    def full_after_ms(self, now_ms: int) -> float:
        """How long until all shards are full, of which each stays so by itself."""
        return max((part.full_after_ms(now_ms) for part in self._parts), default=0)

    def retry_after_ms(self, need_milli: int, now_ms: int) -> float:
        """The smallest wait after which all shards together cover the need; ``inf`` if they never can."""
        if len(self._parts) == 1:
            return self._parts[0].retry_after_ms(need_milli, now_ms)
        if self.balance(now_ms) >= need_milli:
            return 0
        if schedules := [part.rate.schedule for part in self._parts if part.rate.schedule is not None]:
            return self._through_phases(schedules[0], need_milli, now_ms)
        if need_milli > sum(part.rate.capacity_milli for part in self._parts):
            return float("inf")
        low, high = 0, 1
        while self.balance(now_ms + high) < need_milli:
            low, high = high, high * 2
        return self._first(low, high, need_milli, now_ms)

    def _through_phases(self, schedule: str, need_milli: int, now_ms: int) -> float:
        """The same where numbers change with the time of day: only within a phase is later more."""
        rates = [part.rate for part in self._parts]
        if need_milli > sum(
            rate.capacity_milli if rate.schedule is None else schedule_of(rate.schedule).capacity_max
            for rate in rates
        ):
            return float("inf")
        at_ms = now_ms
        for _ in range(PHASES_MAX):
            end_ms = schedule_of(schedule).phase(at_ms).end_ms
            if self.balance(at_ms) >= need_milli:
                return at_ms - now_ms
            if self.balance(end_ms - 1) >= need_milli:
                return self._first(at_ms - now_ms, end_ms - 1 - now_ms, need_milli, now_ms)
            at_ms = end_ms
        return at_ms - now_ms

    def _first(self, low: int, high: int, need_milli: int, now_ms: int) -> int:
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if self.balance(now_ms + middle) >= need_milli else (middle, high)
        return high


def gathered(needs: Mapping[str, int], balances: Sequence[Mapping[str, int]]) -> list[dict[str, int]] | None:
    """How much of each need comes from which shard, the fullest first; ``None`` if all are too little."""
    parts: list[dict[str, int]] = [{} for _ in balances]
    for name, need in needs.items():
        owed = need
        for place in sorted(range(len(balances)), key=lambda i: -balances[i].get(name, 0)):
            taken = min(owed, max(0, balances[place].get(name, 0)))
            if taken:
                parts[place][name] = taken
                owed -= taken
        if owed:
            return None
    return parts
