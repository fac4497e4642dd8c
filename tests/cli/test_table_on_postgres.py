"""A store on PostgreSQL by the command line: made, printed for somebody else, used, dropped, and crashed."""

import json
import uuid
from collections.abc import Callable, Iterator
from urllib.parse import quote

import psycopg
import pytest
from click.testing import Result

from tests.cli.conftest import Run
from tests.engines import postgres
from tests.postgres.schemas import conninfo, owner
from tests.postgres.test_crashes import Cluster, folder
from zae_limiter import Limit, SyncRateLimiter
from zae_limiter.backends.postgres.layout import CALLED, LAYOUT_VERSION
from zae_limiter_aggregator.runner import aggregate

Ask = Callable[..., Result]
SLOW = [Limit.custom("rpm", 10, 1, 86_400)]


@pytest.fixture
def schema() -> Iterator[str]:
    name = postgres.fresh_schema()
    yield name
    owner().execute(f"DROP SCHEMA IF EXISTS {name} CASCADE".encode())


@pytest.fixture
def ask(run: Run, schema: str, monkeypatch: pytest.MonkeyPatch) -> Ask:
    """Run a command on a schema that is not there yet."""
    monkeypatch.setenv("ZAE_LIMITER_STORE", postgres.url(schema, timeout_ms=60_000))
    return run


def is_there(schema: str) -> bool:
    return owner().execute("SELECT to_regnamespace(%s)", (schema,)).fetchone() != (None,)


def test_a_store_from_nothing_to_nothing(ask: Ask, schema: str) -> None:
    """Make it, use it, find nothing to upgrade, drop it; each step says what it did."""
    made = ask("table", "create", "-N", "acme", "--json")
    assert json.loads(made.stdout) == {"schema": schema, "created": True, "namespace": "acme"}
    assert f"there is already a store in schema '{schema}'" in ask("table", "create").stderr
    assert ask("system", "set-defaults", "-l", "rpm:60", "-N", "acme").exit_code == 0
    current = ask("table", "upgrade")
    assert (current.exit_code, current.stderr) == (0, f"nothing to do: it has layout {LAYOUT_VERSION}\n")
    assert ask("system", "get-defaults", "-N", "acme").exit_code == 0
    assert ask("table", "delete", answer="n\n").exit_code != 0
    assert is_there(schema)
    dropped = ask("table", "delete", "--yes", "--json")
    assert json.loads(dropped.stdout) == {"deleted": schema}
    assert not is_there(schema)


@pytest.mark.parametrize("verb", ["upgrade", "delete"])
def test_what_is_not_there_is_not_made(ask: Ask, schema: str, verb: str) -> None:
    """It says how to make it instead."""
    refused = ask("table", verb, *(["--yes"] if verb == "delete" else []))
    assert refused.exit_code != 0
    assert "zae-limiter table create" in refused.stderr
    assert not is_there(schema)


def test_a_role_without_print_sql_is_refused(ask: Ask, schema: str) -> None:
    """Nobody is to think that it was granted something."""
    refused = ask("table", "create", "--role", "app")
    assert (refused.exit_code, is_there(schema)) == (2, False)
    assert "--print-sql" in refused.stderr


@pytest.mark.parametrize("words", [["--unlogged"], ["--print-sql"], ["--role", "app"]])
def test_other_stores_know_nothing_of_it(run: Run, words: list[str]) -> None:
    """Neither of options that are PostgreSQL's, nor of its layouts."""
    assert run("table", "create", *words).exit_code == 2
    assert run("table", "upgrade").exit_code == 2


@pytest.fixture
def role() -> Iterator[str]:
    # Its name needs quotes, wherever it is put.
    name = f'App "{uuid.uuid4().hex[:8]}"'
    quoted = name.replace('"', '""')
    owner().execute(f'CREATE ROLE "{quoted}" LOGIN'.encode())
    yield name
    owner().execute(f'DROP OWNED BY "{quoted}"; DROP ROLE "{quoted}"'.encode())


def url_of(role: str, schema: str) -> str:
    url = postgres.url(schema, timeout_ms=60_000)
    return url.replace(f"//{postgres.USER}@", f"//{quote(role, safe='')}@")


RIGHTS_ON_TABLES = """
SELECT relname FROM pg_class WHERE relnamespace = to_regnamespace(%(schema)s) AND (
    relkind IN ('r', 'v', 'p') AND has_table_privilege(%(role)s, oid,
        'SELECT, INSERT, UPDATE, DELETE, TRUNCATE, REFERENCES, TRIGGER')
    OR relkind = 'S' AND has_sequence_privilege(%(role)s, oid, 'USAGE, SELECT, UPDATE'))
"""
CALLABLE_AS_OWNER = """
SELECT proname || '(' || pg_get_function_identity_arguments(oid) || ')' FROM pg_proc
WHERE pronamespace = to_regnamespace(%(schema)s) AND prosecdef
    AND has_function_privilege(%(role)s, oid, 'EXECUTE')
"""


@pytest.mark.parametrize("words", [[], ["--unlogged"]], ids=["logged", "unlogged"])
def test_what_is_printed_makes_a_store_that_a_role_may_use(
    ask: Ask, schema: str, role: str, words: list[str]
) -> None:
    """Whoever may, runs it; then the role can do all that a limiter does, by functions, and nothing else."""
    printed = ask("table", "create", "--print-sql", "--role", role, *words)
    assert (printed.exit_code, printed.stderr, is_there(schema)) == (0, "", False)
    with psycopg.connect(conninfo(postgres.SERVER.port())) as connection:
        connection.execute(printed.stdout.encode())
    with SyncRateLimiter.open(url_of(role, schema)) as limiter:
        limiter.set_system_defaults(SLOW)
        limiter.repository.create_entity("team")
        with limiter.acquire("team", "api", {"rpm": 4}):
            pass
        assert limiter.available("team", "api") == {"rpm": 6}
        limiter.delete_entity("team")
    given = {"schema": schema, "role": role}
    assert owner().execute(RIGHTS_ON_TABLES, given).fetchall() == []
    found = {name.split("(")[0] for (name,) in owner().execute(CALLABLE_AS_OWNER, given).fetchall()}
    assert found == {name.split("(")[0] for name in CALLED.split()}
    (may_make,) = owner().execute(
        "SELECT has_schema_privilege(%(role)s, %(schema)s, 'CREATE')", given
    ).fetchone() or (True,)
    assert not may_make


def test_without_a_role_nobody_else_may_use_it(ask: Ask, schema: str, role: str) -> None:
    """What is printed then grants nothing: the role is told what to ask for."""
    assert ask("table", "create").exit_code == 0
    refused = ask("system", "get-defaults", "--store", url_of(role, schema))
    assert refused.exit_code == 1
    assert "--print-sql" in refused.stderr


@pytest.mark.parametrize("is_logged", [True, False], ids=["logged", "unlogged"])
def test_what_a_crash_of_the_server_leaves(run: Run, is_logged: bool) -> None:
    """Buckets of an unlogged store are full, and limits, entities and usage are there; else all is."""
    with folder() as place:
        cluster = Cluster(place)
        cluster.start(again=False)
        try:
            store = postgres.url("zl", cluster.port, timeout_ms=60_000)
            made = run("table", "create", "--store", store, *([] if is_logged else ["--unlogged"]))
            assert made.exit_code == 0, made.output
            with SyncRateLimiter.open(store) as limiter:
                limiter.set_system_defaults(SLOW)
                limiter.repository.create_entity("user", "User")
                with limiter.acquire("user", "api", {"rpm": 8}):
                    pass
            aggregate(store, until_idle=True)
            with SyncRateLimiter.open(store) as limiter, limiter.acquire("user", "api", {"rpm": 1}):
                pass
            cluster.kill()
            cluster.start()
            assert run("table", "upgrade", "--store", store).exit_code == 0
            with SyncRateLimiter.open(store) as limiter:
                assert limiter.available("user", "api") == {"rpm": 1 if is_logged else 10}
                assert limiter.repository.get_system_defaults()[0] == SLOW
                assert limiter.repository.get_entity("user").name == "User"  # type: ignore[union-attr]
                with limiter.acquire("user", "api", {"rpm": 1}):
                    pass
            aggregate(store, until_idle=True)
            with SyncRateLimiter.open(store) as limiter:
                used = limiter.repository.get_usage_summary("user").total
                assert used == {"rpm": 10 if is_logged else 9}, "what nobody had counted is gone with its log"
        finally:
            cluster.stop()
