"""What the clients of a simulation know they have consumed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field


@dataclass
class Books:
    """By payer and limit, in tokens: at least ``low``, at most ``high``."""

    low: Counter[tuple[str, str]] = field(default_factory=Counter)
    high: Counter[tuple[str, str]] = field(default_factory=Counter)

    def enter(self, payers: Iterable[str], low: Mapping[str, int], high: Mapping[str, int]) -> None:
        for payer in payers:
            for name, amount in low.items():
                self.low[payer, name] += amount
            for name, amount in high.items():
                self.high[payer, name] += amount

    def check(self, payer: str, name: str, stored_milli: int) -> None:
        low, high = self.low[payer, name], self.high[payer, name]
        assert low * 1000 <= stored_milli <= high * 1000, (
            f"{payer} has used {stored_milli} of {name} by the store's books, "
            f"{low} to {high} tokens by the clients'"
        )
