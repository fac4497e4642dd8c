"""A store that fails over and loses its last writes, under clients that remember them.

Families take, settle, wait, cancel and give back; an admin changes limits and parents, an operator gives
tokens by a key. Now and then the store goes back by a moment, sometimes with a former primary that goes on to
answer some of them. Clients remember images, limits, bookings and versions of a future that is not to be. The
judges say what may come of it; in the end everybody is served again, by the limits that are stored.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Coroutine, Mapping
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

from tests.simulation.actors import administer, idle
from tests.simulation.books import Books
from tests.simulation.failover_judge import Courts
from tests.simulation.final_checks import check_changes, check_convergence, check_waits
from tests.simulation.ideal import Intent, WatchedWriter
from tests.simulation.operators import ONCE, _given
from tests.simulation.parking import Cancelled, pause
from tests.simulation.replicated import Client, Entry, Replicated
from tests.simulation.simulation import Network, Process, Simulation, Spell, Trouble
from zae_limiter.engine.seen_buckets import REFUSAL_MS_MAX
from zae_limiter.exceptions import RateLimiterUnavailable, RateLimitExceeded
from zae_limiter.lease import Lease
from zae_limiter.limiter import RateLimiter
from zae_limiter.models import Limit
from zae_limiter.records.connection import Connection, Options
from zae_limiter.repository import Repository
from zae_limiter.repository_protocol import Changes, Item, Key, Outcome, Write
from zae_limiter.runtime.colour import run_sync
from zae_limiter.schema import bucket_key, limit_attributes, number, sk_state

RESOURCE = "api"
PARENT, STEPPARENT, LONER = "parent", "stepparent", "loner"
FAMILY: dict[str, str | None] = {"child-1": PARENT, "child-2": PARENT, LONER: None}
EVERYBODY = (*FAMILY, PARENT, STEPPARENT)
LIMITS = (
    (Limit("fast", 10, 35, 60), Limit("slow", 40, 100, 86_400)),
    (Limit("fast", 4, 50, 60), Limit("slow", 60, 100, 3_600)),
    (Limit("fast", 25, 7, 1), Limit("slow", 40, 100, 86_400)),
)
CONFIG_TTL_SECONDS = 60.0
LAGS_MS, LOST_MAX = (50, 500, 2_000), (1, 3, 10, 50)
"""How far behind a replica is, in time and in transactions."""
SPLIT_MS, GONE_MS = (20, 200, 1_000), (20, 200, 3_000)
CLOCKS_MS = (0, 0, 0, -40, 40, 400)
"""How far the clock of another server is from the first one's."""
DAYS_MS = 3 * 86_400_000


class Led(Process):
    """A client process of a store whose servers have clocks of their own."""

    store: Replicated | None = None
    client: Client | None = None

    def join(self, store: Replicated) -> Client:
        self.store, self.client = store, store.open(self)
        return self.client

    def hear(self, sent_ms: int, shown_ms: int) -> None:
        super().hear(sent_ms, shown_ms + (self.client.primary.clock_ms if self.client else 0))

    @property
    def _bounds_ms(self) -> tuple[float, float]:
        bound_ms, lead_ms = super()._bounds_ms
        apart_ms = self.store.apart_ms if self.store else 0
        return bound_ms + apart_ms, lead_ms + apart_ms


class Telling(Network):
    """A way on which the store tells of changes of records, be they made or undone."""

    @property
    def changes(self) -> Changes | None:
        assert isinstance(self.inner, Client)
        return self.inner.tells if self._tells else None

    swap = None  # it is on a server


class Aborted(Exception):
    """The work under a lease failed."""


class Failovers:
    """One seed's world, run to its end."""

    def __init__(self, seed: int) -> None:
        self.simulation = Simulation(seed)
        rng = self.simulation.rng = random.Random(f"failovers {seed}")
        self.fault_rate = rng.choice((0.0, 0.0, 0.03))
        self.cancel_rate, self.crash_rate = rng.choice((0.0, 0.02)), rng.choice((0.0, 0.0, 0.003))
        self.changes = rng.random() < 0.5
        self.waits = rng.random() < 0.4
        self.hot = rng.random() < 0.5
        self.tells = rng.random() < 0.5
        self.splits = rng.random() < 0.4
        self.store = Replicated(self.simulation)
        self.courts = Courts(self.simulation, self.store.primary)
        self.intents: dict[int, Intent] = {}
        self.books = Books()
        self.given: set[Key] = set()
        """The keys by which an operator gave something, in whichever history."""
        self.spell: Spell | None = None
        self.heal_at_ms: int | None = None
        self.failovers = rng.choice((1, 2, 4))
        self.admitted = self.refused = 0
        self.networks: list[Network] = []
        self.repositories: list[tuple[Process, Repository]] = []
        process = Process(self.simulation)
        self.root = self.store.open(process)
        self.root.capabilities = replace(self.root.capabilities, atomic_batches=rng.random() < 0.7)
        self.setup = run_sync(Repository.over(self.root, world=process.world))
        run_sync(self._prepare())
        self.processes = [self._hire() for _ in range(rng.choice((1, 2, 3)))]
        if self.changes:
            admin = self._open(self._process())
            work = self.simulation, admin, RESOURCE, LIMITS, ("child-2", PARENT, STEPPARENT)
            self.repositories[-1][0].spawn(administer(*work))
        if rng.random() < 0.4:
            process = self._process()
            process.spawn(self._operate(self._open(process)), interruptible=True)
        self.simulation.before_step = self._strike

    async def _prepare(self) -> None:
        await self.setup.set_resource_defaults(RESOURCE, LIMITS[0])
        for parent in (PARENT, STEPPARENT):
            await self.setup.create_entity(parent)
        for entity_id, parent_id in FAMILY.items():
            await self.setup.create_entity(entity_id, parent_id=parent_id, cascade=parent_id is not None)
        self.store.primary.log.clear()  # the replicas have it

    def _process(self) -> Led:
        process = Led(self.simulation, self.simulation.rng.choice((0, 0, -20, 300, 3_600_000)), 1)
        process.join(self.store).capabilities = self.root.capabilities
        return process

    def _open(self, process: Led) -> Repository:
        client = process.client
        assert client is not None

        def seen(write: Write, before: Item | None, outcome: Outcome) -> None:
            self._see(client, process, write, before, outcome)

        network = Telling(process, client, self.fault_rate, seen, swaps=self.tells, weather=self._weather)
        self.networks.append(network)
        connection = Connection(
            network, process.world, Options(self.simulation.rng.choice((0.0, CONFIG_TTL_SECONDS)))
        )
        connection.writer = WatchedWriter(process, network, self.intents)
        repository = Repository(connection, self.setup.namespace_name, self.setup.namespace_id)
        self.repositories.append((process, repository))
        return repository

    def _hire(self) -> Process:
        process = self._process()
        limiter = RateLimiter(self._open(process), speculative_writes=self.simulation.rng.random() < 0.8)
        for _ in range(self.simulation.rng.choice((1, 2, 4))):
            process.spawn(self._work(limiter), interruptible=True)
        return process

    def _weather(self, _: Process) -> Spell | None:
        if self.spell is not None and self.spell.until_ms <= self.simulation.now_ms:
            self.spell = None
        return self.spell

    # What happens to the store.

    def _strike(self) -> None:
        rng, simulation = self.simulation.rng, self.simulation
        if rng.random() < self.cancel_rate and (victims := simulation.interruptible()):
            rng.choice(victims).to_throw = Cancelled()
        alive = [process for process in self.processes if not process.crashed]
        if rng.random() < self.crash_rate and len(alive) > 1:
            rng.choice(alive).crash()
            simulation.faults["crashed"] += 1
        if self.heal_at_ms is not None and simulation.now_ms >= self.heal_at_ms:
            self._heal()
        # Often where it takes along what clients remember for long: limits, families, keys.
        records = [key for entry in self.store.primary.log[-4:] for key in entry.before]
        rate = 0.1 if any(key.sort != sk_state() for key in records) else 0.01
        if self.failovers and not self.store.is_split and rng.random() < rate:
            self._fail_over()

    def _fail_over(self) -> None:
        rng, simulation = self.simulation.rng, self.simulation
        lost = self.store.behind(rng.choice(LAGS_MS), rng.choice(LOST_MAX))
        if not lost:
            return
        self.failovers -= 1
        splits = self.splits and rng.random() < 0.7
        failover = self.store.fail_over(lost, rng.choice(CLOCKS_MS), lambda: splits and rng.random() < 0.5)
        self.courts.fail_over(failover)
        simulation.faults["failovers"] += 1
        simulation.faults["transactions lost"] += lost
        if self.store.is_split:
            simulation.faults["split brains"] += 1
            self.heal_at_ms = simulation.now_ms + rng.choice(SPLIT_MS)
        elif rng.random() < 0.3:
            self.spell = Spell(Trouble.GONE, None, simulation.now_ms + rng.choice(GONE_MS))

    def _heal(self) -> None:
        self.store.heal()
        self.heal_at_ms = None

    def _see(
        self, client: Client, process: Process, write: Write, before: Item | None, outcome: Outcome
    ) -> None:
        intent = self.intents.pop(id(write), None)
        if write.key.sort != sk_state() or not outcome.applied:
            return
        assert outcome.item is not None, f"{write.key.partition} was deleted"
        if intent is None:
            intent = Intent(write, {}, process.honest_ms(process.world.now_ms()))
        if given := _gift(client.primary.log[-1], write, before, outcome.item):
            once = next(key for key in client.primary.log[-1].before if key.sort.startswith(ONCE))
            self.simulation.faults["given again" if once in self.given else "given"] += 1
            self.given.add(once)
            intent = intent._replace(credit=given)
        self.courts.see(client.primary, write.key, before, outcome.item, intent)

    # What people do.

    async def _operate(self, repository: Repository) -> None:
        """Give tokens, each time until that is answered, and some of them again, as who lost the answer."""
        rng = self.simulation.rng
        for at in range(rng.choice((6, 12))):
            await idle(self.simulation, 8)
            which = rng.randrange(at // 3 + 1)
            whose = EVERYBODY[which % len(EVERYBODY)]
            for _ in range(4):
                try:
                    await repository.top_up(whose, RESOURCE, {"fast": 3}, key=f"errand-{which}")
                    break
                except RateLimiterUnavailable:
                    continue

    async def _work(self, limiter: RateLimiter) -> None:
        for _ in range(6):
            try:
                await self._attempt(limiter)
            except Cancelled:
                self.simulation.faults["cancelled"] += 1

    async def _attempt(self, limiter: RateLimiter) -> None:
        rng = self.simulation.rng
        entity_id = rng.choice((LONER,) if self.hot else (*FAMILY,))
        amounts = rng.choice(({"fast": 1, "slow": 1}, {"fast": 4}, {"slow": 7}, {"fast": 2, "slow": 10}))
        wait = rng.choice((0.5, 30.0)) if self.waits and rng.random() < 0.6 else None
        most, consumed, lease = Counter(amounts), dict[str, int](), None
        certain, counted = False, limiter.refunds_lost
        try:
            async with limiter.acquire(entity_id, RESOURCE, amounts, wait=wait) as lease:
                for _ in range(rng.choice((1, 1, 6))):
                    await pause()
                if rng.random() < 0.2:
                    most.update(fast=2)
                    await lease.consume(fast=2)
                if rng.random() < 0.3:
                    change = rng.choice((-1, 3, 12))
                    if lease.consumed.get("fast", 0) + change >= 0:
                        most.update(fast=max(0, change))
                        await lease.adjust(fast=change)
                if rng.random() < 0.25:
                    raise Aborted
                consumed = dict(lease.consumed)
            certain = True
            self.admitted += 1
        except RateLimitExceeded:
            self.refused += 1
            certain = True
            consumed = {}
        except Aborted:
            certain = True
        except RateLimiterUnavailable:
            pass
        finally:
            if certain and limiter.refunds_lost == counted:
                self._enter(lease, consumed, most)
            else:
                self.books.enter(EVERYBODY, {}, most)

    def _enter(self, lease: Lease | None, consumed: Mapping[str, int], most: Mapping[str, int]) -> None:
        if lease is None or not consumed:
            return
        families = [{a.entity_id for a in part.accounts} for part in lease._taken()]
        always = set.intersection(*families)
        self.books.enter(always, consumed, consumed)
        self.books.enter(set.union(*families) - always, {}, most)

    # What is true in the end.

    def run(self) -> None:
        self.simulation.run()
        if self.store.is_split:
            self._heal()
        self.spell, self.simulation.before_step = None, lambda: None
        for network in self.networks:
            network.calm()
        costs = self.courts.costs()
        self.simulation.faults["admitted beyond the law"] += len(costs)
        self._check_books()
        self._check_served()
        alive = [repository for process, repository in self.repositories if not process.crashed]
        self._lose_limits(alive)
        check_convergence(self.simulation, self.setup, alive, LONER, RESOURCE, CONFIG_TTL_SECONDS)
        check_changes(self.simulation, self.setup, alive, LONER, RESOURCE, LIMITS)
        check_waits(self.simulation, self.setup, tuple(FAMILY), RESOURCE)

    def _check_books(self) -> None:
        """What clients used is what is stored and what was lost, to the token."""
        for entity_id in EVERYBODY:
            key = bucket_key(self.setup.namespace_id, entity_id, RESOURCE)
            (image,) = run_sync(self.root.batch_get([key]))
            for name in ("fast", "slow"):
                stored = number(image or {}, limit_attributes(name).tc)
                used, low = stored + self.courts.undone[key, name], self.books.low[entity_id, name] * 1000
                if key in self.courts.vanished:  # to whom nothing could be given back
                    used = max(low, used - self.courts.lost[key, name])
                self.books.check(entity_id, name, used)

    def _check_served(self) -> None:
        """Nobody is refused for ever, or waits: when all has refilled, everybody is served at once."""
        self.simulation.now_ms += DAYS_MS
        self.simulation.in_flight = 1  # whoever asks is awake until it is answered
        alive = [repository for process, repository in self.repositories if not process.crashed]
        for repository in alive:
            for entity_id in FAMILY:
                task = self.simulation.add(self._use(repository, entity_id), None)
                self.simulation.run()
                assert task.error is None, f"{entity_id} is not served: {task.error!r}"
                self.simulation.now_ms += DAYS_MS

    def _lose_limits(self, alive: list[Repository]) -> None:
        """Let a raise and a gift be lost when one process remembers them: the judges look on.

        That takes two who use one bucket by turns within the time of a cache, which is rare elsewhere.
        """
        stranger, log = "stranger", self.store.primary.log
        for late, early in pairwise(alive):
            give = partial(early.top_up, stranger, RESOURCE, {"fast": 3}, key=f"late-{len(log)}")
            self._settle(self.setup.set_resource_defaults(RESOURCE, LIMITS[0]))
            self._settle(self._use(early, stranger))
            kept = len(log)
            self._settle(self.setup.set_resource_defaults(RESOURCE, LIMITS[2]), give())
            late.invalidate_config_cache()
            self._settle(self._use(late, stranger))
            self.courts.fail_over(self.store.fail_over(len(log) - kept))
            log = self.store.primary.log
            self._settle(give())
            for repository in (late, early) * 3:
                self.simulation.now_ms += REFUSAL_MS_MAX + 1
                self._settle(self._use(repository, stranger))

    def _settle(self, *steps: Coroutine[Any, Any, Any]) -> None:
        for step in steps:
            task = self.simulation.add(step, None)
            self.simulation.run()
            assert isinstance(task.error, RateLimitExceeded | None), repr(task.error)

    async def _use(self, repository: Repository, entity_id: str) -> None:
        async with RateLimiter(repository).acquire(entity_id, RESOURCE, {"fast": 1, "slow": 1}):
            pass


def _gift(entry: Entry, write: Write, before: Item | None, after: Item) -> Mapping[str, int]:
    """What a write gives by the verb of an operator, if its key was not used before in this history."""
    keys = [key for key in entry.before if key.sort.startswith(ONCE)]
    if not keys or before is None or entry.before[keys[0]] is not None:
        return {}
    return _given(write, before, after)
