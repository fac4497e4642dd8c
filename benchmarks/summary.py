"""Questions to a stored result; whatever was not measured is ``None``. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .cases import (
    BARE,
    BARE_APP,
    BARE_APP_PEERS,
    MEMORY_SYNC,
    OUR_ENVIRONMENT,
    OURS,
    PYRATE,
    SERVED,
    THROTTLED,
    TLS,
    WEB,
)
from .figures import Figure, Measured, Sample, combined, figure, measured, ratio

Result = Mapping[str, Any]
Rounds = Sequence[Sample]
TOKEN_BUCKETS = (PYRATE, THROTTLED)
REMEMBERED = 100_000
"""How many a limiter remembers of everything, unless it is told otherwise."""


def case_rounds(result: Result, case: str, contestant: str) -> Rounds:
    """The rounds of a case on DynamoDB; none if it was not measured."""
    found: Rounds = result.get("cases", {}).get(case, {}).get("rounds", {}).get(contestant, ())
    return found


def embedded_rounds(result: Result, group: str, contestant: str) -> Rounds:
    found: Rounds = result.get("embedded", {}).get(group, {}).get(contestant, ())
    return found


def server_rounds(result: Result, group: str, work: str, contestant: str) -> Rounds:
    found: Rounds = result.get("servers", {}).get(group, {}).get(work, {}).get(contestant, ())
    return found


def of_case(result: Result, case: str, contestant: str) -> Measured | None:
    samples = case_rounds(result, case, contestant)
    return measured(samples) if samples else None


def of_embedded(result: Result, group: str, contestant: str) -> Measured | None:
    samples = embedded_rounds(result, group, contestant)
    return measured(samples) if samples else None


def of_server(result: Result, group: str, work: str, contestant: str) -> Measured | None:
    samples = server_rounds(result, group, work, contestant)
    return measured(samples) if samples else None


def bare_app_of(contestant: str) -> str:
    """The application without a middleware in the environment of a contestant."""
    return BARE_APP if contestant in OUR_ENVIRONMENT else BARE_APP_PEERS


def added(result: Result, contestant: str, metric: str) -> Figure | None:
    """What a middleware adds to a percentile of the same application without it."""
    parts = [embedded_rounds(result, WEB, name) for name in (contestant, bare_app_of(contestant))]
    return combined(parts, metric, lambda limited, bare: limited - bare)


def added_us(result: Result, contestant: str, metric: str) -> float | None:
    figures = added(result, contestant, metric)
    return figures and figures.median


def added_against(result: Result, peer: str, metric: str) -> Figure | None:
    """What our middleware adds, as a part of what another adds."""
    names = (OURS, bare_app_of(OURS), peer, bare_app_of(peer))
    parts = [embedded_rounds(result, WEB, name) for name in names]
    return combined(parts, metric, lambda ours, bare, theirs, without: ratio(ours - bare, theirs - without))


def lone_rounds(result: Result, step: str) -> list[float]:
    """Microseconds of CPU: the least of each round."""
    found: list[float] = result.get("lone", {}).get(step, [])
    return found


def lone_against_bare(result: Result, step: str) -> Figure | None:
    """How many bare requests over the same kind of connection an acquire takes."""
    ours, bare = lone_rounds(result, step), lone_rounds(result, BARE + (TLS if step.endswith(TLS) else ""))
    if not ours or not bare:
        return None
    each = [one / other for one, other in zip(ours, bare, strict=True)]
    return Figure(figure(ours).median / figure(bare).median, min(each), max(each))


def starting_least(result: Result, program: str) -> Figure | None:
    """The least CPU of a whole process, for whatever else a machine does only adds to it."""
    spent = result.get("starting", {}).get(program)
    return Figure(min(spent), min(spent), max(spent)) if spent else None


def cold_bill(result: Result, contestant: str, what: str) -> float | None:
    """``calls``, each of which waits for the one before, or units of a process up to its first lease."""
    bill = result.get("cold_bills", {}).get(contestant)
    return bill and float(bill[what])


def per_acquire(result: Result, case: str, contestant: str, what: str) -> float | None:
    """Calls, ``rcu`` or ``wcu`` for each acquire of a case."""
    counts = result.get("cases", {}).get(case, {}).get("counts", {}).get(contestant)
    return ratio(counts[what], counts["operations"]) if counts else None


def unwanted(result: Result) -> list[tuple[str, str, int, str]]:
    """Steps that ended otherwise than their case wants: case, contestant, how many, and an example."""
    found = []
    timed = {name: case["rounds"] for name, case in result.get("cases", {}).items()}
    for group in SERVED:
        works = result.get("servers", {}).get(group, {})
        timed |= {f"{group}, {work}": rounds for work, rounds in works.items()}
    for name, crew in result.get("crowd", {}).items():
        timed |= {f"crowd of {name}": {name: [sample for samples in crew for sample in samples]}}
    for name, rounds in {**timed, **result.get("embedded", {})}.items():
        for contestant, samples in rounds.items():
            count = sum(sample["unwanted"] for sample in samples)
            if count:
                example = next(message for sample in samples for message in sample["messages"])
                found.append((name, contestant, count, example))
    return found


def compared(mine: Measured | None, theirs: Measured | None, metric: str) -> float | None:
    """How many times theirs ours is, median by median."""
    if mine is None or theirs is None:
        return None
    return ratio(mine.figure(metric).median, theirs.figure(metric).median)


def fastest_token_bucket(result: Result, group: str = MEMORY_SYNC) -> tuple[str, Measured] | None:
    found = [(name, of_embedded(result, group, name)) for name in TOKEN_BUCKETS]
    known = [(name, figures) for name, figures in found if figures is not None]
    return max(known, key=lambda each: each[1].throughput.median, default=None)


def late_growth(result: Result) -> float | None:
    """By which part the memory of a process grew while it met the last quarter of the entities.

    A process that keeps something of everybody would grow by a third.
    """
    samples = result.get("idle", {}).get("memory")
    if not samples:
        return None
    most = samples[-1]["entities"]
    late = next(sample for sample in samples if sample["entities"] >= most * 0.75)
    return float(samples[-1]["rss_bytes"] / late["rss_bytes"] - 1)


def remembered_kib(result: Result, where: str) -> float | None:
    """What a process grew by for each entity, as long as it remembered all of them."""
    samples = [it for it in result.get("idle", {}).get(where) or () if it["entities"] <= REMEMBERED]
    if len(samples) < 2:
        return None
    grown, met = (samples[-1][what] - samples[0][what] for what in ("rss_bytes", "entities"))
    return float(grown / met / 1024)


def cold_median(result: Result, name: str, what: str) -> float | None:
    """Milliseconds of a process that has just started; a library without a server is only imported."""
    found = [sample[what] for sample in result.get("cold", {}).get(name, []) if what in sample]
    return figure(found).median if found else None


def config_bill(result: Result, contestant: str, kind: str, what: str) -> float | None:
    """Calls, ``rcu`` or ``wcu`` for each request of one kind of config traffic."""
    found = result.get("config", {}).get(contestant, {}).get(kind)
    if found is None:
        return None
    if "bill" in found:
        # The worker does one more than it times, to have something in its cache.
        return ratio(found["bill"][what], found["bill"]["operations"] + 1)
    return ratio(found[what], found["asked"])
