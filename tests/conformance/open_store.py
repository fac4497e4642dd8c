"""A store of each kind in each colour, set up, with an event loop of its own or none."""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from tests.stores import STORES
from zae_limiter.repository_protocol import Backend
from zae_limiter.runtime.colour import run_sync
from zae_limiter.runtime.world import World

T = TypeVar("T")

CASES = [(name, sync) for name in STORES for sync in (False, True)]
IDS = [f"{name}-{'sync' if sync else 'async'}" for name, sync in CASES]


@dataclass(frozen=True)
class OpenStore:
    """A store that is set up, and what runs its coroutines."""

    backend: Backend
    run: Callable[[Coroutine[Any, Any, T]], T]


@contextlib.contextmanager
def opened(name: str, sync: bool, path: Path) -> Iterator[OpenStore]:
    with contextlib.ExitStack() as stack:
        run: Callable[..., Any] = run_sync if sync else stack.enter_context(asyncio.Runner()).run
        backend = STORES[name](path, World())(sync=sync)
        run(backend.setup())
        try:
            yield OpenStore(backend, run)
        finally:
            run(backend.close())
