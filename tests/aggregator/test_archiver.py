"""The audit archive: every expired event in exactly one file, and readable as it was."""

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.aggregator.images import NOW, Step, expired, history, record, records_of
from tests.aggregator.known_usage import batches, unpack
from zae_limiter.backends.memory import MemoryBackend
from zae_limiter.models import AuditAction, AuditEvent
from zae_limiter.records.items import audit_item
from zae_limiter.runtime.colour import run_sync
from zae_limiter.runtime.world import World
from zae_limiter.schema import audit_key
from zae_limiter.testing.stores import Fault, FaultyBackend
from zae_limiter_aggregator import AggregatorSettings, Tally, process_stream_records
from zae_limiter_aggregator.archiver import S3Archive, object_name


class Files:
    """An archive in memory that can be broken."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.broken = False

    def put(self, name: str, content: bytes) -> None:
        if self.broken:
            raise ConnectionError("no route to the archive")
        assert name not in self.files, "a file was written over"
        self.files[name] = content

    @property
    def events(self) -> list[AuditEvent]:
        return [event for content in self.files.values() for event in unpack(content)]


def event(number: int, **details: Any) -> AuditEvent:
    return AuditEvent(
        event_id=f"01EVENT{number:05}",
        timestamp="2023-11-14T22:13:20.000Z",
        action=AuditAction.LIMITS_SET,
        entity_id=f"user-{number % 3}",
        principal="admin@example.com",
        resource="gpt-4",
        details=details,
    )


def removal(one: AuditEvent, sequence: int) -> dict[str, Any]:
    """The record of an event that its ``ttl`` removed."""
    key = audit_key("ns", one.entity_id, one.event_id)
    return expired(record(key, audit_item("ns", one, NOW // 1000), None, sequence))


def run(records: list[Any], archive: Files, request_id: str, backend: Any = None) -> Tally:
    store = backend or MemoryBackend()
    return run_sync(
        process_stream_records(records, store, World(), AggregatorSettings(), archive, request_id)
    )


def test_every_expired_event_is_in_exactly_one_file() -> None:
    """One file for each batch that had some, in the folder of its day."""
    archive, events = Files(), [event(n, n=n, text="ä\u2028\n") for n in range(250)]
    records = [removal(one, n) for n, one in enumerate(events)]
    parts = list(batches(records, random.Random(1), 40))
    for n, part in enumerate(parts):
        assert run(part, archive, f"request-{n}").archived == len(part)
    assert run(records_of(history([Step(1, NOW)])), archive, "nothing-to-archive").archived == 0
    assert archive.events == events
    assert len(archive.files) == len(parts)
    assert next(iter(archive.files)) == (
        "audit/year=2023/month=11/day=14/audit-request-0-20231114T221320Z.jsonl.gz"
    )


def test_nothing_is_lost_when_the_put_fails() -> None:
    """The records are reported, come again, and are archived then."""
    archive, events = Files(), [event(n) for n in range(5)]
    records = [removal(one, n) for n, one in enumerate(events)]
    archive.broken = True
    tally = run(records, archive, "first")
    assert sorted(tally.failed) == ["0", "1", "2", "3", "4"]
    assert "no route" in tally.failed["0"]
    archive.broken = False
    assert run(records, archive, "second").failed == {}
    assert archive.events == events


def test_what_will_come_again_is_not_archived_yet() -> None:
    """A stream goes back to the first failure, so events behind it would otherwise be in two files."""
    archive, events = Files(), [event(0), event(1)]
    (change,) = history([Step(1, NOW)])
    before, after = removal(events[0], 1), removal(events[1], int(change.sequence) + 1)
    records = [before, *records_of([change]), after]
    faulty = FaultyBackend(MemoryBackend())
    faulty.always = Fault.UNREACHABLE
    tally = run(records, archive, "first", faulty)
    assert list(tally.failed) == [change.sequence]
    assert archive.events == events[:1]
    run(records[1:], archive, "second")
    assert archive.events == events


def test_the_first_failure_decides_what_comes_again() -> None:
    """An event between two failures comes again, and so does one in the place of the first."""
    archive, changes = Files(), history([Step(1, NOW)] * 3)
    first, second, third = (int(change.sequence) for change in changes)
    places = (first - 1, first, second)
    events = [removal(event(n), place) for n, place in enumerate(places)]
    faulty = FaultyBackend(MemoryBackend())
    faulty.always = Fault.UNREACHABLE
    tally = run([*events, *records_of([changes[0], changes[2]])], archive, "first", faulty)
    assert list(tally.failed) == [str(first), str(third)]
    assert (tally.archived, archive.events) == (1, [event(0)])


def test_a_record_that_comes_twice_in_a_batch_is_one_event() -> None:
    """Also if it is the whole batch that was doubled."""
    archive = Files()
    run([removal(event(1), 1)] * 2, archive, "twice")
    assert archive.events == [event(1)]


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**20), 10**20) | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(min_size=1, max_size=5), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(st.dictionaries(st.text(min_size=1, max_size=5), json_values, max_size=4))
def test_an_event_reads_back_equal(details: Any) -> None:
    """Whatever an application put into it."""
    archive = Files()
    run([removal(event(7, details=details), 1)], archive, "one")
    assert archive.events == [event(7, details=details)]


def test_the_client_is_made_when_it_is_needed() -> None:
    """A function that never archives anything needs no bucket."""

    class Client:
        def put_object(self, **given: Any) -> None:
            self.given = given

    client = Client()
    S3Archive("bucket", client).put("name", b"content")
    assert client.given == {
        "Bucket": "bucket",
        "Key": "name",
        "Body": b"content",
        "ContentType": "application/gzip",
    }
    assert S3Archive("bucket")._client is None


@pytest.mark.parametrize(
    ("at_ms", "folder"), [(0, "year=1970/month=01/day=01"), (NOW, "year=2023/month=11/day=14")]
)
def test_the_folder_is_the_day_of_the_removal(at_ms: int, folder: str) -> None:
    """In UTC."""
    assert object_name("r", at_ms).startswith(f"audit/{folder}/audit-r-")
