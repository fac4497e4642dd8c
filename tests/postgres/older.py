"""Stores of layout 1, and what clients of its time asked: written down when it was the newest.

``layout_1.sql`` is what ``table create`` ran then, but for the names. ``layout_1_asked.jsonl`` has the calls
of one client one after the other, each with its answer: [function, argument, answer without its time].
"""

import hashlib
import json
from pathlib import Path
from typing import Any, cast

import psycopg

from tests.engines import postgres
from tests.postgres.schemas import owner

HERE = Path(__file__).parent
ASKED: list[tuple[str, str, Any]] = [
    tuple(json.loads(line)) for line in (HERE / "layout_1_asked.jsonl").read_text().splitlines()
]


def make_older() -> str:
    """A schema of layout 1."""
    schema = postgres.fresh_schema()
    # What locks are numbered from: those of both layouts must be the same.
    seed = int.from_bytes(hashlib.sha256(schema.encode()).digest()[:8], signed=True)
    text = (HERE / "layout_1.sql").read_text("utf-8")
    owner().execute(text.replace("@schema@", schema).replace("@seed@", str(seed)).encode())
    return schema


def asked(connection: psycopg.Connection, schema: str, function: str, argument: str = "") -> list[Any]:
    """What a function says to a client of layout 1: its time, the counter of news, and the answer."""
    given = ("", ()) if function == "look" else ("%s", (argument,))
    row = connection.execute(f"SELECT {schema}.{function}({given[0]})".encode(), given[1]).fetchone()
    assert row is not None
    return cast(list[Any], json.loads(row[0]))
