"""The file: its layout, how it is recognised, and why one is refused without leaving a trace in it.

It is looked at through SQLite only. Opening it in any other way would, on closing, drop the locks that other
connections of this process hold on it: POSIX gives locks to processes, not to file descriptors. Only a file
that is missing is made without it, since SQLite would let everybody read it.

Triggers keep the marks of the change log, in the transaction of the write itself. Positions of
its entries start at the time in microseconds, so that those of another file under the same name are larger
than all before. Tables and triggers have the names, and triggers the text, that other versions know.
"""

from __future__ import annotations

import os
import shlex
import sqlite3
import stat
import threading
from pathlib import Path
from typing import TypeAlias
from urllib.parse import quote

from ...exceptions import IncompatibleSchemaError, InfrastructureError, ValidationError
from ...runtime.colour import ForkSafe
from ...schema import INDEXES, sk_state
from ..change_log import HOUR_MS, MARKS_MAX

APPLICATION_ID = 0x7A61656C  # the letters ``zael``, in the header of every file that is ours
LAYOUT_VERSION = 1
CHECKPOINT_PAGES = 4000  # where a commit itself moves the log back into the file. Tidying up gets there first
FILE_MODE = 0o600  # of a new file, which names customers and what they use; an existing one keeps its mode

TRIM_EVERY = 100
DAY_MS, EPOCH_DAY = 86_400_000, 2_440_587.5  # 1970 began so many days after day nought of SQLite
NOW_MS = f"CAST((julianday('now') - {EPOCH_DAY}) * {DAY_MS} AS INTEGER)"
STATE = sk_state()
OLDEST = "SELECT {} FROM diary ORDER BY position LIMIT {}"

INDEXED = tuple(f"{index}{half}" for index in INDEXES for half in ("PK", "SK"))
COLUMNS = tuple(name.lower() for name in INDEXED)

_HOUR = f"{NOW_MS} / {HOUR_MS}"
_TOO_MANY = f"max(0, (SELECT count(*) FROM diary) - {MARKS_MAX})"
_MARK = "INSERT INTO diary (pk, image, at_ms) VALUES (NEW.pk, {}, " + NOW_MS + ")"
_TRIGGERS = {
    # What is made may have been used elsewhere before, so its first use here marks it again.
    "changes_insert": f"AFTER INSERT ON items WHEN NEW.sk = '{STATE}' "
    f"BEGIN {_MARK.format('NULL')}; DELETE FROM marked WHERE pk = NEW.pk; END",
    # No OR REPLACE: the conflict clause of whatever sets the trigger off would overrule it.
    "changes_update": f"AFTER UPDATE OF body ON items WHEN NEW.sk = '{STATE}' "
    f"AND (SELECT hour FROM marked WHERE pk = NEW.pk) IS NOT {_HOUR} "
    f"BEGIN {_MARK.format('OLD.body')}; DELETE FROM marked WHERE pk = NEW.pk; "
    f"INSERT INTO marked VALUES (NEW.pk, {_HOUR}); END",
    # Who loses a mark is marked again by its next write, for it may have been the only one.
    "diary_trim": f"AFTER INSERT ON diary WHEN NEW.position % {TRIM_EVERY} = 0 "
    f"BEGIN DELETE FROM marked WHERE pk IN ({OLDEST.format('pk', _TOO_MANY)}); "
    f"DELETE FROM diary WHERE position IN ({OLDEST.format('position', _TOO_MANY)}); END",
}
_MADE = [f"CREATE TRIGGER {name} {text}" for name, text in _TRIGGERS.items()]
LOG_LAYOUT = (
    "CREATE TABLE IF NOT EXISTS diary (position INTEGER PRIMARY KEY AUTOINCREMENT, pk TEXT NOT NULL, "
    "image TEXT, at_ms INTEGER NOT NULL, gone INTEGER NOT NULL DEFAULT 0)",
    "CREATE INDEX IF NOT EXISTS diary_of_bucket ON diary (pk)",
    # Apart from the marks, so that the one search of a write touches no images.
    "CREATE TABLE IF NOT EXISTS marked (pk TEXT NOT NULL PRIMARY KEY, hour INTEGER NOT NULL) WITHOUT ROWID",
    # Other versions kept a log of all writes under this name.
    "CREATE TABLE IF NOT EXISTS changes (position INTEGER PRIMARY KEY AUTOINCREMENT, "
    "pk TEXT NOT NULL, sk TEXT NOT NULL, old TEXT, new TEXT NOT NULL, at_ms INTEGER NOT NULL)",
    f"INSERT INTO sqlite_sequence (name, seq) SELECT 'changes', {NOW_MS} * 1000 "
    "WHERE NOT EXISTS (SELECT 1 FROM sqlite_sequence WHERE name = 'changes')",
    *(f"DROP TRIGGER IF EXISTS {name}" for name in _TRIGGERS),
    *_MADE,
)
"""What makes a change log of nothing, or of what another version kept."""

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
    *LOG_LAYOUT,
    f"PRAGMA application_id = {APPLICATION_ID}",
    f"PRAGMA user_version = {LAYOUT_VERSION}",
)

FileId: TypeAlias = tuple[int, int]  # device and inode
_making = ForkSafe(threading.Lock)


def file_id(path: Path) -> FileId | None:
    """Which file a path names now, if any."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


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
            problem = f"cannot make {str(path)!r}: {error.strerror}; check the path"
            raise InfrastructureError(problem) from error


def open_file(path: Path) -> sqlite3.Connection:
    """A connection to a file that is ours, made if it was missing.

    ``sqlite3.Error`` passes through: the caller knows which of them are worth another try.
    """
    make_file(path)
    # SQLite's own waiting polls up to every 100 ms, which starves whoever came late.
    connection = sqlite3.connect(
        f"file:{quote(str(path))}?mode=rw", uri=True, timeout=0, isolation_level=None, check_same_thread=False
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
        if _missing(connection):
            connection.execute("BEGIN IMMEDIATE")
            for statement in _missing(connection):  # nothing, if another process was faster
                connection.execute(statement)
            connection.execute("COMMIT")
    except BaseException as error:
        connection.close()
        if getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_NOTADB:
            problem = "it is not a SQLite database; choose another path"
            raise ValidationError("store", str(path), problem) from error
        raise
    return connection


def _check_place(path: Path) -> None:
    """Answer what SQLite would only call 'unable to open database file'."""
    shown, parent = str(path), path.parent
    if not parent.is_dir():
        problem = f"its directory does not exist; create it: mkdir -p {shlex.quote(str(parent))}"
        if parent.exists():
            problem = f"{str(parent)!r} is not a directory"
        raise ValidationError("store", shown, problem)
    try:
        kind = path.stat().st_mode
    except FileNotFoundError:
        pass
    except OSError as error:
        raise InfrastructureError(f"cannot use {shown!r}: {error.strerror}; check the path") from error
    else:
        if stat.S_ISDIR(kind):
            problem = f"it is a directory; name a file: {str(path / 'limits.db')!r}"
            raise ValidationError("store", shown, problem)
        if not stat.S_ISREG(kind):
            raise ValidationError("store", shown, "it is not a regular file; choose another path")
        if not _may(path, os.R_OK | os.W_OK):
            way_out = f"make it writable: chmod u+rw {shlex.quote(shown)}"
            raise InfrastructureError(f"cannot use {shown!r}: the file is read-only; {way_out}")
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
    owner, version = (_pragma(connection, name) for name in ("application_id", "user_version"))
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
    connection.execute("COMMIT")
    if owner != APPLICATION_ID and (owner or version or tables):
        problem = "it is the SQLite database of another program; choose another path"
        raise ValidationError("store", str(path), problem)
    if version > LAYOUT_VERSION:
        raise IncompatibleSchemaError(
            f"{str(path)!r} was written by a newer version of zae-limiter (layout {version}, this one "
            f"knows {LAYOUT_VERSION}); install that version or a later one"
        )


def _missing(connection: sqlite3.Connection) -> tuple[str, ...]:
    """What a file lacks of the layout: all of it, or a change log as this version keeps it."""
    if _pragma(connection, "application_id") != APPLICATION_ID:
        return LAYOUT
    found = connection.execute("SELECT sql FROM sqlite_schema WHERE type = 'trigger'").fetchall()
    return () if {(made,) for made in _MADE} <= set(found) else LOG_LAYOUT


def _pragma(connection: sqlite3.Connection, name: str) -> int:
    return int(connection.execute(f"PRAGMA {name}").fetchone()[0])
