"""A store whose replicas are a moment behind: at a failover its last transactions are undone, as wholes.

That is Redis or PostgreSQL with asynchronous replication, and just as well a server that is killed before it
has flushed what it said was done. Whatever it has answered stays answered. In a split brain the former
primary goes on to answer some clients for a while, and everything that it does from then on is lost.

It knows nothing of buckets and of nobody's intentions: a transaction is some items as they were before it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from tests.simulation.simulation import Process, Simulation
from zae_limiter.backends.memory import MemoryBackend
from zae_limiter.backends.shelf import Shelf
from zae_limiter.repository_protocol import Changes, Item, Key, Outcome, Write


class Entry(NamedTuple):
    """One transaction that a primary has carried out."""

    at_ms: int
    before: dict[Key, Item | None]
    changes: int
    """How many changes of records that clients remember the primary had counted before it."""


class Primary(Shelf):
    """A server that answers clients, with the log that its replicas follow."""

    def __init__(self, clock_ms: int = 0) -> None:
        super().__init__()
        self.log: list[Entry] = []
        self.clock_ms = clock_ms
        """How far its clock is ahead of the first one's."""


class Client(MemoryBackend):
    """The way of one process to the primary that it believes in."""

    def __init__(self, process: Process, primary: Primary) -> None:
        super().__init__(process.world, primary)
        self._simulation = process.simulation

    @property
    def primary(self) -> Primary:
        assert isinstance(self._shelf, Primary)
        return self._shelf

    def believe_in(self, primary: Primary) -> None:
        self._shelf = primary

    @property
    def tells(self) -> Changes:
        """How many changes of records the primary has counted, our own among them."""

        async def tell() -> int:
            return self._shelf.changes

        return tell

    def _keep(self, writes: Sequence[Write], outcomes: list[Outcome]) -> list[Outcome]:
        primary = self.primary
        keys = [w.key for w, outcome in zip(writes, outcomes, strict=True) if outcome.applied]
        if keys:
            before = {key: primary.items.get(key) for key in keys}
            primary.log.append(Entry(self._simulation.now_ms, before, primary.changes))
        return super()._keep(writes, outcomes)


def turned_back(items: dict[Key, Item], undone: Sequence[Entry]) -> dict[Key, Item]:
    """What there was before some transactions, the last of all."""
    found: dict[Key, Item | None] = {**items}
    for entry in reversed(undone):
        found.update(entry.before)
    return {key: item for key, item in found.items() if item is not None}


class Failover(NamedTuple):
    """A replica that became the primary, and what it had not heard of."""

    former: Primary
    primary: Primary
    undone: Sequence[Entry]


class Replicated:
    """One store: who is its primary, and who believes that."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self.primary = Primary()
        self._clients: list[Client] = []
        self.is_split = False
        self.apart_ms = 0
        """How far apart the clocks of primaries have been so far."""

    def open(self, process: Process) -> Client:
        client = Client(process, self.primary)
        self._clients.append(client)
        return client

    def behind(self, lag_ms: int, count_max: int) -> int:
        """How many transactions a replica lacks that is so far behind, but by no more than so many."""
        since_ms = self._simulation.now_ms - lag_ms
        late = sum(entry.at_ms >= since_ms for entry in self.primary.log)
        return min(late, count_max)

    def fail_over(self, count: int, clock_ms: int = 0, stays: Callable[[], bool] = lambda: False) -> Failover:
        """Let a replica take over that lacks the last transactions; whoever ``stays`` does not notice yet."""
        assert not self.is_split, "two primaries are enough"
        former, primary = self.primary, Primary(clock_ms)
        kept = len(former.log) - count
        undone, primary.log = former.log[kept:], former.log[:kept]
        primary.items = turned_back(former.items, undone)
        primary.changes = undone[0].changes if undone else former.changes
        self.primary, self.apart_ms = primary, max(self.apart_ms, abs(clock_ms))
        for client in self._clients:
            if stays():
                self.is_split = True
            else:
                client.believe_in(primary)
        return Failover(former, primary, undone)

    def heal(self) -> None:
        """Let everybody find the new primary: what the former one did since is lost."""
        self.is_split = False
        for client in self._clients:
            client.believe_in(self.primary)
