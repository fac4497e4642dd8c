"""One build of the site for all tests of a run, whichever process asks first."""

from __future__ import annotations

import fcntl
from pathlib import Path

import pytest

from docs.site.__main__ import build


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    """The folder of the built site."""
    shared = tmp_path_factory.getbasetemp()
    if hasattr(request.config, "workerinput"):
        shared = shared.parent
    target = shared / "site"
    with (shared / "site.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (shared / "site.built").exists():
            build(target, shared / "site-work")
            (shared / "site.built").touch()
    return target
