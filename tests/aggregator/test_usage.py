"""Usage rows: sums over sets of changes, in the windows of the changes' own times."""

import random
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.aggregator.images import NOW, Step, bucket, history
from tests.aggregator.known_usage import ALL_WINDOWS, HOUR_MS, batches, booked, gaps_of, usage_rows
from zae_limiter.backends.memory import MemoryBackend
from zae_limiter.models import UsageWindow
from zae_limiter.records.items import usage_snapshot_of, window_of
from zae_limiter.repository_protocol import Equal, Item, Key, Update
from zae_limiter.runtime.colour import run_sync
from zae_limiter.runtime.world import World
from zae_limiter.schema import bucket_key
from zae_limiter_aggregator import AggregatorSettings, Change, process_changes, usage
from zae_limiter_aggregator.changes import Span, numbered
from zae_limiter_aggregator.usage import (
    COUNTERS_MAX,
    ROW_BYTES_MAX,
    SEEN,
    SEEN_BYTES_MAX,
    RowUpdate,
    Rung,
    extract_deltas,
    is_event,
    read_seen,
    sheets_of,
    shorten,
    update_snapshot,
    write_seen,
)

KEY = bucket_key("ns", "user-1", "gpt-4")
SETTINGS = AggregatorSettings(ALL_WINDOWS, retention_days=30)

steps = st.builds(Step, st.integers(-5, 20), st.integers(0, 3 * 86_400_000).map(lambda ms: NOW + ms))
histories = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 2), st.lists(steps, min_size=1, max_size=8)),
    max_size=5,
    unique_by=lambda one: one[:2],
)


def delivered(changes: list[Change], rng: random.Random) -> dict[Key, Item]:
    """The rows that some deliveries leave behind."""
    backend = MemoryBackend()
    for batch in batches(changes, rng, 7):
        tally = run_sync(process_changes(batch, backend, World(), SETTINGS))
        assert tally.failed == {}
    return usage_rows(backend, "ns", ["user-1"])


def row_of(changes: list[Change], row: Item | None = None) -> dict[str, Any]:
    """The monthly row after some changes, starting from another one."""
    (sheet,) = sheets_of(changes, [UsageWindow.MONTHLY], None)
    entry = update_snapshot(sheet, row)
    return {**(row or {}), **(entry.write.set if entry is not None else {})}


@given(histories, st.randoms(use_true_random=False))
def test_any_delivery_makes_the_same_rows(lives: Any, rng: random.Random) -> None:
    """Shards, lives of a bucket and clocks that step back, in any order, repeated and cut anyhow."""
    changes = [change for shard, life, some in lives for change in history(some, shard, NOW + life * 1000)]
    mixed = changes + rng.choices(changes, k=len(changes)) if changes else []
    rng.shuffle(mixed)
    rows = delivered(mixed, rng)
    assert rows == delivered(changes, rng)
    books: Counter[tuple[str, str, str]] = Counter()
    events: Counter[str] = Counter()
    for change in changes:
        for window in ALL_WINDOWS:
            key = window_of(window, change.at_ms)[0]
            events[key] += 1
            for name, milli in extract_deltas(change).items():
                books["user-1", name, key] += milli // 1000
    assert booked(rows) == Counter({place: amount for place, amount in books.items() if amount})
    counted = {key.sort.rpartition("#")[2]: usage_snapshot_of(row).total_events for key, row in rows.items()}
    assert counted == events


def test_a_removed_bucket_consumed_nothing() -> None:
    """Nor was it used, whatever version it had reached."""
    removed = Change(KEY, bucket({"tpm": 5}, 7), None, NOW, Span(NOW, 7, 8), "8")
    assert extract_deltas(removed) == {}
    assert not is_event(removed)


def test_a_bucket_that_moved_was_counted_where_it_came_from() -> None:
    """Its first image consumed nothing here; what comes afterwards did."""
    came, used = bucket({"tpm": 5}, 1, moved=1), bucket({"tpm": 9}, 2, moved=1)
    assert extract_deltas(Change(KEY, None, came, NOW, Span(NOW, 0, 1))) == {}
    assert extract_deltas(Change(KEY, came, used, NOW, Span(NOW, 1, 2))) == {"tpm": 4000}
    assert extract_deltas(Change(KEY, None, bucket({"tpm": 5}, 1), NOW, Span(NOW, 0, 1))) == {"tpm": 5000}


def test_what_cannot_be_a_limit_is_not_counted() -> None:
    """A bucket may hold numbers of strangers, under names that nobody can have configured."""
    image = bucket({"tpm": 5, "two words": 7}, 1)
    assert extract_deltas(Change(KEY, None, image, NOW, Span(NOW, 0, 1))) == {"tpm": 5000}


def test_a_row_is_written_as_a_whole_once() -> None:
    """A new row gets its attributes, a known one its numbers; each if nobody else wrote it since."""
    first, second = history([Step(5, NOW), Step(3, NOW)])
    (sheet,) = sheets_of([first], [UsageWindow.MONTHLY], None)
    numbers: dict[str, Any] = {"tpm": 5, "total_events": 1, SEEN: f"0@{NOW}:0-1"}
    created = Update(sheet.key, set={**sheet.attributes, **numbers}, when=(Equal(SEEN, None),))
    assert update_snapshot(sheet, None) == RowUpdate(created, 0, 0)
    (sheet,) = sheets_of([second], [UsageWindow.MONTHLY], None)
    more: dict[str, Any] = {"tpm": 8, "total_events": 2, SEEN: f"0@{NOW}:0-2"}
    added = Update(sheet.key, set=more, when=(Equal(SEEN, numbers[SEEN]),))
    assert update_snapshot(sheet, created.set) == RowUpdate(added, 0, 0)


@pytest.mark.parametrize("damage", [5, None, {"a": 1}], ids=repr)
def test_a_row_that_does_not_tell_what_it_counted_is_not_written(damage: Any) -> None:
    """It would count everything twice."""
    with pytest.raises(ValueError, match=SEEN):
        row_of(history([Step(5, NOW)]), {SEEN: damage, "window": "monthly"})


def test_the_time_of_a_change_decides_the_window() -> None:
    """Not the origin of the bucket, which may be days ago; hours and days do not share rows."""
    midnight = NOW - NOW % 86_400_000
    changes = history([Step(1, midnight), Step(2, midnight + HOUR_MS - 1), Step(4, midnight + HOUR_MS)])
    rows = {key.sort: row["tpm"] for key, row in delivered(changes, random.Random(0)).items()}
    assert rows == {
        "#USAGE#gpt-4#2023-11-14T00:00:00Z": 3,
        "#USAGE#gpt-4#2023-11-14T01:00:00Z": 4,
        "#USAGE#gpt-4#2023-11-14": 7,
        "#USAGE#gpt-4#2023-11": 7,
    }


def test_a_row_is_kept_after_the_end_of_its_window() -> None:
    """Every delivery says the same, whenever it comes."""
    (sheet,) = sheets_of(history([Step(1, NOW)]), [UsageWindow.DAILY], 30)
    midnight = (NOW // 86_400_000 + 1) * 86_400
    assert sheet.attributes["ttl"] == midnight + 30 * 86_400


def test_the_creating_write_counts() -> None:
    """And so does what is given back."""
    row = row_of(history([Step(5, NOW), Step(3, NOW), Step(-2, NOW)]))
    assert (row["tpm"], row["total_events"], row[SEEN]) == (6, 3, f"0@{NOW}:0-3")


def test_fractions_wait_until_they_are_whole() -> None:
    """What was gathered from two shards is one token, not two halves that count as none."""
    halves = [
        Change(bucket_key("ns", "user-1", "gpt-4", shard), None, image, NOW, Span(NOW, 0, 1), str(shard))
        for shard, milli in ((0, 1500), (1, 500))
        for image in ({**bucket({"tpm": 0}, 1), "b_tpm_tc": milli},)
    ]
    first = row_of(halves[:1])
    assert (first["tpm"], first["_rest"]) == (1, {"tpm": 500})
    both = row_of(halves[1:], first)
    assert (both["tpm"], both["_rest"]) == (2, None)
    assert usage_snapshot_of({k: v for k, v in both.items() if v is not None}).counters == {"tpm": 2}


def test_a_limit_that_goes_and_comes_back_starts_at_nothing() -> None:
    """Its old total is not taken for something that was given back."""
    images = [bucket({"tpm": 5}, 1), bucket({"rpm": 1}, 2), bucket({"rpm": 1, "tpm": 2}, 3)]
    changes = [
        Change(KEY, old, new, NOW, Span(NOW, n, n + 1), str(n))
        for n, (old, new) in enumerate(zip([None, *images], images, strict=False))
    ]
    row = row_of(changes)
    assert (row["tpm"], row["rpm"]) == (7, 1)


def test_what_is_no_use_of_a_bucket_is_no_event() -> None:
    """A split, a longer life or a refill leaves the count of writes and the totals as they are."""
    image = bucket({"tpm": 5}, 7)
    moved = {**image, "rf": NOW + 1, "ttl": 99, "b_tpm_tk": 1}
    quiet = Change(KEY, image, moved, NOW, numbered(5), "5")
    removed = Change(KEY, image, None, NOW, numbered(6), "6")
    assert sheets_of([quiet, removed], ALL_WINDOWS, None) == []


def test_a_writer_that_does_not_count_counts_in_order() -> None:
    """An older client's adjustment has only its place in the stream; coming again changes nothing."""
    before, after = bucket({"tpm": 5}, 7), bucket({"tpm": 9}, 7)
    stranger = Change(KEY, before, after, NOW, numbered(500), "500")
    row = row_of([stranger])
    assert (row["tpm"], row[SEEN]) == (4, "0@-1:0-500")
    assert row_of([stranger], row) == row


def test_a_limit_may_be_called_like_an_attribute() -> None:
    """Its counter is marked."""
    row = row_of(history([Step(5, NOW)], name="total_events"))
    assert (row["#total_events"], row["total_events"]) == (5, 1)


def test_missing_changes_are_gaps() -> None:
    """Which close when they come late."""
    changes = history([Step(1, NOW)] * 5)
    row = row_of([changes[0], changes[2], changes[4]])
    assert (row[SEEN], gaps_of(row), row["tpm"]) == (f"0@{NOW}:0-1,2-3,4-5", 2, 3)
    assert row_of(changes, row)[SEEN] == f"0@{NOW}:0-5"


def seen_after(seen: str, *spans: tuple[int, Span]) -> str:
    """What a row has seen after some changes of shards, one by one."""
    row: dict[str, Any] = {SEEN: seen, "window": "monthly"}
    for shard_id, span in spans:
        key = bucket_key("ns", "user-1", "gpt-4", shard_id)
        row = row_of([Change(key, None, bucket({"tpm": 1}, 1), NOW, span, "1")], row)
    found: str = row[SEEN]
    return found


def test_a_run_swallows_those_within_it() -> None:
    """It ends where the longer of them does."""
    assert seen_after("0@5:0-1,3-4", (0, Span(5, 2, 6))) == "0@5:0-1,2-6"


@pytest.mark.parametrize(
    ("room", "kept", "closed"),
    [
        (100, "0@5:0-1,2-3,4-5,6-7,8-9;0@7:0-1;1@5:0-1,2-3", 0),
        (40, "0@5:0-5,6-7,8-9;0@7:0-1;1@5:0-1,2-3", 2),
        (33, "0@5:0-7,8-9;0@7:0-1;1@5:0-1,2-3", 3),
        (25, "0@5:0-9;0@7:0-1;1@5:0-3", 5),
        (22, "0@-2:0-5;0@7:0-1;1@5:0-3", 6),
    ],
)
def test_a_row_closes_what_it_has_no_room_for(
    monkeypatch: pytest.MonkeyPatch, room: int, kept: str, closed: int
) -> None:
    """Old gaps first, half of them at a time, then old lives; never the newest."""
    monkeypatch.setattr(usage, "SEEN_BYTES_MAX", room)
    seen = read_seen("0@5:0-1,2-3,4-5,6-7,8-9;0@7:0-1;1@5:0-1,2-3")
    assert (shorten(seen), write_seen(seen)) == (closed, kept)


@pytest.mark.parametrize(
    ("shard_id", "span", "expected"),
    [
        (0, Span(10, 0, 1), "0@-2:0-20;0@30:0-1"),
        (0, Span(20, 7, 8), "0@-2:0-20;0@30:0-1"),
        (0, Span(0, 7, 8), "0@-2:0-20;0@30:0-1"),
        (0, Span(21, 0, 1), "0@-2:0-20;0@21:0-1;0@30:0-1"),
        (0, Span(30, 1, 2), "0@-2:0-20;0@30:0-2"),
        (1, Span(10, 0, 1), "0@-2:0-20;0@30:0-1;1@10:0-1"),
        (0, numbered(7), "0@-2:0-20;0@-1:0-7;0@30:0-1"),
    ],
    ids=["older", "the last", "without", "between", "known", "another shard", "in order"],
)
def test_a_closed_life_counts_no_more(shard_id: int, span: Span, expected: str) -> None:
    """Also one that never came. Each shard has its own, and what comes in order is no life."""
    assert seen_after("0@-2:0-20;0@30:0-1", (shard_id, span)) == expected


spans = st.builds(
    lambda life, since, long: Span(life, since, since + long),
    st.sampled_from([0, 1, 2, 10**27]),
    st.integers(0, 40),
    st.just(1),
)


@given(st.lists(st.tuples(st.integers(0, 2), spans), max_size=80), st.integers(70, 400))
def test_a_row_that_has_no_room_never_counts_twice(arrivals: list[tuple[int, Span]], room: int) -> None:
    """Whatever was closed: a change counts at most once, and all of it if nothing was closed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(usage, "SEEN_BYTES_MAX", room)
        row: Item | None = None
        closed = 0
        for shard_id, span in [*arrivals, *arrivals]:
            key = bucket_key("ns", "user-1", "gpt-4", shard_id)
            change = Change(key, None, bucket({"tpm": 1}, 1), NOW, span, "1")
            (sheet,) = sheets_of([change], [UsageWindow.MONTHLY], None)
            if (entry := update_snapshot(sheet, row)) is not None:
                row = {**(row or {}), **entry.write.set}
                closed += entry.closed
    total = row["tpm"] if row else 0
    assert isinstance(total, int)
    assert total <= len(set(arrivals))
    assert closed or total == len(set(arrivals))


def test_a_row_keeps_its_budget_with_the_longest_numbers() -> None:
    """Every shard, two thousand lives of each with gaps, limits and parents with the longest names."""
    row: Item | None = None
    given_up = 0
    big, above = 10**26, dict[Key, Rung]()
    for turn in range(200):
        changes = []
        for n in range(40):
            name, parent_id = f"{'x' * 55}-{turn * 40 + n}", f"{turn}-{'ü' * 245}"
            image = bucket({name: 1}, 1, parent_id=parent_id, cascade=True)
            above[bucket_key("ns", parent_id, "r" * 64)] = Rung(frozenset({name}), None)
            span = Span(big + turn * 2, big + n * 2, big + n * 2 + 1)
            changes.append(Change(bucket_key("ns", "u" * 256, "r" * 64, n % 32), None, image, NOW, span, "1"))
        (sheet,) = sheets_of(changes, [UsageWindow.MONTHLY], None, above)
        entry = update_snapshot(sheet, row)
        assert entry is not None
        row = {**(row or {}), **entry.write.set}
        given_up += entry.closed
        assert len(str(row[SEEN])) <= SEEN_BYTES_MAX
    assert given_up > 0
    assert row is not None
    assert sum(name.startswith("xx") for name in row) == COUNTERS_MAX
    # A number has at most 21 bytes there, and here as many as it has digits.
    assert len(repr(row)) < ROW_BYTES_MAX


@pytest.mark.parametrize("planted", [{"x": "y" * ROW_BYTES_MAX}, {f"a{n}": n for n in range(3000)}])
def test_a_row_that_is_larger_than_ours_is_not_written(planted: dict[str, Any]) -> None:
    """Each write to it would cost what it holds, until it holds too much."""
    with pytest.raises(ValueError, match="bytes"):
        row_of(history([Step(5, NOW)]), {SEEN: "", "window": "monthly", **planted})


def test_what_was_planted_among_the_fractions_is_dropped() -> None:
    """Only fractions of its counters are a row's own."""
    planted = {"tpm": 500, "rpm": 500, "x": b"y", "deep": {"a": [1]}, "y": 10**30}
    row = row_of(history([Step(5, NOW)]), {"window": "monthly", "tpm": 1, "_rest": planted})
    assert (row["tpm"], row["_rest"]) == (6, {"tpm": 500})


def test_a_row_has_a_limit_on_what_it_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first names stay and go on counting; batches that are cut otherwise end in the same row."""
    monkeypatch.setattr(usage, "COUNTERS_MAX", 3)
    images = [
        bucket(consumed, version)
        for version, consumed in enumerate(
            [{"a": 1, "b": 2}, {"a": 2, "b": 4, "c": 4}, {"a": 3, "c": 9, "d": 8}, {"c": 10, "d": 9}], 1
        )
    ]
    changes = [
        Change(KEY, old, new, NOW, Span(NOW, n, n + 1), str(n))
        for n, (old, new) in enumerate(zip([None, *images], images, strict=False))
    ]
    whole = row_of(changes)
    assert {name: whole.get(name) for name in "abcd"} == {"a": 3, "b": 4, "c": 10, "d": None}
    (sheet,) = sheets_of(changes, [UsageWindow.MONTHLY], None)
    entry = update_snapshot(sheet, None)
    assert entry is not None
    assert entry.left_out == 2
    for cut in range(1, len(changes)):
        assert row_of(changes[cut:], row_of(changes[:cut])) == whole


def test_a_row_without_versions_has_seen_nothing() -> None:
    """A row from elsewhere has counted nothing that is known."""
    assert read_seen(None) == {}


@pytest.mark.parametrize("text", ["0@17:0-5", "0@17:0-5,7-9;3@-1:0-123456789012345678901", ""])
def test_what_was_seen_reads_back(text: str) -> None:
    """The text is canonical, so that equal sets are equal rows."""
    assert write_seen(read_seen(text)) == text
