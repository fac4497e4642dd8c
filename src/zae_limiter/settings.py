"""What a repository is opened with: the settings, checked and completed from the environment."""

from __future__ import annotations

import os
from typing import Any, TypedDict
from urllib.parse import urlencode

from .backends import default_url
from .established import way_out
from .exceptions import ValidationError
from .models import OnUnavailable, check_count
from .naming import validate_stack_name
from .records.connection import Options
from .runtime.world import World

CACHE_TTL_SECONDS_MAX = 86_400
REMEMBERED_MIN = 1_000
"""A process must not forget a bucket while it is working on it."""

DEFAULT_NAMESPACE = "default"
STORE_VARIABLE = "ZAE_LIMITER_STORE"
STACK_VARIABLE = "ZAEL_STACK"
NAMESPACE_VARIABLE = "ZAEL_NAMESPACE"


class Settings(TypedDict, total=False):
    """What may be said when a repository is opened; every one may be left out.

    ``store``: the URL of the store, such as ``sqlite:///limits.db``; else ``ZAE_LIMITER_STORE``.
    ``stack``: the DynamoDB table of this name is the store; else ``ZAEL_STACK``.
    ``region``: the AWS region of that table; a URL has its own.
    ``endpoint_url``: where its DynamoDB is, if not at AWS; a URL has its own.
    ``config_cache_ttl``: for how many seconds limits and entities are remembered, 60; 0 is not at all.
    ``bucket_ttl_multiplier``: an unused bucket is deleted after so many times of filling, 7; 0 is never.
    ``on_unavailable``: ``"block"`` or ``"allow"`` while the store is gone, if no level says; ``"block"``.
    ``audit_retention_days``: how long audit events are kept, 90; 0 is for ever.
    ``remembered_max``: how many records, buckets and plans each are kept in memory, 100,000.
    ``timeout_ms``: the deadline of a call of the store; each store has its own.
    ``session``: a boto3 or botocore session, for DynamoDB.
    ``config``: a botocore ``Config``, for DynamoDB; retries stay switched off.
    ``world``: the clock, randomness and fresh ids, for tests.
    """

    store: str | None
    stack: str | None
    region: str | None
    endpoint_url: str | None
    config_cache_ttl: float
    bucket_ttl_multiplier: int
    on_unavailable: OnUnavailable | str
    audit_retention_days: int
    remembered_max: int
    timeout_ms: int | None
    session: Any
    config: Any
    world: World | None


COUNTS = {
    "bucket_ttl_multiplier": (0, 10_000),
    "audit_retention_days": (0, 10_000),
    "remembered_max": (REMEMBERED_MIN, 10**9),
}


def client_of(settings: Settings) -> dict[str, Any]:
    """What only the client of DynamoDB understands."""
    return {name: settings[name] for name in ("session", "config") if settings.get(name)}


def settings_of(settings: Settings, *, sync: bool = False) -> tuple[str, Options, World]:
    """Settings, checked and completed: the store's URL, the options and the world."""
    if unknown := sorted(set(settings) - Settings.__annotations__.keys()):
        instead = way_out(unknown[0], f"use {', '.join(Settings.__annotations__)}", sync=sync)
        raise ValidationError("setting", unknown[0], instead)
    world = settings.get("world")
    if not isinstance(world, World | None):
        raise ValidationError("world", world, "pass a World, or leave it out")
    return store_url(settings), options_of(settings), world or World()


def options_of(settings: Settings) -> Options:
    given: dict[str, Any] = {name: value for name, value in settings.items() if name in COUNTS}
    for name, value in given.items():
        least, most = COUNTS[name]
        check_count(name, value, most, least)
    if "on_unavailable" in settings:
        given["on_unavailable"] = OnUnavailable.of(settings["on_unavailable"])
    if "config_cache_ttl" in settings:
        given["config_cache_ttl_seconds"] = ttl = settings["config_cache_ttl"]
        if isinstance(ttl, bool) or not isinstance(ttl, int | float) or not 0 <= ttl <= CACHE_TTL_SECONDS_MAX:
            rule = f"use seconds, at most {CACHE_TTL_SECONDS_MAX}; 0 disables"
            raise ValidationError("config_cache_ttl", ttl, rule)
    return Options(**given)


def store_url(settings: Settings) -> str:
    """The URL of the store that the settings and the environment ask for."""
    store, stack = settings.get("store"), settings.get("stack")
    if store is not None:
        if stack is not None:
            raise ValidationError("store", store, "give either store= or stack=, not both")
        return store
    if stack is None:
        if url := os.environ.get(STORE_VARIABLE):
            return url
        stack = os.environ.get(STACK_VARIABLE)
        if not stack:
            return default_url()
    query = urlencode({n: settings[n] for n in ("region", "endpoint_url") if settings.get(n)})
    return f"dynamodb://{validate_stack_name(stack)}{'?' if query else ''}{query}"
