"""Puts the pages where the generator finds them, as plain Markdown that any generator can read.

A page in the repository is written to be read there as well. So this moves links to where the pages are on
the site, gives files that a page links to a page of their own, says under a block why it is not run, and adds
what is made from the code. Nothing here knows which generator comes next.
"""

from __future__ import annotations

import os
import posixpath
import re
import shutil
from html import escape
from pathlib import Path

from docs.site import api, commands, contents
from tests.documents.blocks import PIECE
from tests.documents.not_run import reason

ROOT = contents.ROOT
LINK = re.compile(r"(?P<before>\]\()(?P<to>[^)\s]+)(?=\))|(?P<tag><img src=\")(?P<image>[^\"]+)(?=\")")
CODE = re.compile(r"(?ms)^(?P<fence>[ \t]*```).*?^[ \t]*```[ \t]*$|`[^`\n]+`")
SCHEME = re.compile(r"[a-z][a-z0-9+.-]*:", re.IGNORECASE)
LANGUAGES = {
    ".py": "python",
    ".yaml": "yaml",
    ".toml": "toml",
    ".md": "markdown",
    ".json": "json",
    ".js": "javascript",
}
SCRIPTS = {
    ".css": '<link rel="stylesheet" href="assets/{}">',
    ".js": '<script src="assets/{}"></script>',
}
FRONT = "---\nhide:\n  - navigation\n  - toc\n---\n"
"""The first page needs its whole width."""
PLACE_OF_FILM = re.compile(r"<!-- site: animation -->\n+!\[(?P<said>[^]]+)\]\([^)]+\)\n")
FILM = """<figure class="film">
{videos}
<figcaption>Thirty seconds of <code>zae-limiter demo --ui</code>: tenants of an LLM gateway at work, and a budget that is raised meanwhile. Recorded from the page as it is.</figcaption>
</figure>
"""  # noqa: E501
VIDEO = """<video class="film-{kind}" src="assets/film-{kind}.webm" poster="assets/film-{kind}.jpg" width="1120" height="700" aria-label="{said}" controls muted loop playsinline preload="none"></video>"""  # noqa: E501
DECISIONS = f"{contents.GENERATED}decisions.md"


class Staging:
    """One run of it, into an empty folder."""

    def __init__(self, target: Path) -> None:
        self.target = target
        self.sources: set[str] = set()
        self.assets: set[str] = set()

    def run(self) -> None:
        if wrong := contents.missing():
            raise SystemExit("\n".join(["error: the menu of the site is wrong:", *wrong]))
        for page in contents.written():
            self.write(contents.place(page), self.staged(page))
        self.made()
        for name in sorted(self.sources):
            self.write(f"source/{name}.md", source_page(name))
        for name in sorted(self.assets):
            copy(ROOT / name, self.target / name.removeprefix("docs/"))

    def made(self) -> None:
        """What is made from the code."""
        self.write("reference/commands.md", commands.page())
        self.write("reference/api.md", api.index())
        for chapter in api.CHAPTERS:
            self.write(f"reference/{chapter.file}.md", api.page(chapter))
        self.write("adr/index.md", decisions())

    def write(self, name: str, text: str) -> None:
        path = self.target / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")

    def staged(self, page: str) -> str:
        """A page with links as they are on the site, and with reasons below blocks that are not run."""
        text = with_reasons((ROOT / page).read_text(encoding="utf-8"))
        if page == contents.HOME:
            text = FRONT + with_film(text)
        text += self.scripts(page)
        return "".join(self.linked_outside_code(text, page))

    def scripts(self, page: str) -> str:
        """What moves on a page: the files of `docs/assets` that begin with its name."""
        stem = Path(page).stem
        rows = []
        for path in sorted((ROOT / "docs" / "assets").glob("*"), key=lambda one: one.stem):
            if Path(page).parent == Path("docs") and path.stem.partition("-")[0] == stem:
                self.assets.add(path.relative_to(ROOT).as_posix())
                rows.append(SCRIPTS[path.suffix].format(path.name))
        return "\n".join(["\n", *rows, ""]) if rows else ""

    def linked_outside_code(self, text: str, page: str) -> list[str]:
        pieces, at = [], 0
        for code in CODE.finditer(text):
            pieces += [self.linked(text[at : code.start()], page), code[0]]
            at = code.end()
        return [*pieces, self.linked(text[at:], page)]

    def linked(self, text: str, page: str) -> str:
        def moved(match: re.Match[str]) -> str:
            if match["tag"]:
                return match["tag"] + self.there(match["image"], page)
            return match["before"] + self.there(match["to"], page)

        return LINK.sub(moved, text)

    def there(self, link: str, page: str) -> str:
        """Where a link of a page leads to on the site."""
        if SCHEME.match(link) or link.startswith("#"):
            return link
        path, mark, anchor = link.partition("#")
        name = posixpath.normpath(posixpath.join(posixpath.dirname(page), path))
        place = self.place_of(name)
        if place is None:
            raise SystemExit(f"error: {page} links to {link}, which is not there")
        return os.path.relpath(place, posixpath.dirname(contents.place(page)) or ".") + mark + anchor

    def place_of(self, name: str) -> str | None:
        if name in contents.written() or name == contents.HOME:
            return contents.place(name)
        path = ROOT / name
        if name == "docs/adr":
            return "adr/index.md"
        if not path.is_file():
            return None
        if name.startswith("docs/"):
            self.assets.add(name)
            return name.removeprefix("docs/")
        self.sources.add(name)
        return f"source/{name}.md"


def copy(path: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(path, target)


def with_reasons(page: str) -> str:
    """The page, with a line below each block that is not run that says why."""
    pieces, at, why = [], 0, ""
    for piece in PIECE.finditer(page):
        pieces.append(page[at : piece.start()])
        at = piece.end()
        if piece["kind"] is not None:
            why = piece["said"].strip() if piece["kind"] == "not executed" else ""
            continue
        is_printed = piece["language"] == "output"
        # What a program prints has no language, and belongs to the block above it.
        pieces.append(piece[0].replace("```output", "```{ .text .output }", 1) if is_printed else piece[0])
        if piece["language"] == "console":
            why = "; ".join(reasons_of(piece["text"]))
        if why and piece["language"] != "text":  # which nobody would run
            pieces.append(f"\n\n*Not run by the tests: {why}.*\n{{: .not-run }}\n")
        why = ""
    return "".join([*pieces, page[at:]])


def with_film(page: str) -> str:
    """The page, with the film where its picture is."""

    def film(match: re.Match[str]) -> str:
        videos = (VIDEO.format(kind=kind, said=escape(match["said"])) for kind in ("light", "dark"))
        return FILM.format(videos="\n".join(videos))

    found, count = PLACE_OF_FILM.subn(film, page)
    if count != 1:
        raise SystemExit(f"error: {contents.HOME} has no place for the film")
    return found


def reasons_of(block: str) -> list[str]:
    """Why commands are not run: the reason that all of a console block have, or each with its command."""
    firsts = re.findall(r"^\$ (.*)$", block, re.MULTILINE)
    found = [(one, why) for one in firsts if (why := reason(one))]
    reasons = list(dict.fromkeys(why for _, why in found))
    if len(found) == len(firsts) and len(reasons) == 1:
        return reasons
    return [f"`{one}`, as {why}" for one, why in found]


def source_page(name: str) -> str:
    """A file that a page links to."""
    path = ROOT / name
    language = LANGUAGES.get(path.suffix, "text")
    return f"# `{name}`\n\n``````{language}\n{path.read_text(encoding='utf-8')}``````\n"


def title_of(page: str) -> str:
    """The first heading of a page; of two pages that have the name of the package, one is the README."""
    if page == "README.md":
        return "README"
    match = re.search(r"^# (.+)$", (ROOT / page).read_text(encoding="utf-8"), re.MULTILINE)
    if match is None:
        raise SystemExit(f"error: {page} has no title")
    return match[1].replace("`", "")


def decisions() -> str:
    """All decisions, one line each."""
    rows = []
    for path in sorted((ROOT / "docs" / "adr").glob("[0-9]*.md")):
        number, _, title = title_of(f"docs/adr/{path.name}").partition(": ")
        status = re.search(r"^Status: (\w+)", path.read_text(encoding="utf-8"), re.MULTILINE)
        rows.append(f"| [{number}]({path.name}) | {title} | {status[1] if status else ''} |")
    about = "What was decided, why, and which test confirms it. A decision keeps the names of its time."
    return (
        f"# Decisions\n\n{about}\n\n"
        + "| number | decision | status |\n|---|---|---|\n"
        + "\n".join(rows)
        + "\n"
    )


def menu() -> list[dict[str, object]]:
    """The menu, as the generator wants it."""
    found: list[dict[str, object]] = [{"Home": "index.md"}]
    for group, names in contents.pages().items():
        entries: list[object] = []
        for name in names:
            if name.startswith(contents.GENERATED):
                entries += generated(name)
            else:
                entries.append({title_of(name): contents.place(name)})
        found.append({group: entries})
    return found


def generated(name: str) -> list[object]:
    if name == DECISIONS:
        return ["adr/index.md"]
    place = contents.place(name)
    if name.endswith("api.md"):
        chapters = [{chapter.title: f"reference/{chapter.file}.md"} for chapter in api.CHAPTERS]
        return [{"The library": [{"All names": place}, *chapters]}]
    return [{"Commands and options": place}]
