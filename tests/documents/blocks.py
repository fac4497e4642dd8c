"""The blocks of a document, and what to do with each.

A page is a story: its blocks run in order, in one empty directory and one shell. What they print is compared
with what the page says.

- `python`: a program of its own; an `output` block behind it is what it prints
- `console`: commands behind `$`, each with what it prints below it
- any other language with `<!-- file: NAME -->` before it is that file
- `<!-- checked: PATH -->` before a block names the test that reads it from the page
- `<!-- not executed: reason -->` before a block says why nobody runs it; so does the site, below it
- `<!-- before: … -->` holds commands that the reader is spared
- `<!-- with: NAME -->` before a `python` block says that it needs another library; `test_peers` runs these
- `<!-- varies: `zae_1f3a`, `4.2` -->` before a block: these words and numbers in it are others each time
- `<!-- clock: 2026-10-05T09:30:00Z -->` lets the clock stand there from now on; without a time it goes on

What is printed is standard output, alone or with standard error behind it. A `…` on a line of its own stands
for lines that would bore a reader, so it is never all that is shown. Within a line it is a letter like
others, unless it is said to vary. Where nothing is shown, nothing is printed, on neither.
A command fails if and only if what it prints starts with `error:`.
What cannot run here is in a table, `NOT_RUN`, with the reason.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

FENCE = re.compile(r"^```(?P<language>\w*)[^\n]*\n(?P<text>.*?)^```[ \t]*$", re.MULTILINE | re.DOTALL)
COMMENT = re.compile(
    r"<!-- (?P<kind>file|before|with|varies|clock|checked|not executed): ?(?P<said>.*?)-->", re.DOTALL
)
PIECE = re.compile(f"{FENCE.pattern}|{COMMENT.pattern}", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Step:
    """One thing that a page does: a shell command, and what it prints; `None` if it is not shown."""

    line: int
    command: str
    printed: str | None = None
    library: str = ""
    """Somebody else's, that it needs."""
    varies: tuple[str, ...] = ()
    """Parts of what is printed that are others each time."""

    @property
    def first(self) -> str:
        return self.command.partition("\n")[0]

    @property
    def fails(self) -> bool:
        return (self.printed or "").startswith("error:")


def steps_of(page: str, spared: frozenset[str]) -> list[Step]:
    """What a page does, in order; blocks and commands whose first line is spared are left out."""
    steps: list[Step] = []
    said: dict[str, str] = {}
    for piece in PIECE.finditer(page):
        line = page.count("\n", 0, piece.start()) + 1
        if piece["kind"] == "before":
            steps += [Step(line, command) for command in piece["said"].strip().splitlines()]
        elif piece["kind"] == "clock":
            steps.append(Step(line, f"export CLOCK_STANDS_AT={piece['said'].strip()}"))
        elif piece["kind"] is not None:
            said[piece["kind"]] = piece["said"].strip()
        else:
            varies = tuple(re.findall("`([^`]+)`", said.get("varies", "")))
            if piece["language"] == "output":
                steps[-1] = replace(steps[-1], printed=piece["text"], varies=varies)
            else:
                found = _steps_of_block(piece["language"], piece["text"], line, said)
                steps += [replace(one, varies=varies) for one in found if one.first not in spared]
            said = {}
    return steps


def _steps_of_block(language: str, text: str, line: int, said: dict[str, str]) -> list[Step]:
    if "file" in said:
        return [Step(line, f"cat > {said['file']} <<'END_OF_FILE'\n{text}END_OF_FILE")]
    if language == "console":
        return _commands(text, line)
    if language == "python" and not said.get("not executed"):
        program = f"python - <<'END_OF_FILE'\n{text}END_OF_FILE"
        return [Step(line, program, "", said.get("with", ""))]
    return []


def _commands(text: str, line: int) -> list[Step]:
    """The commands of a console block; one goes on behind a backslash."""
    found: list[Step] = []
    goes_on = False
    for offset, row in enumerate(text.splitlines(), 1):
        if goes_on:
            found[-1] = Step(found[-1].line, f"{found[-1].command}\n{row}", found[-1].printed)
            goes_on = row.endswith("\\")
        elif row.startswith("$ "):
            found.append(Step(line + offset, row[2:], ""))
            goes_on = row.endswith("\\")
        else:
            found[-1] = Step(found[-1].line, found[-1].command, f"{found[-1].printed or ''}{row}\n")
    return found


def idle_blocks(page: str) -> list[str]:
    """Blocks that nobody runs and that do not say why, by their first lines, and ends without a beginning."""
    idle: list[str] = []
    said: set[str] = set()
    ran = False
    for piece in PIECE.finditer(page):
        if piece["kind"] is not None:
            said |= {piece["kind"]} if piece["said"].strip() else set()
            continue
        is_run = piece["language"] in ("python", "console") or (piece["language"] == "output" and ran)
        if not (is_run or said & {"file", "with", "checked", "not executed"}):
            idle.append(piece["text"].partition("\n")[0])
        ran = piece["language"] == "python" and "not executed" not in said
        said = set()
    fences = len(re.findall(r"^[ \t]*(?:```|~~~)", page, re.MULTILINE))
    seen = sum(2 for piece in PIECE.finditer(page) if piece["kind"] is None)
    return idle if fences == seen else [*idle, f"{fences} fences, of which {seen} are seen"]


def checkers(page: str) -> list[str]:
    """The tests that are said to read a block from the page."""
    return [piece["said"].strip() for piece in PIECE.finditer(page) if piece["kind"] == "checked"]


def vague_blocks(page: str) -> list[str]:
    """Commands and programs of which a reader is shown nothing but a lone `…`, the tests' wildcard."""
    steps = steps_of(page, frozenset())
    return [f"{one.line}: {one.first}" for one in steps if (one.printed or "").strip() == "…"]


def agrees(said: str, printed: str, varies: Sequence[str] = ()) -> bool:
    """Whether what was printed is what a page says, but for words within the parts that vary."""
    wanted = [line.rstrip() for line in said.strip("\n").splitlines()]
    got = "\n".join(line.rstrip() for line in printed.strip("\n").splitlines())
    pattern = "\n".join("(?:.*)" if line == "…" else _pattern(line, varies) for line in wanted)
    return re.fullmatch(pattern, got, re.DOTALL) is not None


def _pattern(line: str, varies: Sequence[str]) -> str:
    """Digits of what varies may be other digits, words other words, and `…` any letters."""
    found = re.escape(line)
    for one in varies:
        loose = re.sub(r"\d+", r"\\d+", re.escape(one)) if one[0].isdigit() else r"\S+"
        found = found.replace(re.escape(one), "[^\n]*" if one == "…" else loose)
    return found
