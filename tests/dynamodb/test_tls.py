"""TLS on the loopback: an authority of our own, trusted or not."""

import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import botocore.session
import pytest
from botocore.config import Config

from tests.dynamodb.certificates import served
from tests.dynamodb.peer import CLOSE, Peer, answer
from tests.patience import growing_ms
from tests.stores import drive
from zae_limiter.backends.dynamodb import open_backend
from zae_limiter.exceptions import RateLimiterUnavailable
from zae_limiter.repository_protocol import Key, Outcome, Update

BOTH = pytest.mark.parametrize("sync", [False, True], ids=["async", "sync"])
A = Key("a", "s")
IMAGE = {"Attributes": {"PK": {"S": "a"}, "SK": {"S": "s"}, "n": {"N": "1"}}}


@pytest.fixture
def peer(certificates: Path) -> Iterator[Peer]:
    with Peer(served(certificates)).running() as running:
        running.otherwise = [answer(IMAGE)]
        yield running


def url(peer: Peer, timeout_ms: int = 20_000) -> str:
    return f"dynamodb://table?region=eu-west-1&endpoint_url={peer.url}&timeout_ms={timeout_ms}"


@BOTH
def test_a_trusted_server_is_talked_to(
    sync: bool, peer: Peer, certificates: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over one connection, which is kept; a lost answer is as ambiguous as without TLS."""
    monkeypatch.setenv("AWS_CA_BUNDLE", str(certificates / "authority.pem"))

    async def scenario() -> None:
        backend = open_backend(url(peer), sync=sync)
        for _ in range(3):
            assert await backend.write_each([Update(A, {"n": 1})]) == [Outcome(True, {"n": 1})]
        assert peer.connections == 1
        outcomes = await backend.write_each([Update(Key(f"k{n}", "s"), {"n": 1}) for n in range(5)])
        assert [outcome.applied for outcome in outcomes] == [True] * 5
        assert peer.connections <= 5
        peer.say(answer(IMAGE)[:-1], CLOSE)
        (lost,) = await backend.write_each([Update(A, {"n": 1})])
        assert lost.failure is not None
        assert lost.failure.ambiguous
        assert await backend.write_each([Update(A, {"n": 1})]) == [Outcome(True, {"n": 1})]
        await backend.close()

    drive(sync, scenario())


@BOTH
def test_a_connection_that_a_tls_server_closed_is_not_used(
    sync: bool, peer: Peer, certificates: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its farewell is seen before anything is sent."""
    monkeypatch.setenv("AWS_CA_BUNDLE", str(certificates / "authority.pem"))

    async def scenario() -> None:
        backend = open_backend(url(peer), sync=sync)
        for turn in range(1, 4):
            assert await backend.write_each([Update(A, {"n": 1})]) == [Outcome(True, {"n": 1})]
            assert peer.connections == turn
            peer.hang_up()
            peer.until(lambda: not peer._open)
        await backend.close()

    drive(sync, scenario())


@BOTH
@pytest.mark.parametrize("large", [100_000, 3_000_000])
def test_large_messages_pass(
    sync: bool, large: int, peer: Peer, certificates: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Records of TLS end elsewhere than messages do."""
    monkeypatch.setenv("AWS_CA_BUNDLE", str(certificates / "authority.pem"))
    text = "é" * large
    peer.say(answer({"text": text}))

    async def scenario() -> None:
        backend = open_backend(url(peer), sync=sync)
        assert await backend.calls.send("Query", {"text": text}) == {"text": text}
        assert peer.asked[0].body == {"text": text}
        await backend.close()

    drive(sync, scenario())


@BOTH
@pytest.mark.parametrize("case", ["unknown authority", "another name"])
def test_a_server_that_is_not_trusted_is_named(
    sync: bool, case: str, certificates: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the way out, and without sending anything."""
    if case == "another name":
        monkeypatch.setenv("AWS_CA_BUNDLE", str(certificates / "authority.pem"))
    with Peer(served(certificates, "elsewhere" if case == "another name" else "server")).running() as peer:

        async def scenario() -> None:
            backend = open_backend(url(peer), sync=sync)
            with pytest.raises(
                RateLimiterUnavailable, match=r"certificate of 127\.0\.0\.1:.* is not trusted"
            ) as raised:
                await backend.ping()
            assert "AWS_CA_BUNDLE" in str(raised.value)
            assert not raised.value.ambiguous
            assert peer.asked == []
            await backend.close()

        drive(sync, scenario())


@BOTH
def test_a_server_that_speaks_no_tls_is_known_not_to_have_acted(sync: bool) -> None:
    """The handshake fails, so nothing was sent."""
    with Peer().running() as peer:

        async def scenario() -> None:
            for timeout_ms in growing_ms(600):
                backend = open_backend(url(peer, timeout_ms).replace("http://", "https://"), sync=sync)
                with pytest.raises(RateLimiterUnavailable, match="was not sent") as raised:
                    await backend.ping()
                assert not raised.value.ambiguous
                await backend.close()
                if "cannot connect" in str(raised.value):
                    break

        drive(sync, scenario())


@BOTH
def test_a_handshake_that_stalls_ends_with_the_deadline(sync: bool) -> None:
    """A server that accepts and then says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"https://127.0.0.1:{silent.getsockname()[1]}"

        async def scenario() -> None:
            target = f"dynamodb://table?region=eu-west-1&endpoint_url={address}&timeout_ms=400"
            backend = open_backend(target, sync=sync)
            (outcome,) = await backend.write_each([Update(A, {"n": 1})])
            assert outcome.failure is not None
            assert not outcome.failure.ambiguous
            assert "was not sent" in str(outcome.failure)
            await backend.close()

        drive(sync, scenario())


@BOTH
def test_a_client_certificate_is_shown(
    sync: bool, certificates: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To a server that wants one."""
    monkeypatch.setenv("AWS_CA_BUNDLE", str(certificates / "authority.pem"))
    context = served(certificates)
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(certificates / "authority.pem")
    certificate = Config(
        client_cert=(str(certificates / "elsewhere.pem"), str(certificates / "elsewhere.key"))
    )
    with Peer(context).running() as peer:
        peer.otherwise = [answer(IMAGE)]

        async def scenario() -> None:
            backend = open_backend(url(peer), sync=sync, config=certificate)
            assert await backend.write_each([Update(A, {"n": 1})]) == [Outcome(True, {"n": 1})]
            await backend.close()

        drive(sync, scenario())


@BOTH
@pytest.mark.parametrize("missing", ["/nowhere/bundle.pem", __file__])
def test_a_bundle_that_cannot_be_read_is_named(
    sync: bool, missing: str, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the variable that names it."""
    monkeypatch.setenv("AWS_CA_BUNDLE", missing)

    async def scenario() -> None:
        backend = open_backend(url(peer), sync=sync, session=botocore.session.Session())
        with pytest.raises(
            RateLimiterUnavailable, match=f"cannot load certificates: .*AWS_CA_BUNDLE '{missing}'"
        ):
            await backend.ping()
        await backend.close()

    drive(sync, scenario())
