"""Quotas, soft limits and switches of 0.17, upgraded: what it says of them, this version says too."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.dynamodb.tables import make_table
from tests.engines import dynamodb_local
from tests.migrations.old_store import batch_fill
from tests.odd_stores import Crash, Crashing
from tests.older import fill, fill_kinds
from tests.older.releases import KINDS, ask, recorded, rows_of
from tests.older.test_live import upgrade
from tests.older.test_recorded import filled
from tests.records.store import take
from zae_limiter import DamagedRecordError, IncompatibleSchemaError, SwitchedOff
from zae_limiter.engine.law import Rate, balance
from zae_limiter.operate.migrations import Kind, moving
from zae_limiter.operate.migrations.buckets import whole
from zae_limiter.operate.migrations.kinds import level_of_today
from zae_limiter.operate.migrations.moving import Context
from zae_limiter.operate.migrations.shapes import OldRecord
from zae_limiter.records.items import usage_snapshot_of
from zae_limiter.repository_protocol import Item, Key, Value
from zae_limiter.runtime.colour import run_sync


def ours(task: Any, table: str) -> Any:
    seen = fill.Table(dynamodb_local.endpoint(), table)
    said = task(seen)
    seen.close()
    return json.loads(json.dumps(said, default=str))


def differences(found: Any, said: Any) -> dict[str, Any]:
    """What is not the same, by name."""
    if not isinstance(said, dict):
        return {} if found == said else {"": (found, said)}
    return {name: (found.get(name), one) for name, one in said.items() if found.get(name) != one}


def test_what_is_left_and_until_when_is_the_same() -> None:
    """And so is who is admitted: by what is left, past the limits, or not at all."""
    table = dynamodb_local.fresh_table()
    theirs = ask("0.17", table, "fill", program=KINDS)
    copy = make_table()
    batch_fill(copy, rows_of(table))
    done = upgrade(table, "--yes")
    assert done.exit_code == 0, done.stderr
    found = ours(fill_kinds.read, table)
    for part, said in theirs.items():
        assert differences(found[part], said) == {}, part
    thrown = ours(lambda seen: seen.limiter().list_switches()[0], table)
    assert len(thrown) == 7, "all switches are listed"
    admitted = ask("0.17", copy, "act", program=KINDS)
    assert ours(fill_kinds.act, table) == admitted
    assert json.loads(upgrade(table).stdout)["changed"] is False


NOW_MS = 1_774_735_200_000
DAY_MS, HOURS_5_MS = 86_400_000, 5 * 3_600_000
CALENDAR: Item = {"rsched": "1m0h0", "sched_tz": "UTC"}


def shard(number: int, item: Item) -> OldRecord:
    key = Key(f"n/BUCKET#e#r#{number}", "#STATE")
    return OldRecord(Kind.BUCKET, key, item, "e", "r", namespace_id="n", shard_id=number)


def quota(tokens: int, since_ms: int = NOW_MS, count: int = 4, granted: int = 4, **more: Value) -> Item:
    """A shard of a quota of 80; one of a calendar, unless it says when its window began."""
    numbers: Item = {"b_q_tk": tokens, "b_q_cp": 80_000, "b_q_ra": 0, "b_q_rp": 1_000, "b_q_tc": 1_000}
    kind = {"b_q_rsa": 18_000, **more} if more else CALENDAR
    return {**numbers, **kind, "rf": since_ms, "shard_count": count, "b_q_gc": granted}


def left(*items: Item, now_ms: int = NOW_MS) -> int:
    (part,) = whole([shard(number, item) for number, item in enumerate(items) if item], Context("", now_ms))
    return balance(part.rate, part.tokens_milli, part.origin_ms, now_ms)


def window(began_ms: int, applied_ms: int | None = None) -> dict[str, Value]:
    return {"b_q_ws": began_ms, "b_q_wa": began_ms if applied_ms is None else applied_ms}


SHARDS: dict[str, tuple[Sequence[Item], int]] = {
    "one": ([quota(5_000, count=1, granted=1)], 5_000),
    "in debt": ([quota(-5_000, count=1, granted=1)], -5_000),
    "a day later": ([quota(-5_000, NOW_MS - DAY_MS, count=1, granted=1)], 80_000),
    "all of them": ([quota(5_000), quota(-7_000), quota(20_000), quota(1_000)], 19_000),
    "shares that nobody took": ([quota(5_000), quota(6_000), {}, {}], 51_000),
    "shares that the first had before there were others": (
        [quota(9_000, granted=1), quota(6_000), {}, {}],
        15_000,
    ),
    "each of two had those of another": ([quota(9_000, granted=2), {}, quota(3_000), {}], 52_000),
    "some since yesterday": (
        [quota(0, NOW_MS - DAY_MS), quota(6_000), quota(-9_000, NOW_MS - DAY_MS)],
        66_000,
    ),
    "one does not know that it is a quota": (
        [quota(5_000), {**quota(-9_000), "b_q_ra": 1_000, "b_q_rp": 86_400_000, "rf": NOW_MS - 1}, {}, {}],
        36_000,
    ),
    "a window": ([quota(5_000, count=1, granted=1, **window(NOW_MS - 1))], 5_000),
    "a window that is over": ([quota(-5_000, count=1, granted=1, **window(NOW_MS - HOURS_5_MS))], 80_000),
    "none began": ([quota(70_000, count=1, granted=1, **window(0))], 80_000),
    "some have not begun": (
        [quota(5_000, **window(NOW_MS - 1)), quota(0, **window(NOW_MS - 1, 7)), quota(0, **window(7))],
        65_000,
    ),
    "all are over": ([quota(5_000, **window(7)), quota(0, **window(8))], 80_000),
}


@pytest.mark.parametrize("case", SHARDS)
def test_shards_of_a_quota_have_left_together_what_they_had(case: str) -> None:
    """Debts included; a period or a window that is over leaves nothing behind."""
    items, expected = SHARDS[case]
    assert left(*items) == expected


def test_a_window_under_way_ends_when_it_would_have_ended() -> None:
    """One that is over is forgotten: the next one begins with a use."""
    item = quota(5_000, count=1, granted=1, **window(NOW_MS - 1))
    (part,) = whole([shard(0, item)], Context("", NOW_MS))
    assert part.rate == Rate(80_000, 80_000, HOURS_5_MS, f"session({HOURS_5_MS})@{NOW_MS - 1}")
    (part,) = whole([shard(0, item)], Context("", NOW_MS + HOURS_5_MS))
    assert part.rate == Rate(80_000, 80_000, HOURS_5_MS, "session")


LEVELS: dict[str, tuple[Item, Item]] = {
    "calendar": (
        {"l_q_cp": 9, "l_q_ra": 0, "l_q_rp": 1, "l_q_rsched": "1m0h0D1", "sched_tz": "Europe/Berlin"},
        {"l_q_cp": 9, "l_q_ra": 9, "l_q_rp": 31 * 86_400, "l_q_ac": "month@Europe/Berlin"},
    ),
    "session": (
        {"w_q_cp": 9, "w_q_ra": 0, "w_q_rp": 1, "w_q_rsa": 60, "w_q_soft": True},
        {"l_q_cp": 9, "l_q_ra": 9, "l_q_rp": 60, "l_q_ac": "session", "l_q_so": 1},
    ),
    "soft": (
        {"l_a_soft": True, "l_b_soft": False, "l_a_cp": 1},
        {"l_a_so": 1, "l_a_cp": 1},
    ),
    "off": ({"disabled": True}, {"off": "disabled before the upgrade"}),
    "on": ({"disabled": False}, {"off": False}),
    "past": ({"disabled": "bypass"}, {"bypass": "counted"}),
    "neither": ({"disabled": None}, {}),
    "nobody knows": ({"disabled": "moon", "w_q_cp": 1}, {"disabled": "moon", "w_q_cp": 1}),
    "schedule": (
        {"l_a_cp": 8, "l_a_ra": 8, "l_a_rp": 60, "l_a_sched": "1h9s500", "sched_tz": "UTC", "l_a_soft": True},
        {"l_a_cp": 8, "l_a_ra": 8, "l_a_rp": 60, "l_a_sd": "4(* 9 * * *)@UTC", "l_a_so": 1},
    ),
    "a range without an end": (
        {"l_q_cp": 9, "l_q_ra": 0, "l_q_rp": 1, "l_q_rsched": "1m0h6-6/9", "sched_tz": "UTC"},
        {"l_q_cp": 9, "l_q_ra": 9, "l_q_rp": 15 * 3600, "l_q_ac": "cron(0 6/9 * * *)@UTC"},
    ),
}


@pytest.mark.parametrize("case", LEVELS)
def test_a_level_in_the_spelling_of_today(case: str) -> None:
    """What has none stays as it is, to be refused."""
    older, today = LEVELS[case]
    assert level_of_today(older) == today
    assert level_of_today(today) == today


STRANGE: dict[str, tuple[Item, str]] = {
    "no such zone": ({"l_rpd_rsched": "1m0h0", "sched_tz": "Mars/Base"}, "no such time zone"),
    "two rules": ({"l_rpd_rsched": "1m0h0;m5", "sched_tz": "UTC"}, "it is reset by more than one rule"),
    "another version": ({"l_rpd_rsched": "2m0h0", "sched_tz": "UTC"}, "no such rule"),
    "a day that never comes": ({"l_rpd_rsched": "1m0h0D31M2", "sched_tz": "UTC"}, "that day never comes"),
    "half a session": ({"w_msgs_cp": 5}, "limit 'msgs' is a session quota"),
    "another switch": ({"disabled": "moon"}, "it is disabled"),
    "neither soft nor hard": ({"l_rpd_soft": 3}, "limit 'rpd' is soft"),
}


@pytest.mark.parametrize("case", STRANGE)
def test_what_cannot_be_moved_is_refused(case: str, tmp_path: Path) -> None:
    """Before anything is written."""
    strange, reason = STRANGE[case]
    rows = recorded("0.17")
    key = next(key for key in rows if key.sort == "#CONFIG" and "RESOURCE#" in key.partition)
    it = filled("memory", rows | {key: {**rows[key], **strange}}, tmp_path)
    before = it.rows()
    with pytest.raises(IncompatibleSchemaError, match=reason):
        it.migrate()
    assert it.rows() == before


def test_a_switch_that_only_a_bucket_knows_of_is_not_lifted(tmp_path: Path) -> None:
    """No level says so, or the one that decides says the contrary: it is in the way."""
    rows = recorded("0.17-kinds")
    bucket = next(key for key in rows if key.partition.endswith("BUCKET#locked#cal#0"))
    assert rows[bucket]["disabled"] is True
    level = next(key for key in rows if key.partition.endswith("ENTITY#locked") and "CONFIG" in key.sort)
    for said in (None, False):
        it = filled("memory", rows | {level: {**rows[level], "disabled": said}}, tmp_path)
        with pytest.raises(IncompatibleSchemaError, match=r"1 records.*it is disabled, and no level says so"):
            it.migrate()


CHILDREN: dict[str, tuple[Item, Item, bool]] = {
    "no parent": ({}, {}, True),
    "it does not cascade": ({"parent_id": "org"}, {}, True),
    "it cascades": ({"parent_id": "org", "cascade": True}, {}, False),
    "it cascades there": ({"parent_id": "org"}, {"cascade": True}, False),
    "the parent is on": ({"parent_id": "hot", "cascade": True}, {}, True),
}


@pytest.mark.parametrize("case", CHILDREN)
@pytest.mark.parametrize("level", ["off", "_default_"])
def test_a_child_that_is_on_is_not_let_past_its_parent(case: str, level: str, tmp_path: Path) -> None:
    """The older release refused it where the parent is off by the resource, and this one would not."""
    family, said, is_moved = CHILDREN[case]
    rows = recorded("0.17-kinds")
    child = next(key for key in rows if key.partition.endswith("ENTITY#key") and key.sort == "#META")
    own = Key(child.partition, "#CONFIG#off")
    item = {**rows.pop(own), "resource": level, **said}
    rows |= {
        child: {**rows[child], **family},
        own._replace(sort=f"#CONFIG#{level}"): item,
        Key(child.partition.replace("#key", "#hot"), "#CONFIG#off"): {"disabled": False, "resource": "off"},
    }
    it = filled("memory", rows, tmp_path)
    if is_moved:
        it.migrate()
        return
    with pytest.raises(IncompatibleSchemaError, match="on where 'off' is off, for its parent 'org' as well"):
        it.migrate()


def test_nobody_who_is_off_is_let_in_at_any_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever an upgrade stops, a client that does not even ask about versions is refused."""
    monkeypatch.setattr(moving, "TRANSACT_WRITES_MAX", 1)
    for at in range(1, 400):
        it = filled("memory", recorded("0.17-kinds"), tmp_path)
        crashing = Crashing(it.backend)
        crashing.arm(at, late=True)
        try:
            run_sync(it.migration(lambda _, crashing=crashing: crashing).run())
            break
        except Crash:
            for entity, resource, limit in (("locked", "cal", "day"), ("lonely", "off", "rpd")):
                with pytest.raises((SwitchedOff, DamagedRecordError)):
                    run_sync(take(it.limiter(), entity, resource, **{limit: 1}))
    assert at > 50


def test_what_went_beyond_soft_limits_is_kept(tmp_path: Path) -> None:
    """Where nobody takes it for the use of a limit."""
    rows = recorded("0.17")
    key = next(key for key in rows if key.sort.startswith("#USAGE#"))
    it = filled("memory", rows | {key: {**rows[key], "rpd#od": 3}}, tmp_path)
    it.migrate()
    (row,) = [item for item in it.rows().values() if "_od_rpd" in item]
    assert row["_od_rpd"] == 3
    assert "rpd#od" not in row
    assert dict(usage_snapshot_of(row).counters).keys() <= {"rpd", "tpd"}
