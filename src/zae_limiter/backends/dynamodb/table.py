"""The table: as DynamoDB has to make it, whether one that is there will do, making it and deleting it.

All indexes are ``KEYS_ONLY``: a change of tokens then touches no index and costs one write unit, not
two. An older table whose indexes project more still works, it only costs more.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...exceptions import (
    IncompatibleSchemaError,
    InfrastructureError,
    InfrastructureNotFoundError,
    RateLimiterUnavailable,
)
from .expressions import PARTITION, SORT, Payload
from .retries import Calls
from .transport import NOT_FOUND, ServiceError, missing_table

INDEXES = ("GSI1", "GSI2", "GSI3", "GSI4")
TTL_ATTRIBUTE = "ttl"

WAIT_MS = 180_000
POLL_MAX_MS = 2_000
USABLE = frozenset({"ACTIVE", "UPDATING", "INACCESSIBLE_ENCRYPTION_CREDENTIALS"})


def create_table_request(table: str) -> Payload:
    return {
        "TableName": table,
        "BillingMode": "PAY_PER_REQUEST",
        "AttributeDefinitions": _key_attributes("", *INDEXES),
        "KeySchema": _key_schema(""),
        "GlobalSecondaryIndexes": [_index(index) for index in INDEXES],
        # The aggregator needs both images to tell what changed.
        "StreamSpecification": {"StreamEnabled": True, "StreamViewType": "NEW_AND_OLD_IMAGES"},
    }


def add_index_request(table: str, index: str, description: dict[str, Any]) -> Payload:
    """Give a table that is there one more index; with throughput like the table's if that is bought."""
    made = _index(index)
    if description.get("BillingModeSummary", {}).get("BillingMode", "PROVISIONED") == "PROVISIONED":
        bought = description.get("ProvisionedThroughput", {})
        units = {name: bought.get(name, 0) for name in ("ReadCapacityUnits", "WriteCapacityUnits")}
        if all(units.values()):
            made["ProvisionedThroughput"] = units
    return {
        "TableName": table,
        "AttributeDefinitions": _key_attributes(index),
        "GlobalSecondaryIndexUpdates": [{"Create": made}],
    }


def time_to_live_request(table: str) -> Payload:
    specification = {"Enabled": True, "AttributeName": TTL_ATTRIBUTE}
    return {"TableName": table, "TimeToLiveSpecification": specification}


def described(reply: Payload) -> dict[str, Any]:
    """The table in an answer, in which all that anybody asks for can be read."""
    table: dict[str, Any] = reply["Table"]
    problems(table)
    indexes = table.get("GlobalSecondaryIndexes") or ()
    texts = [table["TableStatus"], *(index.get("IndexStatus", "") for index in indexes)]
    if not all(isinstance(text, str) for text in texts):
        raise TypeError("a status is no text")
    add_index_request("", "", table)
    return table


def problems(description: dict[str, Any]) -> list[str]:
    """What keeps a table from being used, in the words of an error message."""
    found = []
    types = {a["AttributeName"]: a["AttributeType"] for a in description.get("AttributeDefinitions", ())}
    indexes = {index["IndexName"]: index for index in description.get("GlobalSecondaryIndexes") or ()}
    for prefix in ("", *INDEXES):
        what = f"index {prefix}" if prefix else "the table"
        holder = indexes.get(prefix) if prefix else description
        if holder is None:
            found.append(f"{what} is missing")
        elif _sorted(holder.get("KeySchema", ())) != _sorted(_key_schema(prefix)):
            found.append(f"{what} is not keyed by {prefix}{PARTITION} and {prefix}{SORT}")
        elif any(types.get(f"{prefix}{part}") != "S" for part in (PARTITION, SORT)):
            found.append(f"the keys of {what} are not text")
    return found


def _index(name: str) -> dict[str, Any]:
    projection = {"ProjectionType": "KEYS_ONLY"}
    return {"IndexName": name, "KeySchema": _key_schema(name), "Projection": projection}


def _key_schema(prefix: str) -> list[dict[str, str]]:
    kinds = {PARTITION: "HASH", SORT: "RANGE"}
    return [{"AttributeName": f"{prefix}{part}", "KeyType": kind} for part, kind in kinds.items()]


def _key_attributes(*prefixes: str) -> list[dict[str, str]]:
    names = [f"{prefix}{part}" for prefix in prefixes for part in (PARTITION, SORT)]
    return [{"AttributeName": name, "AttributeType": "S"} for name in names]


def _sorted(schema: Any) -> list[tuple[str, str]]:
    return sorted((part["KeyType"], part["AttributeName"]) for part in schema)


async def verify_table(calls: Calls) -> None:
    """The table is there and has the right keys and indexes; one that is being made is waited for.

    A caller that may use the table but not describe it is believed: its first read will tell.
    """
    name = calls.table_name
    try:
        description = await describe_table(calls)
    except RateLimiterUnavailable as error:
        if error.misconfigured == "permission":
            return
        raise
    if description is not None and description["TableStatus"] == "CREATING":
        description = await _until(calls, USABLE.__contains__, "not usable")
    if description is None or description["TableStatus"] == "DELETING":
        raise InfrastructureNotFoundError(missing_table(name), stack_name=name)
    if found := problems(description):
        way_out = "name another table, or deploy a new one with: zae-limiter deploy --name NAME"
        if all(problem.endswith("is missing") for problem in found):
            way_out = f"bring it up to date with: zae-limiter upgrade --name {name}"
        raise IncompatibleSchemaError(
            f"table {name!r} cannot hold this version's data: {'; '.join(found)}; {way_out}"
        )


async def create_table(calls: Calls) -> None:
    """Make the table unless it is there, and wait until it can be used."""
    name = calls.table_name
    await _begin(calls, "CreateTable", create_table_request(name))
    await _until(calls, USABLE.__contains__, "not usable")
    try:
        await calls.send("UpdateTimeToLive", time_to_live_request(name), frozenset({"ValidationException"}))
    except ServiceError as error:
        # DynamoDB calls it invalid to switch on what is on.
        if "already enabled" not in error.message:
            raise InfrastructureError(f"table {name!r} was made, but without a TTL: {error}") from error
    await verify_table(calls)


async def delete_table(calls: Calls) -> None:
    """Delete the table with all that is in it, and wait until it is gone."""
    await _begin(calls, "DeleteTable", {"TableName": calls.table_name})
    await _until(calls, lambda status: status is None, "still there")


async def _begin(calls: Calls, operation: str, request: Payload) -> None:
    """Ask for a table to be made or deleted, unless it is or is about to be; waiting for it tells."""
    try:
        await calls.send(operation, request, frozenset({NOT_FOUND, "ResourceInUseException"}))
    except ServiceError:
        pass
    except RateLimiterUnavailable as error:
        if not error.ambiguous:
            raise


async def _until(calls: Calls, is_so: Callable[[str | None], bool], otherwise: str) -> dict[str, Any] | None:
    """Wait until the status of the table, which one that is not there has not, is as wanted."""
    until_ms, attempt = calls.deadline(WAIT_MS), 0
    while True:
        description = await describe_table(calls)
        if is_so(None if description is None else description["TableStatus"]):
            return description
        attempt += 1
        if not await calls.pause(attempt, until_ms, POLL_MAX_MS):
            raise RateLimiterUnavailable(f"table {calls.table_name!r} is {otherwise} after {WAIT_MS} ms")


async def describe_table(calls: Calls) -> dict[str, Any] | None:
    """The table as DynamoDB sees it; ``None`` if it is not there."""
    request = {"TableName": calls.table_name}
    return await calls.ask("DescribeTable", request, described, refusals={NOT_FOUND: lambda _: None})
