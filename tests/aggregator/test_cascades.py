"""Cascades are charged to two buckets and asked for once: what a resource's usage makes of that."""

from __future__ import annotations

import json
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.aggregator.images import NOW, bucket
from tests.aggregator.known_usage import Stream
from tests.dynamodb.tables import make_table, open_table
from tests.records.store import count_usage
from tests.stores import STORES
from zae_limiter import Limit, RateLimitExceeded, SyncRateLimiter, SyncRepository, UsageSnapshot, UsageWindow
from zae_limiter.backends.memory import MemoryBackend
from zae_limiter.exceptions import RateLimiterUnavailable
from zae_limiter.records.items import USAGE_PASSED, usage_row, usage_snapshot_of
from zae_limiter.records.usage import own
from zae_limiter.repository_protocol import Backend, Item, Key
from zae_limiter.runtime.colour import run_sync
from zae_limiter.schema import bucket_key
from zae_limiter.testing import ManualClock
from zae_limiter.testing.stores import Wrapper
from zae_limiter_aggregator import AggregatorSettings, process_stream_records
from zae_limiter_aggregator.changes import Change, numbered
from zae_limiter_aggregator.runner import follow, source_of
from zae_limiter_aggregator.usage import PASSED_BYTES_MAX, Rung, parent_bucket, sheets_of, update_snapshot

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


@pytest.fixture(params=["memory", "sqlite", "dynamodb", "postgres", "redis"])
def stage(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Stage]:
    clock = ManualClock()
    if request.param == "dynamodb":
        table = make_table(with_stream=True)
        backend: Backend = open_table(True, table, clock.world)
        stream = Stream(table)

        def count() -> None:
            stream.drain(clock.world.now_ms())
            tally = run_sync(
                process_stream_records(stream.records, backend, clock.world, AggregatorSettings())
            )
            assert tally.failed == {}

    else:
        backend = STORES[request.param](tmp_path, clock.world)(sync=True)

        def count() -> None:
            source = source_of(backend, "", clock.world, AggregatorSettings())
            follow(source, until_idle=True, stop=threading.Event(), tell=lambda *_: None)

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
    assert {one.entity_id: one.passed_on for one in snapshots} == {
        "ann": {"team": {"rpm": 3, "tpm": 30}},
        "bob": {"team": {"rpm": 2}},
        "cid": {},
        "lone": {},
        "team": {},
    }


def test_an_average_is_of_those_who_asked(stage: Stage) -> None:
    """A parent that asked for nothing itself is not one of them."""
    stage.repository.set_resource_defaults("api", [RPM])
    stage.repository.create_entity("team")
    for child in ("ann", "bob"):
        stage.repository.create_entity(child, parent_id="team", cascade=True)
        stage.use(child, 3)
    stage.count()
    summary = stage.repository.get_usage_summary(resource="api")
    assert (summary.snapshot_count, summary.total, summary.average) == (2, {"rpm": 6}, {"rpm": 3.0})
    assert stage.repository.get_usage_summary("team").average == {"rpm": 6.0}


def test_what_only_one_of_them_limits_counts_there(stage: Stage) -> None:
    """A budget that only the parent has was charged to nobody else, nor one that only the child has."""
    stage.repository.create_entity("team")
    stage.repository.create_entity("ann", parent_id="team", cascade=True)
    stage.repository.set_limits("team", [TPM], "api")
    stage.repository.set_limits("ann", [RPM], "api")
    stage.use("ann", 3, rpm=1, tpm=10)
    assert stage.total() == {"rpm": 3, "tpm": 30}


def test_families_of_three(stage: Stage) -> None:
    """A request is charged to all above who asked, each of whom has its own view; it counts once."""
    stage.repository.set_resource_defaults("api", [RPM])
    stage.repository.create_entity("org")
    stage.repository.create_entity("team", parent_id="org", cascade=True)
    stage.repository.create_entity("ann", parent_id="team", cascade=True)
    stage.use("ann", 3)
    stage.use("team", 4)
    stage.use("org", 5)
    assert stage.total() == {"rpm": 12}
    assert stage.total(entity_id="team") == {"rpm": 7}
    assert stage.total(entity_id="org") == {"rpm": 12}
    stage.repository.set_entity_cascade("team", False, "api")
    stage.use("ann", 10)
    assert stage.total() == {"rpm": 22}
    assert stage.total(entity_id="team") == {"rpm": 17}
    assert stage.total(entity_id="org") == {"rpm": 12}


@pytest.mark.parametrize("has_bucket", [True, False], ids=["another limit", "none"])
def test_somebody_between_who_has_no_such_limit(stage: Stage, has_bucket: bool) -> None:
    """What goes past it is passed on to the next who has it, whether or not it has a bucket."""
    stage.repository.create_entity("org")
    stage.repository.create_entity("team", parent_id="org", cascade=True)
    stage.repository.create_entity("ann", parent_id="team", cascade=True)
    for entity_id in ("org", "ann"):
        stage.repository.set_limits(entity_id, [RPM], "api")
    if has_bucket:
        stage.repository.set_limits("team", [TPM], "api")
        stage.use("team", tpm=1)
    stage.use("ann", 3)
    stage.use("org", 4)
    assert stage.total(entity_id="org") == {"rpm": 7}
    assert stage.total() == {"rpm": 7, **({"tpm": 1} if has_bucket else {})}
    snapshots, _ = stage.repository.get_usage_snapshots("ann", "api", window_type="hourly")
    assert snapshots[0].passed_on == {"org": {"rpm": 3}}


def test_a_child_that_moves_within_a_window(stage: Stage) -> None:
    """Each of its parents gets rid of what was charged to it, and of no more."""
    stage.repository.set_resource_defaults("api", [RPM])
    for parent in ("one", "two"):
        stage.repository.create_entity(parent)
    stage.repository.create_entity("ann", parent_id="one", cascade=True)
    stage.use("ann", 3)
    stage.count()
    stage.repository.update_entity("ann", parent_id="two")
    stage.use("ann", 2)
    stage.use("two", 4)
    assert stage.total() == {"rpm": 9}
    snapshots, _ = stage.repository.get_usage_snapshots(resource="api", window_type="hourly")
    assert snapshots[0].passed_on == {"one": {"rpm": 3}, "two": {"rpm": 2}}
    assert {one.entity_id: one.counters["rpm"] for one in own(snapshots)} == {"ann": 5, "one": 0, "two": 4}


def test_a_parent_that_is_deleted_takes_nothing_along(stage: Stage) -> None:
    """What its child asked for was asked for."""
    stage.repository.set_resource_defaults("api", [RPM])
    stage.repository.create_entity("team")
    stage.repository.create_entity("ann", parent_id="team", cascade=True)
    stage.use("ann", 7)
    assert stage.total() == {"rpm": 7}
    stage.repository.update_entity("ann", parent_id=None, cascade=False)
    stage.repository.delete_entity("team")
    summary = stage.repository.get_usage_summary(resource="api", window_type="hourly")
    assert (summary.snapshot_count, summary.total) == (1, {"rpm": 7})


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


def team_away() -> tuple[Stage, Any, list[int]]:
    """Ann, whose team's bucket the follower of the store cannot read until the list is cleared."""
    clock, away = ManualClock(), [1]
    memory = MemoryBackend(clock.world)
    stage = Stage(memory, clock, lambda: None)
    stage.repository.set_resource_defaults("api", [RPM])
    stage.repository.create_entity("team")
    stage.repository.create_entity("ann", parent_id="team", cascade=True)
    source: Any = source_of(memory, "", clock.world, AggregatorSettings())
    source._backend = _TeamAway(memory, away)
    return stage, source, away


def test_children_wait_for_their_parents() -> None:
    """Where a parent's bucket cannot be read nothing is guessed; delivered again, it is counted."""
    stage, source, away = team_away()
    stage.use("ann", 3)
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
    stage, source, away = team_away()
    stage.use("ann", 3)
    stage.repository.update_entity("ann", cascade=False)
    stage.use("ann", 4)
    assert run_sync(source.step()).failed
    away.clear()
    while run_sync(source.step()).records:
        pass
    assert stage.total(entity_id="ann") == {"rpm": 7}


def snapshot(entity_id: str, used: int, hour: int = 0, **passed: int) -> UsageSnapshot:
    """What an entity used in an hour, and how much of it was passed on to whom."""
    start = f"2024-01-01T{hour:02}:00:00Z"
    on = {parent_id: {"rpm": amount} for parent_id, amount in passed.items()}
    return UsageSnapshot(entity_id, "api", UsageWindow.HOURLY, start, start, {"rpm": used}, 1, on)


def owned(*rows: UsageSnapshot) -> list[int]:
    return [one.counters["rpm"] for one in own(rows)]


def test_a_charge_that_fell_into_another_window() -> None:
    """It counts once, unless the parent used nothing else in the first one."""
    late = snapshot("team", 1, hour=1)
    assert owned(snapshot("ann", 1, team=1), snapshot("team", 5), late) == [1, 4, 1]
    assert owned(snapshot("ann", 1, team=1), late) == [1, 1]


def test_what_was_given_back_in_a_later_window() -> None:
    """A parent did not give back what its child did."""
    assert owned(snapshot("ann", -3, team=-3), snapshot("bob", 5, team=5), snapshot("team", 4)) == [-3, 5, 2]


def test_a_parent_has_no_less_than_nothing() -> None:
    """Whatever is said to have been passed on: its row may have been made anew."""
    assert owned(snapshot("ann", 7, team=7), snapshot("team", 5)) == [7, 0]


def test_a_parent_that_cascades_since_a_while() -> None:
    """Its own parent is rid of what was charged to it since then."""
    assert owned(snapshot("ann", 10, team=10), snapshot("org", 9), snapshot("team", 12, org=4)) == [10, 5, 2]


def test_a_parent_that_moves_within_a_window() -> None:
    """Each of its parents is rid of what was charged to it."""
    team = snapshot("team", 9, one=4, two=5)
    assert owned(snapshot("ann", 3, team=3), snapshot("one", 5), team, snapshot("two", 5)) == [3, 1, 6, 0]


asked = st.dictionaries(st.sampled_from("abcdef"), st.integers(0, 9), min_size=1)
parents = st.dictionaries(st.sampled_from("abcde"), st.sampled_from("bcdef"), max_size=5)


@given(asked, parents)
def test_any_family_sums_up_to_what_was_asked(asked: dict[str, int], parents: dict[str, str]) -> None:
    """Whoever has a parent passes on all that it was charged with; parents come later in the alphabet."""
    up = {child: parent for child, parent in parents.items() if child < parent}
    used = {one: asked.get(one, 0) for one in sorted({*asked, *up, *up.values()})}
    for child, parent in sorted(up.items()):
        used[parent] += used[child]
    rows = [snapshot(one, used[one], **({up[one]: used[one]} if one in up else {})) for one in sorted(used)]
    assert {one.entity_id: one.counters["rpm"] for one in own(rows)} == {
        one: asked.get(one, 0) for one in used
    }


requests = st.tuples(st.sampled_from("abc"), st.sampled_from(["", *"pqr"]), st.integers(0, 9))


@given(st.lists(requests, max_size=12), st.sets(st.sampled_from("pqr")))
def test_any_moves_leave_everybody_what_it_asked(
    moves: list[tuple[str, str, int]], deleted: set[str]
) -> None:
    """Children ask, each time under some parent or none; parents ask once, and some are deleted."""
    asked, used, passed = Counter("pqr"), Counter("pqr"), defaultdict[str, Counter[str]](Counter)
    for child, parent, amount in moves:
        asked[child] += amount
        used[child] += amount
        if parent:
            used[parent] += amount
            passed[child][parent] += amount
    rows = [snapshot(one, used[one], **passed[one]) for one in sorted({*used} - deleted)]
    assert {one.entity_id: one.counters["rpm"] for one in own(rows)} == {
        one: asked[one] for one in used if one not in deleted
    }


def test_circles_end() -> None:
    """Rows can be damaged, and families can be turned around within a window."""
    rows = [snapshot("a", 3, a=3), snapshot("b", 3, c=3), snapshot("c", 3, b=3), snapshot("d", 9, b=1)]
    assert len(owned(*rows)) == 4


def test_long_lines_end() -> None:
    """Whoever plants them."""
    rows = [snapshot(f"e{n:05}", 1, **{f"e{n + 1:05}": 1}) for n in range(5_000)]
    assert len(owned(*rows)) == 5_000


ODD: list[Any] = [
    5,
    "team",
    [],
    {"rpm": 5},
    {"team": 5},
    {"team": {"rpm": "x", "tpm": [1]}},
    {"#": {"rpm": 1}},
    {"": {}},
]


@pytest.mark.parametrize("planted", ODD, ids=repr)
def test_what_was_planted_among_what_was_passed_on_is_dropped(planted: Any) -> None:
    """It is read as nothing, and replaced by what is passed on next."""
    row = moved(["team"], {USAGE_PASSED: planted})
    assert row[USAGE_PASSED] == {"team": {"rpm": 1_000}}
    _, attributes = usage_row("ns", "ann", "api", UsageWindow.MONTHLY, NOW)
    assert usage_snapshot_of({**attributes, USAGE_PASSED: planted}).passed_on in ({}, {"team": {}})


def test_more_than_a_row_says_of_its_parents_is_not_ours() -> None:
    """Whoever plants it would make each change cost what it holds."""
    planted = {f"parent-{n}": {"rpm": 1_000} for n in range(300)}
    with pytest.raises(ValueError, match="_passed holds"):
        moved(["team"], {USAGE_PASSED: planted})


def moved(parents: list[str], row: Item | None = None) -> dict[str, Any]:
    """The row of a child that used one token under each parent."""
    changes, old = [], None
    for n, parent_id in enumerate(parents, 1):
        new = bucket({"rpm": n}, n, parent_id=parent_id, cascade=True)
        changes.append(Change(bucket_key("ns", "ann", "api"), old, new, NOW, numbered(n), str(n)))
        old = new
    above = {bucket_key("ns", parent_id, "api"): Rung(frozenset({"rpm"}), None) for parent_id in parents}
    (sheet,) = sheets_of(changes, [UsageWindow.MONTHLY], None, above)
    entry = update_snapshot(sheet, row)
    assert entry is not None
    return {**(row or {}), **entry.write.set, "left_out": entry.left_out}


def test_a_row_names_so_many_parents() -> None:
    """What was charged to further ones too counts for them alone, which is told."""
    parents = [f"{n:03}-{'x' * 250}" for n in range(100)]
    row = moved(parents)
    passed = row[USAGE_PASSED]
    assert list(passed) == parents[: len(passed)]
    assert 0 < len(passed) < 100
    assert len(json.dumps(passed)) < PASSED_BYTES_MAX
    assert (row["rpm"], row["left_out"]) == (len(passed), 100 - len(passed))
    again = moved(parents[:1], {USAGE_PASSED: passed})
    assert again[USAGE_PASSED] == {**passed, parents[0]: {"rpm": 2_000}}, "those that it names go on"


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
