"""The site has every page, whole, and its links have an end."""

from __future__ import annotations

from pathlib import Path

import pytest

from docs.site import checks, contents, dialects, staging
from docs.site.__main__ import build
from tests.documents.not_run import AWS, CHECKOUT, INSTALLS, VERDICT

GROUPS = {
    *("Start", "Guides", "Concepts", "Web and LLMs", "Stores", "Operating", "Reference"),
    *("Comparison and migration", "Decisions", "Contributing"),
}


def test_every_page_is_in_the_menu() -> None:
    """Once, in a group that a reader can guess."""
    assert contents.missing() == []
    assert set(contents.pages()) == GROUPS


def test_a_page_outside_the_menu_is_seen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A page that is new, one that is gone and one that is twice; the site is not built then."""
    text = (contents.ROOT / contents.LIST).read_text(encoding="utf-8")
    rows = text.replace("(glossary.md)", "(gone.md)").replace("(start.md)", "(../README.md)")
    (tmp_path / "contents.md").write_text(rows, encoding="utf-8")
    monkeypatch.setattr(contents, "LIST", str(tmp_path / "contents.md"))
    assert contents.missing() == [
        "docs/contents.md is in no group of " + contents.LIST,
        "docs/glossary.md is in no group of " + contents.LIST,
        "docs/start.md is in no group of " + contents.LIST,
        "docs/gone.md is in " + contents.LIST + " and not there",
        str(tmp_path / "contents.md") + " is in " + contents.LIST + " and not there",
        "README.md is twice in " + contents.LIST,
    ]
    with pytest.raises(SystemExit, match="glossary"):
        build(tmp_path / "site", tmp_path / "work")


def test_every_page_is_on_the_site(site: Path) -> None:
    """As HTML, at the place where links to it lead."""
    pages = [(site / contents.place(page)).with_suffix(".html") for page in contents.written()]
    assert [page for page in pages if not page.is_file()] == []


def test_links_have_an_end(site: Path) -> None:
    """A file and an anchor that are there; and nothing is loaded from elsewhere."""
    assert checks.complaints(site) == []


@pytest.mark.parametrize(
    ("html", "said"),
    [
        ('<a href="gone.html">', "there is no such file"),
        ('<a href="other.html#gone">', "there is no such anchor"),
        ('<a href="#gone">', "there is no such anchor"),
        ('<a href="/other.html">', "the site works in one place only"),
        ('<a href="http://example.com/">', "begins with https"),
        ('<a href="https://exa mple.com/">', "begins with https"),
        ('<a href="https://localhost">', "begins with https"),
        ('<a href="//example.com/x">', "has no scheme"),
        ('<script src="https://example.com/x.js">', "loaded from elsewhere"),
        ('<link rel="stylesheet" href="//example.com/x.css">', "loaded from elsewhere"),
        ('<link rel="stylesheet" href="gone.css">', "there is no such file"),
        ('<img src="gone.png">', "there is no such file"),
        ('<img srcset="https://example.com/x.png 2x">', "loaded from elsewhere"),
    ],
)
def test_a_bad_link_is_seen(tmp_path: Path, html: str, said: str) -> None:
    """Each way in which a link may be wrong."""
    (tmp_path / "index.html").write_text(html)
    (tmp_path / "other.html").write_text('<p id="here">')
    (complaint,) = checks.complaints(tmp_path)
    assert said in complaint


def test_a_good_link_is_accepted(tmp_path: Path) -> None:
    """Within the site, to itself, elsewhere; what a stylesheet loads is looked at too."""
    good = '<a href="other.html#here"><a href="?x#up"><a href="https://example.com/x"><p id="up"><a href=".">'
    (tmp_path / "index.html").write_text(good)
    (tmp_path / "other.html").write_text('<p id="here">')
    assert checks.complaints(tmp_path) == []
    style = "a{b:url(data:x)} c{d:url('gone.woff2')} @import 'https://example.com/x.css';"
    (tmp_path / "x.css").write_text(style)
    assert [one.rpartition(": ")[2] for one in checks.complaints(tmp_path)] == [
        "there is no such file",
        "it is loaded from elsewhere",
    ]


@pytest.mark.parametrize("page", [page for page in contents.written() if page != contents.HOME])
def test_a_page_is_whole(site: Path, page: str) -> None:
    """Headings, items of lists, cells of tables, blocks and stress are as many as in the repository."""
    built = (site / contents.place(page)).with_suffix(".html")
    assert dialects.differences(contents.ROOT / page, built) == {}


def test_what_the_site_would_swallow_is_seen(tmp_path: Path) -> None:
    """A list that is a paragraph there."""
    (tmp_path / "a.md").write_text("# A\ntext\n- one\n- two\n")
    (tmp_path / "a.html").write_text("<article><h1>A</h1><p>text - one - two</p></article><li>")
    assert dialects.differences(tmp_path / "a.md", tmp_path / "a.html") == {"li": (2, 0)}


def test_links_are_moved() -> None:
    """To where a page is on the site; a file gets a page, a picture is brought along, code is left alone."""
    run = staging.Staging(Path("nowhere"))
    assert run.there("../README.md#stores", "docs/cli.md") == "readme.md#stores"
    assert run.there("docs/adr/", "README.md") == "adr/index.md"
    assert run.there("../../CONTRIBUTING.md", "docs/adr/0001-balance-law.md") == "../contributing.md"
    assert run.there("llm_gateway.py", "examples/README.md") == "source/examples/llm_gateway.py.md"
    assert run.there("pictures/entity-light.png", "docs/page.md") == "pictures/entity-light.png"
    assert (run.sources, run.assets) == ({"examples/llm_gateway.py"}, {"docs/pictures/entity-light.png"})
    with pytest.raises(SystemExit, match=r"gone\.md"):
        run.there("gone.md", "README.md")
    text = "[a](docs/cli.md) `[a](docs/cli.md)`\n```\n[a](docs/cli.md)\n```\n"
    assert "".join(run.linked_outside_code(text, "README.md")) == CODE_KEPT


CODE_KEPT = "[a](cli.md) `[a](docs/cli.md)`\n```\n[a](docs/cli.md)\n```\n"


def test_why_a_block_is_not_run_is_said() -> None:
    """Below it; of commands, which one, if it is not all of them."""
    page = "<!-- not executed: no server -->\n```python\nx\n```\n"
    assert "*Not run by the tests: no server.*" in staging.with_reasons(page)
    assert "Not run" not in staging.with_reasons("```python\nx\n```\n")
    assert staging.reasons_of("$ aws x\n$ aws y\n") == [AWS]
    assert staging.reasons_of("$ ls\n$ aws x\n") == [f"`aws x`, as {AWS}"]
    assert staging.reasons_of("$ make demo\n$ make test\n") == [
        f"`make demo`, as {CHECKOUT}",
        f"`make test`, as {VERDICT}",
    ]
    assert staging.reasons_of('$ . venv/bin/activate\n$ pip install ".[cli]"\n') == [INSTALLS]
    assert staging.reasons_of("$ ls\n") == []
