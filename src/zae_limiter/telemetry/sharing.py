"""Tells other processes what this one counts and whom it refuses: ``Telemetry.share``.

In the background, at most once a second, and not while nothing happens: a refusal is told within a second,
numbers that only grow every ten. Nobody waits for it, and a store that does not answer makes it silent, no
more. There is one timer: of the event loop that the work runs on, or a thread where nothing suspends, as for
seats that are renewed. A forked child tells of itself once it refuses somebody.
"""

from __future__ import annotations

import math
import os
import socket
from collections.abc import Callable

from ..exceptions import ZAELimiterError
from ..records.reports import NAME_LETTERS_MAX, PLACES, REFUSALS_MAX, ProcessReport, write_report
from ..runtime.colour import ForkSafe
from ..runtime.logs import logger
from .counters import counters_of
from .events import EventKind, TelemetryEvent
from .observer import Observer

SOON_MS = 1_000
"""How long at least between two reports."""

QUIET_MS = 10_000
"""After how long numbers are told that no refusal is among."""

FULL_MS = 60_000
"""After how long a process that found no place looks again."""

URGENT = frozenset(map(EventKind, ("refused", "disabled", "denied", "degraded", "unavailable")))


def process_name() -> str:
    """What others know this process by: its host and number."""
    return f"{socket.gethostname()[: NAME_LETTERS_MAX - 12]}-{os.getpid()}"


class _Voice:
    """How one process tells: its place, what it has told, and when it will next."""

    def __init__(self) -> None:
        self.process_id = ""
        self.started_ms = 0
        self.place: int | None = None
        self.untried: list[int] = []
        self.told: tuple[int, ...] = (0, 0, 0, 0, 0)
        self.last_ms = -math.inf
        self.at_ms = math.inf
        self.is_telling = False
        self.cancel: Callable[[], None] | None = None


class Sharing:
    """Tells of one repository."""

    def __init__(self, observer: Observer, name: str | None) -> None:
        self._observer, self._name, self._is_over = observer, name, False
        self._scope = observer.repository._scope
        self._colour = observer.repository.colour
        self._voice = ForkSafe(_Voice)

    @property
    def process_id(self) -> str:
        """What reports of this process are known by; empty before the first."""
        return self._voice.get().process_id

    def begin(self) -> None:
        """Tell from now on, also what was counted before."""
        self._wake(0)

    def end(self) -> None:
        """Tell nothing any more."""
        self._is_over = True
        for voice in self._voice.forget_all():
            if voice.cancel is not None:
                voice.cancel()

    def notice(self, event: TelemetryEvent) -> None:
        """Something happened that others want to see soon."""
        if event.kind in URGENT:
            voice = self._voice.get()
            self._wake(max(0.0, voice.last_ms + SOON_MS - self._scope.world.ticks_ms()))

    def _wake(self, wait_ms: float) -> None:
        """Be there after this long, or before."""
        voice, ticks_ms = self._voice.get(), self._scope.world.ticks_ms()
        # A timer that should have rung long ago belongs to a loop that is gone.
        if ticks_ms - SOON_MS <= voice.at_ms <= ticks_ms + wait_ms:
            return
        if voice.cancel is not None:
            voice.cancel()
        voice.at_ms = ticks_ms + wait_ms
        voice.cancel = self._colour.later(wait_ms / 1000, self._run)

    async def _run(self) -> None:
        voice = self._voice.get()
        voice.at_ms, voice.cancel = math.inf, None
        if self._is_over or self._scope.is_closed or self._scope.connection.is_closed:
            return
        if voice.is_telling:  # what was not seen any more by whoever tells just now
            self._wake(SOON_MS)
            return
        again_ms: float = QUIET_MS
        voice.is_telling = True
        try:
            again_ms = await self.tell()
        except ZAELimiterError as error:
            logger.info("what this process counts was not shared: %s", error)
        except GeneratorExit:  # the loop or the process is gone, and nobody goes on
            again_ms = math.inf
            raise
        finally:
            voice.is_telling = False
            if again_ms < math.inf:
                self._wake(again_ms)

    async def tell(self) -> int:
        """Tell what is new, if anything is; returns after how many milliseconds to look again."""
        voice, world, observer = self._voice.get(), self._scope.world, self._observer
        counters = counters_of(observer)
        numbers = counters.admitted, counters.refused, counters.degraded, counters.unavailable
        told = *numbers, counters.disabled + counters.denied
        if voice.told == told:
            return QUIET_MS
        voice.last_ms = world.ticks_ms()
        if not voice.process_id:
            voice.process_id, voice.started_ms = world.new_ulid(), world.now_ms()
        is_new = voice.place is None
        if voice.place is None and not voice.untried:
            voice.untried = world.random.sample(range(PLACES), PLACES)
        place = voice.untried[-1] if voice.place is None else voice.place
        report = ProcessReport(
            self._name or process_name(),
            voice.process_id,
            voice.started_ms,
            world.now_ms(),
            *numbers,
            tuple(observer.recent.newest(REFUSALS_MAX)),
        )
        if await write_report(self._scope, place, report, is_new=is_new):
            voice.place, voice.untried, voice.told = place, [], told
            return QUIET_MS
        voice.place, voice.untried = None, voice.untried[:-1]
        return SOON_MS if voice.untried or not is_new else FULL_MS
