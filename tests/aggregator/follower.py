"""A program that follows a store and is killed again and again: ``python -m tests.aggregator.follower``.

It loads everything once and then lets children do the work. Each dies by SIGKILL in front of, or right
behind, a random call of its store; the last one may finish. It prints how many died.
"""

import os
import random
import signal
import sys
import threading
from collections.abc import Sequence
from unittest import mock

import botocore.session

from tests.engines import dynamodb_local
from zae_limiter.backends import open_backend as any_backend
from zae_limiter.backends.change_log import log_of
from zae_limiter.backends.dynamodb import open_backend
from zae_limiter.models import UsageWindow
from zae_limiter.repository_protocol import Backend, Outcome, Write
from zae_limiter.runtime.colour import run_sync
from zae_limiter.runtime.world import World
from zae_limiter.testing.stores import Wrapper
from zae_limiter_aggregator import AggregatorSettings
from zae_limiter_aggregator.runner import BatchSource, LogSource, follow
from zae_limiter_aggregator.streams import StreamSource, stream_of

BATCH_RECORDS, BATCH_ENTRIES = 6, 3
WRITES_MAX = 6
SETTINGS = AggregatorSettings(tuple(UsageWindow), tend_buckets=False)


class Doomed(Wrapper):
    """Kills its process after so many writes; some of them half done."""

    def __init__(self, inner: Backend, writes: int, rng: random.Random) -> None:
        super().__init__(inner)
        self._left, self._rng = writes, rng

    async def write_each(self, writes: Sequence[Write]) -> list[Outcome]:
        self._left -= 1
        if self._left == 0:
            some = writes[: self._rng.randrange(len(writes) + 1)]
            await super().write_each(some)
            os.kill(os.getpid(), signal.SIGKILL)
        return await super().write_each(writes)


def worked(backend: Backend, source: BatchSource) -> None:
    """Follow to the end, or to the end of this process."""
    follow(source, until_idle=True, stop=threading.Event(), tell=lambda *_: None)
    run_sync(backend.close())


class StreamFollower:
    """What all children inherit: drivers that are loaded but have sent nothing yet."""

    def __init__(self, url: str) -> None:
        self.url, self.session = url, botocore.session.Session()
        self.session.create_client("dynamodb", region_name="eu-west-1")
        self.client, self.arn = stream_of(url)

    def work(self, writes: int | None, rng: random.Random) -> None:
        world = World()
        backend: Backend = open_backend(self.url, sync=True, world=world, session=self.session)
        watched = backend if writes is None else Doomed(backend, writes, rng)
        source = StreamSource(watched, self.client, self.arn, world, SETTINGS)
        worked(backend, source)


class LogFollower:
    """The same where a store keeps a log."""

    def __init__(self, url: str) -> None:
        self.url = url

    def work(self, writes: int | None, rng: random.Random) -> None:
        world = World()
        backend = any_backend(self.url, sync=True, world=world)
        watched = backend if writes is None else Doomed(backend, writes, rng)
        worked(backend, LogSource(watched, log_of(backend), world, SETTINGS))


def main(url: str, times: int, seed: int) -> None:
    rng = random.Random(seed)
    follower = StreamFollower(url) if url.startswith("dynamodb:") else LogFollower(url)
    died = 0
    with (
        mock.patch("zae_limiter_aggregator.streams.BATCH_RECORDS_MAX", BATCH_RECORDS),
        mock.patch("zae_limiter_aggregator.runner.BATCH_RECORDS_MAX", BATCH_ENTRIES),
    ):
        for _ in range(times):
            writes, luck = rng.randrange(1, WRITES_MAX), random.Random(rng.random())
            child = os.fork()
            if child == 0:
                follower.work(writes, luck)
                os._exit(0)
            _, status = os.waitpid(child, 0)
            died += os.WIFSIGNALED(status)
        follower.work(None, rng)
    print(died)


if __name__ == "__main__":
    dynamodb_local.isolate_from_aws()
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
