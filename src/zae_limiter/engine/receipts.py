"""A receipt: a record of what was taken, written by the very transaction that takes it.

Whoever holds a lease in memory answers for it as long as the process lives. A lease that is to outlive its
process is a record: so it and the debit are there together or not at all, and at whatever step a process is
killed nobody is in doubt about tokens. From then on the record answers, and the holding in memory does not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeAlias

from ..repository_protocol import Delete, Item, Key, Write
from ..schema import LIFE, pinned
from .demand import BucketDemand, Take


class RecordedBefore(Exception):
    """There is a record under this key: nothing was taken, and what it says goes."""


class Receipt(Protocol):
    """The record of one acquire."""

    is_written: bool

    async def check_new(self) -> None:
        """Raise ``RecordedBefore`` if there is a record under this key."""

    def write(self, takes: Sequence[Take]) -> Write:
        """The write that makes the record, on condition that there is none."""

    async def undo(self) -> None:
        """Give all of it back, and forget the record."""


Beside: TypeAlias = Callable[[], Write] | None
"""Makes the write of a record once the buckets beside it were read; or there is none."""

Record: TypeAlias = Callable[[Sequence[BucketDemand]], Write]
"""From what is about to be taken, the write that goes with it."""


def with_record(writes: list[Write], beside: Beside, images: Mapping[Key, Item | None]) -> list[Write]:
    """Writes to buckets with the record that goes with them, on condition that these are what it says."""
    if beside is None:
        return writes
    return [*(_on_that_life(write, images.get(write.key)) for write in writes), beside()]


def _on_that_life(write: Write, image: Item | None) -> Write:
    """A write to a bucket, on condition that it is the one that an image shows."""
    if image is None or isinstance(write, Delete):
        return write
    return write._replace(when=(*write.when, *pinned(image, LIFE)))
