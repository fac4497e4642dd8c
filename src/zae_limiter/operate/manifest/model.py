"""What a manifest wants, what is stored, and the difference between them, as values.

A manifest maps the addresses of levels to what these are to say: limits, a policy and a switch, and nothing
else a level may hold. A level is compared and changed as a whole. One that the file names becomes what the
file says; one that it does not name is deleted if the life that it leads was given to it by an apply, and
left alone otherwise. A switch is an operator's as much as the file's: one that the file does not mention
stays as it is, whatever becomes of its level.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, NamedTuple

from ...exceptions import ValidationError
from ...models import LimiterConfig

LEVELS = ("system", "resource", "entity")
"""From the general to the particular."""


class LevelAddress(NamedTuple):
    """Where a level is: the system, a resource, or an entity and a resource."""

    level: str
    entity_id: str | None = None
    resource: str | None = None

    def __str__(self) -> str:
        return " ".join(self.names)

    @property
    def names(self) -> tuple[str, ...]:
        """The level, the entity and the resource, as far as there are any."""
        return tuple(part for part in self if part is not None)

    @property
    def order(self) -> tuple[int, tuple[str, ...]]:
        """General levels come first, then names by the alphabet."""
        return LEVELS.index(self.level), self.names


class StoredLevel(NamedTuple):
    """What a level says now, and the event that gave it limits, a policy or a switch."""

    config: LimiterConfig
    born: str | None = None


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a namespace is to say, level by level; ``namespace`` is ``None`` where the file names none."""

    levels: Mapping[LevelAddress, LimiterConfig]
    namespace: str | None = None


class Action(StrEnum):
    """What becomes of a level."""

    CREATE = "create"
    UPDATE = "update"
    DELETE = "delete"
    LEAVE = "leave"
    """It is stored, the file does not name it, and no apply made it, or it is nothing but a switch."""


class LevelChange(NamedTuple):
    """A level before and after; ``None`` where it has neither limits nor a policy nor a switch.

    A level that is deleted and switched is nothing but its switch afterwards.
    """

    action: Action
    address: LevelAddress
    before: LimiterConfig | None
    after: LimiterConfig | None
    born: str | None = None
    """Which life of the level is meant, if it is to be deleted."""
    wanted: LimiterConfig = LimiterConfig()
    """What the file says; a switch that it does not mention is kept as it is found by then."""


@dataclass(frozen=True, slots=True)
class ManifestPlan:
    """How a namespace becomes what a manifest says.

    Claims that have ``lapsed`` because their levels are gone are forgotten on the way.
    """

    changes: tuple[LevelChange, ...]
    unchanged: int = 0
    lapsed: Mapping[LevelAddress, str] = field(default_factory=dict)

    @property
    def steps(self) -> list[LevelChange]:
        """What to do; all that is to be there before anything goes, so that nobody is without limits."""
        steps = [change for change in self.changes if change.action is not Action.LEAVE]
        return sorted(steps, key=lambda change: change.action is Action.DELETE)

    @property
    def counts(self) -> dict[str, int]:
        """How many levels are created, updated, deleted and unchanged."""
        actions = [change.action for change in self.changes]
        counted = {f"{action}d": actions.count(action) for action in Action if action is not Action.LEAVE}
        return {**counted, "unchanged": self.unchanged}

    @property
    def is_empty(self) -> bool:
        return not self.changes


def plan(
    manifest: Manifest,
    stored: Mapping[LevelAddress, StoredLevel],
    claims: Mapping[LevelAddress, str],
    *,
    everything: bool = False,
) -> ManifestPlan:
    """What has to change; with ``everything`` also what an apply leaves alone."""
    changes: list[LevelChange] = []
    lapsed: dict[LevelAddress, str] = {}
    unchanged = 0
    for address in sorted({*manifest.levels, *stored, *claims}, key=lambda address: address.order):
        before, born = stored.get(address) or (None, None)
        wanted, claim = manifest.levels.get(address), claims.get(address)
        if wanted is not None:
            after = revised(before or LimiterConfig(), wanted)
            if after is None:
                unchanged += 1
            else:
                action = Action.CREATE if before is None else Action.UPDATE
                changes.append(LevelChange(action, address, before, after, wanted=wanted))
        elif before is not None:
            left = revised(before, LimiterConfig())
            if left is not None and claim is not None and claim == born:
                after = left if left.has_switch else None
                changes.append(LevelChange(Action.DELETE, address, before, after, born))
            elif everything:
                changes.append(LevelChange(Action.LEAVE, address, before, before))
        is_made = wanted is not None and before is None
        if claim is not None and claim != born and not is_made:  # who makes a level replaces its claim
            lapsed[address] = claim
    return ManifestPlan(tuple(changes), unchanged, lapsed)


SETTINGS = ("on_unavailable", "disabled", "bypass", "cascade")
"""What a manifest says of a level besides its limits."""

SWITCH = ("disabled", "bypass")
"""Which of these are the switch."""


def settings_of(config: LimiterConfig) -> dict[str, Any]:
    """What a level says besides its limits: words, or yes and no."""
    said = {name: getattr(config, name) for name in SETTINGS}
    plain = {name: value if isinstance(value, bool) else str(value) for name, value in said.items()}
    return {name: value for name, value in plain.items() if said[name] is not None}


def says_the_same(one: LimiterConfig, other: LimiterConfig) -> bool:
    """Whether two levels have the same limits, policy and switch, whatever else they hold."""
    return set(one.limits) == set(other.limits) and settings_of(one) == settings_of(other)


def revised(before: LimiterConfig, wanted: LimiterConfig) -> LimiterConfig | None:
    """A level that says what is wanted and keeps the rest; ``None`` if it does already.

    Its switch is part of the rest where nothing is said about it: whoever threw it has it lifted.
    """
    said = [name for name in SETTINGS if wanted.has_switch or name not in SWITCH]
    after = replace(before, limits=wanted.limits, **{name: getattr(wanted, name) for name in said})
    return None if says_the_same(before, after) else after


class Problem(NamedTuple):
    """Something that is wrong in a manifest: where, under which key, and what. Lines count from 1."""

    line: int
    column: int
    path: tuple[str, ...]
    message: str

    def told(self, source: str) -> str:
        """As one line; what has no place in the text, such as JSON from elsewhere, shows only its key."""
        where = f"{source}:{self.line}:{self.column}" if self.line else source
        path = ".".join(repr(key) if "." in key or not key.isprintable() else key for key in self.path)
        return f"{where}: {path}: {self.message}" if path else f"{where}: {self.message}"


class ManifestError(ValidationError):
    """A manifest cannot be used; ``problems`` has everything that is wrong with it."""

    def __init__(self, source: str, *problems: Problem) -> None:
        super().__init__("manifest", source, "it has mistakes")
        self.source = source
        self.problems = problems

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.source, *self.problems)

    def __str__(self) -> str:
        lines = [problem.told(self.source) for problem in self.problems[:20]]
        if (more := len(self.problems) - len(lines)) > 0:
            lines.append(f"and {more} more")
        return "\n".join(lines)
