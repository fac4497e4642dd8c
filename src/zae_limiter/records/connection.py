"""What all views of one opened store share: the backend, the teller, the cache of records.

Reads of cached records go through ``fetch``. Misses become one batch read; a record that another
task or thread is already fetching is waited for instead of being read twice, and nobody waits for
records it did not ask for.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Sequence

from .._colour import Signal
from ..config_cache import ConfigCache
from ..exceptions import RateLimiterUnavailable
from ..models import OnUnavailable
from ..repository_protocol import Backend, Item, Key
from ..teller import Teller
from ..world import World


@dataclasses.dataclass(frozen=True, slots=True)
class Options:
    """How a repository behaves, whatever its store."""

    config_cache_ttl_seconds: float = 60
    bucket_ttl_multiplier: int = 7
    on_unavailable: OnUnavailable = OnUnavailable.BLOCK
    usage_retention_days: int = 90
    audit_retention_days: int = 90


class Flight:
    """A batch read under way, and what it brought."""

    def __init__(self, signal: Signal) -> None:
        self.signal = signal
        self.landed: dict[Key, Item | None] = {}


class Connection:
    def __init__(self, backend: Backend, world: World, options: Options, url: str = "") -> None:
        self.backend, self.world, self.options, self.url = backend, world, options, url
        self.teller = Teller(backend, world)
        self.cache = ConfigCache(options.config_cache_ttl_seconds * 1000)
        self._flights: dict[Key, Flight] = {}
        self._registering = threading.Lock()

    async def fetch(
        self, records: Sequence[Key], buckets: Sequence[Key] = (), *, fresh: bool = False
    ) -> list[Item | None]:
        """Cached records; unknown buckets are read on the same trip and left with the teller.

        While the store is down, the last known value of a record stands in for it.
        """
        now_ms = self.world.now_ms()
        found: dict[Key, Item | None] = {}
        missing: list[Key] = []
        for key in records:
            entry = None if fresh else self.cache.get(key, now_ms)
            if entry is None:
                missing.append(key)
            else:
                found[key] = entry.item
        unknown = [key for key in buckets if fresh or not self.teller.knows(key)]
        if missing or unknown:
            try:
                found |= await self._read(missing, unknown, fresh=fresh)
            except RateLimiterUnavailable as error:
                if unknown:
                    raise
                found |= self._last_known(missing, error)
        return [found[key] for key in records]

    async def _read(
        self, missing: Sequence[Key], unknown: Sequence[Key], *, fresh: bool
    ) -> dict[Key, Item | None]:
        with self._registering:
            others = {} if fresh else {key: self._flights[key] for key in missing if key in self._flights}
            mine = [key for key in missing if key not in others]
            flight = Flight(self.backend.colour.signal())
            self._flights.update(dict.fromkeys(mine, flight))
        try:
            if mine or unknown:
                items = await self.backend.batch_get([*mine, *unknown])
                now_ms = self.world.now_ms()
                for key, item in zip(mine, items, strict=False):
                    flight.landed[key] = item
                    self.cache.put(key, item, now_ms)
                self.teller.remember(dict(zip(unknown, items[len(mine) :], strict=True)))
        finally:
            with self._registering:
                for key in mine:
                    if self._flights.get(key) is flight:
                        del self._flights[key]
            flight.signal.give()
        found = dict(flight.landed)
        for key, other in others.items():
            await other.signal.wait()
            # Whoever fetched it may have failed or been cancelled; then it is ours to fetch.
            found[key] = (
                other.landed[key] if key in other.landed else (await self.backend.batch_get([key]))[0]
            )
        return found

    def _last_known(self, missing: Sequence[Key], error: RateLimiterUnavailable) -> dict[Key, Item | None]:
        entries = {key: self.cache.last_known(key) for key in missing}
        if any(entry is None for entry in entries.values()):
            raise error
        return {key: entry.item for key, entry in entries.items() if entry is not None}
