"""The order of things: families on fresh engines, rounds that alternate, then the bills.

First everything that is timed, one contestant at a time. Then everything that is only counted, while a
process in the background fills caches and watches its memory.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from . import engine
from .cases import (
    BARE,
    CASES,
    EMBEDDED,
    GROUPS,
    OURS,
    REFERENCE,
    Case,
    Scale,
)
from .config_study import can_forget_absence
from .floors import BareBench
from .machine import described
from .meter import Meter
from .process import Worker, output

ENGINE_WARM_UP_S = 1.5
FORMAT = 1
IMPORTS = ("limits", "pyrate_limiter", "throttled", "aiolimiter")
Say = Callable[[str], None]


def run(scale: Scale, mode: str, wanted: Sequence[str], say: Say) -> dict[str, Any]:
    """Everything that was asked for, as it is stored."""
    result: dict[str, Any] = {"format": FORMAT, "mode": mode, **described()}
    chosen = [case for case in CASES if not wanted or case.name in wanted]
    result["cases"] = timed_cases(chosen, scale, say)
    result["embedded"] = {
        group: timed_embedded(group, scale, say) for group in GROUPS if not wanted or group in wanted
    }
    if not wanted or "cold" in wanted:
        result["cold"] = cold_starts(scale, say)
    with ExitStack() as stack:
        idle = None
        if not wanted or "idle" in wanted:
            idle = stack.enter_context(idle_entities(scale.idle_entities))
        if not wanted or "config" in wanted:
            result["config"] = config_study(scale, say)
        for name, counts in counted_cases(chosen, scale, say).items():
            result["cases"][name]["counts"] = counts
        if idle is not None:
            say(f"idle: {scale.idle_entities:,} entities")
            result["idle"] = json.loads(idle.communicate()[0])
    return result


def timed_cases(cases: Sequence[Case], scale: Scale, say: Say) -> dict[str, Any]:
    timed: dict[str, Any] = {}
    for family in dict.fromkeys(case.family for case in cases):
        with warm_engine() as endpoint:
            for case in cases:
                if case.family == family:
                    say(f"{case.name}: {case.title}")
                    timed[case.name] = {"rounds": timed_rounds(case, endpoint, scale)}
    return timed


@contextmanager
def warm_engine() -> Iterator[str]:
    """A fresh engine whose virtual machine has seen some requests, so that nobody pays for being first."""
    with engine.running() as endpoint:
        bare = BareBench(endpoint)
        bare.prepare()
        bare.round(ENGINE_WARM_UP_S)
        bare.drop_table()
        bare.close()
        yield endpoint


def timed_rounds(case: Case, endpoint: str, scale: Scale) -> dict[str, list[Any]]:
    with ExitStack() as stack:
        workers = [
            stack.enter_context(Worker(name, bench="table", case=case.name, endpoint=endpoint))
            for name in case.contestants
        ]
        for worker in workers:
            worker.ask("prepare")
        return alternated(workers, scale.rounds, scale.seconds, scale.warm_up_seconds)


def alternated(
    workers: Sequence[Worker], rounds: int, seconds: float, warm_up_seconds: float
) -> dict[str, list[Any]]:
    """A B A B …: whatever disturbs the machine for a while disturbs all of them."""
    for worker in workers:
        worker.ask("arrange")
        worker.ask("round", seconds=warm_up_seconds)
    samples: dict[str, list[Any]] = {worker.contestant: [] for worker in workers}
    for _ in range(rounds):
        for worker in workers:
            worker.ask("arrange")
            samples[worker.contestant].append(worker.ask("round", seconds=seconds))
    return samples


def timed_embedded(group: str, scale: Scale, say: Say) -> dict[str, list[Any]]:
    say(f"{group}: {GROUPS[group]}")
    with ExitStack() as stack:
        workers = [
            stack.enter_context(Worker(peer.name, bench="embedded", group=group))
            for peer in EMBEDDED
            if peer.group == group
        ]
        for worker in workers:
            worker.ask("prepare")
        return alternated(workers, scale.rounds, scale.embedded_seconds, scale.embedded_seconds / 3)


def counted_cases(cases: Sequence[Case], scale: Scale, say: Say) -> dict[str, Any]:
    """Requests and capacity units of each case, for everybody but the bare request."""
    if not cases:
        return {}
    say("counting requests and capacity units")
    counted: dict[str, Any] = {}
    with warm_engine() as endpoint:
        for case in cases:
            counted[case.name] = {
                name: counts(case, name, endpoint, scale) for name in case.contestants if name != BARE
            }
    return counted


def counts(case: Case, contestant: str, endpoint: str, scale: Scale) -> dict[str, Any]:
    meter = Meter(endpoint)
    with (
        meter.running() as address,
        Worker(contestant, bench="table", case=case.name, endpoint=address) as worker,
    ):
        worker.ask("prepare")
        worker.ask("arrange")
        worker.ask("round", seconds=scale.warm_up_seconds)
        worker.ask("arrange")
        meter.reset()
        sample = worker.ask("round", seconds=scale.counting_seconds)
        reading = meter.reading()
    return {"operations": sample["operations"] + sample["unwanted"], **reading}


def cold_starts(scale: Scale, say: Say) -> dict[str, list[Any]]:
    """Importing and opening, in processes that have done nothing yet."""
    say("cold: import and open")
    samples: dict[str, list[Any]] = {OURS: [], REFERENCE: [], **{name: [] for name in IMPORTS}}
    with warm_engine() as endpoint:
        tables = {}
        for contestant in (OURS, REFERENCE):
            with Worker(contestant, bench="table", case="hot-1", endpoint=endpoint) as worker:
                worker.ask("prepare")
                tables[contestant] = worker.ask("table")
        # The first process of each finds files that are not in the machine's cache.
        for attempt in range(scale.openings + 1):
            for name, kept in samples.items():
                if name in tables:
                    sample = output(name, "benchmarks.cold", "open", name, endpoint, tables[name])
                else:
                    sample = output(name, "benchmarks.cold", "import", name)
                if attempt:
                    kept.append(sample)
    return samples


@contextmanager
def idle_entities(entities: int) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.idle", str(entities)],
        cwd=engine.ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def config_study(scale: Scale, say: Say) -> dict[str, Any]:
    say("config: reads, cache hits, sparse traffic, negative caching")
    with warm_engine() as endpoint:
        return {contestant: studied(contestant, endpoint, scale) for contestant in (OURS, REFERENCE)}


def studied(contestant: str, endpoint: str, scale: Scale) -> dict[str, Any]:
    kinds = [(order, cold) for order in ("read", "acquire") for cold in (True, False)]
    found: dict[str, Any] = {}
    with Worker(contestant, bench="config", endpoint=endpoint, users=scale.users) as worker:
        worker.ask("prepare", fill=True)
        for order, cold in kinds:
            found[f"{order}-{warmth(cold)}"] = worker.ask(order, times=scale.readings, cold=cold)
    meter = Meter(endpoint)
    with meter.running() as address:

        def billed(order: str, **arguments: Any) -> dict[str, Any]:
            meter.reset()
            answer: dict[str, Any] = worker.ask(order, **arguments)
            return answer | meter.reading()

        with Worker(contestant, bench="config", endpoint=address, users=scale.users) as worker:
            worker.ask("prepare", fill=False)
            for order, cold in kinds:
                # One more than the operations: the first one makes the cache warm.
                reading = billed(order, times=scale.readings, cold=cold)
                found[f"{order}-{warmth(cold)}"]["bill"] = reading
            worker.ask("forget")
            found["sparse"] = billed("sparse")
            worker.ask("forget")
            for premium in (False, True):
                for time in ("first", "later"):
                    found[f"{'premium' if premium else 'regular'}-{time}"] = billed("window", premium=premium)
            if can_forget_absence(contestant):
                found["regular-later-without"] = billed("window", premium=False, forget_absence=True)
        with Worker(contestant, bench="config", endpoint=address, users=scale.users) as worker:
            worker.ask("prepare", fill=False, cache_ttl_seconds=0)
            found["no-cache"] = billed("window", premium=False)
    return found


def warmth(cold: bool) -> str:
    return "cold" if cold else "warm"
