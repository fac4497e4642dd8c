"""The change log of a store on Redis: its marks stand in each namespace, and are read namespace by namespace.

Followers begin at a namespace by chance, so that several share the work. Two that read the same entries count
them once: positions grow, and whoever counts knows up to which it has.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...exceptions import RateLimiterUnavailable
from ...runtime.colour import run_sync
from ..change_log import LogEntry
from .encoding import item_of, key_of

if TYPE_CHECKING:
    from .backend import RedisBackend


class RedisLog:
    """Reads through a blocking store of its own."""

    def __init__(self, backend: RedisBackend) -> None:
        self._backend = backend
        self._namespace: str | None = None
        """Whose entries were read last."""

    def read(self, entries_max: int) -> list[LogEntry]:
        return run_sync(self._read(entries_max))

    def waits(self) -> bool:
        return run_sync(self._waits())

    def trim(self, position: int) -> None:
        if self._namespace is not None:
            run_sync(self._backend.ask_one(self._namespace, b"X", position))

    def close(self) -> None:
        run_sync(self._backend.close())

    async def _read(self, entries_max: int) -> list[LogEntry]:
        for namespace in await self._by_chance():
            found: Any = await self._backend.ask_one(namespace, b"R", entries_max)
            if found:
                self._namespace = namespace
                try:
                    return [_entry_of(*told) for told in found]
                except (TypeError, ValueError) as error:
                    raise RateLimiterUnavailable(f"Redis: the log cannot be read: {error}") from error
        return []

    async def _waits(self) -> bool:
        for namespace in await self._by_chance():
            if await self._backend.ask_one(namespace, b"L"):
                return True
        return False

    async def _by_chance(self) -> list[str]:
        """All namespaces, but the one whose entries were read last first."""
        found = await self._backend.namespaces()
        self._backend.carrier.world.random.shuffle(found)
        return sorted(found, key=lambda name: name != self._namespace)


def _entry_of(
    position: bytes, rest: bytes, old: list[bytes] | None, new: list[bytes], at_ms: bytes
) -> LogEntry:
    return LogEntry(int(position), key_of(rest), item_of(old or []), item_of(new) or {}, int(at_ms))
