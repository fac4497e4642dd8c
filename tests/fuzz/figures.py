"""How often a property is tried, and how often all of them were.

``@cases("api", 50, value=values)`` tries a property with fifty examples, the same ones whenever the same
tests run. ``FUZZ_EXAMPLES=n`` tries each with ``n``, others in every run. A failing example is printed with
all its values and as a line that brings it back. The numbers of cases stand at the end of a test run.
"""

import functools
import os
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis.strategies import SearchStrategy

EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "0"))
PROPERTY = "fuzz cases"

_tried: Counter[str] = Counter()
_total: Counter[str] = Counter()


def cases(suite: str, examples: int, **strategies: SearchStrategy[Any]) -> Callable[[Any], Any]:
    """A property that is tried with so many examples, counted under the name of a suite."""

    def decorate(test: Any) -> Any:
        @functools.wraps(test)
        def counted(*arguments: Any, **named: Any) -> Any:
            _tried[suite] += 1
            return test(*arguments, **named)

        repeated = settings(
            max_examples=EXAMPLES or examples,
            derandomize=not EXAMPLES,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
        )
        return repeated(given(**strategies)(counted))

    return decorate


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Let the report of a test carry its cases to whoever adds them up, in this process or another."""
    _tried.clear()
    try:
        return (yield)
    finally:
        item.user_properties += [(PROPERTY, [suite, count]) for suite, count in _tried.items()]


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.when == "call":
        for name, value in report.user_properties:
            if name == PROPERTY:
                suite, count = value  # type: ignore[misc]
                _total[suite] += count


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if _total:
        terminalreporter.section("fuzz cases")
        for suite, count in sorted(_total.items()):
            terminalreporter.write_line(f"{count:>9,}  {suite}")
        terminalreporter.write_line(f"{_total.total():>9,}  together")
