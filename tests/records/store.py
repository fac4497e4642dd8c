"""A fresh store, a clock, and repositories on it that stand for processes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from tests.stores import OpenBackend
from zae_limiter import Limit, RateLimiter, Repository
from zae_limiter.models import UsageWindow
from zae_limiter.records.connection import Options
from zae_limiter.records.items import usage_counter, usage_row
from zae_limiter.repository_protocol import Backend, Item, Key, Query, Update
from zae_limiter.testing import ManualClock, RecordingBackend

RPM = Limit.per_minute("rpm", 100)
TPM = Limit.per_minute("tpm", 1000)


def unwrapped(backend: Backend) -> Backend:
    return backend


@dataclass
class Store:
    """A fresh store of some kind, and everybody who opened it."""

    name: str
    open_backend: OpenBackend
    clock: ManualClock
    opened: list[Repository] = field(default_factory=list)

    async def repository(
        self,
        namespace: str | None = "default",
        options: Options | None = None,
        wrap: Callable[[Backend], Backend] = unwrapped,
    ) -> Repository:
        """One more process that uses the store."""
        backend = wrap(self.open_backend())
        repository = await Repository.over(backend, namespace, options, self.clock.world)
        self.opened.append(repository)
        return repository

    async def recorded(self, options: Options | None = None) -> tuple[Repository, RecordingBackend]:
        """A process whose calls are known."""
        recording: list[RecordingBackend] = []

        def wrap(backend: Backend) -> Backend:
            recording.append(RecordingBackend(backend))
            return recording[0]

        repository = await self.repository(options=options, wrap=wrap)
        recording[0].forget()
        return repository, recording[0]

    async def close(self) -> None:
        for repository in self.opened:
            await repository.close()


async def take(limiter: RateLimiter, entity_id: str, resource: str, **amounts: int) -> None:
    """One acquire whose work is done at once."""
    async with limiter.acquire(entity_id, resource, amounts):
        pass


async def count_usage(
    repository: Repository,
    entity_id: str,
    resource: str,
    window: UsageWindow | str,
    at_ms: int,
    /,
    **counters: int,
) -> None:
    """Write usage as the aggregator will: one addition to one row."""
    key, attributes = usage_row(repository.namespace_id, entity_id, resource, UsageWindow.of(window), at_ms)
    added = {usage_counter(name): amount for name, amount in counters.items()}
    await repository.write_each([Update(key, {**added, "total_events": 1}, {**attributes, "ttl": 2**31})])


async def everything(repository: Repository) -> dict[Key, Item]:
    """All items that a namespace holds, found by its index."""
    query = Query(repository.namespace_id, index="GSI4", rows_max=1000)
    keys = [row.key async for row in repository._scope.rows(query)]
    items = await repository._backend.batch_get(keys) if keys else []
    return {key: item for key, item in zip(keys, items, strict=True) if item is not None}
