"""A Redis or PostgreSQL server on this machine, for as long as a part of the run needs it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from .cases import REDIS


@contextmanager
def server(group: str) -> Iterator[str]:
    """The URL of a store on a fresh server. It is started as for the tests: no disk is waited for."""
    if group == REDIS:
        from tests.engines import redis_server

        try:
            yield redis_server.url("bench")
        finally:
            redis_server.SERVER.stop()
        return
    from tests.engines import postgres
    from tests.postgres.schemas import make_schema, owner

    try:
        yield postgres.url(make_schema())
    finally:
        owner().close()
        postgres.SERVER.stop()
