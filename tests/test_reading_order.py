"""The reading order of CONTRIBUTING: how long each file is, and that a newcomer can read it all."""

import os
import re
from pathlib import Path

import pytest

from tests.house_rules import READING_LINES_MAX

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "CONTRIBUTING.md"
ENTRY = re.compile(r"^\d+\. `(?P<path>[\w/.]+)` \((?P<count>[\d,]+) lines\)", re.MULTILINE)


def lines_of(path: str) -> int:
    return (ROOT / path).read_text().count("\n")


def corrected(text: str) -> str:
    """A page with the length that each file of its reading order has."""

    def entry(it: re.Match[str]) -> str:
        return it[0].replace(f"({it['count']} lines)", f"({lines_of(it['path'])} lines)")

    return ENTRY.sub(entry, text)


def test_the_lengths_are_true() -> None:
    """Each entry says how many lines its file has; ``UPDATE_SNAPSHOTS=1`` corrects them."""
    text = PAGE.read_text()
    if os.environ.get("UPDATE_SNAPSHOTS"):
        PAGE.write_text(corrected(text))
    said = {entry["path"]: int(entry["count"]) for entry in ENTRY.finditer(PAGE.read_text())}
    assert said == {path: lines_of(path) for path in said}


def test_the_whole_idea_can_be_read() -> None:
    """Somebody who is new reads no more than this to understand what happens to a bucket."""
    paths = [entry["path"] for entry in ENTRY.finditer(PAGE.read_text())]
    assert len(paths) == len(set(paths)) > 5
    assert sum(map(lines_of, paths)) <= READING_LINES_MAX


@pytest.mark.parametrize("said", ["1", "9,999"])
def test_a_wrong_length_is_seen(said: str) -> None:
    """Whatever a page says of a file, its length is put in its place."""
    right = f"2. `CONTRIBUTING.md` ({lines_of('CONTRIBUTING.md')} lines): this page"
    assert corrected(right) == right
    assert corrected(f"2. `CONTRIBUTING.md` ({said} lines): this page") == right
