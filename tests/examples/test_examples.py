"""What all examples have in common: they are short, and their page says how each is started."""

import re

import pytest

from tests.examples.servers import EXAMPLES, ROOT

LINES_MAX = 119
FILES = {path.name: [path] for path in EXAMPLES.glob("*.py")}
FOLDERS = {"django_site": sorted((EXAMPLES / "django_site").glob("*.py"))}
STORE = {"store"}
"""What is no application: tests/examples/test_store.py is about it."""
PAGE = (EXAMPLES / "README.md").read_text()


@pytest.mark.parametrize("name", sorted(FILES | FOLDERS))
def test_an_example_is_short(name: str) -> None:
    """All files of it together."""
    assert sum(len(path.read_text().splitlines()) for path in (FILES | FOLDERS)[name]) <= LINES_MAX


def test_every_example_is_tested() -> None:
    """A folder with programs is an application here, or the store."""
    assert {path.name for path in EXAMPLES.iterdir() if any(path.glob("*.py"))} == FOLDERS.keys() | STORE


def test_the_page_starts_each_in_two_lines() -> None:
    """And each by the name of a module that is there, as its own docstring says."""
    blocks = re.findall(r"```console\n(.*?)```", PAGE, re.DOTALL)
    assert [block.count("$ ") for block in blocks] == [2] * 4
    named = {re.search(r"examples\.([\w.]+)", block.splitlines()[-1])[1] for block in blocks}  # type: ignore[index]
    started = {path for name in named if (path := EXAMPLES / f"{name.replace('.', '/')}.py").exists()}
    assert {path.relative_to(EXAMPLES).parts[0] for path in started} == FILES.keys() | FOLDERS.keys()
    for block in blocks:
        line = block.splitlines()[-1].removeprefix("$ ")
        told = [path for paths in (FILES | FOLDERS).values() for path in paths if line in path.read_text()]
        assert len(told) == 1, line


def test_links_lead_somewhere() -> None:
    """From the page of the examples to the others, and back."""
    links = re.findall(r"\]\(([^)#]+)", PAGE)
    assert [link for link in links if not (EXAMPLES / link).exists()] == []
    for page in ("README.md", "docs/gateway.md"):
        assert "examples/README.md" in (ROOT / page).read_text()
