"""The adapter for requests: which of its failures mean that nothing was sent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import requests
from urllib3.util import Retry

from zae_limiter import Limit, SyncRateLimiter, ValidationError
from zae_limiter.outbound import Provider

DAY = [Limit.per_day("requests", 10)]
NOBODY = "http://127.0.0.1:9"


@pytest.mark.parametrize("reason", ["proxy", "closed"])
def test_what_requests_may_have_sent_counts(reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy that nobody reached got nothing; a connection that broke off may have carried it."""
    with SyncRateLimiter.open("memory://") as limiter:
        provider = Provider(limiter, "vendor", DAY)
        with requests.Session() as session:
            session.trust_env = False
            session.mount("http://", provider.requests_adapter())
            if reason == "proxy":
                session.proxies = {"http": NOBODY}
            if reason == "closed":
                closed = requests.ConnectionError("the other side has closed")
                monkeypatch.setattr(requests.adapters.HTTPAdapter, "send", _raising(closed))
            with pytest.raises(requests.ConnectionError):
                session.get("http://vendor.test" if reason == "proxy" else NOBODY)
        assert limiter.available("vendor", "api") == {"requests": 10 if reason == "proxy" else 9}


def _raising(error: Exception) -> Callable[..., Any]:
    def send(*_: Any, **__: Any) -> None:
        raise error

    return send


def test_tries_of_its_own_are_refused() -> None:
    """They would be sent without a turn, and nobody would learn what they were answered."""
    with SyncRateLimiter.open("memory://") as limiter:
        provider = Provider(limiter, "vendor", DAY)
        for retries in (1, Retry(5, status_forcelist=[429]), Retry(total=None, connect=2)):
            with pytest.raises(ValidationError, match="would have no turn"):
                provider.requests_adapter(max_retries=retries)
        assert provider.requests_adapter(max_retries=0).max_retries.total == 0


@pytest.mark.parametrize("is_streamed", [False, True])
def test_an_answer_that_nobody_sent_can_be_read_like_any_other(is_streamed: bool) -> None:
    """As a whole, in pieces, and closed; who raises it is told what it is."""
    with SyncRateLimiter.open("memory://") as limiter, requests.Session() as session:
        session.mount(
            "http://", Provider(limiter, "vendor", DAY, cost={"requests": 10}, wait=0).requests_adapter()
        )
        with limiter.acquire("vendor", "api", {"requests": 1}, limits=DAY):
            pass
        with session.get(NOBODY, stream=is_streamed) as answer:
            assert (answer.status_code, answer.headers["x-zae-limiter"]) == (429, "refused")
            assert b"rate_limit_exceeded" in b"".join(answer.iter_content(16))
        assert session.get(NOBODY, stream=is_streamed).json()["error"]["type"] == "rate_limit_exceeded"
        with pytest.raises(requests.HTTPError, match="429 Client Error: Too Many Requests for url: http"):
            session.get(NOBODY, stream=is_streamed).raise_for_status()
