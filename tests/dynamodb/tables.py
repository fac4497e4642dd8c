"""Tables on DynamoDB Local: made by the engine itself, opened in both colours."""

import functools
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import botocore.session
from aiobotocore.session import AioSession

from tests.engines import dynamodb_local
from zae_limiter.backends.dynamodb import DynamoDBBackend, open_backend
from zae_limiter.backends.dynamodb.table import create_table_request
from zae_limiter.runtime.world import World


@functools.cache
def session(sync: bool) -> Any:
    """Loading the description of the service takes longer than most tests, so it is done once."""
    return botocore.session.Session() if sync else AioSession()


@functools.cache
def driver() -> Any:
    """A plain client of the engine, to prepare and inspect tables without the code under test."""
    return session(True).create_client(
        "dynamodb", region_name="eu-west-1", endpoint_url=dynamodb_local.endpoint()
    )


def make_table(*, with_stream: bool = False, **changes: Any) -> str:
    """A fresh table, made by the engine itself from our definition or a variant of it.

    It has a stream only if that is asked for: with each write the engine looks for the first record of
    the table's stream among all older ones, and there are more of them with every test.
    """
    table = dynamodb_local.fresh_table()
    stream = {} if with_stream else {"StreamSpecification": {"StreamEnabled": False}}
    driver().create_table(**create_table_request(table) | stream | changes)
    return table


def lent_table() -> str:
    """An empty table for a test that knows it by its items alone: a fresh one, or that of a test long over.

    The engine takes the longer to make a table the more it has: 4 ms at first, 60 after a thousand.
    Whatever was still on its way to a table has arrived before its turn comes again.
    """
    if len(_lent) < LENT_MAX or not is_emptied(table := _lent.popleft()):
        table = make_table()
    _lent.append(table)
    return table


LENT_MAX = 40
ITEMS_MAX = 100
"""To make another table is cheaper than to remove more items than these."""
_lent: deque[str] = deque()


def is_emptied(table: str) -> bool:
    """Remove the items of a table, unless there are too many, or the test has removed the table itself."""
    try:
        found = driver().scan(TableName=table, ConsistentRead=True, ProjectionExpression="PK, SK")["Items"]
    except driver().exceptions.ResourceNotFoundException:
        return False
    if len(found) > ITEMS_MAX:
        return False
    doomed = [{"DeleteRequest": {"Key": key}} for key in found]
    for first in range(0, len(doomed), 25):
        driver().batch_write_item(RequestItems={table: doomed[first : first + 25]})
    return True


@asynccontextmanager
async def opened(
    sync: bool, table: str | None = None, endpoint_url: str | None = None, **options: Any
) -> AsyncIterator[DynamoDBBackend]:
    """A backend on an empty table, or on the one given; closed in the end.

    Its deadline is far away unless a test is about deadlines: the machine may be busy.
    """
    options.setdefault("timeout_ms", 60_000)
    url = dynamodb_local.url(table or lent_table(), endpoint_url, **options)
    backend = open_backend(url, sync=sync, world=World(), session=session(sync))
    try:
        yield backend
    finally:
        await backend.close()


def open_table(sync: bool, table: str, world: World) -> DynamoDBBackend:
    """A table under the clock of a test. Deadlines are real, and so are the dice: the engine knows the
    tokens of transactions on all its tables."""
    url = dynamodb_local.url(table, timeout_ms=60_000)
    return open_backend(url, sync=sync, world=World(world.now_ms), session=session(sync))
