"""How much memory a process keeps of entities that came once: ``python -m benchmarks.idle COUNT [ENDPOINT]``.

What is looked at are the caches, so the store under them forgets: after each thousand entities their
buckets are deleted from the memory store behind the limiter's back. What the process grows by is what the
limiter itself remembers. With an endpoint the store is DynamoDB, whose replies bring texts of their own: each
entity is asked twice there, for the write that makes a bucket brings nothing back.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from zae_limiter import Limit, SyncRateLimiter, SyncRepository
from zae_limiter.backends.memory import MemoryBackend
from zae_limiter.repository_protocol import Delete, Key, Outcome, Write
from zae_limiter.testing.stores import Wrapper

from .cases import LIMIT, OURS, PLENTY, RESOURCE
from .tables import address, make_table, table_name

SAMPLES = 20
KEPT_MAX = 1_000


class ForgetfulBackend(Wrapper):
    """A store that keeps few buckets."""

    buckets: list[Key]

    def __init__(self) -> None:
        super().__init__(MemoryBackend())
        self.buckets = []

    async def write_each(self, writes: Sequence[Write]) -> list[Outcome]:
        self.buckets += [write.key for write in writes if "/BUCKET#" in write.key.partition]
        outcomes = await super().write_each(writes)
        if len(self.buckets) >= KEPT_MAX:
            await super().write_each([Delete(key) for key in self.buckets])
            self.buckets.clear()
        return outcomes


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def opened(endpoint: str | None) -> SyncRepository:
    if endpoint is None:
        return SyncRepository.over(ForgetfulBackend())
    table = table_name(OURS, "idle")
    asyncio.run(make_table(OURS, endpoint, table))
    return SyncRepository.open(**address(OURS, endpoint, table))


def main(entities: int, endpoint: str | None = None) -> None:
    repository = opened(endpoint)
    repository.set_resource_defaults(RESOURCE, [Limit.per_hour(LIMIT, PLENTY)])
    limiter = SyncRateLimiter(repository)
    gc.collect()
    samples = [{"entities": 0, "rss_bytes": resident_bytes()}]
    every = max(entities // SAMPLES, 1)
    for number in range(1, entities + 1):
        for _ in range(1 if endpoint is None else 2):
            with limiter.acquire(f"entity-{number:07}", RESOURCE, {LIMIT: 1}):
                pass
        if number % every == 0:
            samples.append({"entities": number, "rss_bytes": resident_bytes()})
    print(json.dumps(samples))


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:])
