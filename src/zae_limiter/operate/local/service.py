"""One local AWS for one user: starting it, finding it again, ending it.

What is running is noted in one file, beside its log. The note is only a hint: what counts is whether the
process it names is alive, is the one that was started, and answers.
"""

from __future__ import annotations

import contextlib
import fcntl
import http.client
import json
import os
import socket
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from urllib.parse import urlencode

from ...exceptions import InfrastructureError, InfrastructureNotFoundError
from .engines import HOST, Engine
from .process import Identity, start, stop, wait_until

ANSWER_SECONDS = 2.0
LOG_TAIL_BYTES = 1_000_000
REGION = "us-east-1"
NOT_RUNNING = "no local AWS is running; start it with: zae-limiter local up"


@dataclass(frozen=True)
class Running:
    """What was started."""

    engine: str
    pid: int
    born: str
    port: int
    health: str
    log: str

    @property
    def identity(self) -> Identity:
        return Identity(self.pid, self.born)

    @property
    def endpoint_url(self) -> str:
        return endpoint_on(self.port)

    @property
    def is_healthy(self) -> bool:
        """Whether it answers; anything but an error of its own is an answer."""
        connection = http.client.HTTPConnection(HOST, self.port, timeout=ANSWER_SECONDS)
        try:
            connection.request("GET", self.health)
            return connection.getresponse().status < 500
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()


def endpoint_on(port: int) -> str:
    return f"http://{HOST}:{port}"


def environment(endpoint_url: str, table: str) -> dict[str, str]:
    """What programs have to be told to use a local AWS; credentials are needed and never looked at."""
    query = urlencode({"region": REGION, "endpoint_url": endpoint_url})
    return {
        "AWS_ENDPOINT_URL": endpoint_url,
        "AWS_ACCESS_KEY_ID": "local",
        "AWS_SECRET_ACCESS_KEY": "local",
        "AWS_DEFAULT_REGION": REGION,
        "ZAE_LIMITER_STORE": f"dynamodb://{table}?{query}",
    }


class Service:
    """The local AWS of this user."""

    def __init__(self) -> None:
        state = Path(os.environ.get("XDG_STATE_HOME", ""))
        if not state.is_absolute():
            state = Path.home() / ".local" / "state"
        self.directory = state / "zae-limiter" / "local"
        self._note = self.directory / "running.json"

    def running(self) -> Running | None:
        """What runs now; a note about something that has ended counts for nothing."""
        try:
            noted = Running(**json.loads(self._note.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError):
            return None
        return noted if noted.identity.is_alive else None

    def log(self) -> Path | None:
        """The log of what runs, or of what ran last."""
        logs = sorted(self.directory.glob("*.log"), key=lambda path: path.stat().st_mtime)
        return logs[-1] if logs else None

    def up(self, engine: Engine, find: Callable[[], Path], port: int | None, seconds: float) -> Running:
        """Start an engine unless it runs, and wait until it answers. ``find`` is asked for its program."""
        with self._alone():
            found = self.running()
            if found is not None and (found.engine != engine.name or port not in (None, found.port)):
                raise InfrastructureError(
                    f"{found.engine} is running on port {found.port}; end it with: zae-limiter local down"
                )
            running = found or self._start(engine, find(), port or engine.port)
            if self._until_healthy(running, seconds):
                return running
            if found is None:
                stop(running.identity)
                self._note.unlink(missing_ok=True)
            said = last_line(Path(running.log))
            raise InfrastructureError(
                f"{running.engine} does not answer on port {running.port}: {said}; "
                "see: zae-limiter local logs"
            )

    def down(self) -> Running | None:
        """End what runs, and nothing else; returns what it was."""
        with self._alone():
            running = self.running()
            if running is not None:
                stop(running.identity)
            self._note.unlink(missing_ok=True)
            return running

    def must_run(self) -> Running:
        running = self.running()
        if running is None:
            raise InfrastructureNotFoundError(NOT_RUNNING)
        return running

    def _start(self, engine: Engine, program: Path, port: int) -> Running:
        _check_free(port)
        log = self.directory / f"{engine.name}.log"
        log.write_bytes(b"")
        identity = start(engine.command(program, port), log)
        running = Running(engine.name, *identity, port, engine.health, str(log))
        new = self._note.with_suffix(".new")
        new.write_text(json.dumps(asdict(running), indent=2), encoding="utf-8")
        new.replace(self._note)
        return running

    def _until_healthy(self, running: Running, seconds: float) -> bool:
        def is_over() -> bool:
            return running.is_healthy or not running.identity.is_alive

        return wait_until(is_over, seconds) and running.identity.is_alive and running.is_healthy

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Two commands at once would start two engines, or end one that is being started."""
        try:
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock = (self.directory / "lock").open("w", encoding="ascii")
        except OSError as error:
            raise InfrastructureError(
                f"cannot write to {str(self.directory)!r}: {error.strerror}; set XDG_STATE_HOME"
            ) from error
        with lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


def _check_free(port: int) -> None:
    """Whoever listens there already would answer in the engine's place."""
    with socket.socket() as probe:
        probe.settimeout(ANSWER_SECONDS)
        if probe.connect_ex((HOST, port)) == 0:
            raise InfrastructureError(
                f"port {port} is taken by another program; choose one with: zae-limiter local up --port N"
            )


def last_lines(log: Path, count: int) -> list[str]:
    """The end of a log; of a huge one only as much as is worth reading."""
    try:
        with log.open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - LOG_TAIL_BYTES))
            text = file.read().decode("utf-8", errors="replace")
    except FileNotFoundError:
        return []
    return text.splitlines()[-count:] if count else []


def last_line(log: Path) -> str:
    lines = [line for line in last_lines(log, 50) if line.strip()]
    return lines[-1].strip() if lines else "it said nothing"
