"""What is seen first: a README of two screens, and an index that leaves no page out."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi.responses import StreamingResponse
from fastapi.testclient import TestClient

ROOT = Path(__file__).resolve().parents[2]
README_LINES_MAX = 100
README_LETTERS_MAX = 140
"""A line that is longer than a screen is wide counts as more than one."""
LINK = re.compile(r"\]\(([^)#\s]+)")
BEGUN = {
    "README.md": ("git clone REPOSITORY_URL zae-limiter", "make demo", "make test"),
    "docs/index.md": ("git clone REPOSITORY_URL zae-limiter", "make demo", "make demo-ui"),
}
"""With which commands a front page lets its reader begin."""
STREAM = (
    b'data: {"choices": [{"delta": {"content": "The Nile"}}], "usage": null}\n\nda',
    b'ta: {"choices": [], "usage": {"prompt_tokens": 11, "completion_tokens": 3}}\n\ndata: [DONE]\n\n',
)
"""What a provider answers, in pieces."""


def links(page: str, folder: Path) -> set[Path]:
    """The files of this repository that a page leads to."""
    return {(folder / link).resolve() for link in LINK.findall(page) if "://" not in link}


def too_long(readme: str) -> list[str]:
    """What makes a README more than two screens."""
    lines = readme.splitlines()
    wide = [line for line in lines if len(line) > README_LETTERS_MAX and not line.startswith(("|", "!"))]
    return [*([f"{len(lines)} lines"] if len(lines) > README_LINES_MAX else []), *wide]


def unlisted(index: str, pages: list[Path], folder: Path) -> list[str]:
    """Pages that an index does not lead to."""
    found = links(index, folder)
    return [page.name for page in pages if page.resolve() not in found]


def test_the_readme_fits_on_two_screens() -> None:
    """What does not fit has a page of its own."""
    assert too_long((ROOT / "README.md").read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("name", BEGUN)
def test_the_front_pages_say_how_to_begin(name: str) -> None:
    """Commands and one picture, and every page that they lead to is there."""
    page = (ROOT / name).read_text(encoding="utf-8")
    assert [command for command in BEGUN[name] if f"$ {command}\n" not in page] == []
    assert len(re.findall(r"^!\[[^\]]{20,}\]\(", page, re.MULTILINE)) == 1
    assert [str(path) for path in links(page, (ROOT / name).parent) if not path.exists()] == []


def test_the_gateway_of_the_readme_counts_what_a_stream_took(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It reserves 4,000 tokens, and the 14 that the provider tells are what stays taken."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    program = readme.partition("<!-- file: gateway.py -->\n```python\n")[2].partition("```")[0]
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(program, names)

    @names["app"].post("/v1/chat/completions")
    async def chat() -> StreamingResponse:
        return StreamingResponse(iter(STREAM), media_type="text/event-stream")

    def left(reply: httpx.Response) -> list[tuple[str, str]]:
        return re.findall(r'"(\w+)";r=(\d+)', reply.headers["ratelimit"])

    with TestClient(names["app"], headers={"Authorization": "Bearer key-1"}) as client:
        first, second = (client.post("/v1/chat/completions") for _ in range(2))
    assert first.content == b"".join(STREAM)
    assert left(first) == [("rpm", "59"), ("tpd", "96000"), ("parallel", "3")]
    assert left(second) == [("rpm", "58"), ("tpd", "95986"), ("parallel", "3")]


def test_every_page_is_in_the_index() -> None:
    """Whoever looks for something finds it from the list of all pages, and the list from the README."""
    folder = ROOT / "docs"
    pages = [page for page in sorted(folder.glob("*.md")) if page.name != "contents.md"]
    index = (folder / "contents.md").read_text(encoding="utf-8")
    assert unlisted(index, pages, folder) == []
    assert [str(path) for path in links(index, folder) if not path.exists()] == []
    assert folder / "contents.md" in links((ROOT / "README.md").read_text(encoding="utf-8"), ROOT)


def test_what_is_too_long_or_missing_is_seen() -> None:
    """Each check can fail."""
    assert too_long("x\n" * 101) == ["101 lines"]
    assert too_long("x" * 141) == ["x" * 141]
    assert too_long("| " + "x" * 141 + "\n" + "x\n" * 98) == []
    assert unlisted("[a](a.md#x)", [Path("docs/a.md"), Path("docs/b.md")], Path("docs")) == ["b.md"]
