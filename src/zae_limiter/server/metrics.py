"""``/metrics``: what all workers of this server count, for Prometheus.

A scrape reaches any worker. So each has a place of its own, 0 and up, which is on its series as ``worker``,
and once a second leaves its numbers there, in a folder that the workers of one start share. Whoever is asked
answers with its own of now and those that the others left last, of those who live: their series are all in
each scrape, and none of them goes back but when its worker was started anew, which Prometheus knows how to
count. One worker alone writes no file.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from ..runtime.logs import server_logger as logger
from ..telemetry.exposition import CONTENT_TYPE, text_of
from ..telemetry.metrics import METRICS, Bins, Metric, Point
from ..telemetry.observer import Observer
from .config import WORKERS_MAX, ServerConfig
from .tokens import TokenScope

if TYPE_CHECKING:
    from .state import ServerState


LEFT_SECONDS = 1.0
"""How old the numbers of other workers may be."""

WORKER = "worker"

Readings = dict[str, list[Point]]
"""The series of a worker, by the names of metrics."""


def routes(server: ServerState) -> list[BaseRoute]:
    async def metrics(request: Request) -> Response:
        if not server.config.metrics_open:
            server.access.require(request, TokenScope.READ)
        assert server.watch is not None, "requests come while the server runs"
        own = readings_of(server.watch.observer)
        workers = await asyncio.to_thread(server.desk.with_others, own)
        return Response(text_of(_merged(workers), WORKER), media_type=CONTENT_TYPE)

    return [Route("/metrics", metrics)]


def readings_of(observer: Observer) -> Readings:
    """All series of a worker as they are now."""
    return {metric.name: metric.points(observer) for metric in METRICS}


def _merged(workers: dict[int, Readings]) -> Iterator[tuple[Metric, list[Point]]]:
    for metric in METRICS:
        yield (
            metric,
            [
                Point((*labels, str(worker)), value)
                for worker, readings in sorted(workers.items())
                for labels, value in readings.get(metric.name, ())
            ],
        )


class Desk:
    """Where the workers of one start leave their numbers for each other."""

    def __init__(self, config: ServerConfig) -> None:
        self._is_shared = config.workers > 1
        self._name = f"zae-limiter-{hashlib.sha256(b'metrics' + config.session_key).hexdigest()[:32]}"
        self.worker: int = 0
        self._held: BinaryIO | None = None

    @cached_property
    def _folder(self) -> Path:
        """Looked for when it is needed: there may be none."""
        return Path(tempfile.gettempdir()) / self._name

    @asynccontextmanager
    async def sharing(self, observer: Observer) -> AsyncIterator[None]:
        """Have a place, and leave the numbers there until the end."""
        if not self._is_shared:
            yield
            return
        try:
            self._take_place()
        except OSError as error:  # nothing can be written there: that is no reason to serve nobody
            logger.warning("this worker cannot tell others what it counts: %s", error)
            self._is_shared = False
            yield
            return
        leaving = asyncio.create_task(self._leave_often(observer))
        try:
            yield
        finally:
            leaving.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await leaving
            self._give_place_back()

    async def _leave_often(self, observer: Observer) -> None:
        while True:
            with contextlib.suppress(OSError):  # a full disk is no reason to refuse anybody
                await asyncio.to_thread(self._leave, readings_of(observer))
            await asyncio.sleep(LEFT_SECONDS)

    def with_others(self, own: Readings) -> dict[int, Readings]:
        """The numbers of all workers who live, by their places."""
        found = {self.worker: own}
        if self._is_shared:
            for worker in range(WORKERS_MAX):
                if worker != self.worker and self._lives(worker):
                    with contextlib.suppress(OSError, ValueError, TypeError, AttributeError):
                        found[worker] = _read(json.loads(self._path(worker, "json").read_bytes()))
        return found

    def _path(self, worker: int, suffix: str) -> Path:
        return self._folder / f"{worker}.{suffix}"

    def _take_place(self) -> None:
        """Take the first place whose worker is gone, by a lock that goes with its process."""
        self._folder.mkdir(mode=0o700, exist_ok=True)
        for worker in range(WORKERS_MAX):
            held = _locked(self._path(worker, "lock"))
            if held is not None:
                self.worker = worker
                self._held = held
                self._path(worker, "json").unlink(missing_ok=True)  # of whoever was there before
                return

    def _give_place_back(self) -> None:
        """Let go; the last one who leaves takes the folder along."""
        self._path(self.worker, "json").unlink(missing_ok=True)
        if self._held is not None:
            self._path(self.worker, "lock").unlink(missing_ok=True)
            self._held.close()
        with contextlib.suppress(OSError):
            self._folder.rmdir()

    def _lives(self, worker: int) -> bool:
        path = self._path(worker, "lock")
        if not path.exists():
            return False
        free = _locked(path)
        if free is not None:
            free.close()
        return free is None

    def _leave(self, readings: Readings) -> None:
        place = self._path(self.worker, "json")
        fresh = place.with_suffix(".new")
        fresh.write_text(json.dumps(readings), encoding="utf-8")
        fresh.replace(place)  # so that nobody reads half of it


def _locked(path: Path) -> BinaryIO | None:
    """A file that is locked until it is closed or its process ends; ``None`` if another process has it."""
    import fcntl

    file = path.open("ab")
    os.set_inheritable(file.fileno(), False)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        return None
    return file


def _read(said: dict[str, Any]) -> Readings:
    """What another worker left."""
    return {
        name: [Point(tuple(labels), _value(value)) for labels, value in points]
        for name, points in said.items()
    }


def _value(said: Any) -> float | Bins:
    if not isinstance(said, list):
        return float(said)
    ends, counts, total = said
    return Bins(tuple(ends), tuple(counts), total)
