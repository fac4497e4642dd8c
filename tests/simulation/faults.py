"""Trouble that lasts: spells in which the store, or the way to it, is bad for everybody or for one.

Single requests and replies that get lost are the network's own business. A spell goes on for a while
and hits every call: that is what retries and patience are made for.
"""

from __future__ import annotations

from tests.simulation.simulation import Process, Simulation, Spell, Trouble

SPELL_MS = (20, 200, 3_000)
HOUR_MS, DAY_MS = 3_600_000, 86_400_000
STEP_MS = (100, 2_000, HOUR_MS, DAY_MS)
DRIFT_PER_MILLE = (-5, 5, 20)


class Weather:
    """Which spell is on, and whose clocks go wrong."""

    def __init__(self, simulation: Simulation, *, rough: bool, local: bool) -> None:
        self._simulation, self._rough, self._local = simulation, rough, local
        self._spell: Spell | None = None

    def blow(self, processes: list[Process]) -> None:
        """One step of the world: a spell may begin, and a clock may step or begin to drift."""
        rng = self._simulation.rng
        if not self._rough or not processes:
            return
        if self._spell is None and rng.random() < 0.01:
            trouble = rng.choice(list(Trouble))
            victim = rng.choice(processes) if trouble is Trouble.PARTITION else None
            self._spell = Spell(trouble, victim, self._simulation.now_ms + rng.choice(SPELL_MS))
            self._simulation.faults[trouble.value] += 1
        if rng.random() < 0.002:
            self._set_clocks(processes, rng.choice(STEP_MS))
        if rng.random() < 0.002 and not self._local:
            rng.choice(processes).drift_clock(rng.choice(DRIFT_PER_MILLE))
            self._simulation.faults["clock drift"] += 1

    def _set_clocks(self, processes: list[Process], by_ms: int) -> None:
        """Somebody sets the clock of a machine: of the one that all run on, or of one of many."""
        rng = self._simulation.rng
        self._simulation.faults["clock step"] += 1
        if self._local:
            for process in processes:
                process.step_clock(-by_ms)
        else:
            rng.choice(processes).step_clock(rng.choice((-by_ms, by_ms)))

    def over(self, process: Process) -> Spell | None:
        """The spell that a process is under now."""
        spell = self._spell
        if spell is not None and spell.until_ms <= self._simulation.now_ms:
            spell = self._spell = None
        return spell if spell is None or spell.victim in (None, process) else None

    def clear(self) -> None:
        self._rough, self._spell = False, None
