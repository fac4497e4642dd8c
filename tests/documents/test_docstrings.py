"""Every example in a docstring of the package is true, awaited and, without that, in its sync twin."""

import ast
import asyncio
import contextlib
import doctest
import importlib
import inspect
import io
import pkgutil
import traceback
from typing import Any

import pytest

import zae_limiter
from docs.site.api import without_await
from zae_limiter import Limit, RateLimiter, SyncRateLimiter
from zae_limiter.testing import ManualClock

# Modules that do something when they are imported, each with its reason.
NOT_IMPORTED = {
    "zae_limiter.__main__": "runs the command",
    "zae_limiter.cli.__main__": "runs the command",
}
MODULES = [
    module.name
    for module in pkgutil.walk_packages(zae_limiter.__path__, "zae_limiter.")
    if module.name not in NOT_IMPORTED
]
SHOWN = {
    "zae_limiter": "zae_limiter",
    "zae_limiter.limiter": "acquire available time_until_available",
    "zae_limiter.lease": "adjust settle release commit cancel",
    "zae_limiter.models.limits": "Limit per_month cron session concurrent softly during at",
    "zae_limiter.records.buckets": "explain",
    "zae_limiter.records.config": "set_system_defaults set_resource_defaults set_limits",
    "zae_limiter.records.entities": "create_entity",
    "zae_limiter.records.operating": "top_up",
    "zae_limiter.records.switching": "disable",
    "zae_limiter.sync": "SyncRateLimiter",
    "zae_limiter.testing.traffic": "ManualClock simulate",
}
"""What people look at first, by its module; without this list a lost example would pass unnoticed."""
LIMITS = [Limit.per_minute("rpm", 60), Limit.per_minute("tpm", 10_000)]
"""Of ``gpt-4``, for the limiter that examples have; the reference says so."""
AWAITING = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT


def examples(module: str) -> list[doctest.DocTest]:
    public = {name: getattr(zae_limiter, name) for name in zae_limiter.__all__}
    found = doctest.DocTestFinder().find(importlib.import_module(module), extraglobs=public)
    return [test for test in found if test.examples]


def wrong(test: doctest.DocTest, *, sync: bool) -> list[str]:
    """Where examples print something else than their docstring says, with a fresh limiter at hand."""
    with asyncio.Runner() as runner:
        if sync:
            limiter: Any = SyncRateLimiter.open("memory://", world=ManualClock().world)
            limiter.set_resource_defaults("gpt-4", LIMITS)
        else:
            limiter = runner.run(opened())
        names = {**test.globs, "limiter": limiter}
        found = []
        for one in test.examples:
            source = without_await(one.source) if sync else one.source
            printed = said(source, names, runner)
            want = one.want if one.exc_msg is None else one.exc_msg
            if not doctest.OutputChecker().check_output(want, printed, doctest.ELLIPSIS):
                found.append(f"{test.name}: {source}says\n{want}and prints\n{printed}")
    return found


async def opened() -> RateLimiter:
    limiter = await RateLimiter.open("memory://", world=ManualClock().world)
    await limiter.set_resource_defaults("gpt-4", LIMITS)
    return limiter


def said(source: str, names: dict[str, Any], runner: asyncio.Runner) -> str:
    """What an example prints, or how it fails; one that awaits is awaited."""

    async def awaited(work: Any) -> None:
        await work

    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        try:
            work = eval(compile(source, "<example>", "single", AWAITING, dont_inherit=True), names)
            if inspect.iscoroutine(work):
                runner.run(awaited(work))
        except Exception as error:
            return "".join(traceback.format_exception_only(error))
    return printed.getvalue()


@pytest.mark.parametrize("name", ["zae_limiter", *MODULES])
def test_examples_are_true(name: str) -> None:
    """They print what their docstring says, with the public names and a limiter at hand; twins do, too."""
    found = examples(name)
    assert [line for test in found for line in wrong(test, sync=False)] == []
    assert [line for test in found if awaits(test) for line in wrong(test, sync=True)] == []
    having = {test.name.rpartition(".")[2] for test in found}
    assert set(SHOWN.get(name, "").split()) - having == set(), f"{name} has lost examples"


def awaits(test: doctest.DocTest) -> bool:
    flags = [compile(one.source, "", "single", AWAITING, dont_inherit=True).co_flags for one in test.examples]
    return any(flag & inspect.CO_COROUTINE for flag in flags)


def test_the_table_of_modules_is_current() -> None:
    """Names in the tables belong to modules that exist."""
    assert set(MODULES) >= SHOWN.keys() - {"zae_limiter"}


def parsed(text: str) -> doctest.DocTest:
    return doctest.DocTestParser().get_doctest(text, {}, "wrong", None, 0)


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(">>> 1 + 1\n3\n", id="a value"),
        pytest.param(">>> 1 / 0\n3\n", id="an error that is not said"),
        pytest.param('>>> await limiter.available("key-1", "gpt-4")\n{}\n', id="what is awaited"),
        pytest.param(">>> 1 / 0\nTraceback (most recent call last):\nValueError: no\n", id="another error"),
    ],
)
def test_a_wrong_example_is_seen(text: str) -> None:
    """The runner that is used here does fail, in both colours."""
    assert len(wrong(parsed(text), sync=False)) == 1
    assert len(wrong(parsed(text), sync=True)) == 1
