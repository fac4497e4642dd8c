"""What `make engines` does for servers that are missing: as root, by sudo, and where neither helps."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engines.servers import as_nobody
from tests.release.distributions import ROOT

NEEDED = ("env", "mkdir", "sh", "touch")
SERVERS = ("redis-server", "pgbouncer", "initdb", "nginx", "prometheus", "chromium", "chromedriver")
APT = 'echo "apt-get $* as $DEBIAN_FRONTEND" >> "$CALLS"\n'
SUDO = 'echo "sudo $1" >> "$CALLS"; shift; exec "$@"\n'
ASKS_FOR_A_PASSWORD = 'echo "sudo: a password is required" >&2; exit 1\n'
NO_RIGHTS = 'echo "E: Could not open lock file: Permission denied" >&2; exit 100\n'


class Machine:
    """A folder with the only programs there are, in which a plain user or root follows the rule."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.calls, self.made = folder, folder / "calls", folder / "engines" / ".servers"
        self._programs = folder / "bin"
        self._programs.mkdir()
        for name in NEEDED:
            (self._programs / name).symlink_to(str(shutil.which(name)))
        self.has("id", f"exec {shutil.which('id')} $*\n")

    def has(self, name: str, script: str = "exit 0\n") -> None:
        program = self._programs / name
        program.write_text(f"#!/bin/sh\n{script}", encoding="utf-8")
        program.chmod(0o755)

    def follows(self) -> subprocess.CompletedProcess[str]:
        """Do what `make` would do, without make; a process that is root becomes somebody else."""
        rule = self._rule()
        environment = {"PATH": str(self._programs), "CALLS": str(self.calls)}
        command = [str(self._programs / "sh"), "-ec", rule]
        return subprocess.run(
            command,
            env=environment,
            cwd=self.folder,
            capture_output=True,
            text=True,
            check=False,
            **as_nobody(),
        )  # type: ignore[call-overload,no-any-return]

    def _rule(self) -> str:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
        words = ["make", "--dry-run", f"ENGINES={self.folder}/engines", str(self.made)]
        shown = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
        # What Debian keeps on nobody's PATH is not there either.
        return shown.stdout.replace("/usr/", f"{self.folder}/usr/")

    def asked(self) -> list[str]:
        return self.calls.read_text(encoding="utf-8").splitlines() if self.calls.exists() else []


@pytest.fixture
def machine() -> Iterator[Machine]:
    folder = Path(tempfile.mkdtemp(prefix="zae-limiter-", dir="/tmp"))
    folder.chmod(0o777)
    yield Machine(folder)
    shutil.rmtree(folder)


def test_a_user_installs_by_sudo(machine: Machine) -> None:
    """Without a question, for nobody could answer; and apt asks none, though sudo forgets variables."""
    machine.has("sudo", SUDO)
    machine.has("apt-get", APT)
    machine.has("nginx")
    done = machine.follows()
    assert done.returncode == 0, done.stderr
    packages = "redis-server pgbouncer postgresql prometheus chromium chromium-driver"
    assert machine.asked() == [
        "sudo -n",
        "apt-get update -qq as noninteractive",
        "sudo -n",
        f"apt-get install -y -qq --no-install-recommends {packages} as noninteractive",
    ]
    assert machine.made.exists()


def test_root_needs_no_sudo(machine: Machine) -> None:
    """It is not asked for, though it is there."""
    machine.has("id", "echo 0\n")
    machine.has("sudo", SUDO)
    machine.has("apt-get", APT)
    assert machine.follows().returncode == 0
    assert [call.partition(" ")[0] for call in machine.asked()] == ["apt-get", "apt-get"]


@pytest.mark.parametrize("sudo", [None, ASKS_FOR_A_PASSWORD], ids=["no sudo", "sudo with a password"])
def test_who_may_not_install_is_told_what_is_missing(machine: Machine, sudo: str | None) -> None:
    """With the names of the packages; the next run looks again."""
    machine.has("apt-get", NO_RIGHTS)
    machine.has("redis-server")
    if sudo is not None:
        machine.has("sudo", sudo)
    done = machine.follows()
    assert done.returncode == 1
    missing = "pgbouncer postgresql nginx-light prometheus chromium chromium-driver"
    assert done.stderr.splitlines()[-1] == f"error: the tests need these servers, install them: {missing}"
    assert not machine.made.exists()


def test_what_is_there_is_not_installed(machine: Machine) -> None:
    """Nobody needs rights for it, nor a Debian."""
    for name in SERVERS:
        machine.has(name)
    assert machine.follows().returncode == 0
    assert machine.asked() == []
    assert machine.made.exists()
