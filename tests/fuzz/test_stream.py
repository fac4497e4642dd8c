"""A stream with anything in it: the aggregator counts what it understands and never stands still.

All tenants share one stream, so whatever one of them writes, the others' usage is counted, nothing fails
that would fail again, and no write reaches a namespace in which nothing happened.
"""

from collections.abc import Iterator
from contextlib import suppress
from typing import Any
from unittest import mock

import pytest
from hypothesis import strategies as st

from tests.aggregator.images import NOW, Step, bucket, expired, history, record, records_of
from tests.aggregator.known_usage import unpack, usage_rows
from tests.aggregator.poison import Strict, full_of_gaps, many_limits, plant, size_of
from tests.dynamodb.tables import make_table
from tests.engines import dynamodb_local
from tests.fuzz.damage import unlikely, values
from tests.fuzz.figures import cases
from tests.fuzz.outcomes import outcome, patience
from tests.fuzz.values import anything
from tests.odd_stores import HotMemory
from zae_limiter import ValidationError
from zae_limiter.backends.change_log import log_of
from zae_limiter.backends.dynamodb import DynamoDBBackend, open_backend
from zae_limiter.backends.dynamodb.expressions import encode, encode_key
from zae_limiter.repository_protocol import Delete, Item, Key, Put
from zae_limiter.runtime.colour import run_sync
from zae_limiter.schema import bucket_key
from zae_limiter.testing import ManualClock, RecordingBackend
from zae_limiter_aggregator import AggregatorSettings, handler, process_stream_records
from zae_limiter_aggregator.runner import LogSource
from zae_limiter_aggregator.usage import ROW_BYTES_MAX, SEEN

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
                process_stream_records(
                    records, recorder, ManualClock(NOW).world, AggregatorSettings(), drawer
                )
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
            process_stream_records(
                [*odd, *good], store, ManualClock(NOW).world, AggregatorSettings(), Drawer()
            )
        )
    assert set(tally.failed) <= {""}
    assert {row["tpm"] for row in usage_of(store, "ns").values()} == {3}


@pytest.fixture
def function() -> Iterator[HotMemory]:
    """The Lambda function over a store in memory."""
    store = HotMemory(ManualClock(NOW).world)
    service = handler.FunctionState(store, ManualClock(NOW).world, AggregatorSettings(), None)
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
    st.sampled_from(
        [SEEN, "_rest", "_passed", "tpm", "total_events", "window", "#ttl", "ttl", "GSI2PK", "0", ""]
    ),
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
            tally = run_sync(
                process_stream_records(records, store, ManualClock(NOW).world, AggregatorSettings())
            )
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
    source = LogSource(store, log_of(store), world, AggregatorSettings())
    for key, item in odd:
        run_sync(store.write_each([Put(key, item)]))
    for change in history([Step(3, NOW), Step(4, NOW)]):
        run_sync(store.write_each([Put(change.key, change.new)]))
    with patience():
        tally = run_sync(source.step())
    assert tally.failed == {}
    assert {row["tpm"] for row in usage_of(store, "ns").values()} == {7}


sizes = st.one_of(st.integers(0, 420_000), st.sampled_from([0, 1, 65_536, 399_000, 409_000, 409_400]))


@st.composite
def large_items(draw: st.DrawFn) -> dict[str, Any]:
    """A record of any size and shape, as large as an item can be: few large attributes, or many small."""
    size, kind = (
        draw(sizes),
        draw(st.sampled_from(["text", "binary", "numbers", "names", "nested", "limits"])),
    )
    if kind == "text":
        return {draw(st.sampled_from(["x", SEEN, "_rest", "window", "tpm", "b_x_tk"])): "é" * (size // 2)}
    if kind == "binary":
        return {draw(st.sampled_from(["x", SEEN, "_rest", "total_events", "rf"])): b"x" * size}
    if kind == "numbers":
        return {f"{'a' * (n % 9)}{n}": 10**27 + n for n in range(size // 30)}
    if kind == "names":
        return {f"{n}{'y' * 2000}": 1 for n in range(size // 2_020)}
    if kind == "nested":
        inner: Any = {"tpm": 500, "b": b"x" * (size // 2), "l": [{"": 1}, b"\x00", "x" * (size // 3)]}
        return {draw(st.sampled_from(["_rest", "_passed", "x", SEEN])): inner}
    return many_limits(size // 120, draw(st.integers(-5, 10**24)), draw(st.integers(-(10**6), 10**6)))


@st.composite
def gaps(draw: st.DrawFn) -> dict[str, Any]:
    """A row that waits for many changes."""
    many = draw(st.sampled_from([1, 10, 999, 3_000, 4_000]))
    return {SEEN: full_of_gaps(many, max(many * 8, min(draw(sizes), 408_000)))}


@cases(
    "stream records",
    120,
    buckets=st.lists(st.one_of(large_items(), attributes()), max_size=3),
    rows=st.lists(st.one_of(large_items(), gaps(), rows), min_size=2, max_size=2),
    versions=st.lists(st.integers(0, 10**24), max_size=4),
)
def test_records_of_any_size_hold_nobody_up(
    buckets: list[dict[str, Any]], rows: list[dict[str, Any]], versions: list[int]
) -> None:
    """In a store that takes no more than DynamoDB: all others count at once, and nothing fails."""
    store = Strict(HotMemory(ManualClock(NOW).world))
    for key, row in zip(HOURS, rows, strict=True):
        store.inner._shelf.items[key] = row  # type: ignore[attr-defined]
    old: Item | None = None
    records = records_of(history([Step(3, NOW)]))
    for n, image in enumerate([*buckets, *(many_limits(2, version) for version in versions)]):
        made = {**bucket({"tpm": n}, n + 1), **image}
        with suppress(ValidationError):  # an item that no table can hold is in no stream either
            records.append(record(bucket_key("evil", "user-1", "gpt-4", n % 3), old, made, 1000 + n))
            old = made
    records += [record(one.key, one.old, one.new, 5000, NOW) for one in history([Step(4, NOW)], 1)]
    for _ in range(2):
        with patience():
            tally = run_sync(
                process_stream_records(records, store, ManualClock(NOW).world, AggregatorSettings())
            )
        assert tally.failed == {}
        assert [row["tpm"] for row in usage_of(store.inner, "ns").values()] == [7, 7]  # type: ignore[arg-type]
    for key, row in usage_of(store.inner, "evil").items():  # type: ignore[arg-type]
        assert key in HOURS or size_of(dict(row)) <= ROW_BYTES_MAX


HOURS = [Key("evil/ENTITY#user-1", f"#USAGE#gpt-4#2023-11-14{time}") for time in ("", "T22:00:00Z")]


@pytest.fixture(scope="module")
def deployed() -> Iterator[DynamoDBBackend]:
    """The function over a table of DynamoDB's own engine."""
    backend = open_backend(dynamodb_local.url(make_table(), timeout_ms=60_000), sync=True)
    service = handler.FunctionState(backend, ManualClock(NOW).world, AggregatorSettings(), None)
    with mock.patch.object(handler, "service", return_value=service):
        yield backend
    run_sync(backend.close())


@cases(
    "stream records",
    15,
    row=st.one_of(large_items(), gaps()),
    image=large_items(),
    turn=st.integers(0, 10**9),
)
def test_records_of_any_size_on_the_engine(
    deployed: DynamoDBBackend, row: dict[str, Any], image: dict[str, Any], turn: int
) -> None:
    """The same with DynamoDB itself saying what is too large; each time with entities of their own."""
    good, evil = bucket_key("ns", f"user-{turn}", "gpt-4"), bucket_key("evil", f"user-{turn}", "gpt-4")
    run_sync(deployed.write_each([Delete(Key(f"ns/ENTITY#user-{turn}", hour.sort)) for hour in HOURS]))
    for hour in HOURS:
        run_sync(plant(deployed, Key(f"evil/ENTITY#user-{turn}", hour.sort), row))
    records = [record(good, None, bucket({"tpm": 3}, 1), 1)]
    with suppress(ValidationError):
        records.append(record(evil, None, {**bucket({"tpm": 1}, 1), **image}, 2))
    records.append(record(good, bucket({"tpm": 3}, 1), bucket({"tpm": 7}, 2), 3))
    assert handler.handler({"Records": records})["batchItemFailures"] == []
    assert [one["tpm"] for one in usage_rows(deployed, "ns", [f"user-{turn}"]).values()] == [7, 7]


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
    tally = run_sync(process_stream_records(batch, store, world, AggregatorSettings(tend_buckets=False)))
    assert tally.failed == {}
    for row in usage_rows(store, "evil", ["u"]).values():
        assert size_of(dict(row)) < ROW_BYTES_MAX
