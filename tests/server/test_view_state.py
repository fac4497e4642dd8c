"""Looking is bounded: in what is read, in how long it takes, and in how long it goes on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.patience import wait_beside
from tests.server.looker import Asking, asking
from tests.stores import url_of
from zae_limiter import Entity, Limit, RateLimitExceeded
from zae_limiter.records.items import entity_item
from zae_limiter.records.reports import ProcessReport, Refusal, write_report
from zae_limiter.repository_protocol import Put, Query
from zae_limiter.schema import bucket_entries, bucket_key, entity_key
from zae_limiter.server import view_state as module
from zae_limiter.server.view_state import ViewState
from zae_limiter.telemetry import Telemetry
from zae_limiter.telemetry.sharing import process_name
from zae_limiter.testing import Fault, FaultyBackend, RecordingBackend

RPM = Limit.per_day("rpm", 100, calendar=True)


@asynccontextmanager
async def with_buckets(folder: Path, count: int, **more: Any) -> AsyncIterator[Asking]:
    """A store in which so many have used something, each more than the one before, up to a bound."""
    async with asking(url_of("sqlite", folder), **more) as found:
        await found.limiter.set_resource_defaults("gpt-4", [RPM])
        for number in range(count):
            async with found.limiter.acquire(f"key-{number:05}", "gpt-4", {"rpm": number % 100 + 1}):
                pass
        yield found


def recorded(found: Asking) -> RecordingBackend:
    """What the server asks of its store from now on."""
    connection = found.limiter.repository._connection
    connection.backend = recording = RecordingBackend(connection.backend)
    return recording


def is_of_views(call: tuple[str, tuple[object, ...]]) -> bool:
    """Whether it is for those who look; a worker looks after leases and tells of itself besides."""
    return (
        call[0] in ("query", "batch_get") and "LEASES" not in repr(call[1]) and "REPORT" not in repr(call[1])
    )


def rows_of(recording: RecordingBackend) -> int:
    """How many buckets were read at most."""
    return sum(
        len(given) for verb, given in filter(is_of_views, recording.calls) if verb == "batch_get"
    ) + sum(
        given[0].rows_max
        for verb, given in recording.calls
        if verb == "query" and isinstance(given[0], Query)
    )


async def settled(view: ViewState) -> None:
    """Wait until nobody goes round any more."""
    await wait_beside(lambda: not view.is_going)


async def test_nothing_is_read_unless_somebody_looks(tmp_path: Path) -> None:
    """And after a look it goes on for a while and ends, having gone through all there is."""
    async with with_buckets(tmp_path, 30) as found:
        recording, view = recorded(found), ViewState(found.server)
        await asyncio.sleep(0)
        assert not any("BUCKET#" in repr(call) for call in recording.calls)
        near = await view.near()
        assert (near.sample.looked_at, near.sample.is_all) == (30, True)
        assert [one.entity_id for one in near.buckets][:3] == ["key-00029", "key-00028", "key-00027"]


async def test_a_look_is_good_for_so_many_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is more than that is left for the next look, which goes on from there."""
    monkeypatch.setattr(module, "READS_PER_LOOK_MAX", 40)
    monkeypatch.setattr(module, "ROWS_MAX", 10)
    monkeypatch.setattr(module, "FIRST_WAIT_SECONDS", 0.01)
    async with with_buckets(tmp_path, 100) as found:
        recording, view = recorded(found), ViewState(found.server)
        await view.near()
        await settled(view)
        gone_through = [given[0] for verb, given in recording.calls if verb == "query"]
        assert sum(query.rows_max for query in gone_through if "BUCKET#" in query.first) == 40
        sample = (await view.near()).sample
        assert (sample.looked_at >= 40, sample.is_all) == (True, False)
        await settled(view)
        await view.near()
        await settled(view)
        assert (await view.near()).sample.is_all


async def test_it_ends_some_time_after_the_last_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody reads for those who have left."""
    monkeypatch.setattr(module, "IDLE_SECONDS", 0.0)
    async with with_buckets(tmp_path, 3) as found:
        view = ViewState(found.server)
        await view.near()
        await settled(view)


async def test_however_many_look_it_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Within the time for which what is shown is fresh."""
    monkeypatch.setattr(module, "REFRESH_SECONDS", 1e9)
    monkeypatch.setattr(module, "READS_PER_LOOK_MAX", 50)
    async with with_buckets(tmp_path, 20) as found:
        view = ViewState(found.server)
        await view.near()
        await settled(view)
        monkeypatch.setattr(module, "READS_PER_LOOK_MAX", 0)
        recording = recorded(found)
        await asyncio.gather(*(view.near() for _ in range(50)))
        assert rows_of(recording) == 0


async def test_reads_are_bounded_in_a_second(tmp_path: Path) -> None:
    """Half for going round, half for what is shown; less of it makes both slower, and nothing else."""
    async with with_buckets(tmp_path, 1, reads_per_second=50) as found:
        view = ViewState(found.server)
        assert view.reads_per_second == 50
        assert view.pause_seconds(100) == 4
        assert view.pause_seconds(1) == module.REFRESH_SECONDS
    async with with_buckets(tmp_path, 1) as found:
        view = ViewState(found.server)
        assert view.reads_per_second == module.READS_PER_SECOND
        monkey = pytest.MonkeyPatch()
        with monkey.context() as patch:
            patch.setattr(module, "PAID", frozenset({"sqlite"}))
            assert view.reads_per_second == module.READS_PER_SECOND_PAID


async def test_whoever_was_refused_is_near_though_nobody_has_got_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a store that is too large to be gone through, refusals lead to those who matter."""
    monkeypatch.setattr(module, "READS_PER_LOOK_MAX", 5)
    monkeypatch.setattr(module, "ROWS_MAX", 5)
    monkeypatch.setattr(module, "FIRST_WAIT_SECONDS", 0.01)
    async with with_buckets(tmp_path, 60) as found:
        with Telemetry(found.limiter) as found.server.watch:
            with pytest.raises(RateLimitExceeded):
                async with found.limiter.acquire("key-00059", "gpt-4", {"rpm": 90}):
                    pass
            near = await ViewState(found.server).near()
        assert near.sample.looked_at <= 10
        assert near.buckets[0].entity_id == "key-00059"


async def test_a_process_is_known_by_more_than_its_name(tmp_path: Path) -> None:
    """Another one of the same name is heard, as in two containers; and what is ours is not told twice."""
    async with with_buckets(tmp_path, 2) as found:
        sharing = found.server.watch.sharing if found.server.watch is not None else None
        assert sharing is not None
        with pytest.raises(RateLimitExceeded):
            async with found.limiter.acquire("key-00001", "gpt-4", {"rpm": 99}):
                pass
        await sharing.tell()
        now_ms = found.server.leases.now_ms()
        theirs = Refusal(now_ms, "key-00000", "gpt-4", ("rpm",), {"rpm": 1}, None)
        report = ProcessReport(process_name(), "theirs", now_ms, now_ms, 0, 1, 0, 0, (theirs,))
        free = {0, 1} - {sharing._voice.get().place}
        assert await write_report(found.limiter.repository._scope, free.pop(), report, is_new=True)
        told = await ViewState(found.server).refusals()
        assert sorted((one.entity_id, one.count) for one in told) == [("key-00000", 1), ("key-00001", 1)]


async def test_a_store_that_does_not_answer_is_told_and_asked_again(tmp_path: Path) -> None:
    """Whoever looks gets 503; when it is back, so is the view."""
    async with with_buckets(tmp_path, 3) as found:
        connection = found.limiter.repository._connection
        whole = connection.backend
        connection.backend = faulty = FaultyBackend(whole)
        faulty.always = Fault.UNREACHABLE
        answer = await found.asked("overview")
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
        connection.backend = whole
        assert (await found.view("overview"))["is_all"]


async def ten_thousand(found: Asking) -> None:
    """So many entities, each with a bucket, written as records: that is faster than using them."""
    await found.limiter.set_resource_defaults("gpt-4", [RPM])
    async with found.limiter.acquire("first", "gpt-4", {"rpm": 1}):
        pass
    repository = found.limiter.repository
    (bucket,) = await repository._backend.batch_get([bucket_key(repository.namespace_id, "first", "gpt-4")])
    assert bucket is not None
    await found.limiter.delete_entity("first")
    writes = []
    for number in range(10_000):
        place = repository.namespace_id, f"key-{number:05}", "gpt-4", 0
        writes.append(Put(bucket_key(*place), {**bucket, **bucket_entries(*place)}))
        entity = Entity(f"key-{number:05}")
        writes.append(
            Put(
                entity_key(repository.namespace_id, entity.entity_id),
                entity_item(repository.namespace_id, entity),
            )
        )
    await repository._backend.write_each(writes)


async def test_ten_thousand_are_gone_through_in_pages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each page is as small as the first: so many calls as there are pages, and no call for more than one."""
    monkeypatch.setattr(module, "ROUND_SECONDS", 1e9)
    monkeypatch.setattr(module, "SHARE_MAX", 1.0)
    monkeypatch.setattr(module, "READS_PER_SECOND", 10**9)
    async with asking(url_of("sqlite", tmp_path)) as found:
        await ten_thousand(found)
        recording, view = recorded(found), ViewState(found.server)
        first = (await view.near()).sample
        assert first.looked_at > 0
        sample = first
        while not sample.is_all:
            await asyncio.sleep(0.1)
            sample = (await view.near()).sample
        calls = [call for call in recording.calls if is_of_views(call)]
        pages = [given[0] for verb, given in calls if verb == "query" and given[0].index == "GSI4"]
        assert len(pages) <= 10_000 / module.ROWS_MAX + 2
        assert {page.rows_max for page in pages} == {module.ROWS_MAX}
        assert (sample.buckets_known, sample.resources["gpt-4"].buckets) == (10_000, 10_000)
        reads = [len(given) for verb, given in calls if verb == "batch_get"]
        levels = 2 * (module.CANDIDATES_MAX + module.REFUSED_MAX) + 2
        assert max(reads) <= max(module.ROWS_MAX, levels)


async def test_ten_thousand_are_listed_in_pages(tmp_path: Path) -> None:
    """All of them, each once, with three calls a page: names, records, switches."""
    async with asking(url_of("sqlite", tmp_path)) as found:
        await ten_thousand(found)
        recording = recorded(found)
        met, cursor, pages = list[str](), None, 0
        while cursor is not None or not pages:
            page = await found.view("entities", size=200, **({} if cursor is None else {"cursor": cursor}))
            met += [row["entity"] for row in page["rows"]]
            cursor, pages = page["next"], pages + 1
        assert met == [f"key-{number:05}" for number in range(10_000)]
        assert pages <= 51
        calls = [call for call in recording.calls if is_of_views(call)]
        assert len(calls) <= 3 * pages
