"""Servers that come from the system: Redis or Valkey, and PostgreSQL.

    redis      `redis-server` or `valkey-server`
    postgres   a cluster of its own, made once by `initdb`; not that of the system

Nothing is installed: a package of the system is named instead. They listen on loopback only and keep their
data in the user's state directory, so it is there again after ``down`` and ``up``. Their ports are not the
usual ones, where the packages of Debian start servers for everybody. PostgreSQL refuses to be run by root,
so there it runs as the user of its package.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import stat
import subprocess
from pathlib import Path

from ...exceptions import InfrastructureError, InfrastructureNotFoundError
from ...runtime.world import World
from .engines import HOST, Command, DynamoDBLocal, Engine, Ministack, user_directory
from .health import POSTGRES, REDIS

CLUSTERS = Path("/usr/lib/postgresql")
"""Where Debian keeps the programs of PostgreSQL, by version and on nobody's ``PATH``."""

SERVICE_USERS = ("postgres", "nobody")


class Server(Engine):
    """An engine that is a program of the system."""

    has_stacks = has_tables = False
    package: str  # what has to be installed
    programs: tuple[str, ...]  # what it is called, by various vendors

    @property
    def home(self) -> Path:
        return user_directory("XDG_STATE_HOME", ".local/state") / "local" / self.name

    def find(self) -> Path | None:
        if os.environ.get(self.variable):
            return super().find()
        found = next((found for name in self.programs if (found := shutil.which(name))), None)
        return None if found is None else Path(found).absolute()

    def steps(self) -> list[tuple[str, list[str]]]:
        raise InfrastructureNotFoundError(
            f"{self.programs[0]} is not installed; install the package {self.package} of Debian "
            f"(apt install {self.package}), or let {self.variable} name the program"
        )


class Redis(Server):
    name: str = "redis"
    port: int = 6380
    health: str = REDIS
    variable: str = "ZAE_LIMITER_REDIS_SERVER"
    program: str = "redis-server"
    package: str = "redis-server"
    programs: tuple[str, ...] = ("redis-server", "valkey-server")

    def prepare(self, program: Path) -> None:
        del program
        self.home.mkdir(mode=0o700, parents=True, exist_ok=True)

    def command(self, program: Path, port: int) -> Command:
        kept = ("--dir", str(self.home), "--appendonly", "yes", "--save", "")
        return Command((str(program), "--bind", HOST, "--port", str(port), *kept), {}, self.home)

    def endpoint_url(self, port: int) -> str:
        return f"redis://{HOST}:{port}/0"

    def environment(self, port: int, table: str) -> dict[str, str]:
        del table
        return {"ZAE_LIMITER_STORE": self.endpoint_url(port)}


class Postgres(Server):
    name: str = "postgres"
    port: int = 5433
    health: str = POSTGRES
    variable: str = "ZAE_LIMITER_POSTGRES"
    program: str = "postgres"
    package: str = "postgresql"
    programs: tuple[str, ...] = ("postgres",)
    has_tables = True
    ends_by = signal.SIGINT  # at once; at a TERM it waits until its clients have left

    def find(self) -> Path | None:
        if (found := super().find()) is not None:
            return found
        by_version = sorted(CLUSTERS.glob("*/bin/postgres"), key=lambda path: _number(path.parts[-3]))
        return by_version[-1] if by_version else None

    @property
    def _data(self) -> Path:
        return self.home / "data"

    @property
    def _password(self) -> Path:
        return self.home / "password"

    def prepare(self, program: Path) -> None:
        """Make the cluster; one that an interrupted start left half made is made anew."""
        self.home.mkdir(mode=0o700, parents=True, exist_ok=True)
        _lend(self.home)
        if self._data.exists():
            return
        new, world = self.home / "new", World()
        shutil.rmtree(new, ignore_errors=True)
        self._password.touch(mode=0o600)
        self._password.write_text(world.new_token() + world.new_token(), encoding="ascii")
        _lend(self._password)
        who = ("--auth", "scram-sha-256", "--username", "postgres", "--pwfile", str(self._password))
        how = ("--encoding", "UTF8", "--locale", "C", "--pgdata", str(new))
        words = [*_as_somebody(self.home), str(program.with_name("initdb")), *who, *how]
        try:
            done = subprocess.run(words, check=False, capture_output=True, text=True, cwd="/")
        except OSError as error:
            raise InfrastructureError(f"initdb could not be started: {error}") from error
        if done.returncode != 0:
            said = (done.stderr or done.stdout).strip().splitlines()
            raise InfrastructureError(f"initdb failed: {' '.join(said[-3:])}")
        new.rename(self._data)

    def command(self, program: Path, port: int) -> Command:
        # Everybody could look for a socket; who knows the password comes by loopback.
        here = ("-h", HOST, "-p", str(port), "-c", "unix_socket_directories=")
        words = (*_as_somebody(self.home), str(program), "-D", str(self._data), *here)
        return Command(words, {}, Path("/"))

    def endpoint_url(self, port: int) -> str:
        return f"postgresql://{HOST}:{port}/postgres"

    def environment(self, port: int, table: str) -> dict[str, str]:
        del table
        try:
            password = self._password.read_text(encoding="ascii").strip()
        except OSError as error:
            raise InfrastructureNotFoundError(
                f"there is no cluster in {str(self.home)!r}; start it with: "
                "zae-limiter local up --engine postgres"
            ) from error
        return {"ZAE_LIMITER_STORE": f"postgresql://postgres:{password}@{HOST}:{port}/postgres"}


def _number(version: str) -> int:
    return int(version) if version.isdigit() else 0


def _service_user() -> pwd.struct_passwd | None:
    """As whom root runs what refuses to be run by root."""
    for name in SERVICE_USERS if os.geteuid() == 0 else ():
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    return None


def _as_somebody(place: Path) -> list[str]:
    """The words before a command that root must not run."""
    if (user := _service_user()) is None:
        return []
    for folder in reversed(place.parents):
        if not folder.stat().st_mode & stat.S_IXOTH:
            raise InfrastructureError(
                f"PostgreSQL refuses to be run by root, and user {user.pw_name!r} cannot enter "
                f"{str(folder)!r}; run this as another user, or set XDG_STATE_HOME to a directory "
                "that it can enter, such as /var/lib"
            )
    return ["setpriv", "--reuid", str(user.pw_uid), "--regid", str(user.pw_gid), "--clear-groups"]


def _lend(path: Path) -> None:
    """Let the user have it as whom a command runs; others can pass by, and look at nothing."""
    if (user := _service_user()) is not None:
        os.chown(path, user.pw_uid, user.pw_gid)
        if path.is_dir():
            path.parent.chmod(0o711)


ENGINES: dict[str, Engine] = {
    engine.name: engine for engine in (Ministack(), DynamoDBLocal(), Redis(), Postgres())
}
