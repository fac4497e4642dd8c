"""What is shown to Prometheus: well formed whatever names programs send, and the same in both ways."""

from collections.abc import Iterator

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from zae_limiter import Limit, RateLimitExceeded, SyncRateLimiter
from zae_limiter.telemetry import Telemetry
from zae_limiter.telemetry.cells import Cell
from zae_limiter.telemetry.prometheus import register

NAMES = ["gpt-4", "a/b:c_d.e"]
HOSTILE = ['quote"d', "back\\slash", "new\nline", "<script>", "имя", "{}", "# HELP x", "\ud800"]

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def samples(text: str) -> Samples:
    """What a parser that is not ours reads: every series once, with its value."""
    found: Samples = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            key = sample.name, tuple(sorted(sample.labels.items()))
            assert key not in found, f"{key} is there twice"
            found[key] = sample.value
    return found


@pytest.fixture
def telemetry() -> Iterator[Telemetry]:
    with SyncRateLimiter.open("memory://") as limiter, Telemetry(limiter) as it:
        limits = [Limit.per_minute("rpm", 3), Limit.per_minute("tpm", 900)]
        for resource in NAMES:
            for _ in range(5):
                try:
                    with limiter.acquire("key-1", resource, {"rpm": 1, "tpm": 100}, limits) as lease:
                        lease.adjust(tpm=-30)
                except RateLimitExceeded:
                    pass
        yield it


def test_the_text_is_read_back(telemetry: Telemetry) -> None:
    """Results, tokens and leases with their labels."""
    found = samples(telemetry.prometheus_text())
    place = (("resource", "gpt-4"), ("store", "memory"))
    labels = (("limit", "rpm"), ("resource", "gpt-4"), ("result", "refused"), ("store", "memory"))
    assert found["zae_limiter_acquire_total", labels] == 2
    assert found["zae_limiter_leases_active", place] == 0
    assert found["zae_limiter_leases_ended_total", (place[0], ("result", "settled"), place[1])] == 3
    returned = (("kind", "returned"), ("limit", "tpm"), *place)
    assert found["zae_limiter_tokens_total", returned] == 90


def test_both_ways_say_the_same(telemetry: Telemetry) -> None:
    """The collector of prometheus_client and the text of our own."""
    registry = CollectorRegistry()
    register(telemetry, registry)
    theirs = samples(generate_latest(registry).decode())
    ours = samples(telemetry.prometheus_text())
    assert {key for key in theirs if "store_duration" not in key[0]} == {
        key for key in ours if "store_duration" not in key[0]
    }
    calls = ("zae_limiter_config_cache", "zae_limiter_store")
    assert {k: v for k, v in theirs.items() if not k[0].startswith(calls)} == {
        k: v for k, v in ours.items() if not k[0].startswith(calls)
    }


def test_a_registry_forgets_what_is_closed() -> None:
    """Nobody is asked after that."""
    registry = CollectorRegistry()
    with SyncRateLimiter.open("memory://") as limiter:
        telemetry = Telemetry(limiter)
        register(telemetry, registry)
        assert b"zae_limiter_queued" in generate_latest(registry)
        telemetry.close()
        assert generate_latest(registry) == b""


@pytest.mark.parametrize("name", HOSTILE)
def test_a_name_stays_within_its_quotes(name: str, telemetry: Telemetry) -> None:
    """Whatever stands in it, it is one value of one label."""
    cell = Cell()
    cell.admitted = 7
    telemetry.observer.cells[name] = cell
    telemetry.observer.cells.add(name, cell.refused, name, 1)
    found = samples(telemetry.prometheus_text())
    shown = name.encode("utf-8", "replace").decode()
    mine = {
        dict(labels)["limit"]: value
        for (one, labels), value in found.items()
        if one == "zae_limiter_acquire_total" and ("resource", shown) in labels
    }
    assert mine == {"": 7, shown: 1}


def test_bins_are_cumulative(telemetry: Telemetry) -> None:
    """Each holds those below it, the last holds all, and the sum is in seconds."""
    cell = telemetry.observer.cells["gpt-4"]
    for wait_ms in (1, 7, 7, 100_000):
        cell.waits.add(wait_ms)
    found = samples(telemetry.prometheus_text())
    name, place = "zae_limiter_wait_duration_seconds", {"resource": "gpt-4", "store": "memory"}
    bins = {
        dict(labels)["le"]: value
        for (one, labels), value in found.items()
        if one == f"{name}_bucket" and place.items() <= dict(labels).items()
    }
    assert (bins["0.005"], bins["0.01"], bins["60.0"], bins["+Inf"]) == (1, 3, 3, 4)
    assert found[f"{name}_sum", tuple(sorted(place.items()))] == pytest.approx(100.015)
    assert list(bins.values()) == sorted(bins.values())
