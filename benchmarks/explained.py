"""Why a target is missed, by what was measured: the page shows it wherever a run misses one.

Figures of a run are those of the result that is shown, so they are true of every run. What was counted in
instructions, or by a tool of its own, has its date.
"""

from __future__ import annotations

from collections.abc import Callable

from .cases import (
    ASYNCIO_START,
    BARE,
    BARE_APP,
    BARE_CONNECTION,
    BARE_REDIS_PY,
    BARE_START,
    BARE_UPDATE,
    CEILING,
    HELP_START,
    HOT,
    IMPORT_START,
    KEYS,
    LIMITS_FIXED,
    LONE,
    MEMORY_SYNC,
    OURS,
    POSTGRES,
    PYRATE_POSTGRES,
    PYRATE_SQLITE,
    REDIS,
    REFERENCE,
    SLOWAPI,
    SQLITE,
    THROTTLED,
    TLS,
    WEB,
)
from .figures import Measured, compact, figure
from .summary import (
    Result,
    added_us,
    cold_bill,
    late_growth,
    lone_rounds,
    of_case,
    of_embedded,
    of_server,
    remembered_kib,
    starting_least,
)

Explanation = str | Callable[[Result], str]
TRIED = "[what was tried](adr/0160-a-reply-is-asked-for-whole.md)"
OPENING = "[what was tried](adr/0169-a-table-is-read-before-it-is-looked-at.md)"
WHY_WHOLE = "([why](adr/0160-a-reply-is-asked-for-whole.md))"


def rate(figures: Measured | None) -> str:
    return "–" if figures is None else compact(figures.throughput.median)


def cpu(figures: Measured | None) -> str:
    return "–" if figures is None else compact(figures.cpu_us.median)


def limit_of(figures: Measured | None) -> str:
    """Who had no more to give, by how many cores the client kept busy: Python works on one at a time."""
    if figures is None:
        return "what is the limit this run did not measure"
    cores = figures.throughput.median * figures.cpu_us.median / 1e6
    if cores >= BUSY_CORES:
        return f"the client is the limit, which kept {compact(cores)} cores busy"
    return f"the server or the trip to it is the limit, for the client kept only {compact(cores)} cores busy"


BUSY_CORES = 0.9


def beside_theirs(case: str) -> Callable[[Result], str]:
    """A case on DynamoDB: how fast both are, and who has no more to give."""

    def explained(result: Result) -> str:
        mine, theirs = (of_case(result, case, name) for name in (OURS, REFERENCE))
        return (
            f"{rate(mine)} a second here and {rate(theirs)} for theirs. {limit_of(mine).capitalize()}, with "
            f"{cpu(mine)} µs an acquire; theirs takes {cpu(theirs)}."
        )

    return explained


def hot_latency(result: Result) -> str:
    shown = [
        "–" if it is None else f"{compact(it.p50_us.median / 1000)} and {compact(it.p99_us.median / 1000)} ms"
        for it in (of_case(result, "hot-100", name) for name in (OURS, REFERENCE))
    ]
    mine = of_case(result, "hot-100", OURS)
    return f"p50 and p99 are {shown[0]} here, {shown[1]} for theirs. {limit_of(mine).capitalize()}."


def requests_of(case: str) -> Callable[[Result], str]:
    """What the acquires of a case asked for, in the pass that only counts."""

    def explained(result: Result) -> str:
        counts = result.get("cases", {}).get(case, {}).get("counts", {}).get(OURS)
        if counts is None:
            return "this run did not count requests."
        asked = ", ".join(f"{number:,} {name}" for name, number in sorted(counts["requests"].items()))
        return f"{counts['operations']:,} acquires made {asked}, and wrote {compact(counts['wcu'])} units."

    return explained


def sqlite_beside(result: Result) -> str:
    ours, theirs, bare = (of_embedded(result, SQLITE, name) for name in (OURS, PYRATE_SQLITE, BARE_UPDATE))
    alone = of_embedded(result, MEMORY_SYNC, OURS)
    return (
        f"{cpu(ours)} µs of CPU an acquire and {rate(ours)} a second; theirs {cpu(theirs)} and "
        f"{rate(theirs)}, a bare statement {cpu(bare)} and {rate(bare)}. In memory, without any statement, "
        f"an acquire of ours takes {cpu(alone)}."
    )


def middleware(result: Result) -> str:
    def adds(contestant: str) -> str:
        return " and ".join(compact(added_us(result, contestant, it) or 0) for it in ("p50_us", "p99_us"))

    bare = of_embedded(result, WEB, BARE_APP)
    alone = "–" if bare is None else f"{compact(bare.p50_us.median)} and {compact(bare.p99_us.median)}"
    return (
        f"ours adds {adds(OURS)} µs to the median and to the 99th percentile, slowapi {adds(SLOWAPI)}; the "
        f"application itself takes {alone}."
    )


def start_of(program: str) -> Callable[[Result], str]:
    def explained(result: Result) -> str:
        shown = [
            "–"
            if (it := starting_least(result, name)) is None
            else f"{compact(it.low)} to {compact(it.high)}"
            for name in (program, ASYNCIO_START, BARE_START)
        ]
        return (
            f"{shown[0]} ms over the starts of this run, where `{ASYNCIO_START}` takes {shown[1]} and "
            f"{BARE_START} {shown[2]}: the interpreter is in it."
        )

    return explained


def late_memory(result: Result) -> str:
    growth = late_growth(result)
    grown = "a part that this run did not measure" if growth is None else f"{growth * 100:.1f} %"
    return f"it grew by {grown}, where a process that kept something of everybody would grow by a third."


def share(mine: Measured | None, most: Measured | None) -> str:
    if mine is None or most is None:
        return "a part that this run did not measure"
    return f"{mine.throughput.median / most.throughput.median * 100:.0f} %"


def engine_limits(case: str) -> Callable[[Result], str]:
    """The engine takes no more of these requests: a bare client says how many it takes."""

    def explained(result: Result) -> str:
        mine, theirs, most = (of_case(result, case, name) for name in (OURS, REFERENCE, CEILING))
        if most is None:
            return "the engine is the limit, not the client; this run did not measure what it takes."
        return (
            f"the engine is the limit: a bare client got {rate(most)} a second from it in the same run, "
            f"ours "
            f"{rate(mine)}, which is {share(mine, most)} of that, and theirs {rate(theirs)}."
        )

    return explained


def shared_cores(case: str) -> Callable[[Result], str]:
    def explained(result: Result) -> str:
        mine, most = of_case(result, case, OURS), of_case(result, case, CEILING)
        return (
            f"client and engine share the cores, and ours takes more of them than a bare client: "
            f"{cpu(mine)} µs of "
            f"CPU an acquire, and it {cpu(most)}."
        )

    return explained


def refill(result: Result) -> str:
    return (
        f"it is one call against four, and as fast as a lone call: {rate(of_case(result, 'refill', OURS))} "
        f"a second,"
        f" where the same run made {rate(of_case(result, 'sync-1', OURS))} warm acquires of one thread."
    )


def remembered_refusal(result: Result) -> str:
    ours, theirs = (of_case(result, "refusal-remembered", name) for name in (OURS, REFERENCE))
    return (
        f"{cpu(ours)} µs of CPU, and theirs {cpu(theirs)}. From the image that is remembered it is worked "
        "out anew each time who refuses and how long each limit would take: some 500 calls (counted on "
        "2026-11-19)."
    )


def pure_asgi(result: Result) -> str:
    added, alone = added_us(result, OURS, "p50_us"), of_embedded(result, MEMORY_SYNC, OURS)
    bare = of_embedded(result, WEB, BARE_APP)
    return (
        "theirs counts a hit, ours takes a lease and settles it when the response has ended: "
        f"{'–' if alone is None else compact(alone.cpu_us.median)} of the {compact(added or 0)} µs that "
        f"ours adds are "
        f"an acquire alone. The application itself takes "
        f"{'–' if bare is None else compact(bare.p50_us.median)}."
    )


def redis_keys(peer: str, driver: str) -> Callable[[Result], str]:
    def explained(result: Result) -> str:
        ours, theirs = (of_server(result, REDIS, KEYS, name) for name in (OURS, peer))
        return (
            f"{limit_of(ours)}. An acquire takes {cpu(ours)} µs of the client, theirs {cpu(theirs)}. Alone, "
            f"a bare `PING` by {driver} takes {cpu(of_server(result, REDIS, LONE, BARE_PINGS[driver]))}."
        )

    return explained


BARE_PINGS = {"our connection": BARE_CONNECTION, "the driver that they use": BARE_REDIS_PY}


def hot_key(group: str, peer: str) -> Callable[[Result], str]:
    """How busy the client is, and how little an acquire could take for ten times theirs."""

    def explained(result: Result) -> str:
        ours, theirs = (of_server(result, group, HOT, name) for name in (OURS, peer))
        allowed = "–" if theirs is None else compact(1e6 / (10 * theirs.throughput.median))
        return (
            f"{limit_of(ours)}. An acquire takes {cpu(ours)} µs of the client; ten times theirs would be one "
            f"every {allowed} µs."
        )

    return explained


def postgres_keys(result: Result) -> str:
    ours, theirs = (of_server(result, POSTGRES, KEYS, name) for name in (OURS, PYRATE_POSTGRES))
    return (
        f"{limit_of(ours)}. An acquire takes {cpu(ours)} µs of the client, theirs {cpu(theirs)}. What was "
        "done for the server: one statement decides a batch "
        "([how](adr/0162-one-statement-decides-a-batch.md))."
    )


def fresh_bill(what: str, why: str) -> Callable[[Result], str]:
    def explained(result: Result) -> str:
        ours, theirs = (cold_bill(result, name, what) or 0 for name in (OURS, REFERENCE))
        return f"{compact(ours)} here, and {compact(theirs)} for theirs. {why}"

    return explained


def remembered(where: str, parts: str) -> Callable[[Result], str]:
    def explained(result: Result) -> str:
        return f"{remembered_kib(result, where) or 0:.1f} KB. {parts}"

    return explained


def lone_step(step: str) -> Callable[[Result], str]:
    def explained(result: Result) -> str:
        kind = TLS if step.endswith(TLS) else ""
        ours, bare = (
            compact(figure(rounds).median) if rounds else "–"
            for rounds in (lone_rounds(result, step), lone_rounds(result, BARE + kind))
        )
        return (
            f"{ours} µs of CPU, where a bare request takes {bare}. An acquire is the sum of some sixty "
            "calls of which none has more than 8 %, and with seventeen modules compiled to machine code it "
            f"takes 4 % less ({TRIED})."
        )

    return explained


EXPLAINED: dict[str, Explanation] = {
    "hot key, 100 tasks: throughput": beside_theirs("hot-100"),
    "hot key, 100 tasks: p99": hot_latency,
    "hot key, 100 tasks: WCU per acquire": requests_of("hot-100"),
    "first acquire: calls": requests_of("first"),
    "refill on each acquire: calls": requests_of("refill"),
    "acquire + adjust, 10 tasks: throughput": beside_theirs("adjust-10"),
    "sync, hot key, 8 threads: throughput": beside_theirs("sync-8"),
    "SQLite: throughput against pyrate-limiter": sqlite_beside,
    "SQLite: CPU against a bare UPDATE": sqlite_beside,
    "middleware: what it adds to p99": middleware,
    "middleware: p99 against slowapi": middleware,
    "middleware: p50 against slowapi": middleware,
    "import: CPU of the process": start_of(IMPORT_START),
    "--help: CPU of the process": start_of(HELP_START),
    "idle entities: growth over the last quarter": late_memory,
    "1,000 keys, 50 tasks: throughput": engine_limits("keys-1000"),
    "1,000 keys, 50 tasks: client CPU": (
        "every key has a write of its own: an acquire takes 553,000 instructions here and a lone one 525,000 "
        f"(callgrind, 2026-11-19). Less would be the same as less for a lone acquire {WHY_WHOLE}."
    ),
    "1,000 keys, 50 tasks: share of what the engine takes": shared_cores("keys-1000"),
    "first acquire: throughput": engine_limits("first"),
    "cascade: throughput": engine_limits("cascade"),
    "cascade: share of what the engine takes": shared_cores("cascade"),
    "refill on each acquire: throughput": refill,
    "refusal, remembered: client CPU": remembered_refusal,
    "lone acquire: client CPU against a bare request": (
        "in instructions (callgrind, sync, 2026-11-19) a bare request is 90,000 and an acquire 525,000. Of "
        "these are 61,000 for reading JSON, 45,000 for signing, and about a sixth of all steps of Python "
        f"makes the image out of it; the rest is some sixty calls of which none has more than 8 % ({TRIED})."
    ),
    "lone acquire, sync: CPU against a bare request": lone_step("sync"),
    "lone acquire, async: CPU against a bare request": lone_step("async"),
    "lone acquire, sync, TLS: CPU against a bare request": lone_step("sync, TLS"),
    "lone acquire, async, TLS: CPU against a bare request": lone_step("async, TLS"),
    "memory, sync: throughput against the fastest token bucket": (
        "a lease has to be entered, left and accounted for if it is forgotten. In instructions an acquire "
        "is 55,800 "
        "and theirs 44,700 (2026-11-19); the bucket itself is about half of ours "
        "([why](adr/0163-what-entities-have-in-common-is-kept-once.md))."
    ),
    "memory, async: throughput against the fastest token bucket": (
        "as for sync; in instructions it is 51,700 and theirs 52,900 (2026-11-19)."
    ),
    "middleware: p50 against slowapi, pure ASGI": pure_asgi,
    "middleware: p99 against slowapi, pure ASGI": "as at the median.",
    "Redis, 1,000 keys: throughput against throttled-py": redis_keys(THROTTLED, "our connection"),
    "Redis, 1,000 keys: throughput against limits": redis_keys(LIMITS_FIXED, "the driver that they use"),
    "Redis, hot key: throughput against throttled-py": hot_key(REDIS, THROTTLED),
    "Redis, hot key: throughput against limits": hot_key(REDIS, LIMITS_FIXED),
    "PostgreSQL, 1,000 keys: throughput against pyrate-limiter": postgres_keys,
    "PostgreSQL, hot key: throughput against pyrate-limiter": hot_key(POSTGRES, PYRATE_POSTGRES),
    "acquire, config not cached: RCU": (
        "five records, also those that are missing, at a unit each, because they are read strongly "
        "consistent in one request. Half a unit each would do for limits, whose version the write "
        "pins; who the parent is it does not pin "
        + WHY_WHOLE
        + ", and the first write to a bucket pins nothing."
    ),
    "fresh process, first lease: round trips": fresh_bill(
        "calls",
        "The namespace and the versions are read together, then what the acquire is about, whose keys begin "
        "with the id that the first read brings, and then it writes. Two would do for whoever knew the id "
        f"beforehand ({OPENING}).",
    ),
    "fresh process, first lease: RCU": fresh_bill(
        "rcu",
        "Two are for the namespace and the versions, six for the records of an acquire, also those that are "
        "missing, at a unit each ([what each costs](costs.md)). With all of them eventually consistent it "
        "would be 4; where the write pins what was read it would be 5 for a bucket that is there, and 11 "
        f"with a round trip more for one that is not ({OPENING}).",
    ),
    "idle entities: remembered of one": remembered(
        "memory",
        "By allocations (2026-11-19) 1.1 is the image of the bucket and its key, 0.7 are three records "
        "that are known "
        "to be missing, 0.6 is the plan ([why so](adr/0163-what-entities-have-in-common-is-kept-once.md)).",
    ),
    "idle entities on DynamoDB: remembered of one": remembered(
        "dynamodb",
        "Beside what is remembered in memory it has names and texts of its own, which every reply brings "
        "anew. To have them once took 1.2 less, and 2 % more instructions for every acquire "
        "([why not](adr/0163-what-entities-have-in-common-is-kept-once.md)).",
    ),
}
"""By target."""


def explanation(target: str, result: Result) -> str:
    """Why a result misses a target."""
    why = EXPLAINED[target]
    return why if isinstance(why, str) else why(result)
