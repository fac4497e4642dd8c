"""A migration beside clients, older ones and newer ones: nothing counts twice, and who is let in when."""

import asyncio
import random

import pytest

from tests.migrations.old_store import OldStore, fill, is_old, old_rows, said_by
from tests.migrations.older import NOW_MS, SHAPES, Table
from tests.odd_stores import Crash, Crashing, Yielding
from zae_limiter import IncompatibleSchemaError, Limit, RateLimitExceeded, Repository
from zae_limiter.backends.memory import MemoryBackend
from zae_limiter.engine.law import balance
from zae_limiter.models import VersionRecord
from zae_limiter.operate.migrations import Kind, Migration, scan_of
from zae_limiter.operate.migrations import MigrationStage as Step
from zae_limiter.records.items import version_of
from zae_limiter.records.versions import judge
from zae_limiter.repository_protocol import Delete, Item, Key, Update
from zae_limiter.runtime.colour import run_sync
from zae_limiter.schema import migration_key, older_version_key, version_key
from zae_limiter.version import SCHEMA_VERSION
from zae_limiter_aggregator.changes import Change, numbered
from zae_limiter_aggregator.usage import extract_deltas

SEEDS = 12


@pytest.mark.parametrize("seed", range(SEEDS))
@pytest.mark.parametrize("shape", SHAPES)
def test_clients_between_two_runs(in_memory: OldStore, shape: str, seed: int) -> None:
    """What they take from buckets that were moved, or were not yet, counts once and is not lost."""
    dice = random.Random(seed)
    table = SHAPES[shape](30, seed)
    in_memory.fill(table)
    taken: dict[tuple[str, str, str], int] = {}

    def attempt() -> Migration:
        crashing = Crashing(in_memory.backend)
        crashing.arm(dice.randint(8, 25), late=dice.random() < 0.5)
        return in_memory.migration(lambda _: crashing)

    run_sync(in_memory.migration()._context([]))  # the namespace is there
    for _ in range(60):
        try:
            run_sync(attempt().run())
            break
        except Crash:
            for place in dice.sample(sorted(table.truth.buckets), 5):
                take(in_memory, table, place, taken)
    found = said_by(in_memory.rows()).buckets
    for (name, resource), limits in table.truth.buckets.items():
        for limit_name, old in limits.items():
            new = found[name, resource][limit_name]
            left = balance(new.rate, new.tokens_milli, new.origin_ms, NOW_MS)
            before = balance(old.rate, old.tokens_milli, old.origin_ms, NOW_MS)
            assert left == before - taken.get((name, resource, limit_name), 0)


def take(
    stage: OldStore, table: Table, place: tuple[str, str], taken: dict[tuple[str, str, str], int]
) -> None:
    """Let a client take what it can get of one token, under the limits of the old bucket."""
    limits = [
        Limit(
            name,
            old.rate.capacity_milli // 1000,
            old.rate.refill_amount_milli // 1000,
            old.rate.refill_period_ms // 1000,
        )
        for name, old in table.truth.buckets[place].items()
    ]
    limiter = stage.limiter()

    async def acquire() -> None:
        async with limiter.acquire(*place, {limit.name: 1 for limit in limits}, limits) as lease:
            await lease.adjust({limit.name: 2 for limit in limits})

    try:
        run_sync(acquire())
    except RateLimitExceeded:
        return
    for limit in limits:
        taken[(*place, limit.name)] = taken.get((*place, limit.name), 0) + 3_000


def test_what_newer_clients_made_is_not_overwritten(embedded: OldStore) -> None:
    """An entity and limits that are there win; both buckets count; a moved one is left alone for good."""
    table = SHAPES["composite"](30)
    embedded.fill(table)
    run_sync(embedded.migration()._context([]))
    repository = embedded.repository()
    name = next(name for name in table.truth.entities if name.startswith("user"))
    run_sync(repository.create_entity(name, "made anew"))
    run_sync(repository.set_system_defaults([Limit.per_minute("rpm", 77)]))
    report = embedded.migrate()
    repository = embedded.repository()
    entity = run_sync(repository.get_entity(name))
    assert entity is not None
    assert entity.name == "made anew"
    assert run_sync(repository.get_system_defaults())[0] == [Limit.per_minute("rpm", 77)]
    assert report.superseded == {Kind.ENTITY: 1, Kind.LIMITS: 1}
    assert old_rows(embedded.rows()) == set()


def test_an_older_client_that_goes_on_writing(in_memory: OldStore) -> None:
    """Its bucket is not taken for a new one: the numbers in it are those that were moved already."""
    table = SHAPES["single"](10)
    in_memory.fill(table)
    key, item = next((key, item) for key, item in table.items.items() if key.sort.startswith("#BUCKET#"))
    in_memory.migrate(keep_old=True)
    moved = {key: item for key, item in in_memory.rows().items() if not is_old(key)}
    fill(in_memory.backend, {key: item})  # as the oldest clients do: the whole item, without the mark
    report = in_memory.migrate()
    assert report.superseded == {Kind.BUCKET: 1}
    rows = in_memory.rows()
    assert old_rows(rows) == set()
    assert {key: rows[key] for key in moved if key.sort == "#STATE"} == {
        key: item for key, item in moved.items() if key.sort == "#STATE"
    }


def test_an_old_record_that_never_holds_still_is_told(in_memory: OldStore) -> None:
    """It stays, the migration is not called done, and the next one moves it."""
    table = SHAPES["composite"](10)
    in_memory.fill(table)
    key = next(key for key in table.items if key.sort.startswith("#BUCKET#"))

    class Restless(Yielding):
        async def transact_write(self, writes):  # type: ignore[no-untyped-def]
            await self.inner.write_each([Update(key, {"rf": 1})])
            return await self.inner.transact_write(writes)

    migration = in_memory.migration(Restless)
    asyncio.run(_run(migration))
    assert migration.report.late == 1
    assert old_rows(in_memory.rows()) == {key}
    assert run_sync(in_memory.migration().state()).stage is Step.FOLLOWING
    assert in_memory.migrate().moved == {Kind.BUCKET: 1}
    assert old_rows(in_memory.rows()) == set()


async def _run(migration: Migration) -> None:
    await migration.run()


def test_an_old_record_whose_new_one_is_gone_stays(in_memory: OldStore) -> None:
    """Unless it would have expired by now: nobody can tell who took it away."""
    table = SHAPES["composite"](10)
    in_memory.fill(table)
    in_memory.migrate(keep_old=True)
    rows = in_memory.rows()
    entity = next(key for key in rows if is_old(key) and key.sort == "#META")
    event = next(key for key in rows if is_old(key) and key.sort.startswith("#AUDIT#"))
    targets = [Key(*str(rows[key]["moved_to"]).split(" ")) for key in (entity, event)]
    run_sync(in_memory.backend.write_each([*map(Delete, targets), Update(event, set={"ttl": 5})]))
    report = in_memory.migrate()
    assert [finding.key for finding in report.findings.told] == [entity]
    assert old_rows(in_memory.rows()) == {entity}


# Who is let in.


def older_client(record: Item) -> set[bool]:
    """Whether a client of an older shape would go to work, by each of the two rules that it may know."""
    said = {**record, **(record.get("data") or {})}  # type: ignore[dict-item]
    numbers = [tuple(map(int, str(v).split("."))) for v in ("0.99.0", said["client_min_version"])]
    return {str(said["schema_version"]).startswith("0."), numbers[0] >= numbers[1]}


@pytest.mark.parametrize("shape", SHAPES)
def test_who_is_let_in_and_when(stage: OldStore, shape: str) -> None:
    """Older clients before, nobody while buckets are moved, newer ones as soon as limits and buckets are."""
    table = SHAPES[shape](10)
    stage.fill(table)
    assert older_client(stage.rows()[older_version_key()]) == {True}
    before = stage.rows()
    with pytest.raises(IncompatibleSchemaError, match="zae-limiter upgrade"):
        run_sync(Repository.over(Backstage(stage.backend)))
    assert stage.rows() == before  # whoever is refused has not even registered a namespace
    migration = stage.migration()
    run_sync(migration._begin())
    assert older_client(stage.rows()[older_version_key()]) == {False}
    assert run_sync(migration.state()).stage is Step.MOVING
    run_sync(migration._context([]))
    with pytest.raises(IncompatibleSchemaError, match=r"schema 0\.8\.0.*zae-limiter upgrade"):
        run_sync(Repository.over(Backstage(stage.backend)))
    run_sync(migration.move())
    assert run_sync(migration.state()).stage is Step.FOLLOWING
    run_sync(Repository.over(Backstage(stage.backend)))
    run_sync(migration.follow())
    run_sync(migration.clean())
    assert run_sync(migration.state()).stage is Step.DONE
    rows = stage.rows()
    assert older_client(rows[older_version_key()]) == {False}
    record = version_of(rows[version_key()])
    assert (record.schema_version, record.client_min_version) == (SCHEMA_VERSION, "0.0.0")
    assert judge(record) is None
    assert rows[migration_key()]["from_schema"] == "0.8.0"


class Backstage(Yielding):
    """A backend that stays open when a repository that was refused closes it."""

    async def batch_get(self, keys):  # type: ignore[no-untyped-def]
        return await self.inner.batch_get(keys)

    async def write_each(self, writes):  # type: ignore[no-untyped-def]
        return await self.inner.write_each(writes)

    async def transact_write(self, writes):  # type: ignore[no-untyped-def]
        return await self.inner.transact_write(writes)

    async def close(self) -> None:
        pass


def test_a_table_in_use_is_not_closed_again(in_memory: OldStore) -> None:
    """Clients of this version may be at work while what an older one left is moved."""
    repository = run_sync(Repository.over(Backstage(in_memory.backend), world=in_memory.clock.world))
    run_sync(repository.set_version_record(lambda_version="0.1.0"))
    in_memory.fill(SHAPES["composite"](10))
    migration = in_memory.migration()
    run_sync(migration._begin())
    run_sync(Repository.over(Backstage(in_memory.backend)))
    run_sync(migration.run())
    record = run_sync(repository.get_version_record())
    assert isinstance(record, VersionRecord)
    assert (record.lambda_version, record.schema_version) == ("0.1.0", SCHEMA_VERSION)


def test_a_moved_bucket_is_no_usage(in_memory: OldStore) -> None:
    """What it consumed was counted by the older table; what comes after counts."""
    table = SHAPES["composite"](10)
    in_memory.fill(table)
    in_memory.migrate()
    key, item = next((key, item) for key, item in in_memory.rows().items() if key.sort == "#STATE")
    assert any(name.endswith("_tc") and value for name, value in item.items())
    assert extract_deltas(Change(key, None, item, NOW_MS, numbered(1))) == {}
    name = next(name for name in item if name.endswith("_tc"))
    more = {**item, name: item[name] + 5_000}  # type: ignore[operator]
    assert extract_deltas(Change(key, item, more, NOW_MS, numbered(2))) == {name[2:-3]: 5_000}


def test_a_store_that_cannot_be_read_as_a_whole() -> None:
    """Is told so."""
    with pytest.raises(ValueError, match="cannot be read as a whole"):
        scan_of(Backstage(MemoryBackend()))
