"""Decisions for programs that are not Python, over HTTP, and a page to look at.

    zae-limiter serve --store sqlite:///limits.db

``app.application(config)`` is the whole of it as an ASGI application, and ``run.serve`` runs it with its
workers. Both need the extra ``server``; what is named here does not.
"""

from .config import ServerConfig
from .tokens import Token, TokenScope

__all__ = ["ServerConfig", "Token", "TokenScope"]
