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
from contextlib import contextmanager
from typing import Any, NamedTuple

from zae_limiter.backends import open_backend, store_world
from zae_limiter.backends.change_log import log_of
from zae_limiter.exceptions import (
    InfrastructureError,
    InfrastructureNotFoundError,
    RateLimiterUnavailable,
    ValidationError,
)
from zae_limiter.repository_protocol import Backend
from zae_limiter.runtime.colour import run_sync
from zae_limiter.runtime.world import World

from .archiver import Archive
from .processor import Settings, Tally
from .sources import LogSource, Source

POLL_SECONDS = 1.0
IDLE_STEPS = 3
"""How many steps without records mean that there are none; a stream may have an empty page in between."""

PAUSE_SECONDS_MAX = 30.0
ATTEMPTS_MAX = 8
"""How often in a row the same records may fail before the program gives up."""


class Progress(NamedTuple):
    """What was done since the program started."""

    total: Tally
    last: Tally
    trouble: str = ""


Tell = Callable[[Progress], None]


def aggregate(
    url: str,
    settings: Settings | None = None,
    *,
    archive: Archive | None = None,
    until_idle: bool = False,
    stop: threading.Event | None = None,
    tell: Tell = lambda _: None,
) -> Tally:
    """Follow the store behind a URL until ``stop`` is set, or until there is nothing new."""
    world = store_world(url, World())
    backend = open_backend(url, sync=True, world=world)
    try:
        run_sync(backend.setup())
        source = source_of(backend, url, world, settings or Settings(), archive)
        return follow(source, until_idle=until_idle, stop=stop or threading.Event(), tell=tell)
    finally:
        run_sync(backend.close())


def source_of(
    backend: Backend, url: str, world: World, settings: Settings, archive: Archive | None = None
) -> Source:
    """What brings the changes of a store that was opened for sync."""
    if backend.capabilities.streams:
        from .streams import StreamSource

        client, stream_arn = stream_of(url)
        return StreamSource(backend, client, stream_arn, world, settings, archive)
    return LogSource(backend, log_of(backend), world, settings)


def is_behind(backend: Backend) -> bool | None:
    """Whether something of an embedded store was used and not counted; ``None`` where that cannot be told."""
    try:
        log = log_of(backend)
    except ValidationError:  # it is on a server
        return None
    try:
        return log.waits()
    finally:
        log.close()


def follow(source: Source, *, until_idle: bool, stop: threading.Event, tell: Tell) -> Tally:
    """Take steps until told to stop; the last one is finished and noted first."""
    total, troubles, idle, started = Tally(), 0, 0, False
    try:
        while not stop.is_set():
            trouble = ""
            try:
                if not started:
                    run_sync(source.start())
                    started = True
                last = run_sync(source.step())
            except RateLimiterUnavailable as error:
                if error.misconfigured == "file":  # which waiting does not bring back
                    raise
                last, trouble = Tally(), str(error)
            if last.failed:
                sequence, reason = next(iter(last.failed.items()))
                trouble = f"record {sequence} and {len(last.failed) - 1} others: {reason}"
                if troubles >= ATTEMPTS_MAX:
                    raise InfrastructureError(f"the aggregator cannot go on: {trouble}")
            total.add(last)
            total.failed = last.failed
            tell(Progress(total, last, trouble))
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


def stream_of(url: str) -> tuple[Any, str]:
    """A client for the stream of a table, and the stream's name."""
    from botocore.config import Config

    from zae_limiter.backends.dynamodb import parse_url
    from zae_limiter.backends.dynamodb.access import Access

    table, options = parse_url(url)
    access = Access(**options)
    session = access.botocore_session()
    place = {"region_name": access.region, "endpoint_url": access.endpoint_url}
    reading = Config(retries={"mode": "standard", "total_max_attempts": 5})  # reads may be repeated
    tables = session.create_client("dynamodb", config=reading, **place)
    try:
        stream_arn = tables.describe_table(TableName=table)["Table"].get("LatestStreamArn")
    finally:
        tables.close()
    if stream_arn is None:
        raise InfrastructureNotFoundError(
            f"table {table!r} has no stream; switch one on with NEW_AND_OLD_IMAGES, "
            f"or deploy the table with: zae-limiter deploy --name {table}"
        )
    return session.create_client("dynamodbstreams", config=reading, **place), str(stream_arn)


@contextmanager
def stopping_on_signals() -> Iterator[threading.Event]:
    """An event that SIGINT and SIGTERM set; a second one ends the program as usual."""
    stop = threading.Event()
    signals = (signal.SIGINT, signal.SIGTERM)
    before = [signal.getsignal(number) for number in signals]

    def restore() -> None:
        for number, old in zip(signals, before, strict=True):
            signal.signal(number, old)

    def on_signal(*_: Any) -> None:
        restore()
        stop.set()

    for number in signals:
        signal.signal(number, on_signal)
    try:
        yield stop
    finally:
        restore()
