"""Leases that outlive the process that gave them: a record each.

A record says who gave how much, so that any process can give it back or charge more, and until when it is
held. It is written in the transaction of the debit, and every change of it is one on condition that nobody
changed it since: ``rev`` counts them, and ``mark`` tells the next lease of the same id apart. While it is
held it is found by when something is *due*: its end, or the renewal of a seat. What has ended is remembered
for a day, so that whoever asks again is answered again. This module knows how leases are kept, not what they
mean.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from ..exceptions import DamagedRecordError
from ..models.checks import Choice
from ..naming import validate_entity_id, validate_resource
from ..repository_protocol import Absent, Cursor, Delete, Equal, Item, Key, Put, Query, Value
from ..schema import GSI2, is_number, number, text, within_namespace
from .scope import DAY_SECONDS, Scope

KEPT_SECONDS = DAY_SECONDS
"""How long a lease is remembered that has ended."""

LOST_SECONDS = 30 * DAY_SECONDS
"""How long one is remembered that expired, and that nobody was there to end."""

PLACES = 4
"""In how many places of the index leases are found."""

REPLIES_MAX = 16
"""How many answers a lease remembers by the keys of those who asked."""

DUE_DIGITS = 15

AS_THEY_ARE = ("owner", "said", "began_ms", "expires_ms", "ended_ms", "ending", "rev", "mark")
"""The fields of a lease that its item has by the same names."""


class LeaseState(Choice):
    """What has become of a lease."""

    HELD = "held"
    COMMITTED = "committed"
    CANCELLED = "cancelled"
    EXPIRED = "expired"
    DECIDED = "decided"
    """It never was one: what was taken counted at once."""


class OnExpiry(Choice):
    """What a lease costs that nobody ended in time."""

    SETTLE = "settle"
    """What was noted of it; all that was taken, if nothing was."""
    KEEP = "keep"
    """All that was taken, and what was noted beyond that."""
    REFUND = "refund"
    """Nothing: all of it is given back."""


class SeatRow(NamedTuple):
    """Some seats, until when they are held, and when to renew them."""

    name: str
    until: int
    amount: int
    due_ms: int


class GiverRow(NamedTuple):
    """What one bucket, or one shard of it, gave: millitokens by limit."""

    entity_id: str
    resource: str
    shard_id: int
    life: str | None
    amounts: Mapping[str, int]
    seats: tuple[SeatRow, ...] = ()


class PartRow(NamedTuple):
    """What a lease holds for one entity and resource."""

    entity_id: str
    resource: str
    amounts: Mapping[str, int]
    """What was asked for, in millitokens by limit."""
    limits: tuple[str, ...]
    """The limits whose cost can be noted."""
    family: tuple[tuple[str, bool], ...]
    """Who is charged, the entity first, and whether it is counted."""
    givers: tuple[GiverRow, ...]


class ReplyRow(NamedTuple):
    """What was answered to a request with a key."""

    key: str
    said: str
    answer: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class LeaseRow:
    """A lease as it is stored."""

    lease_id: str
    owner: str
    """Who has it, and may end it."""
    said: str
    """What was asked for, hashed."""
    began_ms: int
    expires_ms: int
    on_expiry: OnExpiry = OnExpiry.SETTLE
    parts: tuple[PartRow, ...] = ()
    state: LeaseState = LeaseState.HELD
    ended_ms: int | None = None
    noted: tuple[Mapping[str, int], ...] = ()
    """What each part has cost so far in tokens, as far as somebody said."""
    replies: tuple[ReplyRow, ...] = ()
    ending: str = ""
    """What was asked for by whoever ended it, hashed."""
    rev: int = 0
    mark: str = ""
    """Of the change that made it so: by which whoever lost the reply knows its own."""

    @property
    def due_ms(self) -> int:
        """When something has to be done about it."""
        seats = (seat for part in self.parts for giver in part.givers for seat in giver.seats)
        return min([self.expires_ms, *(seat.due_ms for seat in seats)])

    def totals(self, at: int) -> dict[str, int]:
        """What a part has cost, in tokens by limit."""
        taken = {name: milli // 1000 for name, milli in self.parts[at].amounts.items()}
        return taken | dict(self.noted[at] if at < len(self.noted) else {})

    def changed(self, **changes: Any) -> LeaseRow:
        """The same after a change."""
        return replace(self, rev=self.rev + 1, **changes)


def lease_key(namespace_id: str, lease_id: str) -> Key:
    """Where a lease is."""
    return Key(f"{namespace_id}/LEASE#{lease_id}", "#LEASE")


def _place(lease_id: str) -> int:
    return hashlib.sha256(lease_id.encode()).digest()[0] % PLACES


def lease_item(namespace_id: str, row: LeaseRow) -> dict[str, Value]:
    """A lease as an item; one that has ended is in no list any more, and goes after a while."""
    key, is_held = lease_key(namespace_id, row.lease_id), row.state is LeaseState.HELD
    over_ms = row.expires_ms if row.ended_ms is None else row.ended_ms
    due: dict[str, Value] = {
        f"{GSI2}PK": f"{namespace_id}/LEASES#{_place(row.lease_id)}",
        f"{GSI2}SK": f"{row.due_ms:0{DUE_DIGITS}}",
    }
    return {
        **{name: getattr(row, name) for name in AS_THEY_ARE},
        "state": row.state.value,
        "on_expiry": row.on_expiry.value,
        "parts": json.dumps(row.parts),
        "noted": json.dumps(row.noted),
        "replies": json.dumps(row.replies),
        "ttl": over_ms // 1000 + (LOST_SECONDS if is_held else KEPT_SECONDS),
        **(due if is_held else {}),
        **within_namespace(namespace_id, key),
    }


def lease_of(lease_id: str, item: Item) -> LeaseRow:
    """A lease from its item."""
    try:
        parts = tuple(_part(*part) for part in json.loads(text(item, "parts") or ""))
        noted = tuple(_amounts(one) for one in json.loads(text(item, "noted") or ""))
        replies = tuple(ReplyRow(str(k), str(said), dict(answer)) for k, said, answer in _listed(item))
        return LeaseRow(
            lease_id=lease_id,
            owner=text(item, "owner") or "",
            said=text(item, "said") or "",
            began_ms=number(item, "began_ms"),
            expires_ms=number(item, "expires_ms"),
            on_expiry=OnExpiry.chosen("on_expiry", item.get("on_expiry")),
            parts=parts,
            state=LeaseState.chosen("state", item.get("state")),
            ended_ms=number(item, "ended_ms") if is_number(item.get("ended_ms")) else None,
            noted=noted,
            replies=replies,
            ending=text(item, "ending") or "",
            rev=number(item, "rev"),
            mark=text(item, "mark") or "",
        )
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise DamagedRecordError(f"lease {lease_id!r}", "somebody else has written it") from error


def _listed(item: Item) -> Sequence[Any]:
    found = json.loads(text(item, "replies") or "")
    return found if isinstance(found, list) else ()


def _amounts(said: Any) -> dict[str, int]:
    found = dict(said)
    if not all(isinstance(name, str) and is_number(amount) for name, amount in found.items()):
        raise ValueError(f"amounts that cannot be: {found!r}")
    return found


def _part(entity_id: Any, resource: Any, amounts: Any, limits: Any, family: Any, givers: Any) -> PartRow:
    return PartRow(
        validate_entity_id(entity_id),
        validate_resource(resource),
        _amounts(amounts),
        tuple(map(str, limits)),
        tuple((validate_entity_id(who), bool(counted)) for who, counted in family),
        tuple(_giver(*giver) for giver in givers),
    )


def _giver(entity_id: Any, resource: Any, shard_id: Any, life: Any, amounts: Any, seats: Any) -> GiverRow:
    place = validate_entity_id(entity_id), validate_resource(resource), int(shard_id)
    rows = tuple(SeatRow(str(name), int(a), int(b), int(c)) for name, a, b, c in seats)
    return GiverRow(*place, None if life is None else str(life), _amounts(amounts), rows)


async def get_lease(scope: Scope, lease_id: str) -> LeaseRow | None:
    """A lease as it is stored now, if it is known."""
    item = await scope.get(lease_key(scope.namespace_id, lease_id))
    return None if item is None else lease_of(lease_id, item)


def made(namespace_id: str, row: LeaseRow) -> Put:
    """The write that makes a lease, if there is none of this id."""
    return Put(lease_key(namespace_id, row.lease_id), lease_item(namespace_id, row), (Absent(),))


def replaced(namespace_id: str, row: LeaseRow, mark: str) -> Put:
    """The write that puts a changed lease in the place of the one that it was made from, which had this mark.

    The next lease with the same key has the same id, and begins at the same ``rev``.
    """
    when = (Equal("mark", mark), Equal("rev", row.rev - 1), Equal("state", LeaseState.HELD.value))
    return Put(lease_key(namespace_id, row.lease_id), lease_item(namespace_id, row), when)


def forgotten(namespace_id: str, row: LeaseRow) -> Delete:
    """The write that takes a lease away that nobody has changed, nor made anew."""
    return Delete(lease_key(namespace_id, row.lease_id), (Equal("mark", row.mark),))


async def due_leases(
    scope: Scope, place: int, now_ms: int, count_max: int, after: Cursor | None = None
) -> tuple[list[str], Cursor | None]:
    """The ids of leases, those first that have waited longest, about which something has to be done.

    With where to go on, if there may be more.
    """
    last = f"{now_ms:0{DUE_DIGITS}}"
    query = Query(f"{scope.namespace_id}/LEASES#{place % PLACES}", "", last, GSI2, rows_max=count_max)
    rows, more = await scope.first_rows(query._replace(after=after))
    prefix = f"{scope.namespace_id}/LEASE#"
    ids = [r.key.partition.removeprefix(prefix) for r in rows if r.key.partition.startswith(prefix)]
    return ids, more
