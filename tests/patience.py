"""How long a test waits: for what must come, as long as the slowest machine needs, and never by a fixed time.

Slowness must not fail a test. What must happen is waited for, with a guard that only a hang reaches. A
deadline that is itself tested may be over before there was anything to see of it; such a try shows
nothing, and the next one has twice the time.
"""

import asyncio
import time
from collections.abc import Callable, Iterator

PATIENCE_SECONDS = 600
"""What nobody ever waits, unless something hangs."""

TRIES_MAX = 10


def wait_until(is_so: Callable[[], bool], what: str = "it did not happen") -> None:
    """Return as soon as it is so."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not is_so():
        assert time.monotonic() < deadline, what
        time.sleep(0.005)


async def wait_beside(is_so: Callable[[], bool], what: str = "it did not happen") -> None:
    """The same on an event loop, where others go on meanwhile."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not is_so():
        assert time.monotonic() < deadline, what
        await asyncio.sleep(0.005)


def growing_ms(first_ms: int) -> Iterator[int]:
    """Deadlines to try until one of them showed something."""
    for attempt in range(TRIES_MAX):
        yield first_ms * 2**attempt
    raise AssertionError("this machine never gets that far")
