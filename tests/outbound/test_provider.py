"""Requests to a provider that limits us: real clients, real HTTP, workers that share one store."""

from __future__ import annotations

import asyncio
import json
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import httpx2
import openai
import pytest
import requests

from tests.outbound.mock_provider import MockProvider
from zae_limiter import (
    Limit,
    RateLimiter,
    RateLimitExceeded,
    SyncRateLimiter,
    SyncRepository,
    ValidationError,
)
from zae_limiter.backends.memory import MemoryBackend
from zae_limiter.outbound import Provider
from zae_limiter.outbound.pacing import Pacing
from zae_limiter.outbound.told import ProviderAnswer
from zae_limiter.records.providers import pause
from zae_limiter.runtime.colour import run_sync
from zae_limiter.testing import ManualClock

LIMITS = [Limit.per_second("requests", 50, burst=5)]


@pytest.fixture
def store(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/limits.db"


def test_sync_clients_wait_for_their_turn(store: str) -> None:
    """With every library; no faster than the limit allows."""
    mock, begun = MockProvider(50, 1000), time.monotonic()
    with mock.serving() as url, SyncRateLimiter.open(store) as limiter:
        provider = Provider(limiter, "vendor", LIMITS)
        with httpx.Client(transport=provider.sync_httpx_transport()) as one:
            assert {one.get(url).status_code for _ in range(8)} == {200}
        with httpx2.Client(transport=provider.sync_httpx2_transport()) as other:
            assert {other.get(url).status_code for _ in range(8)} == {200}
        with requests.Session() as session:
            session.mount("http://", provider.requests_adapter())
            assert {session.get(url).status_code for _ in range(8)} == {200}
    assert mock.statuses() == [200] * 24
    assert time.monotonic() - begun >= (24 - 5) / 50


def test_async_clients_wait_for_their_turn(store: str) -> None:
    """Many tasks at once, through one transport."""

    async def work(url: str) -> None:
        async with RateLimiter.open(store) as limiter:
            provider = Provider(limiter, "vendor", LIMITS)
            async with (
                httpx.AsyncClient(transport=provider.httpx_transport()) as one,
                httpx2.AsyncClient(transport=provider.httpx2_transport()) as other,
            ):
                answers = await asyncio.gather(
                    *(client.get(url) for client in (one, other) for _ in range(10))
                )
                assert {answer.status_code for answer in answers} == {200}

    mock, begun = MockProvider(50, 1000), time.monotonic()
    with mock.serving() as url:
        asyncio.run(work(url))
    assert mock.statuses() == [200] * 20
    assert time.monotonic() - begun >= (20 - 5) / 50


def test_what_the_provider_says_of_its_limit_is_stored_for_all(store: str) -> None:
    """With a burst in proportion; another worker goes by it without having been told."""

    def mute(_: httpx.Request) -> httpx.Response:
        raise httpx.ReadTimeout("nobody answers")

    mock = MockProvider(20, 5)
    with mock.serving() as url, SyncRateLimiter.open(store) as limiter:
        declared = [Limit.per_second("requests", 40, burst=10)]
        with httpx.Client(transport=Provider(limiter, "vendor", declared).sync_httpx_transport()) as client:
            client.get(url)
        (limit,) = limiter.repository.get_limits("vendor", "api")
        assert (limit.refill_amount, limit.refill_period_seconds, limit.capacity) == (1_200, 60, 5)
        with SyncRateLimiter.open(store) as worker:
            untold = Provider(worker, "vendor", declared).sync_httpx_transport(httpx.MockTransport(mute))
            with httpx.Client(transport=untold) as client, pytest.raises(httpx.ReadTimeout):
                client.get(url)
            assert worker.available("vendor", "api")["requests"] <= 4
            assert worker.repository.get_limits("vendor", "api") == [limit], "it declares nothing anew"
        mock.change(40, 10)
        with httpx.Client(transport=Provider(limiter, "vendor", declared).sync_httpx_transport()) as client:
            client.get(url)
        assert limiter.repository.get_limits("vendor", "api") == declared


def test_other_limits_in_the_program_count_again(store: str) -> None:
    """Until the provider says otherwise; the same ones are not stored twice."""
    mock = MockProvider(1000, 100, tells=False)
    with mock.serving() as url, SyncRateLimiter.open(store) as limiter:
        for limits in (LIMITS, LIMITS, [Limit.per_second("requests", 30)]):
            with httpx.Client(transport=Provider(limiter, "vendor", limits).sync_httpx_transport()) as client:
                client.get(url)
        events = limiter.get_audit_events("vendor")
        assert [event.principal for event in events] == ["provider:vendor"] * 2
        assert limiter.repository.get_limits("vendor", "api") == [Limit.per_second("requests", 30)]


def test_a_refusal_makes_everybody_pause_once(store: str) -> None:
    """Of many who are refused one acts: what the bucket held is gone, and a little is owed, not a lot."""
    mock = MockProvider(1, 0.0, tells=False)  # it refuses everybody, for a second
    slow = [Limit.per_minute("requests", 600, burst=100)]

    async def work(url: str) -> dict[str, int]:
        async with RateLimiter.open(store) as limiter:
            provider = Provider(limiter, "vendor", slow)
            async with httpx.AsyncClient(transport=provider.httpx_transport()) as client:
                await asyncio.gather(*(client.get(url) for _ in range(20)))
            left = await limiter.available("vendor", "api")
            (limit,) = await limiter.repository.get_limits("vendor", "api")
            assert limit.refill_amount < 600, "it says nothing of its limits, so it is slowed"
            return left

    with mock.serving() as url:
        left = asyncio.run(work(url))
    assert set(mock.statuses()) == {429}
    # A second at ten a second, and those who were behind it; twenty who act would owe two hundred.
    assert left["requests"] >= -31


@pytest.mark.parametrize(("refusals", "within_s"), [(1, 12), (3, 18), (60, 30)])
def test_a_provider_that_says_nothing_is_tried_again_in_good_time(refusals: int, within_s: int) -> None:
    """Gently at first, near where it refused; and however often it had refused, all is sent within 30 s."""
    clock, declared = ManualClock(), Limit.per_minute("requests", 6_000)
    limiter = SyncRateLimiter(SyncRepository.over(MemoryBackend(clock.world), world=clock.world))
    pacing = Pacing(limiter._async, "vendor", "api", [declared], 60.0)

    def answer(status: int) -> int:
        lease = run_sync(pacing.admit({"requests": 1}))
        run_sync(pacing.answered(lease, ProviderAnswer(status == 429, None, ())))
        return limiter.repository.get_limits("vendor", "api")[0].refill_amount

    for _ in range(refusals):
        lowest = answer(429)
        clock.now_ms += 6_000  # so that there is something to take
    assert lowest < 0.81 * 6_000
    run_sync(pause(limiter._async.repository._scope, "vendor", "api", clock.now_ms, clock.now_ms + 200))
    clock.now_ms += 200
    rates, begun_ms = [lowest], clock.now_ms
    while rates[-1] < 6_000:
        clock.now_ms += 1_000
        rates.append(answer(200))
    assert clock.now_ms - begun_ms <= within_s * 1_000
    raises = [after - before for before, after in pairwise(rates) if after > before]
    assert raises[0] <= 0.05 * 6_000
    assert raises[:-1] == sorted(raises[:-1])


def test_who_would_wait_for_too_long_is_answered_at_once_or_told_so(store: str) -> None:
    """Without a request; clients read the answer like one of the provider's, and say what it says."""
    mock = MockProvider(1000, 100, tells=False)
    hour = [Limit.per_hour("requests", 1)]
    with mock.serving() as url, SyncRateLimiter.open(store) as limiter:
        provider = Provider(limiter, "vendor", hour, wait=0.5)
        with httpx.Client(transport=provider.sync_httpx_transport()) as client:
            assert client.get(url).status_code == 200
            refused = client.get(url)
            assert (refused.status_code, refused.headers["x-zae-limiter"]) == (429, "refused")
            assert refused.headers["x-should-retry"] == "false"
            assert 3_590 <= int(refused.headers["retry-after"]) <= 3_600
            assert refused.json()["error"]["type"] == "rate_limit_exceeded"
            assert "vendor" not in refused.text
        http_client = httpx2.Client(transport=provider.sync_httpx2_transport())
        with (
            openai.OpenAI(base_url=url, api_key="key", http_client=http_client) as sdk,
            pytest.raises(openai.RateLimitError, match=r"429 - not sent: .*exceeded for api: \[requests\]"),
        ):
            sdk.models.list()
        raising = Provider(limiter, "vendor", hour, wait=0.5, raises=True)
        with (
            httpx.Client(transport=raising.sync_httpx_transport()) as client,
            pytest.raises(RateLimitExceeded),
        ):
            client.get(url)
        with requests.Session() as session:
            session.mount("http://", provider.requests_adapter())
            assert session.get(url).headers["x-zae-limiter"] == "refused"
    assert mock.statuses() == [200]


def test_a_request_that_was_never_sent_costs_nothing(store: str) -> None:
    """One that may have been sent counts."""
    day = [Limit.per_day("requests", 10)]

    def broken(_: httpx.Request) -> httpx.Response:
        raise httpx.ReadTimeout("nobody answers")

    with SyncRateLimiter.open(store) as limiter:
        provider = Provider(limiter, "vendor", day)
        with (
            httpx.Client(transport=provider.sync_httpx_transport()) as client,
            pytest.raises(httpx.ConnectError),
        ):
            client.get("http://127.0.0.1:9")
        assert limiter.available("vendor", "api") == {"requests": 10}
        transport = provider.sync_httpx_transport(httpx.MockTransport(broken))
        with httpx.Client(transport=transport) as client, pytest.raises(httpx.ReadTimeout):
            client.get("http://127.0.0.1:9")
        assert limiter.available("vendor", "api") == {"requests": 9}


def test_what_others_use_of_the_same_account_is_taken_off(store: str) -> None:
    """A provider that has much less for us than we believe is believed."""
    headers = {"x-ratelimit-remaining-requests": "12", "x-ratelimit-limit-requests": "1000"}
    transport = httpx.MockTransport(lambda _: httpx.Response(200, headers=headers))
    with SyncRateLimiter.open(store) as limiter:
        provider = Provider(limiter, "vendor", [Limit.per_day("requests", 1_000)])
        with httpx.Client(transport=provider.sync_httpx_transport(transport)) as client:
            client.get("http://vendor.test")
        assert limiter.available("vendor", "api") == {"requests": 12}


def test_a_request_takes_what_the_program_says(store: str) -> None:
    """Of every limit, by the request itself; the provider's words may be other ones."""
    limits = [Limit.per_day("rpm", 10), Limit.per_day("tpm", 1_000)]
    headers = {"x-ratelimit-limit-tokens": "500"}
    transport = httpx.MockTransport(lambda _: httpx.Response(200, headers=headers))

    def cost(request: httpx.Request) -> dict[str, int]:
        return {"rpm": 1, "tpm": json.loads(request.content)["max_tokens"]}

    with SyncRateLimiter.open(store) as limiter:
        provider = Provider(limiter, "vendor", limits, cost=cost, names={"requests": "rpm", "tokens": "tpm"})
        with httpx.Client(transport=provider.sync_httpx_transport(transport)) as client:
            client.post("http://vendor.test", json={"max_tokens": 100})
        assert limiter.available("vendor", "api") == {"rpm": 9, "tpm": 400}


def test_an_sdk_sends_through_it(store: str) -> None:
    """The client of openai, against loopback: it waits instead of being refused."""
    answer: dict[str, Any] = {
        "id": "x", "object": "chat.completion", "created": 0, "model": "m",
        "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "hi"}}],
    }  # fmt: skip
    mock, begun = MockProvider(50, 1000, body=json.dumps(answer).encode()), time.monotonic()

    async def work(url: str) -> None:
        async with RateLimiter.open(store) as limiter:
            provider = Provider(limiter, "openai", [Limit.per_second("requests", 50, burst=3)])
            http_client = httpx2.AsyncClient(transport=provider.httpx2_transport())
            async with openai.AsyncOpenAI(api_key="k", base_url=url, http_client=http_client) as client:
                calls = [
                    client.chat.completions.create(model="m", messages=[{"role": "user", "content": "hi"}])
                    for _ in range(8)
                ]
                answers = await asyncio.gather(*calls)
        assert [one.choices[0].message.content for one in answers] == ["hi"] * 8

    with mock.serving() as url:
        asyncio.run(work(url))
    assert mock.statuses() == [200] * 8
    assert time.monotonic() - begun >= (8 - 3) / 50


def test_bad_input_is_told(store: str) -> None:
    """Before anything is sent."""
    with SyncRateLimiter.open(store) as limiter:
        with pytest.raises(ValidationError, match="pass a RateLimiter"):
            Provider("limiter", "vendor", LIMITS)  # type: ignore[arg-type]
        with pytest.raises(ValidationError, match="plain rates"):
            Provider(limiter, "vendor", [Limit.per_month("requests", 5)])
        with pytest.raises(ValidationError, match="needs a provider with a RateLimiter"):
            Provider(limiter, "vendor", LIMITS).httpx_transport()
        with pytest.raises(ValidationError, match="wait"):
            Provider(limiter, "vendor", LIMITS, wait=-1)
        for wrong, reason in (
            ({"cost": {"tokens": 1}}, "no limit is called 'tokens'; use 'requests'"),
            ({"cost": {"requests": 6}}, "no request would ever be sent: 'requests' holds 5"),
            ({"cost": {"requests": -1}}, "at least 0"),
            ({"cost": {}}, "a request takes something"),
            ({"cost": 5}, "pass amounts by limit"),
            ({"names": {"tokens": "tpm"}}, "no limit is called 'tpm'; use 'requests'"),
        ):
            with pytest.raises(ValidationError, match=reason):
                Provider(limiter, "vendor", LIMITS, **wrong)
