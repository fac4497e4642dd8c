"""Redis and PostgreSQL by `zae-limiter local`: real servers start, answer, keep their data and end."""

import json
import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import Run
from tests.cli.test_local import are_loopback, free_port, listening, status, wait_for
from tests.engines.servers import PLACES
from tests.patience import PATIENCE_SECONDS
from zae_limiter.operate.local import servers
from zae_limiter.operate.local.health import POSTGRES, REDIS, answers
from zae_limiter.operate.local.service import LocalAws, birth_of

SERVERS = ("redis", "postgres")


@pytest.fixture
def state(run: Run, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A state directory that every user can enter; whatever runs at the end of the test is ended."""
    folder = Path(tempfile.mkdtemp(prefix="zae-limiter-", dir="/tmp"))
    folder.chmod(0o755)
    monkeypatch.setenv("XDG_STATE_HOME", str(folder))
    for variable in ("ZAE_LIMITER_REDIS_SERVER", "ZAE_LIMITER_POSTGRES"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("PATH", os.pathsep.join((os.environ["PATH"], *PLACES)))
    yield folder
    run("local", "down")
    shutil.rmtree(folder)


def store_of(run: Run) -> str:
    variables = json.loads(run("local", "env", "--json").stdout)
    assert list(variables) == ["ZAE_LIMITER_STORE"]
    return str(variables["ZAE_LIMITER_STORE"])


def psql() -> str:
    found = shutil.which("psql", path=os.pathsep.join((os.environ["PATH"], *PLACES)))
    assert found is not None, "psql is not installed; run: make engines"
    return found


@pytest.mark.parametrize("engine", SERVERS)
def test_a_server(run: Run, state: Path, engine: str) -> None:
    """It starts once, on loopback, says how to use it, and ends with everything it started."""
    port = free_port()
    started = run("local", "up", "--engine", engine, "--port", str(port))
    assert started.exit_code == 0, started.stderr
    assert are_loopback(listening(port))
    assert f"{engine} is running at " in started.stderr
    assert ("zae-limiter table create" in started.stderr) is (engine == "postgres")
    first = status(run)
    assert (first["running"], first["healthy"], first["engine"]) == (True, True, engine)
    assert "password" not in json.dumps(first)
    again = run("local", "up", "--json")
    assert (json.loads(again.stdout)["started"], status(run)["pid"]) == (False, first["pid"])
    assert store_of(run).endswith(f"127.0.0.1:{port}/{'0' if engine == 'redis' else 'postgres'}")
    assert run("local", "up", "--engine", "ministack").exit_code == 1
    assert run("local", "logs").stdout
    assert run("local", "down").stderr == f"ended {engine}\n"
    assert birth_of(int(str(first["pid"]))) is None
    assert not answers(engine, port)
    assert state.joinpath("zae-limiter/local", engine).stat().st_mode & 0o777 == 0o700


def test_redis_keeps_its_data(run: Run, state: Path) -> None:
    """What was written is there after the next start, on whichever port."""
    assert state.is_dir()
    for question, answer in ((b"SET kept 1\r\n", b"+OK"), (b"GET kept\r\n", b"$1\r\n1")):
        port = free_port()
        assert run("local", "up", "--engine", "redis", "--port", str(port)).exit_code == 0
        with socket.create_connection(("127.0.0.1", port), timeout=60) as client:
            client.sendall(question)
            assert client.recv(100).startswith(answer)
        assert run("local", "down").exit_code == 0


def test_postgres_keeps_its_data_and_its_secret(run: Run, state: Path) -> None:
    """The cluster is made once, and nobody comes in without the password that `env` prints."""
    urls = []
    for question, answer in (("CREATE TABLE kept (n int)", "CREATE TABLE"), ("TABLE kept", "(0 rows)")):
        assert run("local", "up", "--engine", "postgres", "--port", str(free_port())).exit_code == 0
        urls.append(store_of(run))
        said = subprocess.run([psql(), urls[-1], "-c", question], check=False, capture_output=True, text=True)
        assert answer in said.stdout, said.stderr
        nobody = urls[-1].replace("postgres:", "postgres:not", 2)
        assert subprocess.run(
            [psql(), nobody, "-c", "TABLE kept"], check=False, capture_output=True
        ).returncode
        assert run("local", "down").exit_code == 0
    assert urls[0].rpartition("@")[0] == urls[1].rpartition("@")[0]
    assert run("local", "env").exit_code == 4
    secret = state / "zae-limiter/local/postgres/password"
    assert secret.stat().st_mode & 0o777 == 0o600


def test_postgres_ends_under_its_clients(run: Run, state: Path) -> None:
    """It does not wait until they have left."""
    assert run("local", "up", "--engine", "postgres", "--port", str(free_port())).exit_code == 0
    words = [psql(), store_of(run), "-c", r"\echo here", "-c", "SELECT pg_sleep(3600)"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as client:
        assert client.stdout is not None
        assert client.stdout.readline() == b"here\n"
        assert run("local", "down").stderr == "ended postgres\n"
        client.wait(PATIENCE_SECONDS)
    log = (state / "zae-limiter/local/postgres.log").read_text()
    assert "received fast shutdown request" in log
    assert "database system is shut down" in log


def test_a_cluster_that_was_half_made_is_made_anew(run: Run, state: Path) -> None:
    """An interrupted first start leaves nothing that the next one would trust."""
    half = state / "zae-limiter/local/postgres/new"
    half.mkdir(parents=True)
    (half / "PG_VERSION").write_text("15\n")
    assert run("local", "up", "--engine", "postgres", "--port", str(free_port())).exit_code == 0
    assert not half.exists()


@pytest.mark.parametrize(("engine", "package"), [("redis", "redis-server"), ("postgres", "postgresql")])
def test_a_server_that_is_not_installed(
    run: Run, state: Path, monkeypatch: pytest.MonkeyPatch, engine: str, package: str
) -> None:
    """The package is named; nothing is fetched."""
    monkeypatch.setenv("PATH", str(state))
    monkeypatch.setattr(servers, "CLUSTERS", state)
    missing = run("local", "up", "--engine", engine, "--yes")
    assert missing.exit_code == 4
    assert f"apt install {package}" in missing.stderr
    variable = servers.ENGINES[engine].variable
    monkeypatch.setenv(variable, "/nowhere/at-all")
    assert f"{variable} names '/nowhere/at-all'" in run("local", "up", "--engine", engine).stderr


def test_the_newest_postgres_is_taken(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Versions are numbers."""
    monkeypatch.setenv("PATH", str(state))
    monkeypatch.setattr(servers, "CLUSTERS", state)
    for version in ("9", "15", "old"):
        (state / version / "bin").mkdir(parents=True)
        (state / version / "bin/postgres").touch()
    assert servers.ENGINES["postgres"].find() == state / "15/bin/postgres"


def test_root_is_told_who_cannot_enter(run: Run, state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where another user cannot go, the way out is named."""
    monkeypatch.setattr(servers.os, "geteuid", lambda: 0)
    monkeypatch.setattr(servers.os, "chown", lambda *_: None)
    state.chmod(0o700)
    refused = run("local", "up", "--engine", "postgres", "--port", str(free_port()))
    assert refused.exit_code == 1
    assert "PostgreSQL refuses to be run by root" in refused.stderr
    assert "set XDG_STATE_HOME" in refused.stderr


def test_a_table_is_dynamodbs(run: Run, state: Path) -> None:
    """Whoever names one for another engine is told so."""
    assert state.is_dir()
    refused = run("local", "up", "--engine", "redis", "--name", "limits")
    assert (refused.exit_code, "redis has none" in refused.stderr) == (2, True)


@pytest.mark.parametrize(
    ("health", "said", "expected"),
    [
        (REDIS, b"+PONG\r\n", True),
        (REDIS, b"-NOAUTH Authentication required.\r\n", True),
        (REDIS, b"-LOADING Redis is loading the dataset in memory\r\n", False),
        (REDIS, b"", False),
        (POSTGRES, b"R\0\0\0\x08\0\0\0\0", True),
        (POSTGRES, b"E\0\0\0\x10SFATAL\0", False),
        (POSTGRES, b"HTTP/1.1 400 Bad Request\r\n", False),
    ],
)
def test_who_is_not_ready_does_not_answer(health: str, said: bytes, expected: bool) -> None:
    """A server that still reads its data listens already."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        child = os.fork()
        if child == 0:
            client, _ = listener.accept()
            client.recv(100)
            client.sendall(said)
            client.close()
            os._exit(0)
        assert answers(health, port) is expected
        os.waitpid(child, 0)
    assert not answers(health, port)


def test_it_ends_with_what_was_noted(run: Run, state: Path) -> None:
    """Somebody who ends the server himself is no trouble."""
    assert state.is_dir()
    assert run("local", "up", "--engine", "redis", "--port", str(free_port())).exit_code == 0
    os.kill(LocalAws().must_run().pid, 9)
    wait_for(lambda: run("local", "status").exit_code == 4)
