"""Making the table, deleting it, and checking one that is there.

Nothing here happens unless it is asked for: opening a store only looks.
"""

from __future__ import annotations

from typing import Any

from ...exceptions import (
    IncompatibleSchemaError,
    InfrastructureError,
    InfrastructureNotFoundError,
    RateLimiterUnavailable,
)
from .failures import NOT_FOUND, missing_table
from .retries import Calls
from .table import create_table_request, described, problems, time_to_live_request
from .transport import ServiceError

WAIT_MS = 180_000
POLL_MAX_MS = 2_000
USABLE = frozenset({"ACTIVE", "UPDATING", "INACCESSIBLE_ENCRYPTION_CREDENTIALS"})


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
        description = await _until_active(calls)
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
    try:
        await calls.send("CreateTable", create_table_request(name), frozenset({"ResourceInUseException"}))
    except ServiceError:
        pass
    except RateLimiterUnavailable as error:
        # The table may be on its way all the same; waiting for it tells.
        if not error.ambiguous:
            raise
    await _until_active(calls)
    try:
        # DynamoDB calls it invalid to switch on what is on.
        await calls.send("UpdateTimeToLive", time_to_live_request(name), frozenset({"ValidationException"}))
    except ServiceError as error:
        if "already enabled" not in error.message:
            raise InfrastructureError(f"table {name!r} was made, but without a TTL: {error}") from error
    await verify_table(calls)


async def delete_table(calls: Calls) -> None:
    """Delete the table with all that is in it, and wait until it is gone."""
    gone_or_going = frozenset({NOT_FOUND, "ResourceInUseException"})
    try:
        await calls.send("DeleteTable", {"TableName": calls.table_name}, gone_or_going)
    except ServiceError as error:
        if error.code == NOT_FOUND:
            return
    except RateLimiterUnavailable as error:
        if not error.ambiguous:
            raise
    until_ms, attempt = calls.deadline(WAIT_MS), 0
    while await describe_table(calls) is not None:
        attempt += 1
        if not await calls.pause(attempt, until_ms, POLL_MAX_MS):
            raise RateLimiterUnavailable(f"table {calls.table_name!r} is still there after {WAIT_MS} ms")


async def _until_active(calls: Calls) -> dict[str, Any]:
    until_ms, attempt = calls.deadline(WAIT_MS), 0
    while True:
        description = await describe_table(calls)
        if description is not None and description["TableStatus"] in USABLE:
            return description
        attempt += 1
        if not await calls.pause(attempt, until_ms, POLL_MAX_MS):
            raise RateLimiterUnavailable(f"table {calls.table_name!r} is not usable after {WAIT_MS} ms")


async def describe_table(calls: Calls) -> dict[str, Any] | None:
    """The table as DynamoDB sees it; ``None`` if it is not there."""
    request = {"TableName": calls.table_name}
    return await calls.ask("DescribeTable", request, described, refusals={NOT_FOUND: lambda _: None})
