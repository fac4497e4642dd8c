"""What moves is told as it moves: over a real connection, to clients that stay, are slow, or leave."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn

from tests.patience import PATIENCE_SECONDS, wait_beside
from tests.server.looker import SECRETS, Asking, bearer, mismatches
from tests.stores import url_of
from zae_limiter import Limit, RateLimiter, RateLimitExceeded
from zae_limiter.records.buckets_now import SeenBucket, SeenLevel
from zae_limiter.records.reports import Refusal
from zae_limiter.server import ServerConfig, live, view_state
from zae_limiter.server import view_shapes as shapes
from zae_limiter.server.app import application
from zae_limiter.server.tokens import token_of
from zae_limiter.server.view_state import ViewState
from zae_limiter.telemetry import Telemetry, sharing

RPM = Limit.per_day("rpm", 100, calendar=True)


@asynccontextmanager
async def serving(store: str) -> AsyncIterator[tuple[Asking, uvicorn.Server]]:
    """A server on a socket, in this event loop."""
    tokens = tuple(token_of(f"who-{scope}s", [scope], secret) for scope, secret in SECRETS.items())
    app = application(ServerConfig(store=store, tokens=tokens, ui=True))
    listening = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", lifespan="on", ws="none"))
    task = asyncio.create_task(server.serve([listening]))
    base = f"http://127.0.0.1:{listening.getsockname()[1]}"
    await wait_beside(lambda: server.started)
    async with asyncio.timeout(PATIENCE_SECONDS):
        async with httpx.AsyncClient(base_url=base, timeout=None) as http:
            yield Asking(http, app.state.server), server
        app.state.server.stopping.set()
        server.should_exit = True
        await task


@asynccontextmanager
async def watching(found: Asking, **query: str) -> AsyncIterator[AsyncIterator[tuple[str, Any]]]:
    """The events of a stream, as they come."""
    asked = found.http.stream("GET", "/v1/view/live", params=query, headers=bearer(SECRETS["read"]))
    async with asked as answer:
        assert answer.status_code == 200, await answer.aread()
        assert answer.headers["content-type"].startswith("text/event-stream")
        yield events(answer.aiter_lines())


async def events(lines: AsyncIterator[str]) -> AsyncIterator[tuple[str, Any]]:
    name = ""
    async for line in lines:
        if line.startswith("event: "):
            name = line.removeprefix("event: ")
        elif line.startswith("data: "):
            yield name, json.loads(line.removeprefix("data: "))


async def until(stream: AsyncIterator[tuple[str, Any]], name: str, rows: str = "", left: int = -1) -> Any:
    """The data of the next event of a name; in which so much is left in the first bucket, if that is said."""
    async for event, data in stream:
        if event == name and (left < 0 or [available(one) for one in data[rows][:1]] == [left]):
            return data
    raise AssertionError(f"the stream ended before {name!r}")


def available(bucket: Any) -> Any:
    return bucket["levels"][0]["available"]


async def used(limiter: RateLimiter, entity_id: str, rpm: int) -> None:
    async with limiter.acquire(entity_id, "gpt-4", {"rpm": rpm}):
        pass


@pytest.fixture
def store(tmp_path: Path) -> str:
    return url_of("sqlite", tmp_path)


async def test_a_level_that_moves_is_told(store: str) -> None:
    """Moved by another connection; what is known is told at once, and each event has its shape."""
    async with serving(store) as (found, _), RateLimiter.open(store) as elsewhere:
        await elsewhere.set_system_defaults([RPM])
        await used(elsewhere, "key-1", 10)
        async with watching(found, entity="key-1") as stream, watching(found) as overall:
            first = await until(stream, "buckets")
            assert mismatches(first, shapes.BucketsShape) == []
            assert available(first["rows"][0]) == 90
            near = await until(overall, "near", "near", 90)
            assert [mismatches(one, shapes.NearShape) for one in near["near"]] == [[]]
            await used(elsewhere, "key-1", 25)
            assert available((await until(stream, "buckets"))["rows"][0]) == 65
            await until(overall, "near", "near", 65)


async def test_what_does_not_move_is_not_told_again() -> None:
    """A stream of what stands still is silent but for what is told first."""
    stream = live.LiveStream(live.Watched(None, None))
    stream.tell("near", {"near": [], "now_ms": 1}, [])
    assert stream.taken() == 'event: near\ndata: {"near": [], "now_ms": 1}\n\n'
    stream.tell("near", {"near": [], "now_ms": 2}, [])
    assert (stream.has_news.is_set(), stream.taken()) == (False, "")


def test_what_only_fills_does_not_move() -> None:
    """The page knows how fast it fills; what is used, or comes back as a whole, it has to be told."""

    def told(at_ms: int, left: int, limit: Limit, full_in_ms: int) -> object:
        per_second = limit.refill_amount / 60 if limit.accrual is None else 0.0
        seen = SeenLevel(limit, limit.capacity, left * 1000, per_second, full_in_ms, refuses=False)
        return live.still_of(shapes.bucket_shape(SeenBucket("key-1", "gpt-4", (seen,), at_ms, 1)))

    rate, quota = Limit.per_minute("rpm", 60), Limit.per_day("rpd", 60, calendar=True)
    assert told(0, 30, rate, 30_000) == told(10_000, 40, rate, 20_000)
    assert told(0, 30, rate, 30_000) != told(10_000, 39, rate, 21_000)
    assert told(0, 60, rate, 0) == told(90_000, 60, rate, 0) != told(90_000, 59, rate, 1000)
    assert told(0, 30, quota, 30_000) == told(10_000, 30, quota, 20_000) != told(10_000, 29, quota, 20_000)


async def test_a_client_that_does_not_read_is_kept_one_event_of_each_kind() -> None:
    """However much moves meanwhile; refusals are added up to a bound."""
    stream = live.LiveStream(live.Watched(None, None))
    for number in range(1000):
        stream.tell("near", {"near": [number], "now_ms": number}, number)
        stream.tell_refusals([refusal(number)])
    told = stream.taken()
    assert told.count("event: near") == told.count("event: refusals") == 1
    rows = json.loads(told.split("event: refusals\ndata: ")[1].splitlines()[0])["rows"]
    assert [row["at_ms"] for row in rows] == list(range(999, 999 - live.REFUSALS_WAITING_MAX, -1))


async def test_refusals_are_told_to_whom_they_concern(store: str) -> None:
    """Of this worker and of other processes that tell, each once."""
    async with serving(store) as (found, _), RateLimiter.open(store) as elsewhere:
        await elsewhere.set_system_defaults([RPM])
        with Telemetry(elsewhere, name="elsewhere") as told:
            told.share()
            async with watching(found, entity="key-1") as stream, watching(found, entity="key-2") as other:
                await until(stream, "buckets")
                await until(other, "buckets")
                with pytest.raises(RateLimitExceeded):
                    await used(elsewhere, "key-1", 101)
                data = await until(stream, "refusals")
                assert mismatches(data, shapes.RefusalsShape) == []
                (row,) = data["rows"]
                assert (row["entity"], row["limits"], row["process"]) == ("key-1", ["rpm"], "elsewhere")
                assert row["requested"] == {"rpm": 101}
                with pytest.raises(RateLimitExceeded):
                    await used(elsewhere, "key-2", 101)
                assert [one["entity"] for one in (await until(other, "refusals"))["rows"]] == ["key-2"]


async def test_refusals_are_asked_for_more_often_than_levels(
    store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else one that another process has just told would wait as long again as it took to tell it."""
    looks, asked = list[str](), list[str]()
    look, hear = live.look_at_entity, ViewState.refusals

    async def looking(*given: Any) -> Any:
        looks.append(given[1])
        return await look(*given)

    async def hearing(*given: Any) -> Any:
        asked.append("refusals")
        return await hear(*given)

    monkeypatch.setattr(live, "look_at_entity", looking)
    monkeypatch.setattr(ViewState, "refusals", hearing)
    monkeypatch.setattr(ViewState, "pause_seconds", lambda *_: 1e9)
    async with serving(store) as (found, _), watching(found, entity="key-1"):
        await wait_beside(lambda: len(asked) >= 4)
        assert looks == ["key-1"]
    assert view_state.HEAR_SECONDS + sharing.SOON_MS / 1000 <= 1.5


async def test_a_stream_ends_when_the_server_does(store: str) -> None:
    """And nobody waits for it; the store is closed after it."""
    async with serving(store) as (found, server), watching(found) as stream:
        await until(stream, "near")
        found.server.stopping.set()
        server.should_exit = True
        assert [event async for event, _ in stream if event not in ("near", "counters", "refusals")] == []


async def test_a_client_that_leaves_leaves_nothing_behind(
    store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its stream is forgotten, and when the last has left nothing is read any more."""
    pollers: list[live.LivePoller] = []
    add = live.LivePoller.add

    def noting(self: live.LivePoller, stream: live.LiveStream) -> None:
        pollers.append(self)
        add(self, stream)

    monkeypatch.setattr(live.LivePoller, "add", noting)
    async with serving(store) as (found, _):
        async with watching(found, entity="a") as one, watching(found) as other:
            await until(one, "buckets")
            await until(other, "near")
            assert len(pollers[0].streams) == 2
        await wait_beside(lambda: not pollers[0].streams and pollers[0].is_idle)


async def test_a_look_that_fails_does_not_end_all_others(
    store: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever was wrong with it: the streams are told what moves at the next one."""
    look, looks = live.look_at_entity, list[str]()

    async def failing(*asked: Any) -> Any:
        looks.append(asked[1])
        if len(looks) == 1:
            raise KeyError("a mistake of ours")
        return await look(*asked)

    monkeypatch.setattr(live, "look_at_entity", failing)
    async with serving(store) as (found, _), watching(found, entity="key-1") as stream:
        await until(stream, "buckets")
    assert "what moves could not be read" in caplog.text


async def test_there_are_so_many_streams_and_no_more(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever comes too late is told when to come again; who leaves makes room."""
    monkeypatch.setattr(live, "STREAMS_MAX", 1)
    async with serving(store) as (found, _):
        async with watching(found) as stream:
            await until(stream, "near")
            refused = await found.asked("live")
            assert (refused.status_code, refused.headers["retry-after"]) == (503, "10")
        async with asyncio.timeout(PATIENCE_SECONDS):
            while True:
                asked = found.http.stream("GET", "/v1/view/live", headers=bearer(SECRETS["read"]))
                async with asked as answer:
                    if answer.status_code == 200:
                        break
                await asyncio.sleep(0.01)


def refusal(at_ms: int) -> Any:
    return Refusal(at_ms, "key-1", "gpt-4", ("rpm",), {"rpm": 1}, None)
