"""An application for gunicorn: what it streams is paid by the byte, and it writes down how much that was."""

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.web.limits import Bytes
from zae_limiter import Limit, SyncRateLimiter
from zae_limiter.web import Rule, WSGIRateLimitMiddleware, api_key

FOLDER = Path(os.environ.get("GUNICORN_FOLDER", "."))
STORE = f"sqlite:///{FOLDER}/limits.db?timeout_ms=60000"
CHUNK = b"x" * 1000
CHUNKS_MAX = 100_000
NEVER = 10 * 366 * 86_400
LIMITS = [
    Limit("rpm", 5, 1, NEVER),
    Limit("tpm", 10**9, 1, NEVER),
    Limit.concurrent("parallel", 9, hold="1h"),
]


def application(environ: dict[str, Any], start_response: Any) -> Iterator[bytes]:
    if environ["PATH_INFO"] == "/plain":
        start_response("200 OK", [("Content-Type", "text/plain"), ("Content-Length", "2")])
        return iter([b"hi"])
    start_response("200 OK", [("Content-Type", "text/event-stream")])
    return stream(environ["PATH_INFO"].strip("/"))


def stream(name: str) -> Iterator[bytes]:
    made = 0
    try:
        while made < CHUNKS_MAX:
            made += 1
            yield CHUNK
            time.sleep(0.001)
    finally:
        unfinished = FOLDER / f"{name}.part"
        unfinished.write_text(str(made))
        unfinished.rename(FOLDER / name)


RULES = [
    Rule("/*", "api", {"rpm": 1, "tpm": 50, "parallel": 1}, entity=api_key(), limits=LIMITS, usage=Bytes)
]
app = WSGIRateLimitMiddleware(application, limiter=lambda: SyncRateLimiter.open(STORE), rules=RULES)
