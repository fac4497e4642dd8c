"""What the site has, in the order of its menu, which is that of `docs/contents.md`.

Each heading there is a group, and the first link of each row a page; its title is the page's own first
heading. A page that is in no group fails the build. `GENERATED` are made when the site is built, from the
code.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

GENERATED = "generated/"
"""Before the name of a page that is made from the code."""

MADE: dict[str, tuple[str, ...]] = {
    "Reference": (f"{GENERATED}commands.md", f"{GENERATED}api.md"),
    "Decisions": (f"{GENERATED}decisions.md",),
}
"""Which of them come first in a group."""

HOME = "docs/index.md"
"""The first page; it is in no group."""

LIST = "docs/contents.md"
"""The page that says what is where; it is the last of the first group, which leads to its first page."""


def pages() -> dict[str, tuple[str, ...]]:
    """The groups, with the pages that a folder stands for."""
    groups: dict[str, tuple[str, ...]] = {}
    for section in (ROOT / LIST).read_text(encoding="utf-8").split("\n## ")[1:]:
        group = section.partition("\n")[0]
        links = re.findall(r"^\| \[.*?\]\((.*?)\)", section, re.MULTILINE)
        named = [posixpath.normpath(posixpath.join("docs", link)) for link in links]
        last = () if groups else (LIST,)
        found = (page for name in named for page in _within(name) if page != HOME)
        groups[group] = (*MADE.get(group, ()), *found, *last)
    return groups


def _within(name: str) -> list[str]:
    if not (ROOT / name).is_dir():
        return [name]
    return sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / name).glob("*.md"))


def written() -> list[str]:
    """Every page that somebody wrote and that belongs on the site."""
    roots = (
        *("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md"),
        *("examples/README.md", "examples/store/README.md"),
    )
    return [*roots, *sorted(path.relative_to(ROOT).as_posix() for path in ROOT.glob("docs/**/*.md"))]


def missing() -> list[str]:
    """Pages that are in no group, in two, or named and not there."""
    named = [page for group in pages().values() for page in group if not page.startswith(GENERATED)]
    return [
        *(f"{page} is in no group of {LIST}" for page in written() if page not in {*named, HOME}),
        *(f"{page} is in {LIST} and not there" for page in named if page not in written()),
        *(f"{page} is twice in {LIST}" for page in sorted(set(named)) if named.count(page) > 1),
    ]


def place(page: str) -> str:
    """Where a page of the repository is on the site, as Markdown."""
    if page == "README.md":
        return "readme.md"
    if page.startswith(GENERATED):
        return f"reference/{page.removeprefix(GENERATED)}"
    if page.endswith("/README.md"):
        return f"{page.removesuffix('/README.md')}.md"
    return page.removeprefix("docs/") if page.startswith("docs/") else page.lower()
