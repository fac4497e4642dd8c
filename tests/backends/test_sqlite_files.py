"""Files that cannot be the store: each gets its own error with the way out, and is left as it was."""

import asyncio
import contextlib
import os
import sqlite3
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.backends.worker import write_until_failure
from tests.patience import PATIENCE_SECONDS
from zae_limiter.backends.sqlite import SqliteBackend
from zae_limiter.backends.sqlite.file import APPLICATION_ID
from zae_limiter.exceptions import (
    IncompatibleSchemaError,
    InfrastructureError,
    RateLimiterUnavailable,
    ValidationError,
    ZAELimiterError,
)
from zae_limiter.repository_protocol import Key, Put, Update
from zae_limiter.runtime.colour import run_sync
from zae_limiter.runtime.world import World

WORKER = Path(__file__).with_name("worker.py")


def open_sync(path: Path | str, timeout_ms: int = 60_000) -> SqliteBackend:
    it = SqliteBackend(path, sync=True, timeout_ms=timeout_ms, world=World())
    run_sync(it.setup())
    return it


def database(path: Path, *statements: str) -> Path:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        for statement in statements:
            connection.execute(statement)
        connection.commit()
    return path


def text_file(folder: Path) -> Path:
    (folder / "notes.txt").write_text("these are my notes, not a database\n" * 100)
    return folder / "notes.txt"


def fifo(folder: Path) -> Path:
    os.mkfifo(folder / "pipe")
    return folder / "pipe"


def newer(folder: Path) -> Path:
    open_file = folder / "newer.db"
    return database(open_file, f"PRAGMA application_id = {APPLICATION_ID}", "PRAGMA user_version = 2")


BAD_FILES: list[tuple[str, Callable[[Path], Path], type[ZAELimiterError], str]] = [
    ("a directory", lambda folder: folder, ValidationError, "it is a directory; name a file: '"),
    (
        "a missing directory",
        lambda folder: folder / "no such" / "limits.db",
        ValidationError,
        "does not exist; create it: mkdir -p '",
    ),
    (
        "a file as directory",
        lambda folder: text_file(folder) / "limits.db",
        ValidationError,
        "is not a directory",
    ),
    ("a text file", text_file, ValidationError, "it is not a SQLite database; choose another path"),
    ("a pipe", fifo, ValidationError, "not a regular file"),
    (
        "tables of another program",
        lambda folder: database(folder / "app.db", "CREATE TABLE users (name TEXT)"),
        ValidationError,
        "the SQLite database of another program",
    ),
    (
        "the mark of another program",
        lambda folder: database(folder / "app.db", "PRAGMA application_id = 7"),
        ValidationError,
        "the SQLite database of another program",
    ),
    (
        "another program in WAL mode",
        lambda folder: database(folder / "app.db", "PRAGMA journal_mode = WAL", "CREATE TABLE t (x)"),
        ValidationError,
        "the SQLite database of another program",
    ),
    ("a newer layout", newer, IncompatibleSchemaError, "install that version or a later one"),
]


def contents(folder: Path) -> dict[str, bytes | None]:
    return {
        str(file.relative_to(folder)): file.read_bytes() if file.is_file() else None
        for file in folder.rglob("*")
    }


@pytest.mark.parametrize("sync", [False, True], ids=["async", "sync"])
@pytest.mark.parametrize(
    ("make", "error", "words"), [c[1:] for c in BAD_FILES], ids=[c[0] for c in BAD_FILES]
)
def test_bad_file(
    tmp_path: Path, make: Callable[[Path], Path], error: type[ZAELimiterError], words: str, sync: bool
) -> None:
    """The error names the path and the way out, and nothing in the folder has changed."""
    path = make(tmp_path)
    before = contents(tmp_path)
    it = SqliteBackend(path, sync=sync, timeout_ms=100, world=World())
    with pytest.raises(error) as caught:
        run_sync(it.setup()) if sync else asyncio.run(it.setup())
    assert type(caught.value) is error
    assert str(path) in str(caught.value)
    assert words in str(caught.value)
    assert contents(tmp_path) == before


@pytest.mark.parametrize(
    ("path", "words"),
    [(":memory:", "use memory://"), ("", "not the path of a file"), ("a\0b", "not the path of a file")],
)
def test_no_file_at_all(path: str, words: str) -> None:
    """Some paths are refused before anything is opened."""
    with pytest.raises(ValidationError, match=words):
        SqliteBackend(path, sync=True, timeout_ms=100, world=World())


@pytest.mark.parametrize("timeout_ms", [0, -1, 600_001, True, 1.5, "5"])
def test_bad_timeout(tmp_path: Path, timeout_ms: Any) -> None:
    """A deadline is a whole number of milliseconds."""
    with pytest.raises(ValidationError, match="timeout_ms"):
        SqliteBackend(tmp_path / "x.db", sync=True, timeout_ms=timeout_ms, world=World())


class TestReadOnly:
    def test_directory(self, open_folder: Path) -> None:
        """A new file cannot be made in a read-only directory."""
        open_folder.chmod(0o555)
        with pytest.raises(InfrastructureError, match="its directory is read-only") as caught:
            open_sync(open_folder / "limits.db")
        assert str(open_folder / "limits.db") in str(caught.value)
        assert list(open_folder.iterdir()) == []

    def test_directory_of_a_good_file(self, open_folder: Path) -> None:
        """A file needs its log beside it."""
        run_sync(open_sync(open_folder / "limits.db").close())
        open_folder.chmod(0o555)
        with pytest.raises(InfrastructureError, match="keeps its log beside the file"):
            open_sync(open_folder / "limits.db")
        assert [file.name for file in open_folder.iterdir()] == ["limits.db"]

    def test_file(self, open_folder: Path) -> None:
        """A read-only file is refused with the command that helps."""
        path = open_folder / "limits.db"
        run_sync(open_sync(path).close())
        path.chmod(0o444)
        before = path.read_bytes()
        with pytest.raises(InfrastructureError, match=f"chmod u\\+rw {path}"):
            open_sync(path)
        assert contents(open_folder) == {"limits.db": before}

    def test_unreachable(self, open_folder: Path) -> None:
        """A directory that may not be entered is an error like the others."""
        (open_folder / "closed").mkdir(mode=0)
        with pytest.raises(ZAELimiterError) as caught:
            open_sync(open_folder / "closed" / "limits.db")
        assert str(open_folder / "closed" / "limits.db") in str(caught.value)
        (open_folder / "closed").chmod(0o700)


class TestGoodFiles:
    @pytest.mark.parametrize(
        "name", ["with space.db", "q?x=1#frag%41.db", "ünï.db", "file:x.db", "no suffix"]
    )
    def test_odd_names(self, tmp_path: Path, name: str) -> None:
        """A file is called what it was called."""
        it = open_sync(tmp_path / name)
        run_sync(it.write_each([Put(Key("p", "s"), {"n": 1})]))
        run_sync(it.close())
        assert [file.name for file in tmp_path.iterdir()] == [name]

    def test_empty_file(self, tmp_path: Path) -> None:
        """An empty file, as ``mktemp`` makes one, becomes a store."""
        (tmp_path / "empty").touch()
        run_sync(open_sync(tmp_path / "empty").close())
        assert (tmp_path / "empty").stat().st_size > 0

    def test_symbolic_link(self, tmp_path: Path) -> None:
        """A link and its target are one store."""
        (tmp_path / "link.db").symlink_to(tmp_path / "limits.db")
        link, target = open_sync(tmp_path / "link.db"), open_sync(tmp_path / "limits.db")
        run_sync(link.write_each([Put(Key("p", "s"), {"n": 1})]))
        assert run_sync(target.batch_get([Key("p", "s")])) == [{"n": 1}]
        run_sync(link.close())
        run_sync(target.close())

    def test_laid_out_by_another_meanwhile(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """A file that another process lays out while we look at it is not taken for a foreign one."""
        path, connect = tmp_path / "limits.db", sqlite3.connect

        class Interrupted(sqlite3.Connection):
            def execute(self, sql: str, *parameters: Any) -> sqlite3.Cursor:
                if sql == "PRAGMA user_version":
                    monkeypatch.setattr(sqlite3, "connect", connect)
                    with contextlib.suppress(RateLimiterUnavailable):
                        run_sync(open_sync(path, timeout_ms=20).close())
                return super().execute(sql, *parameters)

        monkeypatch.setattr(sqlite3, "connect", lambda *args, **kw: connect(*args, factory=Interrupted, **kw))
        it = open_sync(path)
        assert run_sync(it.write_each([Put(Key("p", "s"), {"n": 1})]))[0].applied
        run_sync(it.close())


class TestMode:
    @pytest.fixture(params=[0, 0o022, 0o077], ids=oct)
    def _umask(self, request: pytest.FixtureRequest) -> Iterator[None]:
        before = os.umask(request.param)
        yield
        os.umask(before)

    def modes(self, folder: Path) -> dict[str, int]:
        return {file.name: stat.S_IMODE(file.stat().st_mode) for file in folder.iterdir()}

    @pytest.mark.usefixtures("_umask")
    def test_a_new_file_is_its_owners_alone(self, tmp_path: Path) -> None:
        """File, log and shared memory are for the owner, whatever the umask would have allowed."""
        it = open_sync(tmp_path / "limits.db")
        assert self.modes(tmp_path) == {f"limits.db{end}": 0o600 for end in ("", "-wal", "-shm")}
        run_sync(it.close())
        assert self.modes(tmp_path) == {"limits.db": 0o600}

    @pytest.mark.usefixtures("_umask")
    @pytest.mark.parametrize("mode", [0o600, 0o660, 0o644])
    def test_an_existing_file_keeps_its_mode(self, tmp_path: Path, mode: int) -> None:
        """Whoever shares the file with a group or shows it to all has a reason, for its log too."""
        (tmp_path / "limits.db").touch()
        (tmp_path / "limits.db").chmod(mode)
        it = open_sync(tmp_path / "limits.db")
        assert self.modes(tmp_path) == {f"limits.db{end}": mode for end in ("", "-wal", "-shm")}
        run_sync(it.close())

    @pytest.mark.usefixtures("_umask")
    def test_the_target_of_a_link_is_made(self, tmp_path: Path) -> None:
        """A link that leads nowhere yet leads to a file for its owner alone."""
        (tmp_path / "link.db").symlink_to(tmp_path / "limits.db")
        run_sync(open_sync(tmp_path / "link.db").close())
        assert self.modes(tmp_path)["limits.db"] == 0o600

    def test_a_file_that_cannot_be_made(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """The error names the path and what is wrong."""

        def full(*_: object) -> int:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "open", full)
        with pytest.raises(InfrastructureError, match=r"cannot make '.*limits\.db': No space left"):
            open_sync(tmp_path / "limits.db")
        assert list(tmp_path.iterdir()) == []

    def test_made_by_another_meanwhile(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """A file that another process makes in the same moment is opened, and keeps its mode."""
        path, really_open = tmp_path / "limits.db", os.open

        def late(name: Any, flags: int, mode: int) -> int:
            monkeypatch.setattr(os, "open", really_open)
            path.touch()
            path.chmod(0o640)
            return really_open(name, flags, mode)

        monkeypatch.setattr(os, "open", late)
        it = open_sync(path)
        assert run_sync(it.write_each([Put(Key("p", "s"), {"n": 1})]))[0].applied
        assert stat.S_IMODE(path.stat().st_mode) == 0o640
        run_sync(it.close())


class TestAnotherFile:
    """What a path names is looked at before any call that begins a millisecond after the last look."""

    def clock(self) -> tuple[list[float], World]:
        now_ms = [0.0]
        return now_ms, World(ticks_ms=lambda: now_ms[0])

    @pytest.mark.parametrize("end", ["deleted", "replaced"])
    def test_bound(self, tmp_path: Path, end: str) -> None:
        """A millisecond after the end of the file no call is answered from what is left of it."""
        path, (now_ms, world) = tmp_path / "limits.db", self.clock()
        it = SqliteBackend(path, sync=True, timeout_ms=1000, world=world)
        key = Key("p", "s")
        (outcome,) = run_sync(it.write_each([Put(key, {"n": 1})]))
        assert outcome.item is not None
        if end == "replaced":
            run_sync(open_sync(tmp_path / "other.db").close())
            (tmp_path / "other.db").rename(path)
        else:
            path.unlink()
        now_ms[0] += 1
        for _ in range(2):
            with pytest.raises(RateLimiterUnavailable, match="deleted or replaced"):
                it.swap(key, outcome.item, {"n": 2})
            (failed,) = run_sync(it.write_each([Update(key, add={"n": 1})]))
            assert "deleted or replaced" in str(failed.failure)
            with pytest.raises(RateLimiterUnavailable, match="deleted or replaced"):
                run_sync(it.batch_get([key]))
        run_sync(it.close())

    def test_while_a_call_waits(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """A call that waited for a lock does not write to a file that was deleted meanwhile."""
        path, (now_ms, world) = tmp_path / "limits.db", self.clock()
        it = SqliteBackend(path, sync=True, timeout_ms=60_000, world=world)
        run_sync(it.setup())
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")

            def sleep(_: float) -> None:
                now_ms[0] += 1
                path.unlink(missing_ok=True)
                if other.in_transaction:
                    other.execute("COMMIT")

            monkeypatch.setattr(time, "sleep", sleep)
            (failed,) = run_sync(it.write_each([Put(Key("p", "s"), {"n": 1})]))
        assert "deleted or replaced" in str(failed.failure)
        run_sync(it.close())

    def test_while_it_is_opened(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """A file that is replaced in the moment in which it is opened is not taken for its successor."""
        path, connect = tmp_path / "limits.db", sqlite3.connect
        run_sync(open_sync(path).close())
        run_sync(open_sync(tmp_path / "other.db").close())

        def and_replace(*args: Any, **kw: Any) -> sqlite3.Connection:
            connection: sqlite3.Connection = connect(*args, **kw)
            connection.execute("PRAGMA schema_version")  # which opens the file at the latest
            (tmp_path / "other.db").rename(path)
            return connection

        monkeypatch.setattr(sqlite3, "connect", and_replace)
        it = SqliteBackend(path, sync=True, timeout_ms=1000, world=World())
        with pytest.raises(RateLimiterUnavailable, match="deleted or replaced"):
            run_sync(it.setup())
        run_sync(it.close())

    def takers(self, path: Path, names: list[str]) -> list[subprocess.Popen[str]]:
        command = [sys.executable, str(WORKER), "until_failure", str(path)]
        return [
            subprocess.Popen([*command, name], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            for name in names
        ]

    def test_under_load(self, tmp_path: Path) -> None:
        """Of what processes and threads write all the time, nothing was begun a millisecond after the end."""
        path = tmp_path / "limits.db"
        run_sync(open_sync(path).close())
        begun: list[float] = []
        running = threading.Event()
        own = threading.Thread(target=write_until_failure, args=(path, "own", begun, running))
        others = self.takers(path, ["a", "b"])
        own.start()
        try:
            for process in others:
                assert process.stdout is not None
                assert process.stdout.readline() == "writing\n"
            assert running.wait(PATIENCE_SECONDS)
            path.unlink()
            gone = time.monotonic()
            own.join(PATIENCE_SECONDS)
            for process in others:
                begun += map(float, process.communicate(timeout=PATIENCE_SECONDS)[0].split())
                assert process.returncode == 0
        finally:
            for process in others:
                process.kill()
                process.communicate()
        assert not own.is_alive()
        assert len(begun) >= 3, "all three were writing"
        assert [since - gone for since in begun if since >= gone + 0.001] == []
