"""A real server on a store with real data, as a user starts it, and programs that use the same store."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from tests.patience import PATIENCE_SECONDS, wait_until
from zae_limiter import Limit, RateLimitExceeded, SyncRateLimiter
from zae_limiter.server.tokens import token_of
from zae_limiter.telemetry import Telemetry

READER, CHANGER = "zae_" + "1" * 64, "zae_" + "2" * 64
WHERE = re.compile(r"at (http://[^;]+);")

HOSTILE = "<img src=x onerror=alert(1)>"
"""What would do harm where it is taken for markup."""


class Served(NamedTuple):
    """A server that runs, and where its store is."""

    url: str
    store: str

    def page(self, secret: str) -> str:
        return f"{self.url}/ui/#token={secret}"


@contextmanager
def serving(folder: Path, store: str, *options: str, tokens: bool = True) -> Iterator[Served]:
    """`zae-limiter serve --ui` with a token that may read and one that may change, or with none."""
    file = folder / "tokens"
    known = token_of("reader", ["read"], READER), token_of("ann", ["read", "change"], CHANGER)
    file.write_text("".join(f"{token.line}\n" for token in known), encoding="utf-8")
    access = ("--tokens", str(file)) if tokens else ("--insecure-no-tokens",)
    told = folder / "told"
    command = [sys.executable, "-m", "zae_limiter", "serve", "--store", store, "--ui"]
    with told.open("w") as output:
        server = subprocess.Popen(
            [*command, *access, *(() if "--port" in options else ("--port", "0")), *options],
            stdout=output,
            stderr=output,
            env={**os.environ, "COLUMNS": "200"},
        )
    try:
        wait_until(lambda: bool(WHERE.search(told.read_text())) or server.poll() is not None)
        found = WHERE.search(told.read_text())
        assert found is not None, told.read_text()
        yield Served(found[1], store)
    finally:
        server.terminate()
        server.wait(PATIENCE_SECONDS)


class Running:
    """A program that asks all the time, in a thread of its own, with a limiter of its own."""

    def __init__(self, store: str, entity: str, resource: str, after_s: float | None = None) -> None:
        """``after_s``: how long it waits first, after it has refused somebody else and told that."""
        self._store, self._asked, self._after_s = store, (entity, resource), after_s
        self._is_over = threading.Event()
        self.admitted = self.refused = 0
        self.first_refused_s = 0.0
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        with SyncRateLimiter.open(self._store) as limiter, Telemetry(limiter) as telemetry:
            telemetry.share()
            if self._after_s is not None:
                with suppress(RateLimitExceeded):
                    limiter.acquire("another", "api", {"calls": 2}, [Limit.per_day("calls", 1)]).open()
                self._is_over.wait(self._after_s)
            while not self._is_over.wait(0.05):
                try:
                    with limiter.acquire(*self._asked, {"calls": 1}):
                        self.admitted += 1
                except RateLimitExceeded:
                    self.refused += 1
                    self.first_refused_s = self.first_refused_s or time.monotonic()

    @classmethod
    @contextmanager
    def beside(
        cls, store: str, entity: str, resource: str, after_s: float | None = None
    ) -> Iterator[Running]:
        running = cls(store, entity, resource, after_s)
        running._thread.start()
        try:
            yield running
        finally:
            running._is_over.set()
            running._thread.join()


def furnish(limiter: SyncRateLimiter) -> None:
    """Some of everything: levels, families, debts, switches, money, hostile names."""
    limiter.set_system_defaults([Limit.per_minute("rpm", 600)])
    limiter.set_resource_defaults(
        "gpt-4", [Limit.per_minute("rpm", 60), Limit.per_minute("tpm", 100_000), MONEY]
    )
    limiter.set_resource_defaults("web-search", [Limit.per_hour("calls", 100)])
    limiter.repository.create_entity("acme")
    limiter.repository.create_entity("team-platform", parent_id="acme", cascade=True)
    limiter.repository.create_entity(
        "key-1", name="Gateway", parent_id="team-platform", cascade=True, metadata={"plan": "pro"}
    )
    limiter.set_limits(
        "key-1", [Limit.per_minute("rpm", 30), Limit.per_minute("tpm", 20_000)], resource="gpt-4"
    )
    for entity, requests in (("key-1", 9), ("key-2", 58), ("batch-nightly", 60)):
        for _ in range(requests):
            try:
                with limiter.acquire(entity, "gpt-4", {"rpm": 1, "tpm": 900}):
                    pass
            except RateLimitExceeded:
                break
    limiter.disable(resource="web-search", reason="maintenance until 15:00", principal="ops")
    with limiter.acquire("globex", "embeddings", {"rpm": 500}):
        pass


def furnish_hostile(limiter: SyncRateLimiter) -> None:
    """Names that are markup, wherever somebody else may choose a name or a text."""
    repository = limiter.repository
    repository.create_entity(f"{HOSTILE}parent", name=HOSTILE)
    repository.create_entity(
        HOSTILE, name=HOSTILE, parent_id=f"{HOSTILE}parent", cascade=True, metadata={HOSTILE: HOSTILE}
    )
    limiter.set_limits(HOSTILE, [Limit.per_minute("rpm", 2)], resource=HOSTILE, principal=HOSTILE)
    limiter.set_resource_defaults(HOSTILE, [Limit.per_minute("rpm", 2)], principal=HOSTILE)
    limiter.disable(resource=f"{HOSTILE}off", reason=HOSTILE, principal=HOSTILE)
    with limiter.acquire(HOSTILE, HOSTILE, {"rpm": 2}):
        pass


def refuse_hostile(limiter: SyncRateLimiter) -> None:
    """A process whose name is markup tells others of a refusal."""
    with Telemetry(limiter, name=HOSTILE) as telemetry:
        telemetry.share()
        with suppress(RateLimitExceeded):
            limiter.acquire(HOSTILE, HOSTILE, {"rpm": 3}).open()
        wait_until(lambda: any(one.refusals for one in limiter.repository.get_reports()), "it is not told")


MONEY = Limit.per_month("usd", 100_000_000, tz="Europe/Berlin", unit="usd_micro")
