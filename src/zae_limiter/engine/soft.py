"""Limits that count and never refuse: what is taken of them has no floor but one. Pure.

A soft limit may be in debt, by at most its capacity: what goes beyond that is counted as consumed and owed
by nobody. So a limit that was exceeded for years and is made to refuse one day does so for two fills at most,
and no number grows without end. Of those who wait for a bucket nothing is spared: that debt is theirs.
"""

from __future__ import annotations

from collections.abc import Mapping

from ..models import NUMBER_MAX
from ..repository_protocol import AtLeast, AtMost, Condition, Value
from .account import Terms
from .law import Rate
from .seats import is_counted


def hard(terms: Terms, amounts: Mapping[str, int]) -> Mapping[str, int]:
    """The amounts of which a bucket must have enough."""
    return {name: amount for name, amount in amounts.items() if name not in terms.soft}


def least(rate: Rate) -> int:
    """The balance that a soft limit is left with at least; seats come back by themselves, all of them."""
    return -NUMBER_MAX if is_counted(rate) else -rate.capacity_milli


def floor(
    tokens: str,
    left_milli: int,
    least_milli: int,
    stored_milli: int,
    add: dict[str, int],
    set_: dict[str, Value],
    when: list[Condition],
) -> int:
    """Let a write leave no more debt than that; returns what it leaves of a limit, as a bucket stores it."""
    if left_milli >= least_milli:
        if tokens in add:
            when.append(AtLeast(tokens, stored_milli - (left_milli - least_milli)))
        return left_milli
    if tokens in add:
        del add[tokens]
        when.append(AtMost(tokens, stored_milli + (least_milli - left_milli) - 1))
    set_[tokens] = least_milli
    return least_milli
