"""Refusals: what somebody is told whose demands do not fit, and for how long the same is told again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..exceptions import RateLimitExceeded
from ..models import LimitStatus
from ..repository_protocol import Item
from .account import Account
from .booking import slot_ms
from .bucket_view import has_terms_now, level, put_back, shard_count, status
from .demand import BucketDemand
from .group_commit import BucketWriter
from .split import are_known, known_images, levels, shard_account, shard_keys


def remembered(writer: BucketWriter, demands: Sequence[BucketDemand]) -> RateLimitExceeded | None:
    """The refusal that a bucket's last one calls for, if that was a moment ago."""
    # Seats come back at any time, from whichever process: the store is asked for them every time.
    asked = [demand for demand in demands if demand.account.terms.seats.isdisjoint(demand.amounts)]
    lately = [demand for demand in asked if _refused_lately(writer, demand.account)]
    if not lately:
        return None
    now_ms = writer.world.now_ms()
    if refusal_of(writer, lately, now_ms) is None:
        return None
    return refusal_of(writer, demands, now_ms)


def _refused_lately(writer: BucketWriter, account: Account) -> bool:
    """Whether a bucket refused a moment ago under the limits that this caller has too."""
    if not writer.refused_lately(account.key):
        return False
    image = writer.image(account.key)
    return image is None or (
        has_terms_now(image, shard_account(account, 0, image).terms, writer.world.now_ms())
        and are_known(writer, account)
    )


def refusal_of(
    writer: BucketWriter,
    owed: Sequence[BucketDemand],
    now_ms: int,
    given: Sequence[BucketDemand] = (),
    taken: Sequence[BucketDemand] = (),
) -> RateLimitExceeded | None:
    """The refusal that the images call for at an instant, or ``None`` if another attempt can succeed.

    It tells of the demands that were ``given`` too, as their buckets were before this acquire took its part.
    """
    statuses = [s for d in owed for s in demand_statuses(d, known_images(writer, d.account), now_ms)]
    if not any(s.exceeded for s in statuses):
        return None
    parts = {demand.account.key: demand.amounts for demand in taken}
    for demand in given:
        keys = shard_keys(demand.account, shard_count(writer.image(demand.account.key)))
        images = [put_back(writer.image(key), parts.get(key, {})) for key in keys]
        statuses += demand_statuses(demand, images, now_ms)
    return RateLimitExceeded(statuses)


def demand_statuses(demand: BucketDemand, images: Sequence[Item | None], now_ms: int) -> list[LimitStatus]:
    """Every limit of a demand as it stands against the images of all shards of its bucket."""
    account = demand.account
    return [
        status(account, name, need_milli, levels(account, images, name, now_ms), now_ms)
        for name, need_milli in demand.amounts.items()
    ]


def waiting_status(status: LimitStatus, demand: BucketDemand, image: Item | None, now_ms: int) -> LimitStatus:
    """The same for somebody who would wait: what was set aside for such is there for it."""
    if not status.exceeded or shard_count(image) > 1:
        return status
    at = level(demand.account.terms, status.limit_name, image, now_ms)
    wait_ms = slot_ms(at, demand.amounts[status.limit_name], now_ms) - now_ms
    return replace(status, retry_after_seconds=wait_ms / 1000)
