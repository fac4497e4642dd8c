"""What the embedded stores remember of their buckets, so that what was used can be told later."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from ..repository_protocol import Item, Key
from ..schema import is_deleted

HOUR_MS = 3_600_000
MARKS_MAX = 20_000
"""How many marks a diary keeps for a reader who does not come; then the oldest bucket's go."""


class Mark(NamedTuple):
    """What a bucket was before a write, and when; ``gone`` if it was swept then."""

    image: Item | None
    at_ms: int
    gone: bool = False


class Diary:
    """What every bucket was before its first write of an hour, so that what was used can be told later.

    It costs a write a look at the clock. A bucket also gets a mark when it is made, when it says other things
    than before and not only other numbers, and when it expires. What is deleted is forgotten.
    """

    def __init__(self) -> None:
        self.marks: dict[Key, list[Mark]] = {}
        self.hours: dict[Key, int] = {}
        """In which hour a bucket was last marked; in none if it is to be marked again."""
        self._length = self._position = 0
        self.entries: deque[tuple[int, Key, Item | None, Item, int]] = deque()
        """What was worked out and not counted yet: a number, the bucket, before, after, and when."""

    def note(self, key: Key, old: Item | None, new: Item | None, now_ms: int) -> None:
        """Note a write to a bucket, before it is made."""
        if new is None or is_deleted(new):
            self.forget(key)
        elif old is None:
            self.mark(key, Mark(None, now_ms))
            self.hours.pop(key)  # what is made may have been used elsewhere, and is told from its use here
        elif self.hours.get(key) != now_ms // HOUR_MS or says_other_things(old, new):
            self.mark(key, Mark(old, now_ms))

    def mark(self, key: Key, mark: Mark) -> None:
        if self._length >= MARKS_MAX:  # before it is marked, for it may be the oldest itself
            self._unmark(next(iter(self.marks)))
        self.marks.setdefault(key, []).append(mark)
        self.hours[key] = mark.at_ms // HOUR_MS
        self._length += 1

    def forget(self, key: Key) -> None:
        """Forget what a bucket used, as if nobody had used it."""
        self._unmark(key)
        if self.entries:
            self.entries = deque(entry for entry in self.entries if entry[1] != key)

    def _unmark(self, key: Key) -> None:
        self._length -= len(self.marks.pop(key, ()))
        self.hours.pop(key, None)

    def take(self, items: Mapping[Key, Item]) -> None:
        """Work out what became of the buckets that were marked; the next write to each marks it again."""
        became = list(self._became(items))
        self.marks.clear()
        self.hours.clear()
        self._length = 0
        for one in became:
            self._position += 1
            self.entries.append((self._position, *one))

    def waits(self, items: Mapping[Key, Item]) -> bool:
        """Whether something was used that is not counted."""
        return bool(self.entries) or any(True for _ in self._became(items))

    def _became(self, items: Mapping[Key, Item]) -> Iterator[tuple[Key, Item | None, Item, int]]:
        for key, marks in self.marks.items():
            images = [*(mark.image for mark in marks[1:]), items.get(key)]
            for mark, after in zip(marks, images, strict=True):
                if after is not None and after is not mark.image and not mark.gone:
                    yield key, mark.image, after, mark.at_ms

    def trim(self, position: int) -> None:
        while self.entries and self.entries[0][0] <= position:
            self.entries.popleft()


def says_other_things(old: Item, new: Item) -> bool:
    """Whether more than numbers changed: limits that come or go, another family."""
    return (
        old.keys() != new.keys()
        or old.get("parent_id") != new.get("parent_id")
        or old.get("cascade") != new.get("cascade")
    )
