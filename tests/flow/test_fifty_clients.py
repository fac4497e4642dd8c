"""Fifty clients in five processes want one bucket of a server."""

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.flow.crowd import LIMIT, RESOURCE
from tests.stores import url_of
from zae_limiter import RateLimiter
from zae_limiter.engine.law import Rate, gain
from zae_limiter.schema import bucket_key, limit_attributes, number

PROCESSES, TASKS, BUCKETS = 5, 10, 5
SECONDS = 0.7


@contextmanager
def crowds(url: str) -> Iterator[list[subprocess.Popen[str]]]:
    command = [sys.executable, "-m", "tests.flow.crowd", url, str(TASKS)]
    processes = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)
        for _ in range(PROCESSES)
    ]
    try:
        yield processes
    finally:
        for process in processes:
            process.stdin.close()  # type: ignore[union-attr]
            process.wait()
            process.stdout.close()  # type: ignore[union-attr]


def heard(processes: list[subprocess.Popen[str]]) -> list[str]:
    return [process.stdout.readline() for process in processes]  # type: ignore[union-attr]


@pytest.mark.parametrize("kind", ["dynamodb", "redis", "postgres"])
def test_fifty_clients_admit_what_one_would_have(kind: str, tmp_path: Path) -> None:
    """One bucket after another: capacity plus accrual, to the request."""
    url = url_of(kind, tmp_path)
    with crowds(url) as processes:
        assert heard(processes) == ["ready\n"] * PROCESSES
        for key in (f"key-{turn}" for turn in range(BUCKETS)):
            asyncio.run(empty(url, key))
            for process in processes:
                print(f"{key} {SECONDS}", file=process.stdin)
            admitted, asked_ms, refused_ms = zip(
                *(map(int, answer.split()) for answer in heard(processes)), strict=True
            )
            asyncio.run(check_books(url, key, sum(admitted), max(asked_ms), max(refused_ms)))


async def empty(url: str, key: str) -> None:
    """Make a bucket and take all it has, so that it does not overflow before the clients are at work."""
    async with (
        RateLimiter.open(url) as limiter,
        limiter.acquire(key, RESOURCE, {"rps": LIMIT.capacity}, [LIMIT]),
    ):
        pass


async def check_books(url: str, key: str, admitted: int, asked_ms: int, refused_ms: int) -> None:
    """What was admitted is what the store counted, and what one bucket allows, within one request."""
    async with RateLimiter.open(url) as limiter:
        repository = limiter.repository
        (image,) = await repository.writer.look([bucket_key(repository.namespace_id, key, RESOURCE)])
    assert image is not None
    admitted_milli = (admitted + LIMIT.capacity) * 1000  # it was emptied first
    assert number(image, limit_attributes("rps").tc) == admitted_milli
    rate, origin_ms = Rate.of(LIMIT), number(image, "rf")
    # Somebody was refused one token between these two instants, and nobody was admitted afterwards.
    assert LIMIT.capacity_milli + gain(rate, origin_ms, asked_ms) - admitted_milli < 1000
    assert LIMIT.capacity_milli + gain(rate, origin_ms, refused_ms) - admitted_milli >= 0
