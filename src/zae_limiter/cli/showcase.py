"""``zae-limiter demo --ui``: tenants of a gateway in real time, and the page that shows them.

All of it is one process: the server in its main thread, and the tenants in another one, each with its own
connection to a fresh SQLite file. Whatever ends it ends all, and the file goes with it.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import signal
import sys
import tempfile
import threading
import webbrowser
from contextlib import suppress
from dataclasses import dataclass, replace
from urllib.parse import quote

from ..exceptions import RateLimiterUnavailable
from ..limiter import RateLimiter
from ..runtime.world import World
from ..server.config import ServerConfig
from ..telemetry import Telemetry
from .ending import raised_on_terminate
from .errors import Failure
from .output import Output
from .serve import announce
from .tenants import HABITS, Habit, write_history
from .traffic import Traffic

NAMESPACE = "demo"
NEEDED = ("starlette", "uvicorn")
COUNT_SECONDS = 15.0
"""How often the aggregator counts what was used."""
SHUTDOWN_SECONDS = 1.0
STOP_SECONDS_MAX = 30.0


@dataclass(kw_only=True)
class ShowcaseOptions:
    """What the command line asks for."""

    port: int
    opens: bool
    seconds: float | None


def showcase(output: Output, options: ShowcaseOptions) -> None:
    """Run it until somebody ends it, or the time is over."""
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        told = f"the page needs {' and '.join(missing)}, which {'are' if missing[1:] else 'is'} not installed"
        raise Failure(told, 'install this package with its extras: pip install ".[cli,server]"')
    from ..server.run import bound_socket, serve

    config, secret = ServerConfig(
        namespace=NAMESPACE, port=options.port, ui=True, changes=True, shutdown_seconds=SHUTDOWN_SECONDS
    ).with_made_token()
    with (
        raised_on_terminate(KeyboardInterrupt()),
        bound_socket(config) as listening,  # an address that is taken is told before anything is made up
        tempfile.TemporaryDirectory(prefix="zae-limiter-demo-") as directory,
    ):
        url = f"sqlite:///{quote(directory)}/demo.db"
        config = replace(config, store=url, port=listening.getsockname()[1])
        output.note("making up tenants, and what they used since yesterday …")
        write_history(url, NAMESPACE, World().now_ms())
        _count(url)
        crowd = Crowd(url)

        def started(_: int | None) -> None:
            announce(output, config, secret)
            output.note(f"in a terminal: zae-limiter watch --store {url} -N {NAMESPACE}")
            output.note("change a limit on the page, and see how the tenants take it")
            crowd.start()
            if options.opens and sys.stdout.isatty():
                where = f"http://{config.host}:{config.port}/ui/#token={secret}"
                # Some browsers are waited for until they are closed, and the page is served meanwhile.
                threading.Thread(target=webbrowser.open, args=[where], daemon=True).start()
            if options.seconds is not None:
                timer = threading.Timer(options.seconds, os.kill, (os.getpid(), signal.SIGTERM))
                timer.daemon = True
                timer.start()

        try:
            with suppress(KeyboardInterrupt):  # that is how it ends
                serve(config, listening, started)
        finally:
            crowd.stop()
    counts = ", ".join(f"{count} {what}" for what, count in sorted(crowd.counts().items()))
    if not output.json({"requests": crowd.counts()}):
        output.note(f"the demo is over and its store is gone; requests: {counts or 'none'}")


class Crowd:
    """The tenants in a thread of their own: a gateway, a batch job, and the aggregator beside them."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._thread = threading.Thread(target=self._run, name="tenants", daemon=True)
        self._is_ready, self._is_over = threading.Event(), asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._traffics: list[Traffic] = []

    def start(self) -> None:
        self._thread.start()
        self._is_ready.wait()

    def stop(self) -> None:
        """Give up what is under way, and wait until that is done."""
        if self._loop is not None and self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._is_over.set)
            self._thread.join(STOP_SECONDS_MAX)

    def counts(self) -> dict[str, int]:
        """How many requests came to what."""
        names = sorted({name for traffic in self._traffics for name in traffic.counts})
        return {name: sum(traffic.counts[name] for traffic in self._traffics) for name in names}

    def _run(self) -> None:
        asyncio.run(self._all())

    async def _all(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._is_ready.set()
        steady = [habit for habit in HABITS if not habit.workers]
        batch = [habit for habit in HABITS if habit.workers]
        tasks = [
            asyncio.create_task(self._program("gateway", steady)),
            asyncio.create_task(self._program("nightly-index", batch)),
            asyncio.create_task(self._counting()),
        ]
        await self._is_over.wait()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _program(self, name: str, habits: list[Habit]) -> None:
        """One program that uses the limiter, and tells others what it does."""
        async with RateLimiter.open(self._url, namespace=NAMESPACE) as limiter:
            with Telemetry(limiter, name=name) as telemetry:
                telemetry.share()
                traffic = Traffic(limiter, habits)
                self._traffics.append(traffic)
                try:
                    await traffic.run()
                finally:
                    await traffic.stop()

    async def _counting(self) -> None:
        while True:
            await asyncio.sleep(COUNT_SECONDS)
            with suppress(RateLimiterUnavailable):  # next time
                await asyncio.to_thread(_count, self._url)


def _count(url: str) -> None:
    """Have the aggregator count what was used so far."""
    from zae_limiter_aggregator.runner import aggregate

    aggregate(url, until_idle=True)
