"""What a write says beside its amounts: how long a bucket lives, what a split must know, who comes first."""

from typing import Any

import pytest

from zae_limiter.engine.account import WRITES, Account, Meter, Terms
from zae_limiter.engine.bucket_writes import write_for
from zae_limiter.engine.fitting import fitting
from zae_limiter.engine.law import Rate
from zae_limiter.engine.lifetime import lasts, prolong
from zae_limiter.engine.posting import Posting, merged
from zae_limiter.engine.rebase import rebase
from zae_limiter.models import Limit
from zae_limiter.repository_protocol import AtLeast, Equal, Exists, Item, Put, Update, apply
from zae_limiter.schema import bucket_key, limit_attributes, shard_attributes

NOW = 1_700_000_000_000

# One token a second: a bucket of ten is full after ten seconds.
A = Limit("a", 10, 1, 1)
B = Limit("b", 100, 1, 1)


def account(limit: Limit, ttl_fills: int = 0, meter: Meter = Meter.NONE) -> Account:
    terms = Terms.of([limit], 1, ttl_fills)
    return Account(bucket_key("ns", "e", "r"), "ns", "e", "r", terms, meter=meter)


def bucket(tokens_milli: int) -> dict[str, Any]:
    numbers = (tokens_milli, *Rate.of(A)[:3], 0)
    return {"rf": NOW, "cv": 1, **dict(zip(limit_attributes("a"), numbers, strict=True))}


@pytest.mark.parametrize(
    ("tokens_milli", "full_in_seconds"),
    [(4_000, 30), (50_000, 24)],
    ids=["a bucket with some tokens", "a bucket that overflows"],
)
def test_a_debt_prolongs_the_life_of_a_bucket(tokens_milli: int, full_in_seconds: int) -> None:
    """It is kept until the debt is paid, the bucket is full, and three fills more."""
    image: dict[str, Any] = {**bucket(tokens_milli), "ttl": NOW // 1000 + 1}
    write = write_for(account(A, ttl_fills=1), Posting(debit={"a": 25_000}, credit={"a": 1000}), image, NOW)
    assert isinstance(write, Update)
    assert write.set["ttl"] == NOW // 1000 + full_in_seconds + 30
    assert Equal("ttl", NOW // 1000 + 1) in write.when


def test_a_bucket_that_is_born_in_debt_outlives_the_debt() -> None:
    """A debit may find no bucket, and the one it makes is not full before the debt is paid."""
    write = write_for(account(A, ttl_fills=1), Posting(debit={"a": 25_000}), None, NOW)
    assert isinstance(write, Put)
    assert write.item["ttl"] == NOW // 1000 + 25 + 30


@pytest.mark.parametrize(("need", "largest"), [(3_125, None), (3_126, 3_126)])
def test_a_counted_bucket_knows_its_birth_and_what_its_shares_must_allow(
    need: int, largest: int | None
) -> None:
    """A need that the smallest share would cover is not worth keeping."""
    write = write_for(account(B, meter=Meter.COUNT), Posting(need={"b": need}), None, NOW)
    assert isinstance(write, Put)
    assert write.item.get(shard_attributes("b").mx) == largest
    assert write.item["born"] == NOW


def test_a_counted_bucket_keeps_the_largest_need_of_a_group_and_counts_refunds() -> None:
    """A group of small needs does not keep a limit from being split; every write is a write."""
    metered = account(B, meter=Meter.COUNT)
    made = write_for(metered, Posting(need={"b": 1000}), None, NOW)
    assert isinstance(made, Put)
    group = Posting(need={"b": 20_000}, largest={"b": 8_000})
    write = write_for(metered, group, made.item, NOW)
    assert isinstance(write, Update)
    assert write.set[shard_attributes("b").mx] == 8_000
    refund = write_for(metered, Posting(credit={"b": 1000}), made.item, NOW)
    assert isinstance(refund, Update)
    assert refund.add == {"b_b_tk": 1000, "b_b_tc": -1000, "b_wcu_tk": -1000, "b_wcu_tc": 1000}


def test_a_group_remembers_its_largest_need() -> None:
    """A split has to know what was once asked for at once, and a group is not one request."""
    group = [Posting(need={"a": 2}), Posting(need={"a": 5, "b": 1}), Posting(need={"a": 3})]
    assert merged(group).largest == {"a": 5, "b": 1}


def test_a_queue_is_served_in_its_order() -> None:
    """Each finds what those before it left; who does not fit leaves everything to the next."""
    queue = [Posting(need={"a": need}) for need in (3000, 3000, 2000, 1)]
    assert fitting(queue, account(A).terms, bucket(5000), NOW) == [True, False, True, False]


def test_the_first_request_may_be_for_the_whole_capacity() -> None:
    """And for nothing more."""
    whole = write_for(account(A), Posting(need={"a": 10_000}), None, NOW)
    more = write_for(account(A), Posting(need={"a": 10_001}), None, NOW)
    assert whole is not None
    assert more is not None
    assert apply(whole, None).applied
    assert not apply(more, None).applied


def test_limits_that_a_caller_brought_along_make_a_bucket_of_no_version() -> None:
    """Any stored configuration is newer."""
    brought = Account(bucket_key("ns", "e", "r"), "ns", "e", "r", Terms.of([A]))
    write = write_for(brought, Posting(need={"a": 1_000}), None, NOW)
    assert isinstance(write, Put)
    assert write.item["cv"] == 0


def test_a_group_may_make_a_bucket() -> None:
    """It keeps the largest need of the group, and only where buckets can be split."""
    group = Posting(need={"a": 6_000}, largest={"a": 4_000})
    counted = write_for(account(A, meter=Meter.COUNT), group, None, NOW)
    plain = write_for(account(A), group, None, NOW)
    assert isinstance(counted, Put)
    assert isinstance(plain, Put)
    assert counted.item["b_a_mx"] == 4_000
    assert (counted.item["b_wcu_tk"], counted.item["b_wcu_tc"]) == (WRITES.capacity_milli - 1_000, 1_000)
    assert not {"b_a_mx", "b_wcu_tk", "born"} & set(plain.item)


def test_a_refund_survives_the_limit_that_was_to_be_charged_beside_it() -> None:
    """A settlement of two limits, one of which was deleted meanwhile, is half of it."""
    write = write_for(account(A), Posting(debit={"gone": 500}, credit={"a": 700}), bucket(4_000), NOW)
    assert isinstance(write, Update)
    assert write.add == {"b_a_tk": 700, "b_a_tc": -700}


@pytest.mark.parametrize(("version", "origin_ms"), [(1, NOW - 1), (2, NOW)])
def test_new_numbers_of_the_same_version_move_the_origin(version: int, origin_ms: int) -> None:
    """Version and origin together tell which numbers a write was shaped for."""
    changed = Account(bucket_key("ns", "e", "r"), "ns", "e", "r", Terms.of([Limit("a", 20, 1, 1)], version))
    assert rebase(changed, Posting(), bucket(4_000), NOW).set["rf"] == origin_ms


def test_a_rebase_keeps_the_bucket_until_its_slowest_limit_is_full() -> None:
    """Of two limits one is full and the other lacks 60 s; three fills of the slower one are added."""
    terms = Terms.of([A, B], 2, ttl_fills=1)
    image = bucket(10_000) | dict(zip(limit_attributes("b"), (40_000, *Rate.of(B)[:3], 0), strict=True))
    for limits in (terms, Terms(dict(reversed(terms.rates.items())), 2, 1)):
        renewed = account(A)._replace(terms=limits)
        write = rebase(renewed, Posting(), image | {"ttl": NOW // 1000 + 5}, NOW)
        assert write.set["ttl"] == NOW // 1000 + 60 + 3 * 100
        assert Equal("ttl", NOW // 1000 + 5) in write.when


# A bucket whose writes are counted. A thousand a second refill one write each millisecond.


def counted(tokens_milli: int, writes_milli: int | None, **more: Any) -> dict[str, Any]:
    image = bucket(tokens_milli) | {"shard_count": 1} | more
    if writes_milli is not None:
        image |= zip(limit_attributes("wcu"), (writes_milli, *WRITES[:3], 0), strict=True)
    return image


def spent(meter: Meter, image: Item, now_ms: int, posting: Posting | None = None) -> Update:
    write = write_for(account(A, meter=meter), posting or Posting(need={"a": 100}), image, now_ms)
    assert isinstance(write, Update)
    return write


def test_every_write_is_counted() -> None:
    """It takes one from the count of the second and adds one to the count of all times."""
    write = spent(Meter.LIMIT, counted(4_000, 7_000), NOW + 2)
    assert (write.add["b_wcu_tk"], write.add["b_wcu_tc"]) == (-1_000, 1_000)
    assert "b_wcu_tk" not in write.set
    assert write.when[-2:] == (Equal("shard_count", 1), AtLeast("b_wcu_tk", -1_000))


def test_a_count_that_is_full_is_cut_to_its_brim() -> None:
    """Without a condition, and nobody is refused by a count that is full."""
    full, just = counted(4_000, 999_001), counted(4_000, 998_000)
    write = spent(Meter.LIMIT, full, NOW + 2)
    assert (write.set["b_wcu_tk"], write.add["b_wcu_tc"]) == (997_000, 1_000)
    assert write.when[-1] == Equal("shard_count", 1)
    assert spent(Meter.LIMIT, just, NOW + 2).add["b_wcu_tk"] == -1_000


def test_a_count_that_only_counts_refuses_nobody() -> None:
    """Nor is anybody refused by it who only settles."""
    write = spent(Meter.COUNT, counted(4_000, 0), NOW)
    assert write.when[-1] == Equal("shard_count", 1)
    settled = spent(Meter.LIMIT, counted(4_000, 0), NOW, Posting(debit={"a": 100}))
    assert settled.add["b_wcu_tk"] == -1_000
    assert not [c for c in settled.when if c in (Equal("shard_count", 1), AtLeast("b_wcu_tk", 1_000))]


def test_a_bucket_without_a_count_gets_one() -> None:
    """It was made where nobody counted; two who see that at once do not both begin."""
    write = spent(Meter.LIMIT, counted(4_000, None), NOW)
    assert [write.set[name] for name in limit_attributes("wcu")] == [
        WRITES.capacity_milli,
        *WRITES[:3],
        1_000,
    ]
    assert write.when[-2:] == (Equal("shard_count", 1), Equal("b_wcu_tk", None))


@pytest.mark.parametrize("total", ["x", True, 1.5])
def test_a_damaged_count_is_begun_anew(total: Any) -> None:
    image = counted(4_000, 500_000) | {"b_wcu_tc": total}
    write = spent(Meter.LIMIT, image, NOW)
    assert apply(write, image).applied
    assert write.set["b_wcu_tc"] == 1_000


@pytest.mark.parametrize("version", [None, "x", True])
def test_a_bucket_without_a_version_can_be_charged(version: Any) -> None:
    """What was used is taken, whatever the bucket says of its configuration."""
    image = {name: value for name, value in bucket(4_000).items() if name != "cv"}
    image |= {} if version is None else {"cv": version}
    write = write_for(account(A), Posting(debit={"a": 5_000}), image, NOW)
    assert write is not None
    outcome = apply(write, image)
    assert (outcome.applied, outcome.item and outcome.item["b_a_tk"]) == (True, -1_000)


def test_a_count_moves_with_the_origin() -> None:
    """What it gained until then is credited, up to its capacity."""
    renewed = account(A, meter=Meter.LIMIT)._replace(terms=Terms.of([Limit("a", 20, 1, 1)], 2))
    for before, after in ((7_000, 8_000), (999_001, 999_000)):
        write = rebase(renewed, Posting(), counted(4_000, before), NOW + 2)
        assert write.set["b_wcu_tk"] == after
        assert write.add["b_wcu_tc"] == 1_000
        assert "b_wcu_tk" not in write.add
    asked = write_for(renewed, Posting(need={"a": 100}), counted(4_000, 7_000), NOW + 2)
    assert asked is not None
    assert asked.when[-1] == Equal("shard_count", 1)


def test_a_write_is_for_the_shares_it_was_shaped_with() -> None:
    """A shard that is split meanwhile refuses it; a count that means one shard is pinned as it is."""
    assert Equal("shard_count", "odd") in spent(Meter.COUNT, counted(4_000, 0, shard_count="odd"), NOW).when
    assert Equal("shard_count", 1) in spent(Meter.COUNT, counted(4_000, 0, shard_count=4), NOW).when


@pytest.mark.parametrize(
    ("need", "known", "kept"),
    [(312, None, None), (313, None, 313), (313, 313, None), (400, 313, 400), (400, 500, None)],
)
def test_the_largest_need_is_kept_where_a_share_could_be_smaller(
    need: int, known: int | None, kept: int | None
) -> None:
    """The smallest share of ten tokens is 312.5; what is known already is not written again."""
    image = counted(4_000, 7_000) | ({} if known is None else {"b_a_mx": known})
    assert spent(Meter.COUNT, image, NOW, Posting(need={"a": need})).set.get("b_a_mx") == kept
    if need == 313:
        exact = Account(bucket_key("ns", "e", "r"), "ns", "e", "r", Terms.of([Limit("a", 32, 1, 1)], 1))
        held = {**image, "b_a_cp": 32_000}
        write = write_for(exact._replace(meter=Meter.COUNT), Posting(need={"a": 1_000}), held, NOW)
        assert write is not None
        assert isinstance(write, Update)
        assert "b_a_mx" not in write.set, "a share of exactly the need is enough"


# How long a bucket lives. One of ten tokens that refill in ten seconds is kept for a week of them.

KEPT = account(A, ttl_fills=7)


def living(tokens_milli: int, ttl_seconds: int | None, **more: Any) -> dict[str, Any]:
    return bucket(tokens_milli) | ({} if ttl_seconds is None else {"ttl": NOW // 1000 + ttl_seconds}) | more


@pytest.mark.parametrize(
    ("image", "so"),
    [
        (living(4_000, None), True),
        (living(4_000, 20), True),
        (living(4_000, 19), False),
        (living(0, 20), True),
        (living(-1, 20), False),
        (living(4_000, 20, cv=2), False),
        (living(4_000, 20, b_a_cp=9_999), False),
    ],
)
def test_a_glance_tells_that_a_bucket_lasts(image: Item, so: bool) -> None:
    """It has no debt, the numbers of its terms, and time to fill twice; otherwise a closer look decides."""
    assert lasts(KEPT.terms, image, NOW) is so


@pytest.mark.parametrize(
    ("tokens_milli", "ttl_seconds", "until_seconds"),
    [(-90_000, 110, None), (-90_000, 109, 130), (10_000, 20, None), (10_000, 19, 70), (5_000, 19, 70)],
)
def test_a_bucket_lives_until_its_debts_are_paid_and_one_fill_longer(
    tokens_milli: int, ttl_seconds: int, until_seconds: int | None
) -> None:
    """But two fills at least. When it has less it gets three, or its idle time."""
    image = living(tokens_milli, ttl_seconds)
    write = prolong(KEPT.terms, KEPT.key, image, NOW)
    if until_seconds is None:
        assert write is None
    else:
        assert write == Update(
            KEPT.key,
            {},
            {"ttl": NOW // 1000 + until_seconds},
            (Exists(), Equal("ttl", NOW // 1000 + ttl_seconds)),
        )


def test_a_bucket_is_prolonged_for_the_limit_that_takes_longest() -> None:
    """Whichever comes first."""
    image = living(10_000, 1) | dict(zip(limit_attributes("b"), (-50_000, *Rate.of(B)[:3], 0), strict=True))
    for limits in ([A, B], [B, A]):
        write = prolong(Terms.of(limits, 1, 1), KEPT.key, image, NOW)
        assert write is not None
        assert write.set["ttl"] == NOW // 1000 + 150 + 3 * 100


def test_a_bucket_that_is_kept_for_ever_is_left_so_until_its_limits_change() -> None:
    """Somebody made it without an end, and a spend is no reason to give it one."""
    assert "ttl" not in spent_under(KEPT, living(4_000, None)).set
    renewed = KEPT._replace(terms=Terms.of([A], 2, 7))
    assert spent_under(renewed, living(4_000, None)).set["ttl"] == NOW // 1000 + 70
    assert spent_under(account(A), living(4_000, 5)).set == {"ttl": None}


def spent_under(terms: Account, image: Item) -> Update:
    write = write_for(terms, Posting(need={"a": 100}), image, NOW)
    assert isinstance(write, Update)
    return write
