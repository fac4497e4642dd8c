"""Which numbers a bucket is to have, whether it has them, and who is behind."""

from typing import Any

import pytest

from zae_limiter.bucket import Rate
from zae_limiter.models import Limit
from zae_limiter.schema import limit_attributes
from zae_limiter.terms import Terms, has_terms, is_outdated, level, limit_of, stored_terms

NOW = 1_700_000_000_000
A = Limit("a", 10, 1, 1)


def bucket(version: int = 1, tokens_milli: int = 4000, limit: Limit = A) -> dict[str, Any]:
    stored = dict(zip(limit_attributes(limit.name), (tokens_milli, *Rate.of(limit), 0), strict=True))
    return {"rf": NOW, "cv": version, **stored}


@pytest.mark.parametrize(
    ("terms_version", "stored_version", "outdated"),
    [(1, 1, False), (1, 2, True), (2, 1, False), (None, 9, False), (0, 1, True)],
)
def test_who_is_behind(terms_version: int | None, stored_version: int, outdated: bool) -> None:
    """Terms are outdated by a bucket of a newer version; limits brought along never are."""
    terms = Terms.of([A], terms_version)
    assert is_outdated(terms, bucket(stored_version)) is outdated
    assert is_outdated(terms, None) is False


@pytest.mark.parametrize(
    ("change", "version", "holds"),
    [
        ({}, 1, True),
        ({}, None, True),
        ({}, 2, False),
        ({"cv": 7}, None, True),
        ({"b_other_tk": 5}, 1, True),
        ({"b_a_cp": 10_001}, 1, False),
        ({"b_a_ra": 999}, 1, False),
        ({"b_a_rp": 999}, 1, False),
        ({"b_a_tk": None}, 1, False),
        ({"b_a_tk": 1.0}, 1, False),
        ({"b_a_tc": "0"}, 1, False),
        ({"rf": None}, 1, False),
        ({"rf": True}, 1, False),
    ],
)
def test_whether_a_bucket_has_its_terms(change: dict[str, Any], version: int | None, holds: bool) -> None:
    """All numbers are right and whole numbers, and so is the version unless the caller brought limits."""
    assert has_terms({**bucket(), **change}, Terms.of([A], version)) is holds


@pytest.mark.parametrize(
    ("image", "now_ms", "balance_milli"),
    [
        (None, NOW, 10_000),
        (bucket(), NOW, 4000),
        (bucket(), NOW + 500, 4500),
        (bucket(), NOW - 500, 4000),
        (bucket(), NOW + 10**6, 10_000),
        (bucket(limit=Limit("b", 5, 1, 1)), NOW, 10_000),
        (bucket(limit=Limit("a", 6, 2, 1)), NOW, 8000),
        (bucket(limit=Limit("a", 6, 2, 1)), NOW + 500, 9000),
        (bucket(limit=Limit("a", 6, 2, 1)), NOW + 10**6, 10_000),
        (bucket(limit=Limit("a", 30, 1, 1)), NOW, -16_000),
    ],
)
def test_a_level_keeps_what_was_consumed(image: Any, now_ms: int, balance_milli: int) -> None:
    """Under other numbers a bucket lacks what it lacked; a limit it does not have yet is full."""
    assert level(Terms.of([A]), "a", image, now_ms).balance(now_ms) == balance_milli


@pytest.mark.parametrize("before", [Limit("a", 6, 2, 1), Limit("a", 30, 1, 7), Limit("a", 10, 1, 60)])
@pytest.mark.parametrize("need_milli", [1, 9_500, 10_000])
def test_a_wait_under_other_numbers_is_exact(before: Limit, need_milli: int) -> None:
    """Until somebody writes the new numbers the bucket fills at the old rate, and that is when one comes."""
    image = bucket(limit=before) | {"b_a_tk": -20_000}

    def balance_after(ms: int) -> int:
        return level(Terms.of([A]), "a", image, NOW + ms).balance(NOW + ms)

    wait_ms = int(level(Terms.of([A]), "a", image, NOW).retry_after_ms(need_milli, NOW))
    assert balance_after(wait_ms - 1) < need_milli <= balance_after(wait_ms)


def test_the_terms_a_bucket_holds_itself() -> None:
    """They can be read back from it, and leftovers are none of them."""
    assert stored_terms({**bucket(3), "b_x_tk": 5}) == Terms.of([A], 3)
    assert stored_terms(bucket(3), 7).ttl_fills == 0
    assert stored_terms({**bucket(3), "ttl": 5}, 7).ttl_fills == 7


def test_a_rate_is_its_limit_again() -> None:
    """Units are converted back without loss."""
    limit = Limit("a", 7, 3, 90)
    assert limit_of("a", Rate.of(limit)) == limit
