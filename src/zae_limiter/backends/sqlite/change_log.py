"""Reading the change log of a file. Each function is one transaction, and is run like any other statement.

What marks buckets are triggers of the file itself, see ``file``. Marks stand in the table ``diary``, and what
is worked out of them in ``changes``.
"""

from __future__ import annotations

import sqlite3

from ...repository_protocol import Key
from ..change_log import LogEntry
from .file import OLDEST, STATE
from .statements import UNMARK, read_body

MARKS_AT_ONCE = 200
"""The buckets of so many marks are worked out in one transaction, so that nobody waits long for it."""

MARKED = f"SELECT DISTINCT pk FROM ({OLDEST.format('pk', '?')})"
_BECAME = f"""
SELECT position, pk, image, after, at_ms FROM (
    SELECT position, pk, image, at_ms, gone,
        CASE WHEN lead(position) OVER marks IS NOT NULL THEN lead(image) OVER marks
        ELSE (SELECT body FROM items WHERE items.pk = diary.pk AND sk = '{STATE}') END AS after
    FROM diary {{}} WINDOW marks AS (PARTITION BY pk ORDER BY position)
) WHERE NOT gone AND after IS NOT NULL AND after IS NOT image
"""
WORK_OUT = f"""
INSERT INTO changes (pk, sk, old, new, at_ms)
SELECT pk, '{STATE}', image, after, at_ms FROM ({_BECAME.format("WHERE pk = ?")}) ORDER BY position
"""
WAITS = f"SELECT EXISTS (SELECT 1 FROM changes) OR EXISTS ({_BECAME.format('')})"
READ = "SELECT position, pk, sk, old, new, at_ms FROM changes ORDER BY position LIMIT ?"
TRIM = "DELETE FROM changes WHERE position <= ?"


def read(connection: sqlite3.Connection, entries_max: int) -> list[LogEntry]:
    rows = connection.execute(READ, (entries_max,)).fetchall()
    # Marks need not tell of anything: of a bucket that only expired there is nothing to count.
    while not rows and _work_out(connection):
        rows = connection.execute(READ, (entries_max,)).fetchall()
    return [
        LogEntry(position, Key(pk, sk), None if old is None else read_body(old), read_body(new), at_ms)
        for position, pk, sk, old, new, at_ms in rows
    ]


def waits(connection: sqlite3.Connection, _: None) -> bool:
    ((found,),) = connection.execute(WAITS).fetchall()
    return bool(found)


def trim(connection: sqlite3.Connection, position: int) -> None:
    connection.execute(TRIM, (position,))


def _work_out(connection: sqlite3.Connection) -> bool:
    """Turn the marks of those who wait longest into entries, if anybody does.

    The next write to each of these buckets marks it again.
    """
    connection.execute("BEGIN IMMEDIATE")
    buckets = connection.execute(MARKED, (MARKS_AT_ONCE,)).fetchall()
    for statement in (WORK_OUT, *UNMARK):
        connection.executemany(statement, buckets)
    connection.execute("COMMIT")
    return bool(buckets)
