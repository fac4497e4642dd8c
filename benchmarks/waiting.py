"""``make waiting``: eight processes of 50 waiters each share one bucket, and wait for their turns.

The bucket is empty when they begin. Every waiter asks, waits for as long as it takes, notes when it began,
and asks again. That is done on SQLite, DynamoDB Local, Redis and PostgreSQL, and in three ways: plain; with
every lease giving half of what it took back; with a tenth of the waits cancelled at some moment. Two more
ways show what is worse: a capacity that is too small for what comes back, and a second limit that is full by
each turn.

Work begins in the order of the bookings. Of two whose turns differ the later one may begin first only where
the machine lets the earlier one run late: by no more than a bare timer of the same processes is, and in one
process hardly ever, for its timers go off in order. It has to be stopped just as it sets one.

Attempts to book are writes that take, refused ones included, and are told for each waiter who booked: it has
begun, was cancelled, or was still in line at the end. Those of one process may have booked with one write.
All writes are more: what gives back is a write of its own.

What must hold is in ``ALWAYS`` and ``BOUNDS``. A miss is printed with what the store refused, and the run
ends with 1.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from .engine import ROOT, environment
from .waiters import (
    CANCELLED,
    COUNT,
    ENOUGH,
    ENTITY,
    GO,
    HALF_BACK,
    LIMIT,
    PLAIN,
    RESOURCE,
    SECOND,
    SMALL,
    Orders,
    Start,
)

PROCESSES, WAITERS = 8, 50
CAPACITY, REFILL = 1_000, 100
STORES = ("sqlite", "dynamodb", "redis", "postgres")
BOUNDS = {
    PLAIN: (0.97, 1.2),
    HALF_BACK: (0.97, 1.2),
    CANCELLED: (0.97, 1.2),
    SMALL: (0.5, 1.2),
    SECOND: (0.97, 2.0),
}
"""For each variant the least share of the rate, and the most attempts."""

LATE_MS = 100
"""How much later than others the operating system may let somebody run who has its turn, at the least."""


class Seen(NamedTuple):
    """What all processes of one run have seen."""

    orders: Orders
    waiters: int
    began_ms: int
    held_milli: int
    """What the bucket held when they began: less than a token."""
    ended_ms: int
    starts: Sequence[Start]
    """In the order of their bookings."""
    cancelled: int
    counts: Counter[str]
    blamed: Counter[str]
    failures: Sequence[str]
    lost: int
    overslept_ms: int
    """By how much a timer of any of the processes was late."""

    @property
    def overtaken(self) -> list[tuple[Start, Start]]:
        """Who had its turn while somebody who had booked before still had to wait, after that one.

        Of two who need not wait any more when they book nobody overtakes the other.
        """
        found, last = list[tuple[Start, Start]](), None
        for start in self.starts:
            if last is not None and start.turn_ms < last.free_ms:
                found.append((last, start))
            if last is None or start.free_ms > last.free_ms:
                last = start
        return found

    def inverted(self, *, within: bool) -> list[tuple[Start, Start]]:
        """Who began before somebody with an earlier turn that had booked before, and who of those began last.

        ``within`` compares each with those of its own process only.
        """
        found, last = list[tuple[Start, Start]](), dict[int, Start]()
        for _, tied in groupby(self.starts, key=lambda start: start.turn_ms):
            several = [(start.process if within else 0, start) for start in tied]
            for group, start in several:
                if group in last and start.start_ms < last[group].start_ms:
                    found.append((last[group], start))
            for group, start in several:
                last[group] = max(last.get(group, start), start, key=lambda it: it.start_ms)
        return found

    @property
    def inverted_ms(self) -> list[int]:
        """By how much each of these began before the other one, in any process."""
        return [before.start_ms - start.start_ms for before, start in self.inverted(within=False)]

    @property
    def lost_share(self) -> float:
        """How much of what came back the bucket could not hold."""
        return 1 - self.counts["kept of that, milli"] / max(1, self.counts["came back, milli"])

    @property
    def early(self) -> int:
        """Who began before its turn."""
        return sum(start.start_ms < start.turn_ms for start in self.starts)

    @property
    def excess(self) -> float:
        """By how many tokens the work that had started was ever more than what was there and had accrued."""
        net_milli, refill = 1000 * (self.orders.need - self.orders.back), self.orders.refill
        begun_ms = sorted(start.start_ms for start in self.starts)
        there_milli = (self.held_milli + (at_ms - self.began_ms) * refill for at_ms in begun_ms)
        excess = (n * net_milli - there for n, there in enumerate(there_milli, 1))
        return max(excess, default=0) / 1000

    def late_ms(self, share: float) -> int:
        """How late after its turn this share of the waiters had begun."""
        late = sorted(start.start_ms - start.turn_ms for start in self.starts)
        return late[min(len(late) - 1, int(share * len(late)))] if late else 0

    @property
    def share_used(self) -> float:
        """Of what accrued since all had had a turn, how much was used by work that started in that time."""
        since_ms = self.began_ms + self.waiters * self.orders.need * 1000 // self.orders.refill
        used = sum(start.start_ms > since_ms for start in self.starts) * (self.orders.need - self.orders.back)
        return used / max(1, (self.ended_ms - since_ms) * self.orders.refill / 1000)

    def per_start(self, kind: str) -> float:
        return self.counts[kind] / max(1, len(self.starts))


class Target(NamedTuple):
    """A figure of a run, and what it must not be below or above."""

    what: str
    least: float = 0.0
    most: float = float("inf")

    def is_met(self, value: float) -> bool:
        return self.least <= value <= self.most


SHARE, TAKES = "share of the rate used since all had had a turn", "attempts to book, for each who booked"
ALWAYS = (
    Target("turns earlier than that of somebody who booked before", most=0),
    Target("share that began before somebody of its process who had booked before", most=0.001),
    Target("began before somebody who had booked before, by more than timers are late", most=0),
    Target("began before its turn", most=0),
    Target("tokens of work begun beyond what had accrued", most=0),
    Target("refunds lost", most=0),
    Target("failures", most=0),
)


def targets(variant: str) -> tuple[Target, ...]:
    share, takes = BOUNDS[variant]
    return (*ALWAYS, Target(SHARE, least=share), Target(TAKES, most=takes))


def figures(seen: Seen) -> dict[str, float]:
    inverted_ms = seen.inverted_ms
    always = (
        len(seen.overtaken),
        len(seen.inverted(within=True)) / max(1, len(seen.starts)),
        sum(ms > max(LATE_MS, seen.overslept_ms) for ms in inverted_ms),
        seen.early,
        max(0.0, seen.excess),
        seen.lost,
        len(seen.failures),
    )
    return {
        **{target.what: value for target, value in zip(ALWAYS, always, strict=True)},
        SHARE: seen.share_used,
        TAKES: seen.counts["takes"] / max(1, seen.counts["booked"]),
        "of these refused by the store": seen.counts["takes refused"] / max(1, seen.counts["booked"]),
        "attempts to book, for each that began": seen.per_start("takes"),
        "all writes, for each that began": seen.per_start("writes"),
        "share of what came back that found no room": seen.lost_share if seen.counts["returns"] else 0.0,
        "began": len(seen.starts),
        "cancelled": seen.cancelled,
        "began before any who had booked before": len(inverted_ms),
        "by so many ms at most": max(inverted_ms, default=0),
        "timers late, ms, at most": seen.overslept_ms,
        "began late, ms, half of them up to": seen.late_ms(0.5),
        "began late, ms, 99 % of them up to": seen.late_ms(0.99),
    }


@contextlib.contextmanager
def fleet(orders: Orders, processes: int) -> Iterator[list[subprocess.Popen[str]]]:
    """Processes that are ready to begin; ended whatever happens."""
    crew = [
        subprocess.Popen(
            [
                sys.executable,
                "-m",
                "benchmarks.waiters",
                json.dumps(orders._replace(seed=orders.seed + number)),
            ],
            cwd=ROOT,
            env=environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,  # an interrupt from the keyboard is for the run, which then ends them
        )
        for number in range(processes)
    ]
    try:
        for process in crew:
            assert answer(process) == "ready"
        yield crew
    finally:
        for process in crew:
            process.kill()
            process.communicate()


def say(process: subprocess.Popen[str], what: str) -> None:
    assert process.stdin is not None
    process.stdin.write(f"{what}\n")
    process.stdin.flush()


def answer(process: subprocess.Popen[str]) -> Any:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise RuntimeError(f"a waiting process ended with exit code {process.wait()}")
    return json.loads(line)


def emptied(orders: Orders) -> tuple[int, int]:
    """Take all tokens that a bucket has, and return when that was and the part of one that is left."""
    from zae_limiter import RateLimitExceeded, SyncRateLimiter
    from zae_limiter.engine.law import Rate, balance

    with SyncRateLimiter.open(orders.url, bucket_ttl_multiplier=0) as limiter:
        while True:
            there = limiter.available(ENTITY, RESOURCE, orders.limits)[LIMIT]
            if there <= 0:
                states = limiter.repository.get_bucket(ENTITY, RESOURCE)
                state = next(state for state in states if state.limit_name == LIMIT)
                now_ms = time.time_ns() // 1_000_000
                held = balance(Rate.of(orders.limits[0]), state.tokens_milli, state.last_refill_ms, now_ms)
                return now_ms, held
            taking = limiter.acquire(ENTITY, RESOURCE, {LIMIT: there}, orders.limits)
            with contextlib.suppress(RateLimitExceeded), taking:
                pass


def begun(process: subprocess.Popen[str]) -> int:
    """How many waiters of a process have begun so far."""
    say(process, COUNT)
    return int(answer(process))


def run(orders: Orders, processes: int, seconds: float, starts_min: int = 0) -> Seen:
    """Let some processes wait for one bucket, until so many have begun at least, and tell what they saw."""
    emptied(orders)
    with fleet(orders, processes) as crew:
        began = emptied(orders)
        for process in crew:
            say(process, GO)
        time.sleep(seconds)
        while sum(map(begun, crew)) < starts_min:
            time.sleep(0.1)
        for process in crew:
            say(process, ENOUGH)
        return put_together(orders, began, [answer(process) for process in crew])


def put_together(orders: Orders, began: tuple[int, int], told: Sequence[dict[str, Any]]) -> Seen:
    """What several processes saw of a bucket that was empty at an instant."""
    starts = [Start(*at)._replace(process=n) for n, each in enumerate(told) for at in each["starts"]]
    return Seen(
        orders,
        len(told) * orders.waiters,
        *began,
        max(each["ended_ms"] for each in told),
        sorted(starts, key=lambda start: (start.serial, -start.left)),
        sum(each["cancelled"] for each in told),
        sum((Counter(each["counts"]) for each in told), Counter()),
        sum((Counter(each["blamed"]) for each in told), Counter()),
        [failure for each in told for failure in each["failures"]],
        sum(each["lost"] for each in told),
        max(each["overslept_ms"] for each in told),
    )


@contextlib.contextmanager
def stores() -> Iterator[Path]:
    """Where stores can be made; servers that are started for them end with it."""
    from tests.engines import dynamodb_local, postgres, redis_server
    from tests.postgres.schemas import owner

    dynamodb_local.isolate_from_aws()
    with tempfile.TemporaryDirectory(prefix="zae-waiting-") as folder:
        try:
            yield Path(folder)
        finally:
            dynamodb_local.stop(None)
            redis_server.SERVER.stop()
            if owner.cache_info().currsize:
                owner().close()
            postgres.SERVER.stop()


def located(store: str, folder: Path, name: str) -> str:
    """A fresh store of a kind, by its URL."""
    from tests.stores import url_of

    own = folder / name.replace(" ", "-")
    own.mkdir()
    return url_of(store, own)


def judged(found: dict[str, float], targets: Sequence[Target]) -> bool:
    """Print figures; whether all of them are as they must be."""
    bounds, fine = {target.what: target for target in targets}, True
    for what, value in found.items():
        target, mark = bounds.get(what), ""
        if target is not None:
            met = target.is_met(value)
            fine = fine and met
            bound = f"at least {target.least:g}" if target.least else f"at most {target.most:g}"
            mark = f"  {'ok' if met else 'MISSED'}, {bound}"
        print(f"  {what:<76} {value:>9.4g}{mark}")
    return fine


def shown(seen: Seen) -> bool:
    """Print what was seen; whether all of it is as it must be."""
    fine = judged(figures(seen), targets(seen.orders.variant))
    for what, count in seen.blamed.most_common(8):
        print(f"    refused {count:>6} × {what}")
    for before, start in seen.overtaken[:3]:
        print(f"    booked after {before}: {start}; they began {seen.began_ms}")
    for before, start in seen.inverted(within=True)[:3]:
        print(f"    began before {before}: {start}")
    for failure in seen.failures[:3]:
        print(f"    failed: {failure}")
    return fine


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.waiting", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60, help="how long each of the runs lasts")
    parser.add_argument("--stores", nargs="+", choices=STORES, default=STORES)
    parser.add_argument("--variants", nargs="+", choices=BOUNDS, default=BOUNDS)
    parser.add_argument("--processes", type=int, default=PROCESSES)
    parser.add_argument("--waiters", type=int, default=WAITERS, help="in each process")
    parser.add_argument("--capacity", type=int, default=CAPACITY)
    parser.add_argument("--refill", type=int, default=REFILL, help="in a second")
    options, fine = parser.parse_args(), True
    with stores() as folder:
        for store in options.stores:
            for variant in options.variants:
                at = located(store, folder, f"{store} {variant}")
                orders = Orders(at, variant, options.waiters, options.capacity, options.refill, seed=0)
                crew = f"{options.processes} processes × {options.waiters} waiters"
                print(f"{store}, {variant}: {crew}, {options.refill} a second, {options.seconds:g} s")
                fine = shown(run(orders, options.processes, options.seconds)) and fine
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
