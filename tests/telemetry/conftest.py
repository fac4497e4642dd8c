"""A test may be a coroutine; ``url`` is each store in turn."""

from pathlib import Path

import pytest

from tests.stores import STORES, clock, pytest_pyfunc_call, runner, url_of

__all__ = ["clock", "pytest_pyfunc_call", "runner", "url"]


@pytest.fixture(params=list(STORES))
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return url_of(request.param, tmp_path)
