"""What is taken at once is exactly what the write would take."""

from typing import Any

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.engine.fake_store import NOW, RATE
from tests.quotas import quota
from zae_limiter.engine.account import Account, Terms
from zae_limiter.engine.bucket_view import is_ahead
from zae_limiter.engine.bucket_writes import write_for
from zae_limiter.engine.law import Rate
from zae_limiter.engine.posting import Posting
from zae_limiter.engine.spent import spent
from zae_limiter.repository_protocol import apply
from zae_limiter.schema import bucket_key, limit_attributes, rate_attributes

NAMES = ("a", "b", "a_tk")

rates = st.builds(
    lambda capacity, amount, period: Rate(capacity * 1000, amount * 1000, period * 1000),
    st.integers(1, 50),
    st.integers(1, 100),
    st.integers(1, 3600),
) | st.builds(
    quota,
    st.integers(1, 50).map(lambda tokens: tokens * 1000),
    st.integers(1, 100).map(lambda tokens: tokens * 1000),
    st.sampled_from(("hour@UTC", "day@Asia/Kathmandu", "cron(*/7 * * * *)@UTC")),
)


@st.composite
def buckets(draw: st.DrawFn) -> tuple[Terms, dict[str, Any]]:
    """Terms, and a bucket that has their numbers: full, overfilled, used or in debt."""
    terms = Terms(
        {name: draw(rates) for name in sorted(draw(st.sets(st.sampled_from(NAMES), min_size=1)))}, 1
    )
    image: dict[str, Any] = {"rf": draw(st.integers(NOW - 10**5, NOW + 10**3)), "cv": 1, "cascade": False}
    for name, rate in terms.rates.items():
        held = draw(
            st.integers(-2 * rate.capacity_milli, 2 * rate.capacity_milli) | st.just(rate.capacity_milli)
        )
        names, used = limit_attributes(name), draw(st.integers(0, 10**6))
        image |= {names.tk: held, names.tc: used, **rate_attributes(name, rate)}
    return terms, image


@given(buckets(), st.data())
@settings(max_examples=300)
def test_what_is_spent_at_once_is_what_the_write_would_leave(
    bucket: tuple[Terms, dict[str, Any]], data: st.DataObject
) -> None:
    """Both admit the same needs and leave the same image; taking at once never admits alone."""
    terms, image = bucket
    now_ms = data.draw(st.integers(NOW - 10**4, NOW + 10**7))
    assume(not is_ahead(image, now_ms))  # else it is put right first, which is no business of taking at once
    needs = data.draw(
        st.dictionaries(
            st.sampled_from(sorted(terms.rates)),
            st.integers(1, 60).map(lambda tokens: tokens * 1000),
            min_size=1,
        )
    )
    account = Account(bucket_key("ns", "e", "r"), "ns", "e", "r", terms)
    write = write_for(account, Posting(need=needs), image, now_ms)
    assert write is not None
    outcome = apply(write, image)
    changed = spent(terms, needs, image, now_ms)
    assert (changed is not None) is outcome.applied
    if changed is not None:
        assert {**image, **changed} == outcome.item


def test_all_that_is_there_is_spent_at_once_and_no_more() -> None:
    """To the last millitoken, from a bucket that was used and from one that is full."""
    terms = Terms({"a": RATE}, 1)
    image = {"rf": NOW, "b_a_tk": 4_000, "b_a_tc": 7}
    assert spent(terms, {"a": 6_000}, image, NOW + 2_000) == {"b_a_tk": -2_000, "b_a_tc": 6_007}
    assert spent(terms, {"a": 6_001}, image, NOW + 2_000) is None
    assert spent(terms, {"a": 10_000}, image, NOW + 20_000) == {"b_a_tk": -20_000, "b_a_tc": 10_007}
    assert spent(terms, {"a": 10_001}, image, NOW + 20_000) is None
