"""What pages tell people to say to `make` is there, and so is all of a contributor's first hour."""

from __future__ import annotations

import re

import pytest
import yaml

from tests.documents.test_paths import PAGES, ROOT

SAID = re.compile(r"(?:`|^\$ )make ([a-z][a-z-]*)", re.MULTILINE)
LINK = re.compile(r"\]\(([^)#]*)(?:#([\w-]+))?\)")
PATH = re.compile(r"`((?:\.?[\w-]+/)+[\w.-]+|\.?[\w-]+\.(?:md|py|toml))`")


def targets() -> frozenset[str]:
    """What the Makefile lists in its help, and so for people."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    return frozenset(re.findall(r"^([a-z-]+):.*## ", makefile, re.MULTILINE))


def first_hour() -> str:
    """The table of it."""
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    rows = page.partition("## Your first hour")[2].partition("\n## ")[0].splitlines()
    return "\n".join(row for row in rows if row.startswith("| "))


def headings(page: str) -> set[str]:
    """What a link can lead to within a page."""
    titles = re.findall(r"^#+ (.+)$", page, re.MULTILINE)
    return {re.sub(r"[^\w-]", "", title.lower().replace(" ", "-")) for title in titles}


def missing(table: str) -> list[str]:
    """Targets, files, links and jobs that a table names and nobody finds."""
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    wrong = [f"make {name}" for name in SAID.findall(table) if name not in targets()]
    wrong += [path for path in PATH.findall(table) if not (ROOT / path).exists()]
    for path, place in LINK.findall(table):
        there = not path or (ROOT / path).is_file()
        text = (ROOT / path).read_text(encoding="utf-8") if path and there else page
        wrong += [] if there and (not place or place in headings(text)) else [f"{path}#{place}"]
    return wrong


@pytest.mark.parametrize("page", PAGES)
def test_what_a_page_says_to_make_is_a_target(page: str) -> None:
    """Of those that `make help` lists."""
    said = SAID.findall((ROOT / page).read_text(encoding="utf-8"))
    assert [name for name in said if name not in targets()] == []


def test_the_first_hour_can_be_done() -> None:
    """Every command, file and link of its table is there, from the clone to the change that is open."""
    table = first_hour()
    assert {"demo", "quick", "walk", "format", "check", "test"} <= set(SAID.findall(table))
    assert missing(table) == []
    last = table.splitlines()[-1]
    assert "push" in last
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8"))["jobs"]
    assert [name for name in jobs if f"`{name}`" not in last] == []


def test_what_is_missing_is_seen() -> None:
    """Each kind, right and wrong."""
    right = "`make test TESTS=x`, [map](#map), [words](docs/glossary.md), `CHANGELOG.md`, `.ci/run`"
    assert missing(right) == []
    wrong = "`make gold`, [map](#treasure), [words](docs/gone.md), `GONE.md`, `tests/gone/test_it.py`"
    assert len(missing(wrong)) == 5


def test_what_one_needs_is_told_first() -> None:
    """Before the first command: what the rules of the Makefile ask for, in the words of their messages."""
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    told = page.partition("## Set up and run")[2].partition("```")[0]
    assert [
        need for need in ("Python 3.11", "git", "make", "Java 17", "npm", "root", "sudo") if need not in told
    ] == []
