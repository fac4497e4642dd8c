"""Tables that older releases left, killed at every call, cut off, run twice at once, on every store."""

import asyncio
import random
from collections.abc import AsyncIterator, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.migrations.conftest import OLD
from tests.migrations.old_store import OldStore, fill, old_store
from tests.migrations.test_interruptions import finished
from tests.odd_stores import Crash, Crashing, Yielding
from tests.older.releases import RECORDINGS, recorded
from zae_limiter import IncompatibleSchemaError
from zae_limiter.engine.law import Rate, balance
from zae_limiter.operate.migrations import Kind, Migration, moving
from zae_limiter.operate.migrations.buckets import Part, missing_of_share, whole
from zae_limiter.operate.migrations.moving import Context
from zae_limiter.operate.migrations.scanning import Scan
from zae_limiter.operate.migrations.shapes import OldRecord
from zae_limiter.repository_protocol import Delete, Item, Key, Outcome, Put, Row, Update, Write
from zae_limiter.runtime.colour import run_sync
from zae_limiter.schema import changes_key, migration_key, number, version_key
from zae_limiter.testing import Fault, FaultyBackend, ManualClock
from zae_limiter.testing.stores import Wrapper

Rows = dict[Key, Item]
CALLS_MAX = 400


def clock(rows: Rows) -> ManualClock:
    """A clock that stands still, a second after the last bucket was used."""
    return ManualClock(max(number(item, "rf") for item in rows.values()) + 1000)


def filled(name: str, rows: Rows, tmp_path) -> OldStore:  # type: ignore[no-untyped-def]
    it = old_store(name, tmp_path, clock(rows))
    run_sync(it.backend.setup()) if name != "dynamodb" else None
    fill(it.backend, rows)
    return it


def as_it_was(rows: Rows) -> Scan:
    """How somebody reads a table who fell asleep before it was changed."""

    async def scan() -> AsyncIterator[Row]:
        for key, item in sorted(rows.items()):
            yield Row(key, item)

    return scan


def undisturbed(version: str, tmp_path) -> Rows:  # type: ignore[no-untyped-def]
    it = filled("memory", recorded(version), tmp_path)
    report = it.migrate()
    assert (report.late, len(report.findings)) == (0, 0)
    return it.rows()


@pytest.mark.parametrize("version", RECORDINGS)
@pytest.mark.parametrize("store", OLD)
def test_every_store_ends_the_same(store: str, version: str, tmp_path) -> None:  # type: ignore[no-untyped-def]
    """Nothing is left of the older shape, a second run has nothing to do, and a survey says so."""
    it = filled(store, recorded(version), tmp_path)
    survey = run_sync(it.migration().survey())
    assert not len(survey.obstacles)
    assert survey.unmoved[Kind.BUCKET] == sum(key.sort == "#STATE" for key in recorded(version)) > 10
    it.migrate()
    rows = it.rows()
    metered = {"b_wcu_tk", "b_wcu_tc", "b_wcu_cp", "b_wcu_ra", "b_wcu_rp", "born"}
    plain = {
        key: {n: v for n, v in item.items() if key.sort != "#STATE" or n not in metered}
        for key, item in rows.items()
        if key != changes_key()  # which SQLite counts for itself
    }
    assert plain == undisturbed(version, tmp_path)
    survey = run_sync(it.migration().survey())
    assert (survey.unmoved.total(), survey.moved.total(), len(survey.findings)) == (0, 0, 0)
    it.migrate()
    assert it.rows() == rows
    run_sync(it.backend.close())


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("version", RECORDINGS)
def test_killed_at_every_write(version: str, late: bool, tmp_path, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    """Before or after it took effect: the next run ends in the table of one undisturbed run."""
    rows, expected = recorded(version), undisturbed(version, tmp_path)
    monkeypatch.setattr(moving, "TRANSACT_WRITES_MAX", 1)  # each record goes on its own
    for at in range(1, CALLS_MAX):
        it = filled("memory", rows, tmp_path)
        crashing = Crashing(it.backend)
        crashing.arm(at, late=late)
        try:
            run_sync(it.migration(lambda _, crashing=crashing: crashing).run())
        except Crash:
            it.migrate()
            assert it.rows() == expected, at
            continue
        assert at > 50
        return
    raise AssertionError("a migration takes more calls than expected")


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("version", RECORDINGS)
def test_requests_and_replies_are_lost(version: str, seed: int, tmp_path) -> None:  # type: ignore[no-untyped-def]
    """A transaction whose reply was lost may have happened; the next run finds out."""
    dice = random.Random(seed)
    it = filled("memory", recorded(version), tmp_path)

    def attempt() -> Migration:
        faults = [dice.choice([None, *Fault]) if dice.random() < 0.2 else None for _ in range(40)]
        return it.migration(lambda backend: FaultyBackend(backend, faults))

    finished(it, attempt)
    assert it.rows() == undisturbed(version, tmp_path)


@pytest.mark.parametrize("version", RECORDINGS)
def test_two_at_once(version: str, tmp_path) -> None:  # type: ignore[no-untyped-def]
    """Call by call in turns."""
    it = filled("memory", recorded(version), tmp_path)
    two = [it.migration(Yielding) for _ in range(2)]

    async def race() -> None:
        await asyncio.gather(*(migration.run() for migration in two))

    asyncio.run(race())
    assert it.rows() == undisturbed(version, tmp_path)


@pytest.mark.parametrize("together_max", [1, 100])
@pytest.mark.parametrize("version", RECORDINGS)
def test_what_was_read_before_another_one_moved_it(  # type: ignore[no-untyped-def]
    version: str, together_max: int, tmp_path, monkeypatch
) -> None:
    """Each record as it was, beside a table where everything is done: nothing is done again."""
    monkeypatch.setattr(moving, "TRANSACT_WRITES_MAX", together_max)
    rows = recorded(version)
    it = filled("memory", rows, tmp_path)
    it.migrate()

    late = Migration(it.backend, it.clock.world, scan=as_it_was(rows))
    run_sync(late.move())
    run_sync(late.follow())
    it.migrate()
    assert it.rows() == undisturbed(version, tmp_path)


def test_the_python_api_refuses_too(tmp_path) -> None:  # type: ignore[no-untyped-def]
    """With the records in the way, before it writes anything."""
    rows = recorded("0.17")
    key = next(key for key in rows if key.sort == "#CONFIG#gpt-4")
    strange = {
        key: {**rows[key], "l_rpd_sched": "1s500"},
        Key(f"{key.partition.partition('/')[0]}/SYSTEM#", "#HOLIDAYS"): {"days": 3},
    }
    it = filled("memory", rows | strange, tmp_path)
    before = it.rows()
    with pytest.raises(
        IncompatibleSchemaError, match=r"2 records are in the way.*no such schedule"
    ) as caught:
        it.migrate()
    assert "#HOLIDAYS: no version that is known has a record of this kind" in str(caught.value)
    assert it.rows() == before


def test_an_older_client_that_makes_an_obstacle_meanwhile(tmp_path) -> None:  # type: ignore[no-untyped-def]
    """It is told as written late, and the upgrade is not over."""
    rows = recorded("0.17")
    it = filled("memory", rows, tmp_path)
    migration = it.migration()
    run_sync(migration.move())
    key = next(key for key in rows if key.sort == "#CONFIG#gpt-4")
    run_sync(it.backend.write_each([Put(key, {**rows[key], "l_rpd_sched": "1s500"})]))
    run_sync(migration.follow())
    run_sync(migration.clean())
    assert migration.report.late == 1
    assert it.rows()[migration_key()]["stage"] == "following"


def test_shards_beyond_one_transaction(tmp_path) -> None:  # type: ignore[no-untyped-def]
    """What a runaway function left, used and unused: all of it comes back to one bucket."""
    rows, shards = recorded("0.17"), 300
    first = next(key for key in rows if key.partition.endswith("BUCKET#user-3#gpt-4#0"))
    image = {**rows[first], "shard_count": 512, "b_tpd_tk": 5_000, "b_tpd_tc": 2_812, "b_rpd_tk": 156}
    more: Rows = {first: image}
    for shard in range(1, shards):
        key = Key(f"{first.partition.removesuffix('0')}{shard}", "#STATE")
        more[key] = image if shard % 2 else {"shard_count": 512}
    it = filled("memory", rows | more, tmp_path)
    it.migrate()
    found = it.rows()
    assert [key for key in found if key.partition.startswith(first.partition.removesuffix("0"))] == [first]
    used = 1 + shards // 2
    lacking = 4_000_000 // 512 - 5_000
    assert found[first]["b_tpd_tk"] == 4_000_000 - used * lacking


class Overtaken(Wrapper):
    """The first transaction that writes claims among other records comes too late for one of these."""

    is_over = False

    async def transact_write(self, writes: Sequence[Write]) -> list[Outcome]:
        among = {write.key.sort.startswith(("#CLAIM#", "#PROVISIONER")) for write in writes}
        if not self.is_over and among == {True, False}:
            self.is_over = True
            return [Outcome(False, None) for _ in writes]
        return await super().transact_write(writes)


def test_claims_beyond_one_transaction(tmp_path) -> None:  # type: ignore[no-untyped-def]
    """All levels that a file of limits made stay its own, whatever is refused on the way."""
    rows = {
        k: v for k, v in recorded("0.17").items() if k.sort == "#STATE" or k.partition.endswith("SYSTEM#")
    }
    provisioner = next(key for key in rows if key.sort == "#PROVISIONER")
    names = [f"r{number}" for number in range(250)]
    rows |= {provisioner: {**rows[provisioner], "managed_resources": names}}
    it = filled("memory", rows, tmp_path)
    run_sync(it.migration(Overtaken).run())
    claimed = {key.sort for key in it.rows() if key.partition == provisioner.partition}
    assert {f"#CLAIM#resource#{name}" for name in names} <= claimed
    assert "#PROVISIONER" not in claimed
    claim = Key(provisioner.partition, "#CLAIM#resource#r7")
    run_sync(it.backend.write_each([Update(claim, set={"born": "another life"})]))
    after = it.rows()
    late = Migration(it.backend, it.clock.world, scan=as_it_was(rows))
    run_sync(late.move())
    assert it.rows()[claim] == after[claim]


@given(
    st.integers(0, 5),
    st.lists(st.tuples(st.integers(-50_000, 50_000), st.integers(0, 100_000)), min_size=2, max_size=32),
    st.integers(32, 1_000),
    st.integers(1, 1_000),
)
def test_shards_hold_together_what_they_held(
    doublings: int, drawn: list[tuple[int, int]], capacity: int, amount: int
) -> None:
    """By the law of their shares at this instant, debts included; a share nobody used is whole."""
    count, now_ms = 2**doublings, 1_700_000_000_000
    rate = Rate(capacity * 32_000, amount * 32_000, 60_000)
    share = Rate(rate.capacity_milli // count, rate.refill_amount_milli // count, rate.refill_period_ms)
    items = [
        {
            "shard_count": count,
            "rf": now_ms - ago,
            "b_x_tk": min(share.capacity_milli, tokens),
            "b_x_cp": rate.capacity_milli,
            "b_x_ra": rate.refill_amount_milli,
            "b_x_rp": rate.refill_period_ms,
            "b_x_tc": 1,
        }
        for tokens, ago in drawn[:count]
    ]
    sources = [
        OldRecord(
            Kind.BUCKET, Key(f"n/BUCKET#e#r#{at}", "#STATE"), item, "e", "r", namespace_id="n", shard_id=at
        )
        for at, item in enumerate(items)
    ]
    (part,) = whole(sources, Context("", now_ms))
    held = [balance(share, int(item["b_x_tk"]), int(item["rf"]), now_ms) for item in items]
    untouched = (count - len(items)) * share.capacity_milli if len(items) > 1 else 0
    expected = sum(held) + untouched
    if len(items) == 1:
        expected = balance(rate, int(items[0]["b_x_tk"]), int(items[0]["rf"]), now_ms)
    assert balance(part.rate, part.tokens_milli, part.origin_ms, now_ms) == expected


def test_a_shard_from_before_a_split_lacks_what_it_lacked() -> None:
    """One with more than its share was last used when shares were larger."""
    rate = Rate(4_000_000, 1_000, 86_400_000)
    lacking = [
        missing_of_share(Part("x", rate, tokens, 0, 0), 4, 0)
        for tokens in (3_550_000, 1_600_000, 850_000, -5_000)
    ]
    assert lacking == [450_000, 400_000, 150_000, 1_005_000]


def test_a_mark_that_was_lost_is_no_second_count(tmp_path) -> None:  # type: ignore[no-untyped-def]
    """A table that says its schema is old, and is not: what is of today stays as it is."""
    it = filled("memory", recorded("0.17"), tmp_path)
    it.migrate()
    rows = it.rows()
    run_sync(
        it.backend.write_each(
            [Delete(migration_key()), Update(version_key(), set={"schema_version": "0.10.0"})]
        )
    )
    it.migrate()
    told = {version_key(), migration_key()}
    assert {k: v for k, v in it.rows().items() if k not in told} == {
        k: v for k, v in rows.items() if k not in told
    }
