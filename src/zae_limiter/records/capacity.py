"""Buckets seen from outside: of an entity, of a resource, and what they hold together.

The writes at the end are for those who build on the store themselves. They touch their own namespace
only, and what this process remembers of the items they touch is forgotten.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence

from ..bucket import balance
from ..exceptions import ValidationError
from ..models import BucketState, EntityCapacity, Limit, ResourceCapacity, check_limits, check_tokens
from ..naming import validate_entity_id, validate_limit_name, validate_resource
from ..posting import Posting
from ..repository_protocol import TRANSACT_WRITES_MAX, Item, Key, Outcome, Query, Write
from ..schema import (
    bucket_key,
    bucket_states,
    buckets_of_entity,
    buckets_of_resource,
    limit_attributes,
    number,
    parse_bucket_pk,
    stored_rate,
    text,
)
from ..teller import Order
from .buckets import BucketRecords, demands_on


class CapacityRecords(BucketRecords):
    async def get_buckets(self, entity_id: str, resource: str | None = None) -> list[BucketState]:
        """One state for each limit of each bucket of an entity, shard by shard."""
        if resource is not None:
            validate_resource(resource)
        return await self._states(
            buckets_of_entity(self._namespace_id, validate_entity_id(entity_id), resource)
        )

    async def get_resource_buckets(self, resource: str, limit_name: str | None = None) -> list[BucketState]:
        """One state for each limit of each bucket of a resource, shard by shard; or of one limit."""
        if limit_name is not None:
            validate_limit_name(limit_name)
        states = await self._states(buckets_of_resource(self._namespace_id, validate_resource(resource)))
        return [state for state in states if limit_name is None or state.limit_name == limit_name]

    async def batch_get_buckets(
        self, buckets: Iterable[tuple[str, str]]
    ) -> dict[tuple[str, str], list[BucketState]]:
        """The states of several buckets, by entity and resource, in one read; of the first shard."""
        wanted = dict.fromkeys((validate_entity_id(entity), validate_resource(on)) for entity, on in buckets)
        keys = [bucket_key(self._namespace_id, *one) for one in wanted]
        images = await self._connection.teller.look(keys) if keys else []
        return {
            one: [] if image is None else bucket_states(image)
            for one, image in zip(wanted, images, strict=True)
        }

    async def get_resource_capacity(
        self, resource: str, limit_name: str, parents_only: bool = False
    ) -> ResourceCapacity:
        """One limit over all buckets of a resource: what they could hold, and what they hold now.

        ``parents_only`` leaves out entities that have a parent, whose use may count there as well.
        """
        validate_limit_name(limit_name)
        now_ms, tk = self._world.now_ms(), limit_attributes(limit_name).tk
        totals: dict[str, tuple[int, int]] = {}
        async for key, image in self._images(
            buckets_of_resource(self._namespace_id, validate_resource(resource))
        ):
            rate = stored_rate(image, limit_name)
            if rate is None or (parents_only and text(image, "parent_id") is not None):
                continue
            entity_id = parse_bucket_pk(key.partition).entity_id
            capacity, available = totals.get(entity_id, (0, 0))
            held = balance(rate, number(image, tk), number(image, "rf"), now_ms)
            totals[entity_id] = capacity + rate.capacity_milli, available + held
        return ResourceCapacity(
            resource,
            limit_name,
            sum(capacity for capacity, _ in totals.values()) // 1000,
            sum(available for _, available in totals.values()) // 1000,
            tuple(EntityCapacity(e, c // 1000, a // 1000) for e, (c, a) in sorted(totals.items())),
        )

    async def _states(self, query: Query) -> list[BucketState]:
        return [
            state
            async for key, image in self._images(query)
            for state in bucket_states(image, parse_bucket_pk(key.partition).shard_id)
        ]

    async def _images(self, query: Query) -> AsyncIterator[tuple[Key, Item]]:
        """The buckets that an index names, page by page."""
        async for page in self._pages(query):
            keys = [row.key for row in page]
            images = await self._backend.batch_get(keys) if keys else []
            for key, image in zip(keys, images, strict=True):
                if image is not None:
                    yield key, image

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
        account = (
            await self.plan(validate_entity_id(entity_id), validate_resource(resource), given)
        ).accounts[0]
        needs = {name: check_tokens(f"amount of {name!r}", n) * 1000 for name, n in consume.items()}
        (demand,) = demands_on([account], needs)
        (outcome,), interruption = await self.teller.post([Order(account, Posting(need=demand.amounts))])
        if interruption is not None:
            raise interruption
        return outcome

    async def transact_write(self, writes: Sequence[Write]) -> list[Outcome]:
        """Perform all writes or none."""
        if len({write.key for write in writes}) != len(writes):
            raise ValidationError(
                "writes", [write.key for write in writes], "a transaction names no key twice"
            )
        if len(writes) > TRANSACT_WRITES_MAX:
            raise ValidationError("writes", len(writes), f"at most {TRANSACT_WRITES_MAX} in one transaction")
        return await self._backend.transact_write(self._forgotten(writes)) if writes else []

    async def write_each(self, writes: Sequence[Write]) -> list[Outcome]:
        """Perform each write on its own; one that fails is an outcome with a ``failure``."""
        return await self._backend.write_each(self._forgotten(writes)) if writes else []

    def _forgotten(self, writes: Sequence[Write]) -> Sequence[Write]:
        keys = {write.key for write in writes}
        for key in keys:
            if not key.partition.startswith(f"{self._namespace_id}/"):
                raise ValidationError(
                    "key",
                    key.partition,
                    f"it is not in this namespace; start it with '{self._namespace_id}/'",
                )
            self.teller.forget(key)
        self._connection.invalidate(keys.__contains__)
        return writes
