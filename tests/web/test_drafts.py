"""Readings of limits of every kind, by real buckets: what headers say is what the bucket holds."""

import math
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.web.limits import limits_of, read_back
from zae_limiter import Limit, LimitKind, LimitStatus, RateLimitExceeded, SyncRateLimiter, SyncRepository
from zae_limiter.backends.memory import MemoryBackend
from zae_limiter.models.leases import LeaseStatus
from zae_limiter.testing import ManualClock
from zae_limiter.web.answers import Answers
from zae_limiter.web.drafts import LEGACY, Status, duration, reading_of, whole_seconds
from zae_limiter.web.structured import INTEGER_MAX

ANSWERS, NEXT = Answers(), Answers("pr-166")
ALL_STYLES = Answers(None, list(LEGACY))
NAMES = ("rpm", "tpm", "x-y.z")


def check(status: Status, found: dict[str, Any], policy: dict[str, Any]) -> None:
    """One limit: the law of the effective window, and that the numbers are those of the bucket."""
    limit, left = status.limit, status.remaining if isinstance(status, LeaseStatus) else status.available
    assert policy["q"] == limit.refill_amount
    assert found["r"] <= max(0, left)
    if limit.kind is LimitKind.CONCURRENT:
        assert (policy["qu"], found) == ("concurrent-requests", {"r": max(0, left)})
        assert "w" not in policy
        return
    assert policy["w"] == limit.refill_period_seconds > 0
    assert policy.get("qu") == (limit.unit or {"tpm": "tokens"}.get(limit.name))
    if found["r"] < max(0, left):  # only what would take longer than any integer of a header
        assert left * policy["w"] // policy["q"] > 10**14
    assert found["r"] * policy["w"] <= policy["q"] * found["t"]
    if not found["r"]:
        wait = max(1, math.ceil(round(status.next_after_seconds * 1000) / 1000))
        assert found["t"] == min(wait, INTEGER_MAX)
    elif limit.kind is LimitKind.RATE:
        assert (found["t"] - 1) * policy["q"] < found["r"] * policy["w"]


def check_all(statuses: tuple[Status, ...]) -> None:
    headers = ANSWERS.headers(statuses)
    policies, values = read_back(headers, "RateLimit-Policy"), read_back(headers, "RateLimit")
    hard = {status.limit_name: status for status in statuses if not status.limit.soft}
    assert policies.keys() == values.keys() == hard.keys()
    for name, status in hard.items():
        check(status, values[name], policies[name])
    renamed = NEXT.headers(statuses)
    assert read_back(renamed, "RateLimit-Policy") == policies
    again = {"r": "a", "t": "w"}
    assert read_back(renamed, "RateLimit") == {
        name: {again[key]: number for key, number in found.items()} for name, found in values.items()
    }
    for name, text in ALL_STYLES.headers(statuses):
        assert (name + text).isascii()
        assert text


@st.composite
def sets_of_limits(draw: st.DrawFn) -> list[Limit]:
    names = draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=3, unique=True))
    return [draw(limits_of(name)) for name in names]


steps = st.tuples(
    st.dictionaries(st.sampled_from(NAMES), st.integers(0, 20) | st.integers(0, 10**12)),
    st.none() | st.dictionaries(st.sampled_from(NAMES), st.integers(0, 10**12)),
    st.integers(0, 200_000) | st.integers(0, 10**10),
)


@settings(max_examples=40)
@given(sets_of_limits(), st.lists(steps, max_size=8))
def test_headers_agree_with_the_bucket(limits: list[Limit], moves: list[tuple[Any, ...]]) -> None:
    """After any history: every header parses, r within t is never more than q within w, and r is true.

    A middleware asks for the headers of the lease, which has not worked out its statuses by then.
    """
    clock = ManualClock()
    known = {limit.name: limit for limit in limits}
    limiter = SyncRateLimiter(SyncRepository.over(MemoryBackend(clock.world), world=clock.world))
    for wanted, used, passes_ms in moves:
        needs = {name: amount for name, amount in wanted.items() if name in known}
        try:
            with limiter.acquire("key", "api", needs, limits) as lease:
                there = limiter.available("key", "api", limits)
                assert {s.limit_name: s.remaining for s in lease.public_statuses}.items() <= there.items()
                check_all(lease.public_statuses)
                for answers in (ANSWERS, NEXT, ALL_STYLES):
                    assert answers.of_lease(lease) == answers.headers(lease.public_statuses)
                notes = {
                    name: amount
                    for name, amount in (used or {}).items()
                    if name in known and known[name].kind is not LimitKind.CONCURRENT
                }
                lease.settle(notes)
        except RateLimitExceeded as refusal:
            there = limiter.available("key", "api", limits)
            told = {status.limit_name: status.available for status in refusal.public_statuses}
            assert told.items() <= there.items()
            check_all(tuple(refusal.public_statuses))
        clock.now_ms += passes_ms


def test_an_example_of_the_draft() -> None:
    """The two fields as the pages show them."""
    rpm, tpm = Limit.per_minute("rpm", 100), Limit.per_minute("tpm", 10_000)
    statuses = (
        LeaseStatus("e", "r", "rpm", rpm, 50, 30.0, 30.0),
        LeaseStatus("e", "r", "tpm", tpm, 0, 60.0, 60.0, 0.006),
    )
    assert ANSWERS.headers(statuses) == [
        ("RateLimit-Policy", '"rpm";q=100;w=60, "tpm";q=10000;w=60;qu="tokens"'),
        ("RateLimit", '"rpm";r=50;t=30, "tpm";r=0;t=1'),
    ]


def test_older_styles() -> None:
    """Each as its senders write it; where a style tells of one limit, that is the one that binds."""
    rpm, tpm = Limit.per_minute("rpm", 100), Limit.per_minute("tpm", 10_000, burst=20_000)
    statuses = (
        LeaseStatus("e", "r", "rpm", rpm, 50, 30.0, 30.0, 0.0, 1_774_699_200_000),
        LeaseStatus("e", "r", "tpm", tpm, 1_000, 114.0, 114.0, 0.0, 1_774_699_200_000),
    )
    assert ALL_STYLES.headers(statuses) == [
        ("RateLimit-Limit", "20000"),
        ("RateLimit-Remaining", "1000"),
        ("RateLimit-Reset", "114"),
        ("X-RateLimit-Limit", "20000"),
        ("X-RateLimit-Remaining", "1000"),
        ("X-RateLimit-Reset", "1774699314"),
        ("x-ratelimit-limit-requests", "100"),
        ("x-ratelimit-remaining-requests", "50"),
        ("x-ratelimit-reset-requests", "30s"),
        ("x-ratelimit-limit-tokens", "20000"),
        ("x-ratelimit-remaining-tokens", "1000"),
        ("x-ratelimit-reset-tokens", "1m54s"),
        ("anthropic-ratelimit-requests-limit", "100"),
        ("anthropic-ratelimit-requests-remaining", "50"),
        ("anthropic-ratelimit-requests-reset", "2026-03-28T12:00:30Z"),
        ("anthropic-ratelimit-tokens-limit", "20000"),
        ("anthropic-ratelimit-tokens-remaining", "1000"),
        ("anthropic-ratelimit-tokens-reset", "2026-03-28T12:01:54Z"),
    ]


def test_seats_in_older_styles() -> None:
    """A hold is no time to wait, and who has the last seat is not out of requests: a rate goes first."""
    rpm, seats = Limit.per_minute("rpm", 100), Limit.concurrent("parallel", 1, hold="5m")
    none_free = LeaseStatus("e", "r", "parallel", seats, 0, 299.5, 299.5, 0.0, 1_774_699_200_000)
    rate = LeaseStatus("e", "r", "rpm", rpm, 50, 30.0, 30.0, 0.0, 1_774_699_200_000)
    styles = Answers(None, ["triple", "x-ratelimit"])
    assert [value for _, value in styles.headers([none_free, rate])] == [
        *("100", "50", "30", "100", "50", "1774699230"),
    ]
    assert [value for _, value in styles.headers([none_free])] == ["1", "0", "1", "1", "0", "1774699201"]


def test_what_never_comes_is_left_out() -> None:
    """A wait without end has no number, in any style."""
    limit = Limit.per_minute("rpm", 1)
    status = LimitStatus("e", "r", "rpm", limit, -5, 1, True, math.inf, math.inf, math.inf)
    assert reading_of(status).effective is None
    assert ANSWERS.headers([status])[1] == ("RateLimit", '"rpm";r=0')
    assert not any("reset" in name.lower() for name, _ in ALL_STYLES.headers([status]))


@given(st.integers(0, 10**13))
def test_seconds_are_rounded_up_once(ms: int) -> None:
    """From whole milliseconds to whole seconds, never less and less than a second more."""
    assert 0 <= whole_seconds(ms / 1000) * 1000 - ms < 1000


@given(st.integers(0, 10**9))
def test_a_duration_is_read_back(seconds: int) -> None:
    """As clients of OpenAI parse it."""
    rest, total = duration(seconds), 0
    for unit, factor in (("h", 3600), ("m", 60), ("s", 1)):
        if unit in rest:
            number, rest = rest.split(unit, 1)
            total += int(number) * factor
    assert (rest, total) == ("", seconds)
