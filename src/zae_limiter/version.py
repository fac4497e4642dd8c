"""Which client, schema and Lambda fit together: pure rules over version numbers.

A schema with the same major number is compatible. A client older than the stored
``client_min_version`` must not write. A Lambda older than the client may be updated in place.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from .exceptions import ValidationError

CLIENT_VERSION = "1.0.0"
"""The version of this package. The project file reads it from here, so code and package cannot differ."""

SCHEMA_VERSION = "1.0.0"
"""The shape of the stored records; its major number changes when older clients cannot read them."""

_NUMBERS = re.compile(r"v?([0-9]{1,9})\.([0-9]{1,9})(?:\.([0-9]{1,9}))?(?:[.\-+a-z].*)?")


class Version(NamedTuple):
    major: int
    minor: int
    patch: int

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}.{self.patch}"


def parse_version(text: str) -> Version:
    """Read ``1.2.3``, ``v1.2`` or ``1.2.3.dev4+abc``; what follows the numbers is ignored."""
    found = _NUMBERS.fullmatch(text) if isinstance(text, str) else None
    if found is None:
        raise ValidationError("version", text, "write it as 1.2.3")
    return Version(*(int(number or 0) for number in found.groups()))


def client_version() -> str:
    """The version of this package."""
    return CLIENT_VERSION


class Compatibility(NamedTuple):
    """The verdict on one client against one deployment."""

    is_compatible: bool
    requires_schema_migration: bool
    requires_client_update: bool
    requires_lambda_update: bool
    message: str


def check_compatibility(
    client: str, schema: str, client_min: str = "0.0.0", lambda_version: str | None = None
) -> Compatibility:
    """Judge whether a client may use a table of this schema."""
    mine, stored, expected = parse_version(client), parse_version(schema), parse_version(SCHEMA_VERSION)
    if stored.major != expected.major:
        older = stored.major < expected.major
        way_out = "run `zae-limiter upgrade`" if older else "install a newer zae-limiter"
        message = f"the table has schema {stored}, this client needs {expected}: {way_out}"
        return Compatibility(False, older, not older, False, message)
    if mine < parse_version(client_min):
        message = f"the table needs client {client_min} or newer, this is {mine}: install a newer zae-limiter"
        return Compatibility(False, False, True, False, message)
    if lambda_version is not None and parse_version(lambda_version) < mine:
        message = f"the aggregator is {lambda_version}, this client {mine}: run `zae-limiter upgrade`"
        return Compatibility(True, False, False, True, message)
    return Compatibility(True, False, False, False, "compatible")
