"""Families as they are recorded: who is above an entity, who is below, and what no family may become.

A family has at most eight levels and nobody is its own ancestor. Both are seen to when a parent is given: the
line above is read one by one, for only a record names the next parent, and whoever gives an entity another
parent pins that line in the same transaction, so that two who do so at once cannot close a circle.

Whatever is stored all the same, by damage, a race or an older version, is never followed twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ..exceptions import ValidationError, shown
from ..repository_protocol import Item, Key
from ..schema import children_of, entity_id_of, entity_key, identifier, is_deleted, number
from .scope import Scope

LEVELS_MAX = 8
"""How many entities stand above one another, the lowest and the highest included."""


class Ancestor(NamedTuple):
    """Somebody above an entity, and its record as it was read; ``None`` if it is only named."""

    entity_id: str
    key: Key
    item: Item | None


async def line_above(scope: Scope, parent_id: str, *, fresh: bool = True) -> list[Ancestor]:
    """A parent and all above it; one that is not recorded ends the line, and nobody is met twice.

    It is read no further than a family may reach. Without ``fresh`` what is remembered will do.
    """
    line: list[Ancestor] = []
    above: str | None = parent_id
    while above is not None and len(line) < LEVELS_MAX and above not in [one.entity_id for one in line]:
        key = entity_key(scope.namespace_id, above)
        (item,) = [await scope.get(key)] if fresh else await scope.connection.fetch([key])
        item = None if is_deleted(item) else item
        line.append(Ancestor(above, key, item))
        above = None if item is None else identifier(item.get("parent_id"))
    return line


async def line_below(scope: Scope, entity_id: str, levels_max: int) -> list[str]:
    """The longest line of descendants, as far as ``levels_max``; reads all of them but who has no children.

    Each level is asked for as a whole. Records count their children, so nobody is asked who has none.
    """
    line: list[str] = []
    parents: dict[str, list[str]] = {entity_id: line}
    for _ in range(levels_max):
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
                line = path if len(path) > len(line) else line
                if number(item, "children") > 0:
                    parents[child_id] = path
        if not parents:
            break
    return line


async def check_new(scope: Scope, entity_id: str, parent_id: str) -> None:
    """Raise if an entity that is being made would be its own ancestor, or one level too many.

    Who is new has no children, unless their parent was lost. What is remembered will do to see that all is
    well, so that many who are made under one parent do not read its line again and again.
    """
    remembered = await line_above(scope, parent_id, fresh=False)
    if _problem([entity_id], remembered) is not None:
        _check([entity_id], await line_above(scope, parent_id))


async def check_move(scope: Scope, entity_id: str, parent_id: str, *, has_children: bool) -> list[Ancestor]:
    """The new line above an entity, to be pinned; raises if it, or one below it, may not be there."""
    line = await line_above(scope, parent_id)
    _check([entity_id], line)
    if has_children:
        below = await line_below(scope, entity_id, LEVELS_MAX - len(line))
        _check([*reversed(below), entity_id], line)
    return line


def _check(below: Sequence[str], line: Sequence[Ancestor]) -> None:
    if (problem := _problem(below, line)) is not None:
        raise ValidationError("parent_id", line[0].entity_id, problem)


def _problem(below: Sequence[str], line: Sequence[Ancestor]) -> str | None:
    """What is wrong with a family: an entity, with those below it before it, and the line above it."""
    above = [one.entity_id for one in line]
    if below[-1] in above:
        circle = [below[-1], *above[: above.index(below[-1]) + 1]]
        return f"{below[-1]!r} would become its own ancestor: {line_text(circle)}"
    if len(below) + len(above) > LEVELS_MAX:
        told = line_text([*below, *above])
        return f"a family has at most {LEVELS_MAX} levels, and this one would have more: {told}"
    return None


def line_text(line: Sequence[str]) -> str:
    """A line of entities as messages show it, the lowest first."""
    return " → ".join(shown(one, 40) for one in line)
