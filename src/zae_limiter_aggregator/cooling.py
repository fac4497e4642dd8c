"""A bucket that has cooled down comes back to one item, a halving at a time.

Shard 0 keeps a sample: when the writes to all shards were last counted, and how many there were. Once the
sample is old enough, they are counted again; a bucket that was written so little that half of its shards
would hardly notice is halved. It takes five times as many writes to split it again, and the next halving
waits for the next sample, so a bucket does not go back and forth.

Every merge conserves by itself, and whoever comes too late leaves it to the next batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Self

from zae_limiter.bucket import balance
from zae_limiter.engine.bucket_view import WRITE_MILLI, Account, shard_count
from zae_limiter.engine.door import write_each, write_together
from zae_limiter.engine.merge import merge
from zae_limiter.naming import WCU
from zae_limiter.repository_protocol import Backend, Exists, Item, Update
from zae_limiter.runtime.world import World
from zae_limiter.schema import (
    SAMPLED,
    bucket_key,
    limit_attributes,
    number,
    pinned,
    stored_rate,
    text,
)

from .buckets import BucketActivity

COOL_MS = 600_000
"""How long a bucket must have been written little."""

COOL_PERCENT = 20
"""How much of what the partitions take that are left may have been written: a quarter of what splits one."""


class Sample(NamedTuple):
    """How many writes all shards of a bucket had counted at an instant."""

    at_ms: int
    writes: int

    @classmethod
    def of(cls, first: Item) -> Self | None:
        """The sample that shard 0 keeps, if it is one."""
        at, _, writes = (text(first, SAMPLED) or "").partition(":")
        if not (
            at.isascii() and at.isdigit() and writes.isascii() and writes.isdigit() and len(at + writes) < 50
        ):
            return None
        return cls(int(at), int(writes))

    def is_due(self, now_ms: int) -> bool:
        """Whether writes are to be counted again; a sample from the future is of no use."""
        return not 0 <= now_ms - self.at_ms < COOL_MS


async def try_cool_down(backend: Backend, world: World, bucket: BucketActivity) -> int:
    """Halve the shards of a bucket that was written little for a while; how many merges that took."""
    if bucket.address.shard_id != 0 or shard_count(bucket.image) == 1:
        return 0
    now_ms, sample = world.now_ms(), Sample.of(bucket.image)
    if sample is not None and not sample.is_due(now_ms):
        return 0
    account = bucket.account
    images = await _look(backend, account, shard_count(bucket.image))
    first = images[0]
    if first is None or shard_count(first) != len(images) or first.get(SAMPLED) != bucket.image.get(SAMPLED):
        return 0
    merges = 0
    if sample is not None and not bucket.is_warm and _is_cool(sample, images, now_ms):
        merges = await _halve(backend, account, images, now_ms)
        images = await _look(backend, account, len(images)) if merges else images
    await _sample(backend, bucket, first, f"{now_ms}:{_writes(images)}")
    return merges


def _is_cool(sample: Sample, images: Sequence[Item | None], now_ms: int) -> bool:
    """Whether half of the shards would have had little to do since the sample, and none is busy now."""
    if now_ms < sample.at_ms:
        return False
    taken = 0
    for image in filter(None, images):
        gauge, names = stored_rate(image, WCU), limit_attributes(WCU)
        if gauge is None:
            return False
        left = balance(gauge, number(image, names.tk), number(image, "rf"), now_ms)
        if left * 100 < (100 - COOL_PERCENT) * gauge.capacity_milli:
            return False
        taken = gauge.refill_amount_milli * COOL_MS // gauge.refill_period_ms // WRITE_MILLI
    since = _writes(images) - sample.writes
    return 0 <= since * 100 <= COOL_PERCENT * taken * (len(images) // 2)


async def _halve(backend: Backend, account: Account, images: Sequence[Item | None], now_ms: int) -> int:
    """Merge the younger half of the shards with their elders; shard 0 last, and as the others are then."""
    merges = 0
    for shard_id in range(1, len(images) // 2):
        merges += await _merge(backend, account, shard_id, images, now_ms)
    if merges:
        images = await _look(backend, account, len(images))
    return merges + await _merge(backend, account, 0, images, now_ms)


async def _merge(
    backend: Backend, account: Account, shard_id: int, images: Sequence[Item | None], now_ms: int
) -> bool:
    writes = merge(account, shard_id, images, now_ms)
    return bool(writes) and (await write_together(backend, None, writes))[0].applied


async def _look(backend: Backend, account: Account, count: int) -> list[Item | None]:
    place = account.namespace_id, account.entity_id, account.resource
    return await backend.batch_get([bucket_key(*place, shard_id) for shard_id in range(count)])


async def _sample(backend: Backend, bucket: BucketActivity, first: Item, sample: str) -> None:
    """Keep a sample, unless somebody else has."""
    write = Update(bucket.key, set={SAMPLED: sample}, when=(Exists(), *pinned(first, SAMPLED)))
    (outcome,) = await write_each(backend, None, [write])
    if outcome.failure is not None:
        raise outcome.failure


def _writes(images: Sequence[Item | None]) -> int:
    return sum(max(0, number(image or {}, limit_attributes(WCU).tc)) for image in images) // WRITE_MILLI
