"""What limits count, where that is money: the level that applies says it, neither a bucket nor usage does."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import TypeAlias

from ..exceptions import DamagedRecordError
from .resolution import level_keys, resolve
from .scope import Scope

Units: TypeAlias = dict[str, str]
"""By limit, the unit of those that count money."""

NOBODY = "_"
"""Stands for whoever has no limits of its own."""


async def units_of_places(scope: Scope, places: Iterable[tuple[str, str]]) -> dict[tuple[str, str], Units]:
    """What the limits of entities on resources count, as they are now; one read for all of them."""
    keys = {place: level_keys(scope.namespace_id, *place) for place in places}
    distinct = list(dict.fromkeys(key for levels in keys.values() for key in levels))
    items = dict(zip(distinct, await scope.connection.fetch(distinct), strict=True)) if distinct else {}
    found: dict[tuple[str, str], Units] = {}
    for place, levels in keys.items():
        with suppress(DamagedRecordError):  # what cannot be read counts nothing in particular
            limits = resolve([items[key] for key in levels]).limits or ()
            found[place] = {limit.name: limit.unit for limit in limits if limit.unit is not None}
    return found


def agreed(several: Iterable[Mapping[str, str]]) -> Units:
    """The units in which sums can be told: where none of those that have one says another."""
    said: dict[str, set[str]] = {}
    for units in several:
        for name, unit in units.items():
            said.setdefault(name, set()).add(unit)
    return {name: unit for name, (unit, *others) in said.items() if not others}
