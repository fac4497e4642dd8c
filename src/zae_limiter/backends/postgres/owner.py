"""What only the owner of a store does: make its tables and functions, renew them, drop them.

Each is one transaction: it happens as a whole or not at all, also while clients are at work. Nothing here is
ever done by opening a store.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import psycopg

from ...exceptions import IncompatibleSchemaError
from ...runtime.colour import Blocking, Colour, in_thread
from .address import Address
from .encoding import answer_from
from .layout import LAYOUT_VERSION, create_sql
from .trouble import MISSING, LostReply, RolledBack, Trouble, discreet, failure, no_connection

CONNECT_SECONDS = 10


async def run_as_owner(address: Address, colour: Colour, sql: str) -> None:
    """Run statements as one transaction, off the event loop if there is one."""
    if isinstance(colour, Blocking):
        _run(address, sql)
    else:
        with ThreadPoolExecutor(1, "zae-limiter-owner") as thread:
            await in_thread(thread, _run, address, sql)


def layout_version(address: Address) -> int | None:
    """Which layout a store has; ``None`` if there is none."""
    try:
        with psycopg.connect(address.conninfo, autocommit=True, connect_timeout=CONNECT_SECONDS) as server:
            row = server.execute(f"SELECT {address.schema}.look()".encode()).fetchone()
    except psycopg.Error as error:
        if (error.sqlstate or "") in MISSING:
            return None
        raise failure(_trouble(error), "look", address.place, ambiguous=False) from error
    return int(answer_from(str(row[0] if row else "").encode()).said["version"])


def create(address: Address, *, unlogged: bool = False) -> str:
    """The statements that make a store, or bring an older one up to date."""
    version = layout_version(address)
    if version is not None and version > LAYOUT_VERSION:
        raise IncompatibleSchemaError(
            f"the store in {address.place} has layout {version}, this version knows {LAYOUT_VERSION}; "
            "install a newer one"
        )
    return create_sql(address.schema, unlogged=unlogged)


def _run(address: Address, sql: str) -> None:
    asked = False
    try:
        with psycopg.connect(address.conninfo, connect_timeout=CONNECT_SECONDS) as connection:
            asked = True
            connection.execute(sql.encode())
    except psycopg.Error as error:
        trouble = _trouble(error, asked=asked)
        raise failure(trouble, "table", address.place, ambiguous=trouble.ambiguous) from error


def _trouble(error: psycopg.Error, *, asked: bool = False) -> Trouble:
    if error.sqlstate:
        return RolledBack(error.sqlstate, discreet(str(error)))
    return LostReply(discreet(str(error)), ambiguous=True) if asked else no_connection(error)
