"""A provider of our own that limits us: a token bucket behind real HTTP, whose limit can be changed."""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class MockProvider:
    """Allows so many requests a second, with a burst, and tells so in its headers if it ``tells``."""

    rate: float
    burst: float
    tells: bool = True
    answers: list[tuple[float, int]] = field(default_factory=list)
    """When each request came, and what it was answered."""
    asked: list[tuple[bytes, int]] = field(default_factory=list)
    """What each request had in its body, and what it was answered."""
    body: bytes = b"{}"
    lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self._tokens, self._at = self.burst, time.monotonic()

    def change(self, rate: float, burst: float) -> None:
        with self.lock:
            self._refill()
            self.rate, self.burst = rate, burst

    def statuses(self) -> list[int]:
        return [status for _, status in self.answers]

    def _refill(self) -> None:
        now = time.monotonic()
        gained = (now - self._at) * self.rate
        self._tokens, self._at = min(self.burst, self._tokens + gained), now

    def answer(self) -> tuple[int, dict[str, str]]:
        self._refill()
        headers = {}
        status = 200 if self._tokens >= 1 else 429
        if status == 200:
            self._tokens -= 1
        else:
            headers["retry-after-ms"] = str(math.ceil((1 - self._tokens) / self.rate * 1000))
        if self.tells:
            headers["x-ratelimit-limit-requests"] = str(round(self.rate * 60))  # of a minute, as OpenAI does
            headers["x-ratelimit-remaining-requests"] = str(max(0, math.floor(self._tokens)))
        self.answers.append((time.monotonic(), status))
        return status, headers

    @contextlib.contextmanager
    def serving(self) -> Iterator[str]:
        """Serve on loopback, in a thread of its own; the address."""
        provider = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                asked = self.rfile.read(int(self.headers.get("content-length", 0)))
                with provider.lock:
                    status, headers = provider.answer()
                    provider.asked.append((asked, status))
                body = provider.body if status == 200 else b'{"error": {"message": "slow down"}}'
                self.send_response(status)
                for name, value in {**headers, "content-type": "application/json"}.items():
                    self.send_header(name, value)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            do_POST = do_GET

            def log_message(self, *_: object) -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}/v1"
        finally:
            server.shutdown()
            server.server_close()
            thread.join()
