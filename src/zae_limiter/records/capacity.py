"""Buckets seen from outside: of an entity, of a resource, and what they hold together.

The writes at the end are for those who build on the store themselves. They touch their own namespace
only, and what this process remembers of the items they touch is forgotten.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from typing import Any

from ..bucket import balance
from ..engine.acquire import demands_on
from ..engine.bucket_writes import Posting
from ..engine.line import Order
from ..exceptions import ValidationError
from ..models import BucketState, EntityCapacity, Limit, ResourceCapacity, check_limits
from ..models.checks import needs_milli
from ..naming import validate_entity_id, validate_limit_name, validate_resource
from ..repository_protocol import Item, Outcome, Query, Write
from ..schema import (
    BucketAddress,
    bucket_found,
    bucket_key,
    bucket_states,
    buckets_of_entity,
    buckets_of_resource,
    limit_attributes,
    number,
    stored_rate,
    text,
)
from .buckets import BucketRecords, check_shard
from .raw_writes import check_writes

EVERY_LIMIT = ""


class CapacityRecords(BucketRecords):
    async def get_buckets(
        self, entity_id: str, resource: str | None = None, shard_id: int | None = None
    ) -> list[BucketState]:
        """One state for each limit of each bucket of an entity, shard by shard; or of one shard."""
        if resource is not None:
            validate_resource(resource)
        if shard_id is not None:
            check_shard(shard_id)
        states = await self._states(
            buckets_of_entity(self._namespace_id, validate_entity_id(entity_id), resource)
        )
        return [state for state in states if shard_id is None or state.shard_id == shard_id]

    async def get_resource_buckets(self, resource: str, limit_name: str | None = None) -> list[BucketState]:
        """One state for each limit of each bucket of a resource, shard by shard; or of one limit."""
        if limit_name is not None:
            validate_limit_name(limit_name)
        states = await self._states(buckets_of_resource(self._namespace_id, validate_resource(resource)))
        return [state for state in states if limit_name is None or state.limit_name == limit_name]

    async def batch_get_buckets(
        self, keys: Iterable[tuple[str, str] | tuple[str, str, int | str]]
    ) -> dict[tuple[str, ...], Any]:
        """The states of several buckets in one read, by what they are asked for with.

        A pair of an entity and a resource gets the list of states of the first shard. With the id of a shard,
        or with a limit, there is one state for each entity, resource and limit that is there.
        """
        asked = _asked(keys)
        places = list(dict.fromkeys(place for place, _ in asked))
        wanted = [bucket_key(self._namespace_id, *place) for place in places]
        images = await self._connection.writer.look(wanted) if wanted else []
        found = {
            place: [] if image is None else bucket_states(image, BucketAddress(self._namespace_id, *place))
            for place, image in zip(places, images, strict=True)
        }
        states: dict[tuple[str, ...], Any] = {}
        for place, limit_name in asked:
            if limit_name is None:
                states[place[:2]] = found[place]
            else:
                named = [s for s in found[place] if limit_name in (EVERY_LIMIT, s.limit_name)]
                states |= {(*place[:2], state.limit_name): state for state in named}
        return states

    async def get_resource_capacity(
        self, resource: str, limit_name: str, parents_only: bool = False
    ) -> ResourceCapacity:
        """One limit over all buckets of a resource: what they could hold, and what they hold now.

        It is a plain sum over every entity that has a bucket for the resource with this limit. So it is more
        than can be admitted where somebody cascades: such a child takes from its parent's bucket too, and
        both are counted. ``parents_only`` leaves out all entities that have a parent, whether they cascade
        or not; those without one are counted, whether they have children or not.
        """
        validate_limit_name(limit_name)
        if not isinstance(parents_only, bool):
            raise ValidationError("parents_only", parents_only, "use True or False")
        now_ms, tk = self._world.now_ms(), limit_attributes(limit_name).tk
        totals: dict[str, tuple[int, int]] = {}
        async for at, image in self._images(
            buckets_of_resource(self._namespace_id, validate_resource(resource))
        ):
            rate = stored_rate(image, limit_name)
            if rate is None or (parents_only and text(image, "parent_id") is not None):
                continue
            capacity, available = totals.get(at.entity_id, (0, 0))
            held = balance(rate, number(image, tk), number(image, "rf"), now_ms)
            totals[at.entity_id] = capacity + rate.capacity_milli, available + held
        return ResourceCapacity(
            resource,
            limit_name,
            sum(capacity for capacity, _ in totals.values()) // 1000,
            sum(available for _, available in totals.values()) // 1000,
            tuple(EntityCapacity(e, c // 1000, a // 1000) for e, (c, a) in sorted(totals.items())),
        )

    async def _states(self, query: Query) -> list[BucketState]:
        return [state async for at, image in self._images(query) for state in bucket_states(image, at)]

    async def _images(self, query: Query) -> AsyncIterator[tuple[BucketAddress, Item]]:
        """The buckets that an index names, page by page; whatever else it names is left out."""
        async for page in self._pages(query):
            places = {row.key: at for row in page if (at := bucket_found(query, row.key)) is not None}
            images = await self._backend.batch_get(list(places)) if places else []
            for at, image in zip(places.values(), images, strict=True):
                if image is not None:
                    yield at, image

    # Writes.

    async def speculative_consume(
        self,
        entity_id: str,
        resource: str,
        consume: Mapping[str, int],
        limits: Sequence[Limit] | None = None,
    ) -> Outcome:
        """Take amounts from one bucket with one conditional write, and say what became of it.

        Nothing is tried again, nothing is charged to a parent, and what was taken is the caller's to
        give back: ``RateLimiter.acquire`` does all that.
        """
        given = None if limits is None else check_limits(limits)
        validate_entity_id(entity_id)
        validate_resource(resource)
        needs = needs_milli(consume)
        await self.notice_changes()
        account = (await self.plan(entity_id, resource, given, needs)).accounts[0]
        demands_on([account], needs)
        (outcome,), interruption = await self.writer.post([Order(account, Posting(need=needs))])
        if interruption is not None:
            raise interruption
        return outcome

    async def transact_write(self, writes: Sequence[Write]) -> list[Outcome]:
        """Perform all writes or none."""
        checked = check_writes(self._namespace_id, writes, together=True)
        return await self._write_together(self._forgotten(checked))

    async def write_each(self, writes: Sequence[Write]) -> list[Outcome]:
        """Perform each write on its own; one that fails is an outcome with a ``failure``."""
        checked = check_writes(self._namespace_id, writes)
        return await self._write_each(self._forgotten(checked))

    def _forgotten(self, writes: Sequence[Write]) -> Sequence[Write]:
        """The writes, of whose keys this process knows nothing any more."""
        keys = {write.key for write in writes}
        for key in keys:
            self.writer.forget(key)
        return writes


def _asked(keys: object) -> list[tuple[tuple[str, str, int], str | None]]:
    """Which shards are asked for, each with the limit that is wanted of it; ``None`` for a list of all."""
    rule = "pass pairs of an entity and a resource, or triples with a shard's id or a limit"
    if not isinstance(keys, Iterable):
        raise ValidationError("keys", keys, rule)
    asked: list[tuple[tuple[str, str, int], str | None]] = []
    for key in keys:
        if not isinstance(key, list | tuple) or len(key) not in (2, 3):
            raise ValidationError("bucket", key, rule)
        entity_id, resource = validate_entity_id(key[0]), validate_resource(key[1])
        if len(key) == 2:
            asked.append(((entity_id, resource, 0), None))
        elif isinstance(key[2], str):
            asked.append(((entity_id, resource, 0), validate_limit_name(key[2])))
        else:
            asked.append(((entity_id, resource, check_shard(key[2])), EVERY_LIMIT))
    return asked
