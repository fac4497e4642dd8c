"""Which versions may use a store: the record that says so, and the check when it is opened.

The record lies in the reserved namespace, one for the whole table. A store without one is of the
present schema, unless it has the record of an older one: whoever opens it writes the record, whoever
only connects leaves it alone.
"""

from __future__ import annotations

from ..exceptions import (
    IncompatibleSchemaError,
    RateLimiterUnavailable,
    ValidationError,
    VersionMismatchError,
)
from ..models import VersionRecord
from ..naming import validate_principal
from ..repository_protocol import Absent, Put
from ..runtime.logs import logger
from ..schema import iso_time, older_version_key, system_config_key, text, version_key
from ..version import SCHEMA_VERSION, check_compatibility, client_version, parse_version
from .items import UPGRADING, version_item, version_of
from .scope import Scope


async def get_version_record(scope: Scope) -> VersionRecord | None:
    """What the store says about versions; ``None`` if it says nothing."""
    item = await scope.get(version_key())
    return None if item is None else version_of(item)


async def set_version_record(
    scope: Scope,
    schema_version: str = SCHEMA_VERSION,
    lambda_version: str | None = None,
    client_min_version: str | None = None,
    updated_by: str | None = None,
) -> VersionRecord:
    """Replace the record; it binds whoever opens the store from now on."""
    client_min_version = "0.0.0" if client_min_version is None else client_min_version
    for version in (schema_version, client_min_version):
        parse_version(version)
    if lambda_version is not None:
        parse_version(lambda_version)
    if updated_by is not None:
        validate_principal(updated_by)
    now = iso_time(scope.world.now_ms())
    record = VersionRecord(schema_version, lambda_version, client_min_version, now, updated_by)
    await scope.must_write([Put(version_key(), version_item(record))])
    return record


async def check_versions(scope: Scope, *, register: bool) -> None:
    """Raise unless this client may use the store; a record that is missing is written if allowed."""
    item, system = await scope.backend.batch_get([version_key(), system_config_key(scope.namespace_id)])
    if item is None:
        await _refuse_older_shape(scope)
        if register:
            record = VersionRecord(SCHEMA_VERSION, updated_at=iso_time(scope.world.now_ms()))
            await scope.must_write([Put(version_key(), version_item(record), when=(Absent(),))])
        return
    if UPGRADING in item:
        raise IncompatibleSchemaError(
            "the records of the store are being moved to another schema: "
            "let `zae-limiter upgrade` come to its end, or run it again"
        )
    judge(version_of(item), strict=(system or {}).get("strict_version") is True)


async def _refuse_older_shape(scope: Scope) -> None:
    """Raise if the table was made by a version whose records this one does not see."""
    try:
        older = await scope.get(older_version_key())
    except RateLimiterUnavailable as error:
        if not error.denied:
            raise
        return  # policies of one namespace do not let everybody look there
    if older is not None:
        raise IncompatibleSchemaError(
            "the store holds the records of an older version: run `zae-limiter upgrade`",
            client_version=client_version(),
            schema_version=text(older, "schema_version"),
        )


def judge(record: VersionRecord, *, strict: bool, client: str | None = None) -> None:
    """Raise unless a client may use a store with this record; ``strict`` accepts no difference at all."""
    client = client_version() if client is None else client
    try:
        verdict = check_compatibility(
            client, record.schema_version, record.client_min_version, record.lambda_version
        )
    except ValidationError as error:
        raise IncompatibleSchemaError(
            f"the version record of the store cannot be read: {error}; set it right with set_version_record",
            client_version=client,
        ) from error
    versions = {
        "client_version": client,
        "schema_version": record.schema_version,
        "lambda_version": record.lambda_version,
    }
    if not verdict.is_compatible:
        is_schema = parse_version(record.schema_version).major != parse_version(SCHEMA_VERSION).major
        raise (IncompatibleSchemaError if is_schema else VersionMismatchError)(verdict.message, **versions)
    if parse_version(record.schema_version) != parse_version(SCHEMA_VERSION):
        difference = f"the table has schema {record.schema_version}, this client {SCHEMA_VERSION}"
        difference += ": run `zae-limiter upgrade` or install the other version"
    elif verdict.requires_lambda_update:
        difference = verdict.message
    else:
        return
    if strict:
        raise VersionMismatchError(f"{difference} (strict_version is set)", **versions)
    logger.warning("%s", difference)
