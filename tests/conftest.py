"""Hypothesis profiles, the engines that a test run starts and stops, and a folder that is not root's.

Hypothesis explores by default and is reproducible when the environment sets `CI`.
"""

import gc
import importlib
import os
import pkgutil
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import hypothesis.internal
import pytest
from hypothesis import settings

from tests.engines import dynamodb_local, postgres, redis_server

settings.register_profile("default", deadline=None, print_blob=True)
settings.register_profile("ci", settings.get_profile("default"), derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "default")

# pytest rewrites what is imported, and Python before 3.11.9 may fail when two threads parse at once (its
# issue 106905). So what Hypothesis would import in the middle of a test is imported before there are threads.
for late in pkgutil.walk_packages(hypothesis.internal.__path__, "hypothesis.internal."):
    importlib.import_module(late.name)

# It counts what is tried, here because a run in several processes loads no conftest further down.
pytest_plugins = ["tests.fuzz.figures"]


# Whoever starts a run in the background of a script has it ignore these, and so would all that tests start.
for ignored in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
    if signal.getsignal(ignored) is signal.SIG_IGN:
        signal.signal(ignored, signal.default_int_handler if ignored == signal.SIGINT else signal.SIG_DFL)

NOBODY = 65534
ENGINE = pytest.StashKey[subprocess.Popen[bytes] | None]()
SERVERS = redis_server.SERVER, postgres.SERVER


def pytest_configure(config: pytest.Config) -> None:
    """Start the engines in the process that others follow, and let nobody near a real account."""
    dynamodb_local.isolate_from_aws()
    if not hasattr(config, "workerinput") and config.getoption("numprocesses", None):
        config.stash[ENGINE] = dynamodb_local.start()
        for server in SERVERS:
            server.start()


def pytest_collection_finish() -> None:
    """Spare every later collection of garbage the tests, which stay until the end."""
    gc.collect()
    gc.freeze()


def pytest_unconfigure(config: pytest.Config) -> None:
    """Stop the engines, also after an interrupt."""
    dynamodb_local.stop(config.stash.get(ENGINE, None))
    for server in SERVERS:
        server.stop()


@pytest.fixture
def engine_that_builds(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let a test that adds indexes to tables go to an engine that can."""
    from tests.dynamodb.tables import driver  # which takes long to import

    monkeypatch.setenv(dynamodb_local.ADDRESS, dynamodb_local.builder())
    driver.cache_clear()
    yield
    driver.cache_clear()


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every user can reach, and a process that is no longer root."""
    folder = Path(tempfile.mkdtemp(prefix="zae-limiter-", dir="/tmp"))
    folder.chmod(0o755)
    root = os.geteuid() == 0
    if root:
        os.chown(folder, NOBODY, -1)
        os.seteuid(NOBODY)
    try:
        yield folder
    finally:
        if root:
            os.seteuid(0)
        folder.chmod(0o755)
        shutil.rmtree(folder)
