"""Namespaces with every kind of record, and stores as dumps that can be compared."""

from collections.abc import Mapping
from typing import Any

from zae_limiter import Limit, RateLimiter, Repository
from zae_limiter.llm import LearnedEstimates
from zae_limiter.records.connection import Options
from zae_limiter.records.providers import declare
from zae_limiter.records.reports import ProcessReport, write_report
from zae_limiter.repository_protocol import Backend, Item, Key, Query
from zae_limiter.runtime.world import World
from zae_limiter.schema import GSI4, REGISTRY, limit_attributes, pk_system
from zae_limiter_aggregator import AggregatorSettings
from zae_limiter_aggregator.runner import LogSource

RESOURCE = "gpt-4"
LIMITS = [Limit.per_minute("rpm", 100), Limit.per_minute("tpm", 10_000)]
KINDS = [
    Limit.per_month("runs", 50, tz="Europe/Berlin"),
    Limit.session("msgs", 20, "5h"),
    Limit.concurrent("parallel", 5, hold="5m"),
    Limit.per_minute("rps", 60).during("* 9-16 * * *", 600, tz="UTC"),
]
OWN = frozenset({"moved", "born", *limit_attributes("wcu")})
"""What a store adds to a bucket that was carried to it."""


async def opened(
    backend: Backend, world: World, namespace: str = "default", options: Options | None = None
) -> Repository:
    return await Repository.over(backend, namespace, options, world)


async def furnish(repository: Repository, entities: int = 6) -> None:
    """Let a namespace have some of everything."""
    limiter = RateLimiter(repository)
    await repository.set_system_defaults(LIMITS, on_unavailable="allow")
    await repository.set_resource_defaults(RESOURCE, LIMITS)
    await repository.set_resource_defaults("kinds", KINDS)
    await repository.create_entity("team", name="Team Ω", metadata={"tier": "gold", "seats": 3})
    await repository.set_limits("team", [Limit.per_minute("rpm", 10**6), Limit.per_minute("tpm", 10**9)])
    for number in range(entities):
        await use(limiter, f"key-{number}", number)
    await repository.set_limits("key-0", [Limit.per_minute("rpm", 7)], RESOURCE)
    await repository.top_up("key-1", RESOURCE, {"rpm": 5}, key="once")
    await repository.disable(entity_id="key-2", reason="unpaid")
    await repository.create_entity("gone")
    async with limiter.acquire("gone", RESOURCE, {"rpm": 1}):
        pass
    await repository.delete_entity("gone")
    async with limiter.acquire("key-3", "kinds", {"runs": 3, "msgs": 2, "parallel": 1, "rps": 4}):
        pass
    await declare(repository._scope, "openai", "api", "rpm:60")
    now_ms = repository._scope.world.now_ms()
    told = ProcessReport("host", "id", now_ms, now_ms, 1, 0, 0, 0)
    await write_report(repository._scope, 3, told, is_new=True)
    async with LearnedEstimates(repository) as estimates:
        for used in (200, 300, 900):
            estimates.observe("gpt-4o", 4_096, used)
        await estimates.refresh()


async def use(limiter: RateLimiter, entity_id: str, number: int) -> None:
    """An entity with a parent, and a bucket that is not full; some of them owe."""
    await limiter.repository.create_entity(entity_id, parent_id="team", cascade=number % 2 == 0)
    async with limiter.acquire(entity_id, RESOURCE, {"rpm": 1 + number % 5, "tpm": 500}) as lease:
        await lease.adjust(tpm=number % 3 * 7_000)


async def count_usage(backend: Backend, world: World) -> None:
    """Have usage counted by whoever follows an embedded store."""
    log = backend.change_log()  # type: ignore[attr-defined]
    await LogSource(backend, log, world, AggregatorSettings()).step()


async def dump(backend: Backend) -> dict[Key, Item]:
    """All records of all namespaces, the registry included, through the waist."""
    found: dict[Key, Item] = {}
    async for row in rows(backend, Query(pk_system(REGISTRY), rows_max=100)):
        found[row.key] = row.item
    spaces = [str(item["namespace_id"]) for key, item in found.items() if key.sort.startswith("#NSID#")]
    for namespace_id in spaces:
        keys = [row.key async for row in rows(backend, Query(namespace_id, index=GSI4, rows_max=100))]
        items = await backend.batch_get(keys)
        found |= {key: item for key, item in zip(keys, items, strict=True) if item is not None}
    return found


async def rows(backend: Backend, query: Query) -> Any:
    while True:
        page = await backend.query(query)
        for row in page.rows:
            yield row
        if page.after is None:
            return
        query = query._replace(after=page.after, first=page.after.sort)


STORES_OWN = ("#CHANGES", "#CHECKPOINT#", "#MIGRATION")


def comparable(dumped: Mapping[Key, Item]) -> dict[Key, Item]:
    """A dump without what belongs to one store alone: counts of its writes, and places in its log."""

    def is_own(name: str) -> bool:
        return name in OWN or name == "_seen" or (name.startswith("b_") and name.endswith("_mx"))

    return {
        key: {name: value for name, value in item.items() if not is_own(name)}
        for key, item in dumped.items()
        if not key.sort.startswith(STORES_OWN)
    }
