"""Each test that asks for ``store`` runs once for every store and colour."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conformance.open_store import CASES, IDS, OpenStore, opened
from tests.stores import pytest_pyfunc_call

__all__ = ["pytest_pyfunc_call", "store"]


@pytest.fixture(params=CASES, ids=IDS)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[OpenStore]:
    name, sync = request.param
    with opened(name, sync, tmp_path) as it:
        yield it
