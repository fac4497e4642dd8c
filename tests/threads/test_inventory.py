"""What all threads of a process share is listed with whoever guards it; a new thing has to be listed."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "adr" / "0156-what-threads-share.md"
ROW = re.compile(r"^\| `(src/[\w/.]+)` \| `(\w+)` \| (.+) \|$", re.MULTILINE)
MADE = frozenset(
    [
        *("dict", "list", "set", "deque", "OrderedDict", "defaultdict", "Counter"),
        *("WeakSet", "WeakKeyDictionary", "WeakValueDictionary", "Lock", "RLock", "ForkSafe"),
    ]
)
"""What is made for being changed."""


def shared(source: str) -> set[str]:
    """The names of a module that functions assign, and those whose value can be changed in place."""
    tree = ast.parse(source)
    found = {name for node in ast.walk(tree) if isinstance(node, ast.Global) for name in node.names}
    for node in tree.body:
        target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
        value = getattr(node, "value", None)
        if not isinstance(target, ast.Name) or target.id.isupper() or target.id.startswith("__"):
            continue
        called = value.func if isinstance(value, ast.Call) else None
        while isinstance(called, ast.Subscript):
            called = called.value
        name = getattr(called, "id", getattr(called, "attr", ""))
        if name in MADE or isinstance(value, ast.Dict | ast.List | ast.Set):
            found.add(target.id)
    return found


def test_the_inventory_is_complete() -> None:
    """Every one is in the table of the decision, and the table has no other."""
    listed = {(path, name) for path, name, _ in ROW.findall(PAGE.read_text(encoding="utf-8"))}
    there = {
        (str(path.relative_to(ROOT)), name)
        for path in (ROOT / "src").rglob("*.py")
        for name in shared(path.read_text(encoding="utf-8"))
    }
    assert listed == there


def test_what_is_shared_is_seen() -> None:
    """Each way to have it, and what is no such thing."""
    ways = "a = {}\nb: set[int] = set()\nc = ForkSafe(dict)\nd = dict[str, int]()\n"
    ways += "_e = 0\ndef f():\n    global _e\n"
    assert shared(ways) == {"a", "b", "c", "d", "_e"}
    assert shared("A = {1: 2}\nb = (1, 2)\n__all__ = []\nclass C:\n    d = {}\n") == set()
