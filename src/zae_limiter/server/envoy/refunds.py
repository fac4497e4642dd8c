"""Negative hits: what Envoy gives back, for which it holds no lease.

It goes to the very buckets that such a hit is charged to, parents included. No more comes back than a bucket
has counted, and no bucket holds more than its capacity. A bucket in shards gets it where there is room.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from ...engine.account import Account
from ...engine.bucket_view import shard_count
from ...engine.demand import demands_on
from ...engine.operator_writes import room_of, shared
from ...engine.posting import Order, Posting
from ...engine.settle import Debtor, enter, settle
from ...engine.split import shard_account, survey
from ...exceptions import RateLimiterUnavailable, ValidationError
from ...models import Limit
from ...repository import Repository
from ...repository_protocol import Item
from ...schema import is_deleted, limit_attributes, number
from .asking import Place


async def give_back_hits(
    repository: Repository,
    amounts: Mapping[Place, Mapping[str, int]],
    given: Mapping[Place, tuple[Limit, ...] | None],
) -> list[RateLimiterUnavailable]:
    """Give all of it back; returns what could not be confirmed, which was logged and counted.

    Once something is written, a cancellation waits until the books are right.
    """
    await repository.notice_changes()
    owed: dict[Debtor, Order] = {}
    for (entity_id, resource), tokens in amounts.items():
        needs = {name: amount * 1000 for name, amount in tokens.items()}
        plan = await repository.plan(entity_id, resource, given[entity_id, resource], needs)
        for name in needs:
            if name in plan.seats:
                raise ValidationError(
                    "limit name", name, "it counts who is at work, and Envoy holds no seats"
                )
        for account, mine in demands_on(plan.accounts, needs):
            enter(owed, account, Posting(credit=mine))
    writer = repository.writer
    asked = list(owed.values())
    images = await survey(writer, [order.account for order in asked])
    now_ms, orders = writer.world.now_ms(), list[Order]()
    for (account, posting), shards in zip(asked, images, strict=True):
        orders += _by_shard(account, posting.credit, shards, now_ms)
    return await settle(writer, orders)


def _by_shard(
    account: Account, credit: Mapping[str, int], images: Sequence[Item | None], now_ms: int
) -> Iterator[Order]:
    there = [None if is_deleted(image) else image for image in images]
    parts: list[dict[str, int]] = [{} for _ in there]
    for name, amount_milli in credit.items():
        for at, milli in enumerate(credited(name, amount_milli, there, now_ms)):
            if milli:
                parts[at][name] = milli
    for at, (image, part) in enumerate(zip(there, parts, strict=True)):
        if image is not None and part:
            shard = account if shard_count(there[0]) == 1 else shard_account(account, at, image)
            yield Order(shard, Posting(credit=part))


def credited(name: str, amount_milli: int, images: Sequence[Item | None], now_ms: int) -> list[int]:
    """What each shard gets of a refund: no more in all than they have counted, and first where there is room.

    What there is no room for any more was gained since by itself; it only is not counted as used.
    """
    counter = limit_attributes(name).tc
    counted = [0 if image is None else number(image, counter) for image in images]
    rooms = [room_of(image, name, now_ms) for image in images]
    amount_milli = min(amount_milli, max(0, sum(counted)))  # one shard may have given back for another
    first = shared(amount_milli, [0 if room is None else max(0, room.room_milli) for room in rooms])
    rest = [max(0, mine - part) for mine, part in zip(counted, first, strict=True)]
    more = shared(amount_milli - sum(first), rest)
    return [one + other for one, other in zip(first, more, strict=True)]
