"""What a process has seen of its buckets: images, refusals of a moment ago, and holds of others.

All of it is belief. It shapes writes and may refuse for a moment; only the store admits.
"""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict
from collections.abc import Iterable, Mapping

from ..repository_protocol import Item, Key, Outcome, Update, Write
from ..runtime.colour import LAST_WORDS_SECONDS, ForkSafe, taken
from ..runtime.logs import logger
from ..runtime.world import AHEAD_MS_MAX, World
from ..schema import HOLDS, number
from .given_up import GivenUpBookings, Giving

REFUSAL_MS_MAX = 1_000
"""How long a refusal answers equal and larger demands without asking the store again."""

REFUSALS_MAX = 10_000

HOLD_MS = 100
"""How long tokens that another process took together with some of another bucket may only be held."""

PROCESSES_TOLD_APART = 100_000
MARK_MS_MAX = 10**10
"""Marks tell instants of four months apart, so that every store can keep them as exact numbers."""


class Holders:
    """How many acquires of this process hold something of a bucket. A forked child starts with none."""

    def __init__(self) -> None:
        self.lock: threading.Lock = threading.Lock()
        self.by_key: Counter[Key] = Counter()


class SeenBuckets:
    """The buckets as last seen, the newest last; the oldest are forgotten when there are too many."""

    def __init__(self, world: World, images_max: int) -> None:
        self.world = world
        self.images: OrderedDict[Key, Item | None] = OrderedDict()
        """The buckets as last seen; ``None`` for one that is missing."""
        self._images_max = images_max
        self.refusals: OrderedDict[Key, float] = OrderedDict()
        """When the store last refused somebody for want of tokens, by bucket."""
        self._families: OrderedDict[Key, float] = OrderedDict()
        """When the family of a bucket's entity was last seen to be the one that is charged."""
        self._number = ForkSafe(lambda: world.random.randrange(PROCESSES_TOLD_APART))
        """By which this process knows its own marks; a forked child is another one."""
        self._place = world.random.randrange(len(HOLDS))
        self._holds: OrderedDict[Key, tuple[frozenset[int], float]] = OrderedDict()
        """Which holds of others were last seen on a bucket that refused, and since when."""
        self._holders = ForkSafe(Holders)
        self._giving: Giving = {}
        self.given_up: ForkSafe[GivenUpBookings] = ForkSafe(lambda: GivenUpBookings(self._giving))

    def knows(self, key: Key) -> bool:
        """Whether this process has ever seen the bucket, be it missing."""
        return key in self.images

    def image(self, key: Key) -> Item | None:
        """The bucket as last seen."""
        return self.images.get(key)

    def remember(self, images: Mapping[Key, Item | None]) -> None:
        for key, image in images.items():
            self.images.pop(key, None)  # so that it counts as the newest
            self.images[key] = image
            if len(self.images) > self._images_max:
                self.images.popitem(last=False)

    def forget(self, key: Key) -> None:
        self.images.pop(key, None)

    def learn(self, write: Write, outcome: Outcome) -> None:
        """Note what the reply to a write says of its bucket."""
        if self._giving:
            self.given_up.get().learn(write, outcome, self.world.now_ms())
        if outcome.failure is not None:
            return
        if outcome.applied and type(write) is Update and "rf" in write.set:
            ahead_ms = number(self.image(write.key) or {}, "rf") - number(write.set, "rf")
            if ahead_ms > AHEAD_MS_MAX:
                told = "%s began %d s in the future, by a wrong clock; it begins now with what it has"
                logger.warning(told, write.key.partition, ahead_ms // 1000)
        if outcome.item is not None or not outcome.held:
            images = self.images
            images[write.key] = outcome.item
            images.move_to_end(write.key)  # as the newest
            if len(images) > self._images_max:
                images.popitem(last=False)
        elif outcome.applied:
            self.forget(write.key)  # a transaction does not show what it left behind

    def note_refusal(self, key: Key) -> None:
        """The store refused somebody for want of tokens, and the images show it."""
        self.refusals[key] = self.world.ticks_ms()
        if len(self.refusals) > REFUSALS_MAX:
            self.refusals.popitem(last=False)

    def refused_lately(self, key: Key) -> bool:
        """Whether the image of a bucket is good enough to refuse by.

        A refund of this process ends that. Other processes may refund too, which is why it does not
        last.
        """
        since_ms = self.refusals.get(key)
        return since_ms is not None and self.world.ticks_ms() - since_ms <= REFUSAL_MS_MAX

    def reconsider(self, key: Key | None = None) -> None:
        """Forget refusals, of one bucket or all, because something changed that may turn them around."""
        if key is None:
            self.refusals.clear()
        else:
            self.refusals.pop(key, None)

    def note_family(self, key: Key) -> None:
        """The entity of a bucket has the family that was charged."""
        self._families[key] = self.world.ticks_ms()
        if len(self._families) > REFUSALS_MAX:
            self._families.popitem(last=False)

    def family_seen_lately(self, key: Key) -> bool:
        """Whether the family of a bucket's entity is known well enough to be refused on account of it."""
        since_ms = self._families.get(key)
        return since_ms is not None and self.world.ticks_ms() - since_ms <= REFUSAL_MS_MAX

    def new_hold(self, keys: Iterable[Key]) -> int:
        """The mark of what this process takes from some buckets and may have to give back at once.

        It goes to a place of this process. Where another one has marked that too, this one takes another.
        """
        for key in keys:
            image = self.image(key) or {}
            mark = number(image, HOLDS[self._place])
            if mark and not self._is_own(mark):
                free = [place for place, name in enumerate(HOLDS) if name not in image]
                self._place = free[0] if free else self.world.random.randrange(len(HOLDS))
        now_ms = self.world.now_ms() % MARK_MS_MAX
        return (now_ms * PROCESSES_TOLD_APART + self._number.get()) * len(HOLDS) + self._place

    def _is_own(self, mark: int) -> bool:
        return mark // len(HOLDS) % PROCESSES_TOLD_APART == self._number.get()

    def hold(self, key: Key) -> None:
        """An acquire of this process takes something that it may have to give back at once."""
        holders = self._holders.get()
        with holders.lock:
            holders.by_key[key] += 1

    def let_go(self, key: Key) -> None:
        """It has kept it for good, or given it back."""
        holders = self._holders.get()
        # Garbage may be collected, and let go of something, in the middle of whatever holds the lock.
        for _ in taken(holders.lock, LAST_WORDS_SECONDS):
            try:
                holders.by_key[key] -= 1
                if holders.by_key[key] <= 0:
                    del holders.by_key[key]
            finally:
                holders.lock.release()

    def is_held_here(self, key: Key) -> bool:
        return key in self._holders.get().by_key

    def is_doubtful(self, key: Key) -> bool:
        """Whether a refusal may rest on tokens that another process only holds.

        Its mark on the bucket is watched by our own clock, for theirs may be off.
        """
        image = self.image(key) or {}
        held = [number(image, place) for place in HOLDS if place in image]
        marks = frozenset(mark for mark in held if mark and not self._is_own(mark))
        if not marks:
            return False
        now_ms, (known, since_ms) = self.world.ticks_ms(), self._holds.get(key, (frozenset(), 0.0))
        if marks <= known:
            return now_ms - since_ms < HOLD_MS
        self._holds[key] = marks, now_ms
        if len(self._holds) > REFUSALS_MAX:
            self._holds.popitem(last=False)
        return True
