"""Who may do what: an owner makes the store, a role that may only call its functions uses it."""

from collections.abc import Iterator

import psycopg
import pytest

from tests.engines import postgres
from tests.postgres.schemas import make_schema, owner
from zae_limiter import Limit, RateLimiterUnavailable, SyncRateLimiter, ValidationError
from zae_limiter.backends import _missing_driver
from zae_limiter.backends.postgres import open_backend
from zae_limiter.backends.postgres.layout import LAYOUT_VERSION, create_sql, functions_sql, grants_sql
from zae_limiter.backends.postgres.owner import layout_version
from zae_limiter.exceptions import IncompatibleSchemaError, InfrastructureNotFoundError
from zae_limiter.repository_protocol import Key, Put
from zae_limiter.runtime.colour import run_sync
from zae_limiter.runtime.world import World

SECRET = "correct-horse"


@pytest.fixture
def app() -> Iterator[tuple[str, str]]:
    """A schema, and a role with no right but to use it."""
    schema = make_schema()
    role = f"app_{schema}"
    owner().execute(f"CREATE ROLE {role} LOGIN PASSWORD '{SECRET}'")
    owner().execute(grants_sql(schema, role))
    yield schema, role
    owner().execute(f"DROP OWNED BY {role}; DROP ROLE {role}")


def url_for(role: str, schema: str) -> str:
    return postgres.url(schema, timeout_ms=60_000).replace(f"//{postgres.USER}@", f"//{role}:{SECRET}@")


def test_a_role_that_may_only_call_functions_can_do_all_that_a_limiter_does(app: tuple[str, str]) -> None:
    schema, role = app
    with SyncRateLimiter.open(url_for(role, schema)) as limiter:
        limiter.set_system_defaults([Limit.per_minute("rpm", 5)])
        limiter.repository.create_entity("team")
        with limiter.acquire("team", "api", {"rpm": 2}):
            pass
        assert limiter.available("team", "api") == {"rpm": 3}
        limiter.delete_entity("team")


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT * FROM {}.items",
        "UPDATE {}.items SET body = '{{}}'",
        "DELETE FROM {}.news",
        "SELECT * FROM {}.became",
        "CREATE TABLE {}.mine (x int)",
        "SELECT {}.keep('a', 'b', NULL, '{{}}', 1, 1, 1)",
        "DROP FUNCTION {}.write(text)",
    ],
)
def test_and_nothing_else(app: tuple[str, str], statement: str) -> None:
    schema, role = app
    dsn = f"postgresql://{role}:{SECRET}@{postgres.HOST}:{postgres.SERVER.port()}/{postgres.DATABASE}"
    with psycopg.connect(dsn) as connection, pytest.raises(psycopg.errors.InsufficientPrivilege):
        connection.execute(statement.format(schema))


def test_names_of_the_callers_own_are_not_called(app: tuple[str, str]) -> None:
    """Functions run with a pinned search path: whatever lies in the caller's, it is not found."""
    schema, role = app
    dsn = f"postgresql://{role}:{SECRET}@{postgres.HOST}:{postgres.SERVER.port()}/{postgres.DATABASE}"
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("CREATE TEMP TABLE items (pk text, sk text, body jsonb)")
        connection.execute("CREATE TEMP TABLE news (counter bigint)")
        connection.execute("SET search_path = pg_temp, pg_catalog")
        row = connection.execute(f'SELECT {schema}.read(\'[["a","b"]]\')').fetchone()
        assert row is not None
        assert row[0].endswith(",[null]]")


def test_who_may_not_is_told_what_to_grant(app: tuple[str, str]) -> None:
    schema, role = app
    owner().execute(f"REVOKE EXECUTE ON FUNCTION {schema}.write(text) FROM {role}")
    backend = open_backend(url_for(role, schema), sync=True, world=World())
    run_sync(backend.setup())
    (outcome,) = run_sync(backend.write_each([Put(Key("p", "s"), {"n": 1})]))
    run_sync(backend.close())
    assert outcome.failure is not None
    assert (outcome.failure.misconfigured, outcome.failure.ambiguous) == ("permission", False)
    assert "--print-sql" in str(outcome.failure)
    assert SECRET not in str(outcome.failure)


def test_a_store_that_is_not_there_says_how_to_make_it() -> None:
    backend = open_backend(postgres.url("nowhere", timeout_ms=60_000), sync=True, world=World())
    with pytest.raises(InfrastructureNotFoundError, match="zae-limiter table create"):
        run_sync(backend.setup())
    with pytest.raises(RateLimiterUnavailable) as failed:
        run_sync(backend.batch_get([Key("p", "s")]))
    run_sync(backend.close())
    assert failed.value.misconfigured == "table"


def test_an_older_store_is_renewed_while_it_is_in_use() -> None:
    """Its functions are replaced, and what it holds stays."""
    schema = make_schema()
    older = functions_sql(schema).replace(f'"version":{LAYOUT_VERSION},', '"version":1,')
    backend = open_backend(postgres.url(schema, timeout_ms=60_000), sync=True, world=World())
    run_sync(backend.write_each([Put(Key("p", "s"), {"n": 1})]))
    owner().execute(older)
    with pytest.raises(IncompatibleSchemaError, match="zae-limiter table upgrade"):
        run_sync(backend.setup())
    run_sync(backend.create_table())
    run_sync(backend.setup())
    assert layout_version(backend.address) == LAYOUT_VERSION
    assert run_sync(backend.batch_get([Key("p", "s")])) == [{"n": 1}]
    owner().execute(older.replace('"version":1,', '"version":9,'))
    with pytest.raises(IncompatibleSchemaError, match="newer"):
        run_sync(backend.create_table())
    run_sync(backend.delete_table())
    assert layout_version(backend.address) is None
    run_sync(backend.close())


def test_statements_can_be_run_again() -> None:
    """All of them, whoever runs them: what is there is left as it is."""
    schema = make_schema()
    for _ in range(2):
        owner().execute(create_sql(schema))


@pytest.mark.parametrize("sign", "/?#")
def test_a_password_with_a_sign_of_urls_is_not_shown(sign: str) -> None:
    """It ends the part of user and password; the message says how to write it."""
    with pytest.raises(ValidationError, match="%2F") as caught:
        open_backend(f"postgresql://me:pa{sign}{SECRET}@host/db", sync=True, world=World())
    assert SECRET not in str(caught.value)
    assert "pa" + sign not in str(caught.value)


def test_a_user_that_is_not_let_in_is_not_shown(app: tuple[str, str]) -> None:
    """The server says who it was; others may read our messages."""
    schema, role = app
    for name in (role, f"ghost_{schema}"):
        wrong = url_for(name, schema).replace(SECRET, "another-word") + "&dbname=nowhere"
        backend = open_backend(wrong, sync=True, world=World())
        with pytest.raises(InfrastructureNotFoundError if name == role else RateLimiterUnavailable) as caught:
            run_sync(backend.setup())
        run_sync(backend.close())
        assert name not in str(caught.value)
        assert "another-word" not in str(caught.value)


def test_who_may_make_no_schema_is_told_who_could(app: tuple[str, str]) -> None:
    schema, role = app
    backend = open_backend(url_for(role, f"{schema[:40]}_x"), sync=True, world=World())
    with pytest.raises(RateLimiterUnavailable, match="let an owner run: zae-limiter table create") as caught:
        run_sync(backend.create_table())
    run_sync(backend.close())
    assert caught.value.misconfigured == "permission"


def test_a_driver_without_its_library_says_so() -> None:
    """Installing the extra once more would not help."""
    error = ImportError("no pq wrapper available.\nAttempts made: …")
    told = _missing_driver("postgresql", error)
    assert "no pq wrapper available" in told
    assert "psycopg[binary]" in told
