"""One mutant on trial: a copy of the sources with one file changed, and tests that are to fail.

The sources and tests are copied once, so that nobody's edits disturb a run of an hour. Each trial is a
process of its own, forked from a server that has loaded pytest but nothing of the project.
"""

from __future__ import annotations

import compileall
import contextlib
import multiprocessing
import os
import shutil
import signal
import sys
import time
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from .mutations import ROOT, Target, target_of
from .operators import Mutant

COPIED = ("src", "tests")
NEIGHBOURS_MAX = 5
LIMIT_SECONDS = 900.0
TEST_SECONDS_MAX = 30
"""No test takes a third of that, even on a busy machine."""

PASSED, NONE_FOUND = 0, 5
HUNG = "hung: "
DIED = "the test run died"
ENGINE_ONLY = "not dynamodb"
SERVER = multiprocessing.get_context("forkserver")
SERVER.set_forkserver_preload(["tests.mutation.preloaded"])


class Trial(NamedTuple):
    """How a mutant fared: ``killed`` by a test, ``hung`` until a test took too long, or ``survived``."""

    name: str
    verdict: str
    by: str
    seconds: float


class Yard:
    """Copies of the sources, and what is known about the tests."""

    def __init__(self, place: Path, limit_seconds: float = LIMIT_SECONDS) -> None:
        self.place, self.base, self.limit_seconds = place, place / "base", limit_seconds
        self.spoilt: set[str] = set()
        """Tests that fail without any mutation, and prove nothing therefore."""
        self._sound: set[str] = set()
        """Tests that are known to pass without one."""
        self._killers: dict[str, OrderedDict[str, None]] = {}

    def prepare(self) -> None:
        for name in COPIED:
            shutil.copytree(ROOT / name, self.base / name)
        shutil.copy2(ROOT / "pyproject.toml", self.base)
        compileall.compile_dir(self.base / "src", quiet=2)

    def close(self) -> None:
        shutil.rmtree(self.base)

    def try_out(self, mutant: Mutant, target: Target | None = None) -> Trial:
        """Run tests against a mutant until one of them fails.

        What killed its neighbours is tried first. That changes how long it takes, not what comes out.
        """
        began = time.monotonic()
        target = target or target_of(mutant)
        source = (self.base / "src" / mutant.path).read_text()
        sources = self.place / f"mutant-{os.getpid()}-{abs(hash(mutant.name))}"
        shutil.copytree(self.base / "src", sources, copy_function=os.link)
        changed = sources / mutant.path
        changed.unlink()
        changed.write_text(mutant.applied(source))
        for stale in changed.parent.glob(f"__pycache__/{changed.stem}.*.pyc"):
            stale.unlink()
        killers = self._killers.setdefault(mutant.path, OrderedDict())
        verdict, by = "survived", ""
        try:
            then = [test for test in target.then if test not in target.first]
            for tests in (list(reversed(killers))[:NEIGHBOURS_MAX], target.first, then):
                failed = self._failures(sources, tests, target.on_dynamodb) if tests else []
                if failed is None:
                    verdict, by = "hung", " ".join(tests)
                    break
                if failed:
                    by = failed[0].removeprefix(HUNG)
                    verdict = "killed" if by == failed[0] else "hung"
                    if "::" in by and verdict == "killed":
                        killers[by] = None
                        killers.move_to_end(by)
                    break
        finally:
            shutil.rmtree(sources)
        return Trial(mutant.name, verdict, by, round(time.monotonic() - began, 1))

    def _failures(self, sources: Path, tests: Sequence[str], on_dynamodb: bool) -> list[str] | None:
        """What fails because of the mutation: a test that fails anyway is found out and left out."""
        while True:
            failed = self._run(sources, tests, on_dynamodb)
            if not failed or failed[0].removeprefix(HUNG) in self._sound:
                return failed
            test = failed[0].removeprefix(HUNG)
            again = [test] if "::" in test else tests
            if not self._run(self.base / "src", again, on_dynamodb):
                self._sound.add(test)
                return failed
            assert "::" in test, f"without any mutation: {test}, in {' '.join(tests)}"
            self.spoilt.add(test)

    def _run(self, sources: Path, tests: Sequence[str], on_dynamodb: bool) -> list[str] | None:
        """The first test that failed, if any; ``None`` if they did not come to an end."""
        ours, theirs = SERVER.Pipe(duplex=False)
        arguments = (str(self.base), str(sources), tuple(tests), on_dynamodb, tuple(self.spoilt), theirs)
        process = SERVER.Process(target=_run_tests, args=arguments)
        process.start()
        theirs.close()
        process.join(self.limit_seconds)
        hung = process.is_alive()
        # What a test has started goes with it.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid or 0, signal.SIGKILL)
        process.join()
        if hung:
            return None
        try:
            failed: list[str] = ours.recv()
        except EOFError:
            return [DIED]
        return failed


class Listener:
    """A plugin of pytest that notes what failed, and leaves out what proves nothing."""

    def __init__(self, spoilt: Sequence[str]) -> None:
        self._spoilt = frozenset(spoilt)
        self.failed: list[str] = []

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        items[:] = [item for item in items if item.nodeid not in self._spoilt]

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed and report.nodeid not in self.failed:
            self.failed.append(HUNG * ("Timeout (>" in report.longreprtext) + report.nodeid)

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed:
            self.failed.append(report.nodeid)


def _run_tests(
    base: str,
    sources: str,
    tests: Sequence[str],
    on_dynamodb: bool,
    spoilt: Sequence[str],
    reply: Any,
) -> None:
    os.setsid()
    os.chdir(base)
    silence = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(silence, stream)
    sys.path[:0] = [sources, base]
    sys.dont_write_bytecode = False  # what is compiled is compiled once for all trials
    os.environ |= {"PYTHONPATH": sources, "CI": "1"}
    import pytest
    from hypothesis import Phase, settings

    import zae_limiter
    from tests.engines import dynamodb_local

    assert zae_limiter.__file__.startswith(sources), "the mutant is not what is tested"
    # One engine serves all trials.
    dynamodb_local.start = lambda: None
    kept = settings(
        derandomize=True,
        database=None,
        deadline=None,
        phases=(Phase.explicit, Phase.generate),
        report_multiple_bugs=False,
    )
    settings.register_profile("mutation", kept)
    listener = Listener(spoilt)
    options = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--hypothesis-profile=mutation"]
    options.append(f"--timeout={TEST_SECONDS_MAX}")
    # Hypothesis was loaded before pytest could rewrite its assertions; nobody needs those.
    options += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]
    options += [] if on_dynamodb else ["-k", ENGINE_ONLY]
    code = pytest.main([*options, "-x", *tests], plugins=[listener])
    if code not in (PASSED, NONE_FOUND) and not listener.failed:
        listener.failed.append(f"pytest ended with {int(code)}")
    reply.send(listener.failed)
    reply.close()
