"""Answers that are lost while a store is made, renewed, dropped, or its change log is read."""

from typing import Any

import pytest

from tests.engines import postgres
from tests.postgres.older import make_older
from tests.postgres.proxy import REPLY_FAULTS, Fault, Proxy
from tests.postgres.schemas import lent_schema, owner
from tests.stores import drive
from zae_limiter.backends.postgres import PostgresBackend, open_backend
from zae_limiter.backends.postgres.layout import LAYOUT_VERSION
from zae_limiter.backends.postgres.owner import layout_version
from zae_limiter.exceptions import RateLimiterUnavailable
from zae_limiter.repository_protocol import Key, Update
from zae_limiter.runtime.colour import run_sync
from zae_limiter.runtime.world import World

K = Key("p", "a")
both_colours = pytest.mark.parametrize("sync", [False, True], ids=["async", "sync"])
FAULTS: tuple[Fault, ...] = ("lose request", *REPLY_FAULTS[:4])
"""All but silence: nobody knows how long making an index takes, so whoever makes it waits."""


def opened(proxy: Proxy, schema: str, *, sync: bool) -> PostgresBackend:
    url = postgres.url(schema, proxy.port, listen="off", timeout_ms=60_000)
    return open_backend(url, sync=sync, world=World())


def layout(schema: str) -> int | None:
    """What the server has, seen past the proxy."""
    backend = open_backend(postgres.url(schema), sync=True, world=World())
    try:
        return layout_version(backend.address)
    finally:
        run_sync(backend.close())


@both_colours
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("step", ["BEGIN", "--", "COMMIT"], ids=["BEGIN", "the statements", "COMMIT"])
@pytest.mark.parametrize("before", [None, 1], ids=["create", "upgrade"])
def test_a_store_is_made_as_a_whole_or_not_at_all(
    before: int | None, step: str, fault: Fault, sync: bool, proxy: Proxy
) -> None:
    """The error is ours and does not say that nothing happened; whoever does it again has a store."""
    schema = postgres.fresh_schema() if before is None else make_older()
    backend = opened(proxy, schema, sync=sync)

    async def scenario() -> None:
        proxy.fault(step, fault)
        with pytest.raises(RateLimiterUnavailable, match="got no answer") as failed:
            await backend.create_table()
        assert (failed.value.ambiguous, failed.value.misconfigured) == (True, "")
        is_made = step == "COMMIT" and fault != "lose request"
        assert layout(schema) == (LAYOUT_VERSION if is_made else before)
        await backend.create_table()
        await backend.setup()
        (outcome,) = await backend.write_each([Update(K, {"n": 1})])
        assert outcome.item == {"n": 1}
        await backend.close()

    drive(sync, scenario())
    owner().execute(f"DROP SCHEMA {schema} CASCADE".encode())


@both_colours
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("step", ["DROP", "COMMIT"])
def test_a_store_is_dropped_as_a_whole_or_not_at_all(
    step: str, fault: Fault, sync: bool, proxy: Proxy
) -> None:
    schema = make_older()
    backend = opened(proxy, schema, sync=sync)

    async def scenario() -> None:
        proxy.fault(step, fault)
        with pytest.raises(RateLimiterUnavailable, match="got no answer") as failed:
            await backend.delete_table()
        assert failed.value.ambiguous
        await backend.close()

    drive(sync, scenario())
    is_gone = step == "COMMIT" and fault != "lose request"
    assert layout(schema) == (None if is_gone else 1)
    owner().execute(f"DROP SCHEMA IF EXISTS {schema} CASCADE".encode())


def test_an_owner_who_reaches_nobody_has_asked_for_nothing() -> None:
    """That is said too: it is no reason to look what became of it."""
    url = f"postgresql://somebody:hush@{postgres.HOST}:1/limits?listen=off"
    backend = open_backend(url, sync=True, world=World())
    with pytest.raises(RateLimiterUnavailable, match="was not sent") as failed:
        run_sync(backend.create_table())
    assert not failed.value.ambiguous
    assert "hush" not in str(failed.value)
    run_sync(backend.close())


@pytest.mark.parametrize("fault", FAULTS)
def test_a_change_log_is_asked_again(fault: Fault, proxy: Proxy) -> None:
    """Whether something waits, what that is, and that it was counted: asking twice changes nothing."""
    backend = opened(proxy, lent_schema(), sync=True)
    bucket = Key("ns/BUCKET#user#api#0", "#STATE")
    run_sync(backend.write_each([Update(bucket, {"n": 1})]))
    log = backend.change_log()

    def faulted(function: str, ask: Any) -> Any:
        proxy.fault(function, fault)
        found = ask()
        assert proxy.calls.pop(function) == 2
        return found

    assert faulted("log_waits", log.waits) is True
    (entry,) = faulted("log_read", lambda: log.read(10))
    assert (entry.key, entry.old, entry.new) == (bucket, None, {"n": 1})
    faulted("log_trim", lambda: log.trim(entry.position))
    assert faulted("log_waits", log.waits) is False
    assert log.read(10) == []
    log.close()
    run_sync(backend.close())
