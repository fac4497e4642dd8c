"""The embedded store: one SQLite file, shared by all processes of a machine.

``backend`` waits, ``database`` guards the one connection of a process, ``statements`` reads and writes over
it, and ``file`` opens it or says why it cannot. What a write means is for ``apply`` to say.
"""

from __future__ import annotations

from urllib.parse import parse_qsl, unquote, urlsplit

from ...exceptions import ValidationError
from ...models import check_count
from ...runtime.world import World
from .backend import TIMEOUT_MS, TIMEOUT_MS_MAX, SqliteBackend

__all__ = ["SqliteBackend", "open_backend"]


def open_backend(url: str, *, sync: bool, world: World, timeout_ms: int | None = None) -> SqliteBackend:
    """Open ``sqlite:///relative.db`` or ``sqlite:////absolute.db``, with ``?timeout_ms=`` if you like."""
    parts = urlsplit(url)
    if parts.netloc or not parts.path.startswith("/"):
        way_out = "use three slashes before a relative path, sqlite:///limits.db, and four before /"
        raise ValidationError("store", url, way_out)
    if parts.fragment:
        raise ValidationError("store", url, "write a '#' in the path as %23")
    path = unquote(parts.path[1:])
    if not path:
        raise ValidationError("store", url, "the path of the file is missing: sqlite:///limits.db")
    for name, value in parse_qsl(parts.query, keep_blank_values=True):
        if name != "timeout_ms":
            raise ValidationError("store", url, f"unknown option {name!r}; there is timeout_ms")
        if not value.isascii() or not value.isdigit() or len(value) > 20:
            raise ValidationError("timeout_ms", value, "it must be a whole number of milliseconds")
        if timeout_ms is None:
            timeout_ms = check_count("timeout_ms", int(value), TIMEOUT_MS_MAX)
    timeout_ms = TIMEOUT_MS if timeout_ms is None else timeout_ms
    return SqliteBackend(path, sync=sync, timeout_ms=timeout_ms, world=world)
