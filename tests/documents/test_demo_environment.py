"""`make demo` and `make demo-ui` need little, so that a fresh clone shows something within seconds."""

import re
from pathlib import Path

import pytest

from tests.documents.wheel import needed

ROOT = Path(__file__).resolve().parents[2]
PIN = re.compile(r"^([A-Za-z0-9._-]+)==([^ ;]+)", re.MULTILINE)
ELSEWHERE = {"colorama"}
"""What the command line needs on other systems than this one."""


def pins(name: str) -> dict[str, str]:
    return dict(PIN.findall((ROOT / "requirements" / name).read_text(encoding="utf-8")))


def test_the_demos_install_what_the_command_line_and_the_page_need_and_nothing_else() -> None:
    """The same versions as everybody else has."""
    demo, everything = pins("demo.lock"), pins("dev.lock")
    wanted = {name.replace("_", "-") for name in needed(frozenset({"cli", "server"}))}
    assert set(demo) - ELSEWHERE == wanted - ELSEWHERE
    assert demo == {name: everything[name] for name in demo}


@pytest.mark.parametrize("demo", ["demo", "demo-ui"])
def test_the_demos_have_an_environment_of_their_own(demo: str) -> None:
    """They neither make the environment of development nor build the project."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    (rule,) = re.findall(rf"^{demo}: (.*?) ## .*\n((?:\t.*\n)+)", makefile, re.MULTILINE)
    assert rule[0] == "$(DEMO)/.ready"
    assert "$(BIN)" not in rule[1]
    (made,) = re.findall(r"^\$\(DEMO\)/\.ready: (.*)\n((?:\t.*\n)+)", makefile, re.MULTILINE)
    assert made[0] == "requirements/demo.lock"
    assert "-e ." not in made[1]
