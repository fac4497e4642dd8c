"""The harness: a missing emulator fails the tests that need it, and a started one ends with the run."""

import socket
import subprocess
from pathlib import Path

import pytest

from tests.engines import emulator
from tests.engines.dynamodb_local import stop


def test_a_missing_emulator_is_a_failure(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Not a skip: a run without it has not tested the stack."""
    monkeypatch.setattr(emulator, "ROOT", tmp_path)
    with pytest.raises(pytest.fail.Exception, match="run: make engines"):
        emulator.start(1)


def test_the_emulator_ends_when_its_input_is_closed() -> None:
    """Which the operating system does for it, however the test run ends."""
    address, engine = emulator.launch()
    port = int(address.rpartition(":")[2])
    socket.create_connection(("127.0.0.1", port), timeout=1).close()
    stop(engine)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), timeout=1)


def test_an_emulator_that_does_not_answer_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of it is left for the tests that come after."""
    engines = []
    start = emulator.start

    def started(port: int) -> "subprocess.Popen[bytes]":
        engines.append(start(port))
        return engines[0]

    monkeypatch.setattr(emulator, "start", started)
    monkeypatch.setattr(emulator, "STARTUP_SECONDS_MAX", 0)
    monkeypatch.setattr(emulator, "answers", lambda _: False)
    with pytest.raises(pytest.fail.Exception, match="does not answer within 0 seconds"):
        emulator.launch()
    assert engines[0].poll() is not None
