"""A process that has just started: how long until a library is imported, and until the first acquire.

Run once for each sample, because nothing is cold twice: ``python -m benchmarks.cold import NAME`` or
``python -m benchmarks.cold open CONTESTANT ENDPOINT TABLE``.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from importlib import import_module
from typing import Any

from .cases import LIMIT, RESOURCE


def timed_import(name: str) -> dict[str, float]:
    begun, cpu = time.perf_counter(), time.process_time()
    import_module(name)
    return {
        "import_ms": (time.perf_counter() - begun) * 1000,
        "import_cpu_ms": (time.process_time() - cpu) * 1000,
    }


async def timed_open(contestant: str, endpoint: str, table: str) -> dict[str, float]:
    """From opening a table that is there to the first lease."""
    from .tables import open_async

    begun, cpu = time.perf_counter(), time.process_time()
    limiter, _ = await open_async(contestant, endpoint, table)
    async with limiter.acquire("key-0000", RESOURCE, {LIMIT: 1}):
        taken = {
            "open_ms": (time.perf_counter() - begun) * 1000,
            "open_cpu_ms": (time.process_time() - cpu) * 1000,
        }
    await limiter.close()
    return taken


def main(arguments: list[str]) -> None:
    result: dict[str, Any]
    if arguments[0] == "import":
        result = timed_import(arguments[1])
    else:
        result = timed_import("zae_limiter")
        result |= asyncio.run(timed_open(*arguments[1:]))
    print(json.dumps(result))


if __name__ == "__main__":
    main(sys.argv[1:])
