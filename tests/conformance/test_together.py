"""Many who use one store at once: threads, tasks, processes, and some who are killed."""

import asyncio
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.adder import FIRST, SECOND, TIMES, TURNS, add, opened
from tests.patience import PATIENCE_SECONDS
from tests.stores import STORES, url_of
from zae_limiter.repository_protocol import Absent, AtLeast, Backend, Equal, Item, Key, Put, Update
from zae_limiter.runtime.colour import run_sync

ADDER = Path(__file__).with_name("adder.py")
THREADS, PROCESSES, KILLED = 4, 3, 5


@pytest.fixture(params=list(STORES))
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return url_of(request.param, tmp_path)


@pytest.fixture
def client(url: str) -> Any:
    backend = opened(url)
    run_sync(backend.setup())
    yield backend
    run_sync(backend.close())


def process(role: str, url: str, name: str) -> subprocess.Popen[str]:
    command = [sys.executable, str(ADDER), role, url, name]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def books(client: Backend) -> Item:
    """What was counted alone, while nobody writes. What was counted in transactions is the same twice."""
    first, second, turns = run_sync(client.batch_get([FIRST, SECOND, TURNS]))
    assert first == second
    return turns or {}


def test_threads_lose_nothing(url: str, client: Backend) -> None:
    """Each addition has a total of its own, whether threads share a client or have their own."""
    clients = [client, client, opened(url), opened(url)]
    start = threading.Barrier(THREADS)

    def work(number: int) -> list[int]:
        start.wait(PATIENCE_SECONDS)
        return [run_sync(add(clients[number], f"n{number}")) for _ in range(TIMES)]

    with ThreadPoolExecutor(THREADS) as threads:
        totals = [total for found in threads.map(work, range(THREADS)) for total in found]
    assert sorted(totals) == list(range(1, THREADS * TIMES + 1))
    assert books(client) == {"total": THREADS * TIMES, **{f"n{n}": TIMES for n in range(THREADS)}}
    for other in clients[2:]:
        run_sync(other.close())


def test_tasks_lose_nothing(url: str, client: Backend) -> None:
    """The same for tasks of a loop, by the async colour."""

    async def work() -> list[int]:
        backend = opened(url, sync=False)
        totals = await asyncio.gather(*(add(backend, "tasks") for _ in range(TIMES)))
        await backend.close()
        return list(totals)

    assert sorted(asyncio.run(work())) == list(range(1, TIMES + 1))
    assert books(client) == {"total": TIMES, "tasks": TIMES}


def test_of_all_who_saw_the_same_image_one_writes(url: str, client: Backend) -> None:
    """A condition is looked at and the write is made in one step."""
    key, start = Key("races", "one"), threading.Barrier(THREADS)
    clients = [client, *(opened(url) for _ in range(THREADS - 1))]
    run_sync(client.write_each([Put(key, {"version": 0, "left": TIMES})]))

    def work(number: int) -> list[list[bool]]:
        won = []
        for version in range(TIMES):
            start.wait(PATIENCE_SECONDS)
            outcomes = run_sync(
                clients[number].write_each(
                    [
                        Update(key, {"version": 1}, when=(Equal("version", version), AtLeast("left", 1))),
                        Put(Key("races", f"made-{version}"), {"by": number}, (Absent(),)),
                    ]
                )
            )
            won.append([outcome.applied for outcome in outcomes])
        return won

    with ThreadPoolExecutor(THREADS) as threads:
        rounds = list(zip(*threads.map(work, range(THREADS)), strict=True))
    assert [[sum(won) for won in zip(*one, strict=True)] for one in rounds] == [[1, 1]] * TIMES
    for other in clients[1:]:
        run_sync(other.close())


def test_processes_lose_nothing(url: str, client: Backend) -> None:
    """Nor this process beside them; a store that is not shared has this one alone."""
    others = PROCESSES if client.capabilities.shared else 0
    running = [process("count", url, f"n{number}") for number in range(others)]
    try:
        for one in running:
            assert one.stdout is not None
            assert one.stdin is not None
            assert one.stdout.readline() == "ready\n"
        for one in running:
            assert one.stdin is not None
            one.stdin.write("go\n")
            one.stdin.flush()
        totals = [run_sync(add(client, "here")) for _ in range(TIMES)]
        totals += [int(total) for one in running for total in one.communicate()[0].split()]
    finally:
        for one in running:
            one.kill()
            one.communicate()
    assert sorted(totals) == list(range(1, (others + 1) * TIMES + 1))
    assert books(client)["total"] == len(totals)


def test_who_is_killed_leaves_nothing_half_done(url: str, client: Backend) -> None:
    """What it was told of is there, at most one more is, and nobody has to wait for the dead."""
    others = KILLED if client.capabilities.shared else 0
    for number in range(others):
        one = process("until-killed", url, f"n{number}")
        assert one.stdout is not None
        for _ in range(TIMES):
            assert one.stdout.readline() == "added\n"
        one.kill()
        told = TIMES + one.stdout.read().count("added\n")
        one.communicate()
        assert books(client)[f"n{number}"] in (told, told + 1)
    before = books(client).get("total", 0)
    assert run_sync(add(client, "here")) == before + 1  # type: ignore[operator]


def test_a_fork_shares_the_store_and_nothing_else(url: str, client: Backend) -> None:
    """Parent and children go on with what the parent had opened."""
    others = 1 if client.capabilities.shared else 0
    totals = [run_sync(add(client, "here"))]
    for number in range(others):
        one = process("forked", url, f"n{number}")
        totals += [int(total) for total in one.communicate(timeout=PATIENCE_SECONDS)[0].split()]
        assert one.returncode == 0
    assert sorted(totals) == list(range(1, 2 + others * (1 + 3 * TIMES)))
