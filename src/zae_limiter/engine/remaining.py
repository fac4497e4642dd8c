"""What was left in the buckets of an acquire, by the very replies that admitted it.

An acquire only keeps the images that it saw, and when; all else is worked out if somebody asks.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import TypeAlias

from ..models.leases import LeaseStatus
from ..repository_protocol import Item
from .account import Account, Terms
from .bucket_view import level, stored_terms, told_limit
from .group_commit import BucketWriter
from .law import TOKEN_MILLI
from .level import Level
from .phased import terms_at
from .shares import Spread
from .split import known_images

Seen: TypeAlias = tuple[int, Sequence[Account], Sequence[Sequence[Item | None]]]
"""An instant, some buckets, and the images of all shards of each."""

UNSEEN: Seen = (0, (), ())


def seen_now(writer: BucketWriter, accounts: Sequence[Account]) -> Seen:
    """Buckets as they were last seen, by whoever has just written to them."""
    return writer.world.now_ms(), accounts, [known_images(writer, account) for account in accounts]


def statuses_of(seen: Seen) -> Iterable[LeaseStatus]:
    """Every limit of these buckets as it stood; of what no reply has shown nothing is told."""
    now_ms, accounts, images = seen
    for account, shards in zip(accounts, images, strict=True):
        known = _known(shards)
        for name, rate in terms_at(account.terms, now_ms).rates.items():
            if parts := _levels(known, name, now_ms):
                whole = Spread(parts)
                limit = told_limit(account.terms, name, parts[0].rate if len(shards) == 1 else rate)
                left, full_ms = whole.balance(now_ms), whole.full_after_ms(now_ms)
                yield LeaseStatus(
                    *(account.entity_id, account.resource, name, limit, left // 1000, full_ms / 1000),
                    reset_after_seconds=whole.reset_ms(now_ms) / 1000,
                    next_after_seconds=whole.retry_after_ms(TOKEN_MILLI, now_ms) / 1000,
                    checked_at_ms=now_ms,
                )


def exceeded(seen: Seen, asked: Collection[str]) -> list[str]:
    """Of which limits that refuse nothing there was less than was asked for: they are in debt since."""
    now_ms, accounts, images = seen
    return [
        name
        for account, shards in zip(accounts, images, strict=True)
        for name in account.terms.rates
        if name in account.terms.soft and name in asked
        if (parts := _levels(_known(shards), name, now_ms)) and Spread(parts).balance(now_ms) < 0
    ]


def _known(shards: Sequence[Item | None]) -> list[tuple[Item, Terms]]:
    """Buckets with the numbers that they have themselves: they may be newer than those of the account."""
    return [(image, stored_terms(image)) for image in shards if image is not None]


def _levels(known: Sequence[tuple[Item, Terms]], name: str, now_ms: int) -> list[Level]:
    return [level(terms, name, image, now_ms) for image, terms in known if name in terms.rates]
