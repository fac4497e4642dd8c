"""A namespace arrives in another store as it was, whichever two they are, and is used on from there."""

from pathlib import Path

import pytest

from tests.copying.conftest import Fresh
from tests.copying.furnished import LIMITS, RESOURCE, comparable, count_usage, dump, furnish, opened
from tests.dynamodb.tables import make_table
from tests.engines import dynamodb_local
from tests.stores import STORES
from zae_limiter import (
    Limit,
    NamespaceNotFoundError,
    NamespaceStateError,
    RateLimiter,
    RateLimitExceeded,
)
from zae_limiter.backends import open_backend, store_world
from zae_limiter.backends.memory import MemoryBackend
from zae_limiter.backends.sqlite import SqliteBackend
from zae_limiter.models import NamespaceStatus
from zae_limiter.models.demand import Demand
from zae_limiter.operate.copying import Copy, CopyReport, Store
from zae_limiter.operate.migrations import scan_of
from zae_limiter.records.leases import PLACES, LeaseState, OnExpiry
from zae_limiter.repository_protocol import Delete, Update
from zae_limiter.runtime.world import World
from zae_limiter.schema import entity_key, limit_attributes
from zae_limiter.server.leases import AskedLease, StoredLeases
from zae_limiter.testing import ManualClock
from zae_limiter_aggregator.runner import aggregate

EMBEDDED = ("memory", "sqlite")


async def copied(source: Store, target: Store, name: str = "default", **how: bool) -> CopyReport:
    copy = Copy(source, target)
    await copy.check(write=True)
    (space,) = await copy.namespaces([name])
    return await copy.carry(await copy.look(space), **how)


@pytest.mark.parametrize("to", STORES)
@pytest.mark.parametrize("kind", STORES)
async def test_all_records_arrive(fresh: Fresh, clock: ManualClock, kind: str, to: str) -> None:
    """Entities, limits, buckets, audit events, keys of verbs, switches, estimates, the registry."""
    source, target = fresh(kind), fresh(to)
    for name in ("default", "tenant"):
        await furnish(await opened(source.backend, clock.world, name))
    for name in ("default", "tenant"):
        report = await copied(source, target, name)
        assert (report.is_open, report.different, report.changed) == (True, 0, 0)
    there = await dump(target.backend)
    assert comparable(there) == comparable(await dump(source.backend))
    kinds = {key.sort.split("#")[1] for key in there}
    assert kinds >= {
        "META",
        "STATE",
        "CONFIG",
        "AUDIT",
        "ONCE",
        "ESTIMATE",
        "PROVIDER",
        "REPORT",
        "ENTITY_CONFIGS",
    }


@pytest.mark.parametrize("kind", EMBEDDED)
async def test_nothing_is_outside_the_index(fresh: Fresh, clock: ManualClock, kind: str) -> None:
    """What a copy finds by the index of a namespace is all that the store has."""
    source, target = fresh(kind), fresh(kind)
    await furnish(await opened(source.backend, clock.world))
    await copied(source, target)
    for store in (source, target):
        everything = {row.key: row.item async for row in scan_of(store.backend)()}
        assert comparable(everything) == comparable(await dump(store.backend))


@pytest.mark.parametrize("to", STORES)
@pytest.mark.parametrize("kind", STORES)
async def test_acquires_go_on_with_the_balance(fresh: Fresh, clock: ManualClock, kind: str, to: str) -> None:
    """Exactly what was left is admitted, and a token more is refused with the same wait as in the source."""
    source, target = fresh(kind), fresh(to)
    limiter = RateLimiter(await opened(source.backend, clock.world))
    await limiter.repository.set_resource_defaults(RESOURCE, LIMITS)
    async with limiter.acquire("key", RESOURCE, {"rpm": 40, "tpm": 1_000}) as lease:
        await lease.adjust(tpm=500)
    clock.advance(1.5)
    await copied(source, target)
    moved = RateLimiter(await opened(target.backend, clock.world))
    available = await limiter.available("key", RESOURCE)
    assert await moved.available("key", RESOURCE) == available
    assert available["tpm"] == 8_750
    waits = []
    for one in (limiter, moved):
        await take(one, "key", RESOURCE, {"rpm": 1, "tpm": available["tpm"]})
        with pytest.raises(RateLimitExceeded) as refused:
            await take(one, "key", RESOURCE, {"tpm": 1})
        waits.append(refused.value.retry_after_seconds)
    assert waits[0] == waits[1]


@pytest.mark.parametrize("to", STORES)
@pytest.mark.parametrize("kind", STORES)
async def test_leases_that_are_held_end_where_they_arrive(
    fresh: Fresh, clock: ManualClock, kind: str, to: str
) -> None:
    """Who has one ends it there, a request sent again is known there, and who has gone is looked after."""
    source, target = fresh(kind), fresh(to)
    here = StoredLeases(RateLimiter(await opened(source.backend, clock.world)))
    seats = [Limit.custom("tokens", 100, 1, 86_400), Limit.concurrent("parallel", 4, hold="1h")]
    for who in ("team", "key"):
        await here._limiter.create_entity(who, parent_id=None if who == "team" else "team", cascade=True)
    await here._limiter.set_resource_defaults(RESOURCE, seats)
    demands = (Demand("key", RESOURCE, {"tokens": 10, "parallel": 1}),)
    asked = [
        AskedLease(demands=demands, owner="app", key=key, lease_seconds=60, on_expiry=OnExpiry.REFUND)
        for key in ("ended", "forgotten")
    ]
    rows = [(await here.acquire(one)).row for one in asked]
    await copied(source, target)
    there = StoredLeases(RateLimiter(await opened(target.backend, clock.world)))
    left = {"tokens": 80, "parallel": 2}
    assert [await there._limiter.available(who, RESOURCE) for who in ("key", "team")] == [left] * 2
    again = await there.acquire(asked[0])
    assert (again.is_again, again.row) == (True, rows[0])
    assert rows[0] is not None
    held = (await there.held(rows[0].lease_id, "app")).changed(noted=({"tokens": 3},))
    noted = await there.ends.note(rows[0], held)
    assert noted is not None
    assert await there.finish(noted, LeaseState.COMMITTED, OnExpiry.SETTLE) is not None
    left = {"tokens": 87, "parallel": 3}
    assert [await there._limiter.available(who, RESOURCE) for who in ("key", "team")] == [left] * 2
    clock.advance(61)
    for place in range(PLACES):
        await there.sweep(place)
    assert there.counts.expired == 1
    left = {"tokens": 97, "parallel": 4}
    assert [await there._limiter.available(who, RESOURCE) for who in ("key", "team")] == [left] * 2


@pytest.mark.parametrize("to", STORES)
async def test_to_and_fro(fresh: Fresh, clock: ManualClock, to: str) -> None:
    """What a store added for itself is left behind when the namespace comes back."""
    source, target, back = fresh("sqlite"), fresh(to), fresh("sqlite")
    await furnish(await opened(source.backend, clock.world))
    await copied(source, target)
    await copied(target, back)
    before, after = await dump(source.backend), await dump(back.backend)
    buckets = [item for key, item in after.items() if key.sort == "#STATE" and "moved" in item]
    assert len(buckets) > 5
    assert not any(limit_attributes("wcu").tk in item for item in buckets)
    assert comparable(after) == comparable(before)


async def test_a_source_in_use_is_never_taken_for_copied(fresh: Fresh, clock: ManualClock) -> None:
    """What changes between two looks is carried, and as long as it does nobody may use the target."""
    source, target = fresh("memory"), fresh("memory")
    limiter = RateLimiter(await opened(source.backend, clock.world))
    await furnish(limiter.repository)
    copy = Copy(source, target, tell=lambda _: None)
    (space,) = await copy.namespaces()
    busy = True

    async def used(keys: object, report: CopyReport, run: str | None) -> int:
        if busy:
            await take(limiter, "key-4", RESOURCE, {"rpm": 1})
        return await different(keys, report, run)  # type: ignore[arg-type]

    different, copy._put_different = copy._put_different, used  # type: ignore[method-assign,assignment]
    report = await copy.carry(await copy.look(space))
    assert (report.is_open, report.different > 0) == (False, True)
    with pytest.raises(NamespaceNotFoundError):
        await (await opened(target.backend, clock.world, "other")).namespace("default")
    busy = False
    report = await copy.carry(await copy.look(space))
    assert (report.is_open, report.different) == (True, 0)
    assert (await copy.verify(await copy.look(space))).different == 0


async def test_in_advance_and_again(fresh: Fresh, clock: ManualClock) -> None:
    """The second pass carries what changed, came and went, and writes nothing else."""
    source, target = fresh("sqlite"), fresh("memory")
    repository = await opened(source.backend, clock.world)
    await furnish(repository)
    first = await copied(source, target, in_advance=True)
    assert (first.is_open, first.written > 20) == (False, True)
    await take(RateLimiter(repository), "key-1", RESOURCE, {"rpm": 2})
    await repository.create_entity("late")
    await repository.disable(reason="we move")
    (doomed,) = [key for key in await dump(source.backend) if key.sort == "#ONCE#once"]
    await source.backend.write_each([Delete(doomed)])
    last = await copied(source, target)
    assert (last.is_open, last.removed) == (True, 1)
    # Two buckets, for key-1 cascades not; the system's level; an entity, and two events.
    assert last.written + last.changed < 10
    assert comparable(await dump(target.backend)) == comparable(await dump(source.backend))


async def test_a_target_with_other_contents_is_refused(fresh: Fresh, clock: ManualClock) -> None:
    """It may be in use; whoever wants it replaced says so, and then it is exactly the source."""
    source, target = fresh("memory"), fresh("sqlite")
    await furnish(await opened(source.backend, clock.world))
    assert (await copied(source, target)).is_open
    assert (await copied(source, target)).different == 0
    moved = await opened(target.backend, clock.world)
    await take(RateLimiter(moved), "key-5", RESOURCE, {"rpm": 1})
    await moved.create_entity("new here")
    report = await copied(source, target)
    assert report.different >= 3
    assert set(report.differences.values()) == {"differs", "is not in the source"}
    assert (await moved.get_entity("new here")) is not None
    report = await copied(source, target, overwrite=True)
    assert (report.is_open, report.removed > 0) == (True, True)
    assert comparable(await dump(target.backend)) == comparable(await dump(source.backend))


async def test_a_name_that_is_taken(fresh: Fresh, clock: ManualClock) -> None:
    """An empty namespace makes room; one with contents stays, is renamed around, or can be recovered."""
    source, empty, taken = fresh("memory"), fresh("memory"), fresh("memory")
    await furnish(await opened(source.backend, clock.world))
    await opened(empty.backend, clock.world)
    assert (await copied(source, empty)).is_open
    registry = await opened(empty.backend, clock.world, "other")
    assert [one.namespace_name for one in await registry.list_namespaces()] == ["default", "other"]
    assert await registry.list_orphan_namespaces() == []

    theirs = await opened(taken.backend, clock.world)
    await theirs.create_entity("theirs")
    with pytest.raises(NamespaceStateError, match="another namespace of that name; choose one with --as"):
        await copied(source, taken)
    copy = Copy(source, taken)
    (space,) = await copy.namespaces()
    assert (await copy.carry(await copy.look(space, "moved"))).is_open
    assert (await (await theirs.namespace("moved")).get_entity("team")) is not None
    with pytest.raises(NamespaceStateError, match="the target has it as 'moved'"):
        await copied(source, taken, overwrite=True)


async def test_a_name_that_is_taken_is_given_up(fresh: Fresh, clock: ManualClock) -> None:
    """Whoever overwrites takes the name, and what had it is only deleted."""
    source, target = fresh("memory"), fresh("memory")
    await furnish(await opened(source.backend, clock.world))
    theirs = await opened(target.backend, clock.world)
    await theirs.create_entity("theirs")
    assert (await copied(source, target, overwrite=True)).is_open
    registry = await opened(target.backend, clock.world, "other")
    (orphan,) = await registry.list_orphan_namespaces()
    assert (orphan.namespace_id, orphan.status) == (theirs.namespace_id, NamespaceStatus.DELETED)
    assert (await (await registry.namespace("default")).get_entity("team")) is not None


async def test_an_abandoned_copy_can_be_purged(fresh: Fresh, clock: ManualClock) -> None:
    """It is listed, cannot be recovered, and the next copy begins from nothing."""
    source, target = fresh("memory"), fresh("memory")
    await furnish(await opened(source.backend, clock.world))
    await copied(source, target, in_advance=True)
    registry = await opened(target.backend, clock.world, "other")
    (orphan,) = await registry.list_orphan_namespaces()
    assert orphan.status is NamespaceStatus.COPYING
    with pytest.raises(NamespaceStateError, match="only a deleted one recovers"):
        await registry.recover_namespace(orphan.namespace_id)
    assert await registry.purge_namespace(orphan.namespace_id) > 20
    report = await copied(source, target)
    assert (report.is_open, report.written > 20) == (True, True)
    assert comparable(await dump(target.backend)).items() >= comparable(await dump(source.backend)).items()


async def test_who_has_it_open_while_it_is_overwritten(fresh: Fresh, clock: ManualClock) -> None:
    """Is refused, and told why."""
    source, target = fresh("memory"), fresh("memory")
    await furnish(await opened(source.backend, clock.world))
    await copied(source, target)
    other = MemoryBackend(clock.world, target.backend.change_log())  # type: ignore[attr-defined]
    moved = RateLimiter(await opened(other, clock.world))
    await take(moved, "key-5", RESOURCE, {"rpm": 1})
    await copied(source, target, overwrite=True, in_advance=True)
    with pytest.raises(NamespaceNotFoundError, match="is being copied to here"):
        await take(moved, "key-5", RESOURCE, {"rpm": 1})


async def test_what_is_over_stays_behind(fresh: Fresh, clock: ManualClock) -> None:
    """Neither carried nor missed, in whichever store it still lies about."""
    source, target = fresh("memory"), fresh("memory")
    await furnish(await opened(source.backend, clock.world))
    await copied(source, target, in_advance=True)
    assert "ONCE" in {key.sort.split("#")[1] for key in await dump(target.backend)}
    clock.advance(86_400 * 3)
    report = await copied(source, target)
    assert (report.is_open, report.different, report.written, report.removed) == (True, 0, 0, 0)
    late = fresh("memory")
    assert (await copied(source, late)).written == report.items
    assert "ONCE" not in {key.sort.split("#")[1] for key in await dump(late.backend)}


@pytest.mark.parametrize("to", EMBEDDED)
async def test_usage_is_counted_where_it_was(fresh: Fresh, clock: ManualClock, to: str) -> None:
    """Buckets that arrive are no use of the target; from then on its own uses count, in the same rows."""
    source, target = fresh("sqlite"), fresh(to)
    limiter = RateLimiter(await opened(source.backend, clock.world))
    await limiter.repository.set_resource_defaults(RESOURCE, LIMITS)
    for _ in range(5):
        await take(limiter, "key", RESOURCE, {"rpm": 3})
    await count_usage(source.backend, clock.world)
    await copied(source, target, in_advance=True)
    await take(limiter, "key", RESOURCE, {"rpm": 2})
    await count_usage(source.backend, clock.world)
    await copied(source, target)
    await count_usage(target.backend, clock.world)
    moved = RateLimiter(await opened(target.backend, clock.world))
    assert await used(moved) == await used(limiter) == 17
    for _ in range(4):
        await take(moved, "key", RESOURCE, {"rpm": 1})
    await count_usage(target.backend, clock.world)
    assert await used(moved) == 21


async def test_usage_goes_on_in_a_table(tmp_path: Path) -> None:
    """Who follows its stream counts no bucket that arrives, also if it comes twice, and every use after."""
    world, url = World(), dynamodb_local.url(make_table(with_stream=True), timeout_ms=60_000)
    source = Store(
        SqliteBackend(tmp_path / "limits.db", sync=True, timeout_ms=60_000, world=world), world, "sqlite"
    )
    clock = store_world(url, world)
    target = Store(open_backend(url, sync=True, world=clock), clock, "dynamodb")
    await source.backend.setup()
    limiter = RateLimiter(await opened(source.backend, world))
    await limiter.repository.set_resource_defaults(RESOURCE, LIMITS)
    for in_advance in (True, False):
        for _ in range(5):
            await take(limiter, "key", RESOURCE, {"rpm": 3})
        await count_usage(source.backend, world)
        await copied(source, target, in_advance=in_advance)
    moved = RateLimiter(await opened(target.backend, clock))
    aggregate(url, until_idle=True)
    assert await used(moved) == await used(limiter) == 30
    for _ in range(4):
        await take(moved, "key", RESOURCE, {"rpm": 1})
    aggregate(url, until_idle=True)
    assert await used(moved) == 34
    for store in (source, target):
        await store.backend.close()


async def take(limiter: RateLimiter, entity_id: str, resource: str, amounts: dict[str, int]) -> None:
    async with limiter.acquire(entity_id, resource, amounts):
        pass


async def used(limiter: RateLimiter) -> int:
    found, _ = await limiter.repository.get_usage_snapshots(entity_id="key", window_type="hourly")
    return sum(one.counters["rpm"] for one in found)


async def test_bad_input(fresh: Fresh, clock: ManualClock) -> None:
    """A namespace that is not there, and one whose record is damaged, are told before anything is written."""
    source, target = fresh("memory"), fresh("memory")
    repository = await opened(source.backend, clock.world)
    copy = Copy(source, target)
    with pytest.raises(NamespaceNotFoundError, match="'nobody' does not exist in memory://"):
        await copy.namespaces(["nobody"])
    # An entry of another namespace in this one's index is not followed.
    key = entity_key("stranger", "x")
    await source.backend.write_each([Update(key, set={"GSI4PK": repository.namespace_id, "GSI4SK": "a"})])
    assert (await copied(source, target)).items == 0
    assert await target.backend.batch_get([key]) == [None]


async def test_another_run_takes_over(fresh: Fresh, clock: ManualClock) -> None:
    """The one that was first stops at its next note, and what the second does is not undone."""
    source, target = fresh("memory"), fresh("memory")
    await furnish(await opened(source.backend, clock.world))
    copy = Copy(source, target)
    (space,) = await copy.namespaces()
    first = await copy.look(space)
    overtaken = []

    async def rival(keys: object, report: CopyReport) -> None:
        if not overtaken:
            overtaken.append(await copied(source, target))
        await put_new(keys, report)  # type: ignore[arg-type]

    put_new, copy._put_new = copy._put_new, rival  # type: ignore[method-assign,assignment]
    with pytest.raises(NamespaceStateError, match="by another copy or by an operator"):
        await copy.carry(first)
    assert overtaken[0].is_open
    assert comparable(await dump(target.backend)) == comparable(await dump(source.backend))
