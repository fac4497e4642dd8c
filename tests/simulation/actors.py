"""The other programs in a simulated world: an admin, aggregators, and people who keep the namespaces.

Their writes go through the same judges as those of the clients: a refill that costs or makes a token, a
split that does not conserve, or a purge that takes a neighbour's bucket with it fails the seed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from tests.simulation.parking import pause
from tests.simulation.simulation import Network, Process, Simulation
from zae_limiter.exceptions import NamespaceNotFoundError, NamespaceStateError, RateLimiterUnavailable
from zae_limiter.models import Limit, UsageWindow
from zae_limiter.repository import Repository
from zae_limiter.repository_protocol import Backend, Item, Key, Outcome, Write
from zae_limiter.runtime.colour import run_sync
from zae_limiter.schema import (
    MOVED,
    bucket_limit_names,
    limit_attributes,
    number,
    parse_bucket_pk,
    sk_state,
    usage_of_entity,
)
from zae_limiter.testing.stores import Wrapper
from zae_limiter_aggregator import AggregatorSettings, Change, process_changes
from zae_limiter_aggregator.changes import numbered, span_of
from zae_limiter_aggregator.usage import REST

SETTINGS = AggregatorSettings((UsageWindow.HOURLY, UsageWindow.MONTHLY))
PEACE = AggregatorSettings(SETTINGS.windows, tend_buckets=False)


async def idle(simulation: Simulation, steps_max: int) -> None:
    for _ in range(simulation.rng.randrange(steps_max)):
        await pause()


async def administer(
    simulation: Simulation,
    repository: Repository,
    resource: str,
    choices: Sequence[Sequence[Limit]],
    family: tuple[str, str | None, str],
    more: Sequence[tuple[str, Callable[[], Coroutine[Any, Any, Any]]]] = (),
) -> None:
    """Change the limits at every level, and whose child somebody is."""
    rng, (child, parent, other) = simulation.rng, family
    chores: list[tuple[str, Callable[[], Coroutine[Any, Any, Any]]]] = [
        ("limits changed", lambda: repository.set_resource_defaults(resource, rng.choice(choices))),
        ("limits changed", lambda: repository.set_limits("loner", rng.choice(choices), resource)),
        ("limits deleted", lambda: repository.delete_limits("loner", resource)),
        ("limits changed", lambda: repository.set_system_defaults(rng.choice(choices))),
        ("parent changed", lambda: repository.update_entity(child, parent_id=rng.choice((parent, other)))),
        ("cascade changed", lambda: repository.update_entity(child, cascade=rng.random() < 0.5)),
        *more,
    ]
    for _ in range(rng.choice((2, 4))):
        await idle(simulation, 30)
        name, chore = rng.choice(chores)
        try:
            await chore()
            simulation.faults[name] += 1
        except RateLimiterUnavailable:
            pass


class Tenant(NamedTuple):
    """Somebody else's namespace, and all that is in it."""

    name: str
    namespace_id: str
    belongings: frozenset[Key]


async def keep_namespaces(simulation: Simulation, repository: Repository, tenants: Sequence[Tenant]) -> None:
    """Delete, recover and purge namespaces, and give their names to new ones, while others do the same."""
    rng = simulation.rng
    for _ in range(rng.choice((4, 8))):
        await idle(simulation, 8)
        name, namespace_id, _ = rng.choice(tenants)
        chores: list[tuple[str, Callable[[], Coroutine[Any, Any, Any]]]] = [
            ("namespace deleted", partial(repository.delete_namespace, name)),
            ("namespace recovered", partial(repository.recover_namespace, namespace_id)),
            ("namespace registered", partial(repository.register_namespace, name)),
            ("purged", partial(repository.purge_namespace, namespace_id)),
        ]
        what, chore = rng.choice(chores)
        try:
            await chore()
            simulation.faults[what] += 1
        except (RateLimiterUnavailable, NamespaceNotFoundError, NamespaceStateError):
            pass


class Timed(Wrapper):
    """Keeps the world awake while a write travels, for who looked at the clock before."""

    def __init__(self, process: Process, network: Network) -> None:
        super().__init__(network)
        self._process = process

    async def write_each(self, writes: Sequence[Write]) -> list[Outcome]:
        return await self._travel(writes, super().write_each)

    async def transact_write(self, writes: Sequence[Write]) -> list[Outcome]:
        return await self._travel(writes, super().transact_write)

    async def _travel(
        self,
        writes: Sequence[Write],
        perform: Callable[[Sequence[Write]], Coroutine[Any, Any, list[Outcome]]],
    ) -> list[Outcome]:
        self._process.simulation.in_flight += 1
        try:
            return await perform(writes)
        finally:
            self._process.simulation.in_flight -= 1


class Followers:
    """The changes of all buckets as a stream delivers them, and aggregators that follow it.

    A stream of a sharded store delivers in any order, some changes twice; a log of an embedded one is in
    order, but a reader that was killed comes back to an earlier place.
    """

    def __init__(self, simulation: Simulation, namespace_id: str, *, ordered: bool) -> None:
        self._simulation, self._namespace_id, self._ordered = simulation, namespace_id, ordered
        self._log: list[Change] = []
        self._consumed: Counter[str] = Counter()
        self._last: dict[Key, Item] = {}
        self._position = 0

    def inherit(self, entity_id: str, amounts: Mapping[str, int]) -> None:
        """What an older version has counted adds to what is consumed."""
        for name, amount in amounts.items():
            self._consumed[f"{entity_id}/{name}"] += amount * 1000

    def record(self, key: Key, old: Item | None, new: Item | None) -> None:
        """Watch the store."""
        if key.sort != sk_state() or not key.partition.startswith(f"{self._namespace_id}/"):
            return
        position = str(len(self._log) + 1)
        span = numbered(int(position)) if self._ordered else span_of(old, new, position)
        self._log.append(Change(key, old, new, self._simulation.now_ms, span, position))
        if old is None and key in self._last:
            self._count(key, self._last.pop(key))
        if old is None and new is not None and MOVED in new:
            self._count(key, new, -1)  # it was counted where it comes from
        if new is not None:
            self._last[key] = new
        elif parse_bucket_pk(key.partition).shard_id:
            self._last.pop(key, None)  # its elder has what it consumed

    async def aggregate(self, process: Process, backend: Backend) -> None:
        rng, faults = self._simulation.rng, self._simulation.faults
        for _ in range(rng.randrange(5, 25)):
            await idle(self._simulation, 8)
            batch = self._batch()
            tally = await process_changes(batch, backend, process.world, SETTINGS)
            if batch and not tally.failed:
                self._position = max(self._position, int(batch[-1].sequence))
            faults["refills"] += tally.refills_written
            faults["proactive splits"] += tally.splits
            faults["tended merges"] += tally.merges
            faults["stream batches"] += 1

    def _batch(self) -> list[Change]:
        """Some changes that are new, and some that are not."""
        rng = self._simulation.rng
        if not self._log:
            return []
        if not self._ordered:
            self._simulation.faults["batches out of order"] += 1
            fresh = self._log[-rng.randrange(1, 30) :]
            return rng.sample(fresh, len(fresh)) + rng.choices(self._log, k=rng.randrange(5))
        self._simulation.faults["batches repeated"] += 1
        first = rng.randrange(self._position + 1)
        return self._log[first : rng.randrange(self._position, len(self._log) + 1)]

    def check_usage(self, store: Backend, resource: str) -> None:
        """At rest, when everything has been delivered and some of it again, usage is what was consumed."""
        rng, world, log = self._simulation.rng, Process(self._simulation).world, self._log
        if not self._ordered and log:
            log = rng.sample(log, len(log)) + rng.choices(log, k=20)
        for at in range(0, len(log), 37):
            tally = run_sync(process_changes(log[at : at + 37], store, world, PEACE))
            assert not tally.failed
        for key, image in self._last.items():
            self._count(key, image)
        entities = sorted({name.partition("/")[0] for name in self._consumed})
        for window in SETTINGS.windows:
            used: Counter[str] = Counter()
            for row in self._rows(store, entities):
                if row["window"] == window and row["resource"] == resource:
                    for name in ("fast", "slow"):
                        rest = row.get(REST, {})
                        assert isinstance(rest, dict)
                        used[f"{row['entity_id']}/{name}"] += number(row, name) * 1000 + rest.get(name, 0)
            assert +used == +self._consumed, f"{window}: {used} was counted, {self._consumed} was consumed"

    def _rows(self, store: Backend, entities: Sequence[str]) -> list[Item]:
        rows = []
        for entity_id in entities:
            query = usage_of_entity(self._namespace_id, entity_id)._replace(rows_max=1000)
            page = run_sync(store.query(query))
            assert page.after is None
            rows += [row.item for row in page.rows]
        return rows

    def _count(self, key: Key, image: Item, times: int = 1) -> None:
        """A bucket's life is over: what it consumed adds to what earlier ones did."""
        entity_id = parse_bucket_pk(key.partition).entity_id
        for name in bucket_limit_names(image):
            self._consumed[f"{entity_id}/{name}"] += times * number(image, limit_attributes(name).tc)
