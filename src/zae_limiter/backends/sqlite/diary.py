"""What every bucket was before its first write of an hour, so that what was used can be told later.

Triggers of the file keep it, in the transaction of the write itself, whoever writes. They cost a write one
search in an index: two images of a bucket differ by what was used between them, so nothing else is noted. A
bucket also gets a mark when it is made, when it says other things than before and not only other numbers, and
when it expires. What is deleted is forgotten. There is room for so many marks; then the oldest go.

Whoever reads has the marks turned into ``changes``, what became of each bucket, which stay until they are
trimmed. Their positions start at the time in microseconds, so that those of another file under the same
name are larger than all before.
"""

from __future__ import annotations

import sqlite3

from ...repository_protocol import Item, Key
from ...runtime.world import World
from ...schema import is_deleted, sk_state
from ..diary import HOUR_MS, MARKS_MAX, says_other_things

TRIM_EVERY = 100
MARKS_AT_ONCE = 200
"""The buckets of so many marks are worked out in one transaction, so that nobody waits long for it."""

DAY_MS, EPOCH_DAY = 86_400_000, 2_440_587.5
"""1970 began so many days after day nought of SQLite."""
NOW_MS = f"CAST((julianday('now') - {EPOCH_DAY}) * {DAY_MS} AS INTEGER)"

_STATE = sk_state()
_HOUR = f"{NOW_MS} / {HOUR_MS}"
_TOO_MANY = f"max(0, (SELECT count(*) FROM diary) - {MARKS_MAX})"
_OLDEST = "SELECT {} FROM diary ORDER BY position LIMIT {}"
_MARK = "INSERT INTO diary (pk, image, at_ms) VALUES (NEW.pk, {}, " + NOW_MS + ")"
TABLES = (
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
)
TRIGGERS = {
    # What is made may have been used elsewhere before, so its first use here marks it again.
    "changes_insert": f"AFTER INSERT ON items WHEN NEW.sk = '{_STATE}' "
    f"BEGIN {_MARK.format('NULL')}; DELETE FROM marked WHERE pk = NEW.pk; END",
    # No OR REPLACE: the conflict clause of whatever sets the trigger off would overrule it.
    "changes_update": f"AFTER UPDATE OF body ON items WHEN NEW.sk = '{_STATE}' "
    f"AND (SELECT hour FROM marked WHERE pk = NEW.pk) IS NOT {_HOUR} "
    f"BEGIN {_MARK.format('OLD.body')}; DELETE FROM marked WHERE pk = NEW.pk; "
    f"INSERT INTO marked VALUES (NEW.pk, {_HOUR}); END",
    # Who loses a mark is marked again by its next write, for it may have been the only one.
    "diary_trim": f"AFTER INSERT ON diary WHEN NEW.position % {TRIM_EVERY} = 0 "
    f"BEGIN DELETE FROM marked WHERE pk IN ({_OLDEST.format('pk', _TOO_MANY)}); "
    f"DELETE FROM diary WHERE position IN ({_OLDEST.format('position', _TOO_MANY)}); END",
}
_MADE = [f"CREATE TRIGGER {name} {text}" for name, text in TRIGGERS.items()]
LAYOUT = (*TABLES, *(f"DROP TRIGGER IF EXISTS {name}" for name in TRIGGERS), *_MADE)
"""What makes a diary of nothing, or of what another version kept."""

MARK = f"INSERT INTO diary (pk, image, at_ms) SELECT pk, body, {NOW_MS} FROM items WHERE pk = ? AND sk = ?"
UNMARK = ("DELETE FROM diary WHERE pk = ?", "DELETE FROM marked WHERE pk = ?")
# There are few changes at a time, so they need no index for this.
FORGET = (*UNMARK, "DELETE FROM changes WHERE pk = ?")
GONE = (
    f"INSERT INTO diary (pk, image, at_ms, gone) SELECT pk, body, {NOW_MS}, 1 FROM items "
    f"WHERE sk = '{_STATE}' AND (pk, sk) IN ({{}}) AND body NOT LIKE '%\"status\":\"deleted\"%'"
)
MARKED = f"SELECT DISTINCT pk FROM ({_OLDEST.format('pk', '?')})"
_BECAME = f"""
SELECT position, pk, image, after, at_ms FROM (
    SELECT position, pk, image, at_ms, gone,
        CASE WHEN lead(position) OVER marks IS NOT NULL THEN lead(image) OVER marks
        ELSE (SELECT body FROM items WHERE items.pk = diary.pk AND sk = '{_STATE}') END AS after
    FROM diary {{}} WINDOW marks AS (PARTITION BY pk ORDER BY position)
) WHERE NOT gone AND after IS NOT NULL AND after IS NOT image
"""
WORK_OUT = f"""
INSERT INTO changes (pk, sk, old, new, at_ms)
SELECT pk, '{_STATE}', image, after, at_ms FROM ({_BECAME.format("WHERE pk = ?")}) ORDER BY position
"""
WAITS = f"SELECT EXISTS (SELECT 1 FROM changes) OR EXISTS ({_BECAME.format('')})"
READ = "SELECT position, pk, sk, old, new, at_ms FROM changes ORDER BY position LIMIT ?"
TRIM = "DELETE FROM changes WHERE position <= ?"


def follow(connection: sqlite3.Connection, world: World) -> None:
    """Let what is written over a connection be noted at the time of a world that has its own.

    Triggers take the machine's time by themselves, which costs less than to ask for it.
    """
    if world.now_ms != World().now_ms:
        connection.execute("PRAGMA trusted_schema = ON")  # some builds of SQLite let triggers call nobody
        connection.create_function("julianday", 1, lambda _: EPOCH_DAY + world.now_ms() / DAY_MS)


def is_there(connection: sqlite3.Connection) -> bool:
    """Whether a file has a diary, and keeps it as this version does."""
    found = connection.execute("SELECT sql FROM sqlite_schema WHERE type = 'trigger'").fetchall()
    return {(made,) for made in _MADE} <= set(found)


def before(connection: sqlite3.Connection, key: Key, old: Item | None, new: Item | None) -> None:
    """Note what a trigger cannot see: other limits, another family."""
    if old is not None and new is not None and says_other_things(old, new):
        connection.execute(MARK, key)


def after(connection: sqlite3.Connection, key: Key, new: Item | None) -> None:
    """Forget what was deleted, with what a trigger noted of it just now."""
    if new is None or is_deleted(new):
        for statement in FORGET:
            connection.execute(statement, key[:1])


def work_out(connection: sqlite3.Connection) -> bool:
    """Turn the marks of those who wait longest into changes, if anybody does.

    The next write to each of these buckets marks it again.
    """
    connection.execute("BEGIN IMMEDIATE")
    try:
        buckets = connection.execute(MARKED, (MARKS_AT_ONCE,)).fetchall()
        connection.executemany(WORK_OUT, buckets)
        for statement in UNMARK:
            connection.executemany(statement, buckets)
    except BaseException:
        connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")
    return bool(buckets)
