"""The harness itself: a missing server fails the tests that need it, and a started one ends with the run."""

import os
import socket

import pytest

from tests.engines import postgres, redis_server, servers
from tests.engines.servers import Server

LAUNCH = {"redis-server": redis_server.launch, "initdb": postgres.launch}


@pytest.mark.parametrize("program", LAUNCH)
def test_a_missing_server_is_a_failure(program: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not a skip: a run without the server has not tested the store."""
    monkeypatch.setattr(servers, "PLACES", ())
    monkeypatch.setenv("PATH", "")
    monkeypatch.setitem(os.environ, "ZAE_TEST_MISSING", "")
    server = Server("ZAE_TEST_MISSING", LAUNCH[program])
    server.start()
    try:
        with pytest.raises(pytest.fail.Exception, match=f"{program} is not installed; run: make engines"):
            server.port()
    finally:
        server.stop()


@pytest.mark.parametrize("program", LAUNCH)
def test_a_server_ends_when_its_input_is_closed(program: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which the operating system does for it, however the test run ends."""
    monkeypatch.setitem(os.environ, "ZAE_TEST_ENDS", "")
    server = Server("ZAE_TEST_ENDS", LAUNCH[program])
    server.start()
    port = server.port()
    server.stop()
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", port), timeout=1)
