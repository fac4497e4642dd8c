"""``zae-limiter entity top-up``, ``reset`` and ``forgive``: what operators do to a bucket.

The noun is that of ``entity``, which has these verbs when this module has been imported.
"""

from __future__ import annotations

from typing import Any

import click

from ..exceptions import ValidationError
from ..models.changes import BucketChange
from .entity import entity
from .grammar import parse_amount
from .nouns import option
from .session import Session, entity_id, key, principal, with_existing

__all__ = ["entity"]

resource = click.argument("resource")
some_limits = option("--limit -l limits", "Only this one. May be repeated.", metavar="NAME", multiple=True)


def _read_amounts(ctx: click.Context, _: click.Parameter, texts: tuple[str, ...]) -> dict[str, int]:
    amounts: dict[str, int] = {}
    for text in texts:
        try:
            name, amount = parse_amount(text)
        except ValidationError as error:
            raise click.UsageError(str(error), ctx) from error
        if name in amounts:
            raise click.UsageError(f"--limit {name} was given twice; add them up", ctx)
        amounts[name] = amount
    return amounts


@entity.verb("top-up", entity_id, resource)
@option(
    "--limit -l limits",
    "How many tokens of which limit. May be repeated.",
    metavar="NAME:AMOUNT",
    multiple=True,
    required=True,
    callback=_read_amounts,
)
@key
@principal
@with_existing
def top_up(session: Session, entity_id: str, resource: str, limits: dict[str, int], **how: Any) -> None:
    """Give tokens to an entity, as far as there is room.

    What it may hold stays the same, and so does what it has used.
    """
    _tell(session, session.repository.top_up(entity_id, resource, limits, **how), "topped up")


@entity.verb("reset", entity_id, resource, some_limits, key, principal, with_existing)
def reset(session: Session, entity_id: str, resource: str, limits: tuple[str, ...], **how: Any) -> None:
    """Fill the bucket of an entity."""
    _tell(session, session.repository.reset(entity_id, resource, limits or None, **how), "reset")


@entity.verb("forgive", entity_id, resource, some_limits, key, principal, with_existing)
def forgive(session: Session, entity_id: str, resource: str, limits: tuple[str, ...], **how: Any) -> None:
    """Let an entity off its debts. What is below zero becomes zero."""
    _tell(session, session.repository.forgive(entity_id, resource, limits or None, **how), "forgave")


def _tell(session: Session, change: BucketChange, did: str) -> None:
    whose = f"{change.entity_id!r} on {change.resource!r}"
    told = [_changed(change, name) for name in change.before if change.given[name] or change.over.get(name)]
    if not change.used:
        message = f"{whose} is full: it was never used"
    elif not told:
        message = f"{whose} has nothing to forgive" if did == "forgave" else f"{whose} is full"
    else:
        message = f"{did} {whose}: {'; '.join(told)}"
    session.output.done(change, message)


def _changed(change: BucketChange, name: str) -> str:
    over = f", no room for {change.over[name]}" if name in change.over else ""
    return f"{name} from {change.before[name]} to {change.after[name]}{over}"
