"""Families of four generations, in some worlds: who is above the parents, who changes that, and who pays.

The dice are its own, so that a world without such families is the same with and without them.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

from zae_limiter.lease import Lease
from zae_limiter.repository import Repository

PARENT, STEPPARENT, TEAM, ORG = "parent", "stepparent", "team", "org"
ABOVE = {PARENT: TEAM, STEPPARENT: ORG, TEAM: ORG, ORG: None}
"""Everybody who is above somebody, and who is above them where families are deep."""

Chore = tuple[str, Callable[[], Coroutine[Any, Any, Any]]]


class Lineage:
    """The upper generations of a world."""

    def __init__(self, seed: int, *, wanted: bool) -> None:
        self._dice = random.Random(f"families of {seed}")
        self._wanted = wanted and self._dice.random() < 0.4
        self.is_deep = False

    async def make(self, view: Repository, parents: Sequence[str], *, deep: bool) -> None:
        """Record the parents, below others if the world has those."""
        deep = deep and self._wanted
        for entity_id in (ORG, TEAM, *parents) if deep else parents:
            above = ABOVE[entity_id] if deep else None
            await view.create_entity(entity_id, parent_id=above, cascade=above is not None)
        self.is_deep = self.is_deep or deep

    def chores(self, repository: Repository, resource: str) -> list[Chore]:
        """What an admin changes in the middle of a chain."""
        if not self.is_deep:
            return []
        dice = self._dice

        def cascades() -> bool | None:
            return dice.choice((True, False, None))

        return [
            ("chain changed", lambda: repository.update_entity(PARENT, parent_id=dice.choice((TEAM, ORG)))),
            ("chain changed", lambda: repository.update_entity(TEAM, parent_id=dice.choice((ORG, None)))),
            ("chain changed", lambda: repository.update_entity(TEAM, cascade=dice.random() < 0.5)),
            ("policy changed", lambda: repository.set_entity_cascade(PARENT, cascades(), resource)),
            ("policy changed", lambda: repository.set_resource_cascade(resource, cascades())),
        ]

    def check(self, lease: Lease, families: Sequence[set[str]], parents: Mapping[str, str | None]) -> None:
        """Whoever took something under a family that nobody changed has charged all of it, to the top."""
        if not self.is_deep:
            return
        expected, above = {lease._entity_id}, parents[lease._entity_id]
        while above is not None:
            expected.add(above)
            above = ABOVE[above] if self.is_deep else None
        assert all(family == expected for family in families), f"{families} were charged, not {expected}"
