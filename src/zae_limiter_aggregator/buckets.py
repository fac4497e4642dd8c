"""Keeping busy buckets healthy: refill, proactive sharding, propagation. Each helps, none is needed.

Clients count what accrues and split what is hot by themselves. What is done here keeps the stored numbers
near the truth for people and for older clients, and splits a bucket before its first client has to wait.
So everything is conditional on what was seen; whoever comes too late leaves it, and the next batch looks
again. Nothing here makes or destroys a token: a refill is a rebase, a split moves halves.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from zae_limiter.bucket import balance, gain
from zae_limiter.engine.bucket_view import WRITE_MILLI, Account, Terms, shard_count
from zae_limiter.engine.door import write_each, write_together
from zae_limiter.engine.shares import SHARDS_MAX
from zae_limiter.engine.split import doubled, splitting, spread_of
from zae_limiter.naming import WCU
from zae_limiter.repository_protocol import (
    AtLeast,
    AtMost,
    Backend,
    Condition,
    Equal,
    Exists,
    Item,
    Key,
    Update,
    Value,
)
from zae_limiter.runtime.world import World
from zae_limiter.schema import (
    BucketAddress,
    bucket_key,
    bucket_limit_names,
    limit_attributes,
    number,
    parse_bucket_pk,
    pinned,
    stored_rate,
)

from .changes import Change
from .usage import extract_deltas, is_event

REFILL_AFTER_MS = 60_000
"""A bucket is refilled no more often: each time all its clients have to learn the new origin."""

HOT_PERCENT = 80
"""The part of what a partition takes at which its bucket is split."""

WARM_PERCENT = 20
"""The part of it at which nobody thinks of fewer shards."""


@dataclass
class BucketActivity:
    """What a batch of changes tells of one bucket item."""

    key: Key
    address: BucketAddress
    image: Item
    consumed: Counter[str] = field(default_factory=Counter)
    """Net, in millitokens by limit."""
    writes: Counter[int] = field(default_factory=Counter)
    """How many writes there were, by second."""
    shards_before: int | None = None
    """How many shards the bucket had in the first image of the batch."""

    def is_hot(self, now_ms: int) -> bool:
        """Whether writes come near to what a partition takes: in one second, or by the gauge as it is now.

        A stream tells the time of a change to the second at best, and the gauge fills within one.
        """
        rate = stored_rate(self.image, WCU)
        if rate is None:
            return False
        held = number(self.image, limit_attributes(WCU).tk)
        left = balance(rate, held, number(self.image, "rf"), now_ms)
        return max(self._most_milli, rate.capacity_milli - left) * 100 >= HOT_PERCENT * rate.capacity_milli

    @property
    def is_warm(self) -> bool:
        """Whether there was a second with a good part of the writes that a partition takes."""
        rate = stored_rate(self.image, WCU)
        return rate is None or self._most_milli * 100 >= WARM_PERCENT * rate.capacity_milli

    @property
    def _most_milli(self) -> int:
        return max(self.writes.values(), default=0) * WRITE_MILLI

    @property
    def grew(self) -> bool:
        """Whether the bucket got more shards meanwhile."""
        return self.shards_before is not None and self.shards_before < shard_count(self.image)

    @property
    def account(self) -> Account:
        namespace_id, entity_id, resource, _ = self.address
        return Account(bucket_key(namespace_id, entity_id, resource), *self.address[:3], Terms({}))


def aggregate_bucket_states(changes: Iterable[Change]) -> dict[Key, BucketActivity]:
    """The last image of each bucket item in a batch, and what happened to it."""
    buckets: dict[Key, BucketActivity] = {}
    newest: dict[Key, tuple[int, int]] = {}
    for change in changes:
        if change.new is None:
            continue
        bucket = buckets.get(change.key)
        if bucket is None:
            address = parse_bucket_pk(change.key.partition)
            bucket = buckets[change.key] = BucketActivity(change.key, address, change.new)
        if bucket.shards_before is None and change.old is not None:
            bucket.shards_before = shard_count(change.old)
        version = number(change.new, "born"), number(change.new, limit_attributes(WCU).tc)
        if version >= newest.get(change.key, version):
            newest[change.key], bucket.image = version, change.new
        if is_event(change):
            bucket.consumed.update(extract_deltas(change))
            bucket.writes[change.at_ms // 1000] += 1
    return buckets


def refill(bucket: BucketActivity, now_ms: int) -> Update | None:
    """The rebase that credits every limit of a bucket with its gain, or ``None`` if there is no need.

    There is one when a limit stores less than the batch consumed, so that whoever looks at the stored
    number alone takes the bucket for empty. A limit that is full is cut off at its capacity, any other
    gets exactly what it gained; each on condition that this is what it is.
    """
    image, origin = bucket.image, number(bucket.image, "rf")
    if now_ms - origin < REFILL_AFTER_MS:
        return None
    add: dict[str, int] = {}
    set_: dict[str, Value] = {"rf": now_ms}
    when: list[Condition] = [Exists(), Equal("rf", origin), *pinned(image, "cv")]
    needed = False
    for name in bucket_limit_names(image):
        names, rate = limit_attributes(name), stored_rate(image, name)
        if rate is None:
            return None
        stored, gained = number(image, names.tk), gain(rate, origin, now_ms)
        brim = rate.capacity_milli - gained
        if stored > brim:
            set_[names.tk] = rate.capacity_milli
            when.append(AtLeast(names.tk, brim + 1))
        else:
            add[names.tk] = gained
            when.append(AtMost(names.tk, brim))
        needed = needed or (gained > 0 and stored < max(0, bucket.consumed[name]))
    if not needed:
        return None
    if (rate := stored_rate(image, WCU)) is not None:
        # A gauge needs no condition, and a refill is no use of the bucket, so it counts no write.
        names, gained = limit_attributes(WCU), gain(rate, origin, now_ms)
        if number(image, names.tk) + gained > rate.capacity_milli:
            set_[names.tk] = rate.capacity_milli
        else:
            add[names.tk] = gained
    return Update(bucket.key, add, set_, tuple(when))


async def try_refill_bucket(backend: Backend, world: World, bucket: BucketActivity) -> bool:
    """Refill a bucket that needs it, unless somebody moved its origin since."""
    write = refill(bucket, world.now_ms())
    if write is None:
        return False
    (outcome,) = await write_each(backend, None, [write])
    if outcome.failure is not None:
        raise outcome.failure
    return outcome.applied


async def try_proactive_shard(backend: Backend, world: World, bucket: BucketActivity) -> bool:
    """Split shard 0 of a hot bucket; it alone says how many shards there are."""
    if bucket.address.shard_id != 0 or not bucket.is_hot(world.now_ms()):
        return False
    (first,) = await backend.batch_get([bucket.key])
    if first is None or shard_count(first) > shard_count(bucket.image):
        return False
    target = doubled(first)
    return target is not None and await _split(backend, world, bucket.account, 0, [first], target)


async def propagate_shard_count(backend: Backend, world: World, bucket: BucketActivity) -> int:
    """Split the shards that lag behind shard 0 until all have as many halves; how many splits it took."""
    if bucket.address.shard_id != 0 or not bucket.grew:
        return 0
    namespace_id, entity_id, resource, _ = bucket.address
    splits = 0
    # Each round doubles what lags most, so there are no more rounds than doublings.
    for _ in range(SHARDS_MAX.bit_length()):
        keys = [bucket_key(namespace_id, entity_id, resource, i) for i in range(shard_count(bucket.image))]
        images = await backend.batch_get(keys)
        first = images[0]
        if first is None:
            break
        target = {name: spread_of(first, name) for name in bucket_limit_names(first)}
        lagging = [
            (shard_id, image)
            for shard_id, image in enumerate(images)
            if image is not None and shard_count(image) < min(shard_count(first), len(keys))
        ]
        account = bucket.account
        done = [await _split(backend, world, account, i, [first, image], target) for i, image in lagging]
        splits += sum(done)
        if not any(done):
            break
    return splits


async def _split(
    backend: Backend,
    world: World,
    account: Account,
    shard_id: int,
    images: Sequence[Item | None],
    target: Mapping[str, int],
) -> bool:
    writes = splitting(account, shard_id, images, target, world.now_ms())
    return bool(writes) and (await write_together(backend, None, writes))[0].applied
