"""A bucket outlives its debts: the write that makes sure of it is repeated where it was refused, or told."""

import logging
from collections.abc import Sequence
from typing import Any

import pytest

from zae_limiter import Limit, SyncRateLimiter, SyncRepository
from zae_limiter.backends.memory import MemoryBackend
from zae_limiter.exceptions import RateLimiterUnavailable
from zae_limiter.records.connection import Connection, Options
from zae_limiter.repository import Repository
from zae_limiter.repository_protocol import Item, Outcome, Update, Write
from zae_limiter.runtime.colour import run_sync
from zae_limiter.schema import bucket_key, number
from zae_limiter.testing import ManualClock
from zae_limiter.testing.stores import Wrapper

KEY = bucket_key("ns", "user-1", "gpt-4")


class Troubled(Wrapper):
    """A store in which somebody else owes just as much before each debit, and in which prolonging is hard."""

    def __init__(self, inner: MemoryBackend, answers: list[str]) -> None:
        super().__init__(inner)
        self.answers, self.asked = answers, 0
        self.armed = False

    async def write_each(self, writes: Sequence[Write]) -> list[Outcome]:
        (write,) = writes
        if not self.armed or write.key != KEY or not isinstance(write, Update):
            return await super().write_each(writes)
        if set(write.set) == {"ttl"} and not write.add:
            self.asked += 1
            answer = self.answers.pop(0) if self.answers else ""
            if answer == "away":
                return [Outcome(False, None, failure=RateLimiterUnavailable("away"))]
            if answer == "changed":  # somebody moved it, though not far enough
                items = self.inner._shelf.items  # type: ignore[attr-defined]
                items[KEY] = {**items[KEY], "ttl": number(items[KEY], "ttl") + 1}
        elif "b_tpm_tk" in write.add:
            theirs = Update(KEY, add={"b_tpm_tk": -90_000_000, "b_tpm_tc": 90_000_000})
            await self.inner.write_each([theirs])
        return await super().write_each(writes)


def indebted(answers: list[str]) -> tuple[Troubled, Item, int]:
    """A bucket that two leave in debt at the same time, each within the life that it saw."""
    clock = ManualClock()
    store = Troubled(MemoryBackend(clock.world), answers)
    connection = Connection(store, clock.world, Options())
    limiter = SyncRateLimiter(SyncRepository(Repository(connection, "ns", "ns")))
    limiter.repository.set_resource_defaults("gpt-4", [Limit.per_minute("tpm", 10_000)])
    with limiter.acquire("user-1", "gpt-4", {"tpm": 1}) as lease:
        store.armed = True
        lease.adjust(tpm=20_000)
    (image,) = run_sync(store.inner.batch_get([KEY]))
    assert image is not None
    full_in_ms = (10_000_000 - number(image, "b_tpm_tk")) * 60_000 // 10_000_000
    return store, image, clock.now_ms + full_in_ms


@pytest.mark.parametrize("answers", [[], ["changed"], ["changed"] * 5])
def test_a_bucket_is_prolonged_however_often_it_is_refused(answers: list[str]) -> None:
    """A refusal brings the image that the next attempt goes by."""
    store, image, full_ms = indebted(list(answers))
    assert store.asked == len(answers) + 1
    assert number(image, "ttl") * 1000 >= full_ms


@pytest.mark.parametrize("answers", [["away"], ["changed"] * 99, ["changed", "away"]])
def test_what_cannot_be_made_sure_of_is_told(answers: list[str], caplog: pytest.LogCaptureFixture) -> None:
    """With the bucket and the reason; the debit itself stands."""
    with caplog.at_level(logging.WARNING, "zae_limiter"):
        store, image, _ = indebted(list(answers))
    told: list[Any] = [one.getMessage() for one in caplog.records]
    assert len(told) == 1
    assert told[0].startswith(f"{KEY.partition} may disappear before its debts are paid: ")
    assert ("away" in told[0]) == ("away" in answers)
    assert store.asked <= 8
    assert number(image, "b_tpm_tc") == 90_000_000 + 20_001_000
