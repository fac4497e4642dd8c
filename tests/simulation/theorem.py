"""The theorem we sell, under attack.

In every interval a limit admits, net of refunds, at most its capacity plus what accrues; nothing that
fits is refused; no token is lost. One seed decides how many processes there are, how wrong their
clocks are, what they ask for, when somebody changes limits and parents, which requests and replies get
lost, when the store is gone or slow, who is cancelled, who crashes, who leaves a stream or throws a
coroutine away. After every write the store is
compared with the ideal bucket; at rest its books are compared with those of the clients, usage with
consumption, waits with what then happens, and everybody's idea of the limits with what is stored.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any
from unittest import mock

from tests.simulation.actors import Followers, Tenant, Timed, administer, keep_namespaces
from tests.simulation.books import Books
from tests.simulation.expiries import Expiries
from tests.simulation.families import ABOVE, PARENT, STEPPARENT, Lineage
from tests.simulation.faults import DAY_MS, HOUR_MS, Weather
from tests.simulation.final_checks import (
    check_changes,
    check_convergence,
    check_counts,
    check_families,
    check_namespaces,
    check_waits,
)
from tests.simulation.ideal import Intent, Judge, WatchedWriter, Whole, check_seen
from tests.simulation.joint import AMOUNTS, JointAttempt
from tests.simulation.older import USAGE, Estate, Heritage, migrate
from tests.simulation.operators import Desk, Operators
from tests.simulation.parking import Cancelled, pause
from tests.simulation.readers import Opener, Reader, Steps
from tests.simulation.simulation import Network, Process, Simulation
from tests.simulation.waiting import CROWD_AMOUNTS, WAITS_SECONDS, Waiting
from zae_limiter.backends.memory import MemoryBackend
from zae_limiter.engine.bucket_view import shard_count
from zae_limiter.engine.law import Rate
from zae_limiter.engine.shares import SHARDS_MAX
from zae_limiter.exceptions import RateLimiterUnavailable, RateLimitExceeded
from zae_limiter.lease import Lease
from zae_limiter.limiter import RateLimiter
from zae_limiter.models import PERIOD_SECONDS_MAX, Limit
from zae_limiter.models.demand import Demand
from zae_limiter.records.connection import Connection, Options
from zae_limiter.repository import Repository
from zae_limiter.repository_protocol import Delete, Item, Key, Outcome, Update, Write
from zae_limiter.runtime.colour import run_sync
from zae_limiter.schema import (
    bucket_key,
    bucket_limit_names,
    limit_attributes,
    number,
    parse_bucket_pk,
    sk_state,
    stored_rate,
)

RESOURCE = "api"
GUEST = "guest"  # a child that brings its own limits along, and they are wide
FAMILY = {"child-1": PARENT, "child-2": PARENT, "loner": None, GUEST: PARENT}
EVERYBODY = (*FAMILY, PARENT, STEPPARENT)
TENANTS = ("deleted", "lively")
LIMITS = (
    (Limit("fast", 10, 35, 60), Limit("slow", 40, 100, 86_400)),
    (Limit("fast", 4, 50, 60), Limit("slow", 60, 100, 3_600)),
    (Limit("fast", 25, 7, 1), Limit("slow", 40, 100, 86_400)),
)
BROUGHT_ALONG = (Limit("fast", 500, 1_000, 60), Limit("slow", 500, 500, 60))
SLOW_WRITES = Rate(8_000, 8_000, 1_000)
"""A partition that takes a few writes a second is soon a hot one."""
CONFIG_TTL_SECONDS = 60.0


class Aborted(Exception):
    """The work under a lease failed."""


class Scenario:
    """One seed's world, run to its end."""

    def __init__(self, seed: int, *, waits: bool = True) -> None:
        self.simulation = Simulation(seed)
        self.joint = seed % 5 == 1
        """Clients ask for several things at once; in the other worlds nothing depends on it."""
        rng = self.simulation.rng
        self.waiting = Waiting(self.simulation)
        self.patience = random.Random(~seed)
        """Dice of its own, so that a world in which nobody waits is the same with and without it."""
        self.waits = waits and self.patience.random() < 0.5
        self.crowded = self.waits and self.patience.random() < 0.4
        """Many wait for one bucket."""
        self.fault_rate = rng.choice((0.0, 0.0, 0.03))
        self.cancel_rate = rng.choice((0.0, 0.02))
        self.crash_rate = rng.choice((0.0, 0.0, 0.002))
        self.rough = rng.random() < 0.3
        self.changes = rng.random() < 0.4
        self.local = rng.random() < 0.3
        """The store answers at once, as an embedded one does."""
        self.hot = rng.random() < (0.8 if self.local else 0.3)
        self.hot = self.hot or self.crowded
        self.sharded = not self.local and rng.random() < 0.5 and not self.crowded
        self.coarse_ms = rng.choice((1, 1_000))
        """How exactly a store that is elsewhere tells its time."""
        self.weather = Weather(self.simulation, rough=self.rough, local=self.local)
        self.store = MemoryBackend(Process(self.simulation).world)
        self.store.capabilities = replace(
            self.store.capabilities, hot_partitions=self.sharded, atomic_batches=self.local
        )
        self.judges: dict[Key, Judge] = {}
        self.intents: dict[int, Intent] = {}
        self.operators = Operators(self.simulation, self.intents, seed, self.store._shelf.items)
        self.operated = waits and self.operators.dice.random() < 0.6
        self.lineage = Lineage(seed, wanted=waits)
        self.books = Books()
        self.wholes: dict[str, Whole] = {}
        self.admitted = self.refused = 0
        self.throwing = False
        """A client's coroutine is thrown away just now, and not because its process died."""
        self.setup = run_sync(Repository.over(self.store, world=Process(self.simulation).world))
        self.followers = Followers(self.simulation, self.setup.namespace_id, ordered=not self.sharded)
        self.store.watchers.append(self.followers.record)
        self.expiries = Expiries(self.store)
        self.tenants: list[Tenant] = []
        self.heritage: Heritage | None = None
        run_sync(self._prepare())
        self.networks: list[Network] = []
        self.repositories: list[tuple[Process, Repository]] = []
        self.processes = [self._clients() for _ in range(rng.choice((1, 2, 3)))]
        self._hire()
        self.simulation.before_step = self._strike

    async def _prepare(self) -> None:
        rng = self.simulation.rng
        in_use = True
        if rng.random() < 0.2:
            in_use = rng.random() < 0.5
            family = {"loner": None, **FAMILY, PARENT: None, STEPPARENT: None}
            # Judging all shards together takes limits that stay the same.
            estate = Estate(family, RESOURCE, LIMITS[:1] if self.sharded else LIMITS, whole=self.sharded)
            place = self.store, self.setup.namespace_id
            self.heritage = Heritage(self.simulation, *place, estate, in_use=in_use)
            self.followers.inherit("loner", USAGE)
        if in_use:
            await self._furnish(self.setup, (PARENT, STEPPARENT))
        if rng.random() < 0.2:
            for name in TENANTS:
                space = await self.setup.register_namespace(name)
                await self._furnish(await self.setup.namespace(name), (PARENT,))
                keys = [
                    k for k in self.store._shelf.items if k.partition.startswith(f"{space.namespace_id}/")
                ]
                self.tenants.append(Tenant(name, space.namespace_id, frozenset(keys)))
            await self.setup.delete_namespace(TENANTS[0])

    async def _furnish(self, view: Repository, parents: Sequence[str]) -> None:
        await view.set_resource_defaults(RESOURCE, LIMITS[0])
        await self.lineage.make(view, parents, deep=self.heritage is None and view is self.setup)
        for entity_id, parent_id in FAMILY.items():
            await view.create_entity(entity_id, parent_id=parent_id, cascade=parent_id is not None)
        if view is not self.setup:
            async with RateLimiter(view).acquire("loner", RESOURCE, {"fast": 1}):
                pass

    def _network(self, process: Process) -> Network:
        def seen(write: Write, before: Item | None, outcome: Outcome) -> None:
            self._on_apply(write, before, outcome, process)

        # Each process has a way of its own to the one shelf, for what it changes itself is no news to it.
        store = MemoryBackend(process.world, self.store._shelf)
        store.capabilities = self.store.capabilities
        network = Network(process, store, self.fault_rate, seen, swaps=self.local, weather=self.weather.over)
        self.networks.append(network)
        return network

    def _open(self, process: Process, desk: Desk | None = None) -> Repository:
        rng, network = self.simulation.rng, desk or self._network(process)
        connection = Connection(network, process.world, Options(rng.choice((0.0, *[CONFIG_TTL_SECONDS] * 2))))
        connection.writer = WatchedWriter(process, network, self.intents)
        repository = Repository(connection, self.setup.namespace_name, self.setup.namespace_id)
        self.repositories.append((process, repository))
        return repository

    def _process(self, *skews_ms: int) -> Process:
        """One more process; the machine of an embedded store has one clock for all, and it is right."""
        if self.local:
            return Process(self.simulation)
        return Process(self.simulation, self.simulation.rng.choice(skews_ms), self.coarse_ms)

    def _clients(self) -> Process:
        rng = self.simulation.rng
        process = self._process(0, 0, -20, 20, 300, HOUR_MS, -DAY_MS, DAY_MS)
        limiter = RateLimiter(self._open(process), speculative_writes=rng.random() < 0.8)
        for _ in range(rng.choice((1, 2, 4, 8))):
            work = self._once_let_in(limiter.repository, partial(self._client, limiter))
            process.spawn(work, interruptible=True)
        return process

    def _hire(self) -> None:
        """The programs that run beside the clients."""
        rng = self.simulation.rng
        if self.changes:
            admin = self._open(self.processes[0])
            family = ("child-2", PARENT, STEPPARENT)
            work = self.simulation, admin, RESOURCE, LIMITS, family, self.lineage.chores(admin, RESOURCE)
            self.processes[0].spawn(self._once_let_in(admin, partial(administer, *work)))
        for _ in range(rng.choice((0, 0, 1, 2))):
            process = self._process(0, 0, -20, 20, -DAY_MS, DAY_MS)
            network = Timed(process, self._network(process))
            process.spawn(self.followers.aggregate(process, network), interruptible=True)
            self.processes.append(process)
        for _ in range(rng.choice((1, 2, 2)) if self.tenants else 0):
            process = self._process(0)
            keeper = keep_namespaces(self.simulation, self._open(process), self.tenants)
            process.spawn(keeper, interruptible=True)
            self.processes.append(process)
        for _ in range(rng.choice((1, 2, 2)) if self.heritage is not None else 0):
            self.processes.append(self._migrating())
        for _ in range(self.operators.dice.choice((1, 2)) if self.operated else 0):
            self.processes.append(self._operating())

    def _migrating(self) -> Process:
        assert self.heritage is not None
        process = self._process(0, 0, -20, 20, -DAY_MS, DAY_MS)
        network = Timed(process, self._network(process))
        process.spawn(migrate(self.simulation, self.heritage, process, network), interruptible=True)
        return process

    def _operating(self) -> Process:
        process = self._process(0, 0, -20, 20)
        repository = self._open(process, Desk(process, self._network(process), self.operators))
        errands = partial(self.operators.operate, repository, RESOURCE, EVERYBODY)
        process.spawn(self._once_let_in(repository, errands), interruptible=True)
        return process

    async def _once_let_in(
        self, repository: Repository, work: Callable[[], Coroutine[Any, Any, None]]
    ) -> None:
        """Work in a table of an older shape begins when that was brought up to date."""
        if self.heritage is None or await self.heritage.enter(repository):
            await work()

    def run(self) -> None:
        slow = {
            f"zae_limiter.{module}.WRITES": SLOW_WRITES
            for module in (
                "engine.bucket_writes",
                "engine.posting",
                "engine.split",
                "operate.migrations.buckets",
            )
        }
        with ExitStack() as stack:
            for target, rate in slow.items():
                stack.enter_context(mock.patch(target, rate))
            stack.enter_context(mock.patch("zae_limiter_aggregator.buckets.REFILL_AFTER_MS", 500))
            stack.enter_context(mock.patch("zae_limiter_aggregator.buckets.COOL_MS", 300))
            stack.enter_context(mock.patch("zae_limiter_aggregator.buckets.COOL_PERCENT", 90))
            stack.enter_context(mock.patch("zae_limiter_aggregator.buckets.WARM_PERCENT", 90))
            with self.waiting.watching():
                self.simulation.run()
            self.simulation.faults["waited"] += self.waiting.waited
            self.waiting.check()
            self.operators.check()
            self._rest()

    def _rest(self) -> None:
        self.weather.clear()
        self.simulation.before_step = lambda: None
        if self.heritage is not None:
            self._migrating()  # whoever was interrupted is not the last
        for network in self.networks:
            network.calm()
        if self.heritage is not None:
            self.simulation.run()
            self.heritage.check(self.setup)
        for entity_id in {*EVERYBODY, *ABOVE}:
            keys = _shard_keys(self.setup.namespace_id, entity_id)
            images = [*self._shards(entity_id), *self.expiries.of(keys)]
            for name in ("fast", "slow"):
                stored = sum(number(image, limit_attributes(name).tc) for image in images)
                if not (self.changes and stored < self.books.low[entity_id, name] * 1000):
                    self.books.check(entity_id, name, stored)
        self.followers.check_usage(self.store, RESOURCE)
        check_counts(self.store, self.setup.namespace_id)
        check_namespaces(self.setup, self.store, self.tenants)
        alive = [repository for process, repository in self.repositories if not process.crashed]
        ttl_seconds = 0 if self.local else CONFIG_TTL_SECONDS  # an embedded store tells
        check_convergence(self.simulation, self.setup, alive, "loner", RESOURCE, ttl_seconds)
        if not self.sharded:  # judging all shards together takes limits that stay the same
            check_changes(self.simulation, self.setup, alive, "loner", RESOURCE, LIMITS)
            check_families(self.simulation, alive, RESOURCE, LIMITS[0])
        check_waits(self.simulation, self.setup, tuple(FAMILY), RESOURCE)

    async def _client(self, limiter: RateLimiter) -> None:
        for _ in range(6):
            jointly = self.joint and self.simulation.rng.random() < 0.5
            attempt = self._jointly(limiter) if jointly else self._attempt(limiter)
            try:
                is_left = self.simulation.rng.random() < 0.1
                await (self._thrown_away(attempt) if is_left else attempt)
            except Cancelled:
                self.simulation.faults["cancelled"] += 1

    async def _thrown_away(self, attempt: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine for some steps and close it wherever it is then."""
        try:
            await Steps(attempt, self.simulation.rng.choice((1, 2, 4, 8, 16)))
            self.throwing = True
        finally:
            attempt.close()
            self.throwing = False

    async def _jointly(self, limiter: RateLimiter) -> None:
        """Ask for several entities at once; some of them have a common parent, or are the same."""
        rng = self.simulation.rng
        demands = [
            Demand(who, RESOURCE, rng.choice(AMOUNTS), BROUGHT_ALONG if who == GUEST else None)
            for who in rng.choices(tuple(FAMILY), k=rng.choice((2, 2, 3)))
        ]
        await JointAttempt(self, demands, (*ABOVE,)).run(limiter)

    async def _attempt(self, limiter: RateLimiter) -> None:
        rng, faulty = self.simulation.rng, self.fault_rate > 0 or self.rough
        entity_id = rng.choice(("loner",) if self.hot else (*FAMILY,))
        amounts = rng.choice(({"fast": 1, "slow": 1}, {"fast": 4}, {"slow": 7}, {"fast": 2, "slow": 10}))
        patient = self.waits and self.patience.random() < (0.9 if self.crowded else 0.6)
        wait, asked_ms = self.patience.choice(WAITS_SECONDS) if patient else None, self.simulation.now_ms
        if self.crowded:
            amounts = self.patience.choice(CROWD_AMOUNTS)
        most = Counter(amounts)
        consumed: Mapping[str, int] = {}
        lease: Lease | None = None
        kind, counted = rng.random(), limiter.refunds_lost
        leaves, opens = kind < 0.2, kind > 0.8
        certain = not (leaves and faulty)  # who leaves is not told what could not be stored
        try:
            brought = BROUGHT_ALONG if entity_id == GUEST else None
            acquisition = limiter.acquire(entity_id, RESOURCE, amounts, brought, wait=wait)
            held = Reader(acquisition) if leaves else Opener(acquisition) if opens else acquisition
            async with held as lease:
                try:
                    await pause()
                    if rng.random() < 0.2:
                        most.update(fast=2)
                        await lease.consume(fast=2)
                    if rng.random() < 0.3:
                        change = rng.choice((-1, 3, 20))
                        if lease.consumed.get("fast", 0) + change >= 0:
                            most.update(fast=max(0, change))
                            await lease.adjust(fast=change)
                    if rng.random() < 0.2:
                        raise Aborted
                except GeneratorExit:  # what was done until then is paid for
                    consumed = lease.consumed
                    raise
                consumed = lease.consumed  # a cancellation from here on finds the work done
            self.admitted += 1
        except RateLimitExceeded as refusal:
            self.refused += 1
            self._check_waits(refusal)
            if wait is not None and lease is None:
                self._check_patience(refusal, wait, asked_ms)
        except Aborted:
            pass
        except RateLimiterUnavailable as failure:
            certain = False
            self._check_counted(failure, limiter.refunds_lost - counted)
        except (Cancelled, GeneratorExit) as error:
            # Who is thrown away is stood in for by its process, which may crash before that is done.
            stays = self.throwing and self.crash_rate == 0
            certain = (isinstance(error, Cancelled) or stays) and not faulty
            self.simulation.faults["thrown away"] += self.throwing
            raise
        finally:
            if certain and (consumed or not faulty):
                self._enter(lease, consumed, most)
            else:
                self.books.enter((entity_id, *ABOVE), {}, most)
            if certain and limiter.refunds_lost != counted:  # perhaps of a family charged by mistake
                self.books.enter((entity_id, *ABOVE), {}, most)

    def _enter(self, lease: Lease | None, consumed: Mapping[str, int], most: Mapping[str, int]) -> None:
        """Enter what the family of a lease has paid; some of it, if the family was changed meanwhile."""
        if lease is None or not consumed:
            return
        families = [{a.entity_id for a in part.accounts} for part in lease._taken()]
        if not self.changes:
            self.lineage.check(lease, families, FAMILY)
        always = set.intersection(*families)
        self.books.enter(always, consumed, consumed)
        self.books.enter(set.union(*families) - always, {}, most)

    def _check_counted(self, failure: RateLimiterUnavailable, counted: int) -> None:
        assert counted > 0 or not failure.ambiguous, "what may have been taken for nobody is not counted"

    def _check_waits(self, refusal: RateLimitExceeded) -> None:
        """Whether the waits of a refusal can be right, where one item and one set of numbers decide."""
        if self.sharded or self.changes or self.heritage is not None:
            return
        for status in refusal.violations:
            judge = self.judges[bucket_key(self.setup.namespace_id, status.entity_id, RESOURCE)]
            told_ms = status.retry_after_seconds * 1000
            if not math.isinf(told_ms):
                judge.check_wait(status.limit_name, status.requested * 1000, told_ms)

    def _check_patience(self, refusal: RateLimitExceeded, wait: float, asked_ms: int) -> None:
        """Nobody is refused who would have waited."""
        self.simulation.faults["wait refused"] += 1
        passed_ms, error_ms = self.simulation.now_ms - asked_ms, 2 * self.simulation.clock_error_ms
        told_ms = refusal.retry_after_seconds * 1000 + passed_ms + error_ms
        allowed_ms = min(wait, PERIOD_SECONDS_MAX) * 1000
        assert told_ms >= allowed_ms, f"{told_ms} ms is not more than {wait} s"

    def _strike(self) -> None:
        rng = self.simulation.rng
        cancel_rate = self.cancel_rate * (3 if self.crowded else 1)
        if rng.random() < cancel_rate and (victims := self.simulation.interruptible()):
            rng.choice(victims).to_throw = Cancelled()
        if rng.random() < self.crash_rate and len(alive := self._alive()) > 1:
            rng.choice(alive).crash()
            self.simulation.faults["crashed"] += 1
        if self.rough:
            self.weather.blow(self._alive())

    def _alive(self) -> list[Process]:
        return [process for process in self.processes if not process.crashed]

    def _on_apply(self, write: Write, before: Item | None, outcome: Outcome, process: Process) -> None:
        key, now_ms = write.key, self.simulation.now_ms
        if key.sort != sk_state() or not outcome.applied:
            return
        address = parse_bucket_pk(key.partition)
        if address.namespace_id != self.setup.namespace_id:
            return
        if isinstance(write, Delete) and address.shard_id:
            self._bury(key, write)
            return
        assert outcome.item is not None, f"{key.partition} was deleted"
        check_seen(key, before, outcome.item)
        intent = self.intents.pop(id(write), None)
        if intent is None:
            needs: Mapping[str, int] = {}
            if isinstance(write, Update) and before is not None and not write.add:
                self.simulation.faults["swaps"] += any(attribute.startswith("b_") for attribute in write.set)
                needs = _taken(before, outcome.item)
            intent = Intent(write, needs, process.honest_ms(process.world.now_ms()))
        charge = self.heritage and self.heritage.charge(write, before, outcome.item)
        if charge:
            intent = Intent(write, {}, charge.at_ms, charge.missing_milli)
            self.books.enter([address.entity_id], charge.consumed, charge.consumed)
        if address.entity_id in ABOVE and not self.sharded:
            _check_stored_limits(address.entity_id, outcome.item)
        intent = self.operators.judged(intent, before, outcome.item)
        judge = self.judges.setdefault(key, Judge(key.partition, self.simulation))
        judge.see(before, outcome.item, intent, now_ms)
        self.waiting.see(key, before, outcome.item, intent, process)
        if before is not None and before.get("shard_count") != outcome.item.get("shard_count"):
            grew = shard_count(before) < shard_count(outcome.item)
            self.simulation.faults["splits" if grew else "merges"] += 1
        if self.sharded and not self.changes and address.entity_id != GUEST and intent.together is not None:
            entity_id, shards = address.entity_id, self._shards(address.entity_id)
            whole = self.wholes.setdefault(entity_id, Whole(entity_id, LIMITS[0], self.simulation))
            whole.see(before, outcome.item, shards, intent._replace(credit=intent.together), now_ms)

    def _bury(self, key: Key, write: Write) -> None:
        """A shard is gone: what it held is judged over all shards when its elder is."""
        self.intents.pop(id(write), None)
        self.judges.pop(key, None)

    def _shards(self, entity_id: str) -> list[Item]:
        keys = _shard_keys(self.setup.namespace_id, entity_id)
        return [image for image in run_sync(self.store.batch_get(keys)) if image is not None]


def _check_stored_limits(entity_id: str, image: Item) -> None:
    """An ancestor has the limits that somebody stored, whatever its children bring along."""
    for name in bucket_limit_names(image):
        rates = [Rate.of(limit) for limits in LIMITS for limit in limits if limit.name == name]
        assert stored_rate(image, name) in rates, f"{entity_id} has limits that nobody stored"


@lru_cache(64)
def _shard_keys(namespace_id: str, entity_id: str) -> tuple[Key, ...]:
    return tuple(bucket_key(namespace_id, entity_id, RESOURCE, shard_id) for shard_id in range(SHARDS_MAX))


def _taken(before: Item, after: Item) -> dict[str, int]:
    """What a write that set its numbers has taken."""
    counters = {name: limit_attributes(name).tc for name in bucket_limit_names(after)}
    return {name: number(after, tc) - number(before, tc) for name, tc in counters.items()}
