"""Ways to deal badly with a store that has lost its last writes, which the simulation must find."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.simulation.replicated import Entry, turned_back
from zae_limiter.engine.account import Account
from zae_limiter.engine.bucket_writes import _give_back
from zae_limiter.engine.door import Call, write_each
from zae_limiter.engine.posting import Posting
from zae_limiter.engine.seen_buckets import SeenBuckets
from zae_limiter.repository_protocol import Backend, Item, Key, Outcome, Update, Write
from zae_limiter.schema import bucket_limit_names, limit_attributes, number, sk_state


async def _repaired(
    backend: Backend,
    seen: SeenBuckets,
    writes: Sequence[Write],
    call: Call | None = None,
    *,
    together: bool = False,
) -> list[Outcome]:
    """Whoever finds a bucket older than it remembers puts its own image in that place."""
    known = {write.key: seen.image(write.key) for write in writes}
    outcomes = await write_each(backend, seen, writes, call, together=together)
    for write, outcome in zip(writes, outcomes, strict=True):
        mine, found = known[write.key], outcome.item
        if mine and found and not outcome.applied and number(found, "ttl") < number(mine, "ttl"):
            tokens = [limit_attributes(name).tk for name in bucket_limit_names(mine)]
            await backend.write_each([Update(write.key, set={tk: mine[tk] for tk in tokens if tk in found})])
    return outcomes


def _one_more(account: Account, posting: Posting, image: Item | None) -> Update | None:
    """Who gives back what a bucket never lost gives it a token more."""
    write = _give_back(account, posting, image)
    if write is None or image is None:
        return write
    add = dict(write.add)
    for name, amount in posting.credit.items():
        names = limit_attributes(name)
        if names.tk in add and number(image, names.tc) < amount:
            add[names.tk] += 1_000
    return write._replace(add=add)


def _by_halves(items: dict[Key, Item], undone: Sequence[Entry]) -> dict[Key, Item]:
    """A replica that has heard of a part of a transaction."""
    first, *others = undone
    keys = list(first.before)[: (len(first.before) + 1) // 2]
    return turned_back(items, [first._replace(before={key: first.before[key] for key in keys}), *others])


def _one_token_too_many(items: dict[Key, Item], undone: Sequence[Entry]) -> dict[Key, Item]:
    """A replica whose buckets have a token more than is right."""
    found = turned_back(items, undone)
    for key in {key for entry in undone for key in entry.before if key.sort == sk_state() and key in found}:
        tokens = [limit_attributes(name).tk for name in bucket_limit_names(found[key])]
        found[key] = {**found[key], **{tk: number(found[key], tk) + 1_000 for tk in tokens}}
    return found


def _never(*_: Any) -> bool:
    return False


async def _leave_it(*_: Any) -> None:
    """A bucket that has seen what the store does not know stays as it is."""


FAILOVER_BUGS: dict[str, dict[str, Any]] = {
    "remembered_is_right": {"zae_limiter.engine.group_commit.write_each": _repaired},
    "lost_take_back_and_one": {"zae_limiter.engine.bucket_writes._give_back": _one_more},
    "lost_limits_again": {"zae_limiter.engine.bucket_view.is_undone": _never},
    "never_put_right": {"zae_limiter.records.buckets.BucketRecords._put_right": _leave_it},
    "undone_by_halves": {"tests.simulation.replicated.turned_back": _by_halves},
    "one_token_too_many": {"tests.simulation.replicated.turned_back": _one_token_too_many},
}
