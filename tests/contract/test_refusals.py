"""A refusal has a form for whoever asked and a form for logs; the first one tells nothing of others."""

import json
import pickle
from typing import Any

import pytest

from tests.records.store import Store
from zae_limiter import Limit, LimitStatus, RateLimiter, RateLimitExceeded

SECRETS = ("sk-secret-key", "org-secret", "777")
"""The id of who asked, often an API key; the parent's id; the parent's capacity."""

OWN = {"resource", "limit_name", "capacity", "refill_amount", "refill_period_seconds"}
OWN |= {"available", "requested", "exceeded", "retry_after_seconds"}
OWN |= {"kind", "window_seconds", "remaining", "reset_after_seconds", "next_after_seconds", "reset_at_ms"}


def limit(name: str, capacity: int) -> Limit:
    return Limit.per_hour(name, capacity)


async def family(store: Store, own: list[Limit] | None = None) -> RateLimiter:
    """A key whose parent holds 777 of tpm an hour."""
    repository = await store.repository()
    await repository.create_entity("org-secret")
    await repository.create_entity("sk-secret-key", parent_id="org-secret", cascade=True)
    await repository.set_limits("org-secret", [limit("tpm", 777)], "gpt-4")
    if own:
        await repository.set_limits("sk-secret-key", own, "gpt-4")
    return RateLimiter(repository)


async def refused(limiter: RateLimiter, **amounts: int) -> RateLimitExceeded:
    with pytest.raises(RateLimitExceeded) as told:
        async with limiter.acquire("sk-secret-key", "gpt-4", amounts):
            pass
    return told.value


def shown(error: RateLimitExceeded) -> dict[str, Any]:
    """The public form, as an HTTP body would carry it."""
    text = json.dumps(error.public_dict(), allow_nan=False)
    assert [secret for secret in SECRETS if secret in text] == []
    body: dict[str, Any] = json.loads(text)
    return body


async def test_a_refusal_by_ones_own_limit(store: Store) -> None:
    """Whoever asked is told all of their own limits, and nothing of the parent's that would have admitted."""
    limiter = await family(store, [limit("rpm", 2), limit("tpm", 500)])
    error = await refused(limiter, rpm=1, tpm=501)
    body = shown(error)
    assert [(one["limit_name"], one["capacity"], one["exceeded"]) for one in body["limits"]] == [
        ("rpm", 2, False),
        ("tpm", 500, True),
    ]
    assert all(set(one) == OWN for one in body["limits"])
    assert body["error"] == "rate_limit_exceeded"
    assert body["retry_after_seconds"] is None
    assert body["message"] == (
        "Rate limit exceeded for gpt-4: [tpm]. It can never pass: 501 of 'tpm' requested, its capacity is 500"
    )


async def test_a_refusal_by_the_parents_limit(store: Store) -> None:
    """The name and the wait, whichever way the refusal comes about: neither who it is nor what is left."""
    limiter = await family(store, [limit("rpm", 10), limit("tpm", 700)])
    for entity_id in ("org-secret",):
        async with limiter.acquire(entity_id, "gpt-4", {"tpm": 400}):
            pass
    for _ in range(3):  # first asked of the store, then remembered
        error = await refused(limiter, rpm=1, tpm=500)
        body = shown(error)
        others = [one for one in body["limits"] if "capacity" not in one]
        assert [(one["limit_name"], one["requested"], one["exceeded"]) for one in others] == [
            ("tpm", 500, True)
        ]
        assert set(others[0]) == {"resource", "limit_name", "requested", "exceeded", "retry_after_seconds"}
        assert body["retry_after_seconds"] == error.retry_after_seconds > 0
        assert body["message"].startswith("Rate limit exceeded for gpt-4: [tpm]. Retry after ")
        assert {one["entity_id"] for one in error.as_dict()["limits"]} == {"sk-secret-key", "org-secret"}


async def test_what_only_the_parent_has_and_can_never_give(store: Store) -> None:
    """The message does not tell how much that would be."""
    body = shown(await refused(await family(store), tpm=778))
    assert body["message"] == (
        "Rate limit exceeded for gpt-4: [tpm]. It can never pass: 778 of 'tpm' requested, "
        "which is more than it holds"
    )
    assert [set(one) & {"capacity", "available", "entity_id"} for one in body["limits"]] == [set()]


async def test_a_lease_that_consumes_more_is_refused_the_same_way(store: Store) -> None:
    """The second debit of a lease knows who asks as well."""
    limiter = await family(store, [limit("tpm", 700)])
    async with limiter.acquire("sk-secret-key", "gpt-4", {"tpm": 1}) as lease:
        with pytest.raises(RateLimitExceeded) as told:
            await lease.consume(tpm=700)
        assert told.value.entity_id == "sk-secret-key"
        assert "capacity" in shown(told.value)["limits"][0]


def test_a_refusal_of_nobody_in_particular_tells_the_least() -> None:
    """Without an entity every limit is somebody else's; and the copy of a refusal knows who asked."""
    status = LimitStatus("sk-secret-key", "gpt-4", "tpm", limit("tpm", 777), 5, 9, True, 12.3)
    unknown, known = RateLimitExceeded([status]), RateLimitExceeded([status], "sk-secret-key")
    assert "capacity" not in unknown.public_dict()["limits"][0]
    again = pickle.loads(pickle.dumps(known))
    assert again.public_dict() == known.public_dict()
    assert again.public_dict()["limits"][0]["capacity"] == 777
