"""Layout 1 becomes that of today under clients of before: they are answered as ever, and nothing is lost."""

import json
import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from click.testing import CliRunner

from tests.engines import postgres
from tests.patience import wait_until
from tests.postgres.older import ASKED, asked, make_older
from tests.postgres.schemas import conninfo, owner
from zae_limiter import Limit, SyncRateLimiter
from zae_limiter.backends.postgres.layout import LAYOUT_VERSION, functions_sql
from zae_limiter.cli.app import program
from zae_limiter.exceptions import IncompatibleSchemaError

START_MS, HOUR_MS = 1_793_000_000_000, 3_600_000
WRITERS, WRITES_MIN = 4, 40


@pytest.fixture
def older() -> Iterator[str]:
    schema = make_older()
    yield schema
    owner().execute(f"DROP SCHEMA {schema} CASCADE".encode())


def upgraded(schema: str) -> dict[str, Any]:
    """Upgrade a store by the command line, and what that says."""
    words = ["table", "upgrade", "--json", "--store", postgres.url(schema, timeout_ms=60_000)]
    result = CliRunner().invoke(program, words)
    assert result.exit_code == 0, result.output
    said: dict[str, Any] = json.loads(result.stdout)
    return said


@pytest.mark.parametrize("after", [0, len(ASKED) // 2, len(ASKED)], ids=["before", "in between", "never"])
def test_what_clients_of_layout_1_ask_is_answered_as_it_was(older: str, after: int) -> None:
    """Whatever they ask, from the first call to the last, whenever the store is upgraded."""
    for number, (function, argument, expected) in enumerate(ASKED):
        if number == after:
            assert upgraded(older) == {"schema": older, "from": 1, "to": LAYOUT_VERSION}
        _, *said = asked(owner(), older, function, argument)
        if function == "look":
            assert said[1].pop("version") == (LAYOUT_VERSION if number >= after else 1)
            assert said[1].pop("channel") == f"{older}_news"
            said[1] |= {"version": 1, "channel": "@channel@"}
        if function == "log_read":
            for entry in (*said[1][0], *expected[1][0]):
                entry[0] = "its position"
        assert said == expected, (number, function, argument)


class OlderWriter(threading.Thread):
    """A client of layout 1: it uses its bucket and one of all, in a later hour each time."""

    def __init__(self, schema: str, number: int) -> None:
        super().__init__(daemon=True)
        self.confirmed, self.over, self.error = 0, threading.Event(), ""
        self._schema, self._buckets = schema, (f"ns/BUCKET#{number}#api#0", "ns/BUCKET#all#api#0")
        self.start()

    def run(self) -> None:
        with psycopg.connect(conninfo(postgres.SERVER.port()), autocommit=True) as connection:
            while not self.over.is_set() and not self.error:
                try:
                    asked(connection, self._schema, "write", json.dumps(self._batch()))
                except psycopg.Error as error:
                    self.error = repr(error)
                else:
                    self.confirmed += 1

    def _batch(self) -> dict[str, Any]:
        groups = [[{"k": "u", "p": pk, "s": "#STATE", "a": {"n": 1}}] for pk in self._buckets]
        return {"w": "59000", "t": START_MS + self.confirmed * HOUR_MS, "g": groups}


class OlderFollower(threading.Thread):
    """A client of layout 1 that reads the change log, and adds up what it tells."""

    def __init__(self, schema: str) -> None:
        super().__init__(daemon=True)
        self.used, self.over, self.error = Counter[str](), threading.Event(), ""
        self._schema = schema
        self.start()

    def run(self) -> None:
        with psycopg.connect(conninfo(postgres.SERVER.port()), autocommit=True) as connection:
            while not self.error:
                is_last = self.over.is_set()
                try:
                    found = self._read(connection)
                except psycopg.Error as error:
                    self.error = repr(error)
                else:
                    if is_last and not found:
                        return

    def _read(self, connection: psycopg.Connection) -> bool:
        _, _, (entries, more) = asked(connection, self._schema, "log_read", '{"n": 50, "w": "59000"}')
        for _, pk, old, new, _ in entries:
            self.used[pk] += new["n"] - (old or {}).get("n", 0)
        if entries:
            asked(connection, self._schema, "log_trim", json.dumps({"p": entries[-1][0]}))
        return bool(entries or more)


def test_an_upgrade_under_clients_at_work_loses_nothing(older: str) -> None:
    """They write and follow on before, meanwhile and afterwards; nobody is refused, and books agree."""
    writers = [OlderWriter(older, number) for number in range(WRITERS)]
    follower = OlderFollower(older)

    def has_written(count: int) -> None:
        wait_until(lambda: all(one.error or one.confirmed >= count for one in writers))

    has_written(WRITES_MIN)
    assert upgraded(older) == {"schema": older, "from": 1, "to": LAYOUT_VERSION}
    has_written(max(one.confirmed for one in writers) + WRITES_MIN)
    for one in writers:
        one.over.set()
        one.join()
    follower.over.set()
    follower.join()
    assert [one.error for one in (*writers, follower)] == [""] * (WRITERS + 1)
    books = {f"ns/BUCKET#{number}#api#0": one.confirmed for number, one in enumerate(writers)}
    books["ns/BUCKET#all#api#0"] = sum(books.values())
    rows = owner().execute(f"SELECT pk, (body -> 'n')::int FROM {older}.items".encode()).fetchall()
    assert dict(rows) == books
    assert follower.used == books


def test_an_upgrade_waits_for_nobody_who_writes(older: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is over while a write is under way, which ends as if nothing had happened."""
    monkeypatch.setenv("PGOPTIONS", "-c lock_timeout=10s")
    batch = {"w": "59000", "t": START_MS, "g": [[{"k": "u", "p": "p", "s": "#STATE", "a": {"n": 1}}]]}
    with psycopg.connect(conninfo(postgres.SERVER.port())) as client:
        asked(client, older, "write", json.dumps(batch))
        assert upgraded(older)["to"] == LAYOUT_VERSION
        asked(client, older, "write", json.dumps(batch))
    assert owner().execute(f"SELECT body FROM {older}.items".encode()).fetchall() == [({"n": 2},)]


def test_what_an_older_store_holds_is_there_for_clients_of_today(older: str) -> None:
    """They refuse it before, with the way out, and find limits, buckets and usage afterwards."""
    for function, argument, _ in ASKED:
        asked(owner(), older, function, argument)
    url = postgres.url(older, timeout_ms=60_000)
    with pytest.raises(IncompatibleSchemaError, match="zae-limiter table upgrade"):
        SyncRateLimiter.open(url)
    upgraded(older)
    with SyncRateLimiter.open(url, namespace="acme") as limiter:
        assert limiter.repository.get_system_defaults()[0] == [
            Limit.per_minute("rpm", 5),
            Limit.per_minute("tpm", 1000),
        ]
        assert [one.entity_id for one in limiter.repository.get_children("team")] == ["key"]
        with limiter.acquire("key", "api", {"rpm": 1}):
            pass
    assert upgraded(older) == {"schema": older, "from": LAYOUT_VERSION, "to": LAYOUT_VERSION}


def test_locks_of_both_layouts_are_the_same(older: str) -> None:
    """Else a transaction of before and one of afterwards would not wait for each other."""
    body = "SELECT pg_get_functiondef(to_regprocedure(%s))"
    name = f"{older}.lock_of(text,text)"
    before = owner().execute(body, (name,)).fetchone()
    owner().execute(functions_sql(older).encode())
    assert owner().execute(body, (name,)).fetchone() == before
