"""A page names the extras that its reader needs for what it runs; the environments of the tests have all."""

from __future__ import annotations

import ast
import functools
import re
import tomllib
from importlib.metadata import packages_distributions

import pytest

from tests.documents.blocks import Step, steps_of
from tests.documents.test_documents import PAGES, ROOT
from tests.documents.wheel import needed

EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"][
    "optional-dependencies"
]
RUNS = {
    "cli": re.compile(r"^zae-limiter\b"),
    "server": re.compile(r"^zae-limiter (?:serve --|demo --ui)"),
    "grpc": re.compile(r"^zae-limiter serve .*--grpc\b"),
    "postgres": re.compile(r"postgresql://"),
    "dynamodb": re.compile(r"dynamodb://|^zae-limiter (?:deploy|status|list|delete|table create$)"),
}
"""Which extra a command needs."""
INSTALLS = re.compile(r"^\$ pip install .*\.\[", re.MULTILINE)
OTHERS = {"docs/add-a-framework.md": {"aiohttp"}}
"""Modules that a page is about, and that come with an extra by chance."""


def named(page: str) -> set[str]:
    """The extras that a page names, by themselves or in brackets."""
    return {one for one in EXTRAS if re.search(rf"`{one}`|\[[\w,]*\b{one}\b[\w,]*\]", page)}


def modules(steps: list[Step]) -> set[str]:
    """What the programs of a page import, but for blocks that need another library anyway."""
    found = set()
    for step in (
        one for one in steps if not one.library and re.match(r"python - |cat > \S+\.py ", one.command)
    ):
        for node in ast.walk(ast.parse(step.command.partition("\n")[2].removesuffix("END_OF_FILE"))):
            if isinstance(node, ast.Import):
                found |= {one.name.partition(".")[0] for one in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                found.add(node.module.partition(".")[0])
    return found


@functools.cache
def bringing() -> dict[str, set[str]]:
    """The extras with which each module comes."""
    brought = {extra: {one.replace("_", "-") for one in needed(frozenset({extra}))} for extra in EXTRAS}
    return {
        module: {
            extra for extra in EXTRAS if brought[extra] & {one.lower().replace("_", "-") for one in homes}
        }
        for module, homes in packages_distributions().items()
    }


def unnamed(page: str, others: frozenset[str] = frozenset()) -> list[str]:
    """Of each extra that a page needs and does not name, what needs it.

    The command line is what most pages are about, so a page names that only where it says what to install.
    """
    steps, told = steps_of(page, frozenset()), named(page)
    wrong = []
    for module in sorted(modules(steps) - others):
        bringers = bringing().get(module, set())
        wrong += [f"import {module}"] if bringers and not bringers & told else []
    for extra in RUNS.keys() - told:
        if extra != "cli" or INSTALLS.search(page):
            wrong += [f"{extra}: {one.first}" for one in steps if RUNS[extra].search(one.first)]
    return wrong


@pytest.mark.parametrize("name", PAGES)
def test_what_a_page_needs_is_named(name: str) -> None:
    """By the name of its extra: in a line that installs it, or in words."""
    page = (ROOT / name).read_text(encoding="utf-8")
    assert unnamed(page, frozenset(OTHERS.get(name, ()))) == []


def test_an_extra_that_is_not_named_is_seen() -> None:
    """An import, a command, the command line where something else is installed; in words or in brackets."""
    program = "```python\nfrom fastapi import FastAPI\n```\n"
    assert unnamed(program) == ["import fastapi"]
    assert unnamed(f"It needs the extra `fastapi`.\n{program}") == []
    command = "```console\n$ zae-limiter table create --store postgresql://x\n```\n"
    assert unnamed(command) == ["postgres: zae-limiter table create --store postgresql://x"]
    install = '```console\n$ pip install ".[postgres]"\n```\n'
    assert unnamed(install + command) == ["cli: zae-limiter table create --store postgresql://x"]
    assert unnamed(install.replace("[", "[cli,") + command) == []
