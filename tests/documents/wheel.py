"""An environment as a user has it: the wheel, what its extras need, and nothing else of ours.

Nothing is fetched. What the extras need is linked from the environment of the tests, package by package, so
that what is only there for development is not found.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
import venv
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
NAME = re.compile(r"[A-Za-z0-9._-]+")
EXTRAS = frozenset({"cli", "dynamodb", "fastapi"})


def build(place: Path, project: Path = ROOT) -> Path:
    """The wheel of this checkout, or of another project in it."""
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(place)],
        cwd=project,
        check=True,
        capture_output=True,
    )
    (wheel,) = place.glob("*.whl")
    return wheel


def needed(extras: frozenset[str] = EXTRAS, others: frozenset[str] = frozenset()) -> dict[str, Distribution]:
    """The distributions that some extras need, and others, with all that these need, on this system."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    waiting = [
        *project["dependencies"],
        *others,
        *(one for e in extras for one in project["optional-dependencies"][e]),
    ]
    found: dict[str, Distribution] = {}
    while waiting:
        word, _, marker = waiting.pop().partition(";")
        match = NAME.match(word)
        assert match is not None, word
        name = match[0].lower()
        if name in found or "extra" in marker:
            continue
        try:
            found[name] = distribution(name)
        except PackageNotFoundError:
            assert marker, f"{name} is not installed"  # another system needs it
            continue
        waiting += found[name].requires or ()
    return found


def environment(
    place: Path, wheel: Path, extras: frozenset[str] = EXTRAS, others: frozenset[str] = frozenset()
) -> Path:
    """A virtual environment with the wheel; returns where its programs are."""
    venv.create(place, symlinks=True, with_pip=False)
    programs = place / "bin"
    (packages,) = place.glob("lib/python*/site-packages")
    for dist in needed(extras, others).values():
        for top in {file.parts[0] for file in dist.files or () if file.parts[0] not in ("..", "__pycache__")}:
            if not (packages / top).exists():
                (packages / top).symlink_to(Path(str(dist.locate_file(top))))
    install(programs, wheel)
    return programs


def install(programs: Path, wheel: Path) -> None:
    """Put one more wheel into an environment."""
    command = [sys.executable, "-m", "pip", "--python", str(programs / "python"), "install", "--quiet"]
    flags = ["--no-deps", "--no-index", "--disable-pip-version-check"]
    subprocess.run([*command, *flags, str(wheel)], check=True)
