"""A decision while the store does not answer: refused with an error, or let through, as the policy says."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import pytest

from tests.server.envoy.calls import OK, Envoy, codes_of, descriptor, lasting, started, whose
from zae_limiter.testing import Fault, FaultyBackend

RULES = """
domains:
  edge:
    - {when: {entity: }, entity: entity}
    - {when: {open: }, entity: open, on_unavailable: allow}
    - {when: {shut: }, entity: shut, on_unavailable: block}
    - {when: {used: }, entity: used, afterwards: true, on_unavailable: block}
"""


@asynccontextmanager
async def faulty(path: Path) -> AsyncIterator[tuple[Envoy, FaultyBackend]]:
    """A server whose store fails on command."""
    async with started(RULES, path) as envoy:
        connection = envoy.limiter.repository._connection
        store = FaultyBackend(connection.backend)
        connection.backend = connection.writer.backend = store
        connection.writer.swap = store.swap
        yield envoy, store
        store.always = None
        store.faults.clear()


ASKED = [{}, {"hits": 0}, {"negative": True}]


@pytest.mark.parametrize("fault", list(Fault))
async def test_while_the_store_is_down(fault: Fault, tmp_path: Path) -> None:
    """By a policy to block it is unavailable, which Envoy decides about; by one to allow it is OK."""
    async with faulty(tmp_path) as (envoy, store):
        for key in ("open", "shut", "entity"):
            await envoy.ask(descriptor((key, "tenant-7")))
        store.always = fault
        for more in ASKED:
            for key in ("shut", "entity"):
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await envoy.ask(descriptor((key, "tenant-7"), **more))
                assert caught.value.code() == grpc.StatusCode.UNAVAILABLE
                assert "tenant-7" not in (caught.value.details() or "")
            answer = await envoy.ask(descriptor(("open", "tenant-7"), **more))
            assert (answer.overall_code, codes_of(answer)) == (OK, [OK])
        with pytest.raises(grpc.aio.AioRpcError):
            await envoy.ask(descriptor(("open", "tenant-7")), descriptor(("shut", "bob")))
        assert envoy.limiter.degraded >= len(ASKED)


async def test_a_debit_whose_reply_is_lost_is_not_sent_again(tmp_path: Path) -> None:
    """Nobody knows whether it was counted, so it is told; it was counted once at most."""
    async with faulty(tmp_path) as (envoy, store):
        await envoy.ask(descriptor(("used", "tenant-7"), hits=2))
        store.faults = [Fault.LOST_REPLY]
        with pytest.raises(grpc.aio.AioRpcError):
            await envoy.ask(descriptor(("used", "tenant-7"), hits=3))
        assert await envoy.left("tenant-7") == 5


async def test_the_policy_that_is_stored(tmp_path: Path) -> None:
    """Where a rule says nothing, what is stored for the resource decides."""
    async with faulty(tmp_path) as (envoy, store):
        await envoy.limiter.set_resource_defaults("edge", [lasting(10)], on_unavailable="allow")
        await envoy.ask(whose("tenant-7"))
        store.always = Fault.UNREACHABLE
        assert (await envoy.ask(whose("tenant-7"))).overall_code == OK
        both = descriptor(("shut", "other")), whose("tenant-7")
        with pytest.raises(grpc.aio.AioRpcError):  # one rule that says to block is enough
            await envoy.ask(*both)
