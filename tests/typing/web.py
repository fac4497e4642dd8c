"""Uses ``zae_limiter.web`` as callers do. Never run: the type checker reads it."""

from collections.abc import Iterable, Mapping
from typing import Any, assert_type

from zae_limiter import Lease, Limit, RateLimiter, RateLimitExceeded, SyncRateLimiter
from zae_limiter.web import (
    Answers,
    HttpAnswer,
    Meter,
    RateLimitMiddleware,
    Request,
    Rule,
    Rules,
    SyncRequest,
    WSGIRateLimitMiddleware,
    api_key,
    bearer,
    claim,
    client_address,
)


class Bytes:
    def __init__(self, request: Request, status: int, headers: Mapping[str, str]) -> None: ...
    def feed(self, chunk: bytes) -> None: ...
    def amounts(self) -> dict[str, int] | None: ...


async def cost(request: Request) -> dict[str, int]:
    assert_type(await request.body(), bytes)
    assert_type(request.query, dict[str, str])
    return {"tpm": (await request.json())["max_tokens"]}


def sync_cost(request: SyncRequest) -> dict[str, int]:
    return {"tpm": len(request.body())}


async def entity(request: Request) -> str | None:
    return request.headers.get("x-user")


async def app(scope: Any, receive: Any, send: Any) -> None: ...


def wsgi_app(_environ: Any, _start_response: Any) -> Iterable[bytes]:
    return []


RULES = [
    Rule("/health", exempt=True),
    Rule("/a", "api", {"rpm": 1}, entity=bearer(), methods=["GET"], wait=2, on_error="keep"),
    Rule("/b", "api", cost, entity=entity, usage=Bytes),
    Rule("/c", lambda request: request.path, sync_cost, entity=claim("sub")),
    Rule("/ws", "chat", messages=lambda _, data: {"bytes": len(data)}, entity="everybody"),
    Rule("/d", limits=[Limit.per_minute("rpm", 60)], entity=client_address(trusted=["10.0.0.0/8"])),
]


def use(limiter: RateLimiter, sync_limiter: SyncRateLimiter, lease: Lease, error: RateLimitExceeded) -> None:
    RateLimitMiddleware(app, limiter=limiter, rules=RULES, answers=Answers("pr-166", ["openai"]))
    RateLimitMiddleware(app, limiter=RateLimiter.open("memory://"), rules=Rules.from_file("rules.yaml"))
    WSGIRateLimitMiddleware(wsgi_app, limiter=sync_limiter, rules=RULES, entity=api_key())
    assert_type(Answers().of_lease(lease), list[tuple[str, str]])
    assert_type(Answers().refusal(error), HttpAnswer)
    assert_type(Answers().headers(error.public_statuses), list[tuple[str, str]])


def meter(request: Request) -> Meter:
    return Bytes(request, 200, {})
