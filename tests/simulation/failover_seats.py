"""Seats of a store that fails over: who is at work, and what its bucket has forgotten of that.

A seat that is taken, or renewed, by a write that is lost is held by somebody whom the bucket does not know.
Until it ends or finds out, one more may be at work. Nothing else is: whoever counts as lost is counted from
the images, and all seats are there again when the last ``hold`` is over.
"""

from __future__ import annotations

import random
from collections import Counter

from tests.simulation.failovers import LAGS_MS, LOST_MAX, SPLIT_MS
from tests.simulation.replicated import Client, Replicated
from tests.simulation.seating import NAME, Seating
from tests.simulation.simulation import Process
from zae_limiter.backends.memory import MemoryBackend
from zae_limiter.engine.seats import places
from zae_limiter.repository_protocol import Item, Outcome, Write
from zae_limiter.schema import parse_bucket_pk, sk_state


class FailoverSeats(Seating):
    """One seed's world."""

    replicas: Replicated | None = None

    def __init__(self, seed: int) -> None:
        self._moved: dict[int, Counter[str]] = {}
        self._heal_at_ms: int | None = None
        super().__init__(seed)
        assert self.replicas is not None
        self.replicas.primary.log.clear()
        self._failovers = self.simulation.rng.choice((1, 2, 3))
        self._splits = self.simulation.rng.random() < 0.4

    def _dice(self, seed: int) -> random.Random:
        return random.Random(f"failover seats {seed}")

    def _store_of(self, process: Process) -> MemoryBackend:
        self.replicas = self.replicas or Replicated(self.simulation)
        return self.replicas.open(process)

    @property
    def is_troubled(self) -> bool:
        return True

    def _see(self, store: MemoryBackend, write: Write, before: Item | None, outcome: Outcome) -> None:
        super()._see(store, write, before, outcome)
        assert isinstance(store, Client)
        assert self.replicas is not None
        if write.key.sort != sk_state() or outcome.item is None or not outcome.applied:
            return
        taken = Counter({place.until: place.taken for place in places(outcome.item, NAME)})
        taken.subtract({place.until: place.taken for place in places(before or {}, NAME)})
        whose, count = parse_bucket_pk(write.key.partition).entity_id, (+taken).total()
        if store.primary is self.replicas.primary:
            self._moved.setdefault(id(store.primary.log[-1]), Counter())[whose] += count
        else:
            self.excess[whose] += count

    def _strike(self) -> None:
        super()._strike()
        rng, replicas, simulation = self.simulation.rng, self.replicas, self.simulation
        assert replicas is not None
        if self._heal_at_ms is not None and simulation.now_ms >= self._heal_at_ms:
            replicas.heal()
            self._heal_at_ms = None
        if not self._failovers or replicas.is_split or rng.random() > 0.02:
            return
        if lost := replicas.behind(rng.choice(LAGS_MS), rng.choice(LOST_MAX)):
            self._failovers -= 1
            splits = self._splits and rng.random() < 0.7
            failover = replicas.fail_over(lost, 0, lambda: splits and rng.random() < 0.5)
            for entry in failover.undone:
                self.excess.update(self._moved.get(id(entry), {}))
            simulation.faults["seats failed over"] += 1
            if splits:
                self._heal_at_ms = simulation.now_ms + rng.choice(SPLIT_MS)

    def _check_free(self) -> None:
        assert self.replicas is not None
        self.replicas.heal()
        super()._check_free()
