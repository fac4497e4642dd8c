"""The parts of an acquire: what buckets are asked for together, and what of it is whose afterwards."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.engine.fake_buckets import account_of
from tests.engine.fake_store import RATE
from zae_limiter.config_cache import ConfigCache
from zae_limiter.engine.account import Account, Terms
from zae_limiter.engine.demand import BucketDemand
from zae_limiter.engine.parts import Part, asked_of, shared_out
from zae_limiter.engine.plan import Plan
from zae_limiter.models import OnUnavailable

PARENT = account_of("parent")
NARROW = account_of("narrow")._replace(terms=Terms({"a": RATE}, 1))
"""A bucket without the second limit."""
FAMILIES = (
    (account_of("one"), PARENT),
    (account_of("two"), PARENT),
    (account_of("three"),),
    (account_of("four"), NARROW),
    (PARENT,),
)
NEEDS = st.dictionaries(st.sampled_from("ab"), st.integers(1, 9), max_size=2)


def plan_of(*family: Account) -> Plan:
    return Plan(family, OnUnavailable.BLOCK, None, ConfigCache(0), [])


def asked_by(*asked: tuple[Sequence[Account], Mapping[str, int]]) -> tuple[list[Part], list[Plan]]:
    nobody: Any = None
    return [(nobody, needs) for _, needs in asked], [plan_of(*family) for family, _ in asked]


def total(demands: Sequence[BucketDemand]) -> Counter[tuple[str, str]]:
    """By entity and limit."""
    sums: Counter[tuple[str, str]] = Counter()
    for account, amounts in demands:
        sums.update({(account.entity_id, name): amount for name, amount in amounts.items()})
    return sums


def test_one_part_has_all_that_was_taken() -> None:
    parts, plans = asked_by((FAMILIES[0], {"a": 3}))
    demands = asked_of(parts, plans)
    assert demands == [BucketDemand(FAMILIES[0][0], {"a": 3}), BucketDemand(PARENT, {"a": 3})]
    (take,) = shared_out(parts, plans, demands)
    assert take == (FAMILIES[0], {"a": 3}, tuple(demands))


def test_a_bucket_that_several_meet_at_is_asked_once_for_the_sum() -> None:
    parts, plans = asked_by((FAMILIES[0], {"a": 3}), (FAMILIES[1], {"a": 4, "b": 1}), (FAMILIES[4], {"b": 2}))
    assert asked_of(parts, plans) == [
        BucketDemand(FAMILIES[0][0], {"a": 3}),
        BucketDemand(PARENT, {"a": 7, "b": 3}),
        BucketDemand(FAMILIES[1][0], {"a": 4, "b": 1}),
    ]


def test_who_asks_for_itself_goes_by_its_own_terms_as_a_parent_too() -> None:
    brought = PARENT._replace(terms=Terms({"a": RATE}))
    parts, plans = asked_by((FAMILIES[0], {"a": 3, "b": 1}), ((brought,), {"a": 2}))
    assert asked_of(parts, plans)[1] == BucketDemand(brought, {"a": 5})


def test_a_part_of_which_nobody_gave_anything_has_no_share() -> None:
    """A limit disappeared; the other part has one of that name, which does not count."""
    parts, plans = asked_by((FAMILIES[2], {"a": 3}), (FAMILIES[4], {"a": 4}))
    assert shared_out(parts, plans, [BucketDemand(PARENT, {"a": 4})]) == ()
    assert len(shared_out(parts, plans, asked_of(parts, plans))) == 2


@given(
    st.lists(
        st.tuples(st.sampled_from(FAMILIES), NEEDS), min_size=2, max_size=5, unique_by=lambda it: it[0][0].key
    ),
    st.data(),
)
def test_what_was_taken_is_shared_out_to_the_last_token(
    asked: list[tuple[tuple[Account, ...], dict[str, int]]], data: st.DataObject
) -> None:
    """Each part has of each bucket what it asked for, whichever shards gave it, and nothing is left."""
    parts, plans = asked_by(*asked)
    demands = asked_of(parts, plans)
    assert len({demand.account.key for demand in demands}) == len(demands)
    taken = []
    for account, amounts in demands:  # some of it from another shard
        here = {name: data.draw(st.integers(0, amount)) for name, amount in amounts.items()}
        there = {name: amount - here[name] for name, amount in amounts.items()}
        shard = account._replace(key=account.shard_key(1), shard_id=1)
        taken += [BucketDemand(account, here), BucketDemand(shard, there)]
    takes = shared_out(parts, plans, taken)
    assert [take.amounts for take in takes] == [needs for _, needs in asked if needs]
    for take in takes:
        expected = {
            (a.entity_id, n): need
            for a in take.accounts
            for n, need in take.amounts.items()
            if n in a.terms.rates
        }
        assert total(take.demands) == expected
    by_item: Counter[tuple[Any, str]] = Counter()
    for account, amounts in (demand for take in takes for demand in take.demands):
        by_item.update({(account.key, name): amount for name, amount in amounts.items()})
    assert by_item == +Counter({(a.key, name): n for a, amounts in taken for name, n in amounts.items()})
