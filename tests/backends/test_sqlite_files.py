"""Files that cannot be the store: each gets its own error with the way out, and is left as it was."""

import asyncio
import contextlib
import os
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from zae_limiter._colour import run_sync
from zae_limiter.backends.sqlite import SqliteBackend
from zae_limiter.backends.sqlite.file import APPLICATION_ID
from zae_limiter.exceptions import (
    IncompatibleSchemaError,
    InfrastructureError,
    RateLimiterUnavailable,
    ValidationError,
    ZAELimiterError,
)
from zae_limiter.repository_protocol import Key, Put
from zae_limiter.world import World


def open_sync(path: Path | str, timeout_ms: int = 2000) -> SqliteBackend:
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
    ("a newer layout", newer, IncompatibleSchemaError, "pip install --upgrade zae-limiter"),
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
