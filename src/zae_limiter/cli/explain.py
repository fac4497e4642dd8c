"""``zae-limiter explain``: which limits apply to an entity on a resource, and why."""

from __future__ import annotations

from collections.abc import Sequence
from shlex import quote
from typing import Any

import click
from rich.console import Group, RenderableType
from rich.text import Text

from ..engine.switches import OWN
from ..models.accruals import CONCURRENT
from ..models.explanation import ExplainedBucket, Explanation
from ..models.money import shown_amount
from ..schema import iso_time
from .levels import resources_with_limits
from .nouns import verb
from .output import grid, plain, printable, record
from .session import Session, limit_texts, with_existing
from .switches import switch_text

NAMES_MAX = 10
"""How many names a sentence takes."""

LEVELS = {
    "entity": "the entity's own for it",
    "entity_default": "the entity's own for all",
    "resource": "the resource's",
    "system": "the system's",
}


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
    for sentence in _reasons(found):
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


def _reasons(found: Explanation) -> list[str]:
    """What is to be known beside the numbers."""
    said = [*_switches(found), *(f"an acquire is refused: {one}" for one in found.refusing)]
    if not any(bucket.winner for bucket in found.buckets):
        said.append(
            f"no level has limits for {found.entity_id!r} on {found.resource!r}, so an acquire fails; "
            "set some with: zae-limiter entity set-limits, resource set-defaults or system set-defaults"
        )
        said += [
            f"programs that bring their own with limits= have left in the bucket of {bucket.entity_id!r}: "
            + ", ".join(f"{tokens} {name}" for name, tokens in bucket.available.items())
            for bucket in found.buckets
            if bucket.available
        ]
    said += _ending(found)
    for bucket in found.buckets:
        if bucket.winner is not None:
            seconds, level = bucket.change_binds_seconds, LEVELS[bucket.winner.source]
            when = f"within {seconds:g} s" if seconds else "at the next acquire"
            said.append(
                f"if these limits are changed ({level}), {bucket.entity_id!r} goes by the new ones {when}"
            )
    return said


def _switches(found: Explanation) -> list[str]:
    """What switches mean for an acquire, and how the one that refuses is undone."""
    if found.off is not None and (switch := found.off.switch) is not None:
        named = {"--entity": found.off.entity_id} if switch.level in OWN else {}
        named |= {"--resource": found.resource} if switch.level in ("entity", "resource") else {}
        options = "".join(f" {option} {quote(value)}" for option, value in named.items())
        whose = f"{found.off.entity_id!r} is" if switch.level in OWN else "it is"
        return [
            f"an acquire is refused, because {whose} disabled ({LEVELS[switch.level]}): {switch.disabled}; "
            f"undo that with: zae-limiter enable{options}"
        ]
    bypassed = [one for one in found.buckets if one.switch is not None and one.switch.bypass is not None]
    return [
        f"the limits of {one.entity_id!r} refuse nothing, because it is bypassed, {one.switch.bypass} "
        f"({LEVELS[one.switch.level]})"
        for one in bypassed
        if one.switch is not None
    ]


def _ending(found: Explanation) -> list[str]:
    """Why nobody above the last one is charged."""
    last = found.buckets[-1]
    parent = repr(last.parent_id)
    if last.parent_id is None:
        return []
    if last.cascade:
        told = f"{last.entity_id!r} leads back to {parent}; each is charged once"
        return [f"the family is a circle: {told}; give one of them another parent"]
    whose = "its" if last is found.buckets[0] else f"{last.entity_id!r}'s"
    does_not = "it does not cascade" if last is found.buckets[0] else f"{last.entity_id!r} does not cascade"
    says = LEVELS.get(last.cascade_source or "")
    where = "" if says is None else f" on {found.resource!r} (level: {says})"
    return [f"the limits of {whose} parent {parent} do not apply, because {does_not}{where}"]


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
                told = f"{now} until {iso_time(phase.until_ms).replace('.000Z', 'Z')}"
                binds = f"{binds}, {told}" if binds else told
            left = shown_amount(bucket.available[limit.name], limit.unit)
            rows.append((limit.name, bucket.entity_id, rate, left, binds))
    rows.sort(key=lambda row: row[0])  # of each limit in the order of the chain
    return grid(["limit", "of", "rate", "available", "now"], rows, numbers=("available",))
