"""What a table says about its own shape: three records, and the writes that change them. Pure.

Clients of shapes without namespaces look at a record without one, and all others at the same record as
clients of this version. When a migration begins, what older clients look at is changed so that they are
refused from then on, and stays so. Newer clients are refused too until everything is there that an
acquire depends on. A third record says how far the migration has come.

Releases from 0.9 on go by the major number of the schema. Some of them do not look at it if they are
below ``client_min_version``, and go to work: so that asks for nothing.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from ...exceptions import ValidationError
from ...models import VersionRecord
from ...records.items import UPGRADING, version_item
from ...repository_protocol import Absent, Condition, Equal, Exists, Item, Key, Put, Update, Value, Write
from ...schema import iso_time, migration_key, older_version_key, text, version_key
from ...version import SCHEMA_VERSION, Version, client_version, parse_version
from .shapes import fields

CLIENT_MIN_VERSION = "0.0.0"
"""What a table asks of clients beside the schema: nothing, for the schema alone keeps the older ones out."""

OLDER_CLIENTS_END = "1.0.0"
"""Above the versions of all clients that know an older shape."""

SHARES_SINCE = Version(0, 10, 0)
"""The older schema from which on the first shard of a bucket keeps to its share."""

UNKNOWN_SCHEMA = "0.0.0"
NAMESPACED = "namespaced"
"""What a migration notes of a table whose keys had namespaces when it began."""
AUTHOR = "zae-limiter"


class MigrationStage(StrEnum):
    """How far a migration has come."""

    NONE = "none"
    MOVING = "moving"
    """What acquires depend on is being moved; nobody is let in."""
    FOLLOWING = "following"
    """Clients are let in; usage and audit events follow."""
    DONE = "done"


class State(NamedTuple):
    """The three records as they are."""

    version: Item | None
    older: Item | None
    migration: Item | None

    @staticmethod
    def keys() -> tuple[Key, Key, Key]:
        return version_key(), older_version_key(), migration_key()

    @property
    def stage(self) -> MigrationStage:
        said = text(self.migration or {}, "stage")
        return MigrationStage(said) if said in set(MigrationStage) else MigrationStage.NONE

    @property
    def schema(self) -> Version | None:
        """The schema of the present record; ``None`` if there is none or it cannot be read."""
        return _parsed(text(self.version or {}, "schema_version"))

    @property
    def is_open(self) -> bool:
        """Whether clients of this version are let in."""
        if self.version is not None and UPGRADING in self.version:
            return False
        return self.schema is not None and not _is_older(self.schema)

    @property
    def is_namespaced(self) -> bool:
        """Whether records under keys with a namespace may be of an older shape."""
        if self.migration is not None:
            return text(self.migration, "layout") == NAMESPACED
        return _is_older(self.schema)

    @property
    def older_schema(self) -> str | None:
        """What the table called its schema before a migration began."""
        if said := text(self.migration or {}, "from_schema"):
            return said
        if self.is_namespaced:
            return text(self.version or {}, "schema_version")
        return text(fields(self.older or {}), "schema_version")

    @property
    def has_shares(self) -> bool:
        """Whether the clients before gave each shard of a bucket a share, the first one too."""
        older = _parsed(self.older_schema)
        return older is None or older >= SHARES_SINCE

    def is_settled(self, *, keep_old: bool) -> bool:
        """Whether there is nothing left to do, as far as these records tell."""
        if not self.is_open:
            return False
        if self.stage is MigrationStage.DONE:
            return keep_old or (self.migration or {}).get("kept_old") is not True
        return self.stage is MigrationStage.NONE and self.older is None


def begin(state: State, now_ms: int) -> list[Write]:
    """Refuse older clients from now on, and newer ones until they can be let in."""
    now, before = iso_time(now_ms), state.older_schema or UNKNOWN_SCHEMA
    is_following = state.stage is MigrationStage.FOLLOWING
    progress: dict[str, Value] = {
        "stage": (MigrationStage.FOLLOWING if is_following else MigrationStage.MOVING).value,
        "updated_at": now,
        "client_version": client_version(),
    }
    writes: list[Write] = []
    closing: Update | Put
    if state.is_namespaced:
        # Both products look at one record: its schema keeps older clients out, and a mark the newer ones. No
        # function of an older version may go on.
        progress["layout"] = NAMESPACED
        closed = {"client_min_version": CLIENT_MIN_VERSION, "lambda_version": None, UPGRADING: True}
        closing = Update(version_key(), set=_present(now_ms) | closed)
    else:
        # A schema that cannot be read, or is no older, says nothing about the records.
        parsed = _parsed(before)
        before = str(parsed) if _is_older(parsed) else UNKNOWN_SCHEMA
        closing = Put(
            version_key(), version_item(VersionRecord(before, None, CLIENT_MIN_VERSION, now, AUTHOR))
        )
        fence, data = (
            _present(now_ms) | {"client_min_version": OLDER_CLIENTS_END},
            (state.older or {}).get("data"),
        )
        nested = {"data": {**data, **fence}} if isinstance(data, dict) else {}
        writes.append(Update(older_version_key(), set=fence | nested))
    if state.migration is None:
        progress |= {"started_at": now, "from_schema": before}
    writes.append(Update(migration_key(), set=progress, when=_pinned(state.migration, "stage")))
    if not state.is_open:
        writes.append(closing._replace(when=_pinned(state.version, "schema_version")))
    return writes


def let_in(now_ms: int) -> list[Write]:
    """Everything is there that an acquire depends on."""
    opened = _present(now_ms) | {"client_min_version": CLIENT_MIN_VERSION, UPGRADING: None}
    following = {"stage": MigrationStage.FOLLOWING.value, "updated_at": iso_time(now_ms)}
    return [Update(version_key(), set=opened), Update(migration_key(), set=following, when=(Exists(),))]


def renew(state: State, now_ms: int) -> list[Write]:
    """Note the present schema where the table needs no other change for it; nothing if it is noted."""
    if state.schema is None or state.schema >= parse_version(SCHEMA_VERSION):
        return []
    return [Update(version_key(), set=_present(now_ms), when=_pinned(state.version, "schema_version"))]


def finish(now_ms: int, *, kept_old: bool) -> list[Write]:
    said: dict[str, Value] = {"stage": MigrationStage.DONE.value, "kept_old": kept_old}
    return [Update(migration_key(), set={**said, "updated_at": iso_time(now_ms)}, when=(Exists(),))]


def _present(now_ms: int) -> dict[str, Value]:
    return {"schema_version": SCHEMA_VERSION, "updated_at": iso_time(now_ms), "updated_by": AUTHOR}


def _pinned(item: Item | None, attribute: str) -> tuple[Condition, ...]:
    return (Absent(),) if item is None else (Exists(), Equal(attribute, text(item, attribute)))


def _parsed(version: str | None) -> Version | None:
    try:
        return None if version is None else parse_version(version)
    except ValidationError:
        return None


def _is_older(version: Version | None) -> bool:
    return version is not None and version.major < parse_version(SCHEMA_VERSION).major
