"""How much calls took, in few numbers: a histogram whose bins grow by an eighth, and what covers most of it.

Bins are numbered, and a sketch is how many calls fell into each. Sketches are added bin by bin, so whoever
counts where does not matter, and nobody need see another's numbers. The bins are part of what is stored: they
must never change. This module is arithmetic and knows no store.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from fractions import Fraction
from typing import TypeAlias

from ..models.checks import TOKENS_MAX

Counts: TypeAlias = Mapping[int, int]
"""How many calls fell into each bin, by its number."""

CALLS_MAX = 10**9
"""What is more than that in a bin was not counted by us."""

DEVIATIONS = 2
"""How many standard deviations of luck a quantile is raised by."""


def _ends() -> tuple[int, ...]:
    ends = [0]
    while ends[-1] < TOKENS_MAX:
        ends.append(min(max(ends[-1] + 1, ends[-1] * 9 // 8), TOKENS_MAX))
    return tuple(ends)


ENDS = _ends()
"""The largest amount in each bin; the first is for nothing at all."""


def bin_of(amount: int) -> int:
    """The bin that an amount falls into: the first whose end is not smaller."""
    return bisect_left(ENDS, min(amount, TOKENS_MAX))


def covering(counts: Counts, quantile: Fraction) -> int | None:
    """The least end of a bin that surely covers a share of all calls; ``None`` if too few were seen.

    By luck the calls that were seen may all have been small. So more of them must lie within than the
    share, by two standard deviations; as long as not even all would be enough nothing is known: for 95 %
    that is fewer than 76 calls.
    """
    total = sum(counts.values())
    variance = quantile * (1 - quantile) * total
    seen = 0
    for at in sorted(counts):
        seen += counts[at]
        beyond = seen - quantile * total
        if beyond > 0 and beyond**2 >= DEVIATIONS**2 * variance:
            return ENDS[at]
    return None


def merged(sketches: Iterable[Counts], enough: int) -> dict[int, int]:
    """Sketches added up, newest first, until there are enough calls in them."""
    together: dict[int, int] = {}
    for sketch in sketches:
        for at, count in sketch.items():
            together[at] = together.get(at, 0) + count
        if sum(together.values()) >= enough:
            break
    return together
