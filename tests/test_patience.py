"""No test fails because the machine is slow: what ``patience`` asks of tests, looked for in their sources."""

import ast
import itertools

import pytest

from tests.house_rules import CLOCKS
from tests.test_tidy import parsed, repository_texts


def speed_complaints(path: str, source: str) -> list[str]:
    """Assertions that a slow machine fails: something that was timed must not have taken longer than this."""
    tree = parsed(source)
    timed = {
        target.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and _is_timed(node.value)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    found = []
    for check in (node for node in ast.walk(tree) if isinstance(node, ast.Assert)):
        for compared in (node for node in ast.walk(check.test) if isinstance(node, ast.Compare)):
            sides = itertools.pairwise([compared.left, *compared.comparators])
            for (left, right), operator in zip(sides, compared.ops, strict=True):
                smaller = left if isinstance(operator, (ast.Lt, ast.LtE)) else right
                if not isinstance(operator, (ast.Lt, ast.LtE, ast.Gt, ast.GtE)):
                    continue
                if _is_timed(smaller) or (isinstance(smaller, ast.Name) and smaller.id in timed):
                    found.append(f"{path}:{check.lineno}: an upper bound on real time; see tests/patience.py")
    return found


def _is_timed(expression: ast.expr) -> bool:
    """Whether it is the difference between now and then."""
    return any(
        isinstance(node, ast.BinOp)
        and isinstance(node.op, ast.Sub)
        and any(
            isinstance(part, ast.Call) and isinstance(part.func, ast.Attribute) and part.func.attr in CLOCKS
            for part in ast.walk(node.left)
        )
        for node in ast.walk(expression)
    )


def test_no_test_depends_on_speed() -> None:
    """No assertion fails because the machine is slow; a lower bound cannot."""
    sources = repository_texts("tests", suffix=".py")
    assert [c for path, source in sources for c in speed_complaints(path, source)] == []


@pytest.mark.parametrize(
    ("check", "is_seen"),
    [
        ("assert time.monotonic() - since < 2", True),
        ("assert 0.1 <= time.perf_counter() - since < 2", True),
        ("assert 2 > time.time() - since", True),
        ("took = time.monotonic() - since; assert took <= 2 and it", True),
        ("assert (time.monotonic_ns() - since) / 1e9 < 2", True),
        ("assert time.monotonic() - since >= 0.1", False),
        ("assert 0.1 < time.monotonic() - since", False),
        ("assert time.monotonic() < deadline, 'it hangs'", False),
        ("assert clock.now_ms - since < 2", False),
    ],
)
def test_an_assertion_on_speed_is_seen(check: str, is_seen: bool) -> None:
    """The check sees upper bounds on what was timed, and nothing else."""
    assert bool(speed_complaints("a.py", check)) == is_seen
