"""``zae-limiter explain``: which limits apply to an entity on a resource, and why."""

from __future__ import annotations

from shlex import quote

import click
from rich.console import Group, RenderableType
from rich.text import Text

from ..engine.switches import OWN
from ..models.accruals import CONCURRENT
from ..models.explanation import ExplainedBucket, Explanation
from ..models.money import shown_amount
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
    together with its parent, and nobody above; whichever bucket has less of a limit binds. Nothing is
    consumed.
    """
    found = session.repository.explain(entity_id, resource)
    if session.output.json({**plain(found), "binding": found.binding}):
        return
    session.output.show(found, lambda: _shown(found))
    for sentence in _reasons(found):
        session.output.note(sentence)
    known = session.repository.list_resources_with_defaults()
    if known and resource not in known and not found.buckets[0].levels[0].wins:
        some = ", ".join([*known[:NAMES_MAX], *(["…"] if len(known) > NAMES_MAX else [])])
        session.output.note(f"resource {resource!r} has no limits of its own; these have: {some}")


def _reasons(found: Explanation) -> list[str]:
    """What is to be known beside the numbers."""
    said = _switches(found)
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
    if found.parent_id is not None and not found.cascade:
        said.append(f"the limits of its parent {found.parent_id!r} do not apply, because it does not cascade")
    if found.grandparent_id is not None:
        parent, above = repr(found.parent_id), repr(found.grandparent_id)
        said.append(
            f"{above} is not charged: {parent} cascades to {above} only for what {parent} itself acquires"
        )
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


def _shown(found: Explanation) -> RenderableType:
    policy = LEVELS.get(found.on_unavailable_source or "", "no level says; the program's own setting")
    cascades = found.parent_id is not None and found.cascade
    fields = {
        "entity": found.entity_id,
        "resource": found.resource,
        "parent": found.parent_id,
        "charged": f"{found.entity_id} and {found.parent_id}" if cascades else found.entity_id,
        "on unavailable": f"{found.on_unavailable} ({policy})",
    }
    parts: list[RenderableType] = [record(fields)]
    for bucket in found.buckets:
        parts += [Text(f"\n{printable(bucket.entity_id)}: first level with limits wins\n"), _levels(bucket)]
    return Group(*parts, Text(), _applying(found))


def _levels(bucket: ExplainedBucket) -> RenderableType:
    rows = []
    for one in bucket.levels:
        outcome = "overruled" if bucket.winner is not None and one.limits else "has none"
        outcome = "wins" if one.wins else outcome
        row = LEVELS[one.source], limit_texts(one.limits) or None, one.on_unavailable
        rows.append((*row, switch_text(one.disabled, one.bypass) or None, outcome))
    if not any(row[3] for row in rows):  # most have never heard of switches
        return grid(["level", "limits", "on unavailable", "so"], [(*row[:3], row[4]) for row in rows])
    return grid(["level", "limits", "on unavailable", "switch", "so"], rows)


def _applying(found: Explanation) -> RenderableType:
    rows = []
    for bucket in found.buckets:
        for limit in bucket.winner.limits if bucket.winner else ():
            rate = limit_texts([limit]).removeprefix(f"{limit.name}:")
            binds = "binds" if found.binding[limit.name] == bucket.entity_id else ""
            if limit.accrual == CONCURRENT:
                held = f"{limit.capacity - bucket.available[limit.name]} of {limit.capacity} held"
                binds = f"{binds}, {held}" if binds else held
            left = shown_amount(bucket.available[limit.name], limit.unit)
            rows.append((limit.name, bucket.entity_id, rate, left, binds))
    return grid(["limit", "of", "rate", "available", "now"], sorted(rows), numbers=("available",))
