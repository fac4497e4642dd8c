"""The documentation is true: every Python block of the README and the guides is executed.

The blocks of one file share a namespace and run in order, in an empty working directory. A block that cannot
run has `<!-- not executed: reason -->` on the line before it.
"""

import re
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

BLOCK = re.compile(
    r"(?:^[ \t]*<!-- not executed:(?P<reason>[^\n]*?)-->[ \t]*\n)?"
    r"^(?P<indent>[ \t]*)```(?P<language>py\w*)[^\n]*\n(?P<code>.*?)^(?P=indent)```[ \t]*$",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True)
class Block:
    """A Python block of a document; `skip_reason` is None for a block that is to run."""

    language: str
    code: str
    line: int
    skip_reason: str | None


def blocks_of(text: str) -> list[Block]:
    """The Python blocks of a document, in order."""
    return [
        Block(
            language=match["language"],
            code=re.sub(rf"^{match['indent']}", "", match["code"], flags=re.MULTILINE),
            line=text.count("\n", 0, match.start("code")),
            skip_reason=None if match["reason"] is None else match["reason"].strip(),
        )
        for match in BLOCK.finditer(text)
    ]


def execute(blocks: list[Block], filename: str) -> int:
    """Run the blocks in one namespace; tracebacks show the line of the document. Returns how many ran."""
    namespace: dict[str, object] = {"__name__": "__main__"}
    runnable = [block for block in blocks if block.skip_reason is None]
    for block in runnable:
        exec(compile("\n" * block.line + block.code, filename, "exec"), namespace)
    return len(runnable)


def documents() -> list[Path]:
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


@pytest.mark.parametrize("path", documents(), ids=lambda path: path.relative_to(ROOT).as_posix())
def test_python_blocks_run(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader who pastes the blocks of a page in order sees no error."""
    blocks = blocks_of(path.read_text(encoding="utf-8"))
    assert [b.line for b in blocks if b.language != "python"] == [], "mark Python blocks with 'python'"
    assert [b.line for b in blocks if b.skip_reason == ""] == [], "say why the block is not executed"
    monkeypatch.chdir(tmp_path)
    executed = execute(blocks, str(path))
    assert executed or path.name != "README.md", "the README has no example that runs"


def test_blocks_are_found_skipped_and_run_in_order() -> None:
    """Blocks share a namespace, a comment skips a block, other languages are left alone."""
    text = (
        "```python\nseen = [1]\n```\n"
        "<!-- not executed: needs a table -->\n```python\nseen.append(2)\n```\n"
        "- item\n\n  ```python\n  if seen:\n      seen.append(3)\n  assert seen == [1, 3]\n  ```\n"
        "```console\n$ not python\n```\n"
    )
    blocks = blocks_of(text)
    assert [(b.line, b.skip_reason) for b in blocks] == [(1, None), (5, "needs a table"), (10, None)]
    assert execute(blocks, "example.md") == 2


def test_a_failing_block_fails_at_its_line() -> None:
    """The error of a block points into the document."""
    with pytest.raises(ZeroDivisionError) as caught:
        execute(blocks_of("# Title\n\n```python\nx = 1\nx / 0\n```\n"), "example.md")
    assert caught.traceback[-1].lineno == 4


def test_an_empty_reason_is_seen() -> None:
    """Skipping without a reason is not the same as running."""
    assert blocks_of("<!-- not executed: -->\n```python\npass\n```\n")[0].skip_reason == ""
