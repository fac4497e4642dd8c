"""Sync calls that a signal handler ends wherever it likes: no place in the pool is lost, nothing is locked.

Python runs handlers where a function begins and where a built-in one returns. A profiler sees just these
places, so it can raise in each of them in turn.
"""

import gc
import itertools
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from tests.dynamodb.peer import Peer, ask, connected
from zae_limiter.backends.dynamodb import http
from zae_limiter.backends.dynamodb.transport import Transport
from zae_limiter.runtime.colour import run_sync

PLACES_MAX = 2_000
OURS = str(Path(http.__file__).parent)


class Interrupted(BaseException):
    """What a handler raises."""


@pytest.fixture
def peer() -> Iterator[Peer]:
    with Peer().running() as running:
        yield running


def is_interrupted(transport: Transport, after: int) -> bool:
    """Call while a handler raises at one place, and say whether it came to that."""
    left = after

    def look(frame: FrameType, event: str, _: Any) -> None:
        nonlocal left
        if event in ("call", "c_return") and frame.f_code.co_filename.startswith(OURS):
            left -= 1
            if left < 0:
                sys.setprofile(None)
                raise Interrupted

    sys.setprofile(look)
    try:
        run_sync(ask(transport))
    except Interrupted:
        return True
    finally:
        sys.setprofile(None)
    return False


@pytest.mark.parametrize("warm", [False, True], ids=["cold", "warm"])
def test_no_place_is_lost_wherever_a_call_is_interrupted(warm: bool, peer: Peer) -> None:
    """There is one connection for all, and the next call gets it, or another one in its place."""

    async def scenario() -> None:
        async with connected(True, peer, pool=1) as transport:
            await ask(transport)
            for after in itertools.count():
                assert after < PLACES_MAX, "the call never ends"
                if not warm:
                    await transport.close()
                interrupted = is_interrupted(transport, after)
                assert await ask(transport) == {}, f"after the interrupt at place {after}"
                if not interrupted:
                    break
            assert after > 10

    with warnings.catch_warnings():
        # A socket that is lost on its way is closed by being forgotten, and Python warns of that.
        warnings.simplefilter("ignore", ResourceWarning)
        run_sync(scenario())
        gc.collect()
    peer.until(lambda: not peer.held)
