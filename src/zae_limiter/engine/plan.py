"""The short way through an acquire, for a bucket that this process knows well.

A till keeps what an acquire has worked out: whom it charges, and the cached records that say so. As
long as those are fresh nothing needs to be worked out again, and a till takes the tokens itself. Where the
store lives in this process or in a file of this machine, it computes what the write of the long way would
leave behind and asks the store to swap the images. Where the store is elsewhere, it sends that write, if
nobody else is in line for the bucket. Whenever anything is not as simple as that, the long way decides.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from ..bucket import Level
from ..config_cache import ConfigCache, Entry
from ..exceptions import RateLimiterUnavailable, RateLimitExceeded
from ..models import Limit, OnUnavailable
from ..repository_protocol import Item, Outcome
from ..schema import FORGIVEN, limit_attributes
from .bucket_view import (
    Account,
    Meter,
    has_family,
    has_terms,
    is_ahead,
    is_outdated,
    is_split,
    life_of,
    status,
)
from .bucket_writes import Posting
from .door import swap_at_once
from .group_commit import BucketWriter
from .line import Order


class Plan(NamedTuple):
    """Whom an acquire charges, the entity first, and what to do if the store does not answer."""

    accounts: tuple[Account, ...]
    on_unavailable: OnUnavailable


def knows_all(accounts: Sequence[Account], names: Collection[str]) -> bool:
    """Whether somebody of a family has each of these limits."""
    return all(any(name in account.terms.rates for account in accounts) for name in names)


class Slot(NamedTuple):
    """One limit of a till: its numbers, and where a bucket keeps it."""

    capacity_milli: int
    amount_milli: int
    period_ms: int
    tokens: str
    counter: str


class Till:
    """A plan and the cached records it was made from."""

    __slots__ = (
        "_cache",
        "_entries",
        "_expires_ms",
        "_image",
        "_is_metered",
        "_key",
        "_lasting_ms",
        "_records",
        "_slots",
        "_withdrawals",
        "_writer",
        "given",
        "plan",
    )

    def __init__(
        self,
        writer: BucketWriter,
        cache: ConfigCache,
        plan: Plan,
        given: Sequence[Limit] | None,
        entries: Sequence[Entry],
    ) -> None:
        self._writer, self._cache, self.plan, self.given = writer, cache, plan, given
        self._entries = tuple(entries)
        self._records = len(self._entries)
        self._withdrawals = self._expires_ms = -1.0
        self._image: Item | None = None
        """The image that was last found in order."""
        account = plan.accounts[0]
        self._key = account.key
        self._lasting_ms = account.terms.lasting_ms
        self._is_metered = account.meter is not Meter.NONE
        self._slots: dict[str, Slot] = {}
        if len(plan.accounts) == 1:
            for name, rate in account.terms.rates.items():
                names = limit_attributes(name)
                self._slots[name] = Slot(*rate, names.tk, names.tc)

    def stands(self, needed: Collection[str], ticks_ms: float) -> bool:
        """Whether the plan is still right: every record is fresh, and no image says otherwise."""
        accounts, images = self.plan.accounts, self._writer.images
        if not self._is_fresh(ticks_ms) or not knows_all(accounts, needed):
            return False
        for account in accounts:
            image = images.get(account.key)
            if image is None:
                if account.key not in images:
                    return False
                to_be_made = account is accounts[0] and not account.terms.rates.keys().isdisjoint(needed)
                if to_be_made and not self._cache.is_told:  # from what may have been deleted meanwhile
                    return False
            elif not self._is_of(image, account) or is_outdated(account.terms, image):
                return False
        self._cache.hits += self._records
        return True

    def take(self, needs: Mapping[str, int]) -> bool:
        """Take some millitokens in one step if that is possible; a refusal a moment ago is repeated."""
        writer, key = self._writer, self._key
        swap = None if self._is_metered else writer.swap
        if swap is None and not writer.refused_lately(key):
            return False
        world = writer.world
        image = self._image_in_order(world.ticks_ms())
        if image is None:
            return False
        now_ms = world.now_ms()
        changed = spent(self._slots, needs, image, now_ms)
        if changed is None:
            if self._cache.changes is None and writer.refused_lately(key):
                self._refuse(needs, image, now_ms)
            return False
        ttl = image.get("ttl")
        if swap is None or (ttl is not None and ttl * 1000 < now_ms + self._lasting_ms):  # type: ignore[operator]
            return False
        try:
            new = swap_at_once(swap, writer, key, image, changed, self._cache.changes)
        except BaseException as error:
            # Whatever comes out of a signal handler comes before or after it was done, and nobody knows.
            if not isinstance(error, RateLimiterUnavailable) or error.ambiguous:
                writer.lose(Order(self.plan.accounts[0], Posting(needs)), error)
            raise
        if new is None:
            return False
        self._image = new
        self._cache.hits += self._records
        return True

    async def order(self, needs: Mapping[str, int]) -> tuple[Outcome | None, BaseException | None]:
        """Take some millitokens by one write, like ``BucketWriter.post_one``, if that may be all it takes.

        A refusal that the bucket's new image calls for is raised.
        """
        writer, slots, world = self._writer, self._slots, self._writer.world
        image = self._image_in_order(world.ticks_ms())
        if image is None or any(name not in slots for name in needs):
            return None, None
        if writer.refused_lately(self._key):
            self._refuse(needs, image, world.now_ms())
        order = Order(self.plan.accounts[0], Posting(needs))
        outcome, interruption = await writer.post_one(order)
        if outcome is None or outcome.failure is not None:
            if outcome is not None and interruption is None:
                writer.count_unsure([order], [outcome])
            return outcome, interruption
        if outcome.applied:  # and nothing is called any more, after which a signal handler could raise
            self._cache.hits += self._records
        elif outcome.item is None or not self._is_in_order(outcome.item):
            writer.reconsider(self._key)  # there is more to it than tokens
        elif interruption is None:
            self._refuse(needs, outcome.item, writer.world.now_ms())
        return outcome, interruption

    def _image_in_order(self, ticks_ms: float) -> Item | None:
        """The bucket as last seen, if the plan still stands and it can simply be taken from."""
        if not self._slots or (
            (ticks_ms >= self._expires_ms or self._cache.withdrawals != self._withdrawals)
            and not self._is_fresh(ticks_ms)
        ):
            return None
        image = self._writer.images.get(self._key)
        if image is None or (image is not self._image and not self._is_in_order(image)):
            return None
        return image

    def _is_fresh(self, ticks_ms: float) -> bool:
        self._withdrawals = self._cache.withdrawals
        self._expires_ms = self._cache.expiry_ms(self._entries)
        return ticks_ms < self._expires_ms

    def _is_in_order(self, image: Item) -> bool:
        """Whether a bucket has the numbers of the terms, and no write would do more than take from it."""
        account = self.plan.accounts[0]
        if not self._is_of(image, account) or not has_terms(image, account.terms):
            return False
        if FORGIVEN in image or is_split(account, image) or is_ahead(image, self._writer.world.now_ms()):
            return False
        ttl = image.get("ttl")
        if ttl is not None and (type(ttl) is not int or not account.terms.ttl_fills):
            return False
        self._image = image
        return True

    @staticmethod
    def _is_of(image: Item, account: Account) -> bool:
        """Whether a bucket is the one that an account was worked out with: of that family, and that life."""
        return has_family(image, account) and life_of(image) == account.life

    def _refuse(self, needs: Mapping[str, int], image: Item, now_ms: int) -> None:
        """Raise the refusal that an image in order calls for, if it does."""
        account, slots = self.plan.accounts[0], self._slots
        numbers: Mapping[str, int] = image  # type: ignore[assignment]
        statuses, refused = [], False
        if self._writer.is_doubtful(self._key) or self._writer.is_held_here(self._key):
            return
        for name, need in needs.items():
            slot = slots.get(name)
            if slot is None:
                return
            at = Level(account.terms.rates[name], numbers[slot.tokens], numbers["rf"])
            statuses.append(status(account, name, need, at, now_ms))
            refused = refused or statuses[-1].exceeded
        if refused:
            raise RateLimitExceeded(statuses, account.entity_id)


def spent(
    slots: Mapping[str, Slot], needs: Mapping[str, int], image: Item, now_ms: int
) -> dict[str, int] | None:
    """What taking ``needs`` changes about a bucket in order; ``None`` if they do not fit.

    This is the write of ``posting`` applied to the image, in one step; tests hold the two together.
    """
    numbers: Mapping[str, int] = image  # type: ignore[assignment]  # a bucket in order has integers here
    origin_ms = numbers["rf"]
    changed = {}
    for name, need in needs.items():
        slot = slots.get(name)
        if slot is None:
            return None
        capacity, amount, period, tokens, counter = slot
        gained = now_ms * amount // period - origin_ms * amount // period if now_ms > origin_ms else 0
        stored = numbers[tokens]
        if stored + gained > capacity:
            if need > capacity:
                return None
            stored = capacity - gained
        elif stored + gained < need:
            return None
        changed[tokens] = stored - need
        changed[counter] = numbers[counter] + need
    return changed
