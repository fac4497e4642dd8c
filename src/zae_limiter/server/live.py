"""What moves, as server-sent events: one poller in each worker for everybody who watches.

``GET /v1/view/live`` is a stream that tells at once what is known, and from then on what has changed, levels
about once a second and refusals twice; with ``entity=`` of that entity's buckets, without it of those that
are nearest to empty. The poller reads for all streams together, so what it costs depends on what is watched
and not on how many watch.

A stream keeps nothing for a client that does not read: it has one place for each kind of event, and the newer
takes the place of the older, but for refusals, which are added up to a bound. There are at most
``STREAMS_MAX``. A stream ends when its client leaves, when the server stops, or after ``STREAM_SECONDS_MAX``:
the page asks again by itself.

==============  =====================================================
event           data, as ``view_shapes`` has it
==============  =====================================================
``refusals``    ``{rows: [RefusalShape]}``, those that are new
``near``        ``{near: [NearShape], now_ms}``, without ``entity=``
``buckets``     ``{rows: [BucketShape], now_ms}``, with ``entity=``
``counters``    ``{name: number}`` of this worker
==============  =====================================================
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import suppress
from typing import Any, Final, NamedTuple

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Message, Receive, Scope, Send

from ..exceptions import ZAELimiterError
from ..records.buckets_now import look_at_entity
from ..records.reports import Refusal
from ..runtime.logs import server_logger as logger
from .overview import refusal_shape
from .problems import problem
from .questions import ViewQuery
from .tokens import TokenScope
from .view_shapes import BucketShape, bucket_shape, near_shape
from .view_state import HEAR_SECONDS, REFRESH_SECONDS, ViewState

STREAMS_MAX = 100
STREAM_SECONDS_MAX = 3600.0
"""A token that was taken away is asked for again by then."""
HEARTBEAT_SECONDS = 15.0
SLOW_SECONDS = 30.0
"""How long a client may take to read what it was sent."""
REFUSALS_WAITING_MAX = 50
NO_UNITS: Mapping[str, Mapping[str, str]] = {}
TOLD_MAX = 500
"""How many refusals a stream remembers to have told."""


class Watched(NamedTuple):
    """What a stream is about: an entity, maybe on one resource; or who is nearest to empty."""

    entity_id: str | None
    resource: str | None


class LiveStream:
    """What one client has still to be told."""

    def __init__(self, watched: Watched) -> None:
        self.watched = watched
        self.has_news: Final = asyncio.Event()
        self._waiting: dict[str, Any] = {}
        self._last: dict[str, Any] = {}
        self._told: dict[tuple[object, ...], None] = {}

    def tell(self, event: str, data: Mapping[str, Any], compared: object) -> None:
        """Let the client know, unless it does."""
        if self._last.get(event) != compared:
            self._last[event], self._waiting[event] = compared, data
            self.has_news.set()

    def tell_refusals(
        self, found: Iterable[Refusal], units: Mapping[str, Mapping[str, str]] = NO_UNITS
    ) -> None:
        """Let it know of those that it has not heard of, or not so often; the newest first."""
        new = []
        for one in found:
            known = one.at_ms, one.entity_id, one.resource, one.limits, one.reason, one.count, one.process
            if known not in self._told:
                self._told[known] = None
                new.append(refusal_shape(one, units.get(one.resource, {})))
        for old in list(self._told)[:-TOLD_MAX]:
            del self._told[old]
        if new:
            rows = [*new, *self._waiting.get("refusals", {"rows": []})["rows"]]
            self._waiting["refusals"] = {"rows": rows[:REFUSALS_WAITING_MAX]}
            self.has_news.set()

    def taken(self) -> str:
        """What is to be told, as text; nothing waits after that."""
        self.has_news.clear()
        waiting, self._waiting = self._waiting, {}
        return "".join(f"event: {event}\ndata: {json.dumps(data)}\n\n" for event, data in waiting.items())


def still_of(row: BucketShape) -> object:
    """What of a bucket stays the same while nobody uses it: what only fills is full at the same instant.

    The page fills it by itself, so it need not be told.
    """
    levels = []
    for one in row["levels"]:
        is_filling = one["per_second"] > 0 and one["full_in_ms"]
        full_at = round((row["at_ms"] + (one["full_in_ms"] or 0)) / 100) if is_filling else None
        stands = one["available"] if full_at is None else full_at
        levels.append((one["limit"], one["capacity"], one["refuses"], one["binds"], stands))
    return row["entity"], row["resource"], row["switch"], levels


class LivePoller:
    """Reads for all streams of a worker, while there are any."""

    def __init__(self, view: ViewState) -> None:
        self._lookout = view
        self.streams: set[LiveStream] = set()
        self._task: asyncio.Task[None] | None = None
        self._somebody_new = asyncio.Event()

    @property
    def is_idle(self) -> bool:
        """Whether nobody watches, and nothing is read any more."""
        return self._task is None or self._task.done()

    def add(self, stream: LiveStream) -> None:
        self.streams.add(stream)
        self._somebody_new.set()
        if self.is_idle:
            self._task = self._lookout.server.beside(self._go_on())

    async def _go_on(self) -> None:
        due_s = float("-inf")
        while self.streams:
            streams = frozenset(self.streams)
            now_s = self._lookout.now_s()
            is_due = self._somebody_new.is_set() or now_s >= due_s
            self._somebody_new.clear()
            try:
                if is_due:
                    due_s = now_s + REFRESH_SECONDS
                    due_s = now_s + self._lookout.pause_seconds(await self._poll(streams))
                await self._tell_refusals(streams)
            except ZAELimiterError as error:  # it is asked again; the page shows when it heard last
                logger.info("what moves could not be read: %s", type(error).__name__)
            except Exception:  # a mistake of ours, and no reason to tell nobody anything any more
                logger.exception("what moves could not be read")
            with suppress(TimeoutError):
                async with asyncio.timeout(HEAR_SECONDS):
                    await self._somebody_new.wait()  # who is told at once

    async def _poll(self, streams: frozenset[LiveStream]) -> int:
        """Read once what all these streams are about; returns how many records that were."""
        view, records = self._lookout, 1
        by_watched: dict[Watched, list[LiveStream]] = {}
        for stream in streams:
            by_watched.setdefault(stream.watched, []).append(stream)
        counters, near = view.counters(), list[Any]()
        if any(watched.entity_id is None for watched in by_watched):
            near = [near_shape(one) for one in (await view.near()).buckets]
        for watched, watching in by_watched.items():
            if watched.entity_id is None:
                rows: list[Any] = [one for one in near if watched.resource in (None, one["resource"])]
                event, data = "near", {"near": rows, "now_ms": view.now_ms}
            else:
                seen = await look_at_entity(view.scope, watched.entity_id, watched.resource)
                records += len(seen) + 1
                rows = [bucket_shape(one) for one in seen]
                event, data = "buckets", {"rows": rows, "now_ms": view.now_ms}
            compared = [still_of(row) for row in rows]
            for stream in watching:
                stream.tell(event, data, compared)
                stream.tell("counters", counters, counters)
        return records

    async def _tell_refusals(self, streams: frozenset[LiveStream]) -> None:
        """Tell all streams of those whom they are about, and ask once of what somebody is about."""
        for watched in {stream.watched for stream in streams}:
            refused = await self._lookout.refusals(*watched)
            units = await self._lookout.units(one.resource for one in refused)
            for stream in streams:
                if stream.watched == watched:
                    stream.tell_refusals(refused, units)


def route(view: ViewState) -> Route:
    """``GET /v1/view/live``."""
    poller = LivePoller(view)

    async def live(request: Request) -> Response:
        view.server.access.require(request, TokenScope.READ)
        query = ViewQuery(request, ("entity", "resource"))
        watched = Watched(query.maybe_entity(), query.maybe_resource())
        if view.server.stopping.is_set():
            return problem(503, "the server is ending", [("Retry-After", "1")])
        if len(poller.streams) >= STREAMS_MAX:
            return problem(503, f"{STREAMS_MAX} are watching already", [("Retry-After", "10")])
        return LiveResponse(view, poller, LiveStream(watched))

    return Route("/v1/view/live", live, methods=["GET"])


class LiveResponse(StreamingResponse):
    """One stream; whatever ends it, the poller forgets it."""

    def __init__(self, view: ViewState, poller: LivePoller, stream: LiveStream) -> None:
        headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
        super().__init__(_events(view, stream), media_type="text/event-stream", headers=headers)
        self._poller, self._stream = poller, stream
        poller.add(stream)  # now, so that no more begin than may

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def sending(message: Message) -> None:
            async with asyncio.timeout(SLOW_SECONDS):
                await send(message)

        try:
            await super().__call__(scope, receive, sending)
        except TimeoutError:
            logger.info("somebody who watched did not read for %g s, and was dropped", SLOW_SECONDS)
        finally:
            self._poller.streams.discard(self._stream)


async def _events(view: ViewState, stream: LiveStream) -> AsyncIterator[str]:
    """The text of a stream."""
    world, stopping = view.server.world, view.server.stopping
    until_ms = world.ticks_ms() + STREAM_SECONDS_MAX * 1000
    stopped = asyncio.create_task(stopping.wait())
    try:
        yield ": live\n\n"
        while not stopping.is_set() and world.ticks_ms() < until_ms:
            news = asyncio.create_task(stream.has_news.wait())
            try:
                both = {news, stopped}
                await asyncio.wait(both, timeout=HEARTBEAT_SECONDS, return_when=asyncio.FIRST_COMPLETED)
            finally:
                news.cancel()
            if not stopping.is_set():
                yield stream.taken() or ": still here\n\n"
    finally:
        stopped.cancel()
