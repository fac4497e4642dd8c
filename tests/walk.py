"""``make walk``: every function of our own that a warm acquire enters, in order, on every store.

A function counts when it is entered, not when it goes on after it has waited.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from unittest import mock

import zae_limiter
from tests.engines import dynamodb_local, postgres, redis_server
from tests.stores import url_of
from zae_limiter import Limit, RateLimiter, SyncRateLimiter

STORES = {
    "memory": "memory",
    "SQLite": "sqlite",
    "DynamoDB": "dynamodb",
    "Redis": "redis",
    "PostgreSQL": "postgres",
}
"""Every store by its name, and its kind."""
PACKAGE = str(Path(zae_limiter.__file__).parent)
LIMITS = [Limit.per_minute("rpm", 100_000)]
AMOUNTS = {"rpm": 1}
WARM = 3
"""After so many acquires everything is known that an acquire asks for."""
WALKS = 20


class Walk:
    """The names of the functions that were entered since it began."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def note(self, frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event != "call" or not code.co_filename.startswith(PACKAGE):
            return
        if code.co_code[frame.f_lasti + 1]:  # the place where it goes on: 0 is its beginning
            return
        self.names.append(f"{code.co_filename.removeprefix(PACKAGE)[1:]}: {code.co_qualname}")


def shortest(walks: list[Walk]) -> list[str]:
    """The walk without what is only looked at now and then, such as the clock of the machine."""
    return min((walk.names for walk in walks), key=len)


@contextmanager
def walking(walk: Walk) -> Iterator[None]:
    sys.setprofile(walk.note)
    try:
        yield
    finally:
        sys.setprofile(None)


@contextmanager
def unhurried() -> Iterator[None]:
    """What is looked at again after some milliseconds is not, however slow this machine is."""
    with (
        mock.patch("zae_limiter.runtime.world.LOOK_MS", 10**9),
        mock.patch("zae_limiter.backends.dynamodb.transport.LITTLE_MS", 10**9),
    ):
        yield


def walk_async(url: str) -> list[str]:
    async def story() -> list[str]:
        walks = [Walk() for _ in range(WALKS)]
        async with RateLimiter.open(url) as limiter:
            await limiter.set_system_defaults(LIMITS)
            for _ in range(WARM):
                async with limiter.acquire("key-1", "gpt-4", AMOUNTS):
                    pass
            for walk in walks:
                with walking(walk):
                    async with limiter.acquire("key-1", "gpt-4", AMOUNTS):
                        pass
        return shortest(walks)

    with unhurried():
        return asyncio.run(story())


def walk_sync(url: str) -> list[str]:
    walks = [Walk() for _ in range(WALKS)]
    with unhurried(), SyncRateLimiter.open(url) as limiter:
        limiter.set_system_defaults(LIMITS)
        for _ in range(WARM):
            with limiter.acquire("key-1", "gpt-4", AMOUNTS):
                pass
        for walk in walks:
            with walking(walk), limiter.acquire("key-1", "gpt-4", AMOUNTS):
                pass
    return shortest(walks)


WAYS: dict[str, Callable[[str], list[str]]] = {"async": walk_async, "sync": walk_sync}


def main() -> None:
    dynamodb_local.isolate_from_aws()
    engine = dynamodb_local.start()
    try:
        with tempfile.TemporaryDirectory() as place:
            counts = []
            for store, kind in STORES.items():
                url = url_of(kind, Path(place))
                for way, walk in WAYS.items():
                    names = walk(url)
                    counts.append(f"{store}, {way}: {len(names)} calls")
                    print(f"{store}, {way}\n", *(f"  {name}" for name in names), "", sep="\n")
            print(*counts, sep="\n")
    finally:
        dynamodb_local.stop(engine)
        redis_server.SERVER.stop()
        postgres.SERVER.stop()


if __name__ == "__main__":
    main()
