"""The one place through which all writes of a process to its buckets pass.

A teller remembers the last image of each bucket, so that the next write can be shaped without a
read. What it remembers is only ever a belief: the store decides. Because every order goes through
``post``, this is also where orders for one bucket can be made to travel together.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from .posting import Account, Posting, write_for
from .repository_protocol import Backend, Item, Key, Outcome, Write
from .world import World

IMAGES_MAX = 100_000
"""How many buckets a process remembers, at about 1 KB each."""


class Order(NamedTuple):
    """A posting to be carried out on an account."""

    account: Account
    posting: Posting


MOOT = Outcome(True, None)
"""The outcome of an order that needs no write, such as a refund to a bucket that is gone."""


class Teller:
    def __init__(self, backend: Backend, world: World, images_max: int = IMAGES_MAX) -> None:
        self.backend, self.world, self.colour = backend, world, backend.colour
        self.refunds_lost = 0
        """How many refunds and settlements could not be stored, each of them logged."""
        self._images: OrderedDict[Key, Item | None] = OrderedDict()
        self._images_max = images_max

    def knows(self, key: Key) -> bool:
        """Whether this process has ever seen the bucket, be it missing."""
        return key in self._images

    def image(self, key: Key) -> Item | None:
        """The bucket as last seen."""
        return self._images.get(key)

    def remember(self, images: Mapping[Key, Item | None]) -> None:
        for key, image in images.items():
            self._images[key] = image
            self._images.move_to_end(key)
        while len(self._images) > self._images_max:
            self._images.popitem(last=False)

    def forget(self, key: Key) -> None:
        self._images.pop(key, None)

    async def look(self, keys: Sequence[Key]) -> list[Item | None]:
        """Read buckets as they are now."""
        images = await self.backend.batch_get(keys)
        self.remember(dict(zip(keys, images, strict=True)))
        return images

    async def post(self, orders: Sequence[Order], *, atomic: bool = False) -> list[Outcome]:
        """Carry out orders on different buckets; when ``atomic``, from fresh images and all or none."""
        if atomic:
            await self.look([order.account.key for order in orders])
        writes = self._shape(orders)
        due = [write for write in writes if write is not None]
        if atomic and len(due) > 1:
            outcomes = await self.backend.transact_write(due)
        else:
            outcomes = await self.backend.write_each(due) if due else []
        for write, outcome in zip(due, outcomes, strict=True):
            self._learn(write, outcome)
        landed = iter(outcomes)
        return [MOOT if write is None else next(landed) for write in writes]

    def _shape(self, orders: Sequence[Order]) -> list[Write | None]:
        """The write of each order, by what is believed of its bucket now."""
        now_ms = self.world.now_ms()
        return [write_for(o.account, o.posting, self.image(o.account.key), now_ms) for o in orders]

    def _learn(self, write: Write, outcome: Outcome) -> None:
        if outcome.failure is not None:
            return
        if outcome.item is not None or not outcome.held:
            self.remember({write.key: outcome.item})
        elif outcome.applied:
            self.forget(write.key)  # a transaction does not show what it left behind
