"""Reads the built site as a browser would: every link has an end, and nothing is loaded from elsewhere."""

from __future__ import annotations

import functools
import posixpath
import re
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

LOADS = {
    "script": "src",
    "img": "src",
    "link": "href",
    "iframe": "src",
    "source": "src",
    "video": "src",
    "audio": "src",
    "object": "data",
}
LOADED_BY_CSS = re.compile(r"url\(\s*[\"']?(?!data:|#)([^\"')]+)|@import\s+[\"']([^\"']+)")
OUTSIDE = re.compile(r"https://[a-z0-9-]+(?:\.[a-z0-9-]+)+(?:[/?#]\S*)?|mailto:\S+@\S+")
"""What a link to somebody else looks like; whether it is there is not asked."""


@dataclass
class Page(HTMLParser):
    """What a page links to, what it loads, and where one may jump to in it."""

    links: list[str] = field(default_factory=list)
    loads: list[str] = field(default_factory=list)
    anchors: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        said = {name: value or "" for name, value in attrs}
        self.anchors |= {said[name] for name in ("id", "name") if name in said}
        if tag == "a" and "href" in said:
            self.links.append(said["href"])
        elif tag in LOADS and LOADS[tag] in said:
            is_only_named = tag == "link" and said.get("rel") in {"canonical", "next", "prev", "edit"}
            (self.links if is_only_named else self.loads).append(said[LOADS[tag]])
        if said.get("poster"):
            self.loads.append(said["poster"])
        self.loads += [one.split()[0] for one in said.get("srcset", "").split(",") if one.strip()]


@functools.cache
def read(path: Path) -> Page:
    page = Page()
    page.feed(path.read_text(encoding="utf-8"))
    return page


def complaints(site: Path) -> list[str]:
    """All that is wrong with the links of a site."""
    wrong: list[str] = []
    for path in sorted(site.rglob("*.html")):
        # The page for what is not there is served at any depth, so its links begin at the root.
        if path.name == "404.html":
            continue
        name = path.relative_to(site).as_posix()
        page = read(path)
        wrong += [f"{name}: {link}: {why}" for link in page.links if (why := of_link(site, path, link))]
        wrong += [f"{name}: {link}: {why}" for link in page.loads if (why := of_load(site, path, link))]
    for path in sorted(site.rglob("*.css")):
        name = path.relative_to(site).as_posix()
        loads = [one or other for one, other in LOADED_BY_CSS.findall(path.read_text(encoding="utf-8"))]
        wrong += [f"{name}: {link}: {why}" for link in loads if (why := of_load(site, path, link))]
    return wrong


def of_link(site: Path, path: Path, link: str) -> str:
    """What is wrong with a link, or nothing."""
    if urlsplit(link).scheme:
        return "" if OUTSIDE.fullmatch(link) else "it is no address that begins with https"
    if link.startswith("//"):
        return "it has no scheme"
    found = target(site, path, link)
    if isinstance(found, str):
        return found
    anchor = unquote(urlsplit(link).fragment)
    if anchor and found.suffix == ".html" and anchor not in read(found).anchors:
        return "there is no such anchor"
    return ""


def of_load(site: Path, path: Path, link: str) -> str:
    if link.startswith("data:"):
        return ""
    if urlsplit(link).scheme or link.startswith("//"):
        return "it is loaded from elsewhere"
    found = target(site, path, link)
    return found if isinstance(found, str) else ""


def target(site: Path, path: Path, link: str) -> Path | str:
    """The file of a link within the site, or why there is none."""
    place = unquote(urlsplit(link).path)
    if place.startswith("/"):
        return "it is absolute, so the site works in one place only"
    name = (
        posixpath.normpath(posixpath.join(path.parent.relative_to(site).as_posix(), place)) if place else ""
    )
    found = site / name if place else path
    found = found / "index.html" if found.is_dir() else found
    return found if found.is_file() else "there is no such file"
