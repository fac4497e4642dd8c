"""A program that outlives the command which started it, and that is only ever ended if it is that program.

The number of a process is used again when it has ended. So beside the number it is noted when the process
was born, and a process of the same number that was born at another time is a stranger.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from ...exceptions import InfrastructureError
from .engines import Command

POLL_SECONDS = 0.05
TERM_SECONDS = 10.0

DETACHED = 'log=$1; shift; "$@" >>"$log" 2>&1 </dev/null & echo $!'
"""The shell ends at once; what it started belongs to nobody and reads from nothing."""


class Identity(NamedTuple):
    """Which process it is, for good."""

    pid: int
    born: str

    @property
    def is_alive(self) -> bool:
        return birth_of(self.pid) == self.born


def start(command: Command, log: Path) -> Identity:
    """Start a program in a session of its own, its output going to a file."""
    words = ["sh", "-c", DETACHED, "sh", str(log), *command.words]
    try:
        shell = subprocess.run(
            words,
            check=True,
            capture_output=True,
            text=True,
            cwd=command.directory,
            env=os.environ | command.environment,
            start_new_session=True,
        )
    except (OSError, subprocess.CalledProcessError) as error:
        raise InfrastructureError(f"cannot start {command.words[0]!r}: {error}") from error
    pid = int(shell.stdout)
    born = birth_of(pid)
    if born is None:
        raise InfrastructureError(f"{command.words[0]!r} ended at once; its log is {str(log)!r}")
    return Identity(pid, born)


def stop(identity: Identity) -> None:
    """End a process and what it started, gently at first. One that is gone already is fine."""
    for signum, seconds in ((signal.SIGTERM, TERM_SECONDS), (signal.SIGKILL, TERM_SECONDS)):
        if not identity.is_alive:
            return
        try:
            # It is alive and ours, so its group is too; there may be workers in it.
            os.killpg(os.getpgid(identity.pid), signum)
        except ProcessLookupError:
            return
        except PermissionError as error:
            raise InfrastructureError(f"process {identity.pid} may not be ended by this user") from error
        if wait_until(lambda: not identity.is_alive, seconds):
            return
    raise InfrastructureError(f"process {identity.pid} does not end; look at it: ps -p {identity.pid}")


def wait_until(condition: Callable[[], bool], seconds: float) -> bool:
    """Whether it became true in time."""
    for _ in range(max(1, round(seconds / POLL_SECONDS))):
        if condition():
            return True
        time.sleep(POLL_SECONDS)
    return condition()


def birth_of(pid: int) -> str | None:
    """What tells a process from all others that ever have its number; ``None`` if there is none alive."""
    if Path("/proc/self/stat").exists():
        return _birth_on_linux(pid)
    shown = subprocess.run(
        ["ps", "-o", "state=", "-o", "lstart=", "-p", str(pid)], check=False, capture_output=True, text=True
    )
    state, _, born = shown.stdout.strip().partition(" ")
    return None if not state or state.startswith("Z") else born.strip()


def _birth_on_linux(pid: int) -> str | None:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        # The second field is a name in brackets, in which anything may stand.
        fields = (
            Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        )
    except OSError:
        return None
    state, ticks = fields[0], fields[19]
    return None if state in "ZX" else f"{boot}:{ticks}"
