"""Every function and constructor that takes what users say, given anything."""

import inspect
import json
import math
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import strategies as st

from tests.fuzz.figures import cases
from tests.fuzz.outcomes import outcome
from tests.fuzz.tenants import RPM
from tests.fuzz.values import anything, numbers, texts
from tests.names import is_allowed
from zae_limiter import (
    BucketState,
    Limit,
    LimiterConfig,
    OnUnavailable,
    UsageWindow,
    ValidationError,
    bucket,
    naming,
)
from zae_limiter import version as versions
from zae_limiter.models import check_count, check_limits, check_mapping
from zae_limiter.models.grammar import limit_text, parse_limit, parse_limits_json
from zae_limiter.schema import bucket_key, pk_entity
from zae_limiter.version import check_compatibility, parse_version

VALIDATORS = {name: value for name, value in vars(naming).items() if name.startswith("validate_")}
CONSTRUCTORS: dict[str, Callable[..., Any]] = {
    "Limit": lambda name, capacity, amount, seconds, accrual, unit, soft: Limit(
        name, capacity, amount, seconds, accrual, unit, soft=soft
    ),
    "Limit.soft": lambda soft: Limit("rpm", 60, 60, 60, soft=soft),
    "Limit.per_second": Limit.per_second,
    "Limit.per_day": lambda name, rate, burst, calendar, tz: Limit.per_day(
        name, rate, burst, calendar=calendar, tz=tz
    ),
    "Limit.per_month": lambda name, amount, burst, tz, unit: Limit.per_month(
        name, amount, burst, tz=tz, unit=unit
    ),
    "Limit.session": lambda name, amount, window, unit: Limit.session(name, amount, window, unit=unit),
    "Limit.cron": lambda name, amount, expression, tz: Limit.cron(name, amount, expression, tz=tz),
    "Limit.from_dict": Limit.from_dict,
    "LimiterConfig": LimiterConfig,
    "OnUnavailable.of": OnUnavailable.of,
    "UsageWindow.of": UsageWindow.of,
    "check_limits": check_limits,
    "check_mapping": lambda value: check_mapping("field", value, "reason"),
    "check_count": lambda value: check_count("field", value, 10**12),
    "parse_version": parse_version,
    "check_compatibility": check_compatibility,
}


@pytest.mark.parametrize("name", sorted(VALIDATORS))
@cases("facts", 100, value=st.one_of(anything, texts, texts))
def test_a_name_that_passes_is_part_of_one_key(name: str, value: Any) -> None:
    """It passes as it is or is refused, and what passes cannot end a key or begin another one."""
    result = outcome(lambda: VALIDATORS[name](value))
    if isinstance(result, ValidationError):
        assert result.value is value
        return
    assert result == value
    assert isinstance(result, str)
    assert all(is_allowed(sign) for sign in result)
    assert 0 < len(result) <= naming.NAME_LENGTH_MAX
    assert len(result.encode()) <= naming.NAME_BYTES_MAX
    assert "#" not in result
    assert result.strip() == result
    if name in ("validate_entity_id", "validate_parent_id"):
        assert result[0] != "$"
    elif name not in ("validate_principal", "validate_resource", "validate_key", "validate_model"):
        # The others are names of AWS and of attributes.
        assert result.isascii()
        assert not set(result) & set("\\ \"'{}%$")
    assert pk_entity("ns", result).count("#") == 1
    assert bucket_key("ns", result, "r").partition.count("#") == 3


@pytest.mark.parametrize("name", sorted(CONSTRUCTORS))
@cases("facts", 100, data=st.data())
def test_a_value_is_checked_when_it_is_made(name: str, data: Any) -> None:
    """Anything in any place: a value that can be worked with, or an error of ours."""
    make = CONSTRUCTORS[name]
    count = len(inspect.signature(make).parameters)
    usual = st.sampled_from(["rpm", 60, 1, (RPM,), "allow", "hourly", None, True, "1.0.0", RPM.to_dict()])
    result = outcome(
        lambda: make(*data.draw(st.lists(st.one_of(usual, anything), min_size=count, max_size=count)))
    )
    if isinstance(result, Limit):
        assert Limit.from_dict(result.to_dict()) == result
        assert json.loads(json.dumps(result.to_dict())) == result.to_dict()
        assert 0 < result.refill_rate < math.inf
        assert parse_limit(limit_text(result)) == result or result.refill_period_seconds not in (
            1,
            60,
            3600,
            86400,
        )


PUBLIC = (
    *("refill_bucket", "try_consume", "force_consume", "calculate_retry_after", "calculate_available"),
    *("calculate_time_until_available", "build_limit_status", "would_refill_satisfy", "rate_of"),
)
whole = st.one_of(st.integers(-(10**20), 10**20), numbers, anything)
states = st.builds(BucketState, st.just("e"), st.just("r"), st.just("rpm"), whole, whole, whole, whole, whole)


@pytest.mark.parametrize("name", PUBLIC)
@cases("facts", 100, data=st.data())
def test_the_arithmetic_of_buckets(name: str, data: Any) -> None:
    """Numbers in, numbers out; whatever is no number is refused, and no number is too large to be divided."""
    function = getattr(bucket, name)
    kinds = {"state": st.one_of(states, states, anything), "limit": st.one_of(st.just(RPM), anything)}
    kinds |= {"buckets": st.lists(states, max_size=2), "consume": st.dictionaries(st.just("rpm"), whole)}
    given = [data.draw(kinds.get(parameter, whole)) for parameter in inspect.signature(function).parameters]
    outcome(lambda: function(*given))


@cases(
    "facts",
    300,
    text=st.one_of(texts, st.text(st.sampled_from("rpm:/0123456789secmindayhour#"), max_size=20)),
)
def test_limits_on_a_command_line(text: str) -> None:
    """A limit that is read is written back as itself."""
    result = outcome(lambda: parse_limit(text))
    if isinstance(result, Limit):
        assert parse_limit(limit_text(result)) == result


json_like = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), texts, st.just(RPM.to_dict())),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(texts, inner, max_size=3)),
    max_leaves=5,
)


@cases(
    "facts", 300, text=st.one_of(texts, json_like.map(json.dumps)), depth=st.sampled_from([0, 0, 1, 100_000])
)
def test_limits_in_json(text: str, depth: int) -> None:
    """Any JSON, and what is none."""
    outcome(lambda: parse_limits_json("[" * depth + text))


release = st.from_regex(r"v?[0-9]{1,12}\.[0-9]{1,12}(\.[0-9]{1,12})?([.+-][a-z0-9.]{0,8})?", fullmatch=True)


@cases("facts", 200, one=release, other=release)
def test_versions_have_an_order(one: str, other: str) -> None:
    """Two texts that are versions can be compared, whatever stands behind their numbers."""
    found = [outcome(lambda text=text: parse_version(text)) for text in (one, other)]
    if all(isinstance(version, versions.Version) for version in found):
        assert found[0] <= found[1] or found[1] <= found[0]
