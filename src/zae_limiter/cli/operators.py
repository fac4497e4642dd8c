"""``zae-limiter entity top-up``, ``reset`` and ``forgive``: what operators do to a bucket.

The noun is that of ``entity``, which has these verbs when this module has been imported.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

import click

from ..exceptions import ValidationError
from ..models.changes import BucketChange
from ..models.grammar import parse_amount
from ..models.money import currency_of, decimal, shown_amount
from .entity import entity, units_of
from .nouns import option
from .session import Session, entity_id, key, principal, with_existing
from .switches import remark_unknown

__all__ = ["entity"]

resource: Final = click.argument("resource")
some_limits: Final = option(
    "--limit -l limits", "Only this one. May be repeated.", metavar="NAME", multiple=True
)


class Amount(NamedTuple):
    """How many tokens somebody wrote, and the unit if it was money."""

    text: str
    tokens: int
    unit: str | None


def _read_amounts(ctx: click.Context, _: click.Parameter, texts: tuple[str, ...]) -> dict[str, Amount]:
    amounts: dict[str, Amount] = {}
    for text in texts:
        try:
            name, tokens, unit = parse_amount(text)
        except ValidationError as error:
            raise click.UsageError(str(error), ctx) from error
        if name in amounts:
            raise click.UsageError(f"--limit {name} was given twice; add them up", ctx)
        amounts[name] = Amount(text, tokens, unit)
    return amounts


@entity.verb("top-up", entity_id, resource)
@option(
    "--limit -l limits",
    "How many tokens of which limit, or how much money, such as usd:25USD. May be repeated.",
    metavar="NAME:AMOUNT",
    multiple=True,
    required=True,
    callback=_read_amounts,
)
@key
@principal
@with_existing
def top_up(session: Session, entity_id: str, resource: str, limits: dict[str, Amount], **how: Any) -> None:
    """Give tokens to an entity, as far as there is room.

    What it may hold stays the same, and so does what it has used. Of a limit that counts money, money is
    given: usd:25USD.
    """
    units = units_of(session, entity_id, resource)
    for name, amount in limits.items():
        _check_unit(name, amount, units.get(name))
    tokens = {name: amount.tokens for name, amount in limits.items()}
    _tell(session, session.repository.top_up(entity_id, resource, tokens, **how), "topped up")


def _check_unit(name: str, amount: Amount, unit: str | None) -> None:
    """Money is written as money and nothing else is, so that nobody gives millionths by mistake."""
    if amount.unit == unit:
        return
    if unit is None:
        reason = f"limit {name!r} has no unit of money; write a whole number, such as {name}:500"
    elif amount.unit is None:
        currency, tokens = currency_of(unit), amount.tokens
        reason = f"limit {name!r} counts {currency} ({unit}); write {name}:{tokens}{currency}, "
        reason += f"or {name}:{decimal(tokens)}{currency} if millionths were meant"
    else:
        reason = f"limit {name!r} counts {currency_of(unit)} ({unit}), not {currency_of(amount.unit)}"
    raise ValidationError("amount", amount.text, reason)


@entity.verb("reset", entity_id, resource, some_limits, key, principal, with_existing)
def reset(session: Session, entity_id: str, resource: str, limits: tuple[str, ...], **how: Any) -> None:
    """Fill the bucket of an entity."""
    _tell(session, session.repository.reset(entity_id, resource, limits or None, **how), "reset")


@entity.verb("forgive", entity_id, resource, some_limits, key, principal, with_existing)
def forgive(session: Session, entity_id: str, resource: str, limits: tuple[str, ...], **how: Any) -> None:
    """Let an entity off its debts. What is below zero becomes zero."""
    _tell(session, session.repository.forgive(entity_id, resource, limits or None, **how), "forgave")


AFTER = "what is given is for those who come after it; entity reset and entity forgive end what was booked"


def _tell(session: Session, change: BucketChange, did: str) -> None:
    whose = f"{change.entity_id!r} on {change.resource!r}"
    units = units_of(session, change.entity_id, change.resource)
    told = [
        _changed(change, name, units.get(name))
        for name in change.before
        if change.given[name] or change.over.get(name) or (did != "topped up" and change.booked.get(name))
    ]
    if not change.used:
        remark_unknown(session, change.entity_id, change.resource)
        message = f"{whose} is full: it was never used"
    elif not told:
        message = f"{whose} has nothing to forgive" if did == "forgave" else f"{whose} is full"
    else:
        message = f"{did} {whose}: {'; '.join(told)}"
    if change.booked and change.booked_until_ms is not None:
        until = f"{datetime.fromtimestamp(-(-change.booked_until_ms // 1000), UTC):%Y-%m-%d %H:%M:%S} UTC"
        waits = AFTER if did == "topped up" else "whoever is still there begins when it was told to"
        message += f"; somebody waits until {until} at the latest: {waits}"
    session.output.done(change, message)


def _changed(change: BucketChange, name: str, unit: str | None) -> str:
    before, after = shown_amount(change.before[name], unit), shown_amount(change.after[name], unit)
    over = f", no room for {shown_amount(change.over[name], unit)}" if name in change.over else ""
    booked = f", of that {shown_amount(n, unit)} was booked" if (n := change.booked.get(name)) else ""
    return f"{name} from {before} to {after}{booked if name not in change.over else ''}{over}"
