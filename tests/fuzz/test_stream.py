"""A stream with anything in it: the aggregator counts what it understands and never stands still.

All tenants share one stream, so whatever one of them writes, the others' usage is counted, nothing fails
that would fail again, and no write reaches a namespace in which nothing happened.
"""

from collections.abc import Iterator
from typing import Any
from unittest import mock

import pytest
from hypothesis import strategies as st

from tests.aggregator.images import NOW, Step, expired, history, record, records_of
from tests.aggregator.stage import usage_rows
from tests.fuzz.damage import unlikely, values
from tests.fuzz.figures import cases
from tests.fuzz.stage import outcome, patience
from tests.fuzz.values import anything
from tests.hot.stage import HotMemory
from zae_limiter import ValidationError
from zae_limiter._colour import run_sync
from zae_limiter.backends.dynamodb.expressions import encode, encode_key
from zae_limiter.following import log_of
from zae_limiter.repository_protocol import Item, Key, Put
from zae_limiter.schema import bucket_key
from zae_limiter.testing import ManualClock, RecordingBackend
from zae_limiter_aggregator import Settings, handler, process_stream_records
from zae_limiter_aggregator.archiver import unpack
from zae_limiter_aggregator.sources import LogSource
from zae_limiter_aggregator.usage import SEEN

LIMITS = ("rpm", "tpm", "wcu", "a_tk", "x#y", "ttl", "")
BUCKETS = [bucket_key("evil", "user-1", "gpt-4"), bucket_key("evil", "user-1", "gpt-4", 31)]
ODD_KEYS = [
    *(
        Key(f"evil/BUCKET#{rest}", "#STATE")
        for rest in ("a#b", "a#b#0#0", "a#b#-1", "##0", "a/b#r#0", "u#r#99999999")
    ),
    *(
        Key("evil/x/BUCKET#u#r#0", "#STATE"),
        Key("/BUCKET#u#r#0", "#STATE"),
        Key("evil/BUCKET#u#r#0", "#AUDIT#1"),
    ),
    *(
        Key("evil/AUDIT#u", "#AUDIT#01"),
        Key("evil/ENTITY#u", "#META"),
        Key("BUCKET#u#r#0", "#STATE"),
        Key("", ""),
    ),
]


def attributes() -> st.SearchStrategy[dict[str, Any]]:
    """The attributes of something like a bucket."""
    names = [f"b_{name}_{part}" for name in LIMITS for part in ("tk", "cp", "ra", "rp", "tc")]
    beside = ["rf", "cv", "born", "shard_count", "b_rpm_sc", "moved", "entity_id", "ttl"]
    whole = {f"b_{name}_{part}": 1000 for name in ("rpm", "wcu") for part in ("tk", "cp", "ra", "rp", "tc")}
    odd = st.dictionaries(st.sampled_from([*names, *beside]), values, max_size=8)
    return odd.map(lambda found: {**whole, "rf": NOW, "born": NOW, "cv": 1, "shard_count": 1, **found})


raw_values = st.one_of(
    values.map(encode),
    st.sampled_from(
        [
            {"N": "NaN"},
            {"N": "1E+125"},
            {"N": "1E999999999"},
            {"N": "Infinity"},
            {"N": "x"},
            {"B": "AA=="},
            {"B": b"\xff"},
            {"SS": ["a"]},
            {},
        ]
    ),
    st.sampled_from([{"M": {"": {"S": "x"}}}, {"L": [{}]}, {"X": 1}, {"S": "a", "N": "1"}, None, 5, "x"]),
)
images = st.one_of(
    attributes().map(lambda item: {name: encode(value) for name, value in item.items()}),
    st.dictionaries(st.sampled_from(["rf", "b_rpm_tk", "b_rpm_tc", "event_id", ""]), raw_values, max_size=4),
    raw_values,
)
times = st.one_of(
    st.floats(), st.integers(), st.sampled_from([NOW / 1000, 0, -1, 1e300, 253402300800, None, "now", True])
)
sequences = st.one_of(
    st.integers(1, 10**40).map(str), st.sampled_from(["", "x", None, -1, 5, "٣", "9" * 5000, [1]])
)


@st.composite
def odd_records(draw: st.DrawFn) -> Any:
    """Something like a record of a stream, as a tenant that writes what it likes may cause it."""
    key = draw(st.sampled_from([*BUCKETS, *ODD_KEYS]))
    content: dict[str, Any] = {
        "Keys": encode_key(key),
        "SequenceNumber": draw(st.integers(1, 10**21).map(str)),
        "ApproximateCreationDateTime": NOW / 1000,
    }
    for name in ("OldImage", "NewImage"):
        if draw(st.booleans()):
            content[name] = draw(images)
    made: dict[str, Any] = {
        "eventName": draw(st.sampled_from(["INSERT", "MODIFY", "REMOVE"])),
        "dynamodb": content,
    }
    return expired(made) if draw(st.booleans()) else made


@st.composite
def no_records(draw: st.DrawFn) -> Any:
    """Something that no stream brings."""
    made: Any = draw(odd_records())
    part = draw(
        st.sampled_from(
            ["all", "dynamodb", "Keys", "SequenceNumber", "ApproximateCreationDateTime", "userIdentity"]
        )
    )
    odd = draw({"SequenceNumber": sequences, "ApproximateCreationDateTime": times}.get(part, anything))
    if part == "all":
        return odd
    if part in made:
        return {**made, part: odd}
    return {**made, "dynamodb": {**made["dynamodb"], part: odd}}


def usage_of(store: HotMemory, namespace_id: str) -> dict[Key, Item]:
    return usage_rows(store, namespace_id, ["user-1"])


class Drawer:
    """An archive in memory."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}

    def put(self, name: str, content: bytes) -> None:
        self.files[name] = content


@cases("stream records", 200, odd=st.lists(odd_records(), max_size=4), at=st.integers(0, 4))
def test_odd_records_hold_nobody_up(odd: list[Any], at: int) -> None:
    """Nothing fails, so nothing is delivered again; the good records count, and only where they belong."""
    store, drawer = HotMemory(ManualClock(NOW).world), Drawer()
    recorder = RecordingBackend(store)
    good = records_of(history([Step(3, NOW), Step(4, NOW)]))
    records = [*odd[:at], *good, *odd[at:]]
    for _ in range(2):  # it is all delivered twice
        with patience():
            tally = run_sync(
                process_stream_records(records, recorder, ManualClock(NOW).world, Settings(), drawer)
            )
        assert tally.failed == {}
    assert {row["tpm"] for row in usage_of(store, "ns").values()} == {7}
    written = {
        write.key.partition
        for verb, given in recorder.calls
        for write in given
        if verb.endswith("write_each")
    }
    assert {partition.partition("/")[0] for partition in written} <= {"ns", "evil"}
    for content in drawer.files.values():
        unpack(content)


@cases("stream records", 200, odd=st.lists(no_records(), min_size=1, max_size=3))
def test_what_is_no_record_fails_as_a_whole(odd: list[Any]) -> None:
    """The others still count. A record without a number is reported without one, which fails the batch."""
    store = HotMemory(ManualClock(NOW).world)
    good = records_of(history([Step(3, NOW)]))
    with patience():
        tally = run_sync(
            process_stream_records([*odd, *good], store, ManualClock(NOW).world, Settings(), Drawer())
        )
    assert set(tally.failed) <= {""}
    assert {row["tpm"] for row in usage_of(store, "ns").values()} == {3}


@pytest.fixture
def function() -> Iterator[HotMemory]:
    """The Lambda function over a store in memory."""
    store = HotMemory(ManualClock(NOW).world)
    service = handler.Service(store, ManualClock(NOW).world, Settings(), None)
    with mock.patch.object(handler, "service", return_value=service):
        yield store


@cases(
    "stream records",
    200,
    event=st.one_of(
        anything, st.fixed_dictionaries({"Records": st.one_of(anything, st.lists(no_records(), max_size=3))})
    ),
    context=anything,
)
def test_the_function_takes_anything(function: HotMemory, event: Any, context: Any) -> None:
    """It answers with failures by number, or says what an event is."""
    answer = outcome(lambda: handler.handler(event, context))
    if isinstance(answer, ValidationError):
        assert "invalid event" in str(answer)
    else:
        assert {one["itemIdentifier"] for one in answer["batchItemFailures"]} <= {""}
    assert function.snapshot().keys() <= {
        key for key in function.snapshot() if key.partition.startswith("evil/")
    }


rows = st.dictionaries(
    st.sampled_from([SEEN, "_rest", "tpm", "total_events", "window", "#ttl", "ttl", "GSI2PK", "0", ""]),
    unlikely,
    max_size=5,
)


@cases("stream records", 200, row=rows, tenant=st.sampled_from(["ns", "evil"]))
def test_odd_rows_cost_their_own_usage_only(row: dict[str, Any], tenant: str) -> None:
    """Whatever an hour's row holds, the day's is right, the other tenant's too, and nothing fails."""
    store = HotMemory(ManualClock(NOW).world)
    changes = history([Step(3, NOW)])
    theirs = [change._replace(key=bucket_key("evil", "user-1", "gpt-4"), sequence="99") for change in changes]
    hour = Key(f"{tenant}/ENTITY#user-1", "#USAGE#gpt-4#2023-11-14T22:00:00Z")
    store._shelf.items[hour] = row
    for _ in range(2):
        with patience():
            records = [*records_of(changes), *records_of(theirs)]
            tally = run_sync(process_stream_records(records, store, ManualClock(NOW).world, Settings()))
        assert tally.failed == {}
    other = "evil" if tenant == "ns" else "ns"
    assert [one["tpm"] for one in usage_of(store, other).values()] == [3, 3]
    days = {key.sort.rpartition("#")[2]: one for key, one in usage_of(store, tenant).items()}
    assert days["2023-11-14"]["tpm"] == 3


@cases(
    "stream records",
    150,
    odd=st.lists(st.tuples(st.sampled_from([*BUCKETS, *ODD_KEYS]), attributes()), max_size=3),
)
def test_the_log_of_an_embedded_store_with_anything_in_it(odd: list[Any]) -> None:
    """There it is the same."""
    world = ManualClock(NOW).world
    store = HotMemory(world)
    source = LogSource(store, log_of(store, world), world, Settings())
    run_sync(source.start())
    for key, item in odd:
        run_sync(store.write_each([Put(key, item)]))
    for change in history([Step(3, NOW), Step(4, NOW)]):
        run_sync(store.write_each([Put(change.key, change.new)]))
    with patience():
        tally = run_sync(source.step())
    assert tally.failed == {}
    assert {row["tpm"] for row in usage_of(store, "ns").values()} == {7}


def test_a_row_never_outgrows_an_item() -> None:
    """A tenant that renames its limits and skips versions fills its row, but only so far."""
    store, world = HotMemory(ManualClock(NOW).world), ManualClock(NOW).world
    old: Item | None = None
    batch = []
    for step in range(3_000):
        new = {"born": NOW + step % 64, "b_wcu_tc": 1000 * (step * 3 + 2), "b_wcu_tk": 0}
        for part in ("tk", "cp", "ra", "rp", "tc"):
            new[f"b_limit-{step}-{'x' * 40}_{part}"] = 1000
        batch.append(record(bucket_key("evil", "u", "r", step % 32), old, new, step + 1))
        old = new
    tally = run_sync(process_stream_records(batch, store, world, Settings(tend_buckets=False)))
    assert tally.failed == {}
    for row in usage_rows(store, "evil", ["u"]).values():
        assert len(repr(row)) < 300_000
