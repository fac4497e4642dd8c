"""What this process remembers of stored records, and for how long: no I/O.

One entry for each record, so that a change of a resource's limits reaches all of its entities with
one read. A record that is known to be missing is remembered too. An entry past its time is a miss,
but it is kept: while the store is down the last known value still serves. Instants are ticks: who sets the
machine's clock neither prolongs nor ends what is remembered.

Reads may overtake each other and invalidations. So each is numbered when it sets out, and what it
brings counts only as far as nothing was learnt or asked to be forgotten since. No lock is taken:
every step is one operation on the dictionary, and a fork finds nothing held.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import count

from .models import CacheStats
from .repository_protocol import Item, Key


@dataclass(slots=True, eq=False)
class Entry:
    """A record as it was read, and the tick at which that is out of date.

    Who keeps an entry sees when it is put out of date before: ``expires_ms`` is 0 then.
    """

    item: Item | None
    expires_ms: float
    read: int


class ConfigCache:
    """Records by key, for ``ttl_ms`` each; a ``ttl_ms`` of 0 remembers for emergencies only."""

    def __init__(self, ttl_ms: float, entries_max: int = 100_000) -> None:
        self.ttl_ms = ttl_ms
        self._entries: OrderedDict[Key, Entry] = OrderedDict()
        self._entries_max = entries_max
        self._reads = count(1)
        self._invalidated = 0
        self._floor = 0
        """Reads up to this one count no more, whatever they brought."""
        self.changes: int | None = None
        """By which count of the store's changes the entries are right, if the store counts them."""
        self.withdrawals: int = 0
        """How often an entry that somebody may keep was put out of date before its time."""
        self.hits: int = 0
        self.misses: int = 0

    def get(self, key: Key, ticks_ms: float) -> Entry | None:
        """The entry if it is fresh."""
        entry = self._entries.get(key)
        if entry is not None and ticks_ms < entry.expires_ms and entry.read > self._floor:
            self.hits += 1
            return entry
        self.misses += 1
        return None

    def last_known(self, key: Key) -> Entry | None:
        """The entry however old."""
        return self._entries.get(key)

    @property
    def is_told(self) -> bool:
        """Whether the store tells of changes, so that entries are right and not only young."""
        return self.changes is not None

    def expiry_ms(self, entries: Sequence[Entry]) -> float:
        """Until when all of some entries are fresh."""
        floor = self._floor
        return min(entry.expires_ms if entry.read > floor else 0 for entry in entries)

    def notice(self, changes: int) -> None:
        """The store's count of changes; if it is a new one, every entry may be wrong."""
        if changes != self.changes:
            self.invalidate_all()
            self.changes = changes  # last, for another thread that finds it here trusts the entries

    def invalidate_all(self) -> None:
        """Let every entry expire, however many there are."""
        self._floor = self._invalidated = self.set_out()
        self.withdrawals += 1

    def set_out(self) -> int:
        """The number of a read that begins now, or of a write that has just ended."""
        return next(self._reads)

    def put(self, key: Key, item: Item | None, since_ms: float, read: int) -> None:
        """Remember what a read brought that set out at the tick ``since_ms``."""
        known = self._entries.pop(key, None)
        if known is not None and known.read > read:
            entry = known
        else:
            entry = Entry(item, since_ms + self.ttl_ms if read > self._invalidated else 0, read)
            if known is not None:
                self._withdraw(known)
        self._entries[key] = entry
        if (
            entry.read <= self._invalidated
        ):  # asked once more, for another thread may have looked for it before
            self._withdraw(entry)
        if len(self._entries) > self._entries_max:
            with suppress(KeyError):  # another thread was faster
                self._withdraw(self._entries.popitem(last=False)[1])

    def invalidate(self, matches: Callable[[Key], bool]) -> None:
        """Let entries expire; their last known value stays for emergencies.

        Reads that are under way may have seen what was there before, so they refresh nothing.
        """
        self._invalidated = self.set_out()
        self.invalidate_keys([key for key in list(self._entries) if matches(key)])

    def invalidate_keys(self, keys: Iterable[Key]) -> None:
        """The same of some records, however many others there are."""
        self._invalidated = self.set_out()
        for key in keys:
            if (entry := self._entries.get(key)) is not None:
                self._withdraw(entry)

    def _withdraw(self, entry: Entry) -> None:
        entry.expires_ms = 0
        self.withdrawals += 1

    def stats(self) -> CacheStats:
        return CacheStats(self.hits, self.misses, len(self._entries), self.ttl_ms / 1000)
