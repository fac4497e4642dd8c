"""The order of things: rounds that alternate on one warm engine, then the bills.

First everything that is timed, one contestant at a time. Then everything that is only counted, while a
process in the background fills caches and watches its memory.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any, TypeVar

from . import engine
from .cases import (
    BARE,
    CASES,
    COLD,
    EMBEDDED,
    FEW,
    GROUPS,
    OURS,
    POPULATIONS,
    REFERENCE,
    WARM_UP,
    Case,
    Scale,
)
from .config_study import can_forget_absence
from .machine import described
from .meter import Meter
from .process import Worker, output

AT_ONCE_MAX = 2
COUNTED_ENTITIES_MAX = 20
"""What one acquire costs does not depend on how many entities take turns."""
FORMAT = 1
IMPORTS = ("limits", "pyrate_limiter", "throttled", "aiolimiter")
Say = Callable[[str], None]
T = TypeVar("T")


def run(scale: Scale, mode: str, wanted: Sequence[str], say: Say) -> dict[str, Any]:
    """Everything that was asked for, as it is stored."""
    result: dict[str, Any] = {"format": FORMAT, "mode": mode, **described()}
    chosen = [case for case in CASES if not wanted or case.name in wanted]
    result["cases"] = {}
    result["embedded"] = {
        group: timed_embedded(group, scale, say) for group in GROUPS if not wanted or group in wanted
    }
    others = [part for part in ("config", "cold") if not wanted or part in wanted]
    for population in POPULATIONS:
        cases = [case for case in chosen if case.population == population]
        parts = others if population == FEW else []
        if cases or parts:
            say("warming an engine up")
            with warm_engine(scale) as endpoint:
                result["cases"] |= timed_cases(cases, endpoint, scale, say)
                if "config" in parts:
                    result["config"] = config_study(endpoint, scale, say)
                if "cold" in parts:
                    result["cold"] = cold_starts(endpoint, scale, say)
    with ExitStack() as stack:
        idle = None
        if not wanted or "idle" in wanted:
            idle = stack.enter_context(idle_entities(scale.idle_entities))
        for name, counts in counted_cases([c for c in chosen if c.name in scale.counted], scale, say).items():
            result["cases"][name]["counts"] = counts
        if idle is not None:
            say(f"idle: {scale.idle_entities:,} entities")
            result["idle"] = json.loads(idle.communicate()[0])
    return result


@contextmanager
def warm_engine(scale: Scale) -> Iterator[str]:
    """A fresh engine whose virtual machine has compiled what it will need, so nobody pays for being first."""
    with engine.running() as endpoint:

        def warm(contestant: str) -> None:
            with Worker(contestant, bench="table", case=WARM_UP.name, endpoint=endpoint) as worker:
                worker.ask("prepare")
                worker.ask("round", seconds=scale.engine_seconds)

        at_once(warm, WARM_UP.contestants)
        yield endpoint


def timed_cases(cases: Sequence[Case], endpoint: str, scale: Scale, say: Say) -> dict[str, Any]:
    timed: dict[str, Any] = {}
    for case in cases:
        say(f"{case.name}: {case.title}")
        timed[case.name] = {"rounds": timed_rounds(case, endpoint, scale)}
    return timed


def timed_rounds(case: Case, endpoint: str, scale: Scale) -> dict[str, list[Any]]:
    with ExitStack() as stack:
        workers = [
            stack.enter_context(Worker(name, bench="table", case=case.name, endpoint=endpoint))
            for name in case.contestants
        ]
        at_once(lambda worker: worker.ask("prepare"), workers)
        return alternated(workers, scale.rounds, scale.seconds * case.stretch, scale.warm_up_seconds)


def at_once(function: Callable[[T], Any], arguments: Sequence[T]) -> list[Any]:
    """What nobody measures need not wait for each other."""
    with ThreadPoolExecutor(AT_ONCE_MAX) as threads:
        return list(threads.map(function, arguments))


def alternated(
    workers: Sequence[Worker], rounds: int, seconds: float, warm_up_seconds: float
) -> dict[str, list[Any]]:
    """A B A B …: whatever disturbs the machine for a while disturbs all of them."""
    at_once(lambda worker: worker.ask("arrange"), workers)
    for worker in workers:
        worker.ask("round", seconds=warm_up_seconds)
    samples: dict[str, list[Any]] = {worker.contestant: [] for worker in workers}
    for _ in range(rounds):
        at_once(lambda worker: worker.ask("arrange"), workers)
        for worker in workers:
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
    with engine.running() as endpoint:
        entries = [(case, name) for case in cases for name in case.contestants if name != BARE]
        for (case, name), found in zip(
            entries, at_once(lambda entry: counts(*entry, endpoint, scale), entries), strict=True
        ):
            counted.setdefault(case.name, {})[name] = found
    return counted


def counts(case: Case, contestant: str, endpoint: str, scale: Scale) -> dict[str, Any]:
    meter = Meter(endpoint)
    with (
        meter.running() as address,
        Worker(
            contestant,
            bench="table",
            case=case.name,
            endpoint=address,
            entities_max=COUNTED_ENTITIES_MAX,
        ) as worker,
    ):
        worker.ask("prepare")
        worker.ask("arrange")
        worker.ask("round", seconds=scale.warm_up_seconds)
        worker.ask("arrange")
        meter.reset()
        sample = worker.ask("round", seconds=scale.counting_seconds)
        reading = meter.reading()
    return {"operations": sample["operations"] + sample["unwanted"], **reading}


def cold_starts(endpoint: str, scale: Scale, say: Say) -> dict[str, list[Any]]:
    """Importing and opening, in processes that have done nothing yet."""
    say("cold: import and open")
    samples: dict[str, list[Any]] = {OURS: [], REFERENCE: [], **{name: [] for name in IMPORTS}}
    tables = {}
    for contestant in (OURS, REFERENCE):
        with Worker(contestant, bench="table", case=COLD.name, endpoint=endpoint) as worker:
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


def config_study(endpoint: str, scale: Scale, say: Say) -> dict[str, Any]:
    say("config: reads, cache hits, sparse traffic, negative caching")
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
