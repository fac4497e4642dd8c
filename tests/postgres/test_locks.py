"""Batches that want the same items at the same time: nobody waits in a circle, and no write is lost."""

import asyncio
import random

from tests.engines import postgres
from tests.postgres.schemas import lent_schema, owner
from zae_limiter.backends.postgres import PostgresBackend, open_backend
from zae_limiter.repository_protocol import Absent, Check, Delete, Equal, Key, Put, Update, Write
from zae_limiter.runtime.world import World

KEYS = [Key(f"p{n % 3}", f"s{n}") for n in range(12)]


def clients(count: int) -> list[PostgresBackend]:
    url = postgres.url(lent_schema(), timeout_ms=60_000, listen="off")
    return [open_backend(url, sync=False, world=World()) for _ in range(count)]


def deadlocks() -> int:
    owner().execute("SELECT pg_stat_clear_snapshot()")
    row = (
        owner()
        .execute("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()")
        .fetchone()
    )
    assert row is not None
    return int(row[0])


async def test_batches_in_any_order_never_lock_each_other_up() -> None:
    """Transactions and batches of six clients over twelve items, in random orders, some made and deleted."""
    backends, rng, before = clients(6), random.Random(1), deadlocks()

    def update(key: Key) -> Write:
        return Update(key, {"n": 1})

    async def client(backend: PostgresBackend) -> int:
        counted = 0
        for step in range(25):
            chosen = rng.sample(KEYS, 6)
            if step % 5 == 4:
                await backend.transact_write([Put(Key("q", key.sort), {"n": 0}) for key in chosen[:3]])
                await backend.write_each([Delete(Key("q", key.sort)) for key in chosen[::-1]])
            elif step % 2:
                outcomes = await backend.transact_write([update(key) for key in chosen])
                counted += sum(outcome.applied for outcome in outcomes)
            else:
                outcomes = await backend.write_each([update(key) for key in chosen])
                counted += sum(outcome.applied for outcome in outcomes)
        return counted

    counted = sum(await asyncio.gather(*(client(backend) for backend in backends)))
    items = await backends[0].batch_get(KEYS)
    assert sum(item["n"] for item in items if item) == counted == 6 * 20 * 6  # type: ignore[misc]
    assert deadlocks() == before
    for backend in backends:
        await backend.close()


async def test_who_checks_that_something_is_not_there_is_safe_from_who_makes_it() -> None:
    """Of two transactions that each make what the other says is absent, one is refused, every time."""
    one, other = clients(2)
    for n in range(30):
        a, b = Key("p", f"{n}a"), Key("p", f"{n}b")
        found = await asyncio.gather(
            one.transact_write([Check(a, (Absent(),)), Put(b, {"n": 1})]),
            other.transact_write([Check(b, (Absent(),)), Put(a, {"n": 1})]),
        )
        assert sorted(outcomes[0].applied for outcomes in found) == [False, True]
    await one.close()
    await other.close()


async def test_of_many_who_take_the_last_one_gets_it() -> None:
    """Forty tasks over four clients want one token."""
    backends = clients(4)
    await backends[0].write_each([Put(KEYS[0], {"n": 1})])
    take = Update(KEYS[0], {"n": -1}, when=(Equal("n", 1),))
    found = await asyncio.gather(*(backends[n % 4].write_each([take]) for n in range(40)))
    assert sum(outcome.applied for (outcome,) in found) == 1
    for backend in backends:
        await backend.close()
