"""``ViewState``: what one worker knows for all who look: who is near a limit, and who was refused.

Nothing is read unless somebody looks. From the first look on the buckets of the namespace are gone through
bit by bit, until half a minute after the last look, and however many look, those that seem nearest to empty
are read again once a second. So a look costs the same in a store of ten buckets and of ten million: it waits
a moment at most, and tells how much was looked at.

``reads_per_second`` bounds all that is read on this account; half of it is for going round, half for what is
shown. The event loop is never held for longer than one page takes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from typing import Final, NamedTuple

from ..exceptions import ZAELimiterError
from ..records.buckets_now import SeenBucket, look_at
from ..records.reports import ProcessReport, Refusal
from ..records.sampling import BucketSampler, Sample
from ..records.scope import Scope
from ..records.units import NOBODY, Units, agreed, units_of_places
from ..runtime.logs import server_logger as logger
from ..telemetry.sharing import process_name
from .state import ServerState
from .surroundings import Surroundings
from .view_shapes import nearest_first

IDLE_SECONDS = 30.0
"""For how long it goes on after the last look."""
FIRST_WAIT_SECONDS = 0.3
"""How long whoever looks first waits for more to be known."""
HURRY_SECONDS = 3.0
"""For how long after the first look half of the time of a worker may go into it."""
ROUND_SECONDS = 2.0
"""How long a round takes at least."""
READS_PER_LOOK_MAX = 100_000
"""How many buckets are gone through on account of one look; the next look goes on from there."""
REFRESH_SECONDS = 1.0
"""How often what is shown is read again, unless that would be too much for a second."""
HEAR_SECONDS = 0.5
"""How often those who watch are told who was refused. Together with the second that a process may wait before
it tells of itself, it bounds how old a refusal is on the page: a second and a half, and two reads."""
READS_PER_SECOND = 10_000
READS_PER_SECOND_PAID = 50
PAID = frozenset({"dynamodb"})
"""Stores that are paid by what is read."""
ROWS_MAX = 50
"""How many buckets are gone through at a time, while nothing else is done in this worker."""
SHARE_MAX = 1 / 5
"""Which part of the time of a worker goes into this at most, while it does."""
NEAR_MAX = 50
CANDIDATES_MAX = 60
REFUSED_MAX = 20
"""How many of those who were refused lately are looked at besides."""
REFUSALS_MAX = 50
UNITS_SECONDS = 60.0
"""How long it is remembered what the limits of a resource count."""
UNITS_ENTITIES_MAX = 20
"""Of how many entities with limits of their own it is asked whether they count money."""
RESOURCES_MAX = 1_000


class Near(NamedTuple):
    """Who is nearest to empty, by what is known now."""

    buckets: Sequence[SeenBucket]
    sample: Sample
    at_ms: int


class ViewState:
    """What one worker knows, for as long as somebody looks."""

    def __init__(self, server: ServerState) -> None:
        self.server = server
        self.surroundings: Final = Surroundings(server)
        self._sampler: BucketSampler | None = None
        self._round: asyncio.Task[None] | None = None
        self._first_round, self._has_waited = asyncio.Event(), False
        self._looked_s, self._reads_left = float("-inf"), 0
        self._near, self._near_s = list[SeenBucket](), float("-inf")
        self._reading = asyncio.Lock()
        self._heard, self._heard_s = list[ProcessReport](), float("-inf")
        self._hearing = asyncio.Lock()
        self._units = dict[str, tuple[float, Units]]()

    @property
    def scope(self) -> Scope:
        return self.server.scope

    @property
    def now_ms(self) -> int:
        """The time of the store."""
        return self.scope.world.now_ms()

    @property
    def is_going(self) -> bool:
        """Whether the buckets are being gone through."""
        return self._round is not None and not self._round.done()

    @property
    def reads_per_second(self) -> int:
        """How many records may be read in a second on account of those who look."""
        said = self.server.config.reads_per_second
        is_paid = self.server.repository.capabilities.name in PAID
        return said or (READS_PER_SECOND_PAID if is_paid else READS_PER_SECOND)

    async def near(self) -> Near:
        """Who is nearest to empty; the first look waits a moment so that something is known."""
        sampler = self._look()
        if not self._has_waited and not self._first_round.is_set():
            self._has_waited = True
            waiting = asyncio.create_task(self._first_round.wait())
            await asyncio.wait({waiting}, timeout=FIRST_WAIT_SECONDS)
            waiting.cancel()
        async with self._reading:
            if self.now_s() - self._near_s >= self.pause_seconds(CANDIDATES_MAX + REFUSED_MAX):
                self._near = await self._read_near(sampler.sample())
                self._near_s = self.now_s()
        return Near(self._near, sampler.sample(), self.now_ms)

    def pause_seconds(self, records: int) -> float:
        """How long to wait until so many records are read again."""
        return max(REFRESH_SECONDS, records / (self.reads_per_second / 2))

    async def refusals(
        self, entity_id: str | None = None, resource: str | None = None, most: int = REFUSALS_MAX
    ) -> list[Refusal]:
        """Who was refused lately, in this process and in others that tell, the newest first."""
        await self._hear()
        found = [
            one
            for one in self._told()
            if (entity_id is None or one.entity_id == entity_id)
            and (resource is None or one.resource == resource)
        ]
        found.sort(key=lambda one: one.at_ms, reverse=True)
        return found[:most]

    async def units(self, resources: Iterable[str]) -> dict[str, Units]:
        """What the limits of resources count where that is money, those of entities included."""
        now_s, told = self.now_s(), dict[str, Units]()
        for name in dict.fromkeys(resources):
            known_s, units = self._units.get(name, (float("-inf"), {}))
            if now_s - known_s >= UNITS_SECONDS:
                own, _ = await self.server.repository.list_entities_with_custom_limits(
                    name, UNITS_ENTITIES_MAX
                )
                places = [(one, name) for one in (NOBODY, *own)]
                units = agreed((await units_of_places(self.scope, places)).values())
                while len(self._units) >= RESOURCES_MAX:
                    del self._units[next(iter(self._units))]
                self._units[name] = (now_s, units)
            told[name] = units
        return told

    def counters(self) -> dict[str, int]:
        """What this worker's own limiter has counted since it was started."""
        if (watch := self.server.watch) is not None:
            return {name: int(value) for name, value in asdict(watch.counters).items()}
        limiter = self.server.limiter
        return {
            "degraded": limiter.degraded,
            "refunds_lost": limiter.refunds_lost,
            "seats_lost": limiter.seats_lost,
        }

    async def processes(self) -> list[ProcessReport]:
        """What processes that share their telemetry have told lately."""
        await self._hear()
        return self._heard

    def now_s(self) -> float:
        """The time of this worker."""
        return self.server.world.ticks_ms() / 1000

    def _look(self) -> BucketSampler:
        """Note that somebody looks, and go on, or begin, to go through the buckets."""
        if self._sampler is None:
            self._sampler = BucketSampler(self.scope)
        self._looked_s, self._reads_left = self.now_s(), READS_PER_LOOK_MAX
        if not self.is_going and not self.server.stopping.is_set():
            self._round = self.server.beside(self._go_round(self._sampler))
        return self._sampler

    async def _go_round(self, sampler: BucketSampler) -> None:
        """Go through the buckets for as long as somebody looks, and no faster than is allowed."""
        rate = self.reads_per_second / 2
        rows, began_s, round_s = max(5, min(ROWS_MAX, int(rate / 2))), self.now_s(), self.now_s()
        is_paid = self.server.repository.capabilities.name in PAID
        while self.now_s() - self._looked_s < IDLE_SECONDS and self._reads_left > 0:
            turn_s = self.now_s()
            try:
                is_round = await sampler.turn(rows)
            except ZAELimiterError as error:  # the store is down, or was closed: whoever looks is told
                logger.info("buckets could not be gone through: %s", type(error).__name__)
                self._has_waited = False
                return
            finally:
                self._reads_left -= rows
            took_s = self.now_s() - turn_s
            in_hurry = not is_paid and not self._first_round.is_set()
            pause_s = max(rows / rate, took_s * (1 / SHARE_MAX - 1))
            if is_round:
                self._first_round.set()
                pause_s = max(pause_s, round_s + ROUND_SECONDS - self.now_s())
                round_s = self.now_s() + pause_s
            elif in_hurry and self.now_s() - began_s < HURRY_SECONDS:
                pause_s = took_s  # half of the time is for others even then
            await asyncio.sleep(pause_s)

    async def _read_near(self, sample: Sample) -> list[SeenBucket]:
        """Those that seem nearest to empty, and those who were refused lately, as they are."""
        places = [one.place for one in sample.buckets[:CANDIDATES_MAX]]
        refused = dict.fromkeys((one.entity_id, one.resource) for one in await self.refusals())
        seen = await look_at(self.scope, [*places, *list(refused)[:REFUSED_MAX]])
        return nearest_first(seen, NEAR_MAX)

    async def _hear(self) -> None:
        """Hear what other processes tell, if that has not just been done."""
        async with self._hearing:
            pause_s = max(HEAR_SECONDS / 2, len(self._heard) / (self.reads_per_second / 2))
            if self.now_s() - self._heard_s >= pause_s:
                self._heard = await self.server.repository.get_reports()
                self._heard_s = self.now_s()

    def _told(self) -> Iterable[Refusal]:
        """Each refusal once: what this process has told others it knows better itself."""
        if (watch := self.server.watch) is None:
            return [one for report in self._heard for one in report.refusals]
        name, own_id = process_name(), "" if watch.sharing is None else watch.sharing.process_id
        own = [replace(one, process=name) for one in watch.recent]
        others = [report for report in self._heard if report.process_id != own_id]
        return [*own, *(one for report in others for one in report.refusals)]
