"""`make demo` needs little, so that a fresh clone shows something within seconds."""

import re
from pathlib import Path

from tests.documents.wheel import needed

ROOT = Path(__file__).resolve().parents[2]
PIN = re.compile(r"^([A-Za-z0-9._-]+)==([^ ;]+)", re.MULTILINE)
ELSEWHERE = {"colorama"}
"""What the command line needs on other systems than this one."""


def pins(name: str) -> dict[str, str]:
    return dict(PIN.findall((ROOT / "requirements" / name).read_text(encoding="utf-8")))


def test_the_demo_installs_what_the_command_line_needs_and_nothing_else() -> None:
    """The same versions as everybody else has."""
    demo, everything = pins("demo.lock"), pins("dev.lock")
    wanted = set(needed(frozenset({"cli"})))
    assert set(demo) - ELSEWHERE == wanted - ELSEWHERE
    assert demo == {name: everything[name] for name in demo}


def test_the_demo_has_an_environment_of_its_own() -> None:
    """It neither makes the environment of development nor builds the project."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    (rule,) = re.findall(r"^demo: (.*?) ## .*\n((?:\t.*\n)+)", makefile, re.MULTILINE)
    assert rule[0] == "$(DEMO)/.ready"
    assert "$(BIN)" not in rule[1]
    (made,) = re.findall(r"^\$\(DEMO\)/\.ready: (.*)\n((?:\t.*\n)+)", makefile, re.MULTILINE)
    assert made[0] == "requirements/demo.lock"
    assert "-e ." not in made[1]
