"""Keeping busy buckets healthy: refill, split before it is urgent, merge what cooled down. None is needed.

Clients count what accrues and split what is hot by themselves. What is done here keeps the stored numbers
near the truth for people and for older clients, and splits a bucket before its first client has to wait. All
of it is conditional on what was seen; whoever comes too late leaves it to the next batch. Nothing here makes
or destroys a token: a refill is a rebase, a split moves halves, a merge moves them back.

To tell whether a bucket cooled down, shard 0 keeps a sample: when the writes to all shards were last counted,
and how many there were. Once it is old enough they are counted again; a bucket that was written so little
that half of its shards would hardly notice is halved. It takes five times as many writes to split it again,
and the next halving waits for the next sample, so a bucket does not go back and forth.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from zae_limiter.engine.account import WRITE_MILLI, Account, Terms
from zae_limiter.engine.bucket_view import shard_count, stored_terms
from zae_limiter.engine.door import write_each, write_together
from zae_limiter.engine.law import Rate, balance, gain
from zae_limiter.engine.merge import TTL_FILLS, merge
from zae_limiter.engine.phase_writes import brought_up_to_date
from zae_limiter.engine.phased import in_phase
from zae_limiter.engine.shares import SHARDS_MAX
from zae_limiter.engine.split import doubled, shard_keys, splitting, spread_of
from zae_limiter.naming import WCU
from zae_limiter.repository_protocol import Backend, Exists, Item, Key, Update, Write
from zae_limiter.runtime.world import World
from zae_limiter.schema import (
    BOOKED,
    PHASE,
    SAMPLED,
    BucketAddress,
    bucket_key,
    bucket_limit_names,
    limit_attributes,
    number,
    parse_bucket_pk,
    pinned,
    stored_rate,
    text,
)

from .changes import Change
from .usage import extract_deltas, is_event

REFILL_AFTER_MS = 60_000  # no more often: each time all clients of a bucket have to learn the new origin
HOT_PERCENT = 80  # the part of what a partition takes at which its bucket is split
WARM_PERCENT = 20  # the part of it at which nobody thinks of fewer shards
COOL_MS = 600_000  # how long a bucket must have been written little
COOL_PERCENT = 20  # how much of what the partitions that are left take may have been written

_WRITES = limit_attributes(WCU)
_SAMPLE = re.compile(r"(?=.{3,50}$)([0-9]+):([0-9]+)")  # when, and how many writes there had been


@dataclass
class BucketActivity:
    """What a batch of changes tells of one bucket item."""

    key: Key
    address: BucketAddress
    image: Item
    consumed: Counter[str] = field(default_factory=Counter)  # net, in millitokens by limit
    writes: Counter[int] = field(default_factory=Counter)  # how many writes there were, by second
    shards_before: int | None = None  # how many shards the bucket had in the first image of the batch

    def is_hot(self, now_ms: int) -> bool:
        """Whether writes come near to what a partition takes: in one second, or by the gauge as it is now."""
        rate = stored_rate(self.image, WCU)
        if rate is None:
            return False
        most = max(self._most_milli, rate.capacity_milli - _writes_left(rate, self.image, now_ms))
        return most * 100 >= HOT_PERCENT * rate.capacity_milli

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
        """The whole bucket, of which this item may be a shard."""
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
        version = number(change.new, "born"), number(change.new, _WRITES.tc)
        if version >= newest.get(change.key, version):
            newest[change.key], bucket.image = version, change.new
        if is_event(change):
            bucket.consumed.update(extract_deltas(change))
            bucket.writes[change.at_ms // 1000] += 1
    return buckets


def refill(bucket: BucketActivity, now_ms: int) -> Update | None:
    """The rebase to the numbers that a bucket has anyway, or ``None`` if there is no need.

    There is one when a limit stores less than the batch consumed, so that whoever looks at the stored
    number alone takes the bucket for empty.
    """
    image, origin = bucket.image, number(bucket.image, "rf")
    terms = stored_terms(image, TTL_FILLS)
    needed = any(
        gain(rate, origin, now_ms) > 0
        and number(image, limit_attributes(name).tk) < max(0, bucket.consumed[name])
        for name, rate in terms.rates.items()
    )
    is_whole = len(terms.rates) == len(bucket_limit_names(image))
    if not needed or not is_whole or now_ms - origin < REFILL_AFTER_MS or BOOKED in image:
        return None  # what is owed by those who wait is no empty bucket
    account = bucket.account._replace(key=bucket.key, terms=replace(terms, version=None))
    if PHASE in image and in_phase(image, now_ms) is not image:
        return None  # whoever uses it next brings it into the new phase
    write = brought_up_to_date(account, image, now_ms)
    if (rate := stored_rate(image, WCU)) is None:
        return write
    # A gauge needs no condition, and a refill is no use of the bucket, so it counts no write.
    gained = gain(rate, origin, now_ms)
    if number(image, _WRITES.tk) + gained > rate.capacity_milli:
        return write._replace(set={**write.set, _WRITES.tk: rate.capacity_milli})
    return write._replace(add={**write.add, _WRITES.tk: gained})


async def try_refill_bucket(backend: Backend, world: World, bucket: BucketActivity) -> bool:
    """Refill a bucket that needs it, unless somebody moved its origin since."""
    write = refill(bucket, world.now_ms())
    return write is not None and await _written(backend, write)


async def try_proactive_shard(backend: Backend, world: World, bucket: BucketActivity) -> bool:
    """Split shard 0 of a hot bucket; it alone says how many shards there are."""
    if bucket.address.shard_id != 0 or not bucket.is_hot(world.now_ms()):
        return False
    (first,) = await backend.batch_get([bucket.key])
    if first is None or shard_count(first) > shard_count(bucket.image):
        return False
    target = doubled(first)
    writes = splitting(bucket.account, 0, [first], target, world.now_ms()) if target else []
    return await _written_together(backend, writes)


async def propagate_shard_count(backend: Backend, world: World, bucket: BucketActivity) -> int:
    """Split the shards that lag behind shard 0 until all have as many halves; how many splits it took."""
    if bucket.address.shard_id != 0 or not bucket.grew:
        return 0
    account, splits = bucket.account, 0
    # Each round doubles what lags most, so there are no more rounds than doublings.
    for _ in range(SHARDS_MAX.bit_length()):
        images = await backend.batch_get(shard_keys(account, shard_count(bucket.image)))
        first = images[0]
        if first is None:
            break
        target = {name: spread_of(first, name) for name in bucket_limit_names(first)}
        done = [
            await _written_together(
                backend, splitting(account, shard_id, [first, image], target, world.now_ms())
            )
            for shard_id, image in enumerate(images)
            if image is not None and shard_count(image) < min(shard_count(first), len(images))
        ]
        splits += sum(done)
        if not any(done):
            break
    return splits


async def try_cool_down(backend: Backend, world: World, bucket: BucketActivity) -> int:
    """Halve the shards of a bucket that was written little for a while; how many merges that took."""
    if bucket.address.shard_id != 0 or shard_count(bucket.image) == 1:
        return 0
    found = _SAMPLE.fullmatch(text(bucket.image, SAMPLED) or "")
    now_ms, sample = world.now_ms(), found and (int(found[1]), int(found[2]))
    if sample is not None and 0 <= now_ms - sample[0] < COOL_MS:  # one from the future is of no use
        return 0
    keys = shard_keys(bucket.account, shard_count(bucket.image))
    images = await backend.batch_get(keys)
    first = images[0]
    if first is None or shard_count(first) != len(images) or first.get(SAMPLED) != bucket.image.get(SAMPLED):
        return 0
    merges = 0
    if sample is not None and not bucket.is_warm and _is_cool(sample, images, now_ms):
        merges = await _halve(backend, bucket.account, keys, images, now_ms)
        images = await backend.batch_get(keys) if merges else images
    taken = {SAMPLED: f"{now_ms}:{_write_count(images)}"}
    await _written(backend, Update(bucket.key, set=taken, when=(Exists(), *pinned(first, SAMPLED))))
    return merges


def _is_cool(sample: tuple[int, int], images: Sequence[Item | None], now_ms: int) -> bool:
    """Whether half of the shards would have had little to do since the sample, and none is busy now."""
    sampled_ms, writes_before = sample
    if now_ms < sampled_ms:
        return False
    taken = 0
    for image in filter(None, images):
        gauge = stored_rate(image, WCU)
        if gauge is None:
            return False
        if _writes_left(gauge, image, now_ms) * 100 < (100 - COOL_PERCENT) * gauge.capacity_milli:
            return False
        taken = gauge.refill_amount_milli * COOL_MS // gauge.refill_period_ms // WRITE_MILLI
    since = _write_count(images) - writes_before
    return 0 <= since * 100 <= COOL_PERCENT * taken * (len(images) // 2)


async def _halve(
    backend: Backend, account: Account, keys: Sequence[Key], images: Sequence[Item | None], now_ms: int
) -> int:
    """Merge the younger half of the shards with their elders; shard 0 last, and as the others are then."""
    merges = 0
    for shard_id in range(1, len(images) // 2):
        merges += await _written_together(backend, merge(account, shard_id, images, now_ms))
    if merges:
        images = await backend.batch_get(keys)
    return merges + await _written_together(backend, merge(account, 0, images, now_ms))


def _writes_left(gauge: Rate, image: Item, now_ms: int) -> int:
    return balance(gauge, number(image, _WRITES.tk), number(image, "rf"), now_ms)


def _write_count(images: Sequence[Item | None]) -> int:
    return sum(max(0, number(image or {}, _WRITES.tc)) for image in images) // WRITE_MILLI


async def _written(backend: Backend, write: Update) -> bool:
    (outcome,) = await write_each(backend, None, [write])
    if outcome.failure is not None:
        raise outcome.failure
    return outcome.applied


async def _written_together(backend: Backend, writes: Sequence[Write]) -> bool:
    return bool(writes) and (await write_together(backend, None, writes))[0].applied
