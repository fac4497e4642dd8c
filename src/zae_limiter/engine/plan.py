"""Whom an acquire charges, kept for as long as the cached records that say so are fresh."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

from ..config_cache import ConfigCache, Entry
from ..models import Limit, OnUnavailable
from ..repository_protocol import Item
from ..schema import BOOKED, FORGIVEN, LIFE
from .account import Account, Meter
from .bucket_view import has_terms_now, is_ahead, is_outdated, life_of
from .seen_buckets import SeenBuckets


class Plan:
    """The accounts of a family, the entity's first, and what to do if the store does not answer."""

    __slots__ = (
        *("_entries", "accounts", "cache", "expires_ms", "given", "image", "is_counted"),
        *("is_swappable", "key", "names", "on_unavailable", "records", "seats", "withdrawals"),
    )

    def __init__(
        self,
        accounts: tuple[Account, ...],
        on_unavailable: OnUnavailable,
        given: Sequence[Limit] | None,
        cache: ConfigCache,
        entries: Sequence[Entry],
    ) -> None:
        self.accounts: tuple[Account, ...] = accounts
        self.on_unavailable: OnUnavailable = on_unavailable
        self.given: Sequence[Limit] | None = given
        self.cache: ConfigCache = cache
        self._entries = tuple(entries)
        self.records: int = len(entries)
        self.key: Final = accounts[0].key
        first, *others = [account.terms for account in accounts]
        self.names: Final = first.names.union(*(terms.names for terms in others)) if others else first.names
        """The limits that somebody of the family has."""
        self.is_counted: bool = any(account.is_counted for account in accounts)
        """Whether there is somebody to charge."""
        self.is_swappable: bool = not others and accounts[0].meter is Meter.NONE and self.is_counted
        """Whether there is one bucket, and nobody counts the writes to it: a store may replace it at once."""
        if first.scheduled:  # a boundary may have passed since the image
            self.is_swappable = False
        self.seats: Final = first.seats.union(*(terms.seats for terms in others)) if others else first.seats
        """Those of them that count who is at work."""
        self.expires_ms: float = -1.0
        self.withdrawals: float = -1.0
        self.image: Item | None = None
        """The image of the entity's bucket that was last found to be plain."""

    def is_fresh(self, ticks_ms: float) -> bool:
        """Whether every record is still believed; looked up again if one was put out of date."""
        cache = self.cache
        if ticks_ms >= self.expires_ms or cache.withdrawals != self.withdrawals:
            self.withdrawals, self.expires_ms = cache.withdrawals, cache.expiry_ms(self._entries)
        return ticks_ms < self.expires_ms

    def stands(self, seen: SeenBuckets, needed: Collection[str], ticks_ms: float) -> bool:
        """Whether the plan is still right: every record is fresh, and no image says otherwise."""
        fresh = ticks_ms < self.expires_ms and self.cache.withdrawals == self.withdrawals
        if not (fresh or self.is_fresh(ticks_ms)) or not self.names.issuperset(needed):
            return False
        for account in self.accounts if self.is_counted else ():
            image = seen.images.get(account.key)
            if image is None:
                if account.key not in seen.images:
                    return False
                to_be_made = account is self.accounts[0] and not account.terms.rates.keys().isdisjoint(needed)
                if to_be_made and not self.cache.is_told:  # from what may have been deleted meanwhile
                    return False
            elif not _is_of(image, account) or (
                image.get("cv") != account.terms.version and is_outdated(account.terms, image)
            ):
                return False
        self.cache.hits += self.records
        return True

    def suits(self, image: Item, now_ms: int) -> bool:
        """Whether the entity's bucket is plain: a write would do no more than take from it."""
        account = self.accounts[0]
        if not _is_of(image, account) or not has_terms_now(image, account.terms, now_ms):
            return False
        if FORGIVEN in image or BOOKED in image or is_ahead(image, now_ms):
            return False
        ttl = image.get("ttl")
        if ttl is not None and (type(ttl) is not int or not account.terms.ttl_fills):
            return False
        self.image = image
        return True


def _is_of(image: Item, account: Account) -> bool:
    """Whether a bucket is the one that an account was worked out with: of that family, and that life."""
    if image.get("parent_id") != account.parent_id or (image.get("cascade") is True) != account.cascade:
        return False
    return account.life is None if LIFE not in image else life_of(image) == account.life
