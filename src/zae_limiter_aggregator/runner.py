"""The aggregator as a program: follow a store until somebody says stop.

Any store that can be opened by URL is followed: a DynamoDB table by its stream, an embedded store by the
change log that it keeps. A store that does not answer is asked again, ever more slowly. A record that
cannot be processed ends the program with its name, for going on would lose it. So does a file that was
replaced: going on would follow one that nobody uses any more.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import Any, Protocol

from zae_limiter.backends import open_backend, store_world
from zae_limiter.backends.change_log import ChangeLog, log_of
from zae_limiter.exceptions import InfrastructureError, RateLimiterUnavailable, ValidationError
from zae_limiter.repository_protocol import Backend
from zae_limiter.runtime.colour import run_sync
from zae_limiter.runtime.world import World
from zae_limiter.schema import bucket_address

from .archiver import Archive
from .changes import Change, numbered
from .processor import BATCH_RECORDS_MAX, AggregatorSettings, Tally, process_changes

POLL_SECONDS = 1.0
IDLE_STEPS = 3  # so many without records mean that there are none; a stream may have an empty page
PAUSE_SECONDS_MAX = 30.0
ATTEMPTS_MAX = 8  # how often in a row the same records may fail before the program gives up
Tell = Callable[[Tally, str], None]  # is told what was done so far, and what the trouble is if there is any


class BatchSource(Protocol):
    """Notes how far it got behind every batch: whoever is killed sees some again, which changes nothing."""

    async def step(self) -> Tally:
        """Process what is there, up to a batch or so; no records means that there is nothing now."""

    async def close(self) -> None: ...


class LogSource:
    """The change log of an embedded store, from which it trims what was counted.

    Nobody but our own clients reads such a store, so its buckets need no looking after.
    """

    def __init__(self, backend: Backend, log: ChangeLog, world: World, settings: AggregatorSettings) -> None:
        self._backend, self._log, self._world = backend, log, world
        self._settings = replace(settings, tend_buckets=False)

    async def step(self) -> Tally:
        entries = self._log.read(BATCH_RECORDS_MAX)
        if not entries:
            return Tally()
        changes = [
            Change(key, old, new, at_ms, numbered(position), str(position))
            for position, key, old, new, at_ms in entries
            if bucket_address(key) is not None
        ]
        tally = await process_changes(changes, self._backend, self._world, self._settings)
        tally.records = len(entries)
        if not tally.failed:
            self._log.trim(entries[-1].position)
        return tally

    async def close(self) -> None:
        self._log.close()


def aggregate(
    url: str,
    settings: AggregatorSettings | None = None,
    *,
    archive: Archive | None = None,
    until_idle: bool = False,
    stop: threading.Event | None = None,
    tell: Tell = lambda *_: None,
) -> Tally:
    """Follow the store behind a URL until ``stop`` is set, or until there is nothing new."""
    world = store_world(url, World())
    backend = open_backend(url, sync=True, world=world)
    try:
        run_sync(backend.setup())
        source = source_of(backend, url, world, settings or AggregatorSettings(), archive)
        return follow(source, until_idle=until_idle, stop=stop or threading.Event(), tell=tell)
    finally:
        run_sync(backend.close())


def source_of(
    backend: Backend, url: str, world: World, settings: AggregatorSettings, archive: Archive | None = None
) -> BatchSource:
    """What brings the changes of a store that was opened for sync."""
    if backend.capabilities.streams:
        from .streams import StreamSource, stream_of

        return StreamSource(backend, *stream_of(url), world, settings, archive)
    return LogSource(backend, log_of(backend), world, settings)


def is_behind(backend: Backend) -> bool | None:
    """Whether something of an embedded store was used and not counted; ``None`` where that cannot be told."""
    try:
        log = log_of(backend)
    except ValidationError:  # it is on a server
        return None
    with closing(log):
        return log.waits()


def follow(source: BatchSource, *, until_idle: bool, stop: threading.Event, tell: Tell) -> Tally:
    """Take steps until told to stop; the last one is finished and noted first."""
    total, troubles, idle = Tally(), 0, 0
    try:
        while not stop.is_set():
            last, trouble = Tally(), ""
            try:
                last = run_sync(source.step())
            except RateLimiterUnavailable as error:
                if error.misconfigured == "file":  # which waiting does not bring back
                    raise
                trouble = str(error)
            if last.failed:
                sequence, reason = next(iter(last.failed.items()))
                trouble = f"record {sequence} and {len(last.failed) - 1} others: {reason}"
                if troubles >= ATTEMPTS_MAX:
                    raise InfrastructureError(f"the aggregator cannot go on: {trouble}")
            total.add(last)
            total.failed = last.failed
            tell(total, trouble)
            troubles = troubles + 1 if trouble else 0
            if trouble:
                stop.wait(min(PAUSE_SECONDS_MAX, 0.1 * 2**troubles))
            idle = 0 if last.records or trouble else idle + 1
            if until_idle and idle == IDLE_STEPS:
                break
            if idle and not until_idle:
                stop.wait(POLL_SECONDS)
    finally:
        run_sync(source.close())
    return total


@contextmanager
def stopping_on_signals() -> Iterator[threading.Event]:
    """An event that SIGINT and SIGTERM set; a second one ends the program as usual."""
    stop = threading.Event()
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def restore() -> None:
        for number, old in before.items():
            signal.signal(number, old)

    def on_signal(*_: Any) -> None:
        restore()
        stop.set()

    for number in before:
        signal.signal(number, on_signal)
    try:
        yield stop
    finally:
        restore()
