"""Which changes of the configuration somebody has seen: the counts of four levels in one number. Pure.

Each level counts its own changes. A bucket keeps the counts that its numbers come from as ``cv``, a process
those that it remembers. Who has missed a change that a bucket has seen reads again. Levels are compared one
by one, so that no number of changes of one hides a change of another.

A count has six digits, and the broadest level stands last: the number is short for who has nothing of its
own. Behind 999,999 it begins anew, so of two counts the newer one is that to which fewer steps lead. A bucket
that slept through half a million changes of a level looks newer than it is: who finds it reads, and puts it
right.
"""

from __future__ import annotations

from collections.abc import Sequence

COUNTS, STEPS = 4, 10**6
STAMP: int = STEPS**COUNTS
"""What sets a stamp apart from what anybody can have read, so that the next use is under other numbers."""

LOST = "cv_lost"
"""On a bucket that had seen changes which the store has lost since: which ones it had seen."""


def version_of(counts: Sequence[int]) -> int:
    """One number for how often each level was changed, the most specific first."""
    assert len(counts) == COUNTS
    version = 0
    for count in counts:
        version = version * STEPS + count % STEPS
    return version


def stamp_of(version: int) -> int:
    """The version of a bucket that has seen these changes, and whose numbers have not."""
    return STAMP + version % STAMP


def has_missed(version: int, other: int) -> bool:
    """Whether the one has not seen a change, at any level, that the other has."""
    return any(_is_newer(b, a) for a, b in zip(counts_of(version), counts_of(other), strict=True))


def is_undone(version: int, seen: int, lost: int) -> bool:
    """Whether somebody goes by changes that a bucket had seen and was turned back from, and by no others."""
    return has_missed(seen, version) and not has_missed(lost, version)


def together(version: int, other: int) -> int:
    """All changes that the one has seen, or the other."""
    pairs = zip(counts_of(version), counts_of(other), strict=True)
    return version_of([b if _is_newer(b, a) else a for a, b in pairs])


def _is_newer(count: int, other: int) -> bool:
    return 0 < (count - other) % STEPS < STEPS // 2


def counts_of(version: int) -> list[int]:
    """How often each level had been changed, the most specific first."""
    return [version // STEPS**place % STEPS for place in reversed(range(COUNTS))]
