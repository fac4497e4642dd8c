"""Limits for web applications: middleware, rules by route, and what clients are told.

    app.add_middleware(RateLimitMiddleware, limiter=limiter, rules=[Rule("/v1/*", "api", {"rpm": 1}, …)])

``zae_limiter`` does not import this; it needs no framework. Frameworks have modules of their names.
"""

from .answers import Answers, Expose, HttpAnswer, RequestRefused
from .drafts import DRAFTS, LEGACY

__all__ = ["Answers", "DRAFTS", "Expose", "HttpAnswer", "LEGACY", "RequestRefused"]
