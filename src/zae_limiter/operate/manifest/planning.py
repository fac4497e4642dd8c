"""From what is wanted and what is stored to what has to be done. Pure.

A level that the file names becomes what the file says. A level that the file does not name is deleted
if the life that it leads was given to it by an apply, and left alone otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ...models import LimiterConfig
from .model import Action, LevelAddress, LevelChange, Manifest, ManifestPlan, StoredLevel


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
        after, claim = manifest.levels.get(address), claims.get(address)
        if after is not None and before is not None and says_the_same(before, after):
            unchanged += 1
        elif after is not None:
            action = Action.CREATE if before is None else Action.UPDATE
            changes.append(LevelChange(action, address, before, after))
        elif before is not None and claim is not None and claim == born:
            changes.append(LevelChange(Action.DELETE, address, before, None, born))
        elif before is not None and everything:
            changes.append(LevelChange(Action.LEAVE, address, before, before))
        is_made = after is not None and before is None
        if claim is not None and claim != born and not is_made:  # who makes a level replaces its claim
            lapsed[address] = claim
    return ManifestPlan(tuple(changes), unchanged, lapsed)


def says_the_same(one: LimiterConfig, other: LimiterConfig) -> bool:
    """Whether two levels have the same limits and policy, whatever else they hold."""
    return set(one.limits) == set(other.limits) and one.on_unavailable == other.on_unavailable


def revised(before: LimiterConfig, wanted: LimiterConfig) -> LimiterConfig | None:
    """A level that says what is wanted and keeps the rest; ``None`` if it does already."""
    if says_the_same(before, wanted):
        return None
    return replace(before, limits=wanted.limits, on_unavailable=wanted.on_unavailable)
