"""The harness itself: a missing engine fails the tests that need it, and a started one ends with the run."""

import os
import socket
from pathlib import Path

import pytest

from tests.engines import dynamodb_local


def address_after_start(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setitem(os.environ, dynamodb_local.ADDRESS, "")
    assert dynamodb_local.start() is None
    return os.environ[dynamodb_local.ADDRESS]


def test_a_missing_jar_is_a_failure(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Not a skip: a run without the engine has not tested the store."""
    monkeypatch.setattr(dynamodb_local, "ROOT", tmp_path)
    assert "make engines" in address_after_start(monkeypatch)
    with pytest.raises(pytest.fail.Exception, match="make engines"):
        dynamodb_local.endpoint()


def test_a_missing_java_is_a_failure(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The message says what to install."""
    jar = tmp_path / dynamodb_local.JARS.replace("*", "version")
    jar.parent.mkdir(parents=True)
    jar.touch()
    monkeypatch.setattr(dynamodb_local, "ROOT", tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "Java 17" in address_after_start(monkeypatch)
    with pytest.raises(pytest.fail.Exception, match="Java 17"):
        dynamodb_local.endpoint()


def test_the_engine_ends_when_its_input_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which the operating system does for it, however the test run ends."""
    monkeypatch.setitem(os.environ, dynamodb_local.ADDRESS, "")
    engine = dynamodb_local.start()
    assert engine is not None
    address = dynamodb_local.endpoint()
    dynamodb_local.stop(engine)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", int(address.rpartition(":")[2])), timeout=1)
