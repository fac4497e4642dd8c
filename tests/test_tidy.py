"""Lint the repository as a unit test: layers, sizes, banned names, plain text.

The rules are tables in ``house_rules``. Each check is a pure function from
source text to a list of complaints, and the tests at the end feed it bad sources, so a check that sees
nothing fails too.
"""

import ast
import builtins
import functools
import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

from tests.house_rules import (
    AGGREGATOR,
    BANNED_TEXT,
    BANNER,
    BANS,
    FILE_LINES_MAX,
    FUNCTION_LINES_MAX,
    LAYERS,
    OVERSIZE,
    PACKAGE,
    PARAMETERS_MAX,
    SRC_LINES_MAX,
    VAGUE_NAMES,
    VAGUE_NAMES_ALLOWED,
    Layer,
)

ROOT = Path(__file__).resolve().parent.parent

parsed = functools.cache(ast.parse)
"""The tree of a source, which nobody changes."""


@dataclass(frozen=True)
class Module:
    """A source file of the package under its full dotted name."""

    path: str
    name: str
    source: str

    @property
    def short_name(self) -> str:
        return short(self.name)

    @property
    def package(self) -> str:
        """What a single leading dot means in this file."""
        return self.name if self.path.endswith("__init__.py") else self.name.rpartition(".")[0]


def short(name: str) -> str:
    """A module's name without the package; `__init__` for the package itself."""
    if name.startswith(AGGREGATOR):
        return name.removeprefix(f"{PACKAGE}_")
    return name.removeprefix(PACKAGE).removeprefix(".") or "__init__"


def matches(name: str, patterns: str) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns.split())


def layer_of(short_name: str) -> Layer | None:
    return next((layer for layer in LAYERS if matches(short_name, layer.modules)), None)


def is_ours(name: str) -> bool:
    return name.partition(".")[0] in (PACKAGE, AGGREGATOR)


def imports_of(module: Module) -> Iterator[tuple[int, str]]:
    """Every import at any depth as (line, full name of the imported module)."""
    for node in ast.walk(parsed(module.source)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            origin = node.module or ""
            if node.level:
                ancestors = module.package.split(".")
                origin = ".".join([*ancestors[: len(ancestors) - node.level + 1], *origin.split(".")])
                origin = origin.rstrip(".")
            for alias in node.names:
                full = f"{origin}.{alias.name}"
                # `from package import x` imports the module x if there is one, else a name of the package.
                yield node.lineno, full if is_ours(full) and layer_of(short(full)) else origin


def layer_complaints(module: Module) -> list[str]:
    """Imports that reach up or sideways, and modules that no layer claims."""
    layer = layer_of(module.short_name)
    if layer is None:
        return [f"{module.path}: no layer of LAYERS has this module"]
    complaints = []
    for line, imported in imports_of(module):
        where = f"{module.path}:{line}: {layer.name} may not import {imported}"
        if is_ours(imported):
            target = layer_of(short(imported))
            if target is None:
                complaints.append(f"{where}, which no layer has")
            elif target is not layer and target.name not in layer.below.split():
                complaints.append(f"{where} of layer {target.name}")
        else:
            top = imported.partition(".")[0]
            if top not in sys.stdlib_module_names and top not in layer.packages.split():
                complaints.append(where)
    return complaints


def dotted(node: ast.expr) -> str | None:
    """`a.b.c` as text, or None for anything but a chain of names."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        owner = dotted(node.value)
        return owner and f"{owner}.{node.attr}"
    return None


def names_used(source: str) -> set[tuple[int, str]]:
    """Imported names and builtins that a source mentions, in full whatever the import called them."""
    tree = parsed(source)
    used: set[tuple[int, str]] = set()
    full_names: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                top = alias.name.partition(".")[0]
                full_names[alias.asname or top] = alias.name if alias.asname else top
                used.add((node.lineno, alias.name))
        elif isinstance(node, ast.ImportFrom) and not node.level:
            for alias in node.names:
                full_names[alias.asname or alias.name] = f"{node.module}.{alias.name}"
                used.add((node.lineno, f"{node.module}.{alias.name}"))
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute | ast.Name) and (name := dotted(node)):
            head, dot, rest = name.partition(".")
            if head in full_names or hasattr(builtins, head):
                used.add((node.lineno, full_names.get(head, head) + dot + rest))
    return used


def ban_complaints(module: Module) -> list[str]:
    """Names that this module may not use."""
    return [
        f"{module.path}:{line}: {name} is not for {module.short_name}: {ban.why}"
        for line, name in sorted(names_used(module.source))
        for ban in BANS
        if not matches(module.short_name, ban.only_in)
        and any(name == banned or name.startswith(f"{banned}.") for banned in ban.names.split())
    ]


def functions_of(
    tree: ast.AST, owner: str = ""
) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """Every function with its qualified name, nested ones included."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            name = f"{owner}.{node.name}".removeprefix(".")
            if not isinstance(node, ast.ClassDef):
                yield name, node
            yield from functions_of(node, name)
        else:
            yield from functions_of(node, owner)


def parameter_count(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """The parameters a caller sees: all but `self`, `cls` and the `scope` that a repository hands in."""
    arguments = function.args
    named = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    count = len(named) + (arguments.vararg is not None) + (arguments.kwarg is not None)
    return count - (bool(named) and named[0].arg in {"self", "cls", "scope"})


def sizes_exceeded(path: str, source: str) -> dict[str, str]:
    """What is too large in a file: its key in OVERSIZE, and the complaint."""
    exceeded = {}
    file_lines = source.count("\n")
    if file_lines > FILE_LINES_MAX:
        exceeded[path] = f"{path}: {file_lines} lines, at most {FILE_LINES_MAX}"
    for name, function in functions_of(parsed(source)):
        problems = []
        body_lines = (function.end_lineno or function.lineno) - function.body[0].lineno + 1
        if body_lines > FUNCTION_LINES_MAX:
            problems.append(f"{body_lines} lines, at most {FUNCTION_LINES_MAX}")
        if (count := parameter_count(function)) > PARAMETERS_MAX:
            problems.append(f"{count} parameters, at most {PARAMETERS_MAX}")
        if problems:
            exceeded[f"{path}::{name}"] = f"{path}:{function.lineno}: {name} has {'; '.join(problems)}"
    return exceeded


def unnamed_complaints(path: str, source: str) -> list[str]:
    """Functions in a test that nobody names outside of them, so nothing in them is ever checked."""
    complaints = []
    for name, test in functions_of(parsed(source)):
        if not test.name.startswith("test_"):
            continue
        for inner_name, inner in functions_of(test, name):
            within = set(ast.walk(inner))
            named = {node.id for node in ast.walk(test) if isinstance(node, ast.Name) and node not in within}
            is_method = any(isinstance(node, ast.ClassDef) and inner in node.body for node in ast.walk(test))
            if not is_method and not inner.decorator_list and inner.name not in named:
                complaints.append(f"{path}:{inner.lineno}: nobody names {inner_name}")
    return complaints


def text_complaints(path: str, text: str) -> list[str]:
    """Words and paths that no file of the repository contains."""
    return [
        f"{path}:{number}: {match.group()!r} is {why}"
        for number, line in enumerate(text.splitlines(), start=1)
        for pattern, why in BANNED_TEXT
        if (match := pattern.search(line))
    ]


def banner_complaints(path: str, source: str) -> list[str]:
    """Comments that draw lines: a file that needs sections wants to be two files."""
    if not BANNER.search(source):
        return []
    return [
        f"{path}:{token.start[0]}: banner comment"
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type == tokenize.COMMENT and BANNER.match(token.string)
    ]


def shared_class_names(found: list[Module]) -> dict[str, list[str]]:
    """Names of classes that stand for more than one thing, and where; a leading underscore is no name."""
    places: dict[str, list[str]] = {}
    for module in found:
        for node in ast.walk(parsed(module.source)):
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name.lstrip("_"), []).append(f"{module.path}:{node.lineno}")
    return {name: at for name, at in places.items() if len(at) > 1}


def name_complaints(path: str) -> list[str]:
    """Module names that say nothing about what is inside."""
    file = Path(path)
    parts = [part for part in (*file.parts[:-1], file.stem) if part not in VAGUE_NAMES_ALLOWED]
    return [f"{path}: {part!r} is a vague name" for part in parts if VAGUE_NAMES & set(part.split("_"))]


@functools.cache
def repository_files() -> list[Path]:
    """Files under version control or about to be."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listing = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    paths = {ROOT / name for name in listing.split("\0") if name}
    return sorted(path for path in paths if path.is_file())


def repository_texts(*folders: str, suffix: str = "") -> Iterator[tuple[str, str]]:
    """Path and text of each text file, of all the repository or of some folders."""
    for file in repository_files():
        path = file.relative_to(ROOT).as_posix()
        if path.endswith(suffix) and (not folders or path.split("/")[0] in folders):
            try:
                yield path, file.read_text(encoding="utf-8")
            except UnicodeDecodeError:
                continue


def python_sources() -> list[tuple[str, str]]:
    return list(repository_texts("src", "examples", "tests", "benchmarks", "docs", suffix=".py"))


def modules() -> list[Module]:
    """The modules of both packages."""
    return [module_at(path, source) for path, source in repository_texts("src", suffix=".py")]


def module_at(path: str, source: str) -> Module:
    name = path.removeprefix("src/").removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    return Module(path, name, source)


def test_imports_follow_the_layers() -> None:
    """No module imports from above or from beside it."""
    assert [complaint for module in modules() for complaint in layer_complaints(module)] == []


def test_layers_name_only_layers() -> None:
    """A misspelt layer in the table would forbid more than it says."""
    names = {layer.name for layer in LAYERS}
    assert [(layer.name, set(layer.below.split()) - names) for layer in LAYERS] == [
        (layer.name, set()) for layer in LAYERS
    ]


def test_banned_names_stay_in_their_modules() -> None:
    """Event loops, threads, clocks, randomness and printing have one home each."""
    assert [complaint for module in modules() for complaint in ban_complaints(module)] == []


def test_nothing_is_too_large() -> None:
    """Files, functions and parameter lists stay small, and no exception outlives its need."""
    exceeded: dict[str, str] = {}
    for path, source in python_sources():
        exceeded |= sizes_exceeded(path, source)
    assert [complaint for key, complaint in exceeded.items() if key not in OVERSIZE] == []
    assert [key for key in OVERSIZE if key not in exceeded] == [], "remove these from OVERSIZE"


def test_the_sources_do_not_grow() -> None:
    """All files of the packages together stay within what they have come down to."""
    assert sum(module.source.count("\n") for module in modules()) <= SRC_LINES_MAX


def test_files_contain_no_banned_text() -> None:
    """Nothing unfinished, no machine's paths and no registry in any file."""
    assert [c for path, text in repository_texts() for c in text_complaints(path, text)] == []


def test_nobody_is_told_to_install_another_program() -> None:
    """The package of this name that pip finds elsewhere is not this one, so messages name the extra alone."""
    told = [path for path, text in repository_texts("src") if re.search(r"pip install .*zae-limiter", text)]
    assert told == []


def test_no_banner_comments() -> None:
    """Comments are sentences."""
    assert [c for path, source in python_sources() for c in banner_complaints(path, source)] == []


def test_no_function_in_a_test_is_left_over() -> None:
    """What a test defines and does not drive would pass whatever it says."""
    assert [c for path, source in python_sources() for c in unnamed_complaints(path, source)] == []


def test_a_function_that_is_left_over_is_seen() -> None:
    """Nested deeper too, or named by itself alone; not what is handed on, decorated or a method."""
    begun = "async def test_a():\n    async def go():\n        "
    assert unnamed_complaints("a.py", f"{begun}go()\n") == ["a.py:2: nobody names test_a.go"]
    deeper = f"{begun}def deeper(): ...\n    go()\n"
    assert unnamed_complaints("a.py", deeper) == ["a.py:3: nobody names test_a.go.deeper"]
    assert unnamed_complaints("a.py", f"{begun}...\n    drive(go)\n") == []
    assert unnamed_complaints("a.py", "def test_a():\n    @app\n    def go(): ...\n") == []
    assert unnamed_complaints("a.py", "def test_a():\n    class A:\n        def go(self): ...\n") == []


def test_a_class_name_has_one_meaning() -> None:
    """Who reads the name of a class need not ask which one."""
    assert shared_class_names(modules()) == {}


def test_a_shared_class_name_is_seen() -> None:
    """In two modules or in one, nested or hidden."""
    one, other = (
        module_at("src/a.py", "class A: pass\n"),
        module_at("src/b.py", "def f():\n    class _A: pass\n"),
    )
    assert shared_class_names([one, other]) == {"A": ["src/a.py:1", "src/b.py:2"]}
    assert shared_class_names([one]) == {}


def test_modules_have_telling_names() -> None:
    """A module is named after what it does."""
    assert [c for path, _ in python_sources() for c in name_complaints(path)] == []


@pytest.mark.parametrize(
    ("path", "source", "said"),
    [
        ("models.py", "from zae_limiter.schema import pk", "facts may not import zae_limiter.schema"),
        ("models.py", "from . import limiter", "facts may not import zae_limiter.limiter"),
        ("models.py", "def f():\n    from .lease import Lease", "models.py:2: facts may not import"),
        ("models.py", "import zae_limiter", "of layer package"),
        ("runtime/world.py", "import zae_limiter.engine.acquire", "of layer engine"),
        ("bucket.py", "import attrs", "facts may not import attrs"),
        ("bucket.py", "from rich.table import Table", "facts may not import rich.table"),
        ("backends/sqlite.py", "from .memory import MemoryBackend", "of layer memory"),
        ("backends/sqlite.py", "from . import open_backend", "of layer backends"),
        ("backends/dynamodb/client.py", "from ..sqlite import x", "of layer sqlite"),
        ("backends/dynamodb/client.py", "from ...repository import x", "of layer records"),
        ("models.py", "from .surprise import x", "which no layer has"),
        ("surprise.py", "", "no layer of LAYERS"),
    ],
)
def test_a_wrong_import_is_seen(path: str, source: str, said: str) -> None:
    """The layer check can fail: relative, absolute, nested and third-party imports."""
    (complaint,) = layer_complaints(module_at(f"src/{PACKAGE}/{path}", source))
    assert said in complaint


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("models.py", "import re\nfrom collections.abc import Mapping\nfrom .naming import check"),
        ("engine/acquire.py", "from .. import bucket, schema\nfrom ..repository_protocol import Update"),
        ("backends/dynamodb/client.py", "import botocore.session\nfrom .signing import sign"),
        ("backends/__init__.py", "from . import memory\nfrom ..exceptions import ValidationError"),
        ("cli/demo.py", "from zae_limiter import RateLimiter\nimport rich"),
    ],
)
def test_a_right_import_is_accepted(path: str, source: str) -> None:
    """The layer check lets pass what the table allows."""
    assert layer_complaints(module_at(f"src/{PACKAGE}/{path}", source)) == []


@pytest.mark.parametrize(
    ("home", "source"),
    [
        ("runtime.colour", "import asyncio"),
        ("runtime.colour", "from asyncio import sleep"),
        ("runtime.colour", "import threading\nworker = threading.Thread()"),
        ("runtime.kept", "from threading import Thread"),
        ("runtime.world", "import time as t\nnow = t.time_ns()"),
        ("runtime.world", "from time import monotonic"),
        ("runtime.world", "from datetime import datetime as dt\nnow = dt.now()"),
        ("runtime.world", "def f():\n    import random"),
        ("runtime.world", "import uuid"),
        ("cli", "print(1)"),
    ],
)
def test_a_banned_name_is_seen(home: str, source: str) -> None:
    """The ban can fail, whatever the import is called, and does not hold where the name is at home."""
    assert ban_complaints(module_at(f"src/{PACKAGE}/acquire.py", source))
    assert ban_complaints(module_at(f"src/{PACKAGE}/{home}.py", source)) == []


def test_a_name_of_another_kind_is_not_banned() -> None:
    """Locks, timestamps passed in and attributes that happen to be called so are fine."""
    source = "import threading, time\nlock = threading.Lock()\nworld.random(1)\nx = time.gmtime(0)"
    assert ban_complaints(module_at(f"src/{PACKAGE}/acquire.py", source)) == []


def test_a_large_thing_is_seen() -> None:
    """The size check can fail for a file, a function and a parameter list."""
    long_body = "class A:\n    def f(self):\n" + "        pass\n" * (FUNCTION_LINES_MAX + 1)
    assert list(sizes_exceeded("a.py", long_body)) == ["a.py::A.f"]
    assert list(sizes_exceeded("a.py", "\n" * (FILE_LINES_MAX + 1))) == ["a.py"]
    assert list(sizes_exceeded("a.py", "def f(a, b, c, d, e, /, g, *, h, i): ...\n")) == ["a.py::f"]
    assert list(sizes_exceeded("a.py", "def f(self, a, b, c, d, e, /, g, *, h): ...\n")) == []


@pytest.mark.parametrize(
    "text",
    [
        "# TO" + "DO: later",
        "(FIX" + "ME)",
        "see /ho" + "me/someone/x",
        "cd /wo" + "rk",
        "sqlite:////ro" + "ot/x.db",
        "https://pypi." + "org/simple",
        "see ../sha" + "red/notes.md",
        "as issue " + "12 asks",
        "closed (" + "#123)",
    ],
)
def test_banned_text_is_seen(text: str) -> None:
    """The text check can fail."""
    assert len(text_complaints("a.md", text)) == 1


@pytest.mark.parametrize(
    "text",
    ["a to-do list", "https://example.com/work", "./root/x", "/homes/x", "/workers", "issue 106905", "K#1#2"],
)
def test_ordinary_text_is_accepted(text: str) -> None:
    """The text check sees words, not parts of words."""
    assert text_complaints("a.md", text) == []


def test_banners_and_vague_names_are_seen() -> None:
    """Both checks can fail, and a rule of dashes inside a string is no banner."""
    assert banner_complaints("a.py", "x = 1\n# " + "-" * 20 + "\n") == ["a.py:2: banner comment"]
    assert banner_complaints("a.py", "# " + "=" * 5 + " Section\n") == ["a.py:1: banner comment"]
    assert banner_complaints("a.py", 'x = "# ------"\n# a -- b\n') == []
    assert name_complaints("src/zae_limiter/string_utils.py")
    assert name_complaints("src/zae_limiter/common/x.py")
    assert name_complaints("src/zae_limiter/infra/stack_manager.py") == []
