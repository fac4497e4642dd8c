"""Questions to a stored result; whatever was not measured is ``None``. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .cases import BARE_APP, BARE_APP_PEERS, MEMORY_SYNC, OUR_ENVIRONMENT, PYRATE, SERVED, THROTTLED, WEB
from .figures import Measured, figure, measured, ratio

Result = Mapping[str, Any]
TOKEN_BUCKETS = (PYRATE, THROTTLED)


def of_case(result: Result, case: str, contestant: str) -> Measured | None:
    """The figures of a case on DynamoDB."""
    samples = result.get("cases", {}).get(case, {}).get("rounds", {}).get(contestant)
    return measured(samples) if samples else None


def of_embedded(result: Result, group: str, contestant: str) -> Measured | None:
    samples = result.get("embedded", {}).get(group, {}).get(contestant)
    return measured(samples) if samples else None


def of_server(result: Result, group: str, work: str, contestant: str) -> Measured | None:
    samples = result.get("servers", {}).get(group, {}).get(work, {}).get(contestant)
    return measured(samples) if samples else None


def added_us(result: Result, contestant: str, metric: str) -> float | None:
    """What a middleware adds to a percentile of the same application without it."""
    bare = BARE_APP if contestant in OUR_ENVIRONMENT else BARE_APP_PEERS
    limited, without = of_embedded(result, WEB, contestant), of_embedded(result, WEB, bare)
    if limited is None or without is None:
        return None
    return limited.figure(metric).median - without.figure(metric).median


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
    samples = result.get("idle")
    if not samples:
        return None
    most = samples[-1]["entities"]
    late = next(sample for sample in samples if sample["entities"] >= most * 0.75)
    return float(samples[-1]["rss_bytes"] / late["rss_bytes"] - 1)


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
