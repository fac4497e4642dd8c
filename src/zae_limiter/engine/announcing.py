"""Announcing that somebody waits for seats, and taking that back: the writes. Pure; see ``announced``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ..repository_protocol import Condition, Exists, Item, Update, Value
from ..schema import LIFE, kind_attributes, pinned, stored_rate
from .account import WRITE_MILLI, Account
from .announced import VALID_MS, WAITERS_MAX, Announcement, said, waiters, waiters_attribute, without
from .posting import COUNT
from .seats import is_counted


def announce(
    account: Account, wanted: Mapping[str, int], ticket: int, image: Item | None, now_ms: int
) -> Update | None:
    """The write that says who waits for seats; ``None`` if the bucket says so well enough, or cannot."""
    set_: dict[str, Value] = {}
    for name, seats in wanted.items():
        if image is None or not is_counted(stored_rate(image, name)):
            continue
        there = waiters(image, name, now_ms)
        mine = Announcement(ticket, now_ms + VALID_MS, seats)
        known = [it for it in there if it.ticket == ticket]
        if known and known[0].until_ms - now_ms > VALID_MS // 2 and known[0].seats == seats:
            continue
        first = sorted([mine, *(it for it in there if it.ticket != ticket)])[:WAITERS_MAX]
        if mine in first:
            set_[waiters_attribute(name)] = said(first)
    return _telling(account, set_, image)


def withdraw(
    account: Account, names: Iterable[str], ticket: int, image: Item | None, now_ms: int
) -> Update | None:
    """The write that says that somebody waits no longer; ``None`` if the bucket does not say it waits."""
    set_: dict[str, Value] = {}
    for name in names:
        if image is not None and any(it.ticket == ticket for it in waiters(image, name, now_ms)):
            set_[waiters_attribute(name)] = without(image, name, ticket, now_ms)
    return _telling(account, set_, image)


def _telling(account: Account, set_: dict[str, Value], image: Item | None) -> Update | None:
    if not set_ or image is None:
        return None
    when: list[Condition] = [Exists(), *pinned(image, LIFE)]
    for attribute in set_:
        when += [*pinned(image, attribute), *pinned(image, kind_attributes(attribute[2:-3]).ac)]
    add = {COUNT.tk: -WRITE_MILLI, COUNT.tc: WRITE_MILLI} if COUNT.tk in image else {}
    return Update(account.key, add, set_, tuple(when))
