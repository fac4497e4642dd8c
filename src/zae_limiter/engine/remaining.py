"""What was left in the buckets of an acquire, by the very replies that admitted it.

An acquire only keeps the images that it saw, and when; all else is worked out if somebody asks. A bucket that
is exactly as its account says is read as that; any other is worked out from the image alone.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TypeAlias

from ..models import Limit
from ..models.header_data import HeaderData
from ..models.leases import LeaseStatus
from ..repository_protocol import Item
from ..schema import BOOKED, PHASE
from .account import Account, Terms
from .bucket_view import has_terms, is_ahead, level, stored_terms, told_limit
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


class Standing(HeaderData):
    """One limit of one bucket as it stood: a ``LeaseStatus`` of which only what is asked for is worked out.

    Headers ask for one or two of its numbers.
    """

    __slots__ = ("_account", "_at", "checked_at_ms", "limit", "limit_name")

    def __init__(self, account: Account, name: str, limit: Limit, at: Level | Spread, now_ms: int) -> None:
        self.limit_name: str = name
        self.limit: Limit = limit
        self._account = account
        self.checked_at_ms: int = now_ms
        self._at = at

    @property
    def entity_id(self) -> str:
        """Whose bucket it is."""
        return self._account.entity_id

    @property
    def remaining(self) -> int:
        """Whole tokens, negative in debt."""
        return self._at.balance(self.checked_at_ms) // 1000

    @property
    def reset_after_seconds(self) -> float:  # type: ignore[override]
        """As ``HeaderData`` says."""
        return self._at.reset_ms(self.checked_at_ms) / 1000

    @property
    def next_after_seconds(self) -> float:  # type: ignore[override]
        """As ``HeaderData`` says."""
        return self._at.retry_after_ms(TOKEN_MILLI, self.checked_at_ms) / 1000

    @property
    def status(self) -> LeaseStatus:
        """All of it."""
        account, full_ms = self._account, self._at.full_after_ms(self.checked_at_ms)
        return LeaseStatus(
            *(account.entity_id, account.resource, self.limit_name, self.limit),
            *(self.remaining, full_ms / 1000, self.reset_after_seconds, self.next_after_seconds),
            checked_at_ms=self.checked_at_ms,
        )


def standings_of(seen: Seen, entity_ids: Collection[str] | None = None) -> list[Standing]:
    """Every limit of these buckets, or of these entities' alone, as it stood.

    Of what no reply has shown nothing is told.
    """
    now_ms, accounts, images = seen
    found: list[Standing] = []
    for account, shards in zip(accounts, images, strict=True):
        if entity_ids is not None and account.entity_id not in entity_ids:
            continue
        terms, image = account.terms, shards[0] if len(shards) == 1 else None
        if image is not None and is_as_said(terms, image, now_ms):
            numbers: Mapping[str, int] = image  # type: ignore[assignment]  # as far as the terms name them
            for name, rate in terms.rates.items():
                at = Level(rate, numbers[terms.slots[name].tokens], numbers["rf"])
                found.append(Standing(account, name, told_limit(terms, name, rate), at, now_ms))
            continue
        known = _known(shards)
        for name, rate in terms_at(terms, now_ms).rates.items():
            if parts := _levels(known, name, now_ms):
                limit = told_limit(terms, name, parts[0].rate if len(shards) == 1 else rate)
                found.append(Standing(account, name, limit, Spread(parts), now_ms))
    return found


def is_as_said(terms: Terms, image: Item, now_ms: int) -> bool:
    """Whether a bucket has the very numbers of its terms, and nothing that changes what they mean."""
    if terms.scheduled or len(terms.slots) < len(terms.rates) or PHASE in image or BOOKED in image:
        return False
    return has_terms(image, terms) and not is_ahead(image, now_ms)


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
