"""Trouble that lasts: spells in which the store, or the way to it, is bad for everybody or for one.

Single requests and replies that get lost are the network's own business. A spell goes on for a while
and hits every call: that is what retries and patience are made for.
"""

from __future__ import annotations

from .simulation import Process, Simulation, Spell, Trouble

SPELL_MS = (20, 200, 3_000)
STEP_MS = (-2_000, -100, 100, 2_000)
DRIFT_PER_MILLE = (-5, 5, 20)


class Weather:
    """Which spell is on, and whose clocks go wrong."""

    def __init__(self, simulation: Simulation, *, rough: bool) -> None:
        self._simulation, self._rough = simulation, rough
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
            rng.choice(processes).step_clock(rng.choice(STEP_MS))
            self._simulation.faults["clock step"] += 1
        if rng.random() < 0.002:
            rng.choice(processes).drift_clock(rng.choice(DRIFT_PER_MILLE))
            self._simulation.faults["clock drift"] += 1

    def over(self, process: Process) -> Spell | None:
        """The spell that a process is under now."""
        spell = self._spell
        if spell is not None and spell.until_ms <= self._simulation.now_ms:
            spell = self._spell = None
        return spell if spell is None or spell.victim in (None, process) else None

    def clear(self) -> None:
        self._rough, self._spell = False, None
