"""Servers from packages of Debian, each started once per test run on a free port of this machine.

As with DynamoDB Local: whoever starts the run hands the port to its workers in an environment variable and
does not wait for the server, a run without workers starts it when a test first asks, and a missing program
fails exactly the tests that need it. A server ends when its standard input is closed: none outlives the run.
"""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.engines.dynamodb_local import EngineMissing, free_port, wait_for_port

PLACES = ("/usr/sbin", *sorted(map(str, Path("/usr/lib/postgresql").glob("*/bin")), reverse=True))
"""Where Debian keeps servers that are on nobody's PATH."""


UNTIL_STDIN_CLOSES = '"$@" & server=$!; read -r _; kill -INT $server; wait'
"""The signal is one by which PostgreSQL ends at once: by the usual one it would wait for its clients."""


def program(name: str) -> str:
    """Where a program is."""
    found = shutil.which(name, path=os.pathsep.join((os.environ.get("PATH", ""), *PLACES)))
    if found is None:
        raise EngineMissing(f"{name} is not installed; run: make engines")
    return found


def as_nobody() -> dict[str, str]:
    """How to start what refuses to be started by root."""
    return {"user": "nobody", "group": "nogroup"} if os.geteuid() == 0 else {}


def launched(words: Sequence[str], folder: Path, **how: str) -> subprocess.Popen[bytes]:
    """A server that runs until its standard input is closed; what it says is in its folder."""
    with (folder / "log").open("ab") as log:
        return subprocess.Popen(
            ["sh", "-c", UNTIL_STDIN_CLOSES, "sh", *words],
            cwd=folder,
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            start_new_session=True,
            **how,  # type: ignore[arg-type]
        )


class Server:
    """One server of a test run, wherever in the run it was started."""

    def __init__(self, variable: str, launch: Callable[[int, Path], subprocess.Popen[bytes]]) -> None:
        self._variable, self._launch = variable, launch
        self._own: subprocess.Popen[bytes] | None = None
        self._folder: Path | None = None

    def start(self) -> None:
        """Start it and publish its port, or the problem if it cannot be started."""
        port = free_port()
        self._folder = Path(tempfile.mkdtemp(prefix="zae-limiter-", dir="/tmp"))
        self._folder.chmod(0o777)
        try:
            self._own = self._launch(port, self._folder)
        except EngineMissing as problem:
            os.environ[self._variable] = str(problem)
        else:
            os.environ[self._variable] = str(port)

    def stop(self) -> None:
        if self._own is not None:
            assert self._own.stdin is not None
            self._own.stdin.close()
            self._own.wait()
            self._own = None
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    def port(self) -> int:
        """Where it listens."""
        if self._variable not in os.environ:
            self.start()
        told = os.environ[self._variable]
        if not told.isdigit():
            pytest.fail(told, pytrace=False)
        wait_for_port(int(told))
        return int(told)
