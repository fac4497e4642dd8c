"""Functions that are limited keep the parameters and the result that they had."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import assert_type

from zae_limiter import Lease, Limit, RateLimiter, SyncLease, SyncRateLimiter, limited

LIMITS = [Limit.per_minute("rpm", 60), Limit.per_day("tpm", 1_000)]
shared = SyncRateLimiter.open("memory://")
opened: RateLimiter | None = None


def by_key(key: str, prompt: str) -> str:
    """A strict checker does not know the parameters of a lambda here: a function says them."""
    return f"{key}/{len(prompt)}"


def itself(key: str) -> str:
    return key


def of_service(self: "Service") -> RateLimiter:
    return self.limiter


@shared.limit("gpt-4", {"rpm": 1, "tpm": 20}, entity=by_key, limits=LIMITS)
def answer(key: str, prompt: str) -> list[str]:
    SyncLease.current().adjust(tpm=10)
    return [key, prompt]


@shared.limit("gpt-4", {"tpm": 20}, entity="key-1", limits=LIMITS)
def words(text: str) -> Iterator[str]:
    for word in text.split():
        SyncLease.current().adjust(tpm=1)
        yield word


@limited(lambda: opened, "gpt-4", {"rpm": 1}, entity=itself, limits=LIMITS)
async def later(key: str, *, times: int = 1) -> bytes:
    await Lease.current().adjust(tpm=times)
    return key.encode() * times


class Service:
    def __init__(self, limiter: RateLimiter) -> None:
        self.limiter = limiter

    @limited(of_service, "gpt-4", {"rpm": 1}, entity="service", limits=LIMITS)
    async def work(self, number: int) -> float:
        return number / 2

    @limited(of_service, "gpt-4", {"rpm": 1}, entity="service", limits=LIMITS)
    async def chunks(self) -> AsyncIterator[int]:
        yield 1


async def main() -> None:
    global opened
    async with RateLimiter.open("memory://") as opened:
        assert_type(await later("key", times=2), bytes)
        service = Service(opened)
        assert_type(await service.work(3), float)
        assert [number async for number in service.chunks()] == [1]


if __name__ == "__main__":
    assert_type(answer("key-1", prompt="hello"), list[str])
    assert list(words("one two")) == ["one", "two"]
    assert_type(shared.available("key-1", "gpt-4", LIMITS), dict[str, int])
    asyncio.run(main())
    shared.close()
