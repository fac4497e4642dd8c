"""The type checkers that users have, each as a command on files, with a package installed beside them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ENGINES = ROOT / ".engines"
PYRIGHT = ENGINES / "node_modules" / "pyright" / "index.js"
TYPES = ENGINES / "types" / "bin"
PYTHON = "3.11"


Words = list[str | Path]


def _run(command: Sequence[str | Path], place: Path, **more: str) -> tuple[int, str]:
    words, env = [str(part) for part in command], {**os.environ, **more}
    ran = subprocess.run(words, cwd=place, env=env, capture_output=True, text=True, check=False)
    return ran.returncode, ran.stdout + ran.stderr


def _mypy(files: Sequence[Path], python: Path, place: Path) -> tuple[int, str]:
    """Nothing of our own settings: ``--strict`` and no more."""
    flags: Words = ["--strict", "--config-file=", f"--cache-dir={place / 'mypy'}"]
    flags += [f"--python-version={PYTHON}", f"--python-executable={python}"]
    return _run([sys.executable, "-m", "mypy", *flags, *files], place)


def _pyright(files: Sequence[Path], python: Path, place: Path) -> tuple[int, str]:
    settings = place / "pyrightconfig.json"
    wanted = {"typeCheckingMode": "strict", "pythonVersion": PYTHON, "include": ["*.py"]}
    settings.write_text(json.dumps(wanted), encoding="utf-8")
    for file in files:  # it takes files or settings, not both
        (place / file.name).write_text(file.read_text(encoding="utf-8"), encoding="utf-8")
    return _run(["node", PYRIGHT, "--project", settings, "--pythonpath", python], place)


def _pyrefly(files: Sequence[Path], python: Path, place: Path) -> tuple[int, str]:
    settings = place / "pyrefly.toml"
    settings.write_text(f'preset = "strict"\npython-version = "{PYTHON}"\n', encoding="utf-8")
    flags: Words = ["--config", settings, "--python-interpreter-path", python]
    return _run([TYPES / "pyrefly", "check", "--output-format", "min-text", *flags, *files], place)


def _ty(files: Sequence[Path], python: Path, place: Path) -> tuple[int, str]:
    flags: Words = ["--python", python.parents[1], "--python-version", PYTHON]
    flags += ["--no-progress", "--error-on-warning", "--output-format", "concise"]
    return _run([TYPES / "ty", "check", *flags, *files], place)


CHECKERS: dict[str, Callable[[Sequence[Path], Path, Path], tuple[int, str]]] = {
    "mypy": _mypy,
    "pyright": _pyright,
    "pyrefly": _pyrefly,
    "ty": _ty,
}


def completeness(package: str, python: Path, place: Path) -> dict[str, object]:
    """What pyright's verifier says of all public names of an installed package."""
    (packages,) = python.parents[1].glob("lib/python*/site-packages")
    command: Words = ["node", PYRIGHT, "--verifytypes", package, "--ignoreexternal", "--outputjson"]
    _, printed = _run([*command, "--pythonpath", python], place, PYTHONPATH=str(packages))
    report: dict[str, object] = json.loads(printed)["typeCompleteness"]
    return report
