"""What is deployed around a table, for whoever looks at the health of the server.

It is a dozen requests to five services, and their clients take long to be made: so a thread asks, at most
once a minute and only while somebody looks. The event loop never waits for it, nor does its end.
What a server may not ask is unknown: that says nothing about the part, and nothing about the whole.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence

from ..exceptions import ZAELimiterError, without_secrets
from ..infra.health import HealthReport
from ..infra.stack_manager import manager_of
from ..runtime.colour import Blocking
from .state import ServerState
from .view_shapes import CheckShape

ASK_SECONDS = 60.0
"""How old it is at least when it is asked anew."""

FIRST_WAIT_SECONDS = 2.0
"""How long whoever looks waits for it while nothing is known."""

SHOWN_ANYWAY = frozenset({"versions"})
"""What the view checks itself, on every store."""


class Surroundings:
    """What is known of them to one worker."""

    def __init__(self, server: ServerState) -> None:
        self._server, self._asked_s, self._is_asking = server, float("-inf"), False
        self._known = asyncio.Event()
        self._found: Sequence[CheckShape] = (_unknown("nobody has answered yet"),)

    async def checks(self) -> Sequence[CheckShape]:
        """Each part as it was when it was last asked about; none where there are no such parts."""
        repository, now_s = self._server.limiter.repository, self._server.world.ticks_ms() / 1000
        if repository.capabilities.name != "dynamodb":
            return ()
        if not self._is_asking and now_s - self._asked_s >= ASK_SECONDS:
            self._is_asking, self._asked_s = True, now_s
            store, loop = repository.store, asyncio.get_running_loop()
            Blocking().later(0, lambda: self._ask(store, loop))
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._known.wait(), FIRST_WAIT_SECONDS)
        return self._found

    async def _ask(self, store: str, loop: asyncio.AbstractEventLoop) -> None:
        """Ask in a thread, where nothing else waits."""
        found: Sequence[CheckShape] = (_unknown("asking failed"),)
        try:
            manager = manager_of(store, sync=True, world=self._server.world)
            try:
                found = _shown(await manager.report())
            finally:
                await manager.close()
        except ZAELimiterError as error:
            found = (_unknown(without_secrets(str(error))),)
        finally:
            with contextlib.suppress(RuntimeError):  # the server has ended meanwhile
                loop.call_soon_threadsafe(self._learn, found)

    def _learn(self, found: Sequence[CheckShape]) -> None:
        self._found, self._is_asking = found, False
        self._known.set()


def _shown(report: HealthReport) -> list[CheckShape]:
    return [
        {
            "part": check.part,
            "health": "unknown" if check.is_unknown else check.health.value,
            "detail": without_secrets(check.detail),
        }
        for check in report.checks
        if check.part not in SHOWN_ANYWAY
    ]


def _unknown(why: str) -> CheckShape:
    return {"part": "deployment", "health": "unknown", "detail": why}
