"""Cascades are charged to two buckets and asked for once: what a resource's usage makes of that."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.aggregator.stage import Stream
from tests.dynamodb.stage import make_table, open_table
from tests.records.stage import count_usage
from zae_limiter import Limit, RateLimitExceeded, SyncRateLimiter, SyncRepository, UsageSnapshot, UsageWindow
from zae_limiter._colour import run_sync
from zae_limiter.backends.memory import MemoryBackend
from zae_limiter.backends.sqlite import SqliteBackend
from zae_limiter.exceptions import RateLimiterUnavailable
from zae_limiter.records.once import own
from zae_limiter.repository_protocol import Backend, Item, Key
from zae_limiter.testing import ManualClock
from zae_limiter.testing.stores import Wrapper
from zae_limiter_aggregator import Settings, process_stream_records
from zae_limiter_aggregator.changes import Change, numbered
from zae_limiter_aggregator.runner import follow, source_of
from zae_limiter_aggregator.usage import parent_bucket

RPM, TPM = Limit.per_hour("rpm", 1_000), Limit.per_hour("tpm", 100_000)


class Stage:
    """A store, a limiter on it, and a way to count what it was used for."""

    def __init__(self, backend: Backend, clock: ManualClock, count: Callable[[], None]) -> None:
        self.clock, self.count = clock, count
        self.repository = SyncRepository.over(backend, world=clock.world)
        self.limiter = SyncRateLimiter(self.repository)

    def use(self, entity_id: str, times: int = 1, resource: str = "api", **amounts: int) -> None:
        for _ in range(times):
            with self.limiter.acquire(entity_id, resource, amounts or {"rpm": 1}):
                pass

    def total(self, **asked: Any) -> dict[str, int]:
        self.count()
        return dict(
            self.repository.get_usage_summary(**{"resource": "api", "window_type": "hourly"} | asked).total
        )


@pytest.fixture(params=["memory", "sqlite", "dynamodb"])
def stage(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Stage]:
    clock = ManualClock()
    if request.param == "dynamodb":
        table = make_table(with_stream=True)
        backend: Backend = open_table(True, table, clock.world)
        stream = Stream(table)

        def count() -> None:
            stream.drain(clock.world.now_ms())
            tally = run_sync(process_stream_records(stream.records, backend, clock.world, Settings()))
            assert tally.failed == {}

    else:
        backend = (
            MemoryBackend(clock.world)
            if request.param == "memory"
            else SqliteBackend(tmp_path / "limits.db", sync=True, timeout_ms=10_000, world=clock.world)
        )

        def count() -> None:
            source = source_of(backend, "", clock.world, Settings())
            follow(source, until_idle=True, stop=threading.Event(), tell=lambda _: None)

    run_sync(backend.setup())
    it = Stage(backend, clock, count)
    yield it
    it.limiter.close()


def test_a_resource_counts_every_request_once(stage: Stage) -> None:
    """For the one who asked, while a parent still sees all that was charged to it."""
    stage.repository.set_resource_defaults("api", [RPM, TPM])
    stage.repository.create_entity("team")
    for child in ("ann", "bob"):
        stage.repository.create_entity(child, parent_id="team", cascade=True)
    stage.repository.create_entity("cid", parent_id="team", cascade=False)
    stage.use("ann", 3, rpm=1, tpm=10)
    stage.use("bob", 2)
    stage.use("cid", 4)
    stage.use("team", 5)
    stage.use("lone", 6)
    with pytest.raises(RateLimitExceeded):
        stage.use("ann", rpm=2_000)
    assert stage.total() == {"rpm": 20, "tpm": 30}
    assert stage.total(entity_id="team") == {"rpm": 10, "tpm": 30}
    assert stage.total(entity_id="ann") == {"rpm": 3, "tpm": 30}
    stage.count()  # whatever is delivered again changes nothing
    assert stage.total() == {"rpm": 20, "tpm": 30}
    snapshots, _ = stage.repository.get_usage_snapshots(resource="api", window_type="hourly")
    assert {one.entity_id: (one.parent_id, dict(one.passed_on)) for one in snapshots} == {
        "ann": ("team", {"rpm": 3, "tpm": 30}),
        "bob": ("team", {"rpm": 2}),
        "cid": (None, {}),
        "lone": (None, {}),
        "team": (None, {}),
    }


def test_what_only_one_of_them_limits_counts_there(stage: Stage) -> None:
    """A budget that only the parent has was charged to nobody else, nor one that only the child has."""
    stage.repository.create_entity("team")
    stage.repository.create_entity("ann", parent_id="team", cascade=True)
    stage.repository.set_limits("team", [TPM], "api")
    stage.repository.set_limits("ann", [RPM], "api")
    stage.use("ann", 3, rpm=1, tpm=10)
    assert stage.total() == {"rpm": 3, "tpm": 30}


def test_families_of_three(stage: Stage) -> None:
    """A request is charged to the parent, and not to the parent's parent."""
    stage.repository.set_resource_defaults("api", [RPM])
    stage.repository.create_entity("org")
    stage.repository.create_entity("team", parent_id="org", cascade=True)
    stage.repository.create_entity("ann", parent_id="team", cascade=True)
    stage.use("ann", 3)
    stage.use("team", 4)
    stage.use("org", 5)
    assert stage.total() == {"rpm": 12}
    assert stage.total(entity_id="team") == {"rpm": 7}
    assert stage.total(entity_id="org") == {"rpm": 9}


def test_settlements_count_like_what_they_settle(stage: Stage) -> None:
    """What was adjusted is passed on, what was given back is not."""
    stage.repository.set_resource_defaults("api", [RPM, TPM])
    stage.repository.create_entity("team")
    stage.repository.create_entity("ann", parent_id="team", cascade=True)
    with stage.limiter.acquire("ann", "api", {"rpm": 1, "tpm": 100}) as lease:
        lease.adjust(tpm=50)
    with pytest.raises(KeyError), stage.limiter.acquire("ann", "api", {"rpm": 1, "tpm": 100}):
        raise KeyError
    assert stage.total() == {"rpm": 1, "tpm": 150}


def test_older_rows_count_as_they_did() -> None:
    """They do not say what was passed on."""
    clock = ManualClock()
    repository = SyncRepository.over(MemoryBackend(clock.world), world=clock.world)
    for entity_id in ("team", "ann"):
        run_sync(count_usage(repository._async, entity_id, "api", "hourly", 0, rpm=5))
    assert repository.get_usage_summary(resource="api").total == {"rpm": 10}


class _TeamAway(Wrapper):
    """The bucket of the team cannot be read while it is away."""

    def __init__(self, inner: Backend, away: list[int]) -> None:
        super().__init__(inner)
        self._away = away

    async def batch_get(self, keys: Any) -> list[Item | None]:
        if self._away and any("/BUCKET#team" in key.partition for key in keys):
            raise RateLimiterUnavailable("away")
        found: list[Item | None] = await super().batch_get(keys)
        return found


def test_children_wait_for_their_parents() -> None:
    """Where a parent's bucket cannot be read nothing is guessed; delivered again, it is counted."""
    clock = ManualClock()
    memory = MemoryBackend(clock.world)
    away: list[int] = [1]
    stage = Stage(memory, clock, lambda: None)
    stage.repository.set_resource_defaults("api", [RPM])
    stage.repository.create_entity("team")
    stage.repository.create_entity("ann", parent_id="team", cascade=True)
    stage.use("ann", 3)
    source = source_of(memory, "", clock.world, Settings())
    source._backend = _TeamAway(memory, away)  # type: ignore[attr-defined]
    tally = run_sync(source.step())
    assert all("of a parent was not read: away" in why for why in tally.failed.values())
    assert tally.failed
    away.clear()
    while run_sync(source.step()).records:
        pass
    assert stage.total() == {"rpm": 3}
    assert stage.total(entity_id="ann") == {"rpm": 3}


def test_nothing_of_a_child_is_counted_before_what_its_parent_is_waited_for() -> None:
    """A row that follows a log in order takes whatever came before a change as counted."""
    clock = ManualClock()
    memory = MemoryBackend(clock.world)
    away: list[int] = [1]
    stage = Stage(memory, clock, lambda: None)
    stage.repository.set_resource_defaults("api", [RPM])
    stage.repository.create_entity("team")
    stage.repository.create_entity("ann", parent_id="team", cascade=True)
    stage.use("ann", 3)
    stage.repository.update_entity("ann", cascade=False)
    stage.use("ann", 4)
    source = source_of(memory, "", clock.world, Settings())
    source._backend = _TeamAway(memory, away)  # type: ignore[attr-defined]
    assert run_sync(source.step()).failed
    away.clear()
    while run_sync(source.step()).records:
        pass
    assert stage.total(entity_id="ann") == {"rpm": 7}


def snapshot(
    entity_id: str, used: int, parent_id: str | None = None, passed: int = 0, hour: int = 0
) -> UsageSnapshot:
    start = f"2024-01-01T{hour:02}:00:00Z"
    on = {"rpm": passed} if passed else {}
    return UsageSnapshot(entity_id, "api", UsageWindow.HOURLY, start, start, {"rpm": used}, 1, parent_id, on)


def test_a_charge_that_fell_into_another_window() -> None:
    """The request counts in the window of the parent's charge, and once."""
    rows = [snapshot("ann", 1, "team", 1, hour=0), snapshot("team", 1, hour=1)]
    assert [(one.entity_id, one.counters["rpm"]) for one in own(rows)] == [("ann", 0), ("team", 1)]


asked = st.dictionaries(st.sampled_from("abcdef"), st.integers(0, 9), min_size=1)
parents = st.dictionaries(st.sampled_from("abcde"), st.sampled_from("bcdef"), max_size=5)


@given(asked, parents)
def test_any_family_sums_up_to_what_was_asked(asked: dict[str, int], parents: dict[str, str]) -> None:
    """Whoever has a parent passes on what it asked itself; parents come later in the alphabet."""
    up = {child: parent for child, parent in parents.items() if child < parent}
    used = {
        one: asked.get(one, 0) + sum(n for child, n in asked.items() if up.get(child) == one)
        for one in {*asked, *up, *up.values()}
    }
    rows = [snapshot(one, used[one], up.get(one), used[one] if one in up else 0) for one in sorted(used)]
    assert {one.entity_id: one.counters["rpm"] for one in own(rows)} == {
        one: asked.get(one, 0) for one in used
    }


def test_a_row_that_names_itself_is_no_circle() -> None:
    """Rows can be damaged; a list still ends."""
    rows = [snapshot("a", 3, "a", 3), snapshot("b", 3, "c", 3), snapshot("c", 3, "b", 3)]
    assert len(list(own(rows))) == 3


def test_whose_bucket_is_looked_at() -> None:
    """Only buckets of the child's own namespace and resource are looked at."""
    at = Key("ns/BUCKET#ann#api#3", "#STATE")
    for image, expected in (
        ({"cascade": True, "parent_id": "team"}, Key("ns/BUCKET#team#api#0", "#STATE")),
        ({"cascade": False, "parent_id": "team"}, None),
        ({"cascade": True}, None),
        ({"cascade": True, "parent_id": "ann"}, None),
        ({"cascade": True, "parent_id": "x#y"}, None),
    ):
        assert parent_bucket(Change(at, None, image, 0, numbered(1))) == expected
