"""An environment as a user has it: the wheel, what its extras need, and nothing else of ours.

Nothing is fetched. What the extras need is linked from the environment of the tests, package by package, so
that what is only there for development is not found.
"""

from __future__ import annotations

import re
import subprocess
import sys
import venv
from collections.abc import Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
NAME = re.compile(r"[A-Za-z0-9._-]+")
EXTRAS = frozenset({"cli", "dynamodb"})


def build(place: Path) -> Path:
    """The wheel of this checkout."""
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(place)],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    (wheel,) = place.glob("*.whl")
    return wheel


def needed(names: Iterator[str] | list[str], extras: frozenset[str] = frozenset()) -> dict[str, Distribution]:
    """The distributions that some need, with all that these need; what other systems need is not here."""
    found: dict[str, Distribution] = {}
    waiting = [(name, extras) for name in names]
    while waiting:
        name, wanted = waiting.pop()
        try:
            dist = distribution(name)
        except PackageNotFoundError:
            continue
        if name in found and not wanted:
            continue
        found[name] = dist
        for requirement in dist.requires or ():
            word, _, marker = requirement.partition(";")
            extra = re.search(r"extra\s*==\s*['\"]([^'\"]+)", marker)
            if extra is None or extra[1] in wanted:
                match = NAME.match(word)
                assert match is not None, requirement
                if match[0].lower() not in found:
                    waiting.append((match[0].lower(), frozenset()))
    return found


def environment(place: Path, wheel: Path, extras: frozenset[str] = EXTRAS) -> Path:
    """A virtual environment with the wheel; returns where its programs are."""
    venv.create(place, symlinks=True, with_pip=False)
    programs = place / "bin"
    (packages,) = place.glob("lib/python*/site-packages")
    for name, dist in needed(["zae-limiter"], extras).items():
        if name == "zae-limiter":
            continue
        for top in {file.parts[0] for file in dist.files or () if file.parts[0] not in ("..", "__pycache__")}:
            if not (packages / top).exists():
                (packages / top).symlink_to(Path(str(dist.locate_file(top))))
    command = [sys.executable, "-m", "pip", "--python", str(programs / "python"), "install", "--quiet"]
    flags = ["--no-deps", "--no-index", "--disable-pip-version-check"]
    subprocess.run([*command, *flags, str(wheel)], check=True)
    return programs
