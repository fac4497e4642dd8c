"""``make newcomer``: do what the README says, as somebody who has nothing but a clone of it.

The commands of the README run from its top to the first refused request, in a fresh clone of the committed
state and an environment that knows nothing of ours: a home of its own and the path. The README clones from
`REPOSITORY_URL`, which is this checkout here. Each command is told with the seconds it took. `make test` is
not run here, for it is the whole verdict.

It needs what the README says that one needs, and no package: the public workflow runs it in a container that
has Python, git and make.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from tests.documents.blocks import Step, agrees, steps_of

ROOT = Path(__file__).resolve().parents[2]
SECONDS_MAX = 180
NOT_HERE = frozenset({"make test"})
ADDRESS = "REPOSITORY_URL"
"""What the README clones; its reader knows from where it is read."""
PROXIES = ("http_proxy", "https_proxy", "no_proxy")
KEPT = frozenset({"PATH", "LANG", "SSL_CERT_FILE", *PROXIES, *map(str.upper, PROXIES)})
"""What a fresh environment has; how the packages are reached is that of the machine."""


def environment(home: Path) -> dict[str, str]:
    machine = {name: value for name, value in os.environ.items() if name in KEPT or name.startswith("PIP_")}
    return machine | {"HOME": str(home)}


def home_in(place: Path) -> Path:
    """A home that trusts the checkout, which may be somebody else's, as in a container."""
    home = place / "home"
    home.mkdir()
    (home / ".gitconfig").write_text("[safe]\n\tdirectory = *\n", encoding="utf-8")
    return home


def refused(printed: str) -> bool:
    return any(line.startswith("request") and "refused" in line for line in printed.splitlines())


def walk(page: str, repository: Path) -> list[Step]:
    """What the page tells its reader to do, with an address to clone from."""
    steps = steps_of(page, NOT_HERE)
    return [replace(step, command=step.command.replace(ADDRESS, str(repository))) for step in steps]


def follow(steps: list[Step], place: Path, home: Path) -> float:
    """Do one step after the other in one shell; returns the seconds until a request was refused."""
    begun = time.monotonic()
    with subprocess.Popen(
        ["bash", "--norc"],
        cwd=place,
        env=environment(home),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as shell:
        assert shell.stdin is not None
        assert shell.stdout is not None
        for step in steps:
            started = time.monotonic()
            shell.stdin.write(f'{step.command}\necho "=ended= $?"\n')
            shell.stdin.flush()
            printed = ""
            for line in shell.stdout:
                if line.startswith("=ended= "):
                    break
                printed += line
            print(f"{time.monotonic() - started:6.1f} s  {step.command.splitlines()[0]}", flush=True)
            assert line == "=ended= 0\n", f"{step.command} ended with {line}\n{printed}"
            # What `make` and `pip` print on their way is theirs.
            assert not step.printed or agrees(step.printed, printed), printed
            if step.printed and refused(printed):
                return time.monotonic() - begun
    raise AssertionError("nothing in the README is refused")


def main() -> None:
    page = (ROOT / "README.md").read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory() as place:
        took = follow(walk(page, ROOT), Path(place), home_in(Path(place)))
    print(f"{took:6.1f} s  from the clone to the first refused request, at most {SECONDS_MAX}")
    sys.exit(took > SECONDS_MAX)


if __name__ == "__main__":
    main()
