"""What an operator gives to a bucket: pure.

Every verb is one shape: amounts are worked out from one look at all shards, and added to what is there when
they are written. So they commute with whatever is taken meanwhile, which stays taken:

    give    believed to have room    tk <= cp - gain - given    add given to tk

The condition keeps a bucket from ever holding more than its capacity; whoever was faster makes it fail, and
the verb looks again. A gift is no refund: ``tc`` stays. While somebody waits it is set aside like all that
comes back (``set_aside``), so it moves nobody before those who came earlier.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import NamedTuple

from ..repository_protocol import NOTHING, AtMost, Condition, Exists, Item, Key, Update
from ..schema import (
    BOOKED,
    BOOKED_SINCE,
    LIFE,
    PHASE,
    booking_attributes,
    is_number,
    limit_attributes,
    number,
    pinned,
    stored_rate,
)
from .account import WRITE_MILLI
from .bucket_view import as_found, in_line
from .law import TOKEN_MILLI
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
        return Room(whole, room_for(name, rate.capacity_milli - whole, found, now_ms))
    return Room(held, rate.capacity_milli - held)


class Gifts(NamedTuple):
    """What a bucket gets, in millitokens: each limit in all, and shard by shard."""

    before: dict[str, int]
    given: dict[str, int]
    by_shard: list[dict[str, int]]


def gifts(
    kind: Gift, names: Sequence[str], images: Sequence[Item | None], now_ms: int, amounts: Mapping[str, int]
) -> Gifts:
    """Share what is given over the shards: the sum is exact, and none gets more than it has room for.

    ``amounts`` are the tokens of a top-up.
    """
    all_of = Gifts({}, {}, [{} for _ in images])
    for name in names:
        rooms = [room_of(image, name, now_ms) or Room(0, 0) for image in images]
        held = sum(room.held_milli for room in rooms)
        wanted = [room.room_milli for room in rooms]
        amount = amounts.get(name, 0) * TOKEN_MILLI if kind is Gift.TOP_UP else sum(wanted)
        if kind is Gift.FORGIVE:  # shards that owe are helped by those that do not
            amount = max(0, -held)
            wanted = [min(room, max(0, -owed)) for owed, room in rooms]
        parts = shared(amount, wanted)
        all_of.before[name], all_of.given[name] = held, sum(parts)
        for at, part in enumerate(parts):
            if part:
                all_of.by_shard[at][name] = part
    return all_of


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


def give(key: Key, image: Item, given: Mapping[str, int], now_ms: int) -> Update:
    """The write that gives amounts to one shard, for which it was seen to have room."""
    if BOOKED in image and not in_line(image, now_ms):
        plain = unbooked(image)
        return as_a_whole(give(key, plain, given, now_ms), plain, image)
    if PHASE in image and (view := in_phase(image, now_ms)) is not image:
        return as_a_whole(give(key, view, given, now_ms), view, image)
    when: list[Condition] = [Exists()]
    for attribute in ("rf", "cv", BOOKED_SINCE, LIFE):
        when += pinned(image, attribute)
    add: dict[str, int] = {}
    for name, amount in given.items():
        rate, tokens = stored_rate(image, name), limit_attributes(name).tk
        assert rate is not None, "a limit that a bucket does not have has no room"
        for_all = set_aside(name, amount, image, now_ms, add, when) if BOOKED in image else amount
        if for_all:
            brim = believed(rate, tokens, number(image, tokens), number(image, "rf"), now_ms).brim_milli
            add[tokens] = for_all
            when.append(AtMost(tokens, brim - for_all))
    if is_number(image.get(COUNT.tk)) and is_number(image.get(COUNT.tc)):
        add[COUNT.tk], add[COUNT.tc] = -WRITE_MILLI, WRITE_MILLI
    return Update(key, add, NOTHING, tuple(when))
