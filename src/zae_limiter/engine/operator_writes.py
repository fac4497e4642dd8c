"""What an operator gives to a bucket: pure.

Every verb is one shape: amounts are worked out from one look at all shards, and added to what is there when
they are written. So they commute with whatever is taken meanwhile, which stays taken:

    give    believed to have room    tk <= cp - gain - given    add given to tk

The condition keeps a bucket from ever holding more than its capacity; whoever was faster makes it fail, and
the verb looks again. A gift is no refund: ``tc`` stays. While somebody waits, a top-up is set aside like all
that comes back (``set_aside``), so it moves nobody before those who came earlier. ``reset`` and ``forgive``
*end* what was booked: it is part of the gift, those who booked begin at their slots all the same, and a count
on the bucket tells whoever gives up that nothing is left to give back. That holds for the very line only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import NamedTuple

from ..repository_protocol import AtMost, Condition, Equal, Exists, Item, Key, Update, Value
from ..schema import (
    BOOKED,
    BOOKED_SINCE,
    LIFE,
    PHASE,
    booking_attributes,
    bucket_limit_names,
    is_number,
    limit_attributes,
    number,
    pinned,
    stored_rate,
)
from .account import WRITE_MILLI
from .bucket_view import as_found, ended_attribute, in_line
from .law import TOKEN_MILLI, gain
from .line_over import unbooked
from .phased import in_phase
from .posting import COUNT, believed
from .set_aside import as_a_whole, room_for, set_aside


class Gift(Enum):
    """How much an operator gives."""

    TOP_UP = "top_up"
    """So much, as far as there is room."""
    RESET = "reset"
    """What is missing until it is full."""
    FORGIVE = "forgive"
    """What it owes."""


class Room(NamedTuple):
    """How one limit of one shard stands."""

    held_milli: int
    """What it holds, with what is set aside for those who come after all who wait."""
    room_milli: int
    """How much more it can hold."""
    booked_milli: int | None = None
    """By how much it is below zero while somebody waits for it; ``None`` if nobody does."""
    missing_milli: int = 0
    """What it lacks until it is full."""


def room_of(image: Item | None, name: str, now_ms: int) -> Room | None:
    """How a limit stands; ``None`` if the shard does not have it."""
    if image is None:
        return None
    found, tokens = as_found(image, now_ms), limit_attributes(name).tk
    if (rate := stored_rate(found, name)) is None:
        return None
    stored = number(found, tokens)
    gained, _, is_full, _ = believed(rate, tokens, stored, number(found, "rf"), now_ms)
    held = rate.capacity_milli if is_full else stored + gained
    booked = booking_attributes(name)
    if BOOKED in found and booked.high in found:
        whole = min(rate.capacity_milli, held + number(found, booked.back))
        missing = rate.capacity_milli - whole
        return Room(whole, room_for(name, missing, found, now_ms), max(0, -held), missing)
    return Room(held, rate.capacity_milli - held, None, rate.capacity_milli - held)


class Gifts(NamedTuple):
    """What a bucket gets, in millitokens: each limit in all, and shard by shard."""

    before: dict[str, int]
    given: dict[str, int]
    by_shard: list[dict[str, int]]
    ended: list[frozenset[str]]
    """The limits of each shard whose bookings end."""
    booked: dict[str, int]
    """By how much those who wait have brought a limit below zero, where somebody does."""


def gifts(
    kind: Gift, names: Sequence[str], images: Sequence[Item | None], now_ms: int, amounts: Mapping[str, int]
) -> Gifts:
    """Share what is given over the shards: the sum is exact, and none gets more than it has room for.

    ``amounts`` are the tokens of a top-up.
    """
    all_of, ended = Gifts({}, {}, [{} for _ in images], [], {}), list[set[str]]()
    ended += [set() for _ in images]
    for name in names:
        rooms = [room_of(image, name, now_ms) or Room(0, 0) for image in images]
        all_of.before[name] = held = sum(room.held_milli for room in rooms)
        if lines := [room.booked_milli for room in rooms if room.booked_milli is not None]:
            all_of.booked[name] = sum(lines)
        ends = [_ends(kind, room) for room in rooms]
        parts = [0 if not end else _until(kind, room) for end, room in zip(ends, rooms, strict=True)]
        wanted = [0 if end else room.room_milli for end, room in zip(ends, rooms, strict=True)]
        amount = amounts.get(name, 0) * TOKEN_MILLI if kind is Gift.TOP_UP else sum(wanted)
        if kind is Gift.FORGIVE:  # shards that owe are helped by those that do not
            amount = max(0, -held - sum(parts))
            wanted = [min(want, max(0, -room.held_milli)) for want, room in zip(wanted, rooms, strict=True)]
        parts = [mine + part for mine, part in zip(parts, shared(amount, wanted), strict=True)]
        all_of.given[name] = sum(parts)
        for at, part in enumerate(parts):
            if part:
                all_of.by_shard[at][name] = part
            if ends[at]:
                ended[at].add(name)
    return all_of._replace(ended=[frozenset(some) for some in ended])


def _ends(kind: Gift, room: Room) -> bool:
    """Whether a verb ends what was booked: to fill a limit, or because it is below zero."""
    if room.booked_milli is None or kind is Gift.TOP_UP:
        return False
    return kind is Gift.RESET or room.booked_milli > 0


def _until(kind: Gift, room: Room) -> int:
    """What a limit gets whose bookings end, until it is full or owes nothing."""
    return room.missing_milli if kind is Gift.RESET else max(0, -room.held_milli)


def shared(amount: int, rooms: Sequence[int]) -> list[int]:
    """An amount, or as much of it as there is room for, in proportion to the rooms."""
    whole = sum(rooms)
    given = min(amount, whole)
    parts, passed, so_far = [], 0, 0
    for room in rooms:
        passed += room
        until = given * passed // whole if whole else 0
        parts.append(until - so_far)
        so_far = until
    return parts


def give(
    key: Key, image: Item, given: Mapping[str, int], now_ms: int, ended: frozenset[str] = frozenset()
) -> Update:
    """The write that gives amounts to one shard, for which it was seen to have room, and ends bookings."""
    if BOOKED in image and not in_line(image, now_ms):
        plain = unbooked(image)
        return as_a_whole(give(key, plain, given, now_ms), plain, image)
    if PHASE in image and (view := in_phase(image, now_ms)) is not image:
        return as_a_whole(give(key, view, given, now_ms, ended), view, image)
    when: list[Condition] = [Exists()]
    for attribute in ("rf", "cv", BOOKED_SINCE, LIFE):
        when += pinned(image, attribute)
    add: dict[str, int] = {}
    set_: dict[str, Value] = {}
    for name, amount in given.items():
        if name in ended:
            continue
        rate, tokens = stored_rate(image, name), limit_attributes(name).tk
        assert rate is not None, "a limit that a bucket does not have has no room"
        for_all = set_aside(name, amount, image, now_ms, add, when) if BOOKED in image else amount
        if for_all:
            _, brim, _, _ = believed(rate, tokens, number(image, tokens), number(image, "rf"), now_ms)
            add[tokens] = for_all
            when.append(AtMost(tokens, brim - for_all))
    if ended:
        when += _end(image, {name: given.get(name, 0) for name in ended}, now_ms, set_)
    if is_number(image.get(COUNT.tk)) and is_number(image.get(COUNT.tc)):
        add[COUNT.tk], add[COUNT.tc] = -WRITE_MILLI, WRITE_MILLI
    return Update(key, add, set_, tuple(when))


def _end(image: Item, given: Mapping[str, int], now_ms: int, set_: dict[str, Value]) -> list[Condition]:
    """Let bookings of some limits be over, with what was set aside and a gift; the line too, if that is all.

    Whoever books, or gives something back, in between makes it look again: it would be taken for ended.
    """
    when: list[Condition] = []
    for name, amount in given.items():
        room, booked, count = room_of(image, name, now_ms), booking_attributes(name), ended_attribute(name)
        rate, tokens = stored_rate(image, name), limit_attributes(name).tk
        assert room is not None
        assert rate is not None
        set_[tokens] = room.held_milli + amount - gain(rate, number(image, "rf"), now_ms)
        set_ |= dict.fromkeys(booked)
        set_[count] = number(image, count) + 1
        for attribute in (tokens, *booked, count):
            when += pinned(image, attribute)
    others = [booking_attributes(name).high for name in bucket_limit_names(image) if name not in given]
    if all(high not in image for high in others):
        set_ |= {BOOKED: None, BOOKED_SINCE: None}
        when += [*pinned(image, BOOKED), *(Equal(high, None) for high in others)]
    return when
