"""How a worker measures itself: closed loops that run for a time and report what they did.

Each task repeats its step until the time is over and waits for nothing but the step. A latency is taken
around every step. CPU is that of the whole process, so an engine in another process is not in it. The
garbage collector stays on.
"""

from __future__ import annotations

import asyncio
import threading
import time
from array import array
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from .figures import percentile

FAILURES_KEPT = 3


class Exhausted(Exception):
    """A step found nothing left to do in this round."""


@dataclass
class Tally:
    """What happened in one round."""

    refusal: type[Exception]
    is_refusal_wanted: bool = False
    latencies_ns: array[int] = field(default_factory=lambda: array("q"))
    unwanted: int = 0
    messages: list[str] = field(default_factory=list)
    clock: Callable[[], int] = field(default_factory=lambda: time.perf_counter_ns)
    """What a latency is measured by: the time of day, or of the CPU for steps that wait for nothing."""

    def ended(self, started_ns: int, error: Exception | None) -> None:
        """Count a step: it is an operation if it ended as the case wants."""
        ended_ns = self.clock()
        if isinstance(error, self.refusal) if self.is_refusal_wanted else error is None:
            self.latencies_ns.append(ended_ns - started_ns)
            return
        self.unwanted += 1
        if len(self.messages) < FAILURES_KEPT:
            self.messages.append(f"{type(error).__name__}: {error}" if error else "admitted")

    def sample(self, seconds: float, cpu_seconds: float) -> dict[str, Any]:
        ordered = sorted(self.latencies_ns)
        return {
            "operations": len(ordered),
            "seconds": seconds,
            "cpu_seconds": cpu_seconds,
            "p50_us": percentile(ordered, 0.50) / 1000 if ordered else None,
            "p99_us": percentile(ordered, 0.99) / 1000 if ordered else None,
            "unwanted": self.unwanted,
            "messages": self.messages,
        }


async def async_loop(
    step: Callable[[], Awaitable[object]], tasks: int, seconds: float, tally: Tally
) -> dict[str, Any]:
    """Many tasks on one event loop."""
    clock = time.perf_counter_ns
    started, cpu = clock(), time.process_time()
    until = started + int(seconds * 1e9)

    async def repeat() -> None:
        while clock() < until:
            begun = tally.clock()
            try:
                await step()
            except Exhausted:
                return
            except Exception as error:  # counted, and the case goes on
                tally.ended(begun, error)
                # A failure without a wait must not keep the other tasks from running.
                await asyncio.sleep(0)
            else:
                tally.ended(begun, None)

    await asyncio.gather(*(repeat() for _ in range(tasks)))
    return tally.sample((clock() - started) / 1e9, time.process_time() - cpu)


async def paced_loop(
    step: Callable[[], Awaitable[object]], pause_s: float, seconds: float, tally: Tally
) -> dict[str, Any]:
    """One task that rests between its steps; only the steps are counted as time."""
    until = time.perf_counter_ns() + int(seconds * 1e9)
    cpu_seconds = 0.0
    while time.perf_counter_ns() < until:
        cpu, begun = time.process_time(), time.perf_counter_ns()
        try:
            await step()
        except Exception as error:
            tally.ended(begun, error)
        else:
            tally.ended(begun, None)
            cpu_seconds += time.process_time() - cpu
        await asyncio.sleep(pause_s)
    return tally.sample(sum(tally.latencies_ns) / 1e9, cpu_seconds)


def sync_loop(step: Callable[[], object], seconds: float, tally: Tally) -> dict[str, Any]:
    """One thread, without a task or a thread of its own."""
    started, cpu = time.perf_counter_ns(), time.process_time()
    _repeat(step, started + int(seconds * 1e9), tally)
    return tally.sample((time.perf_counter_ns() - started) / 1e9, time.process_time() - cpu)


def threads_loop(step: Callable[[], object], threads: int, seconds: float, tally: Tally) -> dict[str, Any]:
    """Several threads that share one limiter."""
    tallies = [Tally(tally.refusal, tally.is_refusal_wanted) for _ in range(threads)]
    started, cpu = time.perf_counter_ns(), time.process_time()
    until = started + int(seconds * 1e9)
    workers = [threading.Thread(target=_repeat, args=(step, until, own)) for own in tallies]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    seconds_taken, cpu_taken = (time.perf_counter_ns() - started) / 1e9, time.process_time() - cpu
    for own in tallies:
        tally.latencies_ns.extend(own.latencies_ns)
        tally.unwanted += own.unwanted
        tally.messages = [*tally.messages, *own.messages][:FAILURES_KEPT]
    return tally.sample(seconds_taken, cpu_taken)


def _repeat(step: Callable[[], object], until_ns: int, tally: Tally) -> None:
    clock = time.perf_counter_ns
    while (begun := clock()) < until_ns:
        try:
            step()
        except Exhausted:
            return
        except Exception as error:
            tally.ended(begun, error)
        else:
            tally.ended(begun, None)
