"""Bugs of the kind that only one order of things brings out; each breaks the core while it is planted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tests.simulation.bugs import BUGS, GIVE_BACK
from tests.simulation.search import Line
from zae_limiter.backends.memory import MemoryBackend
from zae_limiter.engine.bucket_view import level
from zae_limiter.engine.bucket_writes import write_for
from zae_limiter.engine.demand import BucketDemand
from zae_limiter.engine.group_commit import BucketWriter
from zae_limiter.engine.settle import give_back
from zae_limiter.repository_protocol import Equal, Item, Key, Outcome, Put, Update, Write


async def _refund_twice(writer: BucketWriter, taken: Sequence[BucketDemand]) -> None:
    again = list(taken)  # who gives back takes off the list what it answers for
    await give_back(writer, taken)
    await give_back(writer, again)


_write_one = Line._write_one


async def _sent_again(line: Line, write: Write) -> Outcome:
    """A driver that repeats what was not answered."""
    outcome = await _write_one(line, write)
    return await _write_one(line, write) if outcome.failure is not None else outcome


def _swap_of_a_stale_image(
    store: MemoryBackend, key: Key, image: Item, changed: Mapping[str, int], *_: object
) -> Item | None:
    """A swap that compares the origin, which says nothing of what was taken since."""
    present = store._shelf.items.get(key)
    if present is None or present.get("rf") != image.get("rf"):
        return None
    new = {**image, **changed}
    store._shelf.items[key] = new
    return new


def _unpinned(*given: Any) -> Write | None:
    """A write that fits whatever limits the bucket has by now."""
    write = write_for(*given)
    if not isinstance(write, Update):
        return write
    kept = tuple(c for c in write.when if not (isinstance(c, Equal) and c.attribute in ("rf", "cv")))
    return write._replace(when=kept)


def _careless_creation(*given: Any) -> Write | None:
    """A bucket that is made although somebody else has just made it."""
    write = write_for(*given)
    return write._replace(when=()) if isinstance(write, Put) else write


def _timid(postings: Sequence[Any], terms: Any, image: Any, now_ms: int) -> list[bool]:
    """A token is always kept in reserve."""
    return [
        all(level(terms, n, image, now_ms).balance(now_ms) > need + 1000 for n, need in posting.need.items())
        for posting in postings
    ]


PLANTED: dict[str, dict[str, Any]] = {
    **{bug: BUGS[bug] for bug in ("no_floor", "no_clamp", "no_refund", "overdrawn_at_once", "tail_first")},
    "refunded_in_full": BUGS["refunded_in_full"],
    "refund_twice": dict.fromkeys(GIVE_BACK, _refund_twice),
    "sent_again": {"tests.simulation.search.Line._write_one": _sent_again},
    "stale_swap": {"zae_limiter.backends.memory.MemoryBackend.swap": _swap_of_a_stale_image},
    "unpinned": {"zae_limiter.engine.group_commit.write_for": _unpinned},
    "careless_creation": {"zae_limiter.engine.group_commit.write_for": _careless_creation},
    "timid": {"zae_limiter.engine.group_commit.fitting": _timid},
    "deaf_line": {"zae_limiter.engine.line.Ticket.wake": lambda _: None},
}
