"""Schemas for tests, made by the owner of the server: fresh ones, or those of tests long over, emptied."""

import functools
from collections import deque

import psycopg

from tests.engines import postgres
from tests.patience import wait_until
from zae_limiter.backends.postgres import PostgresBackend, open_backend
from zae_limiter.backends.postgres.layout import create_sql
from zae_limiter.runtime.world import World

LENT_MAX = 20
_lent: deque[str] = deque()


@functools.cache
def owner() -> psycopg.Connection:
    """A plain connection, to prepare and inspect schemas without the code under test."""
    return plain(postgres.SERVER.port())


def plain(port: int) -> psycopg.Connection:
    """A connection to a server, as soon as it takes one: it listens before it has started up."""
    found: list[psycopg.Connection] = []

    def is_up() -> bool:
        try:
            found.append(psycopg.connect(conninfo(port), autocommit=True))
        except psycopg.OperationalError:
            return False
        return True

    wait_until(is_up, "the server does not start")
    return found[0]


def conninfo(port: int) -> str:
    return f"postgresql://{postgres.USER}@{postgres.HOST}:{port}/{postgres.DATABASE}"


def make_schema() -> str:
    schema = postgres.fresh_schema()
    owner().execute(create_sql(schema))
    return schema


def lent_schema() -> str:
    """An empty store for a test; the schema is one that a test had long before."""
    if len(_lent) < LENT_MAX:
        schema = make_schema()
    else:
        schema = _lent.popleft()
        for table in ("items", "diary", "changes"):
            owner().execute(f"DELETE FROM {schema}.{table}")
    _lent.append(schema)
    return schema


def open_schema(sync: bool, schema: str, world: World) -> PostgresBackend:
    """A store under the clock of a test; its deadlines are real."""
    url = postgres.url(schema, timeout_ms=60_000, listen="off")
    return open_backend(url, sync=sync, world=World(world.now_ms))
