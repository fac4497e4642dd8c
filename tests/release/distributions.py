"""The wheel and the source distribution, made so that whoever builds the same commit gets the same bytes."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
EPOCH = "1700000000"
"""What files are dated by: a build that says the time of day is never the same twice."""


def build(place: Path, epoch: str = EPOCH, root: Path = ROOT) -> list[Path]:
    """Both distributions of a checkout, in an empty folder."""
    place.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-t", "wheel", "-d", str(place)]
    env = {**os.environ, "SOURCE_DATE_EPOCH": epoch}
    subprocess.run(command, cwd=root, env=env, check=True, capture_output=True)
    return sorted(place.iterdir())


def differences(one: list[Path], other: list[Path]) -> list[str]:
    """The files of two builds that are not the same, byte for byte."""
    pairs = {path.name: path.read_bytes() for path in one}
    others = {path.name: path.read_bytes() for path in other}
    return [name for name in sorted({*pairs, *others}) if pairs.get(name) != others.get(name)]


def names_in(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as archive:
        return archive.namelist()
