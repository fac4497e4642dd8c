"""What pages name in code font, and whether it is there: members, options, commands, variables, classes."""

from __future__ import annotations

import builtins
import functools
import importlib
import re
from pathlib import Path
from typing import Any

import click

from docs.site import tables
from docs.site.api import CHAPTERS, public
from docs.site.commands import PROGRAM
from zae_limiter import JointLease, Lease, RateLimiter, RateLimitExceeded, Repository, SyncRateLimiter
from zae_limiter.cli.app import program

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"^```.*?^```[ \t]*$", re.MULTILINE | re.DOTALL)
VARIES = re.compile(r"^<!-- varies: .* -->$", re.MULTILINE)
SPAN = re.compile(r"`([^`\n]+)`")
COMMAND = re.compile(rf"^(?:\$ )?{PROGRAM}((?: [^\s|;&>]+)*)", re.MULTILINE)
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]+")
VARIABLE = re.compile(r"(?<![\w-])_?(?:ZAE_LIMITER|ZAEL)_[A-Z_]+\b")
MEMBER = re.compile(r"(?<![\w.`/])([A-Za-z_]\w*)((?:\.[a-z_]\w*)+)")
WRITTEN = re.compile(r"(?!test_)(?:(?:Sync)?[A-Z][a-z]+(?:[A-Z][a-z]+)+|[a-z][a-z0-9]*(?:_[a-z0-9]+)+)")
"""A class, or a function, a setting, a field; `test_paths` looks up tests."""
FILE_ENDS = frozenset({"py", "yaml", "md", "db", "toml", "json"})
WORD = re.compile(r"[a-z][a-z-]*")

SPOKEN_OF: dict[str, tuple[Any, ...]] = {
    "limiter": (RateLimiter, SyncRateLimiter),
    "lease": (Lease, JointLease),
    "repository": (Repository,),
    "refusal": (RateLimitExceeded,),
    "refused": (RateLimitExceeded,),
}
"""Variables of the examples, and what they are."""


@functools.cache
def classes() -> dict[str, Any]:
    """The public classes of all modules."""
    found: dict[str, Any] = {}
    for chapter in CHAPTERS:
        found |= {name: one for name, one in public(chapter.module).items() if isinstance(one, type)}
    return found


@functools.cache
def options() -> frozenset[str]:
    """Every option of every command, former spellings too."""
    found = {"--help"}

    def below(command: click.Command, context: click.Context) -> None:
        for parameter in command.params:
            found.update(*(parameter.opts, parameter.secondary_opts))
        if isinstance(command, click.Group):
            for name in command.list_commands(context):
                inner = command.get_command(context, name)
                if inner is not None:
                    below(inner, click.Context(inner, info_name=name, parent=context))

    below(program, click.Context(program, **program.context_settings))
    return frozenset(found)


@functools.cache
def sources() -> frozenset[str]:
    """Every identifier in the code of the repository."""
    texts = (
        path.read_text(encoding="utf-8")
        for place in ("src", "examples")
        for path in (ROOT / place).rglob("*.py")
    )
    return frozenset(word for text in texts for word in re.findall(r"\w+", text))


def unknown(page: str) -> list[str]:
    """All that a page names and nobody finds."""
    spans = SPAN.findall(VARIES.sub("", BLOCK.sub("", page)))
    consoles = "\n".join(re.findall(r"^```console\n(.*?)^```", page, re.MULTILINE | re.DOTALL))
    wrong = [f"variable {name}" for name in VARIABLE.findall(page) if name not in tables.MEANINGS]
    for said in spans:
        wrong += [f"member {one}" for one in members(said)]
        word = said.removesuffix("()").removesuffix("(…)").removesuffix("=")
        wrong += [f"name {word}"] if WRITTEN.fullmatch(word) and not is_written(word) else []
        if not COMMAND.match(said) and said.startswith("--"):
            wrong += [f"option {one}" for one in OPTION.findall(said) if one not in options()]
    for match in (found for said in (*spans, consoles) for found in COMMAND.finditer(said)):
        wrong += command(match[1].split())
    return list(dict.fromkeys(wrong))


def members(said: str) -> list[str]:
    """Members of what is ours that are not there: `lease.gone`, `Limit.per_fortnight(…)`."""
    wrong = []
    for owner, path in MEMBER.findall(said):
        kinds = SPOKEN_OF.get(owner) or ((classes()[owner],) if owner in classes() else ())
        name = path.split(".")[1]
        if kinds and name not in FILE_ENDS and not any(has(kind, name) for kind in kinds):
            wrong.append(f"{owner}.{name}")
    return wrong


def has(kind: type, name: str) -> bool:
    """Whether a class has a member, be it one that only its objects have."""
    return (
        hasattr(kind, name)
        or any(name in getattr(base, "__annotations__", {}) for base in kind.__mro__)
        or (re.search(rf"\bself\.{name}\b", source_of(kind)) is not None)
    )


@functools.cache
def source_of(kind: type) -> str:
    modules = {base.__module__ for base in kind.__mro__ if base.__module__.startswith("zae_limiter")}
    files = (importlib.import_module(name).__file__ or "" for name in modules)
    return "\n".join(Path(file).read_text(encoding="utf-8") for file in files)


def is_written(name: str) -> bool:
    return name in sources() or hasattr(builtins, name)


def command(words: list[str]) -> list[str]:
    """What is wrong with a command: a verb that is not there, or an option that this verb has not."""
    found: click.Command = program
    context = click.Context(program, info_name=PROGRAM, **program.context_settings)
    at = 0
    while isinstance(found, click.Group) and at < len(words) and WORD.fullmatch(words[at]):
        inner = found.get_command(context, words[at])
        if inner is None:
            # A group may be a command as well, with arguments of its own.
            return [] if found.params and found is not program else [f"command {' '.join(words[: at + 1])}"]
        context = click.Context(inner, info_name=words[at], parent=context)
        found, at = inner, at + 1
    known = {name for parameter in found.params for name in (*parameter.opts, *parameter.secondary_opts)} | {
        "--help"
    }
    said = [word.partition("=")[0] for word in words[at:] if OPTION.fullmatch(word.partition("=")[0])]
    return [f"option {one} of {' '.join(words[:at])}" for one in said if one not in known]
