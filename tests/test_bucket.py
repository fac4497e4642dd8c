"""The balance law: integers, gains that telescope, waits that are exact on both sides."""

import ast
import dataclasses
import inspect
import math
from fractions import Fraction
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from zae_limiter import bucket
from zae_limiter.bucket import (
    Consumption,
    Refill,
    build_limit_status,
    calculate_available,
    calculate_retry_after,
    calculate_time_until_available,
    force_consume,
    rate_of,
    refill_bucket,
    try_consume,
    would_refill_satisfy,
)
from zae_limiter.engine import law
from zae_limiter.engine.law import Rate, accrued, balance, gain, retry_after_ms, wait_ms
from zae_limiter.exceptions import ValidationError
from zae_limiter.models import NUMBER_MAX, PERIOD_SECONDS_MAX, TOKENS_MAX, BucketState, Limit

NOW = 1_700_000_000_000

tokens = st.integers(1, 100) | st.integers(1, TOKENS_MAX)
limits = st.builds(
    Limit, st.just("rpm"), tokens, tokens, st.integers(1, 86_400) | st.integers(1, PERIOD_SECONDS_MAX)
)
# Shares of a limit are no whole tokens, so the arithmetic is tried on every number of millitokens.
rates = limits.map(Rate.of) | st.builds(Rate, *[st.integers(1, 10**6)] * 3, st.none(), st.none())
instants = st.integers(0, 10**4) | st.integers(NOW - 10**6, NOW + 10**6) | st.integers(0, 10**14)
balances = st.integers(-(10**6), 10**6) | st.integers(-TOKENS_MAX * 1000, TOKENS_MAX * 1000)


@st.composite
def states(draw: st.DrawFn) -> BucketState:
    limit = draw(limits)
    return BucketState(
        "user-1",
        "gpt-4",
        "rpm",
        tokens_milli=min(draw(balances), 2 * limit.capacity_milli),  # a refund may have overfilled it
        last_refill_ms=draw(instants),
        capacity_milli=limit.capacity_milli,
        refill_amount_milli=limit.refill_amount_milli,
        refill_period_ms=limit.refill_period_ms,
    )


@st.composite
def moments(draw: st.DrawFn, state: BucketState) -> int:
    """An instant at which something happens to a bucket: near its origin, before it, or long after."""
    near = st.integers(-10_000, 10_000).map(lambda ms: max(0, state.last_refill_ms + ms))
    return draw(near | instants)


@given(rates, st.lists(instants, min_size=2, max_size=20))
def test_gains_telescope(rate: Rate, at: list[int]) -> None:
    """Over any instants the gains add up to the gain of the whole: nothing drifts."""
    at.sort()
    assert sum(gain(rate, a, b) for a, b in pairwise(at)) == gain(rate, at[0], at[-1])


@given(rates, instants, instants)
def test_a_gain_is_the_rate_rounded_once(rate: Rate, a: int, b: int) -> None:
    """A gain differs from the true one by less than a millitoken, however long it took."""
    exact = Fraction(max(0, b - a) * rate.refill_amount_milli, rate.refill_period_ms)
    assert abs(gain(rate, a, b) - exact) < 1
    assert gain(rate, a, b) == max(0, accrued(rate, max(a, b)) - accrued(rate, a))


@given(rates, instants, instants)
def test_time_never_runs_backwards(rate: Rate, origin: int, now: int) -> None:
    """A clock before the origin counts as the origin."""
    assume(now <= origin)
    assert gain(rate, origin, now) == 0
    assert balance(rate, 5, origin, now) == balance(rate, 5, origin, origin)


@given(rates, balances, instants, instants)
def test_the_balance_law(rate: Rate, stored: int, origin: int, now: int) -> None:
    """What is stored plus what accrued, and never more than the capacity."""
    held = balance(rate, stored, origin, now)
    assert held == min(rate.capacity_milli, stored + gain(rate, origin, now))
    assert held <= rate.capacity_milli


@given(rates, st.integers(1, TOKENS_MAX * 1000), instants)
@example(Rate(1, 1, 1), 1, 0)
def test_a_wait_is_the_smallest_that_brings_enough(rate: Rate, deficit: int, now: int) -> None:
    """In that many milliseconds the deficit accrues; in one less it does not."""
    wait = wait_ms(rate, deficit, now)
    assert gain(rate, now, now + wait) >= deficit > gain(rate, now, now + wait - 1)


@given(rates, st.integers(-10, 0), instants)
def test_no_deficit_no_wait(rate: Rate, deficit: int, now: int) -> None:
    """What is there already need not be waited for."""
    assert wait_ms(rate, deficit, now) == 0


@given(rates, balances, instants, instants, st.data())
def test_retry_after_is_tight_on_both_sides(
    rate: Rate, stored: int, origin: int, now: int, data: st.DataObject
) -> None:
    """At that millisecond the balance covers the need, one earlier it does not; also before the origin."""
    need = data.draw(st.integers(1, rate.capacity_milli))
    wait = retry_after_ms(rate, stored, origin, need, now)
    assert isinstance(wait, int)
    assert balance(rate, stored, origin, now + wait) >= need
    if wait:
        assert balance(rate, stored, origin, now + wait - 1) < need


@given(rates, balances, instants, instants, st.integers(1, 10**6))
def test_more_than_the_capacity_is_never_there(
    rate: Rate, stored: int, origin: int, now: int, excess: int
) -> None:
    """Also an overfilled bucket does not admit more than it may hold."""
    need = rate.capacity_milli + excess
    assert retry_after_ms(rate, stored, origin, need, now) == math.inf
    assert balance(rate, stored, origin, now) < need


@given(rates)
def test_the_time_to_fill(rate: Rate) -> None:
    """An empty bucket is full after ``fill_ms``, whenever that begins, and from the epoch not earlier."""
    assert gain(rate, 0, rate.fill_ms) >= rate.capacity_milli > gain(rate, 0, rate.fill_ms - 1)
    assert gain(rate, NOW, NOW + rate.fill_ms) >= rate.capacity_milli


@pytest.mark.parametrize(
    ("limit", "debt_tokens", "need_tokens", "seconds"),
    [
        (Limit.per_minute("tpm", 1000), 1500, 1, 90.06),
        (Limit.per_minute("rpm", 60), 0, 1, 1.0),
        (Limit.per_hour("rph", 1), 0, 1, 3600.0),
        (Limit.per_day("rpd", 100), 0, 1, 864.0),
        (Limit.per_second("rps", 1000), 0, 1, 0.001),
        (Limit.per_minute("odd", 35), 0, 1, 1.715),
    ],
    ids=lambda value: value.name if isinstance(value, Limit) else None,
)
def test_waits_that_can_be_done_in_the_head(
    limit: Limit, debt_tokens: int, need_tokens: int, seconds: float
) -> None:
    """A debt of 1,500 tokens at 1,000 a minute takes a minute and a half, and then the need."""
    rate = Rate.of(limit)
    wait = retry_after_ms(rate, -debt_tokens * 1000, 0, need_tokens * 1000, 0)
    assert wait == round(seconds * 1000)


# The eight functions, which speak of whole tokens and seconds.


@given(states(), st.integers(1, TOKENS_MAX), st.data())
def test_the_eight_functions_agree_with_the_law(
    state: BucketState, requested: int, data: st.DataObject
) -> None:
    """Each is the law in the units of its caller; none has an opinion of its own."""
    now = data.draw(moments(state))
    rate, need = rate_of(state), requested * 1000
    held = balance(rate, state.tokens_milli, state.last_refill_ms, now)
    wait = retry_after_ms(rate, state.tokens_milli, state.last_refill_ms, need, now) / 1000
    at = max(now, state.last_refill_ms)
    fits = held >= need

    assert calculate_available(state, now) == math.floor(Fraction(held, 1000))
    assert calculate_time_until_available(state, requested, now) == wait
    assert (wait == 0) is fits
    assert refill_bucket(state.tokens_milli, state.last_refill_ms, now, *rate[:3]) == Refill(held, at)
    assert force_consume(state, requested, now) == Refill(held - need, at)
    left, whole = held - need if fits else held, math.floor(Fraction(held, 1000))
    assert try_consume(state, requested, now) == Consumption(fits, left, at, whole, wait)

    status = build_limit_status("user-1", "gpt-4", state.limit, state, requested, now)
    other = dataclasses.replace(state, limit_name="tpm")
    assert would_refill_satisfy([state, other], {"rpm": requested}, now) == (fits, [status])
    assert (status.entity_id, status.resource, status.limit_name) == ("user-1", "gpt-4", "rpm")
    assert (status.limit, status.requested) == (state.limit, requested)
    assert (status.available, status.exceeded) == (calculate_available(state, now), not fits)
    assert status.retry_after_seconds == wait


@given(rates, st.integers(0, 10**12), instants)
def test_a_deficit_accrues_in_time_whenever_the_wait_begins(rate: Rate, deficit: int, now: int) -> None:
    """Without a clock it is the wait that is enough at every instant, and at some instant no less is."""
    longest_ms = wait_ms(rate, deficit, 0)
    wait = calculate_retry_after(deficit, rate.refill_amount_milli, rate.refill_period_ms)
    assert wait == longest_ms / 1000
    assert longest_ms >= wait_ms(rate, deficit, now)


@given(states(), st.lists(st.integers(0, 10**5), min_size=1, max_size=10), st.data())
def test_refilling_often_changes_nothing(state: BucketState, steps: list[int], data: st.DataObject) -> None:
    """A bucket that is refilled at every step ends where one is that was left alone."""
    now = data.draw(moments(state))
    rate, stored, origin = rate_of(state), state.tokens_milli, state.last_refill_ms
    for step in steps:
        stored, origin = refill_bucket(stored, origin, now := now + step, *rate[:3])
    assert stored == balance(rate, state.tokens_milli, state.last_refill_ms, now)


@given(states(), st.integers(1, 1000), st.data())
def test_what_is_consumed_is_gone(state: BucketState, requested: int, data: st.DataObject) -> None:
    """After a consumption the balance is less by exactly the request, and nothing accrues at once."""
    now = data.draw(moments(state))
    rate = rate_of(state)
    before = balance(rate, state.tokens_milli, state.last_refill_ms, now)
    taken = try_consume(state, requested, now)
    after = balance(rate, taken.new_tokens_milli, taken.new_last_refill_ms, now)
    assert before - after == (requested * 1000 if taken.success else 0)
    assert after >= 0 or not taken.success


STATE = BucketState("user-1", "gpt-4", "rpm", 5000, NOW, 10_000, 1000, 1000)
PLAIN: dict[str, Any] = {"state": STATE, "requested": 1, "amount": 1, "now_ms": NOW}
PLAIN |= {"tokens_milli": 5000, "last_refill_ms": NOW, "needed": 1, "deficit_milli": 1}
PLAIN |= rate_of(STATE)._asdict() | {"entity_id": "user-1", "resource": "gpt-4", "limit": STATE.limit}
PLAIN |= {"buckets": [STATE], "consume": {"rpm": 1}}
FUNCTIONS = (
    *(refill_bucket, try_consume, force_consume, calculate_retry_after, calculate_available),
    *(calculate_time_until_available, build_limit_status, would_refill_satisfy, rate_of),
)
NAMES = ("entity_id", "resource")
CHECKED = [
    (function, name)
    for function in FUNCTIONS
    for name in inspect.signature(function).parameters
    if name not in NAMES
]


def called(function: Any, **other: Any) -> Any:
    """A plain call, some of whose arguments are others."""
    plain = {name: PLAIN[name] for name in inspect.signature(function).parameters}
    return function(**(plain | other))


@pytest.mark.parametrize("value", [0.5, True, "1", NUMBER_MAX + 1, -NUMBER_MAX - 1])
@pytest.mark.parametrize(("function", "name"), CHECKED, ids=lambda it: getattr(it, "__name__", it))
def test_every_argument_is_checked(function: Any, name: str, value: Any) -> None:
    """By every function, under its own name, before anything is worked out."""
    called(function)
    with pytest.raises(ValidationError) as refused:
        called(function, **{name: value})
    assert (refused.value.field, refused.value.value) == (name, value)


@pytest.mark.parametrize("value", [0.5, True, "1", NUMBER_MAX + 1, -NUMBER_MAX - 1])
@pytest.mark.parametrize(
    "name", ["tokens_milli", "last_refill_ms", "capacity_milli", "refill_amount_milli", "refill_period_ms"]
)
def test_every_number_of_a_state_and_of_a_rate_is_checked(name: str, value: Any) -> None:
    """Whoever made it; a rate moreover brings something."""
    with pytest.raises(ValidationError) as refused:
        rate_of(dataclasses.replace(STATE, **{name: value}))
    assert refused.value.field == name
    if name in Rate._fields:
        with pytest.raises(ValidationError) as refused:
            called(refill_bucket, **{name: value})
        assert refused.value.field == name


@pytest.mark.parametrize("name", ["refill_amount_milli", "refill_period_ms"])
def test_a_rate_brings_something(name: str) -> None:
    """Nothing is divided by zero."""
    nothing: Any = {name: 0}
    with pytest.raises(ValidationError, match="at least 1"):
        rate_of(dataclasses.replace(STATE, **nothing))


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda it: it.__name__)
def test_the_largest_numbers_can_be_worked_with(function: Any) -> None:
    """On both sides of zero."""
    for name in inspect.signature(function).parameters:
        if isinstance(PLAIN[name], int):
            called(function, **{name: NUMBER_MAX})
            if not name.startswith("refill"):
                called(function, **{name: -NUMBER_MAX})


def test_floats_stay_out_of_the_arithmetic() -> None:
    """Nothing is divided into a float but the seconds that are shown, and no constant is one but zero."""
    nodes = [n for module in (law, bucket) for n in ast.walk(ast.parse(inspect.getsource(module)))]
    divisions = [node for node in nodes if isinstance(node, ast.BinOp | ast.AugAssign)]
    shown = [ast.unparse(node) for node in divisions if isinstance(node.op, ast.Div)]
    assert len(shown) == 1
    assert shown[0].endswith("/ 1000")
    floats = {n.value for n in nodes if isinstance(n, ast.Constant) and isinstance(n.value, float)}
    assert floats <= {0.0}


@given(rates, balances, instants, instants)
def test_integers_go_in_and_come_out(rate: Rate, stored: int, origin: int, now: int) -> None:
    """No intermediate result of the law is a float, so no sum is ever rounded."""
    found = [accrued(rate, now), gain(rate, origin, now), balance(rate, stored, origin, now), rate.fill_ms]
    found += [wait_ms(rate, 5, now), *refill_bucket(stored, origin, now, *rate[:3])]
    assert {type(number) for number in found} == {int}
