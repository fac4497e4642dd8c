"""Compares what the site shows of a page with what a reader of the repository sees.

The generator's Markdown is not the one that repositories show: a list without an empty line before it is a
paragraph there. So the parts of both are counted.
"""

from __future__ import annotations

from collections import Counter
from html.parser import HTMLParser
from pathlib import Path

from markdown_it import MarkdownIt

COUNTED = {"li", "tr", "td", "th", "pre", "h1", "h2", "h3", "h4", "blockquote", "strong", "em", "img"}


class Parts(HTMLParser):
    """How often each kind of element is in the text of a page."""

    def __init__(self, *, is_site: bool) -> None:
        super().__init__()
        self.found: Counter[str] = Counter()
        self.is_within = not is_site
        self.passed_over = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        said = dict(attrs)
        if tag == "article":
            self.is_within = True
        if tag == "p" and "not-run" in (said.get("class") or ""):
            self.passed_over = 1
        if self.is_within and not self.passed_over and tag in COUNTED:
            self.found[tag] += 1

    def handle_endtag(self, tag: str) -> None:
        if tag == "p":
            self.passed_over = 0
        if tag == "article":
            self.is_within = False


def parts(html: str, *, is_site: bool) -> Counter[str]:
    reader = Parts(is_site=is_site)
    reader.feed(html)
    return reader.found


def differences(written: Path, built: Path) -> dict[str, tuple[int, int]]:
    """What there is more or less of on the site, by the kind: in the repository, and on the site."""
    reading = MarkdownIt("commonmark", {"html": True}).enable("table")
    there = parts(reading.render(written.read_text(encoding="utf-8")), is_site=False)
    here = parts(built.read_text(encoding="utf-8"), is_site=True)
    return {tag: (there[tag], here[tag]) for tag in sorted(COUNTED) if there[tag] != here[tag]}
