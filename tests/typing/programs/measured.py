"""What a limiter counts, read by a program, by Prometheus and by a log."""

import logging

from prometheus_client import CollectorRegistry, generate_latest

from zae_limiter import Limit, RateLimitExceeded, SyncRateLimiter
from zae_limiter.telemetry import EventKind, JsonFormatter, Telemetry, TelemetryEvent
from zae_limiter.telemetry.prometheus import register


def main() -> None:
    seen: list[TelemetryEvent] = []
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter())
    with SyncRateLimiter.open("memory://") as limiter, Telemetry(limiter, on_event=seen.append) as telemetry:
        limiter.set_system_defaults([Limit.per_minute("rpm", 2)])
        for _ in range(5):
            try:
                with limiter.acquire("key-1", "gpt-4", {"rpm": 1}):
                    pass
            except RateLimitExceeded:
                pass
        counted: tuple[int, int] = (telemetry.counters.admitted, telemetry.counters.refused)
        assert counted == (2, 3)
        assert [event.kind for event in seen].count(EventKind.REFUSED) == 3
        limits: tuple[str, ...] = telemetry.recent[0].limits
        assert limits == ("rpm",)
        registry = CollectorRegistry()
        register(telemetry, registry)
        text: str = telemetry.prometheus_text()
        assert "zae_limiter_acquire_total" in text
        assert b"zae_limiter_acquire_total" in generate_latest(registry)


if __name__ == "__main__":
    main()
