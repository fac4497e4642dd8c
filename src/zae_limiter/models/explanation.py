"""Why an acquire goes by which limits: what each level says, who is charged, and what binds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from . import Bypass, ConfigSource, Limit, OnUnavailable
from .refusing import Refusing
from .switches import Switch


@dataclass(frozen=True, slots=True)
class ExplainedLevel:
    """One of the four levels that are looked at; the first that has limits ``wins``, and they apply whole.

    Of ``on_unavailable`` and ``cascade`` each comes from the first level that says anything about it.
    """

    source: ConfigSource
    limits: tuple[Limit, ...]
    on_unavailable: OnUnavailable | None
    wins: bool
    disabled: str | Literal[False] | None = None
    bypass: Bypass | None = None
    cascade: bool | None = None


@dataclass(frozen=True, slots=True)
class ExplainedPhase:
    """What a limit with a schedule goes by now: its numbers, the window that says so, and until when.

    The window is ``None`` where the limit's own numbers count; the time is in milliseconds since the epoch.
    """

    limit: Limit
    window: str | None
    until_ms: int


@dataclass(frozen=True, slots=True)
class ExplainedBucket:
    """A bucket that an acquire is charged to: the entity's own, or that of somebody above it.

    ``cascade`` says whether the parent of its entity is charged too; a level that decides that is the
    ``cascade_source``, which is ``None`` where the entity's record does.

    ``available`` is what it holds of each limit now, be they stored or brought along with ``limits=``.
    Others go by changed limits of the level that wins within ``change_binds_seconds``; 0 is at the next
    acquire.
    """

    entity_id: str
    levels: tuple[ExplainedLevel, ...]
    available: Mapping[str, int]
    change_binds_seconds: float
    switch: Switch | None = None
    """The switch that decides here, with its level; a parent's has a say only at the levels of its own."""
    parent_id: str | None = None
    cascade: bool = False
    cascade_source: ConfigSource | None = None
    refusing: tuple[Refusing, ...] = ()
    """Its limits that would refuse even a single token now, and until when; a soft one never does."""
    bypassed: bool = False
    """Whether its limits refuse nothing, by its own switch or by that of whoever asks."""
    phases: Mapping[str, ExplainedPhase] = field(default_factory=dict)
    """Of the limits that apply, those with a schedule."""

    @property
    def winner(self) -> ExplainedLevel | None:
        """The level whose limits apply; ``None`` if there are none at any level."""
        return next((level for level in self.levels if level.wins), None)


@dataclass(frozen=True, slots=True)
class Explanation:
    """What an acquire of an entity on a resource would go by.

    ``buckets`` has the entity's own first, then its parent's if it cascades, and so on upwards.
    ``on_unavailable_source`` is ``None`` if it is the setting of this program. ``checked_at_ms`` is when the
    buckets were looked at.
    """

    entity_id: str
    resource: str
    parent_id: str | None
    cascade: bool
    buckets: tuple[ExplainedBucket, ...]
    on_unavailable: OnUnavailable
    on_unavailable_source: ConfigSource | None
    checked_at_ms: int = 0

    @property
    def refusing(self) -> tuple[Refusing, ...]:
        """The limits that would refuse even a single token now, each a sentence as text."""
        return tuple(one for bucket in self.buckets for one in bucket.refusing)

    @property
    def off(self) -> ExplainedBucket | None:
        """Whose switch refuses an acquire; ``None`` if nobody's does."""
        return next((one for one in self.buckets if one.switch is not None and one.switch.disabled), None)

    @property
    def binding(self) -> dict[str, str]:
        """By limit, the entity whose bucket has the least of it now, and so decides.

        Soft ones never do, nor those of somebody who is past its limits.
        """
        held: dict[str, dict[str, int]] = {}
        for bucket in self.buckets:
            if bucket.bypassed:
                continue
            soft = {limit.name for limit in (bucket.winner.limits if bucket.winner else ()) if limit.soft}
            for name, available in bucket.available.items():
                if name in soft:
                    continue
                held.setdefault(name, {})[bucket.entity_id] = available
        return {name: min(by_entity, key=by_entity.__getitem__) for name, by_entity in held.items()}
