"""Usage from the change logs of stores that are no DynamoDB, and the program that follows them."""

import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from tests.aggregator.known_usage import usage_rows
from tests.patience import PATIENCE_SECONDS
from tests.stores import url_of
from zae_limiter import Limit, SyncRateLimiter
from zae_limiter.backends import open_backend
from zae_limiter.backends.change_log import LogEntry, log_of
from zae_limiter.backends.sqlite import SqliteBackend
from zae_limiter.exceptions import (
    InfrastructureError,
    RateLimiterUnavailable,
    ValidationError,
    without_secrets,
)
from zae_limiter.models import BackendCapabilities
from zae_limiter.repository_protocol import Backend, Key, Put
from zae_limiter.runtime.colour import run_sync
from zae_limiter.runtime.world import World
from zae_limiter.schema import bucket_key
from zae_limiter.testing import ManualClock
from zae_limiter.testing.stores import Wrapper
from zae_limiter_aggregator import AggregatorSettings, Tally
from zae_limiter_aggregator.runner import (
    LogSource,
    aggregate,
    follow,
    is_behind,
    source_of,
)

RPM = Limit.per_minute("rpm", 1_000)
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(params=["memory", "sqlite", "redis", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return url_of(request.param, tmp_path)


@pytest.fixture
def backend(url: str) -> Iterator[Backend]:
    store = open_backend(url, sync=True, world=World())
    run_sync(store.setup())
    yield store
    run_sync(store.close())


def use(url: str, times: int, entity_id: str = "user-1", namespace: str = "default") -> None:
    """Take one, adjust by two and give every third back."""
    with SyncRateLimiter.open(url, namespace=namespace) as limiter:
        for n in range(times):
            try:
                with limiter.acquire(entity_id, "api", {"rpm": 1}, limits=[RPM]) as lease:
                    lease.adjust(rpm=2)
                    if n % 3 == 2:
                        raise KeyError(n)
            except KeyError:
                pass


def follow_once(source: Any) -> Tally:
    return follow(source, until_idle=True, stop=threading.Event(), tell=lambda *_: None)


def totals(url: str, namespace: str = "default") -> dict[str, dict[str, int]]:
    with SyncRateLimiter.open(url, namespace=namespace) as limiter:
        snapshots, _ = limiter.repository.get_usage_snapshots(resource="api", window_type="daily")
    used: dict[str, dict[str, int]] = {}
    for snapshot in snapshots:
        of_entity = used.setdefault(snapshot.entity_id, {})
        for name, amount in snapshot.counters.items():
            of_entity[name] = of_entity.get(name, 0) + amount
    return used


def test_usage_of_a_store_with_a_log(url: str, backend: Backend) -> None:
    """Counted from the first acquire on, whenever somebody asks, and once."""
    use(url, 3)  # nobody follows yet
    source = source_of(backend, url, World(), AggregatorSettings())
    follow_once(source)
    assert totals(url) == {"user-1": {"rpm": 6}}
    use(url, 30)
    use(url, 3, "user-2")
    follow_once(source)
    assert totals(url) == {"user-1": {"rpm": 66}, "user-2": {"rpm": 6}}
    assert follow_once(source).records == 0
    use(url, 3)
    follow_once(source)
    assert totals(url) == {"user-1": {"rpm": 72}, "user-2": {"rpm": 6}}


def test_a_reader_that_dies_before_it_trims_counts_nothing_twice(url: str, backend: Backend) -> None:
    """The row knows how far it has counted."""
    log = log_of(backend)
    use(url, 9)

    class Killed(Exception):
        pass

    class Untrimmed:
        read, close = log.read, log.close

        def trim(self, position: int) -> None:
            raise Killed(position)

    for _ in range(3):
        source = LogSource(backend, Untrimmed(), World(), AggregatorSettings())  # type: ignore[arg-type]
        with pytest.raises(Killed):
            run_sync(source.step())
    use(url, 3)
    follow_once(LogSource(backend, log, World(), AggregatorSettings()))
    assert totals(url) == {"user-1": {"rpm": 24}}


def test_what_a_deleted_entity_used_goes_with_it(url: str, backend: Backend) -> None:
    """Also what nobody has counted yet: it would come back as usage of somebody who does not exist."""
    use(url, 3)
    use(url, 3, "user-2")
    assert is_behind(backend)
    with SyncRateLimiter.open(url, namespace="default") as limiter:
        limiter.repository.delete_entity("user-1")
    follow_once(source_of(backend, url, World(), AggregatorSettings()))
    assert totals(url) == {"user-2": {"rpm": 6}}


def test_asking_whether_something_waits_counts_nothing(url: str, backend: Backend) -> None:
    """It is told of a store that is only looked at, such as by ``usage list``."""
    assert is_behind(backend) is False
    use(url, 3)
    assert is_behind(backend) is True
    use(url, 3)
    assert aggregate(url, until_idle=True).changes == 2  # as if nobody had asked: made, and used since
    assert is_behind(backend) is False


def test_entries_of_nothing_that_is_counted_are_progress(url: str, backend: Backend) -> None:
    """Whoever counts until nothing is left goes on behind them."""
    odd = [LogEntry(n, Key(f"odd-{n}", "#STATE"), None, {}, 0) for n in range(5)]
    use(url, 3)

    class Odd:
        def __init__(self) -> None:
            self.log = log_of(backend)

        def read(self, entries_max: int) -> list[LogEntry]:
            return odd[:1] or self.log.read(entries_max)

        def trim(self, position: int) -> None:
            odd.pop(0) if odd else self.log.trim(position)

        def close(self) -> None:
            self.log.close()

    follow_once(LogSource(backend, Odd(), World(), AggregatorSettings()))  # type: ignore[arg-type]
    assert totals(url) == {"user-1": {"rpm": 6}}


def test_a_store_without_a_log_says_so() -> None:
    """A server's store has a stream."""

    class Server(Wrapper):
        capabilities = BackendCapabilities("postgresql")

    with pytest.raises(ValidationError, match="postgresql"):
        log_of(Server(None))  # type: ignore[arg-type]


def test_a_broken_log_is_unavailable(tmp_path: Path) -> None:
    """As every store that does not answer."""
    log = log_of(SqliteBackend(tmp_path / "limits.db", sync=True, timeout_ms=1_000, world=World()))
    assert log.read(1) == []
    with sqlite3.connect(tmp_path / "limits.db") as file:
        file.execute("DROP TABLE changes")
    file.close()
    with pytest.raises(RateLimiterUnavailable, match=r"limits\.db"):
        log.read(1)
    log.close()


@pytest.mark.parametrize("end", ["deleted", "replaced"])
@pytest.mark.parametrize("until_idle", [False, True])
def test_a_file_that_is_replaced_ends_the_program(tmp_path: Path, end: str, until_idle: bool) -> None:
    """It would count what nobody uses any more; started again it counts what is there now."""
    path = tmp_path / "limits.db"
    url = f"sqlite:///{path}"
    use(url, 3)
    stop, steps = Impatient(), count()

    def replace(total: Tally, _: str) -> None:
        if next(steps) == 20:
            stop.set()
        if total.records and path.exists():
            for file in tmp_path.iterdir():
                file.unlink()
            if end == "replaced":
                use(url, 6)
            time.sleep(0.002)  # a look at the path is trusted for a millisecond

    with pytest.raises(InfrastructureError, match=r"limits\.db' was deleted or replaced .* start"):
        aggregate(url, until_idle=until_idle, stop=stop, tell=replace)
    aggregate(url, until_idle=True)
    assert totals(url) == ({"user-1": {"rpm": 12}} if end == "replaced" else {})


def test_the_log_has_the_time_of_the_change() -> None:
    """In memory that is the clock of the store's world."""
    clock = ManualClock()
    backend = open_backend("memory://", sync=True, world=clock.world)
    source = source_of(backend, "memory://", clock.world, AggregatorSettings())
    clock.advance(7_200)
    run_sync(backend.write_each([Put(bucket_key("ns", "u", "r"), limits(5))]))
    follow_once(source)
    (hourly,) = [row for row in usage_rows(backend, "ns", ["u"]).values() if row["window"] == "hourly"]
    assert hourly["window_start"] == "2023-11-15T00:00:00Z"


def limits(consumed: int) -> dict[str, int]:
    return {"rf": 0, "b_a_tk": 0, "b_a_cp": 9, "b_a_ra": 1, "b_a_rp": 1, "b_a_tc": consumed * 1000}


# The program.


class Scripted:
    """A source whose steps are given."""

    def __init__(self, *steps: Any) -> None:
        self.steps, self.closed = list(steps), False

    async def step(self) -> Tally:
        step = self.steps.pop(0) if len(self.steps) > 1 else self.steps[0]
        if isinstance(step, Exception):
            raise step
        result: Tally = step() if isinstance(step, Callable) else step  # type: ignore[arg-type]
        return result

    async def close(self) -> None:
        self.closed = True


class Impatient(threading.Event):
    """An event that nobody sets, and for which waiting takes no time."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[float | None] = []

    def wait(self, timeout: float | None = None) -> bool:
        self.waits.append(timeout)
        return False


def test_a_store_that_is_away_is_asked_again_ever_more_slowly() -> None:
    """And told of, until it answers."""
    said: list[str] = []
    stop, away = Impatient(), RateLimiterUnavailable("away")
    source = Scripted(*[away] * 12, Tally(records=5), Tally())
    total = follow(source, until_idle=True, stop=stop, tell=lambda _, trouble: said.append(trouble))
    assert (total.records, source.closed) == (5, True)
    assert said == ["away"] * 12 + [""] * 4
    waits = [wait or 0 for wait in stop.waits]
    assert waits == sorted(waits)
    assert max(waits) == 30


def test_a_record_that_always_fails_ends_the_program() -> None:
    """With its name: going on would lose it."""
    source = Scripted(Tally(records=1, failed={"123": "unreadable"}))
    with pytest.raises(InfrastructureError, match=r"record 123 .* unreadable"):
        follow(source, until_idle=True, stop=Impatient(), tell=lambda *_: None)
    assert source.closed


def test_aggregate_opens_and_closes_a_store(url: str) -> None:
    """The whole program as one call; the log goes on between two of them."""
    assert aggregate(url, until_idle=True).records == 0
    use(url, 9)
    told: list[int] = []
    total = aggregate(url, until_idle=True, tell=lambda total, _: told.append(total.records))
    assert total.changes == 2
    assert told[-1] == total.records
    assert totals(url) == {"user-1": {"rpm": 18}}


def test_an_embedded_store_needs_no_driver() -> None:
    """The base install has none."""
    without = "import sys; sys.modules['botocore'] = sys.modules['aiobotocore'] = None; "
    program = "from zae_limiter_aggregator.runner import aggregate; aggregate('memory://', until_idle=True)"
    subprocess.run([sys.executable, "-c", without + program], check=True)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("kind", ["sqlite", "redis", "postgres"])
def test_a_signal_ends_the_program_cleanly(tmp_path: Path, kind: str, number: int) -> None:
    """It says what it follows, finishes its step, says what it did; then everything is counted."""
    url = url_of(kind, tmp_path)
    aggregate(url, until_idle=True)
    use(url, 9)
    command = [sys.executable, "-m", "tests.aggregator.program", "--store", url, "--output", "json"]
    program = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + PATIENCE_SECONDS
    while totals(url) != {"user-1": {"rpm": 18}}:
        assert time.monotonic() < deadline, "it counts nothing"
        assert program.poll() is None, program.communicate()
        time.sleep(0.05)
    os.kill(program.pid, number)
    out, err = program.communicate(timeout=PATIENCE_SECONDS)
    assert (program.returncode, err) == (0, f"following {without_secrets(url)}; Ctrl-C ends it\n")
    assert '"rows_written": 2' in out
