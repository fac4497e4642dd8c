"""Several workers over one socket, and somebody who looks after them.

Each worker is a process of its own that shares nothing with the others but the socket and the store. One that
dies is started anew, later each time it dies young. All end when the supervisor is told to: what is not done
within ``shutdown_seconds`` is ended by force. A worker whose supervisor has been killed sees the end of its
standard input, which only that held open, and ends as well.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import pickle
import signal
import socket
import sys
from asyncio.subprocess import PIPE, Process

from ..exceptions import InfrastructureError
from ..runtime.logs import server_logger as logger
from ..runtime.world import World
from .config import ServerConfig, Started

STEADY_SECONDS = 10.0
"""Who has lived for so long did not die of how it was started."""

BACK_OFF_SECONDS, BACK_OFF_SECONDS_MAX = 0.1, 10.0
"""How long until a worker is started anew; twice as long each time it has died young."""

YOUNG_DEATHS_MAX = 8
"""After so many in a row, and nobody of all who was ever ready, the server gives up."""

ENDING_SECONDS = 3.0
"""How much longer than its requests a worker may take to end."""

READY = b"\x01"


def back_off_seconds(deaths: int) -> float:
    """How long until a worker is started anew that has died young so many times in a row."""
    return min(BACK_OFF_SECONDS * (1 << min(deaths - 1, 16)), BACK_OFF_SECONDS_MAX)


class Supervisor:
    """Starts workers and keeps them going."""

    def __init__(
        self, config: ServerConfig, listening: socket.socket, started: Started, world: World | None = None
    ) -> None:
        self._config, self._listening, self._started = config, listening, started
        self._world = world or World()
        self._ending = asyncio.Event()
        self._was_ready = False
        self.processes: dict[int, Process] = {}
        """The worker in each place, as long as it lives."""

    async def run(self) -> None:
        """Keep all workers going until a signal says that it is over."""
        loop = asyncio.get_running_loop()
        for name in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(name, self._told, name)
        places = [asyncio.create_task(self._keep_going(place)) for place in range(self._config.workers)]
        over = asyncio.create_task(self._ending.wait())
        try:
            await asyncio.wait([over, *places], return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._ending.set()
            await self._end_all()
            over.cancel()
            results = await asyncio.gather(*places, return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException) and not isinstance(result, asyncio.CancelledError):
                raise result

    def _told(self, name: signal.Signals) -> None:
        """End well; a second Ctrl-C does not wait for anybody."""
        if name is signal.SIGINT and self._ending.is_set():
            for process in self.processes.values():
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
        self._ending.set()

    async def _keep_going(self, place: int) -> None:
        """A worker in one place, and the next when it has died."""
        deaths = 0
        while not self._ending.is_set():
            since_ms = self._world.ticks_ms()
            try:
                process = await self._start()
            except OSError as error:  # there is no memory for another process, or no file: perhaps later
                deaths += 1
                await self._pause(deaths, f"worker {place} cannot be started: {error.strerror}")
                continue
            self.processes[place] = process
            if self._ending.is_set():
                process.terminate()
            ready = asyncio.create_task(self._wait_ready(process))
            code = await process.wait()
            ready.cancel()
            del self.processes[place]
            if self._ending.is_set():
                return
            lived_ms = self._world.ticks_ms() - since_ms
            deaths = 1 if lived_ms > STEADY_SECONDS * 1000 else deaths + 1
            if deaths >= YOUNG_DEATHS_MAX and not self._was_ready:
                raise InfrastructureError(
                    f"no worker could be started: {deaths} ended with {code}; see above"
                )
            await self._pause(deaths, f"worker {process.pid} ended with {code}")

    async def _pause(self, deaths: int, why: str) -> None:
        """Wait until another one begins, or it is over."""
        pause = back_off_seconds(deaths)
        logger.warning("%s; another one begins in %.1f s", why, pause)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._ending.wait(), pause)

    async def _start(self) -> Process:
        """A worker in a session of its own: a Ctrl-C in the terminal is for the supervisor."""
        number = self._listening.fileno()
        told = pickle.dumps(self._config)
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "zae_limiter.server.worker", str(number)),
            stdin=PIPE,
            stdout=PIPE,
            stderr=None,
            pass_fds=(number,),
            start_new_session=True,
            env=os.environ,
        )
        assert process.stdin is not None
        with contextlib.suppress(ConnectionError):  # it has died, and is waited for
            process.stdin.write(len(told).to_bytes(8) + told)
            await process.stdin.drain()
        return process

    async def _wait_ready(self, process: Process) -> None:
        assert process.stdout is not None
        if await process.stdout.read(1) == READY and not self._was_ready:
            self._was_ready = True
            self._started(None)

    async def _end_all(self) -> None:
        """Ask all workers to end, and make them."""
        ending = list(self.processes.values())
        for process in ending:
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
        left = [asyncio.create_task(process.wait()) for process in ending]
        if left:
            await asyncio.wait(left, timeout=self._config.shutdown_seconds + ENDING_SECONDS)
        for process in ending:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
        if left:
            await asyncio.wait(left)
