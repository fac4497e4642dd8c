"""Servers that speak TLS alone: whom the store trusts, how it shows itself, what it says if that fails."""

import contextlib
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.engines.certificates import Authority
from tests.engines.dynamodb_local import free_port
from tests.engines.redis_server import HOST, fresh_prefix
from tests.redis.fleet import fleet
from tests.stores import drive
from zae_limiter import Limit, RateLimiter, RateLimiterUnavailable, RateLimitExceeded, ValidationError
from zae_limiter.backends.redis import open_backend
from zae_limiter.repository_protocol import Key, Update

K = Key("ns/ENTITY#a", "#META")
COLOURS = pytest.mark.parametrize("sync", [False, True], ids=["async", "sync"])


class Guarded(NamedTuple):
    """A server that only those reach who speak TLS, and what is needed for that."""

    port: int
    plain_port: int
    authority: Authority
    folder: Path


def tls_of(authority: Authority) -> dict[str, str]:
    """What a server is told that speaks TLS at a port of its own."""
    certificate, key = authority.certify("server", f"IP:{HOST}")
    key.chmod(0o644)  # the server may be somebody else
    files = {"tls-cert-file": certificate, "tls-key-file": key, "tls-ca-cert-file": authority.file}
    return {"tls-port": str(free_port())} | {name: str(file) for name, file in files.items()}


def options(told: dict[str, str]) -> list[str]:
    return [word for name, value in told.items() for word in (f"--{name}", value)]


@contextlib.contextmanager
def guarded(asks_clients: str) -> Iterator[Guarded]:
    with fleet() as own:
        authority = Authority(own.folder)
        told = tls_of(authority) | {"tls-auth-clients": asks_clients}
        server = own.server(*options(told))
        yield Guarded(int(told["tls-port"]), server.port, authority, own.folder)


@pytest.fixture(scope="module")
def server() -> Iterator[Guarded]:
    with guarded("no") as it:
        yield it


@pytest.fixture(scope="module")
def suspicious() -> Iterator[Guarded]:
    """One that wants to know who it talks to."""
    with guarded("yes") as it:
        yield it


def url(
    server: Guarded, *, scheme: str = "rediss", host: str = HOST, port: int = 0, **options: object
) -> str:
    given = {"prefix": fresh_prefix(), "timeout_ms": 60_000, **options}
    told = "&".join(f"{name}={value}" for name, value in given.items())
    return f"{scheme}://{host}:{port or server.port}/0?{told}"


def failure_of(url: str, sync: bool) -> RateLimiterUnavailable:
    """Why a store cannot be used; that a deadline of a minute is not waited for is part of it."""

    async def scenario() -> RateLimiterUnavailable:
        backend = open_backend(url, sync=sync)
        with pytest.raises(RateLimiterUnavailable) as caught:
            await backend.setup()
        await backend.close()
        return caught.value

    return drive(sync, scenario())


@COLOURS
@pytest.mark.parametrize("scheme", ["rediss", "valkeys"])
def test_whoever_trusts_the_authority_is_served(server: Guarded, scheme: str, sync: bool) -> None:
    """All that goes there and back, also what is larger than one record of TLS."""

    async def scenario() -> None:
        backend = open_backend(url(server, scheme=scheme, tls_ca=server.authority.file), sync=sync)
        await backend.setup()
        large = {"text": "x" * 100_000}
        (outcome,) = await backend.write_each([Update(K, {"n": 1}, large)])
        assert outcome.applied
        await backend.write_each([Update(K, {"n": 1})] * 3)
        assert await backend.batch_get([K]) == [{"n": 4, **large}]
        await backend.close()

    drive(sync, scenario())


async def test_a_limiter_over_tls(server: Guarded) -> None:
    """Every connection of the pool is checked by itself: ten tasks take exactly what there is."""
    async with RateLimiter.open(url(server, tls_ca=server.authority.file)) as limiter:
        await limiter.set_system_defaults([Limit("x", 5, 1, 10**8)])
        for _ in range(5):
            async with limiter.acquire("key", "api", {"x": 1}):
                pass
        with pytest.raises(RateLimitExceeded):
            async with limiter.acquire("key", "api", {"x": 1}):
                pass


@pytest.fixture(scope="module")
def several() -> Iterator[dict[str, str]]:
    """A cluster, and a primary with its sentinel, which name ports where TLS is spoken."""
    with fleet() as own:
        authority = Authority(own.folder)

        def told() -> dict[str, str]:
            return tls_of(authority) | {"tls-auth-clients": "no"}

        def told_of_cluster() -> list[str]:
            return options(told() | {"tls-cluster": "yes"})

        node = own.cluster(3, told_of_cluster)[0].ask("CONFIG", "GET", "tls-port")["tls-port"]
        of_primary, of_sentinel = told(), told() | {"tls-replication": "yes"}
        primary = own.server(*options(of_primary))
        more = "\n".join(f"{name} {value}" for name, value in of_sentinel.items())
        own.sentinels(primary, count=1, replicas=0, port=int(of_primary["tls-port"]), more=more)
        tail = f"?tls=true&tls_ca={authority.file}&timeout_ms=60000&prefix="
        yield {
            "cluster": f"redis+cluster://{HOST}:{node}{tail}",
            "sentinel": f"redis+sentinel://{HOST}:{of_sentinel['tls-port']}/limits{tail}",
        }


@COLOURS
@pytest.mark.parametrize("way", ["cluster", "sentinel"])
def test_whoever_is_named_is_spoken_to_in_tls_too(several: dict[str, str], way: str, sync: bool) -> None:
    """The option is for those who tell where servers are, and for the servers: every node gets some."""

    async def scenario() -> None:
        backend = open_backend(several[way] + fresh_prefix(), sync=sync)
        await backend.setup()
        keys = [Key(f"ns-{number}/ENTITY#a", "#META") for number in range(30)]
        outcomes = await backend.write_each([Update(key, {"n": 1}) for key in keys])
        assert all(outcome.applied for outcome in outcomes)
        assert await backend.batch_get(keys) == [{"n": 1}] * len(keys)
        await backend.close()

    drive(sync, scenario())


@COLOURS
def test_an_authority_nobody_knows_is_not_trusted(server: Guarded, sync: bool) -> None:
    """Without the option the system's are asked, and with another's file only that one is."""
    other = Authority(server.folder, "another").file
    for options in ({}, {"tls_ca": other}):
        failure = failure_of(url(server, **options), sync)
        assert failure.misconfigured == "credentials"
        assert f"the certificate of {HOST}:{server.port} is not trusted" in str(failure)
        assert "tls_ca=FILE" in str(failure)


@COLOURS
def test_a_certificate_of_another_host_is_refused(server: Guarded, sync: bool) -> None:
    """The authority is trusted, and the name that we asked for is not in what it signed."""
    failure = failure_of(url(server, host="localhost", tls_ca=server.authority.file), sync)
    assert failure.misconfigured == "credentials"
    assert "localhost" in str(failure)
    assert "use a name that stands in it" in str(failure)
    assert "tls_ca" not in str(failure), "it would not help"


@COLOURS
def test_a_client_shows_who_it_is(suspicious: Guarded, sync: bool) -> None:
    """By a certificate that the server's authority signed; key and certificate may be one file."""
    certificate, key = suspicious.authority.certify("client")
    both = suspicious.folder / "both.pem"
    both.write_text(certificate.read_text() + key.read_text())

    async def scenario(**files: Path) -> None:
        backend = open_backend(url(suspicious, tls_ca=suspicious.authority.file, **files), sync=sync)
        await backend.setup()
        await backend.close()

    drive(sync, scenario(tls_cert=certificate, tls_key=key))
    drive(sync, scenario(tls_cert=both))


@COLOURS
@pytest.mark.parametrize("shown", ["none", "another's"])
def test_a_client_that_is_not_known_is_told_what_to_show(suspicious: Guarded, shown: str, sync: bool) -> None:
    """A handshake ends before the server has looked, so the refusal comes in place of the first answer."""
    files: dict[str, object] = {}
    if shown != "none":
        certificate, key = Authority(suspicious.folder, "stranger").certify("client")
        files = {"tls_cert": certificate, "tls_key": key}
    failure = failure_of(url(suspicious, tls_ca=suspicious.authority.file, timeout_ms=1_000, **files), sync)
    assert not failure.ambiguous, "nothing was asked of it"
    assert "tls_cert=FILE and tls_key=FILE" in str(failure)


@COLOURS
def test_plain_and_encrypted_do_not_understand_each_other(server: Guarded, sync: bool) -> None:
    """Whoever takes the wrong scheme hears of the other one."""
    wrong_port = url(server, port=server.plain_port, tls_ca=server.authority.file, timeout_ms=1_000)
    assert "if it does not speak TLS, use redis://" in str(failure_of(wrong_port, sync))
    plain = url(server, scheme="redis", timeout_ms=1_000)
    assert "rediss://" in str(failure_of(plain, sync))


def test_files_that_cannot_be_used_are_named(server: Guarded) -> None:
    """The one that is wrong, not another, before anything is asked."""
    certificate, key = server.authority.certify("client")
    _, other = server.authority.certify("somebody")
    ca = server.authority.file
    cases = {
        "tls_ca": {"tls_ca": "/nowhere"},
        "tls_cert": {"tls_ca": ca, "tls_cert": "/nowhere", "tls_key": key},
        "tls_key": {"tls_ca": ca, "tls_cert": certificate, "tls_key": other},
    }
    for name, files in cases.items():
        with pytest.raises(ValidationError, match=f"invalid {name} ") as caught:
            open_backend(url(server, **files))
        assert isinstance(caught.value.__cause__, OSError | ssl.SSLError)
    with pytest.raises(ValidationError, match="tls_cert"):
        open_backend(url(server, tls_key=key))
    with pytest.raises(ValidationError, match="rediss://"):
        open_backend(url(server, scheme="redis", tls_ca=ca))
