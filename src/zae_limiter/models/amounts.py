"""Amounts as callers give them: whole tokens by limit name, in a mapping or as keywords."""

from __future__ import annotations

from collections.abc import Mapping

from ..exceptions import ValidationError, shown
from . import TOKENS_MAX, check_count, check_mapping

AMOUNTS_HINT = "pass amounts by limit, such as {'rpm': 1}"


def needs_milli(amounts: Mapping[str, int]) -> dict[str, int]:
    """Amounts to be taken, checked, in millitokens; nothing of a limit is no demand on it."""
    if type(amounts) is not dict:
        amounts = check_mapping("consume", amounts, AMOUNTS_HINT)
    needs = {}
    for name, amount in amounts.items():
        if type(amount) is not int or not 0 < amount <= TOKENS_MAX:
            check_count(f"amount of {shown(name)}", amount, TOKENS_MAX, 0)
        if amount:
            needs[name] = amount * 1000
    return needs


def named_amounts(amounts: Mapping[str, int] | None, named: Mapping[str, int]) -> dict[str, int]:
    """Amounts from a mapping, for names that are no identifiers, and from keywords."""
    given = {} if amounts is None else check_mapping("amounts", amounts, AMOUNTS_HINT)
    both = {**given, **named}
    if twice := sorted(given.keys() & named.keys()):
        raise ValidationError("amounts", both, f"{', '.join(twice)} given twice")
    return both
