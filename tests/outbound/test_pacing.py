"""What a provider's words make of the limits that were declared for it."""

from __future__ import annotations

from contextlib import ExitStack
from fractions import Fraction

import httpx
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from zae_limiter import Limit, SyncRateLimiter, SyncRepository
from zae_limiter.backends.memory import MemoryBackend
from zae_limiter.outbound import Provider, ToldLimit
from zae_limiter.outbound.pacing import PAUSE_SECONDS, PAUSE_SECONDS_MAX, RAISE_MS, as_told
from zae_limiter.records.providers import get_provider
from zae_limiter.runtime.colour import run_sync
from zae_limiter.testing import ManualClock

DAY_SECONDS = 86_400


def rate(limit: Limit) -> Fraction:
    return Fraction(limit.refill_amount, limit.refill_period_seconds)


NUMBER = st.integers(1, 10**12)
SECONDS = st.one_of(st.sampled_from([1, 60, 3_600, DAY_SECONDS]), st.integers(1, 366 * DAY_SECONDS))


@given(NUMBER, NUMBER, SECONDS, NUMBER, SECONDS, st.booleans())
@example(16, 16, 60, 1_000, 3_600, False)
@example(10**12, 1, DAY_SECONDS, 10**12, 1, False)
def test_a_told_limit_is_as_fast_as_told(
    capacity: int, amount: int, period: int, told: int, window: int, is_least: bool
) -> None:
    """To the token, whichever period was declared; its burst lasts no longer than the declared one."""
    declared = Limit("requests", capacity, amount, period)
    limit = as_told(declared, ToldLimit("requests", told, None, None, window, is_least))
    assert rate(limit) == Fraction(told, max(window, period) if is_least else window)
    assert limit.capacity == 1 or limit.capacity / rate(limit) <= capacity / rate(declared)
    assert limit.capacity == 10**12 or (limit.capacity + 1) / rate(limit) > capacity / rate(declared)
    if rate(limit) == rate(declared):
        assert limit == declared


def test_a_limit_without_a_window_is_one_of_the_declared_period() -> None:
    """There is nothing else to go by."""
    declared = Limit.per_hour("requests", 5_000, burst=50)
    assert as_told(declared, ToldLimit("requests", 1_000)) == Limit.per_hour("requests", 1_000, burst=10)


@pytest.mark.parametrize(
    "headers",
    [
        {"x-ratelimit-limit-requests": "600", "x-ratelimit-reset-requests": "100ms"},
        {"anthropic-ratelimit-requests-limit": "600"},
        {"RateLimit-Policy": '"requests";q=600;w=60'},
        {"RateLimit-Limit": "600", "RateLimit-Policy": "600;w=60"},
        {"x-ratelimit-limit-requests": "600", "RateLimit-Policy": '"requests";q=10;w=1'},
    ],
)
def test_the_window_that_a_provider_means_counts(headers: dict[str, str]) -> None:
    """Not the period that the program happened to declare its limit for."""
    transport = httpx.MockTransport(lambda _: httpx.Response(200, headers=headers))
    with SyncRateLimiter.open("memory://") as limiter:
        provider = Provider(limiter, "vendor", [Limit.per_second("requests", 5)])
        with httpx.Client(transport=provider.sync_httpx_transport(transport)) as client:
            client.get("http://vendor.test")
            client.get("http://vendor.test")
        (limit,) = limiter.repository.get_limits("vendor", "api")
        assert (rate(limit), limit.capacity) == (10, 10)
        assert len(limiter.get_audit_events("vendor")) == 2, "the limits as declared, and as told"


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_a_limit_is_raised_at_times_and_lowered_at_once(workers: int) -> None:
    """Two models with limits of their own through one provider: the lower binds, and little is written."""
    told: list[int] = []

    def vendor(_: httpx.Request) -> httpx.Response:
        told.append(500 if len(told) % 2 else 5_000)
        return httpx.Response(200, headers={"x-ratelimit-limit-requests": str(told[-1])})

    clock = ManualClock()
    with SyncRateLimiter.open("memory://", world=clock.world) as limiter, ExitStack() as opened:
        providers = [Provider(limiter, "vendor", [Limit.per_minute("requests", 500)]) for _ in range(workers)]
        transports = [one.sync_httpx_transport(httpx.MockTransport(vendor)) for one in providers]
        clients = [opened.enter_context(httpx.Client(transport=transport)) for transport in transports]
        for _ in range(3):
            for number in range(12):
                clients[number % workers].get("http://vendor.test")
                (limit,) = limiter.repository.get_limits("vendor", "api")
                assert limit.refill_amount == 500 or told[-1] == 5_000, "it was told less just now"
            clock.advance(RAISE_MS / 1000)
        events = limiter.get_audit_events("vendor")
        assert len(events) == 1 + 3 * 2, "declared, and then raised and lowered in each of three times"


@pytest.mark.parametrize(
    ("headers", "pause_seconds"),
    [
        ({"x-ratelimit-remaining": "0", "x-ratelimit-reset": "30"}, 30),
        ({"x-ratelimit-remaining": "0", "x-ratelimit-reset": "30", "retry-after": "5"}, 5),
        ({"x-ratelimit-remaining-requests": "2", "x-ratelimit-reset-requests": "30s"}, 30),
        ({"x-ratelimit-remaining-requests": "3", "x-ratelimit-reset-requests": "30s"}, PAUSE_SECONDS),
        ({"RateLimit": '"requests";r=9;t=50, "other";r=0;t=20'}, 20),
        ({"x-ratelimit-remaining": "0", "x-ratelimit-reset": "999999"}, PAUSE_SECONDS_MAX),
        ({"x-ratelimit-remaining": "0"}, PAUSE_SECONDS),
        ({}, PAUSE_SECONDS),
    ],
)
def test_a_refusal_lasts_until_what_was_used_up_is_there_again(
    headers: dict[str, str], pause_seconds: float
) -> None:
    """If it does not say itself for how long; of a request that took three."""
    transport = httpx.MockTransport(lambda _: httpx.Response(429, headers=headers))
    clock = ManualClock()
    with SyncRateLimiter.open("memory://", world=clock.world) as limiter:
        provider = Provider(limiter, "vendor", [Limit.per_minute("requests", 500)], cost={"requests": 3})
        with httpx.Client(transport=provider.sync_httpx_transport(transport)) as client:
            begun_ms = clock.world.now_ms()
            client.get("http://vendor.test")
        scope = limiter.repository._async._scope
        known = run_sync(get_provider(scope, "vendor", "api"))
        assert (known.until_ms - begun_ms) / 1000 == pause_seconds


@pytest.mark.parametrize("retry_seconds", [30, 90])
@pytest.mark.parametrize("period", [1, 60])
@pytest.mark.parametrize("says", ["nothing", "less", "raise", "cut"])
def test_nobody_sends_before_a_pause_is_over(says: str, period: int, retry_seconds: int) -> None:
    """By two limiters on one store, though a cut forgives debt and a raise gives more than is owed."""
    less = {"RateLimit-Policy": '"requests";q=30;w=60'} if says == "less" else {}
    clock, sent_ms = ManualClock(), list[int]()
    begun_ms, backend = clock.now_ms, MemoryBackend(clock.world)

    def vendor(_: httpx.Request) -> httpx.Response:
        sent_ms.append(clock.now_ms)
        headers = {"retry-after": str(retry_seconds), **less}
        return httpx.Response(200) if len(sent_ms) > 1 else httpx.Response(429, headers=headers)

    with ExitStack() as opened:
        clients = []
        for _ in range(2):
            limiter = SyncRateLimiter(SyncRepository.over(backend, world=clock.world))
            provider = Provider(limiter, "vendor", [Limit("requests", 60, 60, period)], wait=0)
            transport = provider.sync_httpx_transport(httpx.MockTransport(vendor))
            clients.append(opened.enter_context(httpx.Client(transport=transport)))
        for second in range(retry_seconds):
            clients[second % 2].get("http://vendor.test")
            if second == 5 and says in ("raise", "cut"):
                amount = 100_000 if says == "raise" else 10
                limiter.set_limits("vendor", [Limit("requests", amount, amount, period)], "api")
            clients[1 - second % 2].get("http://vendor.test")
            clock.advance(1)
        assert sent_ms == [begun_ms]
        if says == "raise":
            clients[0].get("http://vendor.test")
            assert sent_ms[1:] == [begun_ms + retry_seconds * 1000], "it is over when it was told to be"


def test_who_may_wait_sends_when_a_pause_is_over() -> None:
    """To the millisecond, though the operator raised the limit meanwhile."""
    clock, sent_ms = ManualClock(), list[int]()
    begun_ms = clock.now_ms

    def vendor(_: httpx.Request) -> httpx.Response:
        sent_ms.append(clock.now_ms)
        return httpx.Response(200) if len(sent_ms) > 1 else httpx.Response(429, headers={"retry-after": "90"})

    with SyncRateLimiter.open("memory://", world=clock.world) as limiter:
        provider = Provider(limiter, "vendor", [Limit.per_minute("requests", 60)], wait=100)
        with httpx.Client(transport=provider.sync_httpx_transport(httpx.MockTransport(vendor))) as client:
            client.get("http://vendor.test")
            clock.advance(5)
            limiter.set_limits("vendor", [Limit.per_minute("requests", 6_000)], "api")
            client.get("http://vendor.test")
            client.get("http://vendor.test")
    assert sent_ms[1] == begun_ms + 90_000
    assert sent_ms[2] > sent_ms[1], "one by one"
