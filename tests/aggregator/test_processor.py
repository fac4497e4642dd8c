"""One batch: what is written, tried again, given back or passed over."""

from collections.abc import Sequence
from typing import Any

import pytest

from tests.aggregator.images import NOW, Step, bucket, expired, history, record, records_of
from tests.aggregator.known_usage import usage_rows
from zae_limiter.backends.memory import MemoryBackend
from zae_limiter.models import BackendCapabilities, UsageWindow
from zae_limiter.repository_protocol import Item, Key, Outcome, Put, Update, Write
from zae_limiter.runtime.colour import run_sync
from zae_limiter.runtime.world import World
from zae_limiter.schema import audit_key, bucket_key
from zae_limiter.testing import ManualClock
from zae_limiter.testing.stores import Fault, FaultyBackend, RecordingBackend, Wrapper
from zae_limiter_aggregator import AggregatorSettings, Change, Tally, process_changes, process_stream_records
from zae_limiter_aggregator.buckets import REFILL_AFTER_MS
from zae_limiter_aggregator.changes import Span, numbered
from zae_limiter_aggregator.processor import ATTEMPTS_MAX
from zae_limiter_aggregator.usage import SEEN, sheets_of, update_snapshot

USAGE = Key("ns/ENTITY#user-1", "#USAGE#gpt-4#2023-11-14T22:00:00Z")
DAY = Key("ns/ENTITY#user-1", "#USAGE#gpt-4#2023-11-14")
HOURLY = AggregatorSettings((UsageWindow.HOURLY,), tend_buckets=False)


def test_a_store_that_does_not_answer_fails_the_records_of_its_rows() -> None:
    """They are delivered again, and then count once, also if the lost write had arrived."""
    store = MemoryBackend()
    records = records_of(history([Step(3, NOW), Step(4, NOW)]))
    settings = AggregatorSettings((UsageWindow.HOURLY,), tend_buckets=False)
    for fault in (Fault.LOST_REPLY, Fault.LOST_REQUEST, Fault.UNREACHABLE):
        faulty = FaultyBackend(store)
        faulty.always = fault
        tally = run_sync(process_stream_records(records, faulty, World(), settings))
        assert set(tally.failed) == {r["dynamodb"]["SequenceNumber"] for r in records}
    # One lost reply is put right within the batch: the row itself tells that it was written.
    shaky = FaultyBackend(store, [None, Fault.LOST_REPLY])
    tally = run_sync(process_stream_records(records, shaky, World(), settings))
    assert tally.failed == {}
    (row,) = usage_rows(store, "ns", ["user-1"]).values()
    assert (row["tpm"], row["total_events"]) == (7, 2)


@pytest.mark.parametrize("damage", ["nonsense", 5, ["0@1:0-1"], {"a": 1}], ids=repr)
def test_a_damaged_row_costs_its_own_usage_only(damage: Any, caplog: pytest.LogCaptureFixture) -> None:
    """Nothing is written over what is not understood, and nobody waits for it."""
    store = MemoryBackend()
    run_sync(store.write_each([Update(USAGE, set={SEEN: damage, "window": "hourly"})]))
    settings = AggregatorSettings((UsageWindow.HOURLY, UsageWindow.DAILY), tend_buckets=False)
    records = records_of(history([Step(3, NOW)]))
    tally = run_sync(process_stream_records(records, store, World(), settings))
    assert (tally.failed, tally.passed_over, tally.rows_written) == ({}, 1, 1)
    (passed,) = [record for record in caplog.records if record.message == "passed over"]
    assert passed.sequences == [records[0]["dynamodb"]["SequenceNumber"]]  # type: ignore[attr-defined]
    assert "damaged" in passed.reason  # type: ignore[attr-defined]


def test_somebody_else_may_write_the_same_row() -> None:
    """A refusal brings the row, and the batch is merged into it."""
    store = MemoryBackend()
    first, second = history([Step(3, NOW), Step(4, NOW)])
    settings = AggregatorSettings((UsageWindow.HOURLY,), tend_buckets=False)

    class Late(FaultyBackend):
        async def batch_get(self, keys: Any) -> Any:
            rows = await super().batch_get(keys)
            await process_stream_records(records_of([first]), store, World(), settings)
            return rows

    tally = run_sync(process_stream_records(records_of([second]), Late(store), World(), settings))
    assert tally.failed == {}
    (row,) = usage_rows(store, "ns", ["user-1"]).values()
    assert (row["tpm"], row["total_events"]) == (7, 2)


def test_tallies_add_up() -> None:
    """Count by count, and with the failures of both."""
    total = Tally(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, {"1": "a"})
    total.add(Tally(10, 20, 30, 40, 50, 60, 70, 80, 90, 100, 110, {"2": "b"}))
    assert total == Tally(11, 22, 33, 44, 55, 66, 77, 88, 99, 110, 121, {"1": "a", "2": "b"})


def test_every_record_of_a_batch_is_accounted_for() -> None:
    """Changes, records of other items and what is unreadable, each on its own."""
    good = records_of(history([Step(3, NOW)]))
    bad = record(Key("ns/BUCKET#only-two#parts", "#STATE"), None, bucket({}, 1), 77)
    other = record(Key("ns/ENTITY#u", "#META"), None, {"entity_id": "u"}, 78)
    tally = run_sync(process_stream_records([*good, bad, other], MemoryBackend(), World(), HOURLY))
    assert tally == Tally(records=3, changes=1, rows_written=1, passed_over=1)


@pytest.mark.parametrize("sequence", [None, "", "first", "9" * 61])
def test_a_record_without_a_name_fails_the_batch_as_a_whole(sequence: str | None) -> None:
    """It cannot be asked for again by itself; it does not count, and no event is archived before it does."""
    (one,) = records_of(history([Step(3, NOW)]))
    one["dynamodb"]["SequenceNumber"] = sequence
    if sequence is None:
        del one["dynamodb"]["SequenceNumber"]
    audit = audit_key("ns", "user-1", "01ABC")
    gone = expired(record(audit, {"event_id": "01ABC"}, None, 0))
    store = MemoryBackend()
    tally = run_sync(process_stream_records([one, gone], store, World(), HOURLY, Unused()))
    assert list(tally.failed) == [""]
    assert (tally.records, tally.changes, tally.passed_over, tally.archived) == (2, 0, 0, 0)
    assert store.snapshot() == {}


class Unused:
    """An archive that gets nothing."""

    def put(self, name: str, content: bytes) -> None:
        raise AssertionError(name, content)


def counted(backend: Any, settings: AggregatorSettings = HOURLY) -> tuple[Tally, list[str]]:
    """One change counted in a store, and which calls that took."""
    recorded = RecordingBackend(backend)
    tally = run_sync(process_changes(history([Step(3, NOW)]), recorded, World(), settings))
    return tally, [verb for verb, _ in recorded.calls]


def test_usage_costs_one_read_and_one_write() -> None:
    """And nothing but the read if all of it was counted before."""
    store = MemoryBackend()
    settings = AggregatorSettings((UsageWindow.HOURLY, UsageWindow.DAILY), tend_buckets=False)
    tally, calls = counted(store, settings)
    assert (tally, calls) == (Tally(1, 1, rows_written=2), ["batch_get", "write_each"])
    assert sorted(store.snapshot()) == [DAY, USAGE]
    assert counted(store, settings) == (Tally(1, 1), ["batch_get"])


def test_a_lost_reply_costs_one_more_read() -> None:
    """The row itself tells that it was written."""
    tally, calls = counted(FaultyBackend(MemoryBackend(), [None, Fault.LOST_REPLY]))
    assert (tally, calls) == (Tally(1, 1), ["batch_get", "write_each", "batch_get"])


@pytest.mark.parametrize(
    ("faults", "calls"),
    [
        ([Fault.UNREACHABLE], ["batch_get", "batch_get", "write_each"]),
        ([None, Fault.UNREACHABLE], ["batch_get", "write_each"] * 2),
    ],
)
def test_one_failure_is_no_reason_to_give_a_batch_back(faults: list[Fault | None], calls: list[str]) -> None:
    """The second attempt writes the row."""
    backend = FaultyBackend(MemoryBackend(), faults)
    assert counted(backend) == (Tally(1, 1, rows_written=1), calls)


@pytest.mark.parametrize(
    ("faults", "calls"),
    [
        ([Fault.UNREACHABLE] * 2, ["batch_get"] * 2),
        ([None, Fault.UNREACHABLE] * 2, ["batch_get", "write_each"] * 2),
        ([None, Fault.UNREACHABLE, Fault.UNREACHABLE], ["batch_get", "write_each", "batch_get"]),
    ],
)
def test_a_store_that_fails_twice_is_not_asked_again(faults: list[Fault | None], calls: list[str]) -> None:
    """The batch is given back, though a third attempt would have succeeded."""
    (change,) = history([Step(3, NOW)])
    tally, made = counted(FaultyBackend(MemoryBackend(), faults))
    assert made == calls
    reason = f"usage row {USAGE.sort!r} was not written: simulated fault: unreachable"
    assert tally == Tally(1, 1, failed={change.sequence: reason})


class Partial(Wrapper):
    """A store in which the writes of one row never arrive."""

    async def write_each(self, writes: Sequence[Write]) -> list[Outcome]:
        return [
            Outcome(False, None, failure=Fault.UNREACHABLE.failure())
            if write.key == DAY
            else (await super(Partial, self).write_each([write]))[0]
            for write in writes
        ]


def test_a_row_that_cannot_be_written_does_not_hold_up_the_others() -> None:
    """They are written once; it is tried twice."""
    settings = AggregatorSettings((UsageWindow.HOURLY, UsageWindow.DAILY), tend_buckets=False)
    store = MemoryBackend()
    tally, calls = counted(Partial(store), settings)
    assert (tally.rows_written, len(tally.failed)) == (1, 1)
    assert calls == ["batch_get", "write_each"] * 2
    assert list(store.snapshot()) == [USAGE]


class Contended(Wrapper):
    """A store in which somebody else writes the row before the first writes of it arrive."""

    def __init__(self, inner: Any, times: int) -> None:
        super().__init__(inner)
        self.others = history([Step(1, NOW)] * times, shard_id=1)

    async def write_each(self, writes: Sequence[Write]) -> list[Outcome]:
        if self.others:
            (sheet,) = sheets_of([self.others.pop(0)], [UsageWindow.HOURLY], None)
            (row,) = await self.inner.batch_get([USAGE])
            theirs = update_snapshot(sheet, row)
            assert theirs is not None
            await self.inner.write_each([theirs.write])
        return await super().write_each(writes)


def test_a_row_that_others_write_is_tried_some_times() -> None:
    """A refusal brings the row, so each attempt is one write; being refused is no failure of the store."""
    store = MemoryBackend()
    tally, calls = counted(Contended(store, ATTEMPTS_MAX - 1))
    assert (tally, calls) == (Tally(1, 1, rows_written=1), ["batch_get"] + ["write_each"] * ATTEMPTS_MAX)
    assert store.snapshot()[USAGE]["tpm"] == 3 + ATTEMPTS_MAX - 1
    tally, calls = counted(Contended(MemoryBackend(), ATTEMPTS_MAX))
    assert (tally.rows_written, calls) == (0, ["batch_get"] + ["write_each"] * ATTEMPTS_MAX)
    (reason,) = tally.failed.values()
    assert reason.endswith("somebody else kept writing the row")


def tended(
    *changes: Change, hot: bool = True, settings: AggregatorSettings | None = None, **shards: Item
) -> Tally:
    """What became of changes in a store that holds some shards, a minute later."""
    store = MemoryBackend()
    store.capabilities = BackendCapabilities("memory", hot_partitions=hot)
    puts = [Put(bucket_key("ns", "user-1", "gpt-4", n), shards[name]) for n, name in enumerate(shards)]
    run_sync(store.write_each(puts))
    world = ManualClock(NOW + REFILL_AFTER_MS).world
    return run_sync(
        process_changes(changes, store, world, settings or AggregatorSettings((UsageWindow.HOURLY,)))
    )


def test_a_bucket_that_looks_empty_is_refilled() -> None:
    """On every store, unless nobody wants that."""
    image = bucket({"tpm": 95}, 1)
    change = Change(bucket_key("ns", "user-1", "gpt-4"), None, image, NOW, Span(NOW, 0, 1), "1")
    done = Tally(1, 1, rows_written=1, refills_written=1)
    assert tended(change, a=image) == done
    assert tended(change, a=image, hot=False) == done
    assert tended(change, a=image, settings=HOURLY) == Tally(1, 1, rows_written=1)


def test_a_hot_bucket_is_split_where_partitions_can_be_hot() -> None:
    """There is no partition in a file; and a split is a refill too."""
    image = {**bucket({"tpm": 95}, 900), "b_wcu_tk": -(10**9)}
    change = Change(bucket_key("ns", "user-1", "gpt-4"), None, image, NOW, Span(NOW, 0, 1), "1")
    assert tended(change, a=image) == Tally(1, 1, rows_written=1, splits=1)
    assert tended(change, a=image, hot=False) == Tally(1, 1, rows_written=1, refills_written=1)


def test_shards_that_lag_are_split_too() -> None:
    """Which counts like any other split, and is a refill too."""
    one, two = bucket({"tpm": 95}, 1), bucket({"tpm": 95}, 1, shard_count=2)
    four = {**bucket({"tpm": 190}, 2, shard_count=4), "b_tpm_tk": 0}
    change = Change(bucket_key("ns", "user-1", "gpt-4"), one, four, NOW, numbered(5), "5")
    assert tended(change, a=four, b=two) == Tally(1, 1, rows_written=1, splits=1)
