"""A follower that is killed again and again counts the same as one that is not."""

import asyncio
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.aggregator.known_usage import (
    START_MS,
    Client,
    booked,
    days_of_work,
    gaps_of,
    hours_of_work,
    usage_rows,
)
from tests.dynamodb.tables import driver, make_table
from tests.engines import dynamodb_local
from tests.stores import url_of
from zae_limiter import Repository
from zae_limiter.backends import open_backend as any_backend
from zae_limiter.backends.dynamodb import open_backend
from zae_limiter.records.items import usage_snapshot_of
from zae_limiter.runtime.colour import run_sync
from zae_limiter.runtime.world import World
from zae_limiter.testing import ManualClock
from zae_limiter_aggregator.runner import is_behind

ENTITIES = [f"user-{n}" for n in range(20)]
KILLS = 20
ROOT = Path(__file__).resolve().parents[2]


def killed_again_and_again(url: str) -> None:
    """Let the program follow a store to its end, killed twenty times on the way."""
    command = [sys.executable, "-m", "tests.aggregator.follower", url, str(KILLS), "1"]
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    assert int(done.stdout) >= KILLS * 3 // 4, f"only {done.stdout} were killed before they were done"


def test_killed_at_random_points_and_restarted() -> None:
    """Twenty times by SIGKILL, with writes half done and notes not taken: the totals are the client's."""
    table = make_table(with_stream=True)
    url = dynamodb_local.url(table, timeout_ms=20_000)
    client, stream, namespace_id = asyncio.run(days_of_work(table, ENTITIES, [0, 1, 2, 3], 4))
    killed_again_and_again(url)

    backend = open_backend(url, sync=True)
    rows = usage_rows(backend, namespace_id, ENTITIES)
    run_sync(backend.close())
    # The engine stamps records itself here, so hours are not the client's; totals are.
    for window in ("hourly", "daily"):
        used: Counter[tuple[str, str]] = Counter()
        for row in rows.values():
            if row["window"] == window:
                snapshot = usage_snapshot_of(row)
                used.update({(snapshot.entity_id, name): n for name, n in snapshot.counters.items()})
        booked: Counter[tuple[str, str]] = Counter()
        for (entity_id, name, key), amount in client.books.items():
            if key == "2031-01":
                booked[entity_id, name] += amount
        assert +used == +booked
    assert [key for key, row in rows.items() if gaps_of(row)] == []
    notes = driver().query(
        TableName=table,
        KeyConditionExpression="PK = :pk AND begins_with(SK, :sk)",
        ExpressionAttributeValues={":pk": {"S": "_/SYSTEM#"}, ":sk": {"S": "#CHECKPOINT#"}},
    )
    assert notes["Count"] == len(stream._iterators), "each shard of the stream has a note"


@pytest.mark.parametrize("kind", ["sqlite", "redis", "postgres"])
def test_killed_where_a_store_keeps_a_log(kind: str, tmp_path: Path) -> None:
    """The same, to the hour: what was read and not counted is read again, what was counted counts once."""
    url, clock = url_of(kind, tmp_path), ManualClock(START_MS)

    async def work() -> tuple[Client, str]:
        backend = any_backend(url, sync=False, world=World(clock.world.now_ms))
        repository = await Repository.over(backend, world=clock.world)
        return await hours_of_work(repository, clock, ENTITIES, [0, 1, 2, 3], 4), repository.namespace_id

    client, namespace_id = asyncio.run(work())
    killed_again_and_again(url)
    look = any_backend(url, sync=True, world=World())
    rows = usage_rows(look, namespace_id, ENTITIES)
    assert not is_behind(look)
    run_sync(look.close())
    assert booked(rows) == client.books
