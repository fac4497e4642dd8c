"""What each entity asked for itself, where cascading charges a request to a parent too. Pure.

A snapshot is an entity's own view: a parent's holds what its children passed on. A resource as a whole is
what was asked for, every request once, so what came from children is taken out of their parent's view.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby

from ..models import UsageSnapshot


def own(snapshots: Iterable[UsageSnapshot]) -> Iterator[UsageSnapshot]:
    """The snapshots of a resource, window by window, each with what its entity asked for itself.

    Together they count every request once. Where a request and its charge to the parent fell into different
    windows, it counts in the parent's.
    """
    for _, together in groupby(snapshots, key=lambda one: (one.window_type, one.window_start, one.resource)):
        yield from _own_of_window(list(together))


def _own_of_window(snapshots: Sequence[UsageSnapshot]) -> Iterator[UsageSnapshot]:
    by_entity = {one.entity_id: one for one in snapshots}
    less = {entity_id: Counter[str]() for entity_id in by_entity}
    """What is not an entity's own: what its children passed on to it."""
    for one in sorted(snapshots, key=lambda one: -_ancestors(one, by_entity)):
        # A parent passes on what it asked for itself, and nothing that came from its children.
        passed = {name: amount - less[one.entity_id][name] for name, amount in one.passed_on.items()}
        less[one.parent_id if one.parent_id in by_entity else one.entity_id].update(passed)
    for one in snapshots:
        counters = {name: amount - less[one.entity_id][name] for name, amount in one.counters.items()}
        yield replace(one, counters=counters, passed_on={})


def _ancestors(one: UsageSnapshot, by_entity: dict[str, UsageSnapshot]) -> int:
    """How many of an entity's ancestors have a snapshot; a damaged row may name itself."""
    seen = {one.entity_id}
    while one.parent_id in by_entity and one.parent_id not in seen:
        one = by_entity[one.parent_id]
        seen.add(one.entity_id)
    return len(seen) - 1
