"""The translation alone: what old records become, and that balances are what they were."""

from collections.abc import Iterable, Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.migrations.older import NOW_MS
from zae_limiter import Limit, UsageSnapshot, ValidationError
from zae_limiter.engine.account import Account, Meter, Terms
from zae_limiter.engine.bucket_writes import write_for
from zae_limiter.engine.law import Rate, balance
from zae_limiter.engine.posting import Posting
from zae_limiter.models import UsageWindow
from zae_limiter.operate.migrations.moving import Context, Move, Translation, packed, writes_of
from zae_limiter.operate.migrations.shapes import Finding, Kind, OldRecord, fields, recognise, target_of
from zae_limiter.operate.migrations.translation import translate
from zae_limiter.records.items import audit_event_of, bucket_states, config_of, usage_row, usage_snapshot_of
from zae_limiter.repository_protocol import Item, Key, Query, Row, apply_all
from zae_limiter.schema import (
    bucket_key,
    entity_config_key,
    limit_attributes,
    resource_config_key,
    starting,
    system_config_key,
)
from zae_limiter_aggregator.changes import Change, numbered
from zae_limiter_aggregator.usage import extract_deltas

CONTEXT = Context("ns", NOW_MS)
METERED = Context("ns", NOW_MS, is_metered=True)


def sources(items: dict[tuple[str, str], Item]) -> list[OldRecord]:
    found = [recognise(Row(Key(*key), item)) for key, item in items.items()]
    assert all(isinstance(source, OldRecord) for source in found), found
    return found  # type: ignore[return-value]


def translated(
    items: dict[tuple[str, str], Item], table: dict[Key, Item] | None = None, context: Context = CONTEXT
) -> Move:
    group = sources(items)
    assert len({record.group for record in group}) == 1
    return finished(translate(group, context), table or {})


def finished(translation: Translation, table: Mapping[Key | Query, Item]) -> Move:
    """The one move that a translation finds, given the records it asks for."""
    asked = next(translation)
    with pytest.raises(StopIteration) as over:
        translation.send({key: table.get(key) for key in asked})
    (move,) = over.value.value
    return move


def carried_out(moves: Iterable[Move], table: dict[Key, Item]) -> dict[Key, Item]:
    """The table after the moves; each must be possible."""
    after = dict(table)
    for bundle in packed(moves):
        writes = writes_of(bundle)
        outcomes = apply_all(writes, [after.get(write.key) for write in writes])
        assert all(outcome.applied for outcome in outcomes), outcomes
        for write, outcome in zip(writes, outcomes, strict=True):
            if outcome.item is not None:
                after[write.key] = outcome.item
    return after


def moved(items: dict[tuple[str, str], Item], table: dict[Key, Item] | None = None) -> dict[Key, Item]:
    old = {Key(*key): item for key, item in items.items()}
    return carried_out([translated(items, table)], {**old, **(table or {})})


# Keys.


@pytest.mark.parametrize(
    ("partition", "sort", "kind", "owner", "resource", "limit"),
    [
        ("ENTITY#a", "#META", Kind.ENTITY, "a", "", ""),
        ("ENTITY#a", "#BUCKET#gpt-4", Kind.BUCKET, "a", "gpt-4", ""),
        ("ENTITY#a", "#BUCKET#gpt-4#rpm", Kind.BUCKET, "a", "gpt-4", "rpm"),
        ("ENTITY#a", "#CONFIG#_default_", Kind.LIMITS, "a", "_default_", ""),
        ("ENTITY#a", "#LIMIT#openai/o1#rpm", Kind.LIMITS, "a", "openai/o1", "rpm"),
        ("ENTITY#a", "#USAGE#gpt-4#2024-01-01T14:00:00Z", Kind.USAGE, "a", "gpt-4", ""),
        ("RESOURCE#openai/o1", "#CONFIG", Kind.LIMITS, "", "openai/o1", ""),
        ("RESOURCE#gpt-4", "#LIMIT#gpt-4#rpm", Kind.LIMITS, "", "gpt-4", "rpm"),
        ("SYSTEM#", "#CONFIG", Kind.LIMITS, "", "_default_", ""),
        ("SYSTEM#", "#LIMIT#gpt-4#rpm", Kind.LIMITS, "", "gpt-4", "rpm"),
        ("SYSTEM#", "#VERSION", Kind.VERSION, "", "", ""),
        ("AUDIT#$SYSTEM", "#AUDIT#2024", Kind.AUDIT, "$SYSTEM", "", ""),
        ("AUDIT#$RESOURCE:openai/o1", "#AUDIT#x", Kind.AUDIT, "$RESOURCE:openai/o1", "", ""),
    ],
)
def test_old_keys_are_recognised(
    partition: str, sort: str, kind: Kind, owner: str, resource: str, limit: str
) -> None:
    """Each kind of record by its key alone."""
    key = Key(partition, sort)
    assert recognise(Row(key, {})) == OldRecord(kind, key, {}, owner, resource, limit)


@pytest.mark.parametrize(
    ("partition", "sort"),
    [
        ("ENTITY#a", "#SOMETHING"),
        ("ENTITY#a", "META"),
        ("ENTITY#a\tb", "#META"),
        ("ENTITY#", "#META"),
        ("ENTITY#a", "#BUCKET#gpt-4#wcu"),
        ("ENTITY#a", "#BUCKET#gpt-4#rpm#more"),
        ("ENTITY#a", "#CONFIG"),
        ("RESOURCE#a", "#LIMIT#b#rpm"),
        ("RESOURCE#_default_", "#CONFIG"),
        ("CUSTOMER#a", "#META"),
        ("a", "b"),
        ("AUDIT#$OTHER", "#AUDIT#x"),
    ],
)
def test_whatever_else_is_there_is_left_alone(partition: str, sort: str) -> None:
    """Other people's items, and names that this version does not accept."""
    found = recognise(Row(Key(partition, sort), {}))
    assert isinstance(found, Finding)
    assert found.reason


@pytest.mark.parametrize("partition", ["ns/ENTITY#a", "_/SYSTEM#", "x-_1/RESOURCE#openai/o1"])
def test_present_keys_are_told_from_old_ones(partition: str) -> None:
    """A namespace stands before the first '#'."""
    assert recognise(Row(Key(partition, "#META"), {})) is None


# Buckets.

amounts = st.integers(1, 10**7)
rates = st.builds(Rate, amounts, amounts, st.sampled_from([1_000, 60_000, 3_600_000, 86_400_000, 7_777]))
instants = st.integers(NOW_MS - 10**8, NOW_MS)


@st.composite
def single_buckets(draw: st.DrawFn) -> dict[tuple[str, str], Item]:
    items: dict[tuple[str, str], Item] = {}
    for name in draw(st.lists(st.sampled_from(["rpm", "tpm", "tpd", "x.y-z"]), min_size=1, unique=True)):
        rate = draw(rates)
        numbers: dict[str, int] = {
            "tokens_milli": draw(st.integers(-rate.capacity_milli * 2, rate.capacity_milli * 2)),
            "last_refill_ms": draw(instants),
            "capacity_milli": draw(amounts),
            "burst_milli": rate.capacity_milli,
            "refill_amount_milli": rate.refill_amount_milli,
            "refill_period_ms": rate.refill_period_ms,
        }
        item: Item = {"data": numbers, "total_consumed_milli": 5} if draw(st.booleans()) else {**numbers}
        items["ENTITY#a", f"#BUCKET#gpt-4#{name}"] = item
    return items


@given(single_buckets(), st.lists(st.integers(0, 10**9), min_size=1, max_size=5), st.booleans())
def test_a_bucket_holds_what_it_held(
    items: dict[tuple[str, str], Item], later: Sequence[int], metered: bool
) -> None:
    """By the law, at every instant from the move on, in debt and beyond full, whatever the old origins."""
    move = translated(items, context=METERED if metered else CONTEXT)
    table = carried_out([move], {Key(*key): item for key, item in items.items()})
    states = {state.limit_name: state for state in bucket_states(table[bucket_key("ns", "a", "gpt-4")])}
    assert len(states) == len(items)
    for (_, sort), item in items.items():
        old, state = fields(item), states[sort.rpartition("#")[2]]
        rate = Rate(old["burst_milli"], old["refill_amount_milli"], old["refill_period_ms"])
        assert Rate(state.capacity_milli, state.refill_amount_milli, state.refill_period_ms) == rate
        for after in later:
            at = NOW_MS + after
            expected = balance(rate, old["tokens_milli"], old["last_refill_ms"], at)
            assert balance(rate, state.tokens_milli, state.last_refill_ms, at) == expected
            # The older versions rounded the gain by itself: a thousandth of a token apart at most.
            gained = (at - old["last_refill_ms"]) * rate.refill_amount_milli // rate.refill_period_ms
            theirs = min(rate.capacity_milli, old["tokens_milli"] + gained)
            assert 0 <= expected - theirs <= 1


@given(single_buckets(), st.integers(0, 10**6), st.booleans())
def test_a_bucket_that_is_there_is_charged_with_what_was_missing(
    items: dict[tuple[str, str], Item], taken: int, older_origin: bool
) -> None:
    """So that what both gave away together counts, and only once."""
    old = {sort.rpartition("#")[2]: fields(item) for (_, sort), item in items.items()}
    name, numbers = next(iter(old.items()))
    rate = Rate(numbers["burst_milli"], numbers["refill_amount_milli"], numbers["refill_period_ms"])
    taken = min(taken, rate.capacity_milli)
    at_ms = NOW_MS - 10_000 if older_origin else NOW_MS
    key = bucket_key("ns", "a", "gpt-4")
    account = Account(key, "ns", "a", "gpt-4", Terms({name: rate}), meter=Meter.COUNT)
    made = write_for(account, Posting({name: taken}), None, at_ms)
    assert made is not None
    there = apply_all([made], [None])[0].item
    assert there is not None
    held = balance(rate, there[limit_attributes(name).tk], at_ms, NOW_MS)  # type: ignore[arg-type]
    table = moved(items, {key: there})
    assert extract_deltas(Change(key, there, table[key], NOW_MS, numbered(1))) == {}, "it was counted before"
    for state in bucket_states(table[key]):
        was = old[state.limit_name]
        own = Rate(was["burst_milli"], was["refill_amount_milli"], was["refill_period_ms"])
        before = balance(own, was["tokens_milli"], was["last_refill_ms"], NOW_MS)
        expected = held - (own.capacity_milli - before) if state.limit_name == name else before
        assert balance(own, state.tokens_milli, state.last_refill_ms, NOW_MS) == expected
    assert len(bucket_states(table[key])) == len(old)
    # An older client that wrote again after that cannot make the same tokens count twice.
    late = translated(items, table)
    assert late.target is None
    assert {write.key for write in late.writes} == {Key(*key) for key in items}


def composite(**numbers: int) -> dict[tuple[str, str], Item]:
    return {("ENTITY#a", "#BUCKET#gpt-4"): {"entity_id": "a", "resource": "gpt-4", **numbers}}


def test_the_composite_bucket_counts_where_both_shapes_are() -> None:
    """The items of the shape before were left behind when the table was last upgraded."""
    newer = composite(rf=NOW_MS, b_rpm_tk=5_000, b_rpm_cp=9_000, b_rpm_ra=9_000, b_rpm_rp=60_000, b_rpm_tc=7)
    older: Item = {"tokens_milli": 1, "last_refill_ms": 1, "capacity_milli": 9_000}
    items = {**newer, ("ENTITY#a", "#BUCKET#gpt-4#rpm"): older, ("ENTITY#a", "#BUCKET#gpt-4#tpm"): older}
    table = moved(items)
    (state,) = bucket_states(table[bucket_key("ns", "a", "gpt-4")])
    assert (state.limit_name, state.tokens_milli, state.total_consumed_milli) == ("rpm", 5_000, 7)
    assert target_of(table[Key("ENTITY#a", "#BUCKET#gpt-4#rpm")]) is None
    assert all("moved_to" in table[Key(*key)] for key in items)


@pytest.mark.parametrize(
    ("limit", "rate"),
    [
        (Limit("rpm", 10, 10, 60), Rate(10_000, 10_000, 60_000)),
        (Limit("rpm", 30, 10, 60), Rate(30_000, 10_000, 60_000)),
    ],
)
def test_numbers_that_a_bucket_lacks_come_from_the_limits(limit: Limit, rate: Rate) -> None:
    """Refill and period, and the burst where the bucket did not note it."""
    items = composite(rf=NOW_MS, b_rpm_tk=-4_000, b_rpm_cp=10_000)
    stored: Item = {"l_rpm_cp": limit.capacity, "l_rpm_ra": 10, "l_rpm_rp": 60, "config_version": 1}
    table = moved(items, {entity_config_key("ns", "a", "_default_"): stored})
    (state,) = bucket_states(table[bucket_key("ns", "a", "gpt-4")])
    assert (state.capacity_milli, state.refill_amount_milli, state.refill_period_ms) == rate[:3]
    assert state.tokens_milli == -4_000


@pytest.mark.parametrize(
    "numbers",
    [
        {"b_rpm_tk": 1, "b_rpm_cp": 1_000, "b_rpm_ra": 1_000, "b_rpm_rp": 1_000},
        {"rf": NOW_MS, "b_rpm_tk": 1, "b_rpm_cp": 1_000},
        {"rf": NOW_MS, "b_rpm_tk": 1, "b_rpm_cp": 1_000, "b_rpm_ra": 0, "b_rpm_rp": 1_000},
        {"rf": NOW_MS, "b_wcu_tk": 1, "b_wcu_cp": 1_000, "b_wcu_ra": 1_000, "b_wcu_rp": 1_000},
        {"rf": NOW_MS},
    ],
)
def test_a_bucket_that_cannot_be_used_is_refused(numbers: dict[str, int]) -> None:
    """Making something up would give tokens away."""
    with pytest.raises(ValidationError):
        translated(composite(**numbers))


def test_a_bucket_lives_until_it_is_full() -> None:
    """A ``ttl`` that was set before the debt was made would have let the debt expire."""
    numbers = {"b_rpm_tk": -60_000_000, "b_rpm_cp": 1_000, "b_rpm_ra": 1_000, "b_rpm_rp": 1_000}
    key = bucket_key("ns", "a", "gpt-4")
    ttl = moved(composite(rf=NOW_MS, **numbers, ttl=NOW_MS // 1000 + 5))[key]["ttl"]
    assert ttl == NOW_MS // 1000 + 60_001 + 1
    assert moved(composite(rf=NOW_MS, **numbers, ttl=2**40))[key]["ttl"] == 2**40
    assert "ttl" not in moved(composite(rf=NOW_MS, **numbers))[key]


# Limits.


def test_the_limits_of_the_system_for_a_resource_are_that_resources() -> None:
    """Unless it had limits of its own; what only the system can say stays the system's."""
    item: Item = {"capacity": 5, "refill_amount": 5, "refill_period_seconds": 60, "auto_update": True}
    items = {("SYSTEM#", "#LIMIT#gpt-4#rpm"): {**item, "on_unavailable": "allow"}}
    table = moved(items)
    config = config_of(table[resource_config_key("ns", "gpt-4")])
    assert (config.limits, config.on_unavailable) == ((Limit("rpm", 5, 5, 60),), "allow")
    assert config_of(table[system_config_key("ns")]).auto_update is True
    own = starting("RESOURCE#gpt-4", "#LIMIT#")._replace(rows_max=1)
    overruled = finished(translate(sources(items), CONTEXT), {own: item})
    assert overruled.target is None
    assert [write.key for write in overruled.writes] == [Key(*next(iter(items))), system_config_key("ns")]


def test_limits_that_are_there_win() -> None:
    """Somebody has set them with a newer client."""
    items = {("ENTITY#a", "#CONFIG#gpt-4"): {"l_rpm_cp": 1, "l_rpm_ra": 1, "l_rpm_rp": 1}}
    key = entity_config_key("ns", "a", "gpt-4")
    there: Item = {"l_rpm_cp": 9, "l_rpm_ra": 9, "l_rpm_rp": 9, "config_version": 4}
    table = moved(items, {key: there})
    assert table[key] == there
    assert table[Key("ENTITY#a", "#CONFIG#gpt-4")]["moved_to"] == "superseded"


@pytest.mark.parametrize(
    "item",
    [
        {"l_rpm_cp": 0, "l_rpm_ra": 1, "l_rpm_rp": 1},
        {"l_rpm_cp": 1, "l_rpm_ra": 1},
        {"l_wcu_cp": 1, "l_wcu_ra": 1, "l_wcu_rp": 1},
        {"l_rpm_cp": 1, "l_rpm_ra": 1, "l_rpm_rp": 1, "on_unavailable": "maybe"},
    ],
)
def test_limits_that_make_no_sense_are_refused(item: Item) -> None:
    """They are reported with the reason, and stay."""
    with pytest.raises(ValidationError):
        translated({("ENTITY#a", "#CONFIG#gpt-4"): item})


# Usage and audit.


def test_usage_of_both_sides_of_the_move_adds_up() -> None:
    """The window in which the table is moved is counted by both, and the hour is told from the day."""
    start = "2023-11-14T00:00:00Z"
    item: Item = {"window": "daily", "window_start": start, "rpm": 5, "tpm": 7, "total_events": 2}
    key, attributes = usage_row("ns", "a", "gpt-4", UsageWindow.DAILY, NOW_MS - 80_000_000)
    row = {**attributes, "rpm": 1, "total_events": 1, "_seen": "0@17:0-1", "ttl": 9}
    table = moved({("ENTITY#a", f"#USAGE#gpt-4#{start}"): item}, {key: row})
    assert key.sort == "#USAGE#gpt-4#2023-11-14"
    assert usage_snapshot_of(table[key]) == UsageSnapshot(
        "a", "gpt-4", UsageWindow.DAILY, start, "2023-11-15T00:00:00Z", {"rpm": 6, "tpm": 7}, 3
    )
    assert (table[key]["_seen"], table[key]["ttl"]) == ("-1@0:0-1;0@17:0-1", 9)


def test_events_keep_their_order_under_ids_of_today() -> None:
    """An id made from the time sorts by the time, and is the same however often it is made."""
    found = []
    for at in ("2023-11-14T00:00:00.001Z", "2023-11-14T00:00:00.002Z", "2023-11-14T00:00:00.002+00:00"):
        item: Item = {"timestamp": at, "action": "entity_created", "principal": "me", "ttl": 5}
        items = {("AUDIT#a", f"#AUDIT#{at}"): item}
        key = translated(items).target
        assert key == translated(items).target
        assert key is not None
        found.append(audit_event_of(moved(items)[key]))
    assert [event.event_id for event in found[:2]] == sorted(event.event_id for event in found[:2])
    assert found[1].event_id != found[2].event_id
    ulid = "01ARZ3NDEKTSV4RRFFQ69G5FAV"
    kept = translated({("AUDIT#a", f"#AUDIT#{ulid}"): {"timestamp": "2024", "action": "limits_set"}})
    assert kept.target == Key("ns/AUDIT#a", f"#AUDIT#{ulid}")


@pytest.mark.parametrize(
    ("key", "item"),
    [
        (("AUDIT#a", "#AUDIT#1"), {"timestamp": "2024-01-01", "action": "danced"}),
        (("AUDIT#a", "#AUDIT#1"), {"timestamp": "yesterday", "action": "limits_set"}),
        (("ENTITY#a", "#USAGE#gpt-4#x"), {"window": "weekly", "window_start": "2024-01-01"}),
        (("ENTITY#a", "#USAGE#gpt-4#x"), {"window": "hourly", "window_start": "9999-12-31T23:59:59Z"}),
        (("ENTITY#a", "#USAGE#gpt-4#x"), {"window": "daily"}),
        (("ENTITY#a", "#META"), {"parent_id": "not a name\n"}),
    ],
)
def test_records_that_cannot_be_read_are_refused(key: tuple[str, str], item: Item) -> None:
    """A record that would break whoever reads it later is not made."""
    with pytest.raises(ValidationError):
        translated({key: item})
