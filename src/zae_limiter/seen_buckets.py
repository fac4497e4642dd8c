"""What a process has seen of its buckets: images, refusals of a moment ago, and holds of others.

All of it is belief. It shapes writes and may refuse for a moment; only the store admits.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping

from .repository_protocol import Item, Key
from .schema import HOLD, number
from .world import World

REFUSAL_MS_MAX = 1_000
"""How long a refusal answers equal and larger demands without asking the store again."""

REFUSALS_MAX = 10_000

HOLD_MS = 100
"""How long tokens that another process took together with some of another bucket may only be held."""

PROCESSES_TOLD_APART = 1_000


class SeenBuckets:
    """The buckets as last seen, the newest last; the oldest are forgotten when there are too many."""

    def __init__(self, world: World, images_max: int) -> None:
        self.world = world
        self.images: OrderedDict[Key, Item | None] = OrderedDict()
        """The buckets as last seen; ``None`` for one that is missing."""
        self._images_max = images_max
        self._refused: OrderedDict[Key, float] = OrderedDict()
        """When the store last refused somebody for want of tokens, by bucket."""
        self._tag = world.random.randrange(PROCESSES_TOLD_APART)
        self._holds: OrderedDict[Key, tuple[int, float]] = OrderedDict()
        """Which hold of others was last seen on a bucket that refused, and since when."""

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

    def note_refusal(self, key: Key) -> None:
        """The store refused somebody for want of tokens, and the images show it."""
        self._refused[key] = self.world.ticks_ms()
        if len(self._refused) > REFUSALS_MAX:
            self._refused.popitem(last=False)

    def refused_lately(self, key: Key) -> bool:
        """Whether the image of a bucket is good enough to refuse by.

        A refund of this process ends that. Other processes may refund too, which is why it does not
        last.
        """
        since_ms = self._refused.get(key)
        return since_ms is not None and self.world.ticks_ms() - since_ms <= REFUSAL_MS_MAX

    def reconsider(self, key: Key | None = None) -> None:
        """Forget refusals, of one bucket or all, because something changed that may turn them around."""
        if key is None:
            self._refused.clear()
        else:
            self._refused.pop(key, None)

    def new_hold(self) -> int:
        """The mark of what this process takes from a bucket and may have to give back at once."""
        return self.world.now_ms() * PROCESSES_TOLD_APART + self._tag

    def is_doubtful(self, key: Key) -> bool:
        """Whether a refusal may rest on tokens that another process only holds.

        Its mark on the bucket is watched by our own clock, for theirs may be off. Our own holds are in line
        with us.
        """
        mark = number(self.image(key) or {}, HOLD)
        if not mark or mark % PROCESSES_TOLD_APART == self._tag:
            return False
        now_ms, (known, since_ms) = self.world.ticks_ms(), self._holds.get(key, (0, 0.0))
        if known == mark:
            return now_ms - since_ms < HOLD_MS
        self._holds[key] = mark, now_ms
        if len(self._holds) > REFUSALS_MAX:
            self._holds.popitem(last=False)
        return True
