"""Who brings the batches where there is no Lambda.

A source takes one step at a time: it fetches some records, has them processed, and only then notes how
far it got. Whoever is killed in between sees some records again, which changes nothing.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol

from zae_limiter.backends.change_log import ChangeLog
from zae_limiter.repository_protocol import Backend
from zae_limiter.runtime.world import World
from zae_limiter.schema import bucket_address

from .changes import Change, numbered
from .processor import Settings, Tally, process_changes

BATCH_RECORDS_MAX = 1_000


class Source(Protocol):
    async def start(self) -> None:
        """Get ready, or say what is missing."""
        ...

    async def step(self) -> Tally:
        """Process what is there, up to a batch or so; no records means that there is nothing now."""
        ...

    async def close(self) -> None: ...


class LogSource:
    """The log of an embedded store. It is its own note: what was counted is trimmed.

    Nobody but our own clients reads such a store, so its buckets need no looking after.
    """

    def __init__(self, backend: Backend, log: ChangeLog, world: World, settings: Settings) -> None:
        self._backend, self._log, self._world = backend, log, world
        self._settings = replace(settings, tend_buckets=False)

    async def start(self) -> None:
        """The store keeps its log by itself."""

    async def step(self) -> Tally:
        entries = self._log.read(BATCH_RECORDS_MAX)
        if not entries:
            return Tally()
        changes = [
            Change(
                entry.key, entry.old, entry.new, entry.at_ms, numbered(entry.position), str(entry.position)
            )
            for entry in entries
            if bucket_address(entry.key) is not None
        ]
        tally = await process_changes(changes, self._backend, self._world, self._settings)
        tally.records = len(entries)
        if not tally.failed:
            self._log.trim(entries[-1].position)
        return tally

    async def close(self) -> None:
        self._log.close()
