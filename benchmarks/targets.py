"""What we want to reach, and whether a result reaches it. A miss is printed; ``--judge`` fails a new one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from .cases import (
    BARE,
    BARE_UPDATE,
    CEILING,
    DYNAMODB,
    HELP_START,
    HOT,
    IMPORT_START,
    KEYS,
    LIMITS_FIXED,
    MEMORY_ASYNC,
    MEMORY_SYNC,
    OURS,
    POSTGRES,
    PYRATE_POSTGRES,
    PYRATE_SQLITE,
    REDIS,
    REFERENCE,
    SLOWAPI,
    SLOWAPI_ASGI,
    SQLITE,
    THROTTLED,
    TLS,
)
from .figures import Figure, combined, ratio
from .summary import (
    Result,
    Rounds,
    added,
    added_against,
    case_rounds,
    cold_bill,
    config_bill,
    embedded_rounds,
    fastest_token_bucket,
    late_growth,
    lone_against_bare,
    per_acquire,
    remembered_kib,
    server_rounds,
    starting_least,
)

Reading = Callable[[Result], Figure | None]
WORSE_MAX = 1.5
"""How many times as bad as the worst round of the published run a result may be, if it misses that too."""


@dataclass(frozen=True)
class Target:
    """A number that a result should not fall below, or not exceed."""

    what: str
    reading: Reading
    at_least: float | None = None
    at_most: float | None = None
    unit: str = "×"

    def is_met(self, value: float) -> bool:
        if self.at_least is not None:
            return value >= self.at_least
        assert self.at_most is not None
        return value <= self.at_most

    @property
    def bound(self) -> str:
        if self.at_least is not None:
            return f"≥ {self.at_least:g}{self.unit}"
        assert self.at_most is not None
        inverse = 1 / self.at_most
        # A ratio below one reads best as a fraction.
        is_fraction = self.unit == "×" and inverse > 2
        return f"≤ 1/{inverse:.0f}" if is_fraction else f"≤ {self.at_most:g}{self.unit}"


def ratios(ours: Rounds, theirs: Rounds, metric: str) -> Figure | None:
    return combined((ours, theirs), metric, ratio) if ours and theirs else None


def on_table(case: str, metric: str, against: str = REFERENCE) -> Reading:
    return lambda it: ratios(case_rounds(it, case, OURS), case_rounds(it, case, against), metric)


def single(read: Callable[[Result], float | None]) -> Reading:
    """What is counted, or measured once: it has no range."""

    def figure(result: Result) -> Figure | None:
        value = read(result)
        return None if value is None else Figure(value, value, value)

    return figure


def counted(case: str, what: str) -> Reading:
    """To two decimals: one write in a thousand that had to be repeated is not a second call."""

    def read(result: Result) -> float | None:
        value = per_acquire(result, case, OURS, what)
        return None if value is None else round(value, 2)

    return single(read)


def embedded(group: str, metric: str, against: str) -> Reading:
    return lambda it: ratios(embedded_rounds(it, group, OURS), embedded_rounds(it, group, against), metric)


def in_memory(group: str) -> Reading:
    def read(result: Result) -> Figure | None:
        fastest = fastest_token_bucket(result, group)
        return fastest and embedded(group, "throughput", fastest[0])(result)

    return read


def on_server(group: str, work: str, against: str, metric: str = "throughput") -> Reading:
    return lambda it: ratios(
        server_rounds(it, group, work, OURS), server_rounds(it, group, work, against), metric
    )


def late_growth_percent(result: Result) -> float | None:
    growth = late_growth(result)
    return None if growth is None else growth * 100


def middleware_against(peer: str, metric: str) -> Reading:
    return lambda result: added_against(result, peer, metric)


def lone(step: str) -> Target:
    return Target(
        f"lone acquire, {step}: CPU against a bare request",
        lambda it: lone_against_bare(it, step),
        at_most=2.5,
    )


TARGETS = (
    Target("hot key, 100 tasks: throughput", on_table("hot-100", "throughput"), at_least=20),
    Target("hot key, 100 tasks: p99", on_table("hot-100", "p99_us"), at_most=1 / 50),
    Target("hot key, 100 tasks: WCU per acquire", counted("hot-100", "wcu"), at_most=0.1, unit=""),
    Target("1,000 keys, 50 tasks: throughput", on_table("keys-1000", "throughput"), at_least=2.5),
    Target("1,000 keys, 50 tasks: client CPU", on_table("keys-1000", "cpu_us"), at_most=1 / 6),
    Target(
        "1,000 keys, 50 tasks: share of what the engine takes",
        on_table("keys-1000", "throughput", CEILING),
        at_least=0.85,
    ),
    Target(
        "cascade: share of what the engine takes", on_table("cascade", "throughput", CEILING), at_least=0.85
    ),
    Target("first acquire: throughput", on_table("first", "throughput"), at_least=5),
    Target("first acquire: calls", counted("first", "calls"), at_most=2, unit=""),
    Target("cascade: throughput", on_table("cascade", "throughput"), at_least=5),
    Target("refill on each acquire: throughput", on_table("refill", "throughput"), at_least=8),
    Target("refill on each acquire: calls", counted("refill", "calls"), at_most=1, unit=""),
    Target("acquire + adjust, 10 tasks: throughput", on_table("adjust-10", "throughput"), at_least=5),
    Target("refusal, remembered: client CPU", on_table("refusal-remembered", "cpu_us"), at_most=1 / 3),
    Target("sync, hot key, 8 threads: throughput", on_table("sync-8", "throughput"), at_least=4),
    Target(
        "lone acquire: client CPU against a bare request", on_table("sync-1", "cpu_us", BARE), at_most=2.5
    ),
    *(lone(step) for step in ("sync", "async", f"sync{TLS}", f"async{TLS}")),
    Target(
        "SQLite: throughput against pyrate-limiter",
        embedded(SQLITE, "throughput", PYRATE_SQLITE),
        at_least=10,
    ),
    Target("SQLite: CPU against a bare UPDATE", embedded(SQLITE, "cpu_us", BARE_UPDATE), at_most=3),
    Target("memory, sync: throughput against the fastest token bucket", in_memory(MEMORY_SYNC), at_least=1.2),
    Target(
        "memory, async: throughput against the fastest token bucket", in_memory(MEMORY_ASYNC), at_least=1.2
    ),
    Target("middleware: what it adds to p99", lambda it: added(it, OURS, "p99_us"), at_most=150, unit=" µs"),
    Target("middleware: p99 against slowapi", middleware_against(SLOWAPI, "p99_us"), at_most=1 / 3),
    Target("middleware: p50 against slowapi", middleware_against(SLOWAPI, "p50_us"), at_most=1 / 3),
    Target(
        "middleware: p50 against slowapi, pure ASGI",
        middleware_against(SLOWAPI_ASGI, "p50_us"),
        at_most=1 / 3,
    ),
    Target(
        "middleware: p99 against slowapi, pure ASGI",
        middleware_against(SLOWAPI_ASGI, "p99_us"),
        at_most=1 / 3,
    ),
    Target(
        "Redis, 1,000 keys: throughput against throttled-py", on_server(REDIS, KEYS, THROTTLED), at_least=2
    ),
    Target("Redis, 1,000 keys: throughput against limits", on_server(REDIS, KEYS, LIMITS_FIXED), at_least=2),
    Target("Redis, hot key: throughput against throttled-py", on_server(REDIS, HOT, THROTTLED), at_least=10),
    Target("Redis, hot key: throughput against limits", on_server(REDIS, HOT, LIMITS_FIXED), at_least=10),
    Target(
        "PostgreSQL, 1,000 keys: throughput against pyrate-limiter",
        on_server(POSTGRES, KEYS, PYRATE_POSTGRES),
        at_least=10,
    ),
    Target(
        "PostgreSQL, hot key: throughput against pyrate-limiter",
        on_server(POSTGRES, HOT, PYRATE_POSTGRES),
        at_least=10,
    ),
    Target(
        "acquire, config not cached: RCU",
        single(lambda it: config_bill(it, OURS, "acquire-cold", "rcu")),
        at_most=2.5,
        unit="",
    ),
    Target(
        "fresh process, first lease: round trips",
        single(lambda it: cold_bill(it, OURS, "calls")),
        at_most=2,
        unit="",
    ),
    Target(
        "fresh process, first lease: RCU", single(lambda it: cold_bill(it, OURS, "rcu")), at_most=2.5, unit=""
    ),
    Target("import: CPU of the process", lambda it: starting_least(it, IMPORT_START), at_most=50, unit=" ms"),
    Target("--help: CPU of the process", lambda it: starting_least(it, HELP_START), at_most=150, unit=" ms"),
    Target("idle entities: growth over the last quarter", single(late_growth_percent), at_most=5, unit=" %"),
    Target(
        "idle entities: remembered of one",
        single(lambda it: remembered_kib(it, "memory")),
        at_most=1.5,
        unit=" KB",
    ),
    Target(
        "idle entities on DynamoDB: remembered of one",
        single(lambda it: remembered_kib(it, DYNAMODB)),
        at_most=1.5,
        unit=" KB",
    ),
)


@dataclass(frozen=True)
class Verdict:
    target: Target
    figure: Figure | None

    @property
    def word(self) -> str:
        if self.figure is None:
            return "not measured"
        return "met" if self.target.is_met(self.figure.median) else "missed"

    @property
    def reached(self) -> str:
        return "–" if self.figure is None else self.shown(self.figure.median)

    @property
    def spread(self) -> str:
        """The least and the most over the rounds, where there are rounds."""
        if self.figure is None or self.figure.low == self.figure.high:
            return "–"
        return f"{self.shown(self.figure.low)} to {self.shown(self.figure.high)}"

    def is_new_miss(self, published: Verdict) -> bool:
        """Whether it is missed, and not as the published run misses it, which explains why."""
        if self.figure is None or self.word != "missed":
            return False
        if published.figure is None or published.word != "missed":
            return True
        if self.target.at_least is None:
            accepted = replace(self.target, at_most=published.figure.high * WORSE_MAX)
        else:
            accepted = replace(self.target, at_least=published.figure.low / WORSE_MAX)
        return not accepted.is_met(self.figure.median)

    def shown(self, value: float) -> str:
        unit = self.target.unit
        # Small ratios show what a target as a fraction asks for.
        if unit == "×" and 0 < value < 0.5:
            return f"1/{1 / value:.3g}"
        return f"{value:.3g}{unit}" if abs(value) < 1000 else f"{value:,.0f}{unit}"


def verdicts(result: Result) -> list[Verdict]:
    return [Verdict(target, target.reading(result)) for target in TARGETS]


def new_misses(result: Result, published: Result) -> list[str]:
    """A line for each target that is missed without an explanation, or by more than is explained."""
    both = zip(verdicts(result), verdicts(published), strict=True)
    return [
        f"{now.target.what}: {now.reached}, wanted {now.target.bound}, published {known.reached}"
        for now, known in both
        if now.is_new_miss(known)
    ]
