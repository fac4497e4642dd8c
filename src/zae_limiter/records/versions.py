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
from ..repository_protocol import Absent, Item, Put
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
    await check_record(scope, await scope.get(version_key()), register=register)


async def check_record(scope: Scope, item: Item | None, *, register: bool) -> None:
    """The same by the record as it was just read.

    Only where there is a difference is the namespace asked whether it accepts any.
    """
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
    record = version_of(item)
    if (difference := judge(record)) is None:
        return
    system = await scope.get(system_config_key(scope.namespace_id))
    if (system or {}).get("strict_version") is True:
        raise VersionMismatchError(f"{difference} (strict_version is set)", **_versions(record))
    logger.warning("%s", difference)


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


def judge(record: VersionRecord, client: str | None = None) -> str | None:
    """In what a store with this record differs, if in anything; raise unless a client may use it anyway."""
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
    if not verdict.is_compatible:
        is_schema = parse_version(record.schema_version).major != parse_version(SCHEMA_VERSION).major
        kind = IncompatibleSchemaError if is_schema else VersionMismatchError
        raise kind(verdict.message, **_versions(record, client))
    if parse_version(record.schema_version) != parse_version(SCHEMA_VERSION):
        difference = f"the table has schema {record.schema_version}, this client {SCHEMA_VERSION}"
        return f"{difference}: run `zae-limiter upgrade` or install the other version"
    return verdict.message if verdict.requires_lambda_update else None


def _versions(record: VersionRecord, client: str | None = None) -> dict[str, str | None]:
    return {
        "client_version": client or client_version(),
        "schema_version": record.schema_version,
        "lambda_version": record.lambda_version,
    }
