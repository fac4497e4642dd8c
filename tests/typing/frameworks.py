"""Uses the frameworks' modules as callers do. Never run: the type checker reads it."""

from collections.abc import Callable
from typing import Annotated, assert_type

from fastapi import Depends, FastAPI
from flask import Flask

from zae_limiter import Lease, Limit, RateLimiter, SyncRateLimiter
from zae_limiter.web import Answers, Rule, Rules, api_key, bearer
from zae_limiter.web import django as django_limits
from zae_limiter.web import fastapi as fastapi_limits
from zae_limiter.web import flask as flask_limits

LIMITS = [Limit.per_minute("rpm", 60)]
RULES = [Rule("/a", "api", {"rpm": 1}, entity=bearer())]
Held = Annotated[Lease, Depends(fastapi_limits.limit("gpt-4", {"rpm": 1}, entity=bearer(), wait=2))]


def use(limiter: RateLimiter, sync_limiter: SyncRateLimiter) -> None:
    limits = fastapi_limits.RouteLimits(FastAPI(), limiter=limiter, rules=RULES, answers=Answers("pr-166"))
    limits.init_app(FastAPI())
    fastapi_limits.RouteLimits(limiter=RateLimiter.open("memory://"), entity=api_key())
    flask_limits.RateLimits(Flask("a"), limiter=sync_limiter, rules=Rules.from_file("rules.yaml"))
    flask_limits.RateLimits(limiter=lambda: SyncRateLimiter.open("memory://")).init_app(Flask("b"))
    fastapi_limits.limit("gpt-4", wat=1)  # type: ignore[call-arg]


@fastapi_limits.limited("search", lambda _: {"rpm": 1}, limits=LIMITS, on_error="keep")
async def endpoint(number: int, lease: Held) -> str:
    return f"{number}{lease.consumed}"


@flask_limits.limited(lambda request: request.path, limits=LIMITS, on_unavailable="allow")
def view(number: int) -> str:
    return f"{number}"


@django_limits.limited("reports", {"rpm": 1}, usage=None)
class Reports:
    number = 1


assert_type(view(1), str)
assert_type(Reports().number, int)
same: Callable[[int, Lease], object] = endpoint
