"""The indexes that an older table lacks, made one after another: DynamoDB builds one at a time.

An index is built from what is in the table and cannot be asked before that is done, which takes hours on
a large one. Whoever is interrupted meanwhile finds the index under way the next time and waits for it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...backends.dynamodb import DynamoDBBackend
from ...backends.dynamodb.table import INDEXES, add_index_request, describe_table, problems
from ...backends.dynamodb.transport import ServiceError
from ...exceptions import IncompatibleSchemaError, InfrastructureNotFoundError, RateLimiterUnavailable

WAIT_SECONDS_MAX = 12 * 3600

BUSY = frozenset({"ResourceInUseException", "LimitExceededException", "ValidationException"})
"""What UpdateTable says while the table is being changed, or of an index that somebody has just made."""

Tell = Callable[[str, str], None]
"""Is told the name of an index, and what becomes of it."""


async def missing_indexes(backend: DynamoDBBackend) -> list[str]:
    """The indexes a table needs and does not have; an error if it cannot be helped, or is not there."""
    description = await describe_table(backend.calls)
    if description is None or description["TableStatus"] == "DELETING":
        raise InfrastructureNotFoundError(
            f"table {backend.table_name!r} does not exist in this region and account"
        )
    wrong = [problem for problem in problems(description) if not problem.endswith("is missing")]
    if wrong:
        raise IncompatibleSchemaError(
            f"table {backend.table_name!r} cannot be upgraded: {'; '.join(wrong)}; "
            "it was not made by any version of zae-limiter"
        )
    statuses = _statuses(description)
    return [index for index in INDEXES if statuses.get(index) != "ACTIVE"]


async def add_missing_indexes(backend: DynamoDBBackend, tell: Tell) -> list[str]:
    """Make what ``missing_indexes`` finds, and return the names."""
    added = await missing_indexes(backend)
    for index in added:
        await _add(backend, index, tell)
    return added


async def _add(backend: DynamoDBBackend, index: str, tell: Tell) -> None:
    calls, waited, pause, refused = backend.calls, 0.0, 0.05, ""
    while waited < WAIT_SECONDS_MAX:
        description = await describe_table(calls) or {}
        statuses = _statuses(description)
        if statuses.get(index) == "ACTIVE":
            tell(index, "ready")
            return
        tell(index, "being built" if index in statuses else "asked for")
        is_settled = description.get("TableStatus") == "ACTIVE" and set(statuses.values()) <= {"ACTIVE"}
        if index not in statuses and is_settled:
            try:
                request = add_index_request(backend.table_name, index, description)
                await calls.send("UpdateTable", request, expected=BUSY)
            except ServiceError as error:
                # Another upgrade may have asked for the same; if it is something else it comes again.
                if refused == str(error):
                    raise IncompatibleSchemaError(
                        f"table {backend.table_name!r} does not take index {index}: {error}"
                    ) from error
                refused = str(error)
        await calls.transport.colour.sleep(pause)
        waited += pause
        pause = min(5.0, pause * 1.5)
    raise RateLimiterUnavailable(
        f"index {index} of table {backend.table_name!r} is still being built; run the upgrade again later"
    )


def _statuses(description: dict[str, Any]) -> dict[str, str]:
    # Emulators may leave the status out; DynamoDB never does.
    indexes = description.get("GlobalSecondaryIndexes") or ()
    return {i["IndexName"]: i.get("IndexStatus", "ACTIVE") for i in indexes}
