"""The storm: ``make storm``, or ``python -m tests.breaking.storm --minutes 2``.

Two hundred tasks in several processes use DynamoDB Local, Redis or PostgreSQL through a proxy that loses,
delays, tears and throttles; clients, the proxy and the server itself are killed with SIGKILL and started
again. When it is over every client has ended in time, the store's books agree with those of the clients, no
bucket has broken the law, and a newcomer can use every one of them.
"""

import argparse
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

from tests.breaking.books import KILLED, Ledger, read_books
from tests.breaking.client import BUGS
from tests.breaking.contested_buckets import RESOURCE, furnish
from tests.breaking.engines_of_storm import OWN, BorrowedDynamoDB, Engine
from tests.breaking.faulty_proxy import FAULTS, OF_SERVERS
from tests.breaking.final_checks import by_entity, complaints, use_complaints
from tests.engines import dynamodb_local
from tests.engines.dynamodb_local import free_port, wait_for_port
from tests.patience import wait_until
from zae_limiter import Limit, SyncRateLimiter
from zae_limiter.runtime.colour import run_sync

DEADLINE_S = (1.5, 10.0)
"""Of one call of the store, on a quick and on a very slow machine."""

HANGS_SECONDS = 300
"""How long an operation may take on the slowest machine; that it ends at all is the point here."""

CALLS_PER_OPERATION = 8
"""About four are needed; the rest is room for what has to be repeated, and for the proxy's own work."""

PAUSE_SECONDS_MAX = 3.0
SEATS = ("tasks", "threads", "tasks", "threads")
EVENTS = ("client", "proxy", "client", "engine")
WARM_UP, WARM_UP_SECONDS = "warm-up-", 2.5
PLENTY = [Limit("rpm", 10**9, 10**6, 1)]


@dataclass(frozen=True)
class Plan:
    seconds: float
    tasks: int = 200
    seed: int = 1
    rate: float = 0.015
    """How many of the requests are hit."""
    faults: tuple[str, ...] = FAULTS
    events: tuple[str, ...] = EVENTS
    """Who is killed in turn, at equal intervals."""
    admitted_min: int = 0
    hits_min: int = 1
    """However slow the machine, it goes on until so many were admitted and each fault struck so often."""
    transports: tuple[str, ...] = ("lean",)
    bug: str | None = None
    store: str = "dynamodb"


@dataclass
class Report:
    store: str
    seconds: float
    tasks: int
    deadline_s: float = 0.0
    ledger: Ledger = field(default_factory=Ledger)
    faults: Counter[str] = field(default_factory=Counter)
    kills: Counter[str] = field(default_factory=Counter)
    buckets: int = 0
    shards: int = 0
    complaints: list[str] = field(default_factory=list)

    @property
    def summary(self) -> str:
        def listed(counts: Counter[str]) -> str:
            return ", ".join(f"{name} {number}" for name, number in sorted(counts.items())) or "none"

        verdict = "no violation" if not self.complaints else f"{len(self.complaints)} VIOLATIONS"
        ledger = self.ledger
        share = 100 * ledger.uncertain / max(1, ledger.operations)
        return (
            f"storm on {self.store}: {self.seconds:.0f} s, {self.tasks} tasks, "
            f"{ledger.operations} operations ({listed(ledger.how)}); faults: {listed(self.faults)}; "
            f"SIGKILL: {listed(self.kills)}; of uncertain cost {ledger.uncertain} ({share:.1f} %); "
            f"slowest operation {ledger.slowest_ms / 1000:.1f} s at a deadline of {self.deadline_s:.1f} s; "
            f"{self.buckets} buckets in {self.shards} shards: {verdict}"
        )


class Storm:
    """The processes of one storm."""

    def __init__(self, plan: Plan, folder: Path) -> None:
        self._plan, self._folder = plan, folder
        self._rng, self._numbers = random.Random(plan.seed), count(1)
        is_spared = plan.store == "dynamodb" and "engine" not in plan.events
        self._engine: Engine = BorrowedDynamoDB() if is_spared else OWN[plan.store]()
        self._proxy_port = free_port()
        self._proxy: subprocess.Popen[bytes] | None = None
        self._clients: dict[int, tuple[int, subprocess.Popen[bytes]]] = {}
        self._report = Report(plan.store, 0, plan.tasks)
        self._deadline_s, self._pause_s = DEADLINE_S[0], 0.5

    def run(self) -> Report:
        since = time.monotonic()
        try:
            self._begin()
            pause_s = self._plan.seconds / (len(self._plan.events) + 1)
            for event in self._plan.events:
                time.sleep(pause_s)
                self._strike(event)
                self._report.kills[event] += 1
            time.sleep(pause_s)
            wait_until(self._has_seen_enough, "the storm gets nowhere")
            self._calm_down()
            self._check()
        finally:
            self._clean_up()
        self._report.seconds, self._report.deadline_s = time.monotonic() - since, self._deadline_s
        return self._report

    def _has_seen_enough(self) -> bool:
        for _, process in self._clients.values():
            assert process.poll() is None, self._errors()
        admitted = read_books(self._folder.glob("book-*")).how["admitted"]
        hits = self._hits()
        return admitted >= self._plan.admitted_min and all(
            hits[fault] >= self._plan.hits_min for fault in self._plan.faults
        )

    def _hits(self) -> Counter[str]:
        return Counter((self._folder / "faults").read_text().split("\n")[:-1])

    def _begin(self) -> None:
        self._engine.start()
        self._engine.make_store()
        with self._newcomer() as limiter:
            run_sync(furnish(limiter._async))
            calls_per_second = pace_of(limiter)
        # Deadlines that a slow machine cannot meet would only make everything uncertain.
        self._deadline_s = min(DEADLINE_S[1], max(DEADLINE_S[0], 300 / calls_per_second))
        self._pause_s = min(PAUSE_SECONDS_MAX, 2 * self._plan.tasks * CALLS_PER_OPERATION / calls_per_second)
        self._start_proxy()
        for seat in range(len(SEATS)):
            self._start_client(seat)
        wait_until(self._have_all_begun, "the clients do not start")

    def _have_all_begun(self) -> bool:
        return sum(book.stat().st_size > 0 for book in self._folder.glob("book-*")) >= len(SEATS)

    def _newcomer(self) -> SyncRateLimiter:
        """Somebody who goes straight to the engine and has all the time in the world."""
        return SyncRateLimiter.open(self._engine.url(self._engine.port, 60_000), bucket_ttl_multiplier=0)

    def _start_proxy(self) -> None:
        numbers = (self._proxy_port, self._engine.port, self._folder / "faults")
        chances = (self._plan.rate, self._deadline_s, self._rng.randrange(10**6))
        self._proxy = self._start("faulty_proxy", *numbers, *chances, self._plan.store, *self._plan.faults)
        wait_for_port(self._proxy_port)

    def _start_client(self, seat: int) -> None:
        number, transport = next(self._numbers), self._plan.transports[seat % len(self._plan.transports)]
        url = self._engine.url(self._proxy_port, int(self._deadline_s * 1000), transport)
        book, tasks = self._folder / f"book-{number}", self._plan.tasks // len(SEATS)
        bug = ("--bug", self._plan.bug) if self._plan.bug else ()
        options = ("--pause", self._pause_s, *bug)
        process = self._start(
            "client", url, book, SEATS[seat], tasks, number, *options, errors=f"errors-{number}"
        )
        self._clients[seat] = number, process

    def _start(self, module: str, *arguments: object, errors: str = "errors") -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", f"tests.breaking.{module}", *map(str, arguments)]
        with (self._folder / errors).open("ab") as file:
            return subprocess.Popen(
                command,
                cwd=dynamodb_local.ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=file,
                start_new_session=True,
            )

    def _strike(self, what: str) -> None:
        match what:
            case "client":
                self._strike_client()
            case "proxy":
                assert self._proxy is not None
                end(self._proxy, signal.SIGKILL)
                self._start_proxy()
            case "engine":
                self._engine.kill()
                time.sleep(self._deadline_s * 1.2)
                self._engine.start()

    def _strike_client(self) -> None:
        """Kill a client in the middle of everything; another one takes its seat."""
        seat = self._rng.randrange(len(SEATS))
        _, process = self._clients[seat]
        assert process.poll() is None, self._errors()
        end(process, signal.SIGKILL)
        self._start_client(seat)

    def _calm_down(self) -> None:
        """Let the clients finish what they are at, and then what is still on its way."""
        for _, process in self._clients.values():
            assert process.stdin is not None
            process.stdin.close()
        deadline = time.monotonic() + HANGS_SECONDS
        for number, process in self._clients.values():
            try:
                code = process.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                self._report.complaints.append(f"client {number} hangs")
            else:
                if code:
                    self._report.complaints.append(f"client {number} ended with {code}: {self._errors()}")
        assert self._proxy is not None
        end(self._proxy, signal.SIGTERM)

    def _errors(self) -> str:
        return "\n".join(path.read_text()[-2000:] for path in self._folder.glob("errors*"))

    def _check(self) -> None:
        report = self._report
        report.ledger = read_books(self._folder.glob("book-*"))
        report.faults = self._hits()
        buckets = [b for b in self._engine.buckets() if not b["entity_id"].startswith(WARM_UP)]
        entities = by_entity(buckets)
        report.buckets, report.shards = len(entities), len(buckets)
        report.complaints += complaints(report.ledger, buckets)
        killed, tasks_killed = (
            report.ledger.how[KILLED],
            report.kills["client"] * self._plan.tasks // len(SEATS),
        )
        if killed > tasks_killed:
            report.complaints.append(f"{killed} operations never ended, and {tasks_killed} tasks died")
        if report.ledger.slowest_ms > HANGS_SECONDS * 1000:
            report.complaints.append(f"an operation took {report.ledger.slowest_ms} ms")
        with self._newcomer() as limiter:
            report.complaints += use_complaints(limiter, list(entities))

    def _clean_up(self) -> None:
        for process in (*(client for _, client in self._clients.values()), self._proxy):
            if process is not None and process.poll() is None:
                end(process, signal.SIGKILL)
        self._engine.remove()


def pace_of(limiter: SyncRateLimiter) -> float:
    """How many calls a second the engine takes from four threads, once it is warm."""
    calls: list[float] = []
    over = time.monotonic() + WARM_UP_SECONDS

    def use(number: int) -> None:
        while time.monotonic() < over:
            with limiter.acquire(f"{WARM_UP}{number}", RESOURCE, {"rpm": 1}, PLENTY):
                calls.append(time.monotonic())

    crew = [threading.Thread(target=use, args=(number,)) for number in range(4)]
    for thread in crew:
        thread.start()
    for thread in crew:
        thread.join()
    return max(1.0, sum(call > over - 1 for call in calls))


def end(process: subprocess.Popen[bytes], how: signal.Signals) -> None:
    process.send_signal(how)
    process.wait()
    assert process.stdin is not None
    process.stdin.close()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.breaking.storm", description=__doc__)
    parser.add_argument("--minutes", type=float, default=2, help="how long the clients are left to it")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--tasks", type=int, default=200)
    parser.add_argument("--store", choices=OWN, default="dynamodb")
    parser.add_argument("--bug", choices=BUGS, help="plant a mistake that must be found")
    options = parser.parse_args()
    dynamodb_local.isolate_from_aws()
    seconds = options.minutes * 60
    plan = Plan(
        seconds,
        options.tasks,
        options.seed,
        events=EVENTS * max(1, round(seconds / 24)),
        faults=FAULTS if options.store == "dynamodb" else OF_SERVERS,
        transports=("lean", "lean", "lean", "boto"),
        bug=options.bug,
        store=options.store,
    )
    folder = Path(tempfile.mkdtemp(prefix="zae-limiter-storm-"))
    report = Storm(plan, folder).run()
    for complaint in report.complaints:
        print(complaint)
    print(report.summary)
    if report.complaints:
        print(f"hint: the books are kept in {folder}", file=sys.stderr)
        return 1
    shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
