"""What telemetry adds to an acquire: nobody looks, somebody does, Prometheus scrapes, OpenTelemetry exports.

All four take turns in one run on one machine, in rounds, so that what slows the machine slows all of them;
of each the fastest round counts. ``python -m benchmarks.telemetry``, or ``make bench CASES=telemetry``.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from zae_limiter import Limit, RateLimiter, SyncRateLimiter
from zae_limiter.telemetry import Telemetry

ROUNDS = 600
ACQUIRES = 100
LIMITS = [Limit.per_second("rpm", 10**9), Limit.per_second("tpm", 10**9)]
AMOUNTS = {"rpm": 1, "tpm": 500}
AIM_US = 1.0
"""What Prometheus may add to an acquire at most."""

Read = Callable[[], object]


def nobody(_: Any, __: ExitStack) -> Read:
    return lambda: None


def somebody(limiter: Any, stack: ExitStack) -> Read:
    telemetry = stack.enter_context(Telemetry(limiter))
    return lambda: telemetry.counters


def prometheus(limiter: Any, stack: ExitStack) -> Read:
    from prometheus_client import CollectorRegistry, generate_latest

    from zae_limiter.telemetry.prometheus import register

    registry = CollectorRegistry()
    register(stack.enter_context(Telemetry(limiter)), registry)
    return lambda: generate_latest(registry)


def opentelemetry(limiter: Any, stack: ExitStack) -> Read:
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader

    from zae_limiter.telemetry.opentelemetry import observe

    reader = InMemoryMetricReader()
    provider = MeterProvider([reader])
    stack.callback(provider.shutdown)
    observe(stack.enter_context(Telemetry(limiter)), provider.get_meter("bench"))
    return reader.get_metrics_data


WAYS = {"off": nobody, "on": somebody, "Prometheus on": prometheus, "OpenTelemetry on": opentelemetry}


def sync_round(limiter: SyncRateLimiter) -> float:
    began = time.perf_counter()
    for _ in range(ACQUIRES):
        with limiter.acquire("key", "gpt-4", AMOUNTS):
            pass
    return (time.perf_counter() - began) / ACQUIRES * 1e6


async def async_round(limiter: RateLimiter) -> float:
    began = time.perf_counter()
    for _ in range(ACQUIRES):
        async with limiter.acquire("key", "gpt-4", AMOUNTS):
            pass
    return (time.perf_counter() - began) / ACQUIRES * 1e6


def measure(rounds: int) -> dict[str, dict[str, float]]:
    """Microseconds an acquire, by colour and way; two limits, memory store."""
    best: dict[str, dict[str, float]] = {"sync": {}, "async": {}}
    with ExitStack() as stack, asyncio.Runner() as runner:
        ways: list[tuple[str, SyncRateLimiter, RateLimiter, list[Read]]] = []
        for number, (name, way) in enumerate(WAYS.items()):
            one = stack.enter_context(SyncRateLimiter.open(f"memory://sync-{number}"))
            one.set_system_defaults(LIMITS)
            two = runner.run(RateLimiter.open(f"memory://async-{number}")._open())
            runner.run(two.set_system_defaults(LIMITS))
            ways.append((name, one, two, [way(one, stack), way(two, stack)]))
        for _ in range(rounds):
            for name, one, two, reads in ways:
                for colour, took in (("sync", sync_round(one)), ("async", runner.run(async_round(two)))):
                    best[colour][name] = min(took, best[colour].get(name, took))
                for read in reads:
                    read()
        for _, _, two, _ in ways:
            runner.run(two.close())
    return best


def report(best: dict[str, dict[str, float]]) -> str:
    """What was measured, and what of that telemetry added."""
    lines = ["| an acquire, memory, two limits | µs | more | times |", "|---|---|---|---|"]
    for colour, ways in best.items():
        off = ways["off"]
        for name, took in ways.items():
            lines.append(f"| {colour}, {name} | {took:.2f} | {took - off:+.2f} | {took / off:.2f} |")
    return "\n".join(lines)


def main(rounds: int = ROUNDS) -> int:
    """Print it; a failure if Prometheus adds more than it may."""
    best = measure(rounds)
    print(report(best))
    more = max(ways["Prometheus on"] - ways["off"] for ways in best.values())
    print(f"\nPrometheus adds {more:.2f} µs at most; the aim is {AIM_US} µs")
    return 0 if more <= AIM_US else 1


if __name__ == "__main__":
    raise SystemExit(main())
