"""``ServerState``: what every request of one worker uses, from its start to its end.

A worker is a process with an event loop. It opens the store when it starts and closes it when it ends;
nothing of it is shared with other workers but what is in the store. Routes get it as a whole.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Final

from ..limiter import RateLimiter
from ..records.scope import Scope
from ..repository import Repository
from ..runtime.world import World
from ..telemetry import Telemetry
from ..web.answers import Answers
from .access import AccessControl
from .config import ServerConfig
from .leases import StoredLeases
from .metrics import Desk


class ServerState:
    """The parts that routes are made of; limiter, leases and watch are there while it runs."""

    limiter: RateLimiter
    leases: StoredLeases
    """Leases that outlive the worker."""
    watch: Telemetry | None = None
    """What counts: the telemetry of this worker's limiter."""
    grpc_port: int | None = None
    """Where Envoy is answered."""

    def __init__(self, config: ServerConfig, world: World | None = None) -> None:
        self.config = config
        self.world: Final = world or World()
        # Cookies know no ports, so each server on this machine has one of its own.
        cookie = "__Host-zae-limiter" if config.is_tls else f"zae-limiter-{config.port}"
        self.access: Final = AccessControl(
            config.tokens,
            config.session_key,
            allowed=config.allowed,
            open_to_all=config.insecure_no_tokens,
            cookie=cookie,
            world=self.world,
        )
        self.desk: Final = Desk(config)
        """Where workers leave their numbers for each other."""
        self.answers: Final = Answers()
        """What clients are told of limits, as the middleware of ``zae_limiter.web`` tells it."""
        self.stopping: Final = asyncio.Event()
        """Given when the server is told to end: streams that would go on for ever end then."""
        self._beside: set[asyncio.Task[None]] = set()

    @property
    def repository(self) -> Repository:
        return self.limiter.repository

    @property
    def scope(self) -> Scope:
        return self.repository._scope

    def beside(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Have something done beside requests; it is cancelled before the store is closed."""
        task = asyncio.create_task(work)
        self._beside.add(task)
        task.add_done_callback(self._beside.discard)
        return task

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """The server from its start to its end."""
        async with RateLimiter.open(
            self.config.store, namespace=self.config.namespace, world=self.world
        ) as limiter:
            self.limiter, self.leases = limiter, StoredLeases(limiter)
            async with AsyncExitStack() as beside:
                self.watch = beside.enter_context(Telemetry(limiter))
                self.watch.share()
                await beside.enter_async_context(self.desk.sharing(self.watch.observer))
                if self.config.grpc is not None:
                    from .envoy.service import answering

                    self.grpc_port = await beside.enter_async_context(answering(self))
                sweeping = asyncio.create_task(self.leases.run(self.stopping))
                try:
                    yield
                finally:
                    self.stopping.set()
                    for task in self._beside:
                        task.cancel()
                    await asyncio.gather(*self._beside, return_exceptions=True)
                    await sweeping
