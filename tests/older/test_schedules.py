"""Schedules of 0.17, upgraded: at every instant they are what that release says, and admit whom it admits."""

from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from tests.engines import dynamodb_local
from tests.migrations.old_store import OldStore, fill, old_store
from tests.older import fill_schedules
from tests.older.fill_schedules import INSTANTS_MS, LATER_MS, OWN, UPGRADE_MS, USED
from tests.older.releases import SCHEDULES, ask, recorded, rows_of
from tests.older.test_recorded import filled
from tests.records.store import take
from zae_limiter import IncompatibleSchemaError, Limit, RateLimitExceeded
from zae_limiter.engine.law import Rate, balance
from zae_limiter.engine.phases import rate_at
from zae_limiter.operate.migrations import Kind
from zae_limiter.operate.migrations.buckets import missing_of_share, whole
from zae_limiter.operate.migrations.kinds import level_of_today
from zae_limiter.operate.migrations.moving import Context
from zae_limiter.operate.migrations.shapes import OldRecord
from zae_limiter.records.items import config_limits
from zae_limiter.repository_protocol import Item, Key
from zae_limiter.runtime.colour import run_sync
from zae_limiter.schema import PHASE
from zae_limiter.testing import ManualClock


def level(name: str, numbers: tuple[int, int, int], compact: str, tz: str = "Europe/Berlin") -> Item:
    stored = dict(zip(("cp", "ra", "rp"), numbers, strict=True)) | {"sched": compact}
    return {f"l_{name}_{part}": value for part, value in stored.items()} | {"sched_tz": tz}


def today(item: Item) -> Limit:
    (limit,) = config_limits(level_of_today(item))
    return limit


def speed(capacity: int, amount: int, period: int) -> tuple[int, Fraction]:
    return capacity, Fraction(amount, period)


def test_at_every_instant_a_limit_is_what_the_release_says() -> None:
    """In and out of windows, at their boundaries, in hours that are left out and in those that come twice."""
    said = ask("0.17", "", "numbers", program=SCHEDULES)
    rows = recorded("0.17-schedules")
    for name, instants in said.items():
        item = next(item for key, item in rows.items() if key.partition.endswith(f"/RESOURCE#{name}"))
        (limit,) = (limit for limit in config_limits(level_of_today(item)) if limit.name == name)
        rates = [rate_at(Rate.of(limit), at_ms) for at_ms in INSTANTS_MS]
        assert [speed(*rate[:3]) for rate in rates] == [speed(*one) for one in instants], name
        assert len(set(map(tuple, instants))) > 1 or name == "always", "some instants are of other windows"


@pytest.mark.parametrize("seed", range(2))
def test_whatever_a_schedule_says(seed: int) -> None:
    """Fields, steps, zones, orders and numbers that dice say: the same at every instant."""
    for base, compact, tz, instants, numbers in ask("0.17", "", "drawn", str(seed), program=SCHEDULES):
        rate = Rate.of(today(level("a", base, compact, tz)))
        found = [speed(*rate_at(rate, at_ms)[:3]) for at_ms in instants]
        assert found == [speed(*one) for one in numbers], (base, compact, tz)


def moved(rows: Any, tmp_path: Path, now_ms: int = UPGRADE_MS) -> OldStore:
    it = old_store("memory", tmp_path, ManualClock(now_ms))
    fill(it.backend, rows)
    report = it.migrate()
    assert (report.late, len(report.findings)) == (0, 0)
    return it


def ours_left(it: OldStore) -> dict[str, Any]:
    found = {}
    for after_ms in (0, 1, 9_000, 31_000):
        it.clock.now_ms = UPGRADE_MS + after_ms
        limiter = it.limiter()
        found |= {f"{after_ms} {who} {what}": run_sync(limiter.available(who, what)) for who, what in USED}
    return found


def ours_act(it: OldStore, said: dict[str, Any]) -> dict[str, Any]:
    """The same questions; what came back is looked at where that release was asked for it."""
    found: dict[str, Any] = {}
    for now_ms in fill_schedules.ACT_MS:
        it.clock.now_ms = now_ms
        limiter, who = it.limiter(), f"new-{now_ms}"
        for name in fill_schedules.ACT:
            held = run_sync(limiter.available(who, name))[name]
            answers = [asked(limiter, who, name, amount) for amount in (held + 1, held)]
            found[f"{now_ms} {name}"] = [held, *answers]
        found |= {f"{now_ms} {own}": run_sync(limiter.available(own, "office")) for own in OWN}
        it.clock.now_ms = now_ms + LATER_MS
        for name in fill_schedules.ACT:
            if len(said[f"{now_ms} {name}"]) == 4:
                found[f"{now_ms} {name}"].append(run_sync(limiter.available(who, name))[name])
    return found


def asked(limiter: Any, entity: str, resource: str, amount: int) -> str:
    try:
        run_sync(take(limiter, entity, resource, **{resource: amount}))
    except RateLimitExceeded:
        return "refused"
    return "admitted"


def differences(found: dict[str, Any], said: dict[str, Any]) -> dict[str, Any]:
    return {name: (found.get(name), one) for name, one in said.items() if found.get(name) != one}


def test_who_is_admitted_is_the_same(tmp_path: Path) -> None:
    """What is left of buckets that were used, and what new ones admit at each instant, in all zones."""
    table = dynamodb_local.fresh_table()
    ask("0.17", table, "fill", program=SCHEDULES)
    rows = rows_of(table)
    assert differences(ours_left(moved(rows, tmp_path)), ask("0.17", table, "left", program=SCHEDULES)) == {}
    admitted = ask("0.17", table, "act", program=SCHEDULES)
    assert differences(ours_act(moved(rows, tmp_path), admitted), admitted) == {}


LEVELS: dict[str, tuple[Item, Limit]] = {
    "a scale": (
        level("a", (60, 30, 60), "1h9-16w1-5s1500"),
        Limit("a", 60, 30, 60).during("* 9-16 * * 1-5", 45, burst=90, tz="Europe/Berlin"),
    ),
    "amounts": (
        level("a", (60, 30, 60), "1m0-4c7a8;D1M2a9", "UTC"),
        Limit("a", 60, 30, 60).during("0-4 * * * *", 8, burst=7).during("* * 1 2 *", 9, burst=60),
    ),
    "another period": (
        level("a", (60, 60, 60), "1h9p45", "UTC"),
        Limit("a", 60, 180, 180).during("* 9 * * *", 240, burst=60),
    ),
    "half a token": (
        level("a", (100, 5, 1), "1h9s500", "UTC"),
        Limit("a", 100, 10, 2).during("* 9 * * *", 5, burst=50),
    ),
    "always": (level("a", (60, 60, 60), "1s500"), Limit("a", 30, 30, 60)),
    "always in the end": (
        level("a", (60, 60, 60), "1h9s500;s2000", "UTC"),
        Limit("a", 120, 120, 60).during("* 9 * * *", 30),
    ),
    "never": (level("a", (60, 60, 60), "1D31M2s500"), Limit("a", 60, 60, 60)),
    "behind another": (
        level("a", (60, 60, 60), "1h8-10s500;h9s2000", "UTC"),
        Limit("a", 60, 60, 60).during("* 8-10 * * *", 30),
    ),
}


@pytest.mark.parametrize("case", LEVELS)
def test_a_schedule_in_the_words_of_today(case: str) -> None:
    """Windows that never count are left out, and one that always counts is the limit itself."""
    older, limit = LEVELS[case]
    assert today(older) == limit
    assert "sched_tz" not in level_of_today(older)


PLAIN = (60, 60, 60)
STRANGE: dict[str, tuple[Item, str]] = {
    "half a token": (
        level("rpd", (5, 5, 60), "1h9s500"),
        r"invalid limit 'rpd': in the window.*can hold 2.5",
    ),
    "almost": (level("rpd", (100, 100, 60), "1h9s290"), "can hold 28.999"),
    "a quota": (
        level("rpd", (5, 0, 1), "1h9c2") | {"l_rpd_rsched": "1m0h0"},
        "it is a quota with a schedule",
    ),
    "a session": (
        {"w_m_cp": 5, "w_m_ra": 0, "w_m_rp": 1, "w_m_rsa": 60, "w_m_sched": "1h9c2", "sched_tz": "UTC"},
        "it is a quota with a schedule",
    ),
    "many": (level("rpd", PLAIN, "1" + ";".join(f"m{at}c2" for at in range(17))), "17 windows are too many"),
    "no common period": (level("rpd", (60, 60, 86_399), "1h9p86371"), "refill_period_seconds"),
    "another spelling": (level("rpd", PLAIN, "2h9s500"), "no such schedule is known"),
    "no such window": (level("rpd", PLAIN, "1h9x5"), "no such window is known: 'h9x5'"),
    "no numbers": (level("rpd", PLAIN, "1h9"), "no such window is known: 'h9'"),
    "no such hour": (level("rpd", PLAIN, "1h99s500"), "is no hour"),
    "no such zone": (level("rpd", PLAIN, "1h9s500", "Mars/Base"), "no such time zone"),
    "too much": (level("rpd", PLAIN, "1h9c999999999999999"), "must be from 1 to"),
    "nothing to change": (level("rpd", (5, 0, 60), "1h9s500"), "numbers that nobody can use"),
}


@pytest.mark.parametrize("case", STRANGE)
def test_what_has_no_equal_is_refused(case: str, tmp_path: Path) -> None:
    """With the record and the reason, before anything is written."""
    strange, reason = STRANGE[case]
    rows = recorded("0.17")
    key = next(key for key in rows if key.sort == "#CONFIG" and "RESOURCE#" in key.partition)
    it = filled("memory", rows | {key: {**rows[key], **strange}}, tmp_path)
    before = it.rows()
    with pytest.raises(IncompatibleSchemaError, match=rf"{key.partition} #CONFIG: .*{reason}"):
        it.migrate()
    assert it.rows() == before


def shard(number: int, item: Item) -> OldRecord:
    key = Key(f"n/BUCKET#e#r#{number}", "#STATE")
    return OldRecord(Kind.BUCKET, key, item, "e", "r", namespace_id="n", shard_id=number)


NINE_MS = fill_schedules.instant("2026-03-30T09:00")


def bucket(tokens: int, since_ms: int, count: int = 1, compact: str = "1h9-16s10000") -> Item:
    numbers: Item = {"b_a_tk": tokens, "b_a_cp": 60_000, "b_a_ra": 60_000, "b_a_rp": 60_000, "b_a_tc": 1_000}
    said: Item = {"sched": compact, "sched_tz": "Europe/Berlin", "rf": since_ms, "shard_count": count}
    return {**numbers, **said}


def held(*items: Item, now_ms: int) -> int:
    (part,) = whole([shard(number, item) for number, item in enumerate(items)], Context("", now_ms))
    return balance(part.rate, part.tokens_milli, part.origin_ms, now_ms)


def test_a_bucket_holds_what_the_release_says_by_the_numbers_of_now() -> None:
    """Since its last use all has accrued by these; more than it can hold now is gone."""
    assert held(bucket(0, NINE_MS - 1_000), now_ms=NINE_MS - 1) == 999
    assert held(bucket(0, NINE_MS - 1_000), now_ms=NINE_MS) == 10_000
    assert held(bucket(500_000, NINE_MS, compact="1h8s10000"), now_ms=NINE_MS) == 60_000
    assert held({**bucket(0, NINE_MS - 1_000), "b_a_sched": "-"}, now_ms=NINE_MS) == 1_000
    assert held({**bucket(0, NINE_MS - 1_000), "b_a_sched": "1h9s2000"}, now_ms=NINE_MS) == 2_000


def test_shards_hold_what_they_held_by_the_numbers_of_now() -> None:
    """One that was used in a richer phase has no more than its share; the others lack what they lack."""
    quarters = [bucket(tokens, NINE_MS, 4, "1h8s10000") for tokens in (20_000, 15_000, 5_000, -3_000)]
    assert held(*quarters, now_ms=NINE_MS) == 15_000 + 15_000 + 5_000 - 3_000
    (part,) = whole([shard(0, bucket(0, NINE_MS, 4))], Context("", NINE_MS - 1))
    assert missing_of_share(part, 1, NINE_MS) == 600_000


def test_a_bucket_says_its_phase(tmp_path: Path) -> None:
    """It has the rate of its level, so that whoever uses it next changes nothing but what is taken."""
    it = moved(recorded("0.17-schedules"), tmp_path)
    rows = it.rows()
    key = next(key for key in rows if key.partition.endswith("BUCKET#some#late#0"))
    assert rows[key][PHASE] == fill_schedules.instant("2026-03-28T21:00")
    run_sync(take(it.limiter(), "some", "late", late=1))
    used = it.rows()[key]
    assert used["b_late_tk"] == int(str(rows[key]["b_late_tk"])) - 1_000
    assert {name: used[name] for name in ("rf", PHASE, "b_late_sd")} == {
        name: rows[key][name] for name in ("rf", PHASE, "b_late_sd")
    }


OUT_OF_USE = {"half": "1h9s1", "many": "1" + ";".join(f"m{at}c20" for at in range(17))}


@pytest.mark.parametrize("case", OUT_OF_USE)
def test_a_schedule_that_only_a_bucket_knows_is_in_nobodys_way(case: str, tmp_path: Path) -> None:
    """The release leaves it there when the level is changed; until it is used it has the numbers of now."""
    rows = recorded("0.17-schedules")
    key = next(key for key in rows if key.partition.endswith("BUCKET#some#late#0"))
    it = moved(rows | {key: {**rows[key], "sched": OUT_OF_USE[case]}}, tmp_path)
    found = it.rows()[key]
    assert "b_late_sd" not in found
    assert asked(it.limiter(), "some", "late", 1) == "admitted"
    for strange in ("3h9", "1h9x"):
        it = filled("memory", rows | {key: {**rows[key], "sched": strange}}, tmp_path)
        with pytest.raises(IncompatibleSchemaError, match="no such"):
            it.migrate()
