"""The version record of a deployed table, read and written without opening the table as a store.

Stacks are listed and functions are updated where no repository is open, perhaps by somebody who may do
nothing else with the table.
"""

from __future__ import annotations

from ..backends.dynamodb.backend import CONDITION_FAILED
from ..backends.dynamodb.expressions import decode_item, encode_key, write_request
from ..backends.dynamodb.transport import NOT_FOUND, ServiceError, missing_table
from ..exceptions import (
    IncompatibleSchemaError,
    InfrastructureError,
    InfrastructureNotFoundError,
    VersionError,
)
from ..models import VersionRecord
from ..records.items import version_item, version_of
from ..repository_protocol import Absent, Put, Update
from ..runtime.world import World
from ..schema import iso_time, version_key
from ..version import SCHEMA_VERSION, client_version
from .cloud import Cloud

WRONG_KEYS = "ValidationException"
"""A key of ours is invalid only in a table that has other keys."""


async def read_version(cloud: Cloud, table: str) -> VersionRecord | None:
    """What a table says about versions; ``None`` if it says nothing."""
    request = {"TableName": table, "Key": encode_key(version_key()), "ConsistentRead": True}
    try:
        reply = await cloud.ask("dynamodb", "GetItem", expected=(NOT_FOUND, WRONG_KEYS), **request)
    except ServiceError as error:
        if error.code == WRONG_KEYS:
            raise IncompatibleSchemaError(
                f"table {table!r} is not keyed by PK and SK: zae-limiter did not make it; name another table"
            ) from error
        raise InfrastructureNotFoundError(missing_table(table), stack_name=table) from error
    item = decode_item(reply.get("Item"))
    return None if item is None else version_of(item)


async def readable_version(cloud: Cloud, table: str) -> tuple[VersionRecord | None, str]:
    """The same for whoever may not be allowed to read the table, and why it could not be read."""
    try:
        return await read_version(cloud, table), ""
    except (InfrastructureError, VersionError) as error:
        return None, str(error)


async def write_lambda_version(cloud: Cloud, table: str, record: VersionRecord | None, world: World) -> None:
    """Note that the function is of this client's version. Everything else stays as it was."""
    now, version = iso_time(world.now_ms()), client_version()
    if record is None:
        first = VersionRecord(SCHEMA_VERSION, version, updated_at=now)
        _, request = write_request(table, Put(version_key(), version_item(first), when=(Absent(),)))
        if await cloud.find("dynamodb", "PutItem", unless=CONDITION_FAILED, **request) is not None:
            return
        # Somebody has opened the table meanwhile, and wrote what it is.
    update = Update(version_key(), set={"lambda_version": version, "updated_at": now})
    await cloud.ask("dynamodb", "UpdateItem", **write_request(table, update)[1])
