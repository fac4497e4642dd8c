"""What all views of one opened store share: the backend, the writer, the cache of records.

Reads of cached records go through ``fetch``. Misses become one batch read; a record that another
task or thread is already fetching is waited for instead of being read twice, and nobody waits for
records it did not ask for.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final

from ..config_cache import ConfigCache
from ..engine.group_commit import BucketWriter
from ..exceptions import RateLimiterUnavailable
from ..models import OnUnavailable
from ..repository_protocol import Backend, Item, Key
from ..runtime.colour import LAST_WORDS_SECONDS, ForkSafe, Signal, taken
from ..runtime.world import ULID_LETTERS, World


@dataclasses.dataclass(frozen=True, slots=True)
class Options:
    """How a repository behaves, whatever its store."""

    config_cache_ttl_seconds: float = 60
    bucket_ttl_multiplier: int = 7
    on_unavailable: OnUnavailable = OnUnavailable.BLOCK
    audit_retention_days: int = 90
    remembered_max: int = 100_000
    """How many records, buckets and plans each a process keeps in memory, at about 1 KB apiece."""


class SharedRead:
    """A batch read under way, and what it brought."""

    def __init__(self, signal: Signal) -> None:
        self.signal = signal
        self.found: dict[Key, Item | None] = {}
        self.failure: RateLimiterUnavailable | None = None


class ReadsUnderWay:
    """Which record is being fetched by whom. A forked child starts with none of its parent's."""

    def __init__(self) -> None:
        self.lock: Final = threading.Lock()
        self.by_key: dict[Key, SharedRead] = {}

    def drop(self, matches: Callable[[Key, SharedRead], bool], seconds: float = -1) -> None:
        """Let nobody else wait for some reads."""
        for _ in taken(self.lock, seconds):
            try:
                for key in [key for key, read in self.by_key.items() if matches(key, read)]:
                    del self.by_key[key]
            finally:
                self.lock.release()


class Connection:
    def __init__(self, backend: Backend, world: World, options: Options, url: str = "") -> None:
        self.backend = backend
        self.world = world
        self.options = options
        self.url = url
        self.measured: Any = None
        """The store as it was last measured; it is around ``backend`` only while somebody looks."""
        self.writer: BucketWriter = BucketWriter(backend, world, options.remembered_max)
        self.cache: Final = ConfigCache(options.config_cache_ttl_seconds * 1000, options.remembered_max)
        self._last_event_id = ""
        self._numbering = ForkSafe(threading.Lock)
        self.client: Mapping[str, object] = {}
        """The session and config of botocore that the store was opened with, if any."""
        self._reads = ForkSafe(ReadsUnderWay)
        self.is_closed: bool = False
        self._changes = backend.changes
        """How this store tells that somebody else changed a record, if it can."""
        self._news, self._heard = backend.news, 0
        """How it lets us hear of changes that concern many, if it does, and what we heard last."""

    async def close(self) -> None:
        """Let go of the store, and let nobody take from it by what is remembered."""
        self.is_closed = True
        self.cache.invalidate_all()
        await self.writer.close()
        await self.backend.close()

    @property
    def tells_changes(self) -> bool:
        """Whether the store tells everybody of changes by itself."""
        return self._changes is not None

    async def notice_changes(self) -> None:
        """Remember no record that somebody else may have changed, as far as the store can tell."""
        if self._news is not None and (heard := self._news()) != self._heard:
            self._reconsider()
            self.cache.invalidate_all()
            self._heard = heard
        if self._changes is not None and (changes := await self._changes()) != self.cache.changes:
            self._reconsider()  # before anybody finds the count here, and trusts what is remembered
            self.cache.notice(changes)

    def _reconsider(self) -> None:
        """Let nothing count that was planned or asked for before a change."""
        self.writer.reconsider()
        self._reads.get().drop(lambda *_: True)

    async def fetch(
        self, records: Sequence[Key], buckets: Sequence[Key] = (), *, fresh: bool = False
    ) -> list[Item | None]:
        """Cached records; unknown buckets are read on the same trip and left with the writer.

        While the store is down, the last known value of a record stands in for it, unless it must be
        ``fresh``.
        """
        ticks_ms = self.world.ticks_ms()
        found: dict[Key, Item | None] = {}
        missing: list[Key] = []
        for key in records:
            entry = None if fresh else self.cache.get(key, ticks_ms)
            if entry is None:
                missing.append(key)
            else:
                found[key] = entry.item
        unknown = [key for key in buckets if fresh or not self.writer.knows(key)]
        if missing or unknown:
            try:
                found |= await self._read(missing, unknown, share=not fresh)
            except RateLimiterUnavailable:
                found |= {key: entry.item for key in missing if (entry := self.cache.last_known(key))}
                if unknown or fresh or not found.keys() >= set(missing):
                    raise
        return [found[key] for key in records]

    def next_event_id(self) -> str:
        """A ULID that sorts behind all that this process made, in the same millisecond too."""
        with self._numbering.get():
            self._last_event_id = max(self.world.new_ulid(), ulid_after(self._last_event_id))
            return self._last_event_id

    def learn(self, key: Key, item: Item | None) -> None:
        """Remember a record as this process has just written it."""
        self.cache.put(key, item, self.world.ticks_ms(), self.cache.set_out())
        self._reads.get().drop(lambda other, _: other == key)

    def invalidate(self, matches: Callable[[Key], bool]) -> None:
        """Read records anew when they are next asked for, and not from reads that set out too early."""
        self.cache.invalidate(matches)
        self._reads.get().drop(lambda key, _: matches(key))

    def invalidate_keys(self, keys: Collection[Key]) -> None:
        """The same of records that this process has just written."""
        self.cache.invalidate_keys(keys)
        self._reads.get().drop(lambda key, _: key in keys)

    async def _read(
        self, missing: Sequence[Key], unknown: Sequence[Key], *, share: bool
    ) -> dict[Key, Item | None]:
        reads, read = self._reads.get(), SharedRead(self.backend.colour.signal())
        wanted = [*missing, *unknown]
        try:
            with reads.lock:
                others = {key: reads.by_key[key] for key in wanted if share and key in reads.by_key}
                mine = [key for key in wanted if key not in others]
                reads.by_key.update(dict.fromkeys(mine, read))
            if mine:
                await self._perform(read, mine, frozenset(unknown))
            _finish(reads, read)
        except BaseException as error:
            if isinstance(error, RateLimiterUnavailable):
                read.failure = error
            _finish(reads, read, LAST_WORDS_SECONDS if isinstance(error, GeneratorExit) else -1)
            raise
        found = dict(read.found)
        for key, other in others.items():
            # Whoever reads may be on an event loop that was closed, and never finish.
            await other.signal.wait(self.backend.capabilities.timeout_ms / 1000)
            if (failure := other.failure) is not None:
                raise RateLimiterUnavailable(str(failure), misconfigured=failure.misconfigured) from failure
            if key in other.found:
                found[key] = other.found[key]
        if left := [key for key in others if key not in found]:
            # Whoever was fetching them was cancelled or is gone; now they are ours to fetch.
            buckets = [key for key in left if key in unknown]
            found |= await self._read([key for key in left if key not in buckets], buckets, share=False)
        return found

    async def _perform(self, read: SharedRead, keys: Sequence[Key], buckets: frozenset[Key]) -> None:
        number, since_ms = self.cache.set_out(), self.world.ticks_ms()
        items = await self.backend.batch_get(keys)
        for key, item in zip(keys, items, strict=True):
            read.found[key] = item
            if key in buckets:
                self.writer.remember({key: item})
            else:
                self.cache.put(key, item, since_ms, number)


def _finish(reads: ReadsUnderWay, read: SharedRead, seconds: float = -1) -> None:
    """Let nobody wait for a read any more; it may be said twice."""
    reads.drop(lambda _, other: other is read, seconds)
    read.signal.give()


def ulid_after(ulid: str) -> str:
    """The next id in the order of their letters."""
    kept = ulid.rstrip(ULID_LETTERS[-1])
    if not kept:
        return ""
    following = ULID_LETTERS[ULID_LETTERS.index(kept[-1]) + 1]
    return kept[:-1] + following + ULID_LETTERS[0] * (len(ulid) - len(kept))
