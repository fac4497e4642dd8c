"""A result as a run stores it, with numbers that are easy to check in the head."""

from typing import Any

from benchmarks.cases import CASES, EMBEDDED, OURS, REFERENCE


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


def result() -> dict[str, Any]:
    """Ours does 1,000 in a second with 1 ms of CPU each, everybody else 100 with 10 ms each."""
    return {
        "format": 1,
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
        "idle": [{"entities": n * 100, "rss_bytes": 10_000_000 + min(n, 5) * 1000} for n in range(11)],
    }
