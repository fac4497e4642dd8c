"""The reference has everything: each public name with its members, each command with its options."""

from __future__ import annotations

import inspect
import re
import shlex
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

import click
import pytest

import zae_limiter
from docs.site import api, checks, commands, contents
from tests.documents.blocks import checkers, idle_blocks
from zae_limiter.cli.app import program
from zae_limiter.llm.amounts import Amounts


def test_every_public_name_is_there(site: Path) -> None:
    """With every method that is a function of ours, once, in a chapter; each has words of its own."""
    found = [name for chapter in api.CHAPTERS if chapter.homes for name in api.names_of(chapter)]
    assert sorted(found) == sorted(zae_limiter.__all__)
    for chapter in api.CHAPTERS:
        anchors = checks.read(site / "reference" / f"{chapter.file}.html").anchors
        assert {name.strip("_") for name in api.names_of(chapter)} <= anchors
    limiters = checks.read(site / "reference" / "limiters.html").anchors
    for kind in (zae_limiter.RateLimiter, zae_limiter.SyncRateLimiter):
        own = [name for name, one in vars(kind).items() if inspect.isfunction(one) and name[0] != "_"]
        assert len(own) > 40
        assert {f"{kind.__name__}.{name}" for name in own} <= limiters


def documented() -> dict[str, str]:
    """What the reference says of each public name and member."""
    found = {}
    for name, thing in (
        (name, one) for chapter in api.CHAPTERS for name, one in api.names_of(chapter).items()
    ):
        found[name] = api.doc_of_name(name, thing)
        if inspect.isclass(thing) and not (api.is_enum(thing) or api.is_typed_dict(thing)):
            found |= {f"{name}.{one}": api.doc_of_member(thing, one) for one, _ in api.members(thing)}
    return found


def test_every_name_and_member_is_described() -> None:
    """In words of ours: what Python says of a base class or a type is nothing."""
    found = documented()
    assert len(found) > 600
    assert {name for name, said in found.items() if not said} == {"__version__"}


def test_words_of_others_are_none() -> None:
    """Those of Python, those that a dataclass or an enumeration makes; a type has a string below it."""

    @dataclass
    class Made:
        field: int

        def keys(self) -> list[str]:
            return []

    class Plain(Enum):
        ONE = 1

    assert [api.doc_of_name(one.__name__, one) for one in (Made, Plain)] == ["", ""]
    assert api.doc_of_member(Made, "keys") == ""
    assert api.doc_of_member(type("Ours", (dict,), {}), "keys") == ""
    assert api.doc_of_name("Amounts", Amounts) == "What a usage costs, by limit."


def test_every_module_of_public_names_has_a_chapter() -> None:
    """Whatever has an `__all__` for users; the rest is how it is made."""
    modules = {chapter.module for chapter in api.CHAPTERS}
    inner = {
        "zae_limiter.models": "its names are those of the package",
        "zae_limiter.server": "a program, which is used over HTTP",
        **{
            f"zae_limiter.{name}": "machinery"
            for name in (
                *("operate.manifest", "operate.migrations", "operate.copying"),
                *("backends.dynamodb", "backends.redis", "backends.postgres", "backends.sqlite"),
            )
        },
    }
    packages = {
        ".".join(path.parent.relative_to(contents.ROOT / "src").parts)
        for path in (contents.ROOT / "src").rglob("__init__.py")
        if "\n__all__" in path.read_text(encoding="utf-8")
    }
    assert packages - set(inner) <= modules
    assert set(inner) <= packages


def test_examples_of_a_twin_do_not_await() -> None:
    """The async ones do; words around them stay as they are."""
    text = (
        "Awaits.\n\n>>> async with limiter.x() as lease:\n...     await lease.y()\n>>> await z\n1\n\nawait it"
    )
    twin = "Awaits.\n\n>>> with limiter.x() as lease:\n...     lease.y()\n>>> z\n1\n\nawait it"
    assert api.of_twin(text) == twin
    page = api.page(next(chapter for chapter in api.CHAPTERS if chapter.file == "limiters"))
    former, latter = page.split("## `SyncRateLimiter`")
    assert ">>> await limiter.available(" in former
    assert ">>> limiter.available(" in latter
    assert ">>> await" not in latter.partition("\n## ")[0]


def test_examples_of_the_reference_are_blocks() -> None:
    """They are those of the docstrings, which are run."""
    page = api.page(next(chapter for chapter in api.CHAPTERS if chapter.file == "values"))
    assert "```pycon\n>>> " in page
    assert "``" not in page.replace("```", "")


def test_every_command_is_there(site: Path) -> None:
    """With every option that its help shows, each in the row of a table."""
    page = commands.page()
    anchors = checks.read(site / "reference" / "commands.html").anchors
    names = [words for words, _, _ in commands.tree()]
    assert len(names) > 60
    assert {commands.anchor(words) for words in names} <= anchors
    for words, command, _ in commands.tree():
        section = page.partition(f"`{words}` {{ #")[2].partition("\n#")[0]
        for option in (one for one in command.params if isinstance(one, click.Option) and not one.hidden):
            assert all(f"`{name}`" in section for name in option.opts), (words, option.opts)
    shown = (site / "reference" / "commands.html").read_text(encoding="utf-8")
    assert "<code>--window</code> <code>[hourly|daily|monthly]</code>" in shown


def understood(line: str) -> bool:
    """Whether our program takes a line of an example: its verbs, options, choices, arguments."""
    said = re.search(rf"{commands.PROGRAM} ([^|>)]+?)(?=\)|  |$| [|>])", line)
    words = shlex.split(said[1]) if said else []
    command: click.Command = program
    context = click.Context(program, **program.context_settings)
    try:
        while words and isinstance(command, click.Group):
            _, found, words = command.resolve_command(context, words)
            assert found is not None
            command, context = found, click.Context(found, parent=context)
        command.make_context(command.name, words, parent=context.parent)
    except click.ClickException:
        return False
    return not isinstance(command, click.Group)


def test_every_block_of_commands_md_is_looked_at() -> None:
    """Usage is what the program says; lines of an example are commands that it understands."""
    page = commands.page()
    assert idle_blocks(page) == []
    assert set(checkers(page)) == {Path(__file__).relative_to(contents.ROOT).as_posix()}
    blocks = re.findall(r"^```text\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    usages = {" ".join([words, *one.collect_usage_pieces(of)]) for words, one, of in commands.tree()}
    examples = [line for block in blocks if block.strip() not in usages for line in block.splitlines()]
    assert len(examples) > 5
    assert [line for line in examples if not understood(line)] == []


@pytest.mark.parametrize(
    "line",
    [
        "zae-limiter fulfil bash",
        'eval "$(zae-limiter completion tcsh)"  in ~/.tcshrc',
        "zae-limiter local env --shell fish > .envrc",
        "zae-limiter copy sqlite:///limits.db",
        "limits copy",
    ],
)
def test_an_example_that_is_not_understood_is_seen(line: str) -> None:
    """A verb, a choice or an option that is not there, an argument that is missing, another program."""
    assert not understood(line)


def test_what_is_hidden_is_not_shown() -> None:
    """Commands and options that only programs for former versions use."""
    assert program.get_command(click.Context(program, **program.context_settings), "loadtest") is not None
    assert "loadtest" not in commands.page()
    assert "--docker-host" not in commands.page()


def test_a_name_without_a_chapter_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A public name of a new module needs a place."""
    monkeypatch.setattr(zae_limiter.Limit, "__module__", "zae_limiter.new")
    with pytest.raises(LookupError, match=r"Limit of new"):
        api.chapter_of("Limit", zae_limiter.Limit)


def test_a_signature_is_readable() -> None:
    """Without modules and quotes; a parameter a line where it is long."""

    def found(self: object, entity_id: str, *, wait: float | None = None) -> zae_limiter.Limit:  # type: ignore[empty-body]
        """Has something to do."""

    assert api.signature("found", found) == "def found(entity_id: str, *, wait: float | None = None) -> Limit"
    long = api.signature("acquire", zae_limiter.RateLimiter.acquire)
    assert long.splitlines()[0] == "def acquire("
    assert "    *," in long.splitlines()
    assert long.endswith(") -> Acquisition")
    assert "'" not in long
