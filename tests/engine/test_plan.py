"""A plan stands while its records are fresh, and no image says otherwise."""

from dataclasses import replace
from typing import Any

import pytest

from tests.engine.fake_buckets import FRESH_MS, FakeBuckets, account_of, image_of
from tests.engine.fake_store import NOW
from zae_limiter.engine.account import Terms
from zae_limiter.models import Limit
from zae_limiter.schema import bucket_key, entity_config_key, entity_key

PARENT = bucket_key("ns", "p", "r")


def stands(buckets: FakeBuckets, needed: list[str], ticks_ms: float = NOW) -> bool:
    return buckets.made.stands(buckets.writer, needed, ticks_ms)


def test_a_plan_stands_while_its_records_are_fresh_and_no_image_says_otherwise() -> None:
    buckets = FakeBuckets(None, None, account_of("p"))
    buckets.writer.remember({PARENT: None})
    assert stands(buckets, ["a", "b"], NOW + FRESH_MS - 1)
    assert buckets.cache.hits == 2
    assert not stands(buckets, ["a", "b"], NOW + FRESH_MS)
    assert not stands(buckets, ["a", "c"])
    assert buckets.cache.hits == 2


@pytest.mark.parametrize("told", [True, False])
def test_a_bucket_that_is_missing_is_made_from_what_is_known_to_be_right(told: bool) -> None:
    """Its records may have been deleted since, unless the store would have told."""
    buckets = FakeBuckets()
    buckets.holds(None)
    buckets.cache.changes = 0 if told else None
    assert stands(buckets, ["a"]) is told


@pytest.mark.parametrize(
    ("image", "right"),
    [
        (image_of(), True),
        (None, True),
        (image_of(cv=0, b_a_cp=1), True),
        (image_of(cv=2), False),
        (image_of(parent_id="x"), False),
        (image_of(cascade=True), False),
        (image_of(life="x"), False),
    ],
)
def test_a_plan_falls_with_the_image_of_any_of_its_accounts(
    image: dict[str, Any] | None, right: bool
) -> None:
    """Numbers that are behind are no reason: the next write brings them up to date."""
    buckets = FakeBuckets(None, None, account_of("p"))
    assert not stands(buckets, ["a"]), "nothing is known of the parent"
    buckets.writer.remember({PARENT: image})
    assert stands(buckets, ["a"]) is right
    assert buckets.cache.hits == 2 * right


def test_what_is_needed_is_looked_for_at_the_entity() -> None:
    """A parent need not have the limit."""
    bare = account_of("p")._replace(terms=Terms({}, 1))
    buckets = FakeBuckets(None, None, bare)
    buckets.writer.remember({bare.key: None})
    assert stands(buckets, ["a"])


def test_entities_with_the_same_limits_have_their_terms_and_texts_in_common() -> None:
    """A process remembers 100,000 of them: what is the same for all is kept once."""
    limits, others = [Limit.per_minute("a", 5)], [Limit.per_minute("a", 6)]
    terms = Terms.of(limits, 1, 7)
    assert terms is Terms.of(tuple(limits), 1, 7)
    assert Terms.of(others, 1, 7) != terms != Terms.of(limits, 2, 7)
    assert Terms.of([replace(limits[0], unit="usd_micro")], 1, 7).units != terms.units
    plan = FakeBuckets(None).made
    assert plan.names is plan.accounts[0].terms.names
    assert plan.seats is plan.accounts[0].terms.seats
    assert bucket_key("ns", "e", "r") is bucket_key("ns", "e", "r")
    assert entity_key("ns", "e").partition is entity_config_key("ns", "e", "r").partition
