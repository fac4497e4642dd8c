"""What a table says about its own shape: three records, and the writes that change them. Pure.

Clients of older shapes look at a record without a namespace, and clients of this one at their own. When a
migration begins, the first is changed so that older clients are refused from then on, and it stays for
that purpose. The second names the old schema, which refuses newer clients too, until everything is
there that an acquire depends on. A third says how far the migration has come.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from ..exceptions import ValidationError
from ..models import VersionRecord
from ..repository_protocol import Absent, Condition, Equal, Exists, Item, Key, Put, Update, Value, Write
from ..schema import iso_time, migration_key, older_version_key, text, version_key
from ..schema_records import version_item
from ..version import SCHEMA_VERSION, Version, client_version, parse_version
from .shapes import fields

CLIENT_MIN_VERSION = "1.0.0"
"""The first client that knows the present schema."""

OLDER_CLIENTS_END = "1.0.0"
"""Above the versions of all clients that know an older shape."""

UNKNOWN_SCHEMA = "0.0.0"
AUTHOR = "zae-limiter"


class Stage(StrEnum):
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
    def stage(self) -> Stage:
        said = text(self.migration or {}, "stage")
        return Stage(said) if said in set(Stage) else Stage.NONE

    @property
    def kept_old(self) -> bool:
        """Whether old records were left behind on purpose."""
        return (self.migration or {}).get("kept_old") is True

    @property
    def schema(self) -> Version | None:
        """The schema of the present record; ``None`` if there is none or it cannot be read."""
        return _parsed(text(self.version or {}, "schema_version"))

    @property
    def is_open(self) -> bool:
        """Whether clients of this version are let in."""
        return self.schema is not None and self.schema.major >= parse_version(SCHEMA_VERSION).major

    @property
    def older_schema(self) -> str | None:
        """What the table called its schema before a migration began."""
        return text(self.migration or {}, "from_schema") or text(fields(self.older or {}), "schema_version")

    def is_settled(self, *, keep_old: bool) -> bool:
        """Whether there is nothing left to do, as far as these records tell."""
        if not self.is_open:
            return False
        if self.stage is Stage.DONE:
            return keep_old or not self.kept_old
        return self.stage is Stage.NONE and self.older is None


def begin(state: State, now_ms: int) -> list[Write]:
    """Refuse older clients from now on, and newer ones until they can be let in."""
    older, now = state.older or {}, iso_time(now_ms)
    fence: dict[str, Value] = {
        "schema_version": SCHEMA_VERSION,
        "client_min_version": OLDER_CLIENTS_END,
        "updated_at": now,
        "updated_by": AUTHOR,
    }
    data = older.get("data")
    if isinstance(data, dict):
        fence = {**fence, "data": {**data, **fence}}
    before = _older_than_present(state.older_schema)
    progress = {"stage": Stage.MOVING.value, "updated_at": now, "client_version": client_version()}
    if state.migration is None:
        progress |= {"started_at": now, "from_schema": before}
    if state.stage is Stage.FOLLOWING:
        progress["stage"] = Stage.FOLLOWING.value
    writes: list[Write] = [
        Update(older_version_key(), set=fence),
        Update(migration_key(), set=progress, when=_pinned(state.migration, "stage")),
    ]
    if not state.is_open:
        closed = VersionRecord(before, None, CLIENT_MIN_VERSION, now, AUTHOR)
        writes.append(Put(version_key(), version_item(closed), when=_pinned(state.version, "schema_version")))
    return writes


def let_in(now_ms: int) -> list[Write]:
    """Everything is there that an acquire depends on."""
    now = iso_time(now_ms)
    said = {"schema_version": SCHEMA_VERSION, "client_min_version": CLIENT_MIN_VERSION}
    return [
        Update(version_key(), set={**said, "updated_at": now, "updated_by": AUTHOR}),
        Update(migration_key(), set={"stage": Stage.FOLLOWING.value, "updated_at": now}, when=(Exists(),)),
    ]


def renew(state: State, now_ms: int) -> list[Write]:
    """Note the present schema where the table needs no other change for it; nothing if it is noted."""
    if state.schema is None or state.schema >= parse_version(SCHEMA_VERSION):
        return []
    said = {"schema_version": SCHEMA_VERSION, "updated_at": iso_time(now_ms), "updated_by": AUTHOR}
    return [Update(version_key(), set=said, when=_pinned(state.version, "schema_version"))]


def finish(now_ms: int, *, kept_old: bool) -> list[Write]:
    said: dict[str, Value] = {
        "stage": Stage.DONE.value,
        "updated_at": iso_time(now_ms),
        "kept_old": kept_old,
    }
    return [Update(migration_key(), set=said, when=(Exists(),))]


def _pinned(item: Item | None, attribute: str) -> tuple[Condition, ...]:
    return (Absent(),) if item is None else (Exists(), Equal(attribute, text(item, attribute)))


def _parsed(version: str | None) -> Version | None:
    try:
        return None if version is None else parse_version(version)
    except ValidationError:
        return None


def _older_than_present(version: str | None) -> str:
    """The schema before; one that cannot be read, or is no older, says nothing about the records."""
    parsed = _parsed(version)
    is_older = parsed is not None and parsed.major < parse_version(SCHEMA_VERSION).major
    return str(parsed) if is_older else UNKNOWN_SCHEMA
