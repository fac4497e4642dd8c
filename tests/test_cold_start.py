"""What starting costs, counted in modules: a test that times would fail on a busy machine.

The tables say what is loaded, and what must not be although it would do no harm but for the time it takes.
`make bench CASES=starting` measures what that comes to.
"""

import ast
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

import zae_limiter

SLOW = {
    "asyncio": "an event loop is for programs that have one",
    "concurrent.futures": "threads are for those who wait in them",
    "importlib.metadata": "only a store of another package is looked for",
    "rich": "nothing is drawn yet",
    "socket": "an embedded store has no network",
    "sqlite3": "only its own store needs it",
    "ssl": "an embedded store has no network",
    "yaml": "no file is read",
    "zoneinfo": "only a calendar of a zone needs its rules",
}
"""What takes long to load, and why a sync program on a store in memory does without."""

SLOWER = SLOW | {
    "click": "this is no command",
    "dataclasses": "values are loaded with their modules",
    "inspect": "signatures are for readers",
    "logging": "there is nothing to tell",
    "urllib": "no address is read",
}
"""What the bare import does without, too; ``typing`` is all that it loads."""


def loaded(program: str) -> set[str]:
    """What a fresh interpreter has loaded after a program, and had not before."""
    told = f"import sys; before = {{*sys.modules}}\n{program}\nprint(*{{*sys.modules}} - before)"
    answer = subprocess.run([sys.executable, "-c", told], capture_output=True, text=True, check=True)
    return set(answer.stdout.splitlines()[-1].split())


def slow(modules: set[str], table: dict[str, str]) -> dict[str, str]:
    return {name: why for name, why in table.items() if name in modules}


def ours(modules: set[str]) -> set[str]:
    return {name for name in modules if name.partition(".")[0] == "zae_limiter"}


LEASE = """\
from zae_limiter import Limit, SyncRateLimiter
with SyncRateLimiter.open("memory://") as limiter:
    with limiter.acquire("key-1", "gpt-4", {"rpm": 1}, [Limit.per_minute("rpm", 60)]) as lease:
        lease.adjust({"rpm": 1})
"""


def test_importing_the_package_loads_nothing_else() -> None:
    """Names are loaded when they are asked for."""
    found = loaded("import zae_limiter")
    assert slow(found, SLOWER) == {}
    assert ours(found) == {"zae_limiter"}


def test_a_name_brings_only_what_it_stands_on() -> None:
    """Whoever catches an exception has not loaded a limiter by that."""
    found = loaded("from zae_limiter import RateLimitExceeded")
    assert ours(found) == {"zae_limiter", "zae_limiter.exceptions", "zae_limiter.established"}
    assert not found & {"dataclasses", "inspect", "logging"}


def test_a_first_lease_loads_no_more_than_it_needs() -> None:
    """Of a sync limiter in memory: no event loop, no network, no other room, no other store."""
    found = loaded(LEASE)
    assert slow(found, SLOW) == {}
    rooms = {name.split(".")[1] for name in ours(found) if name.count(".") > 1}
    assert rooms == {"backends", "engine", "models", "records", "runtime"}
    assert not found & {
        f"zae_limiter.backends.{name}" for name in ("sqlite", "redis", "postgres", "dynamodb")
    }


UNWATCHED = """\
import pathlib, sys
from zae_limiter import Limit, SyncRateLimiter
from zae_limiter.limiter import PLAIN
with SyncRateLimiter.open("{url}") as limiter:
    limiter.set_system_defaults([Limit.per_minute("rpm", 60)])
    entered = {{}}
    sys.setprofile(lambda frame, event, _: entered.setdefault(frame.f_code.co_filename))
    with limiter.acquire("key-1", "gpt-4", {{"rpm": 1}}):
        pass
    sys.setprofile(None)
    inner = limiter._async
    connection = inner.repository._connection
    assert (inner._lease_type, inner._acquisition_type, inner._joint_types) == PLAIN
    assert inner.repository.observer is connection.measured is None
    assert type(connection.backend).__module__.startswith("zae_limiter.backends.")
    assert connection.backend is connection.writer.backend
rooms = {{part for name in entered for part in pathlib.Path(name).parts}}
assert {{"engine", "backends"}} <= rooms, rooms
assert "telemetry" not in rooms, rooms
"""


@pytest.mark.parametrize("scheme", ["memory://", "sqlite:///limits.db"])
def test_without_telemetry_nothing_of_it_runs(
    scheme: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No module of it is loaded, no function of it entered, and no class stands in for another one."""
    monkeypatch.chdir(tmp_path)
    found = loaded(UNWATCHED.format(url=scheme))
    assert not [name for name in found if name.startswith("zae_limiter.telemetry")]


@pytest.mark.parametrize("name", sorted(zae_limiter.__all__))
def test_type_checkers_and_python_find_the_same_name(name: str) -> None:
    """The imports that only type checkers read agree with the table that Python reads."""
    assert names_of_type_checkers()[name] is getattr(zae_limiter, name)


@cache
def names_of_type_checkers() -> dict[str, object]:
    """What the block under ``TYPE_CHECKING`` imports."""
    tree = ast.parse(Path(zae_limiter.__file__).read_text(encoding="utf-8"))
    (block,) = (
        node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    )
    found: dict[str, object] = {"__name__": "zae_limiter", "__package__": "zae_limiter"}
    exec(compile(ast.Module(block.body, []), zae_limiter.__file__, "exec"), found)
    return found


def test_the_table_has_no_other_names() -> None:
    """Every home is of names that are exported, and every name has one."""
    homes = [name for names in zae_limiter.HOMES.values() for name in names.split()]
    assert sorted([*homes, "__version__"]) == list(zae_limiter.__all__)


@pytest.mark.parametrize("name", ["Limt", "RateLimter", "_private", "__nothing__"])
def test_a_wrong_name_is_an_attribute_error(name: str) -> None:
    """As for any module, so that ``hasattr`` and imports work."""
    with pytest.raises(AttributeError, match=f"'zae_limiter' has no attribute '{name}'"):
        getattr(zae_limiter, name)
    assert not hasattr(zae_limiter, name)


def test_modules_are_attributes_of_a_fresh_package() -> None:
    """Programs say ``zae_limiter.exceptions`` after importing the package alone."""
    for name in ("exceptions", "models", "runtime", "sync"):
        loaded(f"import zae_limiter\nassert zae_limiter.{name}.__name__ == 'zae_limiter.{name}'")


def test_a_fresh_package_shows_and_gives_all_its_names() -> None:
    """To ``dir`` and to ``import *``, before any of them was loaded."""
    loaded("import zae_limiter\nassert {*zae_limiter.__all__} <= {*dir(zae_limiter)}")
    loaded("from zae_limiter import *\nassert Limit and RateLimiter and StackManager and limited")


def test_help_loads_no_command() -> None:
    """The list of all commands is known without them: no store, no limits, nothing to draw with."""
    found = loaded(HELP.format(words="'--help'"))
    assert slow(found, SLOW | {"dataclasses": "no value is made", "urllib": "no address is read"}) == {}
    assert {name for name in ours(found) if name.startswith("zae_limiter.")} == {
        "zae_limiter.cli",
        "zae_limiter.cli.app",
        "zae_limiter.cli.commands",
        "zae_limiter.cli.errors",
        "zae_limiter.cli.nouns",
        "zae_limiter.cli.spellings",
        "zae_limiter.cli.text",
        "zae_limiter.established",
        "zae_limiter.exceptions",
        "zae_limiter.version",
    }


def test_a_command_loads_no_other() -> None:
    """Help of one command knows nothing of the others."""
    found = loaded(HELP.format(words="'explain', '--help'"))
    assert "zae_limiter.cli.explain" in found
    assert not found & {f"zae_limiter.cli.{name}" for name in ("deploy", "copy", "upgrade", "serve", "usage")}


HELP = """\
from zae_limiter.cli.app import program
try:
    program.main([{words}])
except SystemExit:
    pass
"""
