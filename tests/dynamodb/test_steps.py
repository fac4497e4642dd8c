"""A call that is cancelled between any two steps of its event loop leaves no socket open and takes no place.

It is cancelled after step 0, 1, 2, … until it ends before it is hit: while it connects and shakes hands,
sends, waits, is answered, and while it waits for a connection that another call hands back.
"""

import asyncio
import gc
import itertools
import os
import socket
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from tests.dynamodb.certificates import served
from tests.dynamodb.peer import Peer, ask, connected
from tests.dynamodb.steps import Scene, StepLoop, cold, interrupted
from zae_limiter.backends.dynamodb.http.loop import LoopNetwork
from zae_limiter.backends.dynamodb.transport import Transport

STEPS_MAX = 500
LEAKY_STEPS = 30


@pytest.fixture(params=["plain", "tls"])
def peer(
    request: pytest.FixtureRequest, certificates: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Peer]:
    monkeypatch.setenv("AWS_CA_BUNDLE", str(certificates / "authority.pem"))
    with Peer(served(certificates) if request.param == "tls" else None).running() as running:
        yield running


async def warm(transport: Transport) -> asyncio.Task[Any]:
    """Ask over a connection that is there."""
    await ask(transport)
    return asyncio.create_task(ask(transport))


async def behind(transport: Transport) -> asyncio.Task[Any]:
    """Wait for the only connection, which the call before hands back."""
    before = asyncio.create_task(ask(transport))
    task = asyncio.create_task(ask(transport))
    task.add_done_callback(lambda _: before)
    return task


@pytest.mark.parametrize("blows", [1, 2])
@pytest.mark.parametrize("scene", [cold, warm, behind])
def test_nothing_is_left_of_a_cancelled_call(scene: Scene, peer: Peer, blows: int) -> None:
    """Whenever it is hit, and when it is hit again while it cleans up."""
    with asyncio.Runner(loop_factory=StepLoop) as runner:
        runner.run(interrupted(scene, peer, STEPS_MAX))
        before = len(os.listdir("/proc/self/fd"))
        for after in itertools.count():
            assert after < STEPS_MAX, "the call never ends"
            ended = runner.run(interrupted(scene, peer, after, blows))
            peer.until(lambda: not peer.held)
            if ended:
                break
        assert after > 2
        assert len(os.listdir("/proc/self/fd")) <= before


@pytest.mark.parametrize("scene", [cold, behind])
def test_nothing_is_left_when_the_loop_ends(scene: Scene, peer: Peer) -> None:
    """As it does when the main task returns: everything else is cancelled at once, and nobody closes."""
    transports = []

    async def scenario(after: int) -> bool:
        loop = cast(StepLoop, asyncio.get_running_loop())
        opened = connected(False, peer, pool=1)
        transport = await opened.__aenter__()
        transports.append((opened, transport))
        await transport._prepare()  # type: ignore[attr-defined]
        task = await scene(transport)
        over = loop.create_future()
        loop.strike(after, lambda: over.set_result(None))
        await asyncio.wait([task, over], return_when=asyncio.FIRST_COMPLETED)
        return task.done()

    for after in itertools.count():
        assert after < STEPS_MAX, "the call never ends"
        with asyncio.Runner(loop_factory=StepLoop) as runner:
            ended = runner.run(scenario(after))
        peer.until(lambda: not peer.held)
        if ended:
            break
    gc.collect()


def test_a_leak_is_seen(peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that forgets what came in the very step in which it was cancelled."""

    async def forgetful(self: LoopNetwork, *args: Any) -> Any:
        return await asyncio.ensure_future(self._connected(*args))

    monkeypatch.setattr(LoopNetwork, "connect", forgetful)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        with asyncio.Runner(loop_factory=StepLoop) as runner:
            leaks = [after for after in range(LEAKY_STEPS) if leaves_some(runner, peer, after)]
        gc.collect()
    assert leaks


def leaves_some(runner: asyncio.Runner, peer: Peer, after: int) -> bool:
    """Whether more sockets than before are open on our side."""
    before = ours(peer)
    runner.run(interrupted(cold, peer, after))
    return ours(peer) > before


def ours(peer: Peer) -> int:
    sockets = [found for found in gc.get_objects() if type(found) is socket.socket and found.fileno() >= 0]
    return sum(is_connected(found, peer) for found in sockets)


def is_connected(found: socket.socket, peer: Peer) -> bool:
    try:
        return bool(found.getpeername() == ("127.0.0.1", peer.port))
    except OSError:
        return False
