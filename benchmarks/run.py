"""The order of things: rounds that alternate on one warm engine, then the bills.

First everything that is timed, one contestant at a time. Then everything that is only counted, while a
process in the background fills caches and watches its memory.

All tables are made and written to before there is any load: with each write the engine looks for the
first record of the table's stream, and passes all records that were there before it. A table that comes
after thirty thousand writes to others needs ten times the engine's time for each of its own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any, TypeVar

from . import crowd, engine, starting
from .cases import (
    BARE,
    BARE_COMMANDS,
    CASES,
    CEILING,
    COLD,
    COLD_PART,
    CONFIG,
    CROWD,
    DYNAMODB,
    EMBEDDED,
    GROUPS,
    IDLE,
    LONE_PART,
    ON_SERVERS,
    OTHER_PARTS,
    OURS,
    PYRATE_POSTGRES,
    REFERENCE,
    SERVED,
    STARTING,
    WARM_UP,
    WORKLOADS,
    Case,
    Scale,
)
from .config_study import can_forget_absence
from .machine import busy_cores, described
from .meter import Meter
from .process import Worker, output
from .server import server
from .tables import table_name

AT_ONCE_MAX = 2
FORMAT = 2
IMPORTS = ("limits", "pyrate_limiter", "throttled", "aiolimiter")
Say = Callable[[str], None]
T = TypeVar("T")


def run(scale: Scale, mode: str, wanted: Sequence[str], say: Say) -> dict[str, Any]:
    """Everything that was asked for, as it is stored."""
    asked = AskedFor(scale, wanted)
    timer = Timer()
    sitting = {"mode": mode, **described(), "parts": timer.seconds, "before": timer.before}
    result: dict[str, Any] = {"format": FORMAT, "sittings": [sitting], "cases": {}, "embedded": {}}
    for group in GROUPS:
        if asked.has(group):
            with timer(group):
                result["embedded"][group] = timed_embedded(group, scale, say)
    for group in SERVED:
        if asked.has(group):
            with timer(group):
                result.setdefault("servers", {})[group] = timed_served(group, scale, say)
    alone: dict[str, Callable[[], Any]] = {
        STARTING: lambda: starting.measured(scale.startings),
        CROWD: lambda: crowd.measured(crowd.CONTESTANTS, crowd.PROCESSES, *scale.crowd),
        LONE_PART: lambda: output(OURS, "benchmarks.lone", str(scale.lone_windows)),
    }
    for part, measure in alone.items():
        if asked.has(part):
            say(f"{part}: {OTHER_PARTS[part]}")
            with timer(part):
                result[part] = measure()
    if asked.cases or asked.has(CONFIG) or asked.has(COLD_PART):
        result |= on_warm_engine(asked, scale, say, timer)
    with ExitStack() as stack:
        if asked.has(IDLE):
            timer.watch(IDLE)
        idle = stack.enter_context(idle_entities(scale)) if asked.has(IDLE) else None
        if counted := [case for case in asked.cases if case.name in scale.counted]:
            with timer(DYNAMODB, alone=False):
                for name, counts in counted_cases(counted, scale, say).items():
                    result["cases"][name]["counts"] = counts
        if idle is not None:
            say(f"{IDLE}: {scale.idle_entities:,} entities, and {scale.idle_on_dynamodb:,} on DynamoDB")
            with timer(IDLE, alone=False):
                result[IDLE] = {where: json.loads(it.communicate()[0]) for where, it in idle.items()}
    return result


class AskedFor:
    """Which cases and parts a run is to measure."""

    def __init__(self, scale: Scale, wanted: Sequence[str]) -> None:
        self._scale, self._wanted = scale, wanted
        names = wanted or scale.unasked
        self.cases = [case for case in CASES if case.name in names or DYNAMODB in names]

    def has(self, part: str) -> bool:
        """What takes minutes by itself runs in a hurry only if it is named."""
        if self._wanted:
            return part in self._wanted
        return part not in OTHER_PARTS or part in self._scale.others


class Timer:
    """How long each part takes, and what else the machine did when it began."""

    def __init__(self, busy_cores: Callable[[], float | None] = busy_cores) -> None:
        self.seconds: dict[str, int] = {}
        self.before: dict[str, dict[str, float | None]] = {}
        """The most of it, of a part that begins more than once."""
        self._busy_cores = busy_cores

    def watch(self, part: str) -> None:
        """See what others do, while nothing of ours does anything."""
        known = self.before.get(part, {})
        found = {"load": round(os.getloadavg()[0], 1), "cores": self._busy_cores()}
        self.before[part] = {
            what: value if (most := known.get(what)) is None or value is None else max(most, value)
            for what, value in found.items()
        }

    @contextmanager
    def __call__(self, part: str, *, alone: bool = True) -> Iterator[None]:
        """A part begins and ends; not ``alone`` if another one is at work beside it."""
        if alone:
            self.watch(part)
        started = time.monotonic()
        yield
        self.seconds[part] = self.seconds.get(part, 0) + round(time.monotonic() - started)


def on_warm_engine(asked: AskedFor, scale: Scale, say: Say, timer: Timer) -> dict[str, dict[str, Any]]:
    """What is timed on DynamoDB, on an engine whose virtual machine has compiled what it will need."""
    cases, result = asked.cases, dict[str, dict[str, Any]](cases={})
    with engine.running() as endpoint, ExitStack() as stack:
        workers = {
            name: stack.enter_context(Worker(name, bench="cases", endpoint=endpoint))
            for name in (OURS, REFERENCE, CEILING, BARE)
        }
        students = [
            stack.enter_context(Worker(name, bench="config", endpoint=endpoint, users=scale.users))
            for name in ((OURS, REFERENCE) if asked.has(CONFIG) else ())
        ]
        say("making tables")
        opened = [COLD] if asked.has(COLD_PART) else []
        with timer(DYNAMODB if cases else CONFIG if students else COLD_PART):
            founded = [
                (worker, [case.name for case in (WARM_UP, *cases, *opened) if name in case.contestants])
                for name, worker in workers.items()
            ]
            at_once(lambda it: it[0].ask("found", cases=it[1]), [it for it in founded if it[1]])
            at_once(lambda student: student.ask("found"), students)
            say("warming the engine up")
            limiters, warm = [workers[OURS], workers[REFERENCE]], {"case": WARM_UP.name}
            at_once(lambda worker: worker.ask("prepare", **warm), limiters)
            at_once(lambda worker: worker.ask("round", seconds=scale.engine_seconds, **warm), limiters)
        for case in cases:
            say(f"{case.name}: {case.title}")
            entrants = [workers[name] for name in case.contestants]
            with timer(DYNAMODB):
                result["cases"][case.name] = {
                    "rounds": timed_rounds(case.name, case.stretch, entrants, scale)
                }
        if students:
            say(f"{CONFIG}: reads, cache hits, sparse traffic, negative caching")
            with timer(CONFIG):
                result[CONFIG] = {it.contestant: studied(it, endpoint, scale) for it in students}
        if opened:
            say(f"{COLD_PART}: import and open")
            with timer(COLD_PART):
                result["cold"] = cold_starts(endpoint, scale)
                result["cold_bills"] = {name: cold_bill(name, endpoint) for name in COLD.contestants}
    return result


def timed_rounds(case: str, stretch: float, workers: Sequence[Worker], scale: Scale) -> dict[str, list[Any]]:
    at_once(lambda worker: worker.ask("prepare", case=case), workers)
    return alternated(workers, scale.rounds, scale.seconds * stretch, scale.warm_up_seconds, case=case)


def at_once(function: Callable[[T], Any], arguments: Sequence[T]) -> list[Any]:
    """What nobody measures need not wait for each other."""
    with ThreadPoolExecutor(AT_ONCE_MAX) as threads:
        return list(threads.map(function, arguments))


def alternated(
    workers: Sequence[Worker], rounds: int, seconds: float, warm_up_seconds: float, **asked: str
) -> dict[str, list[Any]]:
    """A B A B …: whatever disturbs the machine for a while disturbs all of them."""
    at_once(lambda worker: worker.ask("arrange", **asked), workers)
    for worker in workers:
        worker.ask("round", seconds=warm_up_seconds, **asked)
    samples: dict[str, list[Any]] = {worker.contestant: [] for worker in workers}
    for _ in range(rounds):
        at_once(lambda worker: worker.ask("arrange", **asked), workers)
        for worker in workers:
            samples[worker.contestant].append(worker.ask("round", seconds=seconds, **asked))
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


def timed_served(group: str, scale: Scale, say: Say) -> dict[str, Any]:
    """All workloads of one server, which all contestants share."""
    found: dict[str, Any] = {}
    with server(group) as url, ExitStack() as stack:
        workers = [
            stack.enter_context(Worker(name, bench="served", group=group, url=url))
            for name in ON_SERVERS[group]
            if scale.is_whole or name != PYRATE_POSTGRES
        ]
        for name, work in WORKLOADS.items():
            say(f"{group}: {work.title}")
            entrants = [
                worker
                for worker in workers
                if worker.contestant == OURS or (worker.contestant in BARE_COMMANDS) == work.is_bare
            ]
            found[name] = timed_rounds(name, 1.0, entrants, scale)
    return found


def counted_cases(cases: Sequence[Case], scale: Scale, say: Say) -> dict[str, Any]:
    """Requests and capacity units of each case, for everybody but the bare request."""
    if not cases:
        return {}
    say("counting requests and capacity units")
    contestants = (OURS, REFERENCE)
    with engine.running() as endpoint:
        bills = at_once(lambda name: billed_cases(name, cases, endpoint, scale), contestants)
    return {
        case.name: {name: bill[case.name] for name, bill in zip(contestants, bills, strict=True)}
        for case in cases
    }


def billed_cases(contestant: str, cases: Sequence[Case], endpoint: str, scale: Scale) -> dict[str, Any]:
    bills: dict[str, Any] = {}
    meter = Meter(endpoint)
    with meter.running() as address, Worker(contestant, endpoint=address, bench="cases") as worker:
        worker.ask("found", cases=[case.name for case in cases])
        for case in cases:
            worker.ask("prepare", case=case.name)
            worker.ask("arrange", case=case.name)
            worker.ask("round", case=case.name, seconds=scale.warm_up_seconds)
            worker.ask("arrange", case=case.name)
            meter.reset()
            sample = worker.ask("round", case=case.name, seconds=scale.counting_seconds)
            bills[case.name] = {"operations": sample["operations"] + sample["unwanted"], **meter.reading()}
    return bills


def cold_starts(endpoint: str, scale: Scale) -> dict[str, list[Any]]:
    """Importing and opening, in processes that have done nothing yet."""
    samples: dict[str, list[Any]] = {OURS: [], REFERENCE: [], **{name: [] for name in IMPORTS}}
    # The first process of each finds files that are not in the machine's cache.
    for attempt in range(scale.openings + 1):
        for name, kept in samples.items():
            if name in IMPORTS:
                sample = output(name, "benchmarks.cold", "import", name)
            else:
                sample = output(name, "benchmarks.cold", "open", name, endpoint, table_name(name, COLD.name))
            if attempt:
                kept.append(sample)
    return samples


def cold_bill(contestant: str, endpoint: str) -> dict[str, Any]:
    """Requests and capacity units of a process that has just started, up to its first lease."""
    meter = Meter(endpoint)
    with meter.running() as address:
        output(contestant, "benchmarks.cold", "open", contestant, address, table_name(contestant, COLD.name))
        return meter.reading()


@contextmanager
def idle_entities(scale: Scale) -> Iterator[dict[str, subprocess.Popen[str]]]:
    """Processes that meet many entities once, one on a memory store and one on an engine of its own."""
    with engine.running() as endpoint, ExitStack() as stack:
        asked = {"memory": (scale.idle_entities,), DYNAMODB: (scale.idle_on_dynamodb, endpoint)}
        processes = {}
        for where, words in asked.items():
            processes[where] = process = subprocess.Popen(
                [sys.executable, "-m", "benchmarks.idle", *map(str, words)],
                cwd=engine.ROOT,
                env=engine.environment(),
                stdout=subprocess.PIPE,
                text=True,
            )
            stack.callback(process.wait)
            stack.callback(process.kill)
        yield processes


def studied(student: Worker, endpoint: str, scale: Scale) -> dict[str, Any]:
    kinds = [(order, cold) for order in ("read", "acquire") for cold in (True, False)]
    contestant = student.contestant
    student.ask("fill")
    found: dict[str, Any] = {
        f"{order}-{warmth(cold)}": student.ask(order, times=scale.readings, cold=cold)
        for order, cold in kinds
    }
    meter = Meter(endpoint)
    with meter.running() as address:

        def billed(order: str, **arguments: Any) -> dict[str, Any]:
            meter.reset()
            answer: dict[str, Any] = worker.ask(order, **arguments)
            return answer | meter.reading()

        with Worker(contestant, bench="config", endpoint=address, users=scale.users) as worker:
            worker.ask("open")
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
            worker.ask("open", cache_ttl_seconds=0)
            found["no-cache"] = billed("window", premium=False)
    return found


def warmth(cold: bool) -> str:
    return "cold" if cold else "warm"
