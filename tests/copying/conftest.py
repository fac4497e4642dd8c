"""A test may be a coroutine; ``fresh`` opens fresh stores of any kind, all by one clock."""

from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest

from tests.stores import STORES, clock, pytest_pyfunc_call, runner
from zae_limiter.operate.copying import Store
from zae_limiter.runtime.colour import run_sync
from zae_limiter.testing import ManualClock

__all__ = ["Fresh", "clock", "fresh", "pytest_pyfunc_call", "runner"]

Fresh = Callable[[str], Store]


@pytest.fixture
def fresh(tmp_path: Path, clock: ManualClock) -> Iterator[Fresh]:
    opened: list[Store] = []
    numbers = count()

    def fresh(kind: str) -> Store:
        folder = tmp_path / f"store-{next(numbers)}"
        folder.mkdir()
        backend = STORES[kind](folder, clock.world)(sync=True)
        run_sync(backend.setup())
        opened.append(Store(backend, clock.world, f"{kind}://{folder.name}"))
        return opened[-1]

    yield fresh
    for store in opened:
        run_sync(store.backend.close())
