"""What each entity asked for itself, where cascading charges a request to a parent too. Pure.

A snapshot is an entity's own view: a parent's holds what its children passed on. A resource as a whole is
what was asked for, every request once, so what came from children is taken out of their parent's view.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from graphlib import CycleError, TopologicalSorter
from itertools import groupby

from ..models import UsageSnapshot


def own(snapshots: Iterable[UsageSnapshot]) -> Iterator[UsageSnapshot]:
    """The snapshots of a resource, window by window, each with what its entity asked for itself.

    Together they count every request once. What a child asked for is its own, whether or not its parent's
    snapshot is there.
    """
    for _, together in groupby(snapshots, key=lambda one: (one.window_type, one.window_start, one.resource)):
        yield from _own_of_window(list(together))


def _own_of_window(snapshots: Sequence[UsageSnapshot]) -> Iterator[UsageSnapshot]:
    by_entity = {one.entity_id: one for one in snapshots}
    below = {entity_id: Counter[str]() for entity_id in by_entity}
    """What its children passed on to an entity."""
    for entity_id in _children_first(by_entity):
        came = Counter(below[entity_id])
        for parent_id, amounts in by_entity[entity_id].passed_on.items():
            for name, amount in amounts.items():
                # A parent passes on what it asked for itself, and nothing that came from its children.
                passed = _without(amount, came[name])
                came[name] -= amount - passed
                if parent_id in below:
                    below[parent_id][name] += passed
    for one in snapshots:
        less = below[one.entity_id]
        counters = {name: _without(amount, less[name]) for name, amount in one.counters.items()}
        yield replace(one, counters=counters, passed_on={})


def _without(amount: int, part: int) -> int:
    """An amount without a part of it, which cannot be more than there is."""
    return amount - min(part, max(amount, 0))


def _children_first(by_entity: Mapping[str, UsageSnapshot]) -> list[str]:
    """Entities before their parents; families that were turned around, or are damaged, come last."""
    line = TopologicalSorter[str](dict.fromkeys(by_entity, ()))
    for one in by_entity.values():
        for parent_id in one.passed_on:
            if parent_id in by_entity:
                line.add(parent_id, one.entity_id)
    with suppress(CycleError):  # whoever is in no circle comes all the same
        line.prepare()
    found: dict[str, None] = {}
    while line.is_active():
        ready = line.get_ready()
        found |= dict.fromkeys(ready)
        line.done(*ready)
    return list({**found, **dict.fromkeys(by_entity)})
