"""Credentials that change while requests are under way: renewed once, in time, and never in anybody's way."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import botocore.exceptions
import botocore.session
import pytest
from aiobotocore.credentials import AioRefreshableCredentials
from aiobotocore.session import AioSession
from botocore.credentials import RefreshableCredentials

from tests.dynamodb.peer import Peer, answer
from tests.patience import PATIENCE_SECONDS
from tests.stores import drive
from zae_limiter.backends.dynamodb import open_backend, open_transport
from zae_limiter.backends.dynamodb.boto import Access
from zae_limiter.backends.dynamodb.transport import NoReply, NotConfigured, Transport
from zae_limiter.repository_protocol import Key, Update
from zae_limiter.runtime.colour import run_sync

KINDS = pytest.mark.parametrize("kind", ["sync", "async", "async, blocking session"])
MINUTE = 60


class Provider:
    """Gives out credentials for an hour, called ``key-1``, ``key-2`` and so on."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.now = datetime(2031, 5, 1, tzinfo=UTC)
        self.renewals = 0
        self.error: Exception | None = None
        self.gate = threading.Event()
        self.gate.set()
        self.threads: set[int] = set()

    @property
    def sync(self) -> bool:
        return self.kind == "sync"

    def now_ms(self) -> int:
        return int(self.now.timestamp() * 1000)

    def pass_minutes(self, minutes: float) -> None:
        self.now += timedelta(minutes=minutes)

    def session(self) -> Any:
        session = AioSession() if self.kind == "async" else botocore.session.Session()
        session.register_component("credential_provider", self)
        return session

    def load_credentials(self) -> Any:
        first = {"access_key": "key-1", "secret_key": "s", "token": "t-1"}
        expiry = self.now + timedelta(hours=1)
        if self.kind == "async":
            made = AioRefreshableCredentials(
                **first,
                expiry_time=expiry,
                refresh_using=self.renew_async,
                method="m",
                time_fetcher=self.time,
            )
            return resolved(made)
        return RefreshableCredentials(
            **first, expiry_time=expiry, refresh_using=self.renew, method="m", time_fetcher=self.time
        )

    def time(self) -> datetime:
        return self.now

    def renew(self) -> dict[str, str]:
        self.renewals += 1
        self.threads.add(threading.get_ident())
        assert self.gate.wait(PATIENCE_SECONDS)
        if self.error is not None:
            raise self.error
        number = self.renewals + 1
        return {
            "access_key": f"key-{number}",
            "secret_key": "s",
            "token": f"t-{number}",
            "expiry_time": (self.now + timedelta(hours=1)).isoformat(),
        }

    async def renew_async(self) -> dict[str, str]:
        return await asyncio.to_thread(self.renew)


async def resolved(value: Any) -> Any:
    return value


@pytest.fixture
def peer() -> Iterator[Peer]:
    with Peer().running() as running:
        yield running


@asynccontextmanager
async def connected(provider: Provider, peer: Peer) -> AsyncIterator[Transport]:
    access = Access("eu-west-1", peer.url, session=provider.session(), timeout_ms=20_000)
    transport = open_transport(access, sync=provider.sync)
    transport._now_ms = provider.now_ms  # type: ignore[attr-defined]
    try:
        yield transport
    finally:
        await transport.close()


async def ask(transport: Transport, timeout_ms: float = 20_000) -> Any:
    return await transport.call("UpdateItem", {}, timeout_ms)


def jobs_of(transport: Any) -> list[Any]:
    """What the transport starts aside from now on."""
    started: list[Any] = []
    network = transport._network
    start = network.start

    def watched(work: Any) -> Any:
        started.append(work)
        return start(work)

    network.start = watched
    return started


async def many(provider: Provider, calls: int, call: Callable[[], Any]) -> list[Any]:
    """Calls at the same time: of as many threads, or of as many tasks."""
    if not provider.sync:
        return await asyncio.gather(*(call() for _ in range(calls)), return_exceptions=True)
    results: list[Any] = []

    def work() -> None:
        try:
            results.append(run_sync(call()))
        except Exception as error:
            results.append(error)

    threads = [threading.Thread(target=work) for _ in range(calls)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


@KINDS
def test_credentials_are_renewed_while_they_are_still_good(kind: str, peer: Peer) -> None:
    """A renewal that is merely due holds nobody up, however long it takes."""
    provider = Provider(kind)

    async def scenario() -> None:
        async with connected(provider, peer) as transport:
            await ask(transport)
            provider.pass_minutes(40)
            await ask(transport)
            assert provider.renewals == 0
            provider.gate.clear()
            provider.pass_minutes(6)
            for _ in range(3):
                await ask(transport)
            assert [asked.access_key for asked in peer.asked] == ["key-1"] * 5
            provider.gate.set()
            while peer.asked[-1].access_key == "key-1":
                provider.pass_minutes(1 / MINUTE)
                await ask(transport)
                await transport.colour.sleep(0.001)
            assert peer.asked[-1].access_key == "key-2"
            assert peer.asked[-1].fields["x-amz-security-token"] == "t-2"
            assert provider.renewals == 1

    drive(provider.sync, scenario())


@KINDS
def test_concurrent_calls_renew_once(kind: str, peer: Peer) -> None:
    """When the credentials must not be used any more, all wait for one renewal, and use it."""
    provider = Provider(kind)

    async def scenario() -> None:
        async with connected(provider, peer) as transport:
            await ask(transport)
            started = jobs_of(transport)
            for turn in range(2, 5):
                provider.pass_minutes(55)
                del peer.asked[:]
                provider.gate.clear()
                opener = threading.Timer(0.1, provider.gate.set)
                opener.start()
                assert await many(provider, 20, lambda: ask(transport)) == [{}] * 20
                opener.join()
                assert {asked.access_key for asked in peer.asked} == {f"key-{turn}"}
                assert provider.renewals == len(started) == turn - 1

    drive(provider.sync, scenario())


@KINDS
def test_the_first_calls_find_credentials_once(kind: str, peer: Peer) -> None:
    """Whoever comes first asks; the others wait."""
    provider = Provider(kind)
    loads: list[int] = []
    load = provider.load_credentials
    provider.load_credentials = lambda: loads.append(1) or load()  # type: ignore[method-assign,func-returns-value]

    async def scenario() -> None:
        async with connected(provider, peer) as transport:
            assert await many(provider, 10, lambda: ask(transport)) == [{}] * 10
            assert len(loads) == 1

    drive(provider.sync, scenario())


@KINDS
def test_a_renewal_that_fails_is_named_when_it_matters(kind: str, peer: Peer) -> None:
    """Before that the present credentials do; afterwards nothing is sent without."""
    provider = Provider(kind)
    provider.error = botocore.exceptions.CredentialRetrievalError(provider="theirs", error_msg="no role")

    async def scenario() -> None:
        async with connected(provider, peer) as transport:
            await ask(transport)
            provider.pass_minutes(47)
            assert await ask(transport) == {}
            provider.pass_minutes(10)
            sent = len(peer.asked)
            with pytest.raises(
                NotConfigured, match=r"no AWS credentials: .*no role.*; set AWS_ACCESS_KEY_ID"
            ):
                await ask(transport)
            assert len(peer.asked) == sent
            provider.error = None
            assert await ask(transport) == {}

    drive(provider.sync, scenario())


@KINDS
def test_a_provider_that_breaks_is_named(kind: str, peer: Peer) -> None:
    """Whatever it raises: nothing was sent."""
    provider = Provider(kind)
    provider.error = ZeroDivisionError("inside of the provider")

    async def scenario() -> None:
        async with connected(provider, peer) as transport:
            await ask(transport)
            provider.pass_minutes(55)
            with pytest.raises(NotConfigured, match="no AWS credentials: inside of the provider"):
                await ask(transport)

    drive(provider.sync, scenario())


@KINDS
def test_a_slow_renewal_does_not_move_the_deadline(kind: str, peer: Peer) -> None:
    """The call fails in time and unambiguously; the renewal goes on, and the next call has its result."""
    provider = Provider(kind)

    async def scenario() -> None:
        async with connected(provider, peer) as transport:
            await ask(transport)
            provider.pass_minutes(55)
            provider.gate.clear()
            with pytest.raises(NoReply, match="no credentials in time") as raised:
                await ask(transport, 100)
            assert not raised.value.ambiguous
            provider.gate.set()
            assert await ask(transport) == {}
            assert (provider.renewals, peer.asked[-1].access_key) == (1, "key-2")

    drive(provider.sync, scenario())


def test_a_blocking_renewal_does_not_block_the_loop(peer: Peer) -> None:
    """A session of botocore renews in a thread of its own."""
    provider = Provider("async, blocking session")

    async def scenario() -> None:
        async with connected(provider, peer) as transport:
            await ask(transport)
            provider.pass_minutes(55)
            provider.gate.clear()
            waiting = asyncio.create_task(ask(transport))
            while provider.renewals == 0:  # noqa: ASYNC110 - that the loop turns is the point
                await asyncio.sleep(0.001)
            provider.gate.set()
            assert await waiting == {}
            assert threading.get_ident() not in provider.threads

    asyncio.run(scenario())


@KINDS
def test_a_broken_token_is_named_and_not_shown(kind: str, peer: Peer) -> None:
    """With the way out, through all layers."""
    provider = Provider(kind)
    renew = provider.renew
    provider.renew = lambda: renew() | {"token": "secret\r\nx: y"}  # type: ignore[method-assign]

    async def scenario() -> None:
        url = f"dynamodb://table?region=eu-west-1&endpoint_url={peer.url}&timeout_ms=20000"
        backend = open_backend(url, sync=provider.sync, session=provider.session())
        transport: Any = backend.calls.transport
        transport._now_ms = provider.now_ms
        await backend.ping()
        provider.pass_minutes(55)
        (outcome,) = await backend.write_each([Update(Key("a", "s"), {"n": 1})])
        assert outcome.failure is not None
        assert not outcome.failure.ambiguous
        assert "was not sent: invalid AWS credentials" in str(outcome.failure)
        assert "secret" not in str(outcome.failure)
        await backend.close()

    peer.otherwise = [answer({"Responses": {"table": []}})]
    drive(provider.sync, scenario())
