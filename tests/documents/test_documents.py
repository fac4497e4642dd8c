"""Every command and block of the README and the guides does what its page says, from the wheel alone."""

from __future__ import annotations

import os
import re
import subprocess
import time
from pathlib import Path

import pytest

from docs.site import contents
from tests.documents import wheel
from tests.documents.blocks import Step, agrees, checkers, idle_blocks, steps_of, vague_blocks
from tests.documents.not_run import NOT_RUN, PREFIXES, reason
from tests.documents.shell import disagreements, run, says_it
from tests.patience import PATIENCE_SECONDS

ROOT = Path(__file__).resolve().parents[2]
PAGES = ["README.md", *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").glob("*.md"))]
OTHERS = [name for name in contents.written() if name not in PAGES and "/adr/" not in name]
"""Pages of the site that are about a checkout."""
DECISIONS = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs" / "adr").glob("*.md"))


@pytest.fixture(scope="session")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where `python` and `zae-limiter` of a fresh installation are."""
    place = tmp_path_factory.mktemp("installed")
    return wheel.environment(place / "venv", wheel.build(place))


WEB_PAGES = frozenset({"docs/frameworks.md", "docs/outbound.md"})
"""Pages for those who have more: a framework, a server or a client."""
WEB = frozenset({"fastapi", "flask", "django"})
CLIENTS = frozenset({"httpx", "httpx2", "requests", "uvicorn"})


SERVER_PAGES = frozenset({"docs/envoy.md", "docs/server.md", "docs/page.md", "docs/watch.md"})
"""Pages for those who serve limits to others."""
STORE_PAGES = frozenset({"docs/postgresql.md", "docs/local.md", "docs/telemetry.md"})
"""Pages for those who have a driver, or a library for metrics."""


@pytest.fixture(scope="session")
def server_programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same, with what the server needs."""
    place = tmp_path_factory.mktemp("server-installed")
    return wheel.environment(place / "venv", wheel.build(place), wheel.EXTRAS | {"server", "grpc"})


@pytest.fixture(scope="session")
def store_programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same, with what stores and metrics need."""
    place = tmp_path_factory.mktemp("store-installed")
    return wheel.environment(place / "venv", wheel.build(place), wheel.EXTRAS | {"postgres", "prometheus"})


@pytest.fixture(scope="session")
def web_programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same, with what programs of the web have."""
    place = tmp_path_factory.mktemp("web-installed")
    return wheel.environment(place / "venv", wheel.build(place), wheel.EXTRAS | WEB, CLIENTS)


def spared(page: str) -> frozenset[str]:
    firsts = re.findall(r"^\$ (.*)$", page, re.MULTILINE)
    return frozenset(one for one in firsts if reason(one))


@pytest.mark.parametrize("name", PAGES)
def test_a_page_does_what_it_says(name: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """From top to bottom, in an empty directory, with the wheel and nothing of this checkout."""
    kinds = {"server_programs": SERVER_PAGES, "web_programs": WEB_PAGES, "store_programs": STORE_PAGES}
    kind = next((kind for kind, pages in kinds.items() if name in pages), "programs")
    programs = request.getfixturevalue(kind)
    page = (ROOT / name).read_text(encoding="utf-8")
    steps = [step for step in steps_of(page, spared(page)) if not step.library]
    ran, answers = run(steps, programs, tmp_path)
    assert disagreements(name, steps, answers) == []
    assert len(answers) == 3 * len(steps) + 1, ran.stderr


def unseen_blocks(page: str) -> list[str]:
    """What would be passed over of a page: not called ``python``, indented, or left out without a reason."""
    fences = re.findall(r"^[ \t]*```py.*$", page, re.MULTILINE)
    return [one for one in fences if one != "```python"] + re.findall(r"<!-- not executed:\s*-->", page)


@pytest.mark.parametrize("name", [*PAGES, *DECISIONS])
def test_no_program_is_passed_over(name: str) -> None:
    """Every block of Python is one that is run, or says why not; decisions have none, nor commands."""
    page = (ROOT / name).read_text(encoding="utf-8")
    assert unseen_blocks(page) == []
    assert name not in DECISIONS or not re.search("^```(?:python|console)", page, re.MULTILINE)


@pytest.mark.parametrize("name", [*PAGES, *DECISIONS, *OTHERS])
def test_every_block_runs_or_says_why_not(name: str) -> None:
    """Whatever its language. A test that is named as reading a block is there and knows the page."""
    page = (ROOT / name).read_text(encoding="utf-8")
    assert idle_blocks(page) == []
    for test in checkers(page):
        assert Path(name).name in (ROOT / test).read_text(encoding="utf-8"), test


@pytest.mark.parametrize("name", OTHERS)
def test_pages_that_are_not_run_have_commands_with_reasons(name: str) -> None:
    """Of a checkout, all of them; no program stands there."""
    page = (ROOT / name).read_text(encoding="utf-8")
    assert "```python" not in page
    assert [one for one in re.findall(r"^\$ (.*)$", page, re.MULTILINE) if not reason(one)] == []


@pytest.mark.parametrize("name", [*PAGES, *OTHERS])
def test_what_is_printed_is_shown_to_readers(name: str) -> None:
    """Not the wildcard of these tests alone; a comment says which parts vary, and they are shown."""
    assert vague_blocks((ROOT / name).read_text(encoding="utf-8")) == []


def test_a_vague_block_is_seen() -> None:
    """Of a command and of a program; lines that are left out beside others are none."""
    page = "```console\n$ a\n…\n$ b\nb\n…\n```\n```python\nx\n```\n```output\n…\n```\n"
    assert vague_blocks(page) == ["2: a", "8: python - <<'END_OF_FILE'"]


def test_an_idle_block_is_seen() -> None:
    """One in a language that nobody runs, an output of nothing, a reason that is empty, an indented one."""
    assert idle_blocks("```yaml\na: 1\n```\n") == ["a: 1"]
    assert idle_blocks("```output\na\n```\n") == ["a"]
    assert idle_blocks("<!-- not executed: no server -->\n```python\nx\n```\n```output\na\n```\n") == ["a"]
    assert idle_blocks("<!-- not executed: -->\n```json\n{}\n```\n") == ["{}"]
    assert idle_blocks("- a\n\n  ```\n  x\n  ```\n") == ["2 fences, of which 0 are seen"]
    for reasoned in ("file: a.yaml", "checked: tests/a.py", "not executed: a picture"):
        assert idle_blocks(f"<!-- {reasoned} -->\n```yaml\na: 1\n```\n") == []
    assert idle_blocks("```python\nx\n```\n```output\na\n```\n```console\n$ a\n```\n") == []


def test_what_would_be_passed_over_is_seen() -> None:
    """Another name of the language, a block in a list, and no reason."""
    assert unseen_blocks("```py\nx\n```\n- a\n\n  ```python\n  x\n  ```\n<!-- not executed: -->\n") == [
        "```py",
        "  ```python",
        "<!-- not executed: -->",
    ]
    assert unseen_blocks("<!-- not executed: no table -->\n```python\nx\n```\n") == []


def test_every_exception_is_needed() -> None:
    """A command that is gone from the pages is gone from the table."""
    pages = "\n".join((ROOT / name).read_text(encoding="utf-8") for name in (*PAGES, *OTHERS))
    commands = re.findall(r"^\$ (.*)$", pages, re.MULTILINE)
    assert [one for one in NOT_RUN if one not in commands] == []
    assert [one for one in PREFIXES if not any(command.startswith(one) for command in commands)] == []


def test_nothing_of_this_checkout_is_found(programs: Path, tmp_path: Path) -> None:
    """Neither our sources nor what only development needs."""
    program = (
        "import importlib.util as u, zae_limiter; print(zae_limiter.__file__); "
        "print([n for n in ('tests', 'pytest', 'hypothesis', 'hatchling', 'mypy') if u.find_spec(n)])"
    )
    ran = subprocess.run(
        [programs / "python", "-c", program], cwd=tmp_path, env={}, capture_output=True, text=True, check=True
    )
    place, found = ran.stdout.splitlines()
    assert Path(place).is_relative_to(programs.parent)
    assert found == "[]"


@pytest.mark.parametrize(
    ("said", "printed", "is_so"),
    [
        ("a\n", "a \n\n", True),
        ("a\n", "b\n", False),
        ("took … ms\n", "took 12 ms\n", False),
        ("took … ms\n", "took … ms\n", True),
        ("a\n…\nz\n", "a\nb\nc\nz\n", True),
        ("a\n…\n", "b\nc\n", False),
    ],
)
def test_what_agrees(said: str, printed: str, is_so: bool) -> None:
    """Lines that are left out; a `…` within a line is a letter."""
    assert agrees(said, printed) is is_so


@pytest.mark.parametrize(
    ("said", "printed", "varies", "is_so"),
    [
        ("took 7 ms", "took 12 ms", ["7"], True),
        ("took 7 ms", "took x ms", ["7"], False),
        ("took 7 ms", "took 12 s", ["7"], False),
        ("at 2026-10-05T09:00Z", "at 2027-01-31T17:00Z", ["2026-10-05T09:00Z"], True),
        ("token: zae_1f", "token: zae_9a-b", ["zae_1f"], True),
        ("token: zae_1f", "token: zae_9a b", ["zae_1f"], False),
        ("said …", "said anything at all", ["…"], True),
        ("said …", "said anything\nat all", ["…"], False),
    ],
)
def test_what_varies(said: str, printed: str, varies: list[str], is_so: bool) -> None:
    """Digits may be other digits, a word another word; what stands beside them may not."""
    assert agrees(said, printed, varies) is is_so


def test_a_page_says_what_varies_and_when_it_is() -> None:
    """The first for one block, the other from there on."""
    page = (
        "<!-- clock: 2026-10-05T09:30:00Z -->\n"
        "<!-- varies: `a b`, `c` -->\n```console\n$ one\na b\n$ two\n```\n"
        "```python\nx\n```\n<!-- varies: `d` -->\n```output\nd\n```\n<!-- clock: -->\n"
    )
    assert [(step.first, step.varies) for step in steps_of(page, frozenset())] == [
        ("export CLOCK_STANDS_AT=2026-10-05T09:30:00Z", ()),
        ("one", ("a b", "c")),
        ("two", ("a b", "c")),
        ("python - <<'END_OF_FILE'", ("d",)),
        ("export CLOCK_STANDS_AT=", ()),
    ]


def test_what_a_page_does() -> None:
    """Files, hidden commands, programs and commands with what they print; what is spared is left out."""
    page = (
        "<!-- before:\nfirst\nsecond\n-->\n"
        "<!-- file: a.yaml -->\n```yaml\nx: 1\n```\n"
        "```yaml\nonly: shown\n```\n"
        "```python\nprint(1)\n```\n\n```output\n1\n```\n"
        "```console\n$ one \\\n    more\nsaid\n$ two   # words\n$ aws x\nerror\n$ three\nerror: no\n```\n"
    )
    steps = [(step.command, step.printed, step.fails) for step in steps_of(page, frozenset({"aws x"}))]
    assert steps == [
        ("first", None, False),
        ("second", None, False),
        ("cat > a.yaml <<'END_OF_FILE'\nx: 1\nEND_OF_FILE", None, False),
        ("python - <<'END_OF_FILE'\nprint(1)\nEND_OF_FILE", "1\n", False),
        ("one \\\n    more", "said\n", False),
        ("two   # words", "", False),
        ("three", "error: no\n", True),
    ]


@pytest.mark.parametrize(
    ("said", "data", "notes", "is_so"),
    [
        (None, "a\n", "b\n", True),
        ("", "", "", True),
        ("", "a\n", "", False),
        ("", "", "b\n", False),
        ("a\n", "a\n", "b\n", True),
        ("a\nb\n", "a\n", "b\n", True),
        ("b\n", "a\n", "b\n", False),
        ("…\n", "", "b\n", True),
    ],
)
def test_what_is_printed_is_shown(said: str | None, data: str, notes: str, is_so: bool) -> None:
    """A command below which nothing stands prints nothing; what the reader is spared may print."""
    assert says_it(Step(1, "command", said), data, data + notes) is is_so


def test_a_clock_that_is_set_stands(programs: Path, tmp_path: Path) -> None:
    """For all programs of a page from there on, until it goes on again."""
    program = "python -c 'from zae_limiter.runtime.world import World; print(World().now_ms())'"
    words = ("export CLOCK_STANDS_AT=2026-10-05T09:30:00Z", program, "export CLOCK_STANDS_AT=", program)
    _, answers = run([Step(1, one) for one in words], programs, tmp_path)
    standing, going = answers[3].strip(), answers[9].strip()
    assert standing == "1791192600000"
    assert abs(int(going) / 1000 - time.time()) < PATIENCE_SECONDS


def test_what_goes_on_is_told_as_the_page_has_it(programs: Path, tmp_path: Path) -> None:
    """It begins in the background on a port that is free, and is ended with the page."""
    server = (
        "import time, sys; print('serving x at http://127.0.0.1:12345; Ctrl-C ends it', flush=True);"
        "open('port', 'w').write(' '.join(sys.argv[1:])); time.sleep(3600)"
    )
    (tmp_path / "zae-limiter").write_text(f"#!{programs / 'python'}\n{server}")
    (tmp_path / "zae-limiter").chmod(0o755)
    shown = "serving x at http://127.0.0.1:8400; Ctrl-C ends it\n"
    steps = [
        Step(1, "PATH=.:$PATH"),
        Step(2, "zae-limiter serve --store x", shown),
        Step(3, "kill -0 $RUNNING; echo $RUNNING", None),
    ]
    _, answers = run(steps, programs, tmp_path)
    assert disagreements("a page", steps, answers) == []
    assert (tmp_path / "port").read_text() == "serve --store x --port 0"
    with pytest.raises(ProcessLookupError):
        os.kill(int(answers[6]), 0)


@pytest.mark.parametrize("ended", ["echo 'error: no' >&2; exit 1", "echo one"])
def test_what_should_go_on_and_ends_is_seen(programs: Path, tmp_path: Path, ended: str) -> None:
    """A server that does not begin fails its page, whether it says why or not."""
    (tmp_path / "zae-limiter").write_text(f"#!/bin/sh\n{ended}\n")
    (tmp_path / "zae-limiter").chmod(0o755)
    steps = [Step(1, "PATH=.:$PATH"), Step(2, "zae-limiter serve --store x", "one\ntwo\n")]
    _, answers = run(steps, programs, tmp_path)
    (wrong,) = disagreements("a page", steps, answers)
    assert "ended with 1" in wrong
