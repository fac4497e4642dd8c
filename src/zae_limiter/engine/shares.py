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

from .law import Rate
from .level import Level

SHARDS_MAX = 32


def share(total: int, shard_id: int, count: int) -> int:
    """The part of a whole that belongs to one of ``count`` shards."""
    return total // count + (shard_id < total % count)


def halves(amount: int) -> tuple[int, int]:
    """What a shard keeps of its share, and what the new one gets."""
    return amount - amount // 2, amount // 2


def share_rate(rate: Rate, shard_id: int, count: int) -> Rate:
    """One shard's part of a limit."""
    return rate._replace(
        capacity_milli=share(rate.capacity_milli, shard_id, count),
        refill_amount_milli=share(rate.refill_amount_milli, shard_id, count),
    )


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

    @property
    def capacity_milli(self) -> int:
        return sum(part.rate.capacity_milli for part in self._parts)

    def balance(self, now_ms: int) -> int:
        return sum(part.balance(now_ms) for part in self._parts)

    def retry_after_ms(self, need_milli: int, now_ms: int) -> float:
        """The smallest wait after which all shards together cover the need; ``inf`` if they never can."""
        if len(self._parts) == 1:
            return self._parts[0].retry_after_ms(need_milli, now_ms)
        if self.balance(now_ms) >= need_milli:
            return 0
        if need_milli > self.capacity_milli:
            return float("inf")
        low, high = 0, 1
        while self.balance(now_ms + high) < need_milli:
            low, high = high, high * 2
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
