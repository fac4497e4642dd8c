"""OpenTelemetry reads the same numbers when it exports, and gets a span an acquire if it is asked to."""

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from zae_limiter import Limit, RateLimiter, RateLimitExceeded, SyncRateLimiter
from zae_limiter.telemetry import Telemetry
from zae_limiter.telemetry.metrics import METRICS, MetricKind
from zae_limiter.telemetry.opentelemetry import observe

LIMITS = [Limit.per_hour("rpm", 2)]


def use(limiter: SyncRateLimiter, times: int) -> None:
    for _ in range(times):
        try:
            with limiter.acquire("key-1", "gpt-4", {"rpm": 1}, LIMITS):
                pass
        except RateLimitExceeded:
            pass


def read(reader: InMemoryMetricReader) -> dict[str, dict[tuple[tuple[str, object], ...], float]]:
    data = reader.get_metrics_data()
    found: dict[str, dict[tuple[tuple[str, object], ...], float]] = {}
    for resource in [] if data is None else data.resource_metrics:
        for scope in resource.scope_metrics:
            for metric in scope.metrics:
                points = metric.data.data_points
                found[metric.name] = {
                    tuple(sorted((point.attributes or {}).items())): point.value  # type: ignore[union-attr]
                    for point in points
                }
    return found


def test_metrics_are_read_when_they_are_exported() -> None:
    """All names are there, results have their labels, and nothing is told after the end."""
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader])
    with SyncRateLimiter.open("memory://") as limiter:
        telemetry = Telemetry(limiter)
        observe(telemetry, provider.get_meter("test"))
        use(limiter, 5)
        found = read(reader)
        results = {dict(at)["zae_limiter.result"]: n for at, n in found["zae_limiter.acquire"].items()}
        assert results == {"admitted": 2, "refused": 3}
        expected = {
            metric.name + suffix
            for metric in METRICS
            for suffix in ((".count", ".sum") if metric.kind is MetricKind.HISTOGRAM else ("",))
        }
        assert found.keys() <= expected
        assert {"zae_limiter.store.duration.count", "zae_limiter.leases.active"} <= found.keys()
        telemetry.close()
        assert "zae_limiter.acquire" not in read(reader)
    provider.shutdown()


@pytest.mark.parametrize("with_entities", [False, True])
async def test_an_acquire_has_one_span(with_entities: bool) -> None:
    """Asked for, it says what was asked and how it ended; the entity only if that is wanted."""
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    async with RateLimiter.open("memory://") as limiter:
        with Telemetry(limiter) as telemetry:
            async with limiter.acquire("key-1", "gpt-4", {"rpm": 1}, LIMITS):
                pass
            assert exporter.get_finished_spans() == ()
            telemetry.trace(provider.get_tracer("test"), with_entities=with_entities)
            for _ in range(2):
                try:
                    async with limiter.acquire("key-1", "gpt-4", {"rpm": 1}, LIMITS):
                        pass
                except RateLimitExceeded:
                    pass
        async with limiter.acquire("key-2", "gpt-4", {"rpm": 1}, LIMITS):
            pass
    one, two = exporter.get_finished_spans()
    said = [dict(span.attributes or {}) for span in (one, two)]
    assert [about["zae_limiter.result"] for about in said] == ["admitted", "refused"]
    assert said[1]["zae_limiter.limit"] == "rpm"
    assert [("zae_limiter.entity" in about) for about in said] == [with_entities] * 2
    assert {one.name, two.name} == {"zae_limiter.acquire"}
