"""A server with a certificate: ``sslmode=verify-full`` trusts its authority and its name, nothing less."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.engines import postgres
from tests.engines.certificates import Authority
from tests.postgres.schemas import plain
from tests.postgres.test_crashes import Cluster, folder
from tests.stores import drive
from zae_limiter import RateLimiterUnavailable
from zae_limiter.backends.postgres import open_backend
from zae_limiter.backends.postgres.layout import create_sql
from zae_limiter.repository_protocol import Key, Update
from zae_limiter.runtime.world import World

K = Key("ns/BUCKET#key#api#0", "#STATE")
COLOURS = pytest.mark.parametrize("sync", [False, True], ids=["async", "sync"])


class Guarded(NamedTuple):
    port: int
    authority: Authority
    folder: Path


@pytest.fixture(scope="module")
def server() -> Iterator[Guarded]:
    with folder() as it:
        authority = Authority(it)
        certificate, key = authority.certify("server", f"IP:{postgres.HOST}")
        cluster = Cluster(it)
        cluster.start(again=False)
        data = it / "data"
        for file, name in ((certificate, "server.crt"), (key, "server.key")):
            (data / name).write_bytes(file.read_bytes())
            (data / name).chmod(0o600)
            _give(data / name, data)
        with plain(cluster.port) as owner:
            owner.execute(create_sql("zl"))
            for setting in ("ssl = on", "ssl_cert_file = 'server.crt'", "ssl_key_file = 'server.key'"):
                owner.execute(f"ALTER SYSTEM SET {setting}")
        cluster.stop()
        cluster.start()
        yield Guarded(cluster.port, authority, it)
        cluster.stop()


def _give(file: Path, to_whom: Path) -> None:
    """The server takes only a key that is its own."""
    import os

    if os.geteuid() == 0:
        os.chown(file, to_whom.stat().st_uid, to_whom.stat().st_gid)


def url(server: Guarded, host: str = postgres.HOST, **options: object) -> str:
    given = postgres.url("zl", server.port, timeout_ms=60_000, listen="off", sslmode="verify-full", **options)
    return given.replace(f"@{postgres.HOST}", f"@{host}")


@COLOURS
def test_whoever_trusts_the_authority_is_served(server: Guarded, sync: bool) -> None:
    async def scenario() -> None:
        backend = open_backend(url(server, sslrootcert=server.authority.file), sync=sync, world=World())
        await backend.setup()
        for _ in range(3):
            (outcome,) = await backend.write_each([Update(K, {f"n{sync}": 1})])
            assert outcome.applied
        (item,) = await backend.batch_get([K])
        assert item is not None
        assert item[f"n{sync}"] == 3
        await backend.close()

    drive(sync, scenario())


@COLOURS
@pytest.mark.parametrize("wrong", ["authority", "host"])
def test_nobody_else_is(server: Guarded, wrong: str, sync: bool) -> None:
    """An authority that is not ours, a name that is not in the certificate: told with the way out."""
    trusted = Authority(server.folder, "another") if wrong == "authority" else server.authority
    host = postgres.HOST if wrong == "authority" else "localhost"

    async def scenario() -> None:
        backend = open_backend(url(server, host, sslrootcert=trusted.file), sync=sync, world=World())
        with pytest.raises(RateLimiterUnavailable) as caught:
            await backend.setup()
        await backend.close()
        assert caught.value.misconfigured == "credentials"
        assert not caught.value.ambiguous
        way_out = "sslrootcert" if wrong == "authority" else "use a name that stands in it"
        assert way_out in str(caught.value)
        assert "correct user and password" not in str(caught.value)

    drive(sync, scenario())
