"""The aggregator's function: whether its code is due and how it gets there, and whether it is called."""

from __future__ import annotations

from typing import Any

from ..backends.dynamodb.transport import ServiceError
from ..exceptions import IncompatibleSchemaError, StackOperationError, VersionMismatchError
from ..models import VersionRecord
from ..version import SCHEMA_VERSION, check_compatibility, client_version, parse_version
from .cloud import Cloud, Patience


def code_is_due(record: VersionRecord | None, *, is_current: bool) -> bool:
    """Whether a function should get the code of this client.

    Never in place of newer code. Code of the same version that differs is somebody's unfinished
    deployment, or was put back by an update of the stack.
    """
    if record is None or record.lambda_version is None:
        return True
    theirs, ours = parse_version(record.lambda_version), parse_version(client_version())
    return theirs < ours or (theirs == ours and not is_current)


def check_schema(record: VersionRecord | None) -> None:
    """A function of this client must be able to read the table."""
    if record is None:
        return
    verdict = check_compatibility(client_version(), record.schema_version, record.client_min_version)
    if not verdict.is_compatible:
        is_schema = parse_version(record.schema_version).major != parse_version(SCHEMA_VERSION).major
        raise (IncompatibleSchemaError if is_schema else VersionMismatchError)(verdict.message)


async def function_config(cloud: Cloud, function: str) -> dict[str, Any] | None:
    """What Lambda knows of a function; ``None`` if there is none."""
    return await cloud.find("lambda", "GetFunctionConfiguration", FunctionName=function)


async def upload(cloud: Cloud, function: str, package: bytes, patience: Patience) -> None:
    """Replace the code of a function, and wait until it runs."""
    request = {"FunctionName": function, "ZipFile": package}
    while True:
        try:
            await cloud.ask(
                "lambda", "UpdateFunctionCode", expected=("ResourceConflictException",), **request
            )
            break
        except ServiceError as error:
            if not await patience.lasts():
                raise StackOperationError(
                    f"function {function!r} is still being changed by somebody else: {error.message}"
                ) from error
    while True:
        config = await function_config(cloud, function) or {}
        match config.get("LastUpdateStatus", "Successful"):
            case "Successful":
                return
            case "Failed":
                reason = config.get("LastUpdateStatusReason", "")
                raise StackOperationError(f"function {function!r} did not take its code: {reason}", [reason])
        if not await patience.lasts():
            raise StackOperationError(
                f"function {function!r} has not taken its code within {patience.seconds:g} seconds"
            )


async def switch(cloud: Cloud, function: str, on: bool, patience: Patience) -> None:
    """Let a function be told of changes to its table, or of none, and wait until that is so."""
    found = await cloud.find("lambda", "ListEventSourceMappings", FunctionName=function) or {}
    wanted = "Enabled" if on else "Disabled"
    for mapping in found.get("EventSourceMappings", ()):
        state, which = mapping["State"], {"UUID": mapping["UUID"]}
        while state != wanted:
            if not state.endswith("ing"):
                reply = await cloud.ask("lambda", "UpdateEventSourceMapping", **which, Enabled=on)
            elif await patience.lasts():
                reply = await cloud.ask("lambda", "GetEventSourceMapping", **which)
            else:
                raise StackOperationError(
                    f"the event source of function {function!r} is still {state} after "
                    f"{patience.seconds:g} seconds; run it again later"
                )
            state = reply["State"]
