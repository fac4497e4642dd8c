"""Many processes, threads and tasks on one SQLite file: nothing lost, nothing double, nobody stuck."""

import asyncio
import contextlib
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.backends.worker import COUNTER
from tests.patience import PATIENCE_SECONDS, wait_until
from zae_limiter.backends.sqlite import SqliteBackend, statements
from zae_limiter.backends.sqlite.file import APPLICATION_ID
from zae_limiter.exceptions import RateLimiterUnavailable
from zae_limiter.repository_protocol import AtLeast, Check, Item, Key, Put, Query, Update
from zae_limiter.runtime.colour import run_sync
from zae_limiter.runtime.world import World
from zae_limiter.schema import INDEXES

WORKER = Path(__file__).with_name("worker.py")
K = Key("p", "s")
ADD = Update(K, add={"n": 1})


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "limits.db"


@contextlib.contextmanager
def backend(path: Path, timeout_ms: int = 60_000, world: World | None = None) -> Iterator[SqliteBackend]:
    """A blocking backend that is set up."""
    it = SqliteBackend(path, sync=True, timeout_ms=timeout_ms, world=world or World())
    run_sync(it.setup())
    yield it
    run_sync(it.close())


@contextlib.contextmanager
def workers(count: int, *arguments: object) -> Iterator[list[subprocess.Popen[str]]]:
    """Processes that have said their first line; ``{}`` in an argument is the number of the worker."""
    command = [sys.executable, str(WORKER)]
    started = [
        subprocess.Popen(
            [*command, *(str(argument).replace("{}", str(number)) for argument in arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in range(count)
    ]
    try:
        yield started
    finally:
        for process in started:
            process.kill()
            process.communicate()


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def tell(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def counter(path: Path, key: Key = COUNTER) -> Item:
    with backend(path) as it:
        (item,) = run_sync(it.batch_get([key]))
    assert item is not None
    return item


def can_write(path: Path) -> bool:
    """Whether nobody holds the write lock."""
    with contextlib.closing(sqlite3.connect(path, timeout=0, isolation_level=None)) as connection:
        try:
            connection.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            return False
        connection.execute("ROLLBACK")
    return True


class TestProcesses:
    def test_eight_processes_and_one_counter(self, path: Path) -> None:
        """Every write of every process counts exactly once, also when all create the file together."""
        with workers(8, "count", path, "w{}", 250) as running:
            assert [line(process) for process in running] == ["ready"] * 8
            for process in running:
                tell(process)
            seen = [int(total) for process in running for total in process.communicate()[0].split()]
            assert [process.returncode for process in running] == [0] * 8
        assert sorted(seen) == list(range(1, 2001))
        assert counter(path) == {"total": 2000, **{f"w{n}": 250 for n in range(8)}}

    def test_killed_process(self, path: Path) -> None:
        """A process killed while it writes takes nothing along but, perhaps, its last reply."""
        with workers(3, "count", path, "w{}", 1_000_000) as running:
            for process in running:
                line(process)
            for process in running:
                tell(process)
            acknowledged = {}
            # One after the other, each in the middle of its run.
            for number, process in enumerate(running):
                for _ in range(200):
                    line(process)
                process.send_signal(signal.SIGKILL)
                assert process.stdout is not None
                acknowledged[f"w{number}"] = 200 + len(process.stdout.read().split())
                assert process.wait() == -signal.SIGKILL
        stored = counter(path)
        for name, count in acknowledged.items():
            assert stored[name] in (count, count + 1)
        assert stored["total"] == sum(int(str(stored[name])) for name in acknowledged)
        with contextlib.closing(sqlite3.connect(path)) as connection:
            assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]

    def test_fork(self, path: Path) -> None:
        """Children open their own connection, inherit none, and lose nothing, with threads running."""
        with workers(1, "fork", path, 10, 20) as (process,):
            threaded, failed = map(int, process.communicate(timeout=PATIENCE_SECONDS)[0].split())
        assert failed == 0
        assert counter(path) == {"total": threaded + 210, "thread": threaded, "parent": 10, "child": 200}

    def test_other_process_has_the_lock(self, path: Path) -> None:
        """While another process holds the write lock the event loop goes on; then the write is done."""

        async def scenario(holder: subprocess.Popen[str]) -> tuple[bool, Any]:
            it = SqliteBackend(path, sync=False, timeout_ms=30_000, world=World())
            pending = asyncio.ensure_future(it.write_each([ADD]))
            for _ in range(50):
                await asyncio.sleep(0.001)
            early = pending.done()
            tell(holder)
            outcomes = await pending
            await it.close()
            return early, outcomes

        with backend(path), workers(1, "hold", path) as (holder,):
            assert line(holder) == "held"
            early, (outcome,) = asyncio.run(scenario(holder))
        assert not early
        assert (outcome.applied, outcome.item) == (True, {"n": 1})


class TestThreadsAndTasks:
    def test_threads(self, path: Path) -> None:
        """Threads share one backend."""
        seen: list[int] = []

        def work(it: SqliteBackend) -> None:
            for _ in range(100):
                (outcome,) = run_sync(it.write_each([ADD]))
                assert outcome.item is not None
                seen.append(int(str(outcome.item["n"])))

        with backend(path) as it:
            threads = [threading.Thread(target=work, args=(it,)) for _ in range(8)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        assert sorted(seen) == list(range(1, 801))

    def test_tasks_and_backends(self, path: Path) -> None:
        """Tasks of two loops in two threads, with a backend each, count together."""

        async def tasks() -> None:
            it = SqliteBackend(path, sync=False, timeout_ms=10_000, world=World())
            for outcomes in await asyncio.gather(*(it.write_each([ADD]) for _ in range(200))):
                assert outcomes[0].applied
            await it.close()

        threads = [threading.Thread(target=asyncio.run, args=(tasks(),)) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert counter(path, K) == {"n": 400}

    def test_free_store_needs_no_thread(self, path: Path) -> None:
        """An async call on a store that is open and free is done before anything else runs."""

        async def scenario() -> int:
            it = SqliteBackend(path, sync=False, timeout_ms=1000, world=World())
            await it.setup()
            before = threading.active_count()
            # Driven by hand: a call that wanted to wait would suspend, and this would raise.
            for call in (it.write_each([ADD]), it.transact_write([ADD])):
                run_sync(call)
            run_sync(it.batch_get([K, COUNTER]))
            run_sync(it.query(Query("p")))
            return threading.active_count() - before

        assert asyncio.run(scenario()) == 0

    def test_sync_inside_a_running_loop(self, path: Path) -> None:
        """A blocking backend does not care whether a loop is running."""

        async def scenario() -> None:
            with backend(path) as it:
                run_sync(it.write_each([ADD]))

        asyncio.run(scenario())
        assert counter(path, K) == {"n": 1}

    def test_use_after_close(self, path: Path) -> None:
        """A closed backend opens its file again when it is used again; closing twice is fine."""
        with backend(path) as it:
            run_sync(it.write_each([ADD]))
            run_sync(it.close())
            run_sync(it.close())
            assert run_sync(it.batch_get([K])) == [{"n": 1}]


class TestDeadline:
    @pytest.fixture
    def locked(self, path: Path) -> Iterator[sqlite3.Connection]:
        """The store, locked by a foreign connection."""
        with backend(path):
            pass
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
            connection.execute("BEGIN IMMEDIATE")
            yield connection

    @pytest.mark.parametrize("sync", [False, True], ids=["async", "sync"])
    def test_busy(self, path: Path, locked: sqlite3.Connection, sync: bool) -> None:
        """A locked store is unavailable after its deadline, known not to have written, then usable."""

        async def scenario() -> None:
            it = SqliteBackend(path, sync=sync, timeout_ms=50, world=World())
            start = time.monotonic()
            outcomes = await it.write_each([ADD, ADD])
            assert time.monotonic() - start >= 0.05
            for outcome in outcomes:
                assert not outcome.applied
                assert outcome.failure is not None
                assert not outcome.failure.ambiguous
                assert "busy for 50 ms" in str(outcome.failure)
                assert str(path) in str(outcome.failure)
            with pytest.raises(RateLimiterUnavailable, match="busy for 50 ms"):
                await it.transact_write([ADD])
            assert await it.batch_get([K]) == [None]
            locked.execute("COMMIT")
            assert (await it.write_each([ADD]))[0].item == {"n": 1}
            await it.close()

        run_sync(scenario()) if sync else asyncio.run(scenario())

    def test_clock_that_stands_still(self, path: Path, locked: sqlite3.Connection) -> None:
        """Waiting ends even if the injected clock never moves."""
        world = World(ticks_ms=lambda: 0.0, random=Random(1))
        it = SqliteBackend(path, sync=True, timeout_ms=30, world=world)
        (outcome,) = run_sync(it.write_each([ADD]))
        assert outcome.failure is not None
        run_sync(it.close())
        assert locked.in_transaction

    def test_readers_do_not_wait(self, path: Path, locked: sqlite3.Connection) -> None:
        """Reading goes on while another process writes."""
        it = SqliteBackend(path, sync=True, timeout_ms=1, world=World())
        assert run_sync(it.batch_get([K])) == [None]
        assert run_sync(it.query(Query("p"))).rows == ()
        run_sync(it.close())
        assert locked.in_transaction


class FaultyConnection(sqlite3.Connection):
    """A connection that fails at a statement, as a disk or a memory would make it fail."""

    faults: dict[str, int] = {}  # noqa: RUF012 - one plan for the connections of one test
    lost: set[str] = set()  # noqa: RUF012
    log: list[str] = []  # noqa: RUF012

    def execute(self, sql: str, *parameters: Any) -> sqlite3.Cursor:
        self.log.append(sql)
        for start, code in self.faults.items():
            if sql.startswith(start):
                if start in self.lost:
                    super().execute("ROLLBACK")
                error = sqlite3.OperationalError("planned fault")
                error.sqlite_errorcode = code
                raise error
        return super().execute(sql, *parameters)


class TestFaults:
    @pytest.fixture
    def plan(self, monkeypatch: pytest.MonkeyPatch) -> type[FaultyConnection]:
        connect = sqlite3.connect
        monkeypatch.setattr(FaultyConnection, "faults", {})
        monkeypatch.setattr(FaultyConnection, "lost", set())
        monkeypatch.setattr(FaultyConnection, "log", [])
        monkeypatch.setattr(
            sqlite3, "connect", lambda *args, **kw: connect(*args, factory=FaultyConnection, **kw)
        )
        return FaultyConnection

    @pytest.mark.parametrize(
        ("statement", "code", "lost", "ambiguous"),
        [
            ("BEGIN", sqlite3.SQLITE_IOERR, False, False),
            ("SELECT body", sqlite3.SQLITE_CORRUPT, False, False),
            ("INSERT", sqlite3.SQLITE_FULL, False, False),
            ("INSERT", sqlite3.SQLITE_READONLY, False, False),
            ("COMMIT", sqlite3.SQLITE_IOERR, False, False),
            ("COMMIT", sqlite3.SQLITE_FULL, True, False),
            ("COMMIT", sqlite3.SQLITE_IOERR, True, True),
        ],
    )
    def test_error(
        self, plan: type[FaultyConnection], path: Path, statement: str, code: int, lost: bool, ambiguous: bool
    ) -> None:
        """An error is an outcome that knows whether the write may have happened, and leaves no lock."""
        with backend(path) as it:
            plan.faults = {statement: code}
            plan.lost = {statement} if lost else set()
            (outcome,) = run_sync(it.write_each([ADD]))
            assert outcome.failure is not None
            assert outcome.failure.ambiguous is ambiguous
            assert "planned fault" in str(outcome.failure)
            assert outcome.failure.__cause__ is not None
            plan.faults = {}
            assert can_write(path)
            assert run_sync(it.write_each([ADD]))[0].item == {"n": 1}

    def test_error_in_a_transaction_is_raised(self, plan: type[FaultyConnection], path: Path) -> None:
        """Reads, queries and transactions raise what ``write_each`` returns."""
        with backend(path) as it:
            plan.faults = {"SELECT": sqlite3.SQLITE_IOERR}
            for call in (it.transact_write([ADD]), it.batch_get([K]), it.query(Query("p"))):
                with pytest.raises(RateLimiterUnavailable, match="planned fault"):
                    run_sync(call)
            plan.faults = {}

    def test_busy_for_a_moment(self, plan: type[FaultyConnection], path: Path) -> None:
        """A lock met in the middle of reading is waited for like any other."""

        def tick() -> float:
            if plan.log.count("BEGIN IMMEDIATE") > 3:
                plan.faults = {}
            return 0.0

        with backend(path, world=World(ticks_ms=tick)) as it:
            plan.faults = {"SELECT body": sqlite3.SQLITE_BUSY_RECOVERY}
            assert run_sync(it.write_each([ADD]))[0].applied

    def test_programming_error_ends_the_transaction(self, path: Path) -> None:
        """A write that makes no sense is raised as it is and does not leave the store locked."""
        with backend(path) as it:
            with pytest.raises(AssertionError, match="both added to and set"):
                run_sync(it.write_each([Put(COUNTER, {"n": 1}), Update(K, add={"n": 1}, set={"n": 1})]))
            assert can_write(path)
            assert run_sync(it.batch_get([COUNTER])) == [None]
            with pytest.raises(TypeError):
                run_sync(it.transact_write([Put(K, {"n": object()})]))  # type: ignore[dict-item]
            assert can_write(path)

    def test_token_change_touches_no_index(self, plan: type[FaultyConnection], path: Path) -> None:
        """Only the body is written unless an index attribute or the ttl changes."""
        item: Item = {"n": 1, "GSI2PK": "i", "GSI2SK": "a", "ttl": 4102444800}
        with backend(path) as it:
            run_sync(it.write_each([Put(K, item)]))
            plan.log = []
            run_sync(it.write_each([ADD, Put(K, {**item, "n": 7}), Check(K)]))
            assert not [sql for sql in plan.log if "gsi" in sql or "ttl" in sql]
            assert len([sql for sql in plan.log if sql.startswith("UPDATE")]) == 2
            run_sync(it.write_each([Update(K, add={"ttl": 1})]))
            assert [sql for sql in plan.log if "ttl" in sql]

    def test_corrupt_file(self, path: Path) -> None:
        """A file that is damaged while in use is unavailable, not a crash."""
        with backend(path) as it:
            run_sync(it.write_each([Put(Key("p", f"{i}"), {"text": "x" * 500}) for i in range(100)]))
        size = path.stat().st_size
        with path.open("r+b") as file:
            file.seek(4096)
            file.write(b"\xff" * (size - 4096))
        it = SqliteBackend(path, sync=True, timeout_ms=100, world=World())
        (outcome,) = run_sync(it.write_each([ADD]))
        assert outcome.failure is not None
        assert "malformed" in str(outcome.failure)
        run_sync(it.close())

    def test_directory_that_vanished(self, tmp_path: Path) -> None:
        """Once set up, a store that cannot be opened again is unavailable like any other."""
        folder = tmp_path / "folder"
        folder.mkdir()
        with backend(folder / "limits.db") as it:
            run_sync(it.close())
            for file in folder.iterdir():
                file.unlink()
            folder.rmdir()
            with pytest.raises(RateLimiterUnavailable, match="mkdir -p"):
                run_sync(it.batch_get([K]))
            (outcome,) = run_sync(it.write_each([ADD]))
            assert outcome.failure is not None


class TestLayout:
    def test_file(self, path: Path) -> None:
        """The file is ours, in WAL mode, and stays so."""
        with backend(path), contextlib.closing(sqlite3.connect(path)) as connection:
            assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
            assert connection.execute("PRAGMA application_id").fetchone() == (APPLICATION_ID,)
            assert connection.execute("PRAGMA user_version").fetchone() == (1,)
        assert path.read_bytes()[68:72] == b"zael"

    @pytest.mark.parametrize("index", [None, *INDEXES])
    @pytest.mark.parametrize(("backwards", "after"), list(product([False, True], repeat=2)))
    def test_queries_use_an_index(self, path: Path, index: str | None, backwards: bool, after: bool) -> None:
        """No query scans or sorts."""
        sql = statements.query_sql(index, backwards, after)
        with backend(path), contextlib.closing(sqlite3.connect(path)) as connection:
            arguments = ["x"] * (sql.count("?") - 1) + [1]
            plan = " ".join(row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {sql}", arguments))
        assert plan.startswith("SEARCH items USING")
        assert "TEMP B-TREE" not in plan

    def test_filter_is_bounded(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """One page looks at so many rows and no more; the cursor leads on to what lies behind them."""
        monkeypatch.setattr(statements, "SCAN_ROWS_MAX", 10)
        keys = [Key("p", f"{i:02}") for i in range(25)]
        with backend(path) as it:
            run_sync(it.write_each([Put(key, {"n": i}) for i, key in enumerate(keys)]))
            query, found, sizes = Query("p", when=(AtLeast("n", 19),), rows_max=4), [], []
            while True:
                page = run_sync(it.query(query))
                found += [row.key for row in page.rows]
                sizes.append(len(page.rows))
                if page.after is None:
                    break
                query = query._replace(after=page.after)
        assert found == keys[19:]
        assert sizes == [0, 1, 4, 1]

    def test_relative_path_is_fixed(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Changing the directory later does not change the store."""
        monkeypatch.chdir(tmp_path)
        it = SqliteBackend("limits.db", sync=True, timeout_ms=1000, world=World())
        (tmp_path / "elsewhere").mkdir()
        monkeypatch.chdir(tmp_path / "elsewhere")
        run_sync(it.setup())
        run_sync(it.close())
        assert [file.name for file in tmp_path.glob("*.db")] == ["limits.db"]


def test_async_tidies_up_in_a_thread(path: Path) -> None:
    """After a thousand writes the expired items and the log are cleared off the event loop."""
    world = World(now_ms=lambda: 2_000_000)
    old = [Key("old", f"{i}") for i in range(3)]

    async def scenario() -> None:
        it = SqliteBackend(path, sync=False, timeout_ms=60_000, world=world)
        await it.setup()
        await it.write_each([Put(key, {"ttl": 1999}) for key in old])
        await it.write_each([ADD] * 996)
        assert None not in await it.batch_get(old)
        await it.write_each([ADD])
        await asyncio.to_thread(wait_until, lambda: counter_gone(path))
        await it.close()

    def counter_gone(path: Path) -> bool:
        with contextlib.closing(sqlite3.connect(path)) as connection:
            return connection.execute("SELECT count(*) FROM items WHERE pk = 'old'").fetchone() == (0,)

    asyncio.run(scenario())
