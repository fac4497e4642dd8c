"""Values are checked when they are made, and converted to milli-units in one place."""

import dataclasses
from typing import Any

import pytest

from zae_limiter.exceptions import InvalidNameError, ValidationError
from zae_limiter.models import (
    LIMITS_MAX,
    PERIOD_SECONDS_MAX,
    TOKENS_MAX,
    Availability,
    BucketState,
    Entity,
    Limit,
    LimiterConfig,
    LimitStatus,
    OnUnavailable,
    check_count,
    check_limits,
)

MINUTELY = Limit("rpm", 60, 60, 60)


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (Limit.per_second("a", 10), Limit("a", 10, 10, 1)),
        (Limit.per_minute("a", 10), Limit("a", 10, 10, 60)),
        (Limit.per_hour("a", 10), Limit("a", 10, 10, 3600)),
        (Limit.per_day("a", 10), Limit("a", 10, 10, 86400)),
        (Limit.per_minute("a", 10, burst=50), Limit("a", 50, 10, 60)),
        (Limit.per_minute("a", 10, burst=5), Limit("a", 5, 10, 60)),
        (Limit.custom("a", 7, 3, 90), Limit("a", 7, 3, 90)),
        (Limit("a", TOKENS_MAX, TOKENS_MAX, PERIOD_SECONDS_MAX), Limit("a", 10**12, 10**12, 316_224_000)),
    ],
    ids=repr,
)
def test_constructors_read_like_sentences(made: Limit, expected: Limit) -> None:
    """The capacity is the burst, or the rate when there is none; the refill is the rate."""
    assert made == expected


def test_units_of_a_limit() -> None:
    """Users speak of tokens and seconds, the arithmetic of millitokens and milliseconds."""
    limit = Limit("a", 7, 3, 90)
    assert (limit.capacity_milli, limit.refill_amount_milli, limit.refill_period_ms) == (7000, 3000, 90_000)
    assert limit.refill_rate == 3 / 90


BAD_NUMBERS: list[tuple[Any, str]] = [
    (0, "at least 1"),
    (-1, "at least 1"),
    (1.5, "not float"),
    (2.0, "not float"),
    (True, "not bool"),
    ("60", "not str"),
    (None, "not NoneType"),
    ([1], "not list"),
    (float("nan"), "not float"),
    (float("inf"), "not float"),
]


@pytest.mark.parametrize(("value", "reason"), [*BAD_NUMBERS, (TOKENS_MAX + 1, f"at most {TOKENS_MAX}")])
@pytest.mark.parametrize("field", ["capacity", "refill_amount"])
def test_tokens_of_a_limit_are_checked(field: str, value: Any, reason: str) -> None:
    """An amount is a positive whole number that the arithmetic is exact for."""
    with pytest.raises(ValidationError) as caught:
        dataclasses.replace(MINUTELY, **{field: value})
    assert (caught.value.field, caught.value.value is value) == (f"{field} of 'rpm'", True)
    assert repr(value) in str(caught.value)
    assert reason in str(caught.value)


@pytest.mark.parametrize(
    ("value", "reason"), [*BAD_NUMBERS, (PERIOD_SECONDS_MAX + 1, f"at most {PERIOD_SECONDS_MAX}")]
)
def test_the_period_of_a_limit_is_checked(value: Any, reason: str) -> None:
    """A period is a positive whole number of seconds, ten years at most."""
    with pytest.raises(ValidationError, match=reason) as caught:
        dataclasses.replace(MINUTELY, refill_period_seconds=value)
    assert repr(value) in str(caught.value)


def test_a_number_too_long_to_print_is_still_refused_clearly() -> None:
    """Python itself refuses to print an integer of more than 4,300 digits."""
    with pytest.raises(ValidationError, match="<int that cannot be shown>: it must be at most"):
        check_count("capacity", 10**5000, TOKENS_MAX)


@pytest.mark.parametrize("name", ["wcu", "", "1st", "a#b", "a b", "x" * 65, None, 7, [], {}])
def test_the_name_of_a_limit_is_checked(name: Any) -> None:
    """A limit cannot be made under a name that no bucket can hold."""
    with pytest.raises(InvalidNameError):
        Limit(name, 1, 1, 1)


def test_values_are_frozen() -> None:
    """What was checked stays as it was checked."""
    with pytest.raises(dataclasses.FrozenInstanceError):
        MINUTELY.capacity = 0  # type: ignore[misc]
    with pytest.raises(dataclasses.FrozenInstanceError):
        Entity("e").cascade = True  # type: ignore[misc]


def test_a_limit_survives_a_dictionary() -> None:
    """``from_dict`` reads what ``to_dict`` wrote."""
    limit = Limit("tokens.in", 7, 3, 90)
    assert limit.to_dict() == {
        "name": "tokens.in",
        "capacity": 7,
        "refill_amount": 3,
        "refill_period_seconds": 90,
    }
    assert Limit.from_dict(limit.to_dict()) == limit


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        ({}, "name, capacity, refill_amount, refill_period_seconds missing"),
        ({"name": "a", "capacity": 1, "refill_amount": 1}, "refill_period_seconds missing"),
        ({**MINUTELY.to_dict(), "burst": 5}, "unknown keys burst"),
        ({**MINUTELY.to_dict(), "burst": 5, 7: 7}, "unknown keys 7, burst"),
        ({**MINUTELY.to_dict(), "capacity": "60"}, "not str"),
        ([("name", "a")], "pass a mapping of name, capacity"),
        (None, "pass a mapping of name, capacity"),
    ],
    ids=repr,
)
def test_a_wrong_dictionary_is_no_limit(data: Any, reason: str) -> None:
    """Missing and unknown keys are named."""
    with pytest.raises(ValidationError, match=reason):
        Limit.from_dict(data)


@pytest.mark.parametrize(
    ("limits", "reason"),
    [
        ([], "pass at least one limit"),
        ((), "pass at least one limit"),
        (None, "pass a list of Limit"),
        ("rpm", "pass a list of Limit"),
        ({"rpm": 60}, "pass a list of Limit"),
        (MINUTELY, "pass a list of Limit"),
        ([MINUTELY, {"name": "tpm"}], "pass a list of Limit"),
        (iter([MINUTELY]), "pass a list of Limit"),
        ([MINUTELY, Limit("rpm", 1, 1, 1)], "rpm given more than once"),
        ([Limit(f"l{i}", 1, 1, 1) for i in range(LIMITS_MAX + 1)], f"at most {LIMITS_MAX} limits"),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, str) else value,
)
def test_a_wrong_set_of_limits_is_refused(limits: Any, reason: str) -> None:
    """A bucket holds some limits, not too many, and none twice."""
    with pytest.raises(ValidationError, match=reason):
        check_limits(limits)


@pytest.mark.parametrize("make", [list, tuple])
def test_a_good_set_of_limits_keeps_its_order(make: Any) -> None:
    """As many as ``LIMITS_MAX`` are accepted."""
    limits = [Limit(f"l{i}", 1, 1, 1) for i in reversed(range(LIMITS_MAX))]
    assert check_limits(make(limits)) == tuple(limits)


@pytest.mark.parametrize(
    ("value", "low", "high", "accepted"),
    [
        (1, 1, 3, True),
        (3, 1, 3, True),
        (0, 1, 3, False),
        (4, 1, 3, False),
        (-3, -3, 3, True),
        (0, 0, 3, True),
    ],
)
def test_counts_include_both_ends(value: int, low: int, high: int, accepted: bool) -> None:
    """The bounds of a count belong to it."""
    if accepted:
        assert check_count("n", value, high, low) == value
    else:
        with pytest.raises(ValidationError):
            check_count("n", value, high, low)


@pytest.mark.parametrize("value", ["allow", "block", OnUnavailable.ALLOW, OnUnavailable.BLOCK])
def test_policies_are_words(value: str) -> None:
    """A policy may be written as its word, here and in a config."""
    assert OnUnavailable.of(value) == value
    assert LimiterConfig(on_unavailable=value).on_unavailable is OnUnavailable(value)  # type: ignore[arg-type]


@pytest.mark.parametrize("value", ["", "ALLOW", "maybe", 1, True, ["allow"], b"allow"])
def test_another_policy_is_refused(value: Any) -> None:
    """The error shows the word and both ways out, and a config cannot be made with it."""
    with pytest.raises(ValidationError, match="use 'allow' or 'block'") as caught:
        OnUnavailable.of(value)
    assert repr(value) in str(caught.value)
    with pytest.raises(ValidationError, match="use 'allow' or 'block'"):
        LimiterConfig(on_unavailable=value)


def test_a_config_that_says_nothing_says_none() -> None:
    """``None`` is not a policy."""
    assert LimiterConfig() == LimiterConfig((), None, None, None, 0)


def test_a_bucket_state_knows_its_limit() -> None:
    """Stored milli-units give back the limit that was configured."""
    state = BucketState("e", "r", "rpm", 1, 2, 60_000, 60_000, 60_000)
    assert state.limit == MINUTELY


@pytest.mark.parametrize(("wait", "available"), [(0.0, True), (0.001, False), (float("inf"), False)])
def test_availability_means_no_wait(wait: float, available: bool) -> None:
    """A demand is available when it need not wait."""
    assert Availability({"rpm": 1}, wait).is_available is available


def test_statuses_compare_as_data() -> None:
    """Two looks that found the same are equal."""
    found = ("e", "r", "rpm", MINUTELY, 3, 5, True, 2.0)
    assert LimitStatus(*found) == LimitStatus(*found)
