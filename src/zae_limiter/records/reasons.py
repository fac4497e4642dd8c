"""What is to be known of an explanation beside its numbers, as sentences with their ways out. Pure."""

from __future__ import annotations

from shlex import quote

from ..engine.switches import OWN
from ..models.explanation import Explanation

LEVELS = {
    "entity": "the entity's own for it",
    "entity_default": "the entity's own for all",
    "resource": "the resource's",
    "system": "the system's",
}
"""The levels as a sentence calls them."""


def reasons(found: Explanation) -> list[str]:
    """What is to be known beside the numbers, a sentence each."""
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
