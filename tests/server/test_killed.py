"""A worker dies before or behind any call to the store; another is asked again, and the books are compared.

A lease is there exactly if its tokens were taken, and ends exactly once, whatever died and whoever is asked.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

import pytest

from tests.odd_stores import Crash, Crashing, Slow
from zae_limiter import RateLimiter, Repository
from zae_limiter.backends.memory import MemoryBackend
from zae_limiter.backends.shelf import Shelf
from zae_limiter.exceptions import RateLimiterUnavailable
from zae_limiter.models import Limit
from zae_limiter.models.demand import Demand
from zae_limiter.records.leases import KEPT_SECONDS, PLACES, LeaseState, OnExpiry
from zae_limiter.repository_protocol import Backend, Outcome, Write
from zae_limiter.server import leases
from zae_limiter.server.leases import AskedLease, StoredLeases
from zae_limiter.telemetry import Telemetry
from zae_limiter.testing import Fault, FaultyBackend, ManualClock, RecordingBackend
from zae_limiter.testing.stores import Wrapper

CALLS_MAX = 40
RPD, SEATS = Limit.per_day("rpd", 1000), Limit.concurrent("parallel", 5, hold="1h")
ASKED = AskedLease(
    demands=(Demand("child", "r", {"rpd": 10, "parallel": 1}),),
    owner="somebody",
    key="one",
    lease_seconds=60,
    on_expiry=OnExpiry.REFUND,
)
SEVERAL = AskedLease(
    demands=(Demand("child", "r", {"rpd": 10}), Demand("child", "s", {"rpd": 7})), owner="somebody", key="two"
)


class Bank:
    """One store, its clock, and workers on it that can die."""

    def __init__(self) -> None:
        self.clock, self.shelf = ManualClock(), Shelf()

    async def worker(self, wrap: Callable[[Backend], Backend] | None = None) -> StoredLeases:
        backend: Backend = MemoryBackend(self.clock.world, self.shelf)
        repository = await Repository.over(backend if wrap is None else wrap(backend), world=self.clock.world)
        return StoredLeases(RateLimiter(repository))

    async def faulty(self) -> tuple[StoredLeases, FaultyBackend]:
        """A worker, and what its calls fail by."""
        found = list[FaultyBackend]()

        def wrap(backend: Backend) -> Backend:
            found.append(FaultyBackend(backend))
            return found[0]

        return await self.worker(wrap), found[0]

    async def expired(self, workers: int = 1) -> None:
        """A minute later, when other workers have looked after all leases."""
        self.clock.advance(61)
        for _ in range(workers):
            await swept(await self.worker())

    async def furnish(self) -> None:
        leases = await self.worker()
        limiter = leases._limiter
        await limiter.create_entity("parent")
        await limiter.create_entity("child", parent_id="parent", cascade=True)
        for resource in "rs":
            await limiter.set_resource_defaults(resource, [RPD, SEATS])

    async def books(self, resource: str = "r") -> dict[str, dict[str, int]]:
        """What is left, of the child and of its parent."""
        limiter = (await self.worker())._limiter
        return {who: await limiter.available(who, resource) for who in ("child", "parent")}


async def swept(worker: StoredLeases) -> None:
    for place in range(PLACES):
        await worker.sweep(place)


def left(rpd: int, parallel: int) -> dict[str, dict[str, int]]:
    return {who: {"rpd": rpd, "parallel": parallel} for who in ("child", "parent")}


async def dies_everywhere(
    prepare: Callable[[StoredLeases], Awaitable[None]],
    change: Callable[[StoredLeases], Awaitable[object]],
    check: Callable[[Bank], Awaitable[None]],
) -> int:
    """Let a worker die in ``change`` at every call in turn; how often it died."""
    died = 0
    for at in range(1, CALLS_MAX):
        survived = 0
        for late in (False, True):
            bank, dying = Bank(), list[Crashing]()
            await bank.furnish()

            def wrap(backend: Backend, dying: list[Crashing] = dying) -> Backend:
                dying.append(Crashing(backend))
                return dying[0]

            worker = await bank.worker(wrap)
            await prepare(worker)
            dying[0].arm(at, late=late)
            try:
                await change(worker)
                survived += 1
            except Crash:
                died += 1
            dying[0].arm(0, late=False)
            await check(bank)
        if survived == 2:
            return died
    raise AssertionError("it never ran through")


async def nothing(worker: StoredLeases) -> None:
    del worker


async def taken(worker: StoredLeases) -> None:
    await worker.acquire(ASKED)


async def ended(worker: StoredLeases, cost: OnExpiry = OnExpiry.SETTLE, noted: int = 4) -> LeaseState:
    """End the lease as a handler does: again and again, until somebody has."""
    lease_id = worker._id_of(ASKED)
    while True:
        row = await worker.held(lease_id, "somebody")
        if row.state is not LeaseState.HELD:
            return row.state
        row = replace(row, noted=({"rpd": noted},))
        state = LeaseState.CANCELLED if cost is OnExpiry.REFUND else LeaseState.COMMITTED
        if await worker.finish(row, state, cost) is not None:
            return state


async def test_taking_is_counted_once() -> None:
    """After a crash anywhere the request is sent again, twice: one lease, one debit, one seat."""

    async def check(bank: Bank) -> None:
        again = [await (await bank.worker()).acquire(ASKED) for _ in range(2)]
        assert again[1].is_again
        assert await bank.books() == left(990, 4)

    assert await dies_everywhere(nothing, taken, check) >= 4


async def test_several_demands_are_counted_once() -> None:
    async def check(bank: Bank) -> None:
        await (await bank.worker()).acquire(SEVERAL)
        assert await bank.books() == left(990, 5)
        assert await bank.books("s") == left(993, 5)

    async def change(worker: StoredLeases) -> None:
        await worker.acquire(SEVERAL)

    assert await dies_everywhere(nothing, change, check) >= 4


async def test_a_lease_whose_answer_nobody_got_expires() -> None:
    """Nobody asks again: whatever was taken is back when the lease has expired, swept by another worker."""

    async def check(bank: Bank) -> None:
        await bank.expired()
        assert await bank.books() == left(1000, 5)

    assert await dies_everywhere(nothing, taken, check) >= 4


@pytest.mark.parametrize(
    ("cost", "books"), [(OnExpiry.SETTLE, left(996, 5)), (OnExpiry.REFUND, left(1000, 5))]
)
async def test_ending_is_counted_once(cost: OnExpiry, books: dict[str, dict[str, int]]) -> None:
    """A crash anywhere in a commit or a cancel: sent again, it is done once."""

    async def change(worker: StoredLeases) -> None:
        await ended(worker, cost)

    async def check(bank: Bank) -> None:
        assert await ended(await bank.worker(), cost) is not LeaseState.EXPIRED
        assert await bank.books() == books
        await bank.expired()
        assert await bank.books() == books

    assert await dies_everywhere(taken, change, check) >= 3


async def test_expiry_is_counted_once() -> None:
    """A sweep that dies anywhere, and several that follow."""

    async def change(worker: StoredLeases) -> None:
        world = worker.ends.scope.world
        assert world.nap is not None
        world.nap(61)
        await swept(worker)

    async def check(bank: Bank) -> None:
        await bank.expired(workers=2)
        assert await bank.books() == left(1000, 5)

    assert await dies_everywhere(taken, change, check) >= 5


@pytest.mark.parametrize("fault", list(Fault))
async def test_replies_that_are_lost(fault: Fault) -> None:
    """A call fails anywhere, its effect kept or not: the same worker is asked again until it answers."""
    for at in range(CALLS_MAX):
        bank = Bank()
        await bank.furnish()
        worker, store = await bank.faulty()
        asked, failed = ASKED, False
        store.faults = [None] * at + [fault]
        for _ in range(5):
            with contextlib.suppress(RateLimiterUnavailable):
                await worker.acquire(asked)
                break
            failed = True
        assert await bank.books() == left(990, 4)
        store.faults = [None] * at + [fault]
        for _ in range(5):
            with contextlib.suppress(RateLimiterUnavailable):
                assert await ended(worker) is LeaseState.COMMITTED
                break
            failed = True
        assert await bank.books() == left(996, 5)
        if not failed and at > 12:
            return
    raise AssertionError("faults never ceased")


class Interposed(Wrapper):
    """Somebody else is faster than the first transaction with a lease in it."""

    def __init__(self, inner: Backend, meanwhile: Callable[[], Awaitable[object]]) -> None:
        super().__init__(inner)
        self._meanwhile: Callable[[], Awaitable[object]] | None = meanwhile

    async def transact_write(self, writes: Sequence[Write]) -> list[Outcome]:
        if self._meanwhile is not None and any("/LEASE#" in write.key.partition for write in writes):
            meanwhile, self._meanwhile = self._meanwhile, None
            await meanwhile()
        return await super().transact_write(writes)


@pytest.mark.parametrize("is_lease", [True, False])
async def test_a_family_that_changes_while_a_lease_is_taken(is_lease: bool) -> None:
    """What was taken of the wrong family comes back with its record, and the right one is charged."""
    bank = Bank()
    await bank.furnish()
    other = (await bank.worker())._limiter
    await other.create_entity("new parent")
    await (await bank.worker()).acquire(replace(ASKED, key="before"))

    async def move() -> None:
        await other.repository.set_parent("child", "new parent")

    worker = await bank.worker(lambda backend: Interposed(backend, move))
    asked = replace(ASKED, demands=(Demand("child", "r", {"rpd": 10}),), is_lease=is_lease)
    for is_again in (False, True):
        granted = await worker.acquire(asked)
        assert granted.row is not None
        assert (granted.is_again, granted.row.state) == (
            is_again,
            LeaseState.HELD if is_lease else LeaseState.DECIDED,
        )
        assert [who for who, _ in granted.row.parts[0].family] == ["child", "new parent"]
        left = [(await other.available(who, "r"))["rpd"] for who in ("child", "parent", "new parent")]
        assert left == [980, 990, 990]


async def test_a_waiter_asks_in_vain_whether_its_record_was_written() -> None:
    """A lease is not given back while nobody knows whether there is a record, which would answer for it."""
    for at in range(CALLS_MAX):
        bank = Bank()
        await bank.furnish()
        worker, store = await bank.faulty()
        await worker.acquire(replace(ASKED, demands=(Demand("child", "r", {"rpd": 1000}),), key="all of it"))
        store.faults = [None] * at + [Fault.LOST_REPLY, Fault.UNREACHABLE]
        for _ in range(5):
            with contextlib.suppress(RateLimiterUnavailable):
                await worker.acquire(replace(ASKED, lease_seconds=1e6, wait=1e5))
                break
        used = (await bank.worker())._limiter.repository
        for who in ("child", "parent"):
            counted = {s.limit_name: s.total_consumed_milli for s in await used.get_bucket(who, "r")}
            assert counted["rpd"] >= 1_010_000, (at, who)
        if store.faults:
            return
    raise AssertionError("it never ran through")


async def test_who_sends_a_wait_again() -> None:
    """It is answered at once and takes nothing meanwhile; all of it was one acquire, which was admitted."""
    bank = Bank()
    await bank.furnish()
    worker = await bank.worker()
    everything = replace(ASKED, demands=(Demand("child", "r", {"rpd": 1000}),), key="all of it")
    await worker.acquire(everything)
    with Telemetry(worker._limiter) as telemetry:
        asked = replace(ASKED, lease_seconds=1e6, wait=1e5)
        assert not (await worker.acquire(asked)).is_again
        waited_until_ms = bank.clock.now_ms
        assert (await worker.acquire(asked)).is_again
        assert bank.clock.now_ms == waited_until_ms
        counters = telemetry.counters
    assert (counters.admitted, counters.refused, counters.failed) == (1, 0, 0)
    assert not telemetry.recent


async def test_two_workers_end_the_same_lease() -> None:
    """Both have read it as held: one ends it, and the other changes nothing."""
    bank = Bank()
    await bank.furnish()
    one, other = await bank.worker(), await bank.worker()
    await one.acquire(ASKED)
    row = await other.held(one._id_of(ASKED), "somebody")
    assert await one.finish(row, LeaseState.CANCELLED, OnExpiry.REFUND) is not None
    bank.clock.advance(0.001)
    assert await other.finish(row, LeaseState.CANCELLED, OnExpiry.REFUND) is None
    assert await other.ends.note(row, row.changed(expires_ms=row.expires_ms + 1)) is None
    assert await bank.books() == left(1000, 5)
    used = (await bank.worker())._limiter.repository
    (state,) = [s for s in await used.get_bucket("child", "r") if s.limit_name == "rpd"]
    assert state.total_consumed_milli == 0, "given back once, though a bucket that is full would hide it"


@pytest.mark.parametrize("is_expired", [True, False])
@pytest.mark.parametrize("cost", [OnExpiry.REFUND, OnExpiry.SETTLE])
async def test_a_key_that_was_used_days_ago(cost: OnExpiry, is_expired: bool) -> None:
    """The worker that gave the lease of then, which another one ended, ends the lease of now and no other."""
    bank = Bank()
    await bank.furnish()
    one, other = await bank.worker(), await bank.worker()
    days = 2 * KEPT_SECONDS
    asked = replace(ASKED, lease_seconds=60.0 if is_expired else 2 * days)
    await one.acquire(asked)
    assert await ended(other) is LeaseState.COMMITTED
    bank.clock.advance(days)
    assert MemoryBackend(bank.clock.world, bank.shelf)._sweep(), "the record of then has gone"
    again = replace(asked, demands=(Demand("child", "r", {"rpd": 500, "parallel": 2}),))
    assert not (await other.acquire(again)).is_again
    assert await bank.books() == left(500, 3)
    assert await ended(one, cost, noted=400) is not LeaseState.EXPIRED
    assert await bank.books() == (left(1000, 5) if cost is OnExpiry.REFUND else left(600, 5))


async def test_a_lease_that_others_have_renewed() -> None:
    """Whoever gave it reads it once the time is over that it gave, and ends nothing."""
    bank, recorded = Bank(), list[RecordingBackend]()
    await bank.furnish()

    def wrap(backend: Backend) -> Backend:
        recorded.append(RecordingBackend(backend))
        return recorded[0]

    worker, other = await bank.worker(wrap), await bank.worker()
    await worker.acquire(ASKED)
    row = await other.held(worker._id_of(ASKED), "somebody")
    assert await other.ends.note(row, row.changed(expires_ms=row.expires_ms + 60_000)) is not None
    bank.clock.advance(61)
    recorded[0].forget()
    assert (await worker.held(row.lease_id, "somebody")).state is LeaseState.HELD
    assert [verb for verb, _ in recorded[0].calls] == ["batch_get"]


async def test_what_a_worker_remembers_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """So many leases and no more, none that is large, and none for long after it has expired."""
    monkeypatch.setattr(leases, "GIVEN_MAX", 10)
    bank = Bank()
    await bank.furnish()
    worker = await bank.worker()
    many = tuple(Demand(f"somebody-{n}", "r", {"rpd": 1}) for n in range(40))
    large = await worker.acquire(replace(ASKED, demands=many, key="large"))
    assert large.row is not None
    assert not worker._given
    assert await worker.held(large.row.lease_id, "somebody") == large.row
    small = [replace(ASKED, demands=(Demand("child", "r", {"rpd": 1}),), key=f"{n}") for n in range(13)]
    for one in small:
        await worker.acquire(one)
    assert list(worker._given) == [worker._id_of(one) for one in small[3:]]
    bank.clock.advance(61)
    await worker.acquire(ASKED)
    await swept(worker)
    assert list(worker._given) == [worker._id_of(ASKED)]


async def test_who_is_cancelled_at_any_moment() -> None:
    """A request is given up while its calls are under way: the record and the debit are there, or neither."""
    outcomes = set()
    for turns in range(60):
        bank = Bank()
        await bank.furnish()
        worker = await bank.worker(lambda backend: Slow(backend, 3))
        task = asyncio.create_task(worker.acquire(ASKED))
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        books = await bank.books()
        found = await (await bank.worker())._again(ASKED, worker._id_of(ASKED))
        assert books == (left(1000, 5) if found is None else left(990, 4))
        outcomes.add((task.cancelled(), found is not None))
        if not task.cancelled():
            break
    assert outcomes >= {(True, False), (True, True)}


async def test_a_worker_that_knows_the_bucket_takes_no_shortcut() -> None:
    """A store may answer at once, but not with a record beside it: who has no transaction has a window."""
    bank, apart = Bank(), list[object]()
    await bank.furnish()
    worker = await bank.worker()
    worker._record = lambda *given: apart.append(given)  # type: ignore[method-assign, assignment]
    for key in "abc":
        demands = (Demand("child-2", "r", {"rpd": 10}),)
        granted = await worker.acquire(replace(ASKED, demands=demands, key=key))
        assert granted.row is not None
        assert not apart, "its record was written by itself"
