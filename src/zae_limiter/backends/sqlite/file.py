"""Opening the file: recognise it, refuse what is not ours, and leave no trace when refusing.

The file is looked at through SQLite only. Opening it in any other way would, on closing, drop the
locks that other connections of this process hold on it: POSIX gives locks to processes, not to
file descriptors. Only a file that is missing is made without it, since SQLite would let everybody
read it; its log and shared memory get the mode of the file from SQLite.
"""

from __future__ import annotations

import os
import shlex
import sqlite3
import stat
import threading
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from ...exceptions import IncompatibleSchemaError, InfrastructureError, ValidationError
from ...runtime.colour import ForkSafe
from . import diary

APPLICATION_ID = 0x7A61656C
"""The letters ``zael``, in the header of every file that is ours."""

LAYOUT_VERSION = 1
CHECKPOINT_PAGES = 4000
"""Where a commit itself moves the log back into the file. Tidying up gets there first."""

FILE_MODE = 0o600
"""A new file is its owner's alone: it names customers and what they use. An existing one keeps its mode."""

INDEXES = ("GSI1", "GSI2", "GSI3", "GSI4")
INDEXED = tuple(f"{index}{half}" for index in INDEXES for half in ("PK", "SK"))
COLUMNS = tuple(name.lower() for name in INDEXED)

LAYOUT = (
    f"""CREATE TABLE items (
        pk TEXT NOT NULL, sk TEXT NOT NULL, body TEXT NOT NULL,
        {", ".join(f"{column} TEXT" for column in COLUMNS)}, ttl INTEGER,
        PRIMARY KEY (pk, sk)
    ) WITHOUT ROWID""",
    # Most items are in few of the indexes: a partial index costs nothing for the rest.
    *(
        f"CREATE INDEX {index} ON items ({index}pk, {index}sk, pk, sk) WHERE {index}pk IS NOT NULL"
        for index in map(str.lower, INDEXES)
    ),
    "CREATE INDEX expiry ON items (ttl) WHERE ttl IS NOT NULL",
    *diary.LAYOUT,
    f"PRAGMA application_id = {APPLICATION_ID}",
    f"PRAGMA user_version = {LAYOUT_VERSION}",
)


class FileId(NamedTuple):
    """Which file a path names."""

    device: int
    inode: int


_making = ForkSafe(threading.Lock)


def file_id(path: Path) -> FileId | None:
    """Which file a path names now, if any."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return FileId(found.st_dev, found.st_ino)


def make_file(path: Path) -> None:
    """Make a file that is missing, for its owner alone whatever the umask says."""
    _check_place(path)
    # One at a time: closing it here would drop the locks of a connection that found it just made.
    with _making.get():
        if path.exists():
            return
        try:
            os.close(os.open(os.path.realpath(path), os.O_CREAT | os.O_EXCL | os.O_RDWR, FILE_MODE))
        except FileExistsError:
            pass  # another process was faster
        except OSError as error:
            raise InfrastructureError(
                f"cannot make {str(path)!r}: {error.strerror}; check the path"
            ) from error


def open_file(path: Path) -> sqlite3.Connection:
    """A connection to a file that is ours, made if it was missing.

    ``sqlite3.Error`` passes through: the caller knows which of them are worth another try.
    """
    make_file(path)
    connection = sqlite3.connect(
        f"file:{quote(str(path))}?mode=rw",
        uri=True,
        # SQLite's own waiting polls up to every 100 ms, which starves whoever came late.
        timeout=0,
        isolation_level=None,
        check_same_thread=False,
    )
    try:
        _check_owner(connection, path)
        # Commits survive the death of the process in any case. Syncing at checkpoints only keeps
        # the file sound if the machine dies, and saves a disk flush on every commit.
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute(f"PRAGMA wal_autocheckpoint = {CHECKPOINT_PAGES}")
        (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
        if mode != "wal":
            raise InfrastructureError(
                f"cannot use {str(path)!r}: its file system cannot share memory between processes "
                "(SQLite's WAL mode); put the file on a local disk"
            )
        if _pragma(connection, "application_id") != APPLICATION_ID or not diary.is_there(connection):
            _lay_out(connection)
    except BaseException as error:
        connection.close()
        if getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_NOTADB:
            raise ValidationError(
                "store", str(path), "it is not a SQLite database; choose another path"
            ) from error
        raise
    return connection


def _check_place(path: Path) -> None:
    """Answer what SQLite would only call 'unable to open database file'."""
    shown, parent = str(path), path.parent
    if not parent.is_dir():
        if parent.exists():
            raise ValidationError("store", shown, f"{str(parent)!r} is not a directory")
        raise ValidationError(
            "store", shown, f"its directory does not exist; create it: mkdir -p {shlex.quote(str(parent))}"
        )
    try:
        kind = path.stat().st_mode
    except FileNotFoundError:
        pass
    except OSError as error:
        raise InfrastructureError(f"cannot use {shown!r}: {error.strerror}; check the path") from error
    else:
        if stat.S_ISDIR(kind):
            raise ValidationError(
                "store", shown, f"it is a directory; name a file: {str(path / 'limits.db')!r}"
            )
        if not stat.S_ISREG(kind):
            raise ValidationError("store", shown, "it is not a regular file; choose another path")
        if not _may(path, os.R_OK | os.W_OK):
            raise InfrastructureError(
                f"cannot use {shown!r}: the file is read-only; "
                f"make it writable: chmod u+rw {shlex.quote(shown)}"
            )
    if not _may(parent, os.W_OK | os.X_OK):
        raise InfrastructureError(
            f"cannot use {shown!r}: its directory is read-only, and SQLite keeps its log beside the file; "
            "make it writable or choose another path"
        )


def _may(path: Path, mode: int) -> bool:
    return os.access(path, mode, effective_ids=os.access in os.supports_effective_ids)


def _check_owner(connection: sqlite3.Connection, path: Path) -> None:
    """Refuse the database of another program before anything in it is changed."""
    # One transaction, for another process may be laying the file out at this moment.
    connection.execute("BEGIN")
    owner = _pragma(connection, "application_id")
    version = _pragma(connection, "user_version")
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
    connection.execute("COMMIT")
    if owner == APPLICATION_ID:
        if version > LAYOUT_VERSION:
            raise IncompatibleSchemaError(
                f"{str(path)!r} was written by a newer version of zae-limiter (layout {version}, this one "
                f"knows {LAYOUT_VERSION}); install that version or a later one"
            )
    elif owner or version or tables:
        raise ValidationError(
            "store", str(path), "it is the SQLite database of another program; choose another path"
        )


def _lay_out(connection: sqlite3.Connection) -> None:
    connection.execute("BEGIN IMMEDIATE")
    # Another process may have been faster.
    if _pragma(connection, "application_id") != APPLICATION_ID:
        for statement in LAYOUT:
            connection.execute(statement)
    elif not diary.is_there(connection):  # a file of a version that kept none, or otherwise
        for statement in diary.LAYOUT:
            connection.execute(statement)
    connection.execute("COMMIT")


def _pragma(connection: sqlite3.Connection, name: str) -> int:
    (value,) = connection.execute(f"PRAGMA {name}").fetchone()
    assert isinstance(value, int)
    return value
