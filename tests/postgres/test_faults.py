"""Answers that are lost, cut off, late or never come: nothing is ever carried out twice, and all is told."""

import asyncio
import contextlib
from collections.abc import Coroutine
from typing import Any
from unittest import mock

import psycopg
import pytest

from tests.engines import postgres
from tests.patience import growing_ms, wait_until
from tests.postgres.proxy import REPLY_FAULTS, Damage, Fault, Proxy
from tests.postgres.schemas import lent_schema, owner
from tests.stores import drive
from zae_limiter.backends.postgres import PostgresBackend, open_backend
from zae_limiter.exceptions import RateLimiterUnavailable
from zae_limiter.repository_protocol import Absent, Delete, Key, Put, Query, Update
from zae_limiter.runtime.world import World

K, L = Key("p", "a"), Key("p", "b")
both_colours = pytest.mark.parametrize("sync", [False, True], ids=["async", "sync"])
SILENCE_MS = 700


def opened(proxy: Proxy, sync: bool, fault: Fault | None = None, **options: Any) -> PostgresBackend:
    """A store behind the proxy. What waits for silence to end has a short deadline, all else a long one."""
    options.setdefault("timeout_ms", SILENCE_MS if fault == "silence" else 60_000)
    url = postgres.url(lent_schema(), proxy.port, listen="off", **options)
    return open_backend(url, sync=sync, world=World())


def run(sync: bool, backend: PostgresBackend, scenario: Coroutine[Any, Any, None]) -> None:
    async def whole() -> None:
        try:
            await scenario
        finally:
            await backend.close()

    drive(sync, whole())


def stored(backend: PostgresBackend) -> dict[str, int]:
    """What the server has, seen without the code under test."""
    rows = owner().execute(f"SELECT sk, body ->> 'n' FROM {backend.address.schema}.items").fetchall()
    return {sk: int(n) for sk, n in rows}


@both_colours
@pytest.mark.parametrize("fault", REPLY_FAULTS)
def test_a_write_whose_reply_was_lost_is_ambiguous_and_never_sent_again(
    sync: bool, fault: Fault, proxy: Proxy
) -> None:
    """It was carried out once. So is every kind of write, and the next call has a new connection."""
    backend = opened(proxy, sync, fault)

    async def scenario() -> None:
        await backend.setup()
        for count, write in enumerate((Update(K, {"n": 1}), Put(L, {"n": 7}, (Absent(),)), Delete(L)), 1):
            proxy.fault("write", fault)
            (outcome,) = await backend.write_each([write])
            assert outcome.failure is not None
            assert (outcome.failure.ambiguous, outcome.failure.misconfigured) == (True, "")
            assert proxy.calls["write"] == count
        assert stored(backend) == {"a": 1}
        proxy.fault("write", fault)
        with pytest.raises(RateLimiterUnavailable) as failed:
            await backend.transact_write([Update(K, {"n": 1}), Update(L, {"n": 5})])
        assert failed.value.ambiguous
        assert stored(backend) == {"a": 2, "b": 5}
        (outcome,) = await backend.write_each([Update(K, {"n": 1})])
        assert outcome.applied or outcome.failure is not None
        assert proxy.calls["write"] == 5

    run(sync, backend, scenario())


@both_colours
@pytest.mark.parametrize("fault", ["lose request", *REPLY_FAULTS[:4]])
def test_a_read_is_asked_again(sync: bool, fault: Fault, proxy: Proxy) -> None:
    """Whatever became of the first answer, reads and questions change nothing."""
    backend = opened(proxy, sync)

    async def scenario() -> None:
        await backend.write_each([Put(K, {"n": 1})])
        for function in ("read", "query", "look", "tidy"):
            proxy.fault(function, fault)
        assert await backend.batch_get([K]) == [{"n": 1}]
        assert len((await backend.query(Query("p"))).rows) == 1
        await backend.setup()
        assert [proxy.calls[function] for function in ("read", "query", "look", "tidy")] == [2] * 4

    run(sync, backend, scenario())


@both_colours
@pytest.mark.parametrize("of_value", [True, False], ids=["value", "frame"])
def test_a_damaged_answer_is_read_or_is_none(sync: bool, of_value: bool, proxy: Proxy) -> None:
    """Whatever bytes of it are others, what comes out is ours, and what was written was written once."""
    backend = opened(proxy, sync)
    told = list[bool]()

    async def scenario() -> None:
        await backend.setup()
        for count in range(1, 200 if of_value else 10):
            proxy.fault("write", Damage(count, of_value))
            # A frame may promise more than comes, and the time may be over before anything was sent.
            for timeout_ms in growing_ms(60_000 if of_value else SILENCE_MS):
                backend.calls.timeout_ms = timeout_ms
                (outcome,) = await backend.write_each([Update(K, {"n": 1})])
                if outcome.failure is None or outcome.failure.ambiguous:
                    break
                assert "was not sent" in str(outcome.failure)
            told.append(outcome.failure is None)
            wait_until(lambda count=count: stored(backend).get("a", 0) >= count)  # type: ignore[misc]
            assert stored(backend) == {"a": count}
            proxy.fault("read", Damage(count, of_value))
            with contextlib.suppress(RateLimiterUnavailable):
                await backend.batch_get([K])
        assert False in told, "nothing was damaged so that anybody saw it"

    run(sync, backend, scenario())


@both_colours
def test_idle_connections_that_were_cut_cost_nothing(sync: bool, proxy: Proxy) -> None:
    """They are found dead before anything is sent."""
    backend = opened(proxy, sync)

    async def scenario() -> None:
        await backend.setup()
        for expected in range(1, 6):
            proxy.cut()
            (outcome,) = await backend.write_each([Update(K, {"n": 1})])
            assert outcome.applied
            assert stored(backend) == {"a": expected}

    run(sync, backend, scenario())


@both_colours
def test_a_server_that_is_away_was_not_asked(sync: bool) -> None:
    """Nothing can have happened, and that is said."""
    backend = open_backend(
        f"postgresql://somebody:hush@{postgres.HOST}:1/limits?timeout_ms=300&listen=off",
        sync=sync,
        world=World(),
    )

    async def scenario() -> None:
        (outcome,) = await backend.write_each([Update(K, {"n": 1})])
        assert outcome.failure is not None
        assert (outcome.failure.ambiguous, outcome.failure.misconfigured) == (False, "")
        assert "was not sent" in str(outcome.failure)
        assert "hush" not in str(outcome.failure)
        assert "somebody" not in str(outcome.failure)

    run(sync, backend, scenario())


async def test_many_calls_that_travel_together_share_their_fate(proxy: Proxy) -> None:
    """One lost reply is ambiguous for all of them, and each was carried out once."""
    backend = opened(proxy, False)
    await backend.setup()
    await backend.batch_get([K])
    proxy.fault("write", "lose reply")
    keys = [Key("p", f"{n}") for n in range(30)]
    found = await asyncio.gather(*(backend.write_each([Update(key, {"n": 1})]) for key in keys))
    lost = [key for key, (outcome,) in zip(keys, found, strict=True) if outcome.failure is not None]
    assert lost
    assert all(o.failure.ambiguous for (o,) in found if o.failure is not None)
    assert proxy.calls["write"] <= 3
    assert stored(backend) == {key.sort: 1 for key in keys}
    await backend.close()


async def test_who_is_cancelled_leaves_no_broken_connection(proxy: Proxy) -> None:
    """The others of its convoy are answered, and what it asked for has happened once or not at all."""
    backend = opened(proxy, False)
    await backend.setup()
    tasks = [asyncio.create_task(backend.write_each([Update(K, {"n": 1})])) for _ in range(20)]
    await asyncio.sleep(0.001)
    for task in tasks[::2]:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert [task.result()[0].applied for task in tasks[1::2]] == [True] * 10
    assert 10 <= stored(backend)["a"] <= 20
    (outcome,) = await backend.write_each([Update(K, {"n": 0})])
    assert outcome.item == {"n": stored(backend)["a"]}
    await backend.close()


@pytest.mark.parametrize("others", [0, 1, 3], ids=lambda others: f"{others} others")
async def test_what_was_told_not_to_have_been_sent_is_not_sent_later(others: int, proxy: Proxy) -> None:
    """Somebody's time is over while all of a convoy wait for a connection: they set out without it."""
    backend = opened(proxy, False)
    await backend.setup()
    pool, gate = backend.calls._pools.get(), asyncio.Event()
    take = pool.take

    async def gated(until_ms: float) -> Any:
        await gate.wait()
        return await take(until_ms)

    with mock.patch.object(pool, "take", gated):
        backend.calls.timeout_ms = 50
        early = asyncio.ensure_future(backend.write_each([Update(K, {"n": 1}), Update(L, {"n": 1})]))
        await asyncio.sleep(0)
        backend.calls.timeout_ms = 60_000
        keys = [Key("p", f"{n}") for n in range(others)]
        late = [asyncio.ensure_future(backend.write_each([Update(key, {"n": 1})])) for key in keys]
        for outcome in await early:
            assert outcome.failure is not None
            assert not outcome.failure.ambiguous
        gate.set()
        for (outcome,) in await asyncio.gather(*late):
            assert outcome.applied
    (outcome,) = await backend.write_each([Update(Key("p", "last"), {"n": 1})])
    assert outcome.applied
    assert stored(backend) == {**{key.sort: 1 for key in keys}, "last": 1}
    assert proxy.calls["write"] == 1 + (others > 0)
    await backend.close()


@both_colours
def test_what_one_group_is_refused_for_does_not_hit_the_others(sync: bool, proxy: Proxy) -> None:
    """An index has no room for such a key: it is impossible, and told so, alone."""
    backend = opened(proxy, sync)
    endless = "".join(chr(0x4E00 + (n * 7919) % 20_000) for n in range(3000))

    async def scenario() -> None:
        await backend.setup()
        writes = [Update(K, {"n": 1}), Put(Key(endless, "x"), {"n": 1}), Update(L, {"n": 1})]
        outcomes = await backend.write_each(writes)
        assert [outcome.applied for outcome in outcomes] == [True, False, True]
        assert outcomes[1].failure is not None
        assert outcomes[1].failure.impossible
        assert stored(backend) == {"a": 1, "b": 1}

    run(sync, backend, scenario())


async def test_what_one_task_is_refused_for_does_not_hit_those_who_travel_along(proxy: Proxy) -> None:
    """They go again, each alone."""
    backend = opened(proxy, False)
    await backend.setup()
    endless = "".join(chr(0x4E00 + (n * 7919) % 20_000) for n in range(3000))
    writes = [Update(K, {"n": 1}), Put(Key(endless, "x"), {"n": 1}), Update(L, {"n": 1})]
    found = await asyncio.gather(*(backend.write_each([write]) for write in writes))
    assert [outcome.applied for (outcome,) in found] == [True, False, True]
    assert found[1][0].failure is not None
    assert found[1][0].failure.impossible
    assert (proxy.calls["write"], stored(backend)) == (4, {"a": 1, "b": 1})
    await backend.close()


@both_colours
def test_a_connection_that_the_server_ends_while_it_works_is_no_answer(sync: bool, proxy: Proxy) -> None:
    """It may have committed before: an administrator who ends it does not say."""
    backend = opened(proxy, sync)

    async def scenario() -> None:
        await backend.setup()
        lock = f"SELECT pg_advisory_lock({backend.address.schema}.lock_of('p', 'a'))"
        with psycopg.connect(owner().info.dsn, autocommit=True) as other:
            other.execute(lock)
            ender = owner_of_waiting(backend.address.schema)
            (outcome,) = await backend.write_each([Update(K, {"n": 1})])
            ender.join()
        assert outcome.failure is not None
        assert outcome.failure.ambiguous
        assert stored(backend) == {}

    run(sync, backend, scenario())


def owner_of_waiting(schema: str) -> Any:
    """A thread that ends whoever waits for a lock of a schema."""
    import threading

    def end() -> None:
        with psycopg.connect(owner().info.dsn, autocommit=True) as connection:
            waiting = (
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                f"WHERE wait_event = 'advisory' AND query LIKE '%{schema}.write%'"
            )
            wait_until(lambda: bool(connection.execute(waiting).fetchall()))

    thread = threading.Thread(target=end)
    thread.start()
    return thread
