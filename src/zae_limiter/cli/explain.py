"""``zae-limiter explain``: which limits apply to an entity on a resource, and why."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click
from rich.console import Group, RenderableType
from rich.text import Text

from ..models.accruals import CONCURRENT
from ..models.explanation import ExplainedBucket, Explanation
from ..models.money import shown_amount
from ..records.reasons import LEVELS, reasons
from ..schema import iso_time
from .levels import resources_with_limits
from .nouns import verb
from .output import grid, plain, record
from .session import Session, limit_texts, with_existing
from .switches import switch_text
from .text import printable

NAMES_MAX = 10
"""How many names a sentence takes."""


@verb("explain", click.argument("entity_id"), click.argument("resource"), with_existing)
def explain(session: Session, entity_id: str, resource: str) -> None:
    """Show which limits apply to an entity, and why.

    Limits are looked for at four levels; the first that has any wins. An entity that cascades is charged
    together with its parent, and so on upwards; whichever bucket has less of a limit binds. Nothing is
    consumed.
    """
    found = session.repository.explain(entity_id, resource)
    if session.output.json(_data(found)):
        return
    session.output.show(found, lambda: _shown(found))
    for sentence in reasons(found):
        session.output.note(sentence)
    known = resources_with_limits(session)
    if known and resource not in known and not found.buckets[0].levels[0].wins:
        some = ", ".join([*known[:NAMES_MAX], *(["…"] if len(known) > NAMES_MAX else [])])
        session.output.note(f"resource {resource!r} has no limits of its own; these have: {some}")


def _data(found: Explanation) -> dict[str, Any]:
    """All of it, and each refusal in words too."""
    told = {**plain(found), "binding": found.binding}
    for bucket, said in zip(told["buckets"], found.buckets, strict=True):
        for refusal, one in zip(bucket["refusing"], said.refusing, strict=True):
            refusal |= {"retry_after_seconds": one.retry_after_seconds, "message": str(one)}
    return told


def _shown(found: Explanation) -> RenderableType:
    policy = LEVELS.get(found.on_unavailable_source or "", "no level says; the program's own setting")
    fields = {
        "entity": found.entity_id,
        "resource": found.resource,
        "parent": found.parent_id,
        "charged": _listed([bucket.entity_id for bucket in found.buckets]),
        "on unavailable": f"{found.on_unavailable} ({policy})",
    }
    parts: list[RenderableType] = [record(fields)]
    for bucket in found.buckets:
        parts += [Text(f"\n{printable(bucket.entity_id)}: first level with limits wins\n"), _levels(bucket)]
    return Group(*parts, Text(), _applying(found))


def _listed(names: Sequence[str]) -> str:
    """Names as a sentence lists them."""
    *others, last = names
    return f"{', '.join(others)} and {last}" if others else last


def _levels(bucket: ExplainedBucket) -> RenderableType:
    rows: list[dict[str, object]] = []
    for one in bucket.levels:
        outcome = "overruled" if bucket.winner is not None and one.limits else "has none"
        outcome = "wins" if one.wins else outcome
        cells: dict[str, object] = {
            "level": LEVELS[one.source],
            "limits": limit_texts(one.limits) or None,
            "on unavailable": one.on_unavailable,
            "switch": switch_text(one.disabled, one.bypass) or None,
            "cascade": one.cascade,
            "so": outcome,
        }
        rows.append(cells)
    # Most have never heard of switches, nor of where entities cascade.
    columns = [
        name
        for name in rows[0]
        if name not in ("switch", "cascade") or any(row[name] is not None for row in rows)
    ]
    return grid(columns, [[row[name] for name in columns] for row in rows])


def _applying(found: Explanation) -> RenderableType:
    rows = []
    for bucket in found.buckets:
        for limit in bucket.winner.limits if bucket.winner else ():
            rate = limit_texts([limit]).removeprefix(f"{limit.name}:")
            binds = "binds" if found.binding.get(limit.name) == bucket.entity_id else ""
            binds = "refuses" if any(one.limit.name == limit.name for one in bucket.refusing) else binds
            if limit.soft:
                binds = "soft, over" if bucket.available[limit.name] < 0 else "soft"
            if limit.accrual == CONCURRENT:
                held = f"{limit.capacity - bucket.available[limit.name]} of {limit.capacity} held"
                binds = f"{binds}, {held}" if binds else held
            if (phase := bucket.phases.get(limit.name)) is not None:
                now = limit_texts([phase.limit]).removeprefix(f"{limit.name}:")
                window = f"({phase.window})" if phase.window else ""
                told = f"{now}{window} until {iso_time(phase.until_ms).replace('.000Z', 'Z')}"
                binds = f"{binds}, {told}" if binds else told
            left = shown_amount(bucket.available[limit.name], limit.unit)
            rows.append((limit.name, bucket.entity_id, rate, left, binds))
    rows.sort(key=lambda row: row[0])  # of each limit in the order of the chain
    return grid(["limit", "of", "rate", "available", "now"], rows, numbers=("available",))
