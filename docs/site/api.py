"""The reference of the library, from the public names and their docstrings.

It looks at the objects themselves, so the sync twins are there with the signatures that they really have.
Examples are those that `tests/documents/test_docstrings.py` runs.
"""

from __future__ import annotations

import ast
import enum
import importlib
import inspect
import re
import sys
import textwrap
from collections.abc import Callable, Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

PACKAGE = "zae_limiter"
SOMEBODY_ELSES = (".established", ".backends.around")
"""Modules of forms that programs for the established package have, and of what every store has."""

OBJECT = re.compile(r"<(?:class|enum|function) '?([\w.]+)'?[^>]*>")
HOME = re.compile(r"\b(?:zae_limiter(?:_aggregator)?|typing|collections\.abc)\.(?:\w+\.)*(?=\w)")
ASYNC = re.compile(r"\b(?:await|async) ")
EXAMPLE = re.compile(r"^ *(?:>>>|\.\.\.) .*$", re.MULTILINE)
FORWARD = re.compile(r"(?<=[ \[(|])'([^']*)'(?=[,\])| ]|$)")


class Chapter(NamedTuple):
    """A page of the reference: the public names of a module, or of those that some modules define."""

    file: str
    title: str
    module: str
    homes: str = ""


CHAPTERS = (
    Chapter("limiters", "Limiters", PACKAGE, "limiter sync decorator models.demand version"),
    Chapter("leases", "Leases", PACKAGE, "lease joint sync_lease models.leases"),
    Chapter(
        "repositories", "Repositories and stacks", PACKAGE, "repository builder settings infra runtime sync"
    ),
    Chapter("values", "Limits and other values", PACKAGE, "models"),
    Chapter("errors", "Errors", PACKAGE, "exceptions"),
    Chapter("web", "Web", f"{PACKAGE}.web"),
    Chapter("fastapi", "FastAPI", f"{PACKAGE}.web.fastapi"),
    Chapter("flask", "Flask", f"{PACKAGE}.web.flask"),
    Chapter("django", "Django", f"{PACKAGE}.web.django"),
    Chapter("llm", "Language models", f"{PACKAGE}.llm"),
    Chapter("outbound", "Outbound requests", f"{PACKAGE}.outbound"),
    Chapter("testing", "Testing", f"{PACKAGE}.testing"),
    Chapter("telemetry", "Telemetry", f"{PACKAGE}.telemetry"),
    Chapter("aggregator", "The aggregator", f"{PACKAGE}_aggregator"),
)


def public(module: str) -> dict[str, Any]:
    """The public names of a module, and what they stand for."""
    found = importlib.import_module(module)
    names = getattr(found, "__all__", None) or [
        name
        for name, one in vars(found).items()
        if getattr(one, "__module__", "") == module and name[0] != "_"
    ]
    return {name: getattr(found, name) for name in names}


def chapter_of(name: str, thing: Any) -> str:
    """The file of the first chapter that a name of the package belongs to."""
    if name.endswith(("Repository", "RepositoryBuilder")):
        return "repositories"
    home = home_of(thing)
    for chapter in CHAPTERS:
        if any(is_at(home, one) for one in chapter.homes.split()):
            return chapter.file
    raise LookupError(f"no chapter of docs/site/api.py has {name} of {home}")


def home_of(thing: Any) -> str:
    """The module of a thing, without the package."""
    return str(getattr(thing, "__module__", f"{PACKAGE}.version")).removeprefix(f"{PACKAGE}.")


def is_at(home: str, module: str) -> bool:
    return home == module or home.startswith(f"{module}.")


def names_of(chapter: Chapter) -> dict[str, Any]:
    names = public(chapter.module)
    if not chapter.homes:
        return names
    found = {name: one for name, one in names.items() if chapter_of(name, one) == chapter.file}
    return dict(sorted(found.items(), key=lambda pair: place_in(chapter, pair[1])))


def place_in(chapter: Chapter, thing: Any) -> int:
    """What people come for is first: the homes of a chapter are in that order."""
    homes = chapter.homes.split()
    return next(at for at, home in enumerate(homes) if is_at(home_of(thing), home))


def page(chapter: Chapter) -> str:
    """A chapter as Markdown."""
    names = names_of(chapter)
    module = importlib.import_module(chapter.module)
    about = "" if chapter.homes else prose(inspect.getdoc(module) or "")
    told = f"Names of `{chapter.module}`. {('Import them from there.' if names else '')}"
    parts = [f"# {chapter.title}", told, about]
    for name, thing in names.items():
        parts += described(name, thing)
    return "\n\n".join(part for part in parts if part) + "\n"


def described(name: str, thing: Any) -> Iterable[str]:
    yield f"## `{name}` {{ #{name.strip('_')} }}"
    if inspect.isclass(thing):
        yield from described_class(name, thing)
    elif callable(thing):
        yield code(signature(name, thing))
        yield prose(doc_of_name(name, thing))
    else:
        yield f"Is `{thing!r}`." if len(repr(thing)) < 90 else f"A {type(thing).__name__}."


def described_class(name: str, kind: type) -> Iterable[str]:
    bases = [
        base.__name__
        for base in kind.__bases__
        if base.__module__.startswith(PACKAGE) and base.__name__[0] != "_"
    ]
    own = [base for base in bases if base in public(PACKAGE)]
    if own:
        yield f"A kind of {', '.join(f'`{base}`' for base in own)}."
    if not (issubclass(kind, BaseException) or is_enum(kind) or is_typed_dict(kind)):
        yield code(signature(name, kind, "class "))
    yield prose(doc_of_name(name, kind))
    if is_enum(kind):
        yield "\n".join(f"- `{one.name}` is `{one.value!r}`" for one in kind)  # type: ignore[attr-defined]
        return
    if is_typed_dict(kind):
        yield "\n".join(f"- `{key}`: `{plain(str(value))}`" for key, value in kind.__annotations__.items())
        return
    for member, thing in members(kind):
        yield f'### `{name}.{member}` {{ #{name}.{member} data-toc-label="{member}" }}'
        if isinstance(thing, property):
            yield prose(doc_of_member(kind, member))
            continue
        within = getattr(kind, member)
        before = "async def " if inspect.iscoroutinefunction(within) else "def "
        yield code(signature(member, within, before))
        said = doc_of_member(kind, member)
        yield prose(of_twin(said) if name.startswith("Sync") else said)


def doc_of_name(name: str, thing: Any) -> str:
    """A docstring of ours, not one that a dataclass or an enumeration made, or that Python has of a type."""
    if inspect.isclass(thing) or inspect.isfunction(thing):
        said = inspect.cleandoc(thing.__doc__ or "")
        return "" if said.startswith(f"{name}(") or said == (enum.Enum.__doc__ or "") else said
    homes = [one for one in list(sys.modules.values()) if getattr(one, "__name__", "").startswith(PACKAGE)]
    docs = (doc_of_alias(name, one.__file__ or "") for one in homes if vars(one).get(name) is thing)
    return next((said for said in docs if said), "")


def doc_of_alias(name: str, file: str) -> str:
    """The string below the line that gives something its name."""
    body = ast.parse(Path(file).read_text(encoding="utf-8")).body
    for row, below in pairwise(body):
        is_it = isinstance(row, ast.AnnAssign) and ast.unparse(row.target) == name
        if is_it and isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
            return str(below.value.value)
    return ""


def doc_of_member(kind: type, member: str) -> str:
    """What the class says of it, or the first above it that is ours and does."""
    ours = (base for base in kind.__mro__ if base.__module__.startswith(PACKAGE) and member in vars(base))
    docs = (vars(base)[member].__doc__ for base in ours)
    return inspect.cleandoc(next((said for said in docs if said), ""))


def of_twin(text: str) -> str:
    """A docstring whose examples do not await."""
    return EXAMPLE.sub(lambda row: without_await(row[0]), text)


def without_await(source: str) -> str:
    return ASYNC.sub("", source)


def is_enum(kind: type) -> bool:
    return hasattr(kind, "__members__")


def is_typed_dict(kind: type) -> bool:
    return hasattr(kind, "__total__")


def members(kind: type) -> Iterable[tuple[str, Any]]:
    """Public methods and properties of a class that are ours, in the order of their names."""
    for name, thing in inspect.getmembers_static(kind):
        owner = next(base for base in kind.__mro__ if name in vars(base))
        home = owner.__module__
        if name.startswith("_") or not home.startswith(PACKAGE) or home.endswith(SOMEBODY_ELSES):
            continue
        if isinstance(thing, property | classmethod | staticmethod) or inspect.isfunction(thing):
            yield name, thing


def signature(name: str, thing: Callable[..., Any], before: str = "def ") -> str:
    """A signature as one would write it, a parameter a line if it is long."""
    try:
        found = inspect.signature(thing)
    except (TypeError, ValueError):
        return f"{before}{name}"
    parameters = [
        one for one in found.parameters.values() if one.name not in {"self", "cls"} and one.name[0] != "_"
    ]
    told = plain(str(found.replace(parameters=parameters)))
    if before == "class ":
        told = told.removesuffix(" -> None")
    if len(before + name + told) <= 88:
        return f"{before}{name}{told}"
    _, _, returned = told.rpartition(") -> ") if ") -> " in told else ("", "", "")
    rows = []
    kinds = [one.kind for one in parameters]
    for at, one in enumerate(parameters):
        if (
            one.kind is one.KEYWORD_ONLY
            and one.VAR_POSITIONAL not in kinds
            and one.KEYWORD_ONLY not in kinds[:at]
        ):
            rows.append("    *,")
        rows.append(f"    {plain(str(one))},")
    return "\n".join([f"{before}{name}(", *rows, f"){f' -> {returned}' if returned else ''}"])


def plain(said: str) -> str:
    """A signature without quotes, modules and addresses, which no reader needs."""
    said = OBJECT.sub(r"\1", said)
    said = re.sub(r": '([^']*)'", r": \1", said)
    said = re.sub(r"-> '([^']*)'", r"-> \1", said)
    said = re.sub(r"ForwardRef\(([^)]*)\)", lambda match: match[1].split(",")[0].strip("'"), said)
    said = re.sub(r" at 0x[0-9a-f]+", "", said)
    return HOME.sub("", said)


def prose(doc: str) -> str:
    """A docstring as Markdown: examples become blocks, double quotes of code single ones."""
    parts = []
    for piece in re.split(r"\n\s*\n", inspect.cleandoc(doc)):
        rows = piece.splitlines()
        at = next((number for number, row in enumerate(rows) if row.lstrip().startswith(">>> ")), None)
        before = rows if at is None else rows[:at]
        if any(before):
            parts.append(as_list("\n".join(before)))
        if at is not None:
            parts.append(code(textwrap.dedent("\n".join(rows[at:])), "pycon"))
    return "\n\n".join(parts)


def as_list(piece: str) -> str:
    """A paragraph; one whose lines name something each becomes a list."""
    piece = piece.replace("``", "`")
    rows = piece.splitlines()
    if len(rows) > 1 and all(re.match(r"`[^`]+`: ", row) for row in rows):
        return "\n".join(f"- {row}" for row in rows)
    # A list needs an empty line before it.
    return (
        re.sub(r"(?m)(?<=\S)\n(?=- )(?<!\n\n)", "\n\n", piece, count=1)
        if not piece.startswith("- ")
        else piece
    )


def code(text: str, language: str = "python") -> str:
    return f"```{language}\n{text}\n```"


def index() -> str:
    """The list of chapters, with the names in each."""
    rows = [
        "# The library",
        "Every public name, from its docstring. The examples in them are run by the tests. Sync twins have"
        " the same names and meanings as what they are twins of.",
        "In the examples `limiter` is a fresh one in memory, and `gpt-4` has the limits `rpm:60` and"
        " `tpm:10000`. What awaits runs in `python -m asyncio`.",
        "| page | names |\n|---|---|",
    ]
    table = [
        f"| [{chapter.title}]({chapter.file}.md), `{chapter.module}` | "
        + ", ".join(f"[`{name}`]({chapter.file}.md#{name.strip('_')})" for name in names_of(chapter))
        + " |"
        for chapter in CHAPTERS
    ]
    return "\n\n".join(rows) + "\n" + "\n".join(table) + "\n"
