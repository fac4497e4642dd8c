"""Limits for web applications: middleware, rules by route, and what clients are told.

    app.add_middleware(RateLimitMiddleware, limiter=limiter, rules=[Rule("/v1/*", "api", {"rpm": 1}, …)])

``zae_limiter`` does not import this; it needs no framework. Frameworks have modules of their names.
"""

from .answers import Answers, Expose, HttpAnswer, RequestRefused
from .asgi import RateLimitMiddleware
from .charge import Meter, MeterFactory
from .drafts import DRAFTS, LEGACY
from .identity import Identity, api_key, bearer, claim, client_address, hashed_id
from .request import Request, SyncRequest
from .rules import Rule, Rules
from .wsgi import WSGIRateLimitMiddleware

__all__ = [
    "Answers", "DRAFTS", "Expose", "HttpAnswer", "Identity", "LEGACY", "Meter", "MeterFactory",
    "RateLimitMiddleware", "Request", "RequestRefused", "Rule", "Rules", "SyncRequest",
    "WSGIRateLimitMiddleware", "api_key", "bearer", "claim", "client_address", "hashed_id",
]  # fmt: skip
