"""Families as they are recorded: who is above an entity, who is below, and what no family may become.

A family has at most eight generations and nobody is its own ancestor. Whoever gives an entity a parent sees
to both: the chain above is read one by one, for only a record names the next parent. Who moves an entity pins
that chain in the same transaction, so that two who do so at once cannot close a circle.

Whatever is stored all the same, by damage, a race or an older version, is never followed twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ..exceptions import ValidationError, shown
from ..models import GENERATIONS_MAX
from ..repository_protocol import Item, Key
from ..schema import children_of, entity_id_of, entity_key, identifier, is_deleted, number
from .scope import Scope


class Ancestor(NamedTuple):
    """Somebody above an entity, and its record as it was read; ``None`` if it is only named."""

    entity_id: str
    key: Key
    item: Item | None


async def chain_above(scope: Scope, parent_id: str, *, fresh: bool = True) -> list[Ancestor]:
    """A parent and all above it; one that is not recorded ends the chain, and nobody is met twice.

    It is read no further than a family may reach. Without ``fresh`` what is remembered will do.
    """
    chain: list[Ancestor] = []
    above: str | None = parent_id
    while (
        above is not None and len(chain) < GENERATIONS_MAX and above not in [one.entity_id for one in chain]
    ):
        key = entity_key(scope.namespace_id, above)
        (item,) = [await scope.get(key)] if fresh else await scope.connection.fetch([key])
        item = None if is_deleted(item) else item
        chain.append(Ancestor(above, key, item))
        above = None if item is None else identifier(item.get("parent_id"))
    return chain


async def chain_below(scope: Scope, entity_id: str, generations_max: int) -> list[str]:
    """The longest chain of descendants, as far as ``generations_max``; all of them are read.

    Each generation is read as a whole. Records count their children, so nobody is asked who has none.
    """
    chain: list[str] = []
    parents: dict[str, list[str]] = {entity_id: chain}
    for _ in range(generations_max):
        children: dict[Key, list[str]] = {}
        for parent_id, path in parents.items():
            rows = scope.rows(children_of(scope.namespace_id, parent_id))
            children |= {row.key: path async for row in rows}
        found = await scope.get_all(list(children))
        parents = {}
        for key, item in found.items():
            child_id = entity_id_of(key)
            if child_id is not None and not is_deleted(item):
                path = [*children[key], child_id]
                chain = path if len(path) > len(chain) else chain
                if number(item, "children") > 0:
                    parents[child_id] = path
        if not parents:
            break
    return chain


async def check_new(scope: Scope, entity_id: str, parent_id: str) -> None:
    """Raise if an entity that is being made would be its own ancestor, or one generation too many.

    Who is new has no children, unless their parent was lost. What is remembered will do to see that all is
    well, so that many who are made under one parent do not read its chain again and again.
    """
    remembered = await chain_above(scope, parent_id, fresh=False)
    if _problem([entity_id], remembered) is not None:
        _check([entity_id], await chain_above(scope, parent_id))


async def check_move(scope: Scope, entity_id: str, parent_id: str, *, has_children: bool) -> list[Ancestor]:
    """The new chain above an entity, to be pinned; raises if it, or one below it, may not be there."""
    chain = await chain_above(scope, parent_id)
    _check([entity_id], chain)
    if has_children:
        below = await chain_below(scope, entity_id, GENERATIONS_MAX - len(chain))
        _check([*reversed(below), entity_id], chain)
    return chain


def _check(below: Sequence[str], chain: Sequence[Ancestor]) -> None:
    if (problem := _problem(below, chain)) is not None:
        raise ValidationError("parent_id", chain[0].entity_id, problem)


def _problem(below: Sequence[str], chain: Sequence[Ancestor]) -> str | None:
    """What is wrong with a family: an entity, with those below it before it, and the chain above it."""
    above = [one.entity_id for one in chain]
    if below[-1] in above:
        circle = [below[-1], *above[: above.index(below[-1]) + 1]]
        return f"{below[-1]!r} would become its own ancestor: {chain_text(circle)}"
    if len(below) + len(above) > GENERATIONS_MAX:
        told = chain_text([*below, *above])
        return f"a family has at most {GENERATIONS_MAX} generations, and this one would have more: {told}"
    return None


def chain_text(chain: Sequence[str]) -> str:
    """A chain of entities as messages show it, the lowest first."""
    return " → ".join(shown(one, 40) for one in chain)
