"""Who judges those that wait tells what must not be: each kind of it is shown to the judge once."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from benchmarks import jobs
from benchmarks.jobs import Done
from benchmarks.waiters import PLAIN, Orders, Start
from benchmarks.waiting import ALWAYS, LATE_MS, SHARE, TAKES, Seen, figures, judged, shown, targets

OVERTAKEN, BEFORE_OWN, BEFORE_ANY, EARLY, EXCESS, LOST, FAILED = (target.what for target in ALWAYS)
BEGAN_MS, EVERY_MS, COUNT = 1_000_000, 10, 200
DUE = [
    Start(serial, -1000 * serial, at_ms, at_ms, at_ms, process=serial % 2)
    for serial, at_ms in enumerate(range(BEGAN_MS + EVERY_MS, BEGAN_MS + (COUNT + 1) * EVERY_MS, EVERY_MS))
]
"""One at a hundredth of a second each, in two processes by turns."""


def seen(starts: list[Start] = DUE, **other: Any) -> Seen:
    orders = Orders("memory://", PLAIN, waiters=2, capacity=100, refill=100, seed=0)
    counts, ended_ms = Counter(takes=COUNT, booked=COUNT, writes=COUNT), BEGAN_MS + (COUNT + 1) * EVERY_MS
    good = Seen(orders, 4, BEGAN_MS, 0, ended_ms, starts, 0, counts, Counter(), [], 0, 0)
    return good._replace(**other)


def missed(of: Seen) -> set[str]:
    """What the judge finds wrong."""
    found = figures(of)
    return {target.what for target in targets(PLAIN) if not target.is_met(found[target.what])}


def late(ms: int) -> list[Start]:
    """The same, but one of them begins so much late."""
    return [start._replace(start_ms=start.start_ms + ms * (start.serial == 50)) for start in DUE]


def test_good_turns_pass(capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing is found where there is nothing, and the run ends well."""
    assert missed(seen()) == set()
    assert shown(seen())
    assert "MISSED" not in capsys.readouterr().out


def test_who_has_somebody_elses_turn_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    """An earlier turn for who booked later is a miss, and both are printed."""
    sooner = DUE[50]._replace(free_ms=DUE[40].free_ms, turn_ms=DUE[40].turn_ms)
    bad = seen([*DUE[:50], sooner, *DUE[51:]])
    assert missed(bad) == {OVERTAKEN}
    assert not shown(bad)
    assert f"booked after {DUE[49]}: {sooner}" in capsys.readouterr().out


def test_who_begins_first_in_a_process_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    """If a turn is told right and taken too late, the next of the same process has begun before it."""
    bad = seen(late(2 * EVERY_MS + 1))
    assert missed(bad) == {BEFORE_OWN}
    assert bad.inverted_ms == [EVERY_MS + 1, 1]
    assert not shown(bad)
    assert f"began before {bad.starts[50]}: {DUE[52]}" in capsys.readouterr().out


def test_who_begins_first_in_another_process_is_told() -> None:
    """Up to what a busy machine explains it is counted, beyond that it is a miss."""
    apart = [start._replace(process=start.serial) for start in late(LATE_MS + EVERY_MS)]
    assert missed(seen(apart)) == set()
    assert len(seen(apart).inverted_ms) == LATE_MS // EVERY_MS
    apart[50] = apart[50]._replace(start_ms=apart[50].start_ms + 1)
    assert max(seen(apart).inverted_ms) == LATE_MS + 1
    assert missed(seen(apart)) == {BEFORE_ANY}
    assert missed(seen(apart, overslept_ms=LATE_MS)) == {BEFORE_ANY}
    assert missed(seen(apart, overslept_ms=LATE_MS + 1)) == set()


def test_ties_are_no_inversions() -> None:
    """Of two that have the same turn either may begin first."""
    tied = [*DUE[:50], DUE[50]._replace(start_ms=DUE[50].start_ms + 1), DUE[50]._replace(left=-50_001)]
    assert seen(tied).inverted(within=True) == []
    assert seen([*tied, DUE[52]]).inverted_ms == []


def test_who_begins_before_its_turn_is_told() -> None:
    """A millisecond is enough, also if nobody is overtaken; a token had not accrued then."""
    eager = [*DUE[:50], DUE[50]._replace(start_ms=DUE[50].start_ms - 1), *DUE[51:]]
    assert missed(seen(eager)) == {EARLY, EXCESS}


def test_more_than_had_accrued_is_told() -> None:
    """Everybody has its turn as it was told, but that was too much."""
    doubled = sorted([*DUE, *(start._replace(left=start.left - 1) for start in DUE)], key=lambda s: s.serial)
    assert missed(seen(doubled)) == {EXCESS}
    assert figures(seen(doubled))[EXCESS] == COUNT


@pytest.mark.parametrize(
    ("what", "other"),
    [
        (SHARE, {"ended_ms": BEGAN_MS + COUNT * EVERY_MS * 11 // 10}),
        (TAKES, {"counts": Counter(takes=COUNT * 5 // 4, booked=COUNT)}),
        (LOST, {"lost": 1}),
        (FAILED, {"failures": ["ValueError()"]}),
    ],
)
def test_other_misses_are_told(what: str, other: dict[str, Any]) -> None:
    """Each figure has a bound of its own."""
    assert missed(seen(**other)) == {what}


@pytest.mark.parametrize(
    ("done", "fine"),
    [
        (Done(4.1, jobs.JOBS, jobs.JOBS, 100), True),
        (Done(4.3, jobs.JOBS, jobs.JOBS, 100), False),
        (Done(4.1, jobs.JOBS - 1, jobs.JOBS, 100), False),
        (Done(4.1, jobs.JOBS, jobs.JOBS, 111), False),
    ],
)
def test_jobs_are_judged(done: Done, *, fine: bool) -> None:
    """Late, short of a job, or with more writes than jobs and a tenth is a miss."""
    assert judged(jobs.figures(done), jobs.TARGETS) is fine
