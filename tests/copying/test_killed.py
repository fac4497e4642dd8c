"""A copy that ends at any call of either store, in the middle of its writes too, is ended by the next one."""

import random
import subprocess
import sys
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.copying.conftest import Fresh
from tests.copying.furnished import comparable, dump, furnish, opened
from tests.stores import STORES, url_of
from zae_limiter import NamespaceNotFoundError, RateLimiter, RateLimiterUnavailable
from zae_limiter.backends import open_backend, store_world
from zae_limiter.operate.copying import Copy, CopyReport, Store
from zae_limiter.operate.copying import copy as copying
from zae_limiter.repository_protocol import Backend, Outcome, Write
from zae_limiter.runtime.world import World
from zae_limiter.testing import Fault, FaultyBackend, ManualClock
from zae_limiter.testing.stores import Wrapper

ROOT = Path(__file__).resolve().parents[2]


class Killed(BaseException):
    """Nobody can do anything about it any more."""


class Doomed(Wrapper):
    """Ends whoever uses it at one of its calls; of several writes some are done."""

    def __init__(self, inner: Backend, calls: int, rng: random.Random) -> None:
        super().__init__(inner)
        self.left, self._rng = calls, rng

    async def write_each(self, writes: Sequence[Write]) -> list[Outcome]:
        if self.left == 1:
            await self.inner.write_each(writes[: self._rng.randrange(len(writes) + 1)])
        return await super().write_each(writes)

    async def _ask(self, verb: str, ask: Callable[[Any], Awaitable[Any]], given: Any) -> Any:
        self.left -= 1
        if self.left == 0:
            if verb == "transact_write" and self._rng.random() < 0.5:
                await ask(given)
            raise Killed
        return await ask(given)


async def carried(source: Store, target: Store) -> CopyReport:
    copy = Copy(source, target)
    await copy.check(write=True)
    (space,) = await copy.namespaces(["default"])
    return await copy.carry(await copy.look(space))


@pytest.mark.parametrize("to", STORES)
async def test_killed_at_any_call(
    fresh: Fresh, clock: ManualClock, to: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever it was doing: it is closed until the last run has ended, and then it is the same."""
    monkeypatch.setattr(copying, "PAGE_ROWS", 7)
    source, rng = fresh("memory"), random.Random(to)
    await furnish(await opened(source.backend, clock.world))
    expected = comparable(await dump(source.backend))
    rounds, kills = {"memory": 60, "sqlite": 12}.get(to, 2), 0
    for _ in range(rounds):
        target = fresh(to)
        for at in (rng.randrange(1, 40), rng.randrange(1, 30), rng.randrange(1, 20), 10**9):
            doomed = target._replace(backend=Doomed(target.backend, at, rng))
            try:
                report = await carried(source, doomed)
            except Killed:
                kills += 1
                continue
            break
        assert report.is_open
        assert comparable(await dump(target.backend)) == expected
    assert kills > rounds


async def test_it_goes_on_where_it_stopped(
    fresh: Fresh, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is behind the last note is not written again."""
    monkeypatch.setattr(copying, "PAGE_ROWS", 5)
    source, target = fresh("sqlite"), fresh("memory")
    await furnish(await opened(source.backend, clock.world), 20)
    doomed = target._replace(backend=Doomed(target.backend, 30, random.Random(1)))
    with pytest.raises(Killed):
        await carried(source, doomed)
    with pytest.raises(NamespaceNotFoundError):
        await (await opened(target.backend, clock.world, "other")).namespace("default")
    before = len(await dump(target.backend))
    report = await carried(source, target)
    assert (report.is_open, report.changed) == (True, 0)
    assert 0 < report.written <= report.items - before + 10


async def test_changes_between_two_runs_come_along(
    fresh: Fresh, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also of what was copied before the first run was killed."""
    monkeypatch.setattr(copying, "PAGE_ROWS", 5)
    source, target = fresh("memory"), fresh("sqlite")
    repository = await opened(source.backend, clock.world)
    await furnish(repository, 10)
    with pytest.raises(Killed):
        await carried(source, target._replace(backend=Doomed(target.backend, 25, random.Random(1))))
    for number in range(3, 10):
        async with RateLimiter(repository).acquire(f"key-{number}", "late", {"rpm": 1}):
            pass
    await repository.update_entity("team", name="another")
    assert (await carried(source, target)).is_open
    assert comparable(await dump(target.backend)) == comparable(await dump(source.backend))


async def test_a_store_that_stutters(
    fresh: Fresh, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requests and replies that are lost are made up for, and nothing is written twice."""
    monkeypatch.setattr(copying, "PAGE_ROWS", 9)
    monkeypatch.setattr(copying, "PAUSE_SECONDS", 0)
    source, target = fresh("memory"), fresh("memory")
    await furnish(await opened(source.backend, clock.world))
    some = [None, None, Fault.LOST_REQUEST, Fault.LOST_REPLY]
    faulty = FaultyBackend(target.backend, [*[None] * 12, *some * 20])
    report = CopyReport()
    while not report.is_open:
        with suppress(RateLimiterUnavailable):  # to begin and to end is not tried twice
            report = await carried(source, target._replace(backend=faulty))
    assert faulty.faults == []
    assert comparable(await dump(target.backend)) == comparable(await dump(source.backend))


@pytest.mark.parametrize("to", [kind for kind in STORES if kind != "memory"])
def test_killed_by_the_system(to: str, tmp_path: Path, runner: Any) -> None:
    """A program dies by SIGKILL in front of, or within, its writes; the command line ends what it began."""
    url, target = f"sqlite:///{tmp_path}/source.db?timeout_ms=60000", url_of(to, tmp_path)

    async def dumped(url: str, *, fill: bool = False) -> dict[Any, Any]:
        world = store_world(url, World())
        backend = open_backend(url, sync=True, world=world, timeout_ms=60_000)
        await backend.setup()
        if fill:
            await furnish(await opened(backend, world), 30)
        found = comparable(await dump(backend))
        await backend.close()
        return found

    expected = runner.run(dumped(url, fill=True))
    for calls in (9, 12):
        words = [sys.executable, "-m", "tests.copying.doomed", url, target, str(calls)]
        assert subprocess.run(words, cwd=ROOT, check=False).returncode == -9
    words = [sys.executable, "-m", "zae_limiter.cli", "copy", url, target, "--json"]
    done = subprocess.run(words, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert runner.run(dumped(target)) == expected
