"""DynamoDB Local on a file, which can be killed and started again.

It keeps what it has acknowledged when it is killed with SIGKILL (measured with eight writers, several times),
because every write is a transaction of the SQLite file beneath it. That file lies in memory where there is
such a place: it has to survive the engine, not the machine, and the engine waits for the disk at every write.
What it may forget are the tokens of transactions; so it stays away for longer than any call waits, and nobody
repeats a transaction across its death.

Like the engine of all other tests it runs under a shell that ends it when its standard input is closed.
"""

import shutil
import subprocess
import tempfile
from pathlib import Path

from tests.engines import dynamodb_local

MEMORY = Path("/dev/shm")
UNTIL_TOLD = '"$@" & engine=$!; read -r how; kill "-${how:-KILL}" $engine; wait'


class Engine:
    def __init__(self) -> None:
        place = MEMORY if MEMORY.is_dir() else None
        self._folder = tempfile.mkdtemp(prefix="zae-limiter-storm-", dir=place)
        self.port = dynamodb_local.free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        self._process = dynamodb_local.launched(self.port, "-dbPath", self._folder, until=UNTIL_TOLD)
        dynamodb_local.wait_for_port(self.port)

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
