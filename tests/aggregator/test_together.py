"""Several followers of one store: they share what there is to count, and all of it counts once."""

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import pytest

from tests.aggregator.test_runner import follow_once, totals, use
from tests.patience import PATIENCE_SECONDS
from tests.stores import url_of
from zae_limiter.backends import open_backend
from zae_limiter.backends.change_log import ChangeLog, LogEntry, log_of
from zae_limiter.runtime.colour import run_sync
from zae_limiter.runtime.world import World
from zae_limiter_aggregator import AggregatorSettings
from zae_limiter_aggregator.runner import LogSource, aggregate, is_behind

TENANTS = [f"tenant-{n}" for n in range(4)]
USED = {f"user-{n}": 3 * n for n in range(1, 7)}
"""How often each uses it; twice as many tokens."""


@pytest.fixture(params=["sqlite", "redis", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return url_of(request.param, tmp_path)


@contextmanager
def follower(url: str, around: Callable[[ChangeLog], ChangeLog] = lambda log: log) -> Iterator[LogSource]:
    """One of several, on connections of its own."""
    backend = open_backend(url, sync=True, world=World())
    run_sync(backend.setup())
    source = LogSource(backend, around(log_of(backend)), World(), AggregatorSettings())
    yield source
    run_sync(source.close())
    run_sync(backend.close())


def use_all(url: str, tenant: str) -> None:
    for entity_id, times in USED.items():
        use(url, times, entity_id, tenant)


def used(rounds: int = 1) -> dict[str, dict[str, int]]:
    return {entity_id: {"rpm": rounds * 2 * times} for entity_id, times in USED.items()}


class Meeting:
    """A log whose readers have all read the same before one of them goes on, so many times."""

    def __init__(self, log: ChangeLog, barrier: threading.Barrier, times: int) -> None:
        self.trim, self.waits, self.close = log.trim, log.waits, log.close
        self._log, self._barrier, self._left = log, barrier, times
        self.seen: list[int] = []

    def read(self, entries_max: int) -> list[LogEntry]:
        if not self._left:
            return self._log.read(entries_max)
        self._left -= 1
        self._barrier.wait(PATIENCE_SECONDS)  # so that nobody has trimmed what another is to read
        entries = self._log.read(entries_max)
        self.seen += [entry.position for entry in entries]
        self._barrier.wait(PATIENCE_SECONDS)
        return entries


def test_what_several_have_read_counts_once(url: str) -> None:
    """Two have the same entries in their hands each time, and both count and trim them."""
    use_all(url, "default")
    barrier, logs, threads = threading.Barrier(2), list[Meeting](), list[threading.Thread]()

    def work() -> None:
        def meeting(log: ChangeLog) -> ChangeLog:
            logs.append(Meeting(log, barrier, 3))
            return logs[-1]

        with follower(url, meeting) as source:
            follow_once(source)

    with mock.patch("zae_limiter_aggregator.runner.BATCH_RECORDS_MAX", 4):
        threads = [threading.Thread(target=work) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert logs[0].seen == logs[1].seen
    assert len(set(logs[0].seen)) >= 8, "they met over several batches"
    assert totals(url) == used()


def test_they_share_the_work(url: str) -> None:
    """By turns, each finds what the other has left: together they count every entry, and none twice."""
    for tenant in TENANTS:
        use_all(url, tenant)
    shares = Counter[str]()
    with (
        mock.patch("zae_limiter_aggregator.runner.BATCH_RECORDS_MAX", 5),
        follower(url) as first,
        follower(url) as second,
    ):
        idle = 0
        while idle < 2:
            idle += 1
            for name, source in (("first", first), ("second", second)):
                tally = run_sync(source.step())
                shares[name] += tally.records
                idle = 0 if tally.records else idle
    entries = 2 * len(TENANTS) * len(USED)  # each bucket was made, and used since
    assert shares.total() == entries
    assert min(shares.values()) > entries // 4
    assert [totals(url, tenant) for tenant in TENANTS] == [used()] * len(TENANTS)


def test_under_load_all_of_it_is_counted_once(url: str) -> None:
    """Three follow while every tenant is used; a last look finds what was used after them."""
    over, errors = threading.Event(), list[BaseException]()

    def noting(work: Callable[[], object]) -> threading.Thread:
        def run() -> None:
            try:
                work()
            except BaseException as error:
                errors.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        return thread

    def clients(tenant: str) -> None:
        for _ in range(3):
            use_all(url, tenant)

    for tenant in TENANTS:
        use(url, 1, "first-of-all", tenant)
    followers = [noting(lambda: aggregate(url, stop=over)) for _ in range(3)]
    users = [noting(lambda tenant=tenant: clients(tenant)) for tenant in TENANTS]  # type: ignore[misc]
    for thread in users:
        thread.join()
    over.set()
    for thread in followers:
        thread.join()
    assert errors == []
    aggregate(url, until_idle=True)
    expected = {"first-of-all": {"rpm": 3}, **used(rounds=3)}
    assert [totals(url, tenant) for tenant in TENANTS] == [expected] * len(TENANTS)
    look = open_backend(url, sync=True, world=World())
    assert not is_behind(look)
    run_sync(look.close())
