"""Refusals: what somebody is told whose demands do not fit, and for how long the same is told again."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TypeAlias

from ..exceptions import RateLimitExceeded
from ..models import LimitStatus
from ..repository_protocol import Item
from .account import Account
from .booking import slot_ms
from .bucket_view import has_terms_now, level, put_back, shard_count, status
from .demand import BucketDemand
from .group_commit import BucketWriter
from .level import Level
from .shares import Spread
from .split import are_known, known_images, levels, shard_account, shard_keys

DemandAndImages: TypeAlias = tuple[BucketDemand, Sequence[Item | None]]
"""A demand, and the images of all shards of its bucket."""

TOGETHER_MAX = 16
"""How often an instant is looked for at which all have enough, until somebody is told to ask again then."""


def remembered(writer: BucketWriter, demands: Sequence[BucketDemand]) -> RateLimitExceeded | None:
    """The refusal that a bucket's last one calls for, if that was a moment ago."""
    # Seats come back at any time, from whichever process: the store is asked for them every time.
    asked = [demand for demand in demands if demand.account.terms.seats.isdisjoint(demand.amounts)]
    lately = [demand for demand in asked if _refused_lately(writer, demand.account)]
    if not lately:
        return None
    now_ms = writer.world.now_ms()
    refusal = refusal_of(writer, lately, now_ms)
    return refusal if refusal is None or len(lately) == len(demands) else refusal_of(writer, demands, now_ms)


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
    asked = [(demand, known_images(writer, demand.account)) for demand in owed]
    statuses = [s for demand, images in asked for s in demand_statuses(demand, images, now_ms)]
    if not any(s.exceeded for s in statuses):
        return None
    parts = {demand.account.key: demand.amounts for demand in taken}
    for demand in given:
        keys = shard_keys(demand.account, shard_count(writer.image(demand.account.key)))
        asked.append((demand, [put_back(writer.image(key), parts.get(key, {})) for key in keys]))
        statuses += demand_statuses(*asked[-1], now_ms)
    return RateLimitExceeded(_at_one_instant(statuses, asked, now_ms))


def all_statuses(asked: Sequence[DemandAndImages], now_ms: int) -> list[LimitStatus]:
    """Every limit of some demands as it stands; the longest wait is for when all have enough at once."""
    statuses = [s for demand, images in asked for s in demand_statuses(demand, images, now_ms)]
    return _at_one_instant(statuses, asked, now_ms)


def _at_one_instant(
    statuses: list[LimitStatus], asked: Sequence[DemandAndImages], now_ms: int
) -> list[LimitStatus]:
    again = [
        (levels(demand.account, images, name, now_ms), need_milli)
        for demand, images in asked
        for name, need_milli in demand.amounts.items()
        if _may_be_cut(demand.account, name)
    ]
    return _at_once(statuses, again, now_ms)


def _may_be_cut(account: Account, name: str) -> bool:
    return account.terms.rates[name].schedule is not None and name not in account.terms.soft


def _at_once(
    statuses: list[LimitStatus], again: Sequence[tuple[Level | Spread, int]], now_ms: int
) -> list[LimitStatus]:
    """Statuses whose longest wait is until all limits have enough at the same instant.

    What is enough now may be cut by its schedule while others are waited for: these are looked at ``again``.
    """
    waits = [status.retry_after_seconds for status in statuses] if again else []
    longest = max(waits, default=0.0)
    if not longest or math.isinf(longest):
        return statuses
    at_ms, wait_ms = now_ms + round(longest * 1000), 0.0
    for _ in range(TOGETHER_MAX):
        wait_ms, at, need_milli = max(
            ((at.retry_after_ms(need_milli, at_ms), at, need_milli) for at, need_milli in again),
            key=lambda found: found[0],
        )
        if not wait_ms or math.isinf(wait_ms):
            break
        at_ms += int(wait_ms)
        if at.balance(at_ms) < need_milli:
            break  # so far ahead nobody looks
    place = waits.index(longest)
    told_ms = wait_ms if math.isinf(wait_ms) else at_ms - now_ms
    statuses[place] = replace(statuses[place], retry_after_seconds=told_ms / 1000)
    return statuses


def demand_statuses(demand: BucketDemand, images: Sequence[Item | None], now_ms: int) -> list[LimitStatus]:
    """Every limit of a demand as it stands against the images of all shards of its bucket."""
    account = demand.account
    return [
        status(account, name, need_milli, levels(account, images, name, now_ms), now_ms)
        for name, need_milli in demand.amounts.items()
    ]


def waiting_statuses(
    statuses: Sequence[LimitStatus], demand: BucketDemand, image: Item | None, now_ms: int
) -> list[LimitStatus]:
    """The same for somebody who would wait: what was set aside for such is there for it."""
    told, again = list(statuses), list[tuple[Level | Spread, int]]()
    if shard_count(image) > 1:
        return told
    for place, one in enumerate(statuses):
        at, need_milli = level(demand.account.terms, one.limit_name, image, now_ms), one.requested * 1000
        if one.exceeded:
            wait_ms = slot_ms(at, need_milli, now_ms) - now_ms
            told[place] = replace(one, retry_after_seconds=wait_ms / 1000)
        if _may_be_cut(demand.account, one.limit_name):
            again.append((at, need_milli))
    return _at_once(told, again, now_ms)
