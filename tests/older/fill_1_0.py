"""What version 1.0 leaves in a store: one record of each kind that its users make, by its public calls.

Recorded once by ``python -m tests.older.fill_1_0`` and never again: whatever reads schema 1 reads it, so a
change that cannot needs another major version of the schema.
"""

from __future__ import annotations

import json
from pathlib import Path

from zae_limiter import Limit, SyncLease, SyncRateLimiter, SyncRepository
from zae_limiter.backends.memory import MemoryBackend
from zae_limiter.models import UsageWindow
from zae_limiter.operate.migrations import scan_of
from zae_limiter.records.items import usage_counter, usage_row
from zae_limiter.repository_protocol import Item, Key, Row, Update
from zae_limiter.runtime.colour import run_sync
from zae_limiter.testing import ManualClock

RECORDED = Path(__file__).with_name("recorded") / "1.0.jsonl"
AT_MS = 1_791_192_600_000
"""Monday, 2026-10-05T09:30:00Z."""
RPM, TPD = Limit.per_minute("rpm", 100), Limit.per_day("tpd", 10_000)
USD = Limit.per_month("usd", 5_000_000, tz="Europe/Berlin", unit="usd_micro")
MSGS, PARALLEL = Limit.session("msgs", 50, "5h"), Limit.concurrent("parallel", 3)
OFFICE = Limit.per_minute("rpm", 60).during("* 9-16 * * mon-fri", 600, tz="Europe/Berlin")
SEEN = Limit.per_day("seen", 5).softly()


def left() -> dict[Key, Item]:
    """All records, as they were."""
    rows = map(json.loads, RECORDED.read_text(encoding="utf-8").splitlines())
    return {Key(*row.pop("key")): row for row in rows}


def fill_all(limiter: SyncRateLimiter) -> SyncLease:
    """The lease that is returned holds a seat."""
    repository = limiter.repository
    repository.set_system_defaults([Limit.per_minute("rpm", 20)], "allow")
    repository.set_resource_defaults("gpt-4", [RPM, TPD])
    repository.set_resource_defaults("plans", [USD, MSGS, PARALLEL])
    repository.set_resource_defaults("office", [OFFICE, SEEN])
    repository.create_entity("org")
    repository.create_entity("team", parent_id="org", cascade=True)
    repository.create_entity("key-1", "One", "team", True, {"plan": "pro"}, principal="ann")
    repository.set_limits("key-1", [Limit.per_minute("rpm", 10)], "gpt-4")
    repository.disable(resource="embeddings", reason="maintenance")
    repository.bypass(entity_id="batch")
    with limiter.acquire("key-1", "gpt-4", {"rpm": 3}) as lease:
        lease.adjust(rpm=1)
    with limiter.acquire("lonely", "gpt-4", {"rpm": 1, "tpd": 9_000}) as lease:
        lease.adjust(tpd=2_000)
    with limiter.acquire("lonely", "office", {"rpm": 500, "seen": 7}):
        pass
    with limiter.acquire("lonely", "plans", {"usd": 1_370, "msgs": 2}):
        pass
    repository.top_up("lonely", "gpt-4", {"tpd": 500}, "once")
    key, attributes = usage_row(repository.namespace_id, "lonely", "gpt-4", UsageWindow.HOURLY, AT_MS)
    added = {usage_counter("tpd"): 11_000, "total_events": 1}
    repository.write_each([Update(key, added, attributes)])
    return limiter.acquire("lonely", "plans", {"parallel": 1}).open()


async def _rows(backend: MemoryBackend) -> list[Row]:
    return sorted([row async for row in scan_of(backend)()], key=lambda row: row.key)


def record() -> None:
    world = ManualClock(AT_MS).world
    backend = MemoryBackend(world)
    held = fill_all(SyncRateLimiter(SyncRepository.over(backend, world=world)))
    rows = [{"key": list(key), **item} for key, item in run_sync(_rows(backend))]
    lines = [json.dumps(row, sort_keys=True, ensure_ascii=False) for row in rows]
    RECORDED.write_text("\n".join(lines) + "\n", encoding="utf-8")
    held.commit()


if __name__ == "__main__":
    record()
