"""An emulator of AWS that really runs the Lambda, one for each process of the test run that needs it.

It starts when a test first asks for its address and holds everything in memory, so tests share nothing
but an account; each takes a stack name of its own. A missing emulator fails exactly the tests that
need it.

Like the other engine it runs under a shell that ends it when its standard input is closed.
"""

import atexit
import functools
import http.client
import os
import socket
import subprocess
import time
from pathlib import Path
from typing import Any
from uuid import uuid4

import botocore.session
import pytest

from tests.engines.dynamodb_local import UNTIL_STDIN_CLOSES, stop

ROOT = Path(__file__).resolve().parents[2]
PYTHON = ".engines/emulator/bin/python"
"""And not the script beside it, which names the folder that it was made in."""

REGION = "eu-west-1"
STARTUP_SECONDS_MAX = 60


def start(port: int) -> subprocess.Popen[bytes]:
    """Start the program on a port of this machine alone."""
    python = ROOT / PYTHON
    if not python.exists():
        pytest.fail("the emulator of AWS is not installed; run: make engines", pytrace=False)
    address = {"BIND_HOST": "127.0.0.1", "GATEWAY_PORT": str(port), "MINISTACK_REGION": REGION}
    return subprocess.Popen(
        ["sh", "-c", UNTIL_STDIN_CLOSES, "sh", str(python), "-P", "-m", "ministack"],
        env=os.environ | address | {"LOG_LEVEL": "ERROR"},
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # an interrupt from the keyboard is for the tests, which then stop it
    )


@functools.cache
def endpoint() -> str:
    """The address of the emulator of this process, which is running by then."""
    address, engine = launch()
    atexit.register(stop, engine)
    return address


def launch() -> tuple[str, subprocess.Popen[bytes]]:
    """An emulator that answers, and its address."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    engine = start(port)
    deadline = time.monotonic() + STARTUP_SECONDS_MAX
    while not answers(port):
        if time.monotonic() > deadline or engine.poll() is not None:
            stop(engine)
            pytest.fail(
                f"the emulator of AWS does not answer within {STARTUP_SECONDS_MAX} seconds", pytrace=False
            )
        time.sleep(0.05)
    return f"http://127.0.0.1:{port}", engine


def answers(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", "/_ministack/health")
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()


@functools.cache
def client(service: str) -> Any:
    """A plain client, to prepare and inspect things without the code under test."""
    return _session().create_client(service, region_name=REGION, endpoint_url=endpoint())


@functools.cache
def _session() -> Any:
    return botocore.session.Session()


def fresh_name() -> str:
    return f"test-{uuid4().hex[:12]}"
