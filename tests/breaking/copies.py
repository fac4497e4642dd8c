"""A namespace goes through all stores and comes back the same: ``python -m tests.breaking.copies``.

It is filled on SQLite, copied by the command line from one store to the next and in the end to another file.
Twice the command is killed in the middle of its first pass, by SIGKILL, and run again. Every store is read as
a whole and compared with the first one. It prints how long each way took, and fails if anything differs.
"""

import argparse
import asyncio
import hashlib
import json
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from tests.copying.furnished import comparable, furnish, opened, rows, use
from tests.engines import dynamodb_local
from tests.stores import STORES, url_of
from zae_limiter import RateLimiter
from zae_limiter.backends import open_backend, store_world
from zae_limiter.backends.memory import MemoryBackend
from zae_limiter.records.connection import Options
from zae_limiter.repository_protocol import PAGE_ROWS_MAX, Backend, Item, Key, Put, Query
from zae_limiter.runtime.world import World
from zae_limiter.schema import GSI4, REGISTRY, nsid_key, pk_system

ROUND = ("sqlite", "postgres", "dynamodb", "redis", "sqlite")
TIMEOUT_MS = 60_000
KILLS = 2
SEEDS = 20


class Digest(NamedTuple):
    """What a store holds, in few bytes: how many items, and a number that no other items have."""

    items: int
    sum: int


class Way(NamedTuple):
    """How one copy went."""

    source: str
    target: str
    seconds: float
    kills: int


async def filled(url: str, entities: int) -> None:
    """Some of every record, and many entities with a bucket, an event and a parent each.

    Some are made by a limiter in memory, and all others like these; each on its own would take an hour.
    Buckets are kept for ever: others would be over before the round is, and stay behind.
    """
    world, memory = World(), MemoryBackend()
    repository = await opened(memory, world, options=Options(bucket_ttl_multiplier=0))
    await furnish(repository)
    limiter = RateLimiter(repository)
    for number in range(SEEDS):
        await use(limiter, seed(number), number)
    backend = open_backend(url, sync=True, world=world, timeout_ms=TIMEOUT_MS)
    await backend.setup()
    made = [Put(key, item) for key, item in memory.snapshot().items()]
    texts: list[list[str]] = [[] for _ in range(SEEDS)]
    for key, item, _ in made:
        for number in range(SEEDS):
            if seed(number) in key.partition:
                texts[number].append(json.dumps([key, item]))
    for number in range(entities):
        for text in texts[number % SEEDS]:
            key, item = json.loads(text.replace(seed(number % SEEDS), f"entity-{number}"))
            made.append(Put(Key(*key), item))
        if len(made) > 500:
            await put(backend, made)
    await put(backend, made)
    await backend.close()


def seed(number: int) -> str:
    return f"seed-{number:02}-"


async def put(backend: Backend, made: list[Put]) -> None:
    """Write items, and take them off the list."""
    outcomes = await backend.write_each(made)
    assert all(outcome.applied for outcome in outcomes)
    made.clear()


async def digest_of(url: str) -> Digest:
    """All records of a store, read page by page."""
    world = store_world(url, World())
    backend = open_backend(url, sync=True, world=world, timeout_ms=TIMEOUT_MS)
    count = total = 0
    async for page in pages(backend):
        for key, item in comparable(page).items():
            text = json.dumps([*key, item], sort_keys=True)
            total = (total + int.from_bytes(hashlib.sha256(text.encode()).digest())) % 2**256
            count += 1
    await backend.close()
    return Digest(count, total)


async def pages(backend: Backend) -> AsyncIterator[dict[Key, Item]]:
    registry = {row.key: row.item async for row in rows(backend, Query(pk_system(REGISTRY)))}
    yield registry
    for key, item in registry.items():
        if key != nsid_key(str(item.get("namespace_id"))):
            continue
        found = [row.key async for row in rows(backend, every(str(item["namespace_id"])))]
        for at in range(0, len(found), 500):
            items = await backend.batch_get(found[at : at + 500])
            yield {
                key: item for key, item in zip(found[at : at + 500], items, strict=True) if item is not None
            }


def every(namespace_id: str) -> Query:
    return Query(namespace_id, index=GSI4, rows_max=PAGE_ROWS_MAX)


def copied(source: str, target: str, *, kill: bool) -> int:
    """Copy by the command line; how often it was killed on the way."""
    words = [sys.executable, "-m", "zae_limiter.cli", "copy", source, target]
    kills = 0
    while True:
        process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert process.stderr is not None
        said = []
        for line in process.stderr:
            said.append(line)
            if kill and not kills and line.startswith("copying") and " of " in line:
                process.send_signal(signal.SIGKILL)
                kills += 1
        process.communicate()
        if process.returncode == -signal.SIGKILL:
            continue
        assert process.returncode == 0, "".join(said)
        return kills


def went_round(entities: int, folder: Path) -> list[Way]:
    """Once through all stores there are."""
    kinds = [kind for kind in ROUND if kind in STORES]
    urls = []
    for number, kind in enumerate(kinds):
        place = folder / str(number)
        place.mkdir()
        urls.append(url_of(kind, place))
    asyncio.run(filled(urls[0], entities))
    expected, ways, kills = asyncio.run(digest_of(urls[0])), [], 0
    assert expected.items > 3 * entities
    for (source, target), (kind, to) in zip(pairwise(urls), pairwise(kinds), strict=True):
        begun = time.monotonic()
        killed = copied(source, target, kill=kills < KILLS)
        kills += killed
        ways.append(Way(kind, to, time.monotonic() - begun, killed))
        found = asyncio.run(digest_of(target))
        assert found == expected, f"{to} is not what {kind} was: {found.items} items, {expected.items} before"
    assert kills == KILLS, f"it was killed {kills} times"
    return ways


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--entities", type=int, default=100_000)
    entities: int = parser.parse_args().entities
    dynamodb_local.isolate_from_aws()
    with tempfile.TemporaryDirectory() as folder:
        ways = went_round(entities, Path(folder))
    for way in ways:
        rate = f"{entities / way.seconds:,.0f} entities/s"
        print(f"{way.source} → {way.target}: {way.seconds:.1f} s, {rate}, killed {way.kills} times")
    print(f"{entities:,} entities came back as they were")


if __name__ == "__main__":
    main()
