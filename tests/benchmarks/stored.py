"""A result as a run stores it, with numbers that are easy to check in the head."""

from typing import Any

from benchmarks.cases import BARE, BARE_UPDATE, CASES, EMBEDDED, OURS, PARTS, REFERENCE, TLS
from benchmarks.starting import OURS as PROGRAMS


def sample(operations: int, p50_us: float = 100.0, cpu_seconds: float = 1.0) -> dict[str, Any]:
    """A round of one second."""
    return {
        "operations": operations,
        "seconds": 1.0,
        "cpu_seconds": cpu_seconds,
        "p50_us": p50_us,
        "p99_us": p50_us * 10,
        "unwanted": 0,
        "messages": [],
    }


def counts(calls: int, wcu: float) -> dict[str, Any]:
    return {"operations": 100, "requests": {"UpdateItem": calls}, "calls": calls, "rcu": 0.0, "wcu": wcu}


def config(rcu: float) -> dict[str, Any]:
    timed = {"operations": 99, "p50_us": 500.0, "p99_us": 900.0}
    window = {"asked": 100, "requests": {"BatchGetItem": 100}, "calls": 100, "rcu": rcu * 100, "wcu": 0.0}
    billed = timed | {"bill": {"operations": 99, "calls": 100, "rcu": rcu * 100, "wcu": 0.0}}
    kinds = ("regular-first", "regular-later", "premium-first", "premium-later", "no-cache")
    return {
        **{f"{order}-{warmth}": billed for order in ("read", "acquire") for warmth in ("cold", "warm")},
        **dict.fromkeys(kinds, window),
        "sparse": window | {"calls": 90, "cache_hits": 1, "cache_misses": 3},
    }


def sitting(**changes: Any) -> dict[str, Any]:
    return {
        "mode": "quick",
        "taken": "2026-01-01",
        "machine": {"system": "Linux", "architecture": "x86_64", "cores": 2, "memory_gib": 8, "load": 0.1},
        "versions": {
            "Python": "3.11",
            "SQLite": "3.40",
            "DynamoDB Local": "3.3",
            "Java": "17",
            OURS: "0.1.0",
            "zae-limiter": "0.17.0",
            "limits": "5.8",
        },
        "parts": dict.fromkeys(PARTS, 7),
    } | changes


def lone() -> dict[str, list[float]]:
    """An acquire takes twice a bare request, and three times in one round; with TLS all take 10 µs more."""
    plain = {BARE: [10.0] * 3, "sync": [20.0, 20.0, 30.0], "async": [20.0] * 3}
    return plain | {name + TLS: [it + 10 for it in each] for name, each in plain.items()}


def result() -> dict[str, Any]:
    """Ours does 1,000 in a second with 1 ms of CPU each, everybody else 100 with 10 ms each."""
    return {
        "format": 2,
        "sittings": [sitting()],
        "cases": {
            case.name: {
                "rounds": {
                    name: [sample(1000), sample(900), sample(1100)] if name == OURS else [sample(100)] * 3
                    for name in case.contestants
                },
                "counts": {OURS: counts(5, 5.0), REFERENCE: counts(100, 200.0)},
            }
            for case in CASES
        },
        "embedded": {
            group: {
                peer.name: [sample(1000 if peer.name == OURS else 100)] * 3
                for peer in EMBEDDED
                if peer.group == group
            }
            for group in dict.fromkeys(peer.group for peer in EMBEDDED)
        },
        "config": {
            OURS: config(0.0) | {"regular-later-without": config(0.0)["no-cache"]},
            REFERENCE: config(1.5),
        },
        "cold": {
            OURS: [{"import_ms": 10.0, "import_cpu_ms": 9.0, "open_ms": 20.0, "open_cpu_ms": 8.0}] * 3,
            "limits": [{"import_ms": 30.0, "import_cpu_ms": 29.0}] * 3,
        },
        "cold_bills": {
            OURS: {"calls": 5, "rcu": 9.0, "wcu": 1.0},
            REFERENCE: {"calls": 8, "rcu": 6.5, "wcu": 2.0},
        },
        "lone": lone(),
        "starting": {name: [30.0, 20.0, 40.0] for name in PROGRAMS},
        "crowd": {
            name: [[sample(rate, 10.0), sample(rate // 2, 20.0)]]
            for name, rate in ((OURS, 1_000), (BARE_UPDATE, 100))
        },
        "idle": {
            "memory": [{"entities": n * 100, "rss_bytes": 10_000_000 + min(n, 5) * 1000} for n in range(11)],
            "dynamodb": [{"entities": n * 100, "rss_bytes": 10_000_000 + n * 200 * 1024} for n in range(3)],
        },
    }
