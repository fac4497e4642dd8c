"""The pages that people trust: each claim has a test that is there, each dependency a row and a decision."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
TEST = re.compile(r"`(tests/[\w/]+\.py)`")
ROW = re.compile(
    r"^\| `(\w+)` \| ([\w-]+) \| ([\d.]+) \| \[\d{4}\]\((adr/[\w.-]+\.md)(?:#[\w-]+)?\) \|$", re.MULTILINE
)
CLAIMS_MIN = {"threat-model.md": 25, "compatibility.md": 12}


def rows_without_tests(page: str) -> list[str]:
    """Rows of tables that say what somebody cannot do and name no test; a dash is no claim."""
    rows = [row for row in page.splitlines() if row.startswith("| ") and not row.startswith("| they c")]
    return [row for row in rows if not TEST.search(row) and "| – " not in row]


@pytest.mark.parametrize("name", CLAIMS_MIN)
def test_what_shows_a_claim_is_there(name: str) -> None:
    """A test that is named can be run."""
    named = TEST.findall((DOCS / name).read_text(encoding="utf-8"))
    assert len(named) >= CLAIMS_MIN[name]
    assert [path for path in named if not (ROOT / path).is_file()] == []


def test_every_threat_names_its_test() -> None:
    assert rows_without_tests((DOCS / "threat-model.md").read_text(encoding="utf-8")) == []


def test_a_claim_without_a_test_is_seen() -> None:
    page = "| they can | they cannot | shown by |\n|---|---|---|\n"
    page += "| a | b | `tests/test_tidy.py` |\n| c | d | |\n"
    assert rows_without_tests(page) == ["| c | d | |"]


def test_every_dependency_has_a_row_and_a_decision() -> None:
    """With its extra and its lower bound, as the project has them; and the decision names it."""
    page = (DOCS / "dependencies.md").read_text(encoding="utf-8")
    told = {(extra, name, least): DOCS / path for extra, name, least, path in ROW.findall(page)}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["dependencies"] == []
    wanted = {
        (extra, *one.split(">="))
        for extra, needed in project["optional-dependencies"].items()
        for one in needed
    }
    assert set(told) == wanted
    wrong = [key for key, path in told.items() if key[1] not in path.read_text(encoding="utf-8").lower()]
    assert wrong == []


def test_how_to_report_is_told() -> None:
    """A place that is not public, and what counts."""
    page = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    assert "Report a vulnerability" in page
    assert "docs/threat-model.md" in page
