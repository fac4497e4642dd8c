"""One local AWS for one user: starting it, finding it again, ending it.

What is running is noted in one file, beside its log. The note is only a hint: what counts is whether the
process it names is alive, is the one that was started, and answers. The number of a process is used again
when it has ended. So beside the number it is noted when the process was born, and a process of the same
number that was born at another time is a stranger, whom nobody ends.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from ...exceptions import InfrastructureError, InfrastructureNotFoundError
from .engines import HOST, Engine, user_directory
from .health import ANSWER_SECONDS, answers
from .servers import ENGINES

POLL_SECONDS = 0.05
TERM_SECONDS = 10.0
LOG_TAIL_BYTES = 1_000_000

DETACHED = 'log=$1; shift; "$@" >>"$log" 2>&1 </dev/null & echo $!'
"""The shell ends at once; what it started belongs to nobody and reads from nothing."""


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
    def endpoint_url(self) -> str:
        return ENGINES[self.engine].endpoint_url(self.port)

    @property
    def is_alive(self) -> bool:
        return birth_of(self.pid) == self.born

    @property
    def is_healthy(self) -> bool:
        """Whether it answers, each in its own language."""
        return answers(self.health, self.port)

    def stop(self) -> None:
        """End the process and what it started, gently at first. One that is gone already is fine."""
        for signum in (ENGINES[self.engine].ends_by, signal.SIGKILL):
            if not self.is_alive:
                return
            try:
                # It is alive and ours, so its group is too; there may be workers in it.
                os.killpg(os.getpgid(self.pid), signum)
            except ProcessLookupError:
                return
            except PermissionError as error:
                raise InfrastructureError(f"process {self.pid} may not be ended by this user") from error
            if wait_until(lambda: not self.is_alive, TERM_SECONDS):
                return
        raise InfrastructureError(f"process {self.pid} does not end; look at it: ps -p {self.pid}")


class LocalAws:
    """The local AWS of this user."""

    def __init__(self) -> None:
        self.directory: Path = user_directory("XDG_STATE_HOME", ".local/state") / "local"
        self._note = self.directory / "running.json"

    def running(self) -> Running | None:
        """What runs now; a note about something that has ended counts for nothing."""
        try:
            noted = Running(**json.loads(self._note.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError):
            return None
        return noted if noted.engine in ENGINES and noted.is_alive else None

    def must_run(self) -> Running:
        if (running := self.running()) is None:
            raise InfrastructureNotFoundError("no local AWS is running; start it with: zae-limiter local up")
        return running

    def log(self) -> Path | None:
        """The log of what runs, or of what ran last."""
        return max(self.directory.glob("*.log"), key=lambda path: path.stat().st_mtime, default=None)

    def up(self, engine: Engine, find: Callable[[], Path], port: int | None, seconds: float) -> Running:
        """Start an engine unless it runs, and wait until it answers. ``find`` is asked for its program."""
        with self._alone():
            found = self.running()
            if found is not None and (found.engine != engine.name or port not in (None, found.port)):
                raise InfrastructureError(
                    f"{found.engine} is running on port {found.port}; end it with: zae-limiter local down"
                )
            running = found or self._start(engine, find(), port or engine.port)
            wait_until(lambda: running.is_healthy or not running.is_alive, seconds)
            if running.is_alive and running.is_healthy:
                return running
            if found is None:
                running.stop()
                self._note.unlink(missing_ok=True)
            said = "\n".join(last_lines(Path(running.log), 50)).strip() or "it said nothing"
            raise InfrastructureError(
                f"{running.engine} does not answer on port {running.port}: {said.splitlines()[-1].strip()}; "
                "see: zae-limiter local logs"
            )

    def down(self) -> Running | None:
        """End what runs, and nothing else; returns what it was."""
        with self._alone():
            running = self.running()
            if running is not None:
                running.stop()
            self._note.unlink(missing_ok=True)
            return running

    def _start(self, engine: Engine, program: Path, port: int) -> Running:
        """Start an engine in a session of its own, its output going to a file."""
        with socket.socket() as probe:
            probe.settimeout(ANSWER_SECONDS)
            if probe.connect_ex((HOST, port)) == 0:  # whoever listens there would answer in its place
                raise InfrastructureError(
                    f"port {port} is taken by another program; choose one with: zae-limiter local up --port N"
                )
        log = self.directory / f"{engine.name}.log"
        log.write_bytes(b"")
        engine.prepare(program)
        words, more, directory = engine.command(program, port)
        shell, variables = ["sh", "-c", DETACHED, "sh", str(log), *words], os.environ | more
        try:
            said = subprocess.check_output(shell, cwd=directory, env=variables, start_new_session=True)
        except (OSError, subprocess.CalledProcessError) as error:
            raise InfrastructureError(f"cannot start {words[0]!r}: {error}") from error
        pid = int(said)
        if (born := birth_of(pid)) is None:
            raise InfrastructureError(f"{words[0]!r} ended at once; its log is {str(log)!r}")
        running = Running(engine.name, pid, born, port, engine.health, str(log))
        new = self._note.with_suffix(".new")
        new.write_text(json.dumps(asdict(running), indent=2), encoding="utf-8")
        new.replace(self._note)
        return running

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


def wait_until(condition: Callable[[], bool], seconds: float) -> bool:
    """Whether it became true in time."""
    for _ in range(max(1, round(seconds / POLL_SECONDS))):
        if condition():
            return True
        time.sleep(POLL_SECONDS)
    return condition()


def birth_of(pid: int) -> str | None:
    """What tells a process from all others that ever have its number; ``None`` if there is none alive."""
    if not Path("/proc/self/stat").exists():
        words = ["ps", "-o", "state=", "-o", "lstart=", "-p", str(pid)]
        shown = subprocess.run(words, check=False, capture_output=True, text=True)
        state, _, born = shown.stdout.strip().partition(" ")
        return None if not state or state.startswith("Z") else born.strip()
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    # The second field is a name in brackets, in which anything may stand.
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else f"{boot}:{fields[19]}"


def last_lines(log: Path, count: int) -> list[str]:
    """The end of a log; of a huge one only as much as is worth reading."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - LOG_TAIL_BYTES))
            text = file.read().decode("utf-8", errors="replace")
    except FileNotFoundError:
        return []
    return text.splitlines()[-count:] if count else []
