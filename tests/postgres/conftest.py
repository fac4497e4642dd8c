"""Tests of the store on PostgreSQL: coroutines run on a loop of their own, servers start by themselves."""

from collections.abc import Iterator

import pytest

from tests.engines import postgres
from tests.postgres.proxy import Proxy
from tests.stores import pytest_pyfunc_call

__all__ = ["proxy", "pytest_pyfunc_call"]


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    with Proxy(postgres.SERVER.port()).running() as it:
        yield it
