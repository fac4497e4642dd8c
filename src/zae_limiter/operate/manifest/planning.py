"""From what is wanted and what is stored to what has to be done. Pure.

A level that the file names becomes what the file says. A level that the file does not name is deleted
if the life that it leads was given to it by an apply, and left alone otherwise. What is to be there is
made before anything goes, so that nobody is without limits on the way.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple, TypeAlias

from ...models import LimiterConfig
from ...records.config import governs
from .model import Action, Change, Manifest, Place, Plan, Stored


class Set(NamedTuple):
    """Let a level say this; it is claimed if that makes it."""

    place: Place
    config: LimiterConfig
    change: Change


class Remove(NamedTuple):
    """Let a level say nothing, if it still leads this life, and drop its claim."""

    place: Place
    born: str
    change: Change


class Forget(NamedTuple):
    """Drop a claim, if it is still for this life of its level."""

    place: Place
    born: str


Step: TypeAlias = Set | Remove | Forget


def plan(
    manifest: Manifest,
    stored: Mapping[Place, Stored],
    claims: Mapping[Place, str],
    *,
    everything: bool = False,
) -> Plan:
    """What has to change; with ``everything`` also what an apply leaves alone."""
    changes: list[Change] = []
    unchanged = 0
    for place in sorted({*manifest.levels, *stored, *claims}, key=lambda place: place.order):
        now = stored.get(place)
        before = None if now is None or not governs(now.config) else now.config
        after = manifest.levels.get(place)
        owned = now is not None and now.born is not None and claims.get(place) == now.born
        if after is not None and before is not None and says_the_same(before, after):
            unchanged += 1
        elif after is not None:
            action = Action.CREATE if before is None else Action.UPDATE
            changes.append(Change(action, place, before, after))
        elif before is not None and owned:
            changes.append(Change(Action.DELETE, place, before, None, claims[place]))
        elif before is not None and everything:
            changes.append(Change(Action.LEAVE, place, before, before))
    remade = {change.place for change in changes if change.action is Action.CREATE}
    lapsed = {
        place: born
        for place, born in claims.items()
        if stored.get(place, NEVER).born != born and place not in remade
    }
    return Plan(tuple(changes), unchanged, lapsed)


def steps(plan: Plan) -> list[Step]:
    """What to do, in this order."""
    made: list[Step] = [
        Set(change.place, change.after, change)
        for change in plan.changes
        if change.action in (Action.CREATE, Action.UPDATE) and change.after is not None
    ]
    gone: list[Step] = [
        Remove(change.place, change.born, change)
        for change in plan.changes
        if change.action is Action.DELETE and change.born is not None
    ]
    return [*made, *gone, *(Forget(place, born) for place, born in plan.lapsed.items())]


def says_the_same(one: LimiterConfig, other: LimiterConfig) -> bool:
    """Whether two levels have the same limits and policy, whatever else they hold."""
    return _by_name(one) == _by_name(other) and one.on_unavailable == other.on_unavailable


def revised(before: LimiterConfig, wanted: LimiterConfig) -> LimiterConfig | None:
    """A level that says what is wanted and keeps the rest; ``None`` if it does already."""
    if says_the_same(before, wanted):
        return None
    return replace(before, limits=wanted.limits, on_unavailable=wanted.on_unavailable)


def _by_name(config: LimiterConfig) -> dict[str, object]:
    return {limit.name: limit for limit in config.limits}


NEVER = Stored(LimiterConfig())
"""A level that never was."""
