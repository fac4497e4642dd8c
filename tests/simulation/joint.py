"""Clients who ask for several entities at once: all or none, and their common parents once for the sum."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING

from tests.simulation.parking import Cancelled, pause
from tests.simulation.readers import Reader
from zae_limiter.exceptions import RateLimiterUnavailable, RateLimitExceeded
from zae_limiter.joint import JointLease
from zae_limiter.limiter import RateLimiter
from zae_limiter.models.demand import Demand

if TYPE_CHECKING:
    from tests.simulation.theorem import Scenario

AMOUNTS = ({"fast": 1, "slow": 1}, {"fast": 2}, {"slow": 7}, {"fast": 2, "slow": 5})


class JointlyAborted(Exception):
    """The work under a lease for several demands failed."""


class JointAttempt:
    """One acquire of several demands by one client, and what its parts may have cost."""

    def __init__(self, scenario: Scenario, demands: list[Demand], parents: tuple[str, ...]) -> None:
        self._scenario, self._demands, self._parents = scenario, demands, parents
        self.most: dict[str, Counter[str]] = {}
        for demand in demands:
            self.most.setdefault(demand.entity_id, Counter()).update(demand.consume)
        self.consumed: dict[str, Mapping[str, int]] = {}
        self.lease: JointLease | None = None

    async def run(self, limiter: RateLimiter) -> None:
        scenario, rng = self._scenario, self._scenario.simulation.rng
        faulty, counted = scenario.fault_rate > 0 or scenario.rough, limiter.refunds_lost
        leaves = rng.random() < 0.2
        certain = not (leaves and faulty)  # who leaves is not told what could not be stored
        try:
            acquisition = limiter.acquire(self._demands)
            async with Reader(acquisition) if leaves else acquisition as lease:
                assert isinstance(lease, JointLease)
                self.lease = lease
                try:
                    await self._work(lease)
                except GeneratorExit:  # what was done until then is paid for
                    self._note(lease)
                    raise
                self._note(lease)  # a cancellation from here on finds the work done
            scenario.admitted += 1
            scenario.simulation.faults["admitted jointly"] += 1
        except RateLimitExceeded as refusal:
            scenario.refused += 1
            scenario.simulation.faults["refused jointly"] += 1
            scenario._check_waits(refusal)
        except JointlyAborted:
            pass
        except RateLimiterUnavailable as failure:
            certain = False
            scenario._check_counted(failure, limiter.refunds_lost - counted)
        except (Cancelled, GeneratorExit) as error:
            stays = scenario.throwing and scenario.crash_rate == 0
            certain = (isinstance(error, Cancelled) or stays) and not faulty
            raise
        finally:
            self._enter(certain=certain, faulty=faulty, lost=limiter.refunds_lost != counted)

    async def _work(self, lease: JointLease) -> None:
        rng = self._scenario.simulation.rng
        await pause()
        part = rng.choice(lease.parts)
        if rng.random() < 0.2:
            self.most[part._entity_id].update(fast=1)
            await part.consume(fast=1)
        if rng.random() < 0.4:
            change = rng.choice((-1, 3, 20))
            if part.consumed.get("fast", 0) + change >= 0:
                self.most[part._entity_id].update(fast=max(0, change))
                await part.adjust(fast=change)
        if rng.random() < 0.2:
            raise JointlyAborted

    def _note(self, lease: JointLease) -> None:
        self.consumed = {part._entity_id: part.consumed for part in lease.parts}

    def _enter(self, *, certain: bool, faulty: bool, lost: bool) -> None:
        """Enter what the families of all parts have paid."""
        scenario = self._scenario
        for entity_id, most in self.most.items():
            payers = (entity_id, *self._parents)
            if certain and (self.consumed or not faulty):
                part = None if self.lease is None else self.lease.part(entity_id=entity_id)
                scenario._enter(part, self.consumed.get(entity_id, {}), most)
            else:
                scenario.books.enter(payers, {}, most)
            if certain and lost:  # perhaps of a family charged by mistake
                scenario.books.enter(payers, {}, most)
