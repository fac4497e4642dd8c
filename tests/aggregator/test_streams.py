"""Following a DynamoDB stream: generations of shards, notes, iterators that expire, records that are gone."""

import asyncio
import json
import threading
from collections import Counter
from typing import Any
from unittest import mock

import pytest
from botocore.exceptions import ClientError, EndpointConnectionError
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from tests.aggregator.images import NOW, Step, history, record, records_of
from tests.aggregator.known_usage import days_of_work, usage_rows
from tests.aggregator.test_archiver import Files, event, removal
from tests.dynamodb.tables import driver, make_table
from tests.engines import dynamodb_local
from zae_limiter.backends.dynamodb import open_backend
from zae_limiter.backends.memory import MemoryBackend
from zae_limiter.cli.app import program
from zae_limiter.exceptions import InfrastructureNotFoundError, RateLimiterUnavailable
from zae_limiter.repository_protocol import Key
from zae_limiter.runtime.colour import run_sync
from zae_limiter.schema import checkpoint_key
from zae_limiter.testing import Fault, FaultyBackend, ManualClock
from zae_limiter_aggregator import AggregatorSettings
from zae_limiter_aggregator.archiver import Archive
from zae_limiter_aggregator.runner import follow
from zae_limiter_aggregator.streams import CHECKPOINT_EVERY_RECORDS, REFRESH_MS, StreamSource, stream_of

SETTINGS = AggregatorSettings(tend_buckets=False)


class Client:
    """Some shards of a stream, each a list of records; a closed one ends. Errors can be put in the way."""

    def __init__(self, **shards: list[Any]) -> None:
        self.shards, self.parents = shards, dict[str, str]()
        self.closed: set[str] = set()
        self.page = 2
        self.errors: list[Exception] = []
        self.read: list[str] = []
        self.is_closed = False

    def close(self) -> None:
        self.is_closed = True

    def describe_stream(self, StreamArn: str, ExclusiveStartShardId: str | None = None) -> Any:
        """One shard a page, so that paging is used."""
        assert StreamArn == "arn"
        names = list(self.shards)
        at = 0 if ExclusiveStartShardId is None else names.index(ExclusiveStartShardId) + 1
        page = [{"ShardId": n, "ParentShardId": self.parents.get(n)} for n in names[at : at + 1]]
        more = {"LastEvaluatedShardId": names[at]} if at + 1 < len(names) else {}
        return {"StreamDescription": {"Shards": page, **more}}

    def get_shard_iterator(
        self, StreamArn: str, ShardId: str, ShardIteratorType: str, SequenceNumber: str = "-1"
    ) -> Any:
        assert (StreamArn, ShardIteratorType == "TRIM_HORIZON") == ("arn", SequenceNumber == "-1")
        behind = [
            n
            for n, r in enumerate(self.shards[ShardId])
            if int(r["dynamodb"]["SequenceNumber"]) > int(SequenceNumber)
        ]
        return {"ShardIterator": f"{ShardId}:{behind[0] if behind else len(self.shards[ShardId])}"}

    def get_records(self, ShardIterator: str, Limit: int) -> Any:
        if self.errors:
            raise self.errors.pop(0)
        name, _, at = ShardIterator.partition(":")
        self.read.append(name)
        records = self.shards[name][int(at) : int(at) + min(Limit, self.page)]
        end = int(at) + len(records)
        over = name in self.closed and end == len(self.shards[name])
        return {"Records": records, **({} if over else {"NextShardIterator": f"{name}:{end}"})}


def source(
    client: Client, backend: MemoryBackend, clock: ManualClock, archive: Archive | None = None
) -> StreamSource:
    return StreamSource(backend, client, "arn", clock.world, SETTINGS, archive)


def note(backend: MemoryBackend, shard: str) -> Any:
    return run_sync(backend.batch_get([checkpoint_key(shard)]))[0]


def refusal(code: str) -> ClientError:
    return ClientError({"Error": {"Code": code, "Message": "no"}}, "GetRecords")


def test_children_are_read_after_their_parents() -> None:
    """And a shard that is closed is never read again, also not by the next process."""
    records = records_of(history([Step(1, NOW)] * 6))
    client = Client(parent=records[:4], child=records[4:], other=[])
    client.parents = {"child": "parent", "other": "trimmed-long-ago"}
    client.closed = {"parent"}
    backend, clock = MemoryBackend(), ManualClock()
    reader = source(client, backend, clock)
    while run_sync(reader.step()).records:
        pass
    mine = [name for name in client.read if name != "other"]
    assert mine == sorted(mine, reverse=True), "the parent first"
    assert note(backend, "parent")["done"] is True
    client.read.clear()
    run_sync(source(client, backend, clock).step())
    assert "parent" not in client.read
    (row, _) = usage_rows(backend, "ns", ["user-1"]).values()
    assert (row["tpm"], row["total_events"]) == (6, 6)


def test_quiet_generations_are_no_end_of_the_stream() -> None:
    """Who counts what is there counts what the newest shard has, however many before it have nothing."""
    names = [f"shard-{n}" for n in range(6)]
    client = Client(**{name: [] for name in names})
    client.shards[names[-1]] = records_of(history([Step(1, NOW)]))
    client.parents = dict(zip(names[1:], names, strict=False))
    client.closed = set(names[:-1])
    reader = StreamSource(MemoryBackend(), client, "arn", ManualClock().world, SETTINGS)
    total = follow(reader, until_idle=True, stop=threading.Event(), tell=lambda *_: None)
    assert (total.changes, client.read[:6]) == (1, names)


def test_reading_goes_on_behind_the_note() -> None:
    """A record is not read twice when all went well."""
    client, backend, clock = (
        Client(one=records_of(history([Step(1, NOW)] * 6))),
        MemoryBackend(),
        ManualClock(),
    )
    run_sync(source(client, backend, clock).step())
    assert note(backend, "one")["position"] == client.shards["one"][1]["dynamodb"]["SequenceNumber"]
    tally = run_sync(source(client, backend, clock).step())
    assert (tally.records, tally.rows_written) == (2, 2)


def test_records_that_do_not_matter_are_not_worth_a_note() -> None:
    """For a note is a record itself, and would be followed by another note for ever."""
    noise = [
        {"dynamodb": {"Keys": {"PK": {"S": "ns/ENTITY#u"}, "SK": {"S": "#META"}}, "SequenceNumber": str(n)}}
        for n in range(4)
    ]
    for one in noise:
        one["dynamodb"]["ApproximateCreationDateTime"] = NOW / 1000  # type: ignore[assignment]
    client, backend, clock = Client(one=noise), MemoryBackend(), ManualClock()
    reader = source(client, backend, clock)
    assert run_sync(reader.step()).records == 2
    assert note(backend, "one") is None
    reader._shards["one"].unnoted = CHECKPOINT_EVERY_RECORDS
    run_sync(reader.step())
    assert note(backend, "one")["position"] == "3"
    again = source(client, backend, clock)
    client.shards["one"].append(noise[0] | {"dynamodb": noise[0]["dynamodb"] | {"SequenceNumber": "9"}})
    run_sync(again.step())
    run_sync(again.close())
    assert note(backend, "one")["position"] == "9", "whoever ends in peace takes a note"


def test_new_shards_are_found() -> None:
    """Every few seconds, and as soon as one is closed."""
    client, backend, clock = Client(one=[]), MemoryBackend(), ManualClock()
    reader = source(client, backend, clock)
    assert run_sync(reader.step()).records == 0
    client.shards["two"] = records_of(history([Step(1, NOW)]))
    assert run_sync(reader.step()).records == 0
    clock.advance(REFRESH_MS / 1000)
    assert run_sync(reader.step()).records == 1
    client.shards["three"] = records_of(history([Step(1, NOW)], born=NOW + 5))
    client.closed = {"two"}
    assert run_sync(reader.step()).records == 1


def test_an_iterator_may_expire() -> None:
    """A slow batch does not end the program."""
    client, backend, clock = (
        Client(one=records_of(history([Step(1, NOW)] * 4))),
        MemoryBackend(),
        ManualClock(),
    )
    reader = source(client, backend, clock)
    run_sync(reader.step())
    client.errors = [refusal("ExpiredIteratorException")]
    assert run_sync(reader.step()).records == 2
    assert run_sync(reader.step()).records == 0


def test_records_that_are_gone_are_told_of(caplog: pytest.LogCaptureFixture) -> None:
    """Reading goes on with the oldest there are."""
    client, backend, clock = (
        Client(one=records_of(history([Step(1, NOW)] * 4))),
        MemoryBackend(),
        ManualClock(),
    )
    reader = source(client, backend, clock)
    run_sync(reader.step())
    client.errors = [refusal("TrimmedDataAccessException")]
    assert run_sync(reader.step()).records == 2
    assert "stream records were lost" in caplog.text
    client.errors = [refusal("TrimmedDataAccessException")] * 2
    with pytest.raises(RateLimiterUnavailable, match="one"):
        run_sync(reader.step())


@pytest.mark.parametrize(
    "error", [refusal("AccessDeniedException"), EndpointConnectionError(endpoint_url="http://away")]
)
def test_a_stream_that_does_not_answer_is_unavailable(error: Exception) -> None:
    """As every store; nothing is lost."""
    client, backend, clock = Client(one=records_of(history([Step(1, NOW)]))), MemoryBackend(), ManualClock()
    reader = source(client, backend, clock)
    client.errors = [error]
    with pytest.raises(RateLimiterUnavailable):
        run_sync(reader.step())
    assert run_sync(reader.step()).records == 1


def test_what_fails_is_read_again() -> None:
    """The same records, until they succeed."""
    client, store, clock = Client(one=records_of(history([Step(1, NOW)]))), MemoryBackend(), ManualClock()
    # The list of shards and the notes are read first, then the rows, in vain.
    backend = FaultyBackend(store, [None, *[Fault.UNREACHABLE] * 2])
    reader = source(client, backend, clock)
    assert len(run_sync(reader.step()).failed) == 1
    tally = run_sync(reader.step())
    assert (tally.failed, tally.rows_written) == ({}, 2)


def test_an_event_is_archived_once_whatever_fails_behind_it() -> None:
    """Reading goes on with the record that failed, as a function's does, and a note says so."""
    (change,) = history([Step(1, NOW)])
    behind = int(change.sequence) + 1
    records = [removal(event(0), 1), *records_of([change]), removal(event(1), behind)]
    client, store, clock, archive = Client(one=records), MemoryBackend(), ManualClock(), Files()
    client.page = 3
    backend = FaultyBackend(store, [None, *[Fault.UNREACHABLE] * 2, None, *[Fault.UNREACHABLE] * 2])
    reader = source(client, backend, clock, archive)
    assert [list(run_sync(reader.step()).failed) for _ in range(2)] == [[change.sequence]] * 2
    assert archive.events == [event(0)]
    assert note(store, "one")["position"] == "1"
    assert run_sync(reader.step()).failed == {}
    assert archive.events == [event(0), event(1)]
    assert run_sync(reader.step()).records == 0
    assert note(store, "one")["position"] == str(behind)


def test_events_that_no_file_takes_are_read_again() -> None:
    """None is lost, and none is in two files."""
    client = Client(one=[removal(event(n), n + 1) for n in range(4)])
    archive, clock = Files(), ManualClock()
    reader = source(client, MemoryBackend(), clock, archive)
    for archive.broken in (True, False, True, False, False):
        run_sync(reader.step())
    assert archive.events == [event(n) for n in range(4)]


@given(st.lists(st.sampled_from("ce"), min_size=1, max_size=12), st.lists(st.booleans(), max_size=20))
def test_any_failures_leave_every_event_in_one_file(kinds: list[str], faults: list[bool]) -> None:
    """Changes and events in any order, on a store that is away now and then."""
    changes = iter(history([Step(1, NOW)] * kinds.count("c")))
    records = [
        removal(event(n), n + 1)
        if kind == "e"
        else record((one := next(changes)).key, one.old, one.new, n + 1, NOW)
        for n, kind in enumerate(kinds)
    ]
    client, store, clock, archive = Client(one=records), MemoryBackend(), ManualClock(), Files()
    client.page = 4
    backend = FaultyBackend(store, [None, *(Fault.UNREACHABLE if away else None for away in faults)])
    reader = source(client, backend, clock, archive)
    for _ in range(40):
        run_sync(reader.step())
    assert archive.events == [event(n) for n, kind in enumerate(kinds) if kind == "e"]
    for row in usage_rows(store, "ns", ["user-1"]).values():
        assert row["tpm"] == kinds.count("c")


def test_the_client_is_closed_in_the_end() -> None:
    """Also where the last note fails."""
    client, clock = Client(one=records_of(history([Step(1, NOW)]))), ManualClock()
    reader = source(client, MemoryBackend(), clock)
    run_sync(reader.step())
    assert not client.is_closed
    reader._shards["one"].noted = None
    with (
        mock.patch.object(MemoryBackend, "write_each", side_effect=RateLimiterUnavailable("away")),
        pytest.raises(RateLimiterUnavailable),
    ):
        run_sync(reader.close())
    assert client.is_closed


def test_what_is_not_understood_is_passed_over() -> None:
    """It would not be understood the next time either, and others wait behind it."""
    good = records_of(history([Step(1, NOW)]))
    bad = {"dynamodb": good[0]["dynamodb"] | {"Keys": {"PK": {"S": "ns/BUCKET#x"}, "SK": {"S": "#STATE"}}}}
    client, backend, clock = Client(one=[bad, *good]), MemoryBackend(), ManualClock()
    tally = run_sync(source(client, backend, clock).step())
    assert (tally.failed, tally.passed_over, tally.rows_written) == ({}, 1, 2)


def test_the_command_on_a_real_table() -> None:
    """``zae-limiter aggregate --once`` counts what happened so far, and a second run nothing."""
    table = make_table(with_stream=True)
    url = dynamodb_local.url(table, timeout_ms=20_000)
    client, _, namespace_id = asyncio.run(days_of_work(table, ["user-1", "user-2"], [0, 1], 3))
    for rows_written in (4, 0):
        result = CliRunner().invoke(program, ["aggregate", "--store", url, "--once", "--output", "json"])
        assert result.exit_code == 0, result.output
        assert json.loads(result.stdout)["rows_written"] == rows_written
    backend = open_backend(url, sync=True)
    used: Counter[str] = Counter()
    for row in usage_rows(backend, namespace_id, ["user-1", "user-2"]).values():
        if row["window"] == "daily":
            used.update({"rpm": row.get("rpm", 0), "tpm": row.get("tpm", 0)})  # type: ignore[dict-item]
    run_sync(backend.close())
    booked = {
        name: sum(n for (_, limit, key), n in client.books.items() if limit == name and key == "2031-01")
        for name in ("rpm", "tpm")
    }
    assert used == booked


def test_a_table_without_a_stream_is_named() -> None:
    """With the way out."""
    table = make_table()
    assert driver().describe_table(TableName=table)["Table"].get("LatestStreamArn") is None
    with pytest.raises(InfrastructureNotFoundError, match="has no stream"):
        stream_of(dynamodb_local.url(table))


def test_notes_are_in_the_registry() -> None:
    """Where no tenant can read or write them."""
    assert checkpoint_key("shardId-1") == Key("_/SYSTEM#", "#CHECKPOINT#shardId-1")
