"""DynamoDB Local on a file, which can be killed and started again.

It keeps what it has acknowledged when it is killed with SIGKILL (measured with eight writers, several times),
because every write is a transaction of the SQLite file beneath it. That file lies in memory where there is
such a place: it has to survive the engine, not the machine, and the engine waits for the disk at every write.
What it may forget are the tokens of transactions; so it stays away for longer than any call waits, and nobody
repeats a transaction across its death.

Like the engine of all other tests it runs under a shell that ends it when its standard input is closed.
"""

import shutil
import socket
import subprocess
import tempfile
import time
from pathlib import Path

from tests.engines import dynamodb_local
from tests.engines.dynamodb_local import JARS, ROOT, STARTUP_SECONDS_MAX

MEMORY = Path("/dev/shm")
UNTIL_TOLD = '"$@" & engine=$!; read -r how; kill "-${how:-KILL}" $engine; wait'


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Engine:
    def __init__(self) -> None:
        place = MEMORY if MEMORY.is_dir() else None
        self._folder = tempfile.mkdtemp(prefix="zae-limiter-storm-", dir=place)
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        jar = next(iter(sorted(ROOT.glob(JARS))), None)
        assert jar is not None, "DynamoDB Local is not installed; run: make engines"
        java = ["java", "-Djava.library.path=DynamoDBLocal_lib", "-jar", jar.name]
        options = ["-dbPath", self._folder, "-sharedDb", "-disableTelemetry", "-port", str(self.port)]
        self._process = subprocess.Popen(
            ["sh", "-c", UNTIL_TOLD, "sh", *java, *options],
            cwd=jar.parent,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        wait_for_port(self.port)

    def kill(self) -> None:
        """End it with SIGKILL, wherever it is."""
        process, self._process = self._process, None
        if process is not None:
            process.communicate(b"KILL\n")

    def remove(self) -> None:
        self.kill()
        shutil.rmtree(self._folder)


class BorrowedEngine:
    """The engine of all tests, for a storm that spares it."""

    def __init__(self) -> None:
        self.address = dynamodb_local.endpoint()
        self.port = int(self.address.rpartition(":")[2])

    def start(self) -> None:
        """It runs already."""

    def kill(self) -> None:
        raise AssertionError("others need it")

    def remove(self) -> None:
        """It stays."""


def wait_for_port(port: int) -> None:
    """Wait until somebody listens."""
    deadline = time.monotonic() + STARTUP_SECONDS_MAX
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            assert time.monotonic() < deadline, f"nobody listens on port {port}"
            time.sleep(0.05)
