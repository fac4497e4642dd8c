"""The store on PostgreSQL, opened by URL: ``postgresql://user@host/database?schema=zae_limiter``.

Reading order: ``layout`` with ``tables.sql`` and ``functions.sql`` (what a store is made of), ``encoding``
(what goes there and back), ``wire`` and ``trouble`` (one statement, and how it fails), ``pool``, ``calls``
(what may be repeated), ``backend`` (the verbs). ``blocking`` and ``loop`` wait, each in its colour.
"""

from __future__ import annotations

from ...runtime.world import World
from .address import parse_url
from .backend import PostgresBackend

__all__ = ["PostgresBackend", "open_backend"]


def open_backend(url: str, *, sync: bool, world: World, timeout_ms: int | None = None) -> PostgresBackend:
    """Open a store without touching it; ``setup`` does that."""
    return PostgresBackend(parse_url(url, timeout_ms), world, sync=sync)
