"""The pages that people trust: each claim has a test that is there, each dependency a row and a decision."""

from __future__ import annotations

import ast
import functools
import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
TEST = re.compile(r"`(tests/[\w/]+\.py)(?:::(\w+))?`")
ROW = re.compile(
    r"^\| `(\w+)` \| ([\w-]+) \| ([\d.]+) \| \[\d{4}\]\((adr/[\w.-]+\.md)(?:#[\w-]+)?\) \|$", re.MULTILINE
)
CLAIMS_MIN = {"threat-model.md": 40, "compatibility.md": 16}


@functools.cache
def named_in(path: Path) -> frozenset[str]:
    """The names of the functions of a file by which pytest finds a test."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    names = [node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    return frozenset(name for name in names if name.startswith("test_"))


def not_there(page: str) -> list[str]:
    """What a page names to show a claim and nobody can run: a file, a test in it, or a whole file."""
    return [
        f"{path}::{name}"
        for path, name in TEST.findall(page)
        if not (ROOT / path).is_file() or name not in named_in(ROOT / path)
    ]


def rows_without_tests(page: str) -> list[str]:
    """Rows of tables that say what somebody cannot do and name no test; a dash is no claim."""
    rows = [row for row in page.splitlines() if row.startswith("| ") and not row.startswith("| they c")]
    return [row for row in rows if not TEST.search(row) and "| – " not in row]


def chapters(page: str) -> dict[str, str]:
    """The text below each heading."""
    found = re.split(r"^## (.+)$", page, flags=re.MULTILINE)
    return dict(zip(found[1::2], found[2::2], strict=True))


@pytest.mark.parametrize("name", CLAIMS_MIN)
def test_what_shows_a_claim_is_there(name: str) -> None:
    """Each is a test that is named by its file and its function, and can be run."""
    page = (DOCS / name).read_text(encoding="utf-8")
    assert len(TEST.findall(page)) >= CLAIMS_MIN[name]
    assert not_there(page) == []


def test_every_threat_names_its_test() -> None:
    assert rows_without_tests((DOCS / "threat-model.md").read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    "who", ["A tenant", "A client", "Somebody on the network", "A process", "An operator"]
)
def test_everybody_has_a_table(who: str) -> None:
    """Of what they can and cannot do, with a row for each."""
    found = chapters((DOCS / "threat-model.md").read_text(encoding="utf-8"))
    (text,) = (text for title, text in found.items() if title.startswith(who))
    assert "| they can | they cannot | shown by |" in text
    assert len(re.findall(r"^\| .+::test_", text, re.MULTILINE)) >= 2


def test_a_claim_without_a_test_is_seen() -> None:
    """No test, one that is not there, in a file that is not there, and a file without one."""
    here = "`tests/documents/test_trust.py::test_a_claim_without_a_test_is_seen`"
    page = "| they can | they cannot | shown by |\n|---|---|---|\n"
    page += f"| a | b | {here} |\n| c | d | |\n"
    assert rows_without_tests(page) == ["| c | d | |"]
    assert not_there(page) == []
    wrong = [
        "tests/documents/test_trust.py::test_of_nothing",
        "tests/documents/test_trust.py::chapters",
        "tests/documents/test_gone.py::test_what",
        "tests/documents/test_trust.py::",
    ]
    assert not_there(" ".join(f"`{one.removesuffix('::')}`" for one in wrong)) == wrong


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
    """By a way that is not public, also where its button is missing; and by when one hears."""
    page = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    report = chapters(page)["Report a vulnerability"]
    assert 'then "Report a vulnerability"' in report
    assert "do not open an issue" in report
    assert "no such button" in report
    assert "within a week" in report
    assert "docs/threat-model.md" in page


def test_no_address_is_made_up() -> None:
    """The project names no address, so the page has none; once it names one, the page leads there."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    page = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    assert set(re.findall(r"https?://[^\s)]+", page)) <= set(project.get("urls", {}).values())
    assert ("urls" in project) is ("There is no email address" not in page)
