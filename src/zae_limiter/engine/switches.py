"""What switches mean for an acquire: refused, past the limits, or neither. Pure.

Whoever asks goes by the switch that its levels resolve to. Others whom it is charged to have a say of their
own by their own levels only: what is off for everybody is off by the asker's, which may be on all the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..exceptions import PermissionDenied, ResourceDisabled, SwitchedOff
from ..models.switches import Bypass, Switch
from .account import Account

OWN = frozenset({"entity", "entity_default"})
"""Levels of an entity itself."""


class Rethrown(Exception):
    """A switch was thrown while an acquire was under way; it is planned anew."""


def obeyed(accounts: Sequence[Account]) -> tuple[Account, ...]:
    """The accounts of a family as their switches let them be charged; raises if one is off."""
    if all(account.switch is None for account in accounts):
        return tuple(accounts)
    if (refusal := off(accounts)) is not None:
        raise refusal
    first = accounts[0]
    says = [(account, (first.switch, say_of(account, first))) for account in accounts]
    return tuple(bypassed(account, {one.bypass for one in both if one}) for account, both in says)


def off(accounts: Sequence[Account]) -> SwitchedOff | None:
    """The refusal of a family of which somebody is switched off."""
    first = accounts[0]
    for account in accounts:
        switch = say_of(account, first)
        if switch is not None and switch.disabled:
            told = first.entity_id, first.resource, switch.disabled, switch.level
            is_own = switch.level in OWN
            return PermissionDenied(*told, account.entity_id) if is_own else ResourceDisabled(*told)
    return None


def say_of(account: Account, first: Account) -> Switch | None:
    """The switch by which somebody of a family has a say."""
    switch = account.switch
    return switch if switch is None or account is first or switch.level in OWN else None


def bypassed(account: Account, ways: set[Bypass | None]) -> Account:
    """An account whose limits refuse nothing, if it is bypassed; it is not charged if one says uncounted."""
    if not any(ways):
        return account
    soft = replace(account.terms, soft=frozenset(account.terms.rates))
    return account._replace(terms=soft, bypass=next(way for way in reversed(Bypass) if way in ways))
