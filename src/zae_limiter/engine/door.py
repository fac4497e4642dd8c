"""The one door to the buckets: every write to a bucket goes through here, whoever makes it.

A process shapes its next write by the image that it saw last, and refuses for a moment by what it was told.
So whatever a reply says of a bucket is noted here, before whoever wrote goes on. Acquires, refunds and
settlements come by way of the line; splits, prolonged lives, changes of limits and families, deletions,
migrations and the upkeep of the aggregator come by themselves. None of them asks a store itself.

Records that are no buckets may come along, for a transaction can have both. The door decides nothing: what a
write says, and what becomes of its outcome, is for whoever makes it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..repository_protocol import Backend, Item, Key, Outcome, Swap, Write
from ..schema import sk_state
from .seen_buckets import SeenBuckets

STATE = sk_state()


class Call:
    """How far a call to the store has come, for whoever finds it interrupted."""

    asked: bool = False
    replies: Sequence[Outcome] | None = None


async def write_each(
    backend: Backend,
    seen: SeenBuckets | None,
    writes: Sequence[Write],
    call: Call | None = None,
    *,
    together: bool = False,
) -> list[Outcome]:
    """Perform each write on its own, or all ``together`` or none, and note what became of the buckets.

    ``seen`` is what this process remembers of them; whoever remembers nothing has none.
    """
    call = call or Call()
    call.asked = True
    call.replies = outcomes = await (backend.transact_write if together else backend.write_each)(writes)
    if seen is not None:
        for write, outcome in zip(writes, outcomes, strict=True):
            if write.key.sort == STATE:
                seen.learn(write, outcome)
    return outcomes


async def write_together(
    backend: Backend, seen: SeenBuckets | None, writes: Sequence[Write], call: Call | None = None
) -> list[Outcome]:
    """Perform all writes or none, as ``write_each`` does."""
    return await write_each(backend, seen, writes, call, together=True)


def swap_at_once(
    seen: SeenBuckets,
    swap: Swap,
    key: Key,
    image: Item,
    changed: Mapping[str, int],
    changes: int | None,
    at_ms: int,
) -> Item | None:
    """Replace the image of a bucket, and note the new one; ``None`` if nothing happened."""
    new = swap(key, image, changed, changes, at_ms)
    if new is not None:
        seen.images[key] = new
    return new
