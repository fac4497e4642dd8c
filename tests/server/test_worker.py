"""Several workers as processes: each answers Envoy, too, and their numbers outlive the death of one."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
from envoy.service.ratelimit.v3.rls_pb2 import RateLimitRequest
from envoy.service.ratelimit.v3.rls_pb2_grpc import RateLimitServiceStub

from tests.engines.dynamodb_local import free_port
from tests.patience import PATIENCE_SECONDS, wait_until
from tests.server.envoy.calls import OK, whose
from tests.server.serving import Serving, serving
from tests.server.test_run import acquired
from tests.telemetry.test_exposition import samples

FAR = f"{PATIENCE_SECONDS}"


@contextmanager
def channel_to(address: str) -> Iterator[Any]:
    """A connection of its own, so that it may come to another worker."""
    options = [("grpc.use_local_subchannel_pool", 1)]
    with grpc.insecure_channel(address, options) as channel:
        grpc.channel_ready_future(channel).result(PATIENCE_SECONDS)
        yield channel


def envoy_address(server: Serving) -> str:
    (line,) = (line for line in server.told if line.startswith("Envoy asks at "))
    return line.split()[-1]


def asked(server: Serving, channel: Any) -> int:
    request = RateLimitRequest(domain="edge", descriptors=[whose("ann", limit=(100, 5))], hits_addend=1)
    metadata = [("authorization", f"Bearer {server.token}")]
    answer = RateLimitServiceStub(channel).ShouldRateLimit(
        request, metadata=metadata, timeout=PATIENCE_SECONDS
    )
    return int(answer.overall_code)


@pytest.mark.parametrize("workers", [1, 2])
def test_envoy_is_answered_by_workers(workers: int, tmp_path: Path) -> None:
    """Where the server says; and a proxy that stays connected does not hold up the end."""
    place = "127.0.0.1:0" if workers == 1 else f"127.0.0.1:{free_port()}"
    words = ("--workers", f"{workers}", "--grpc", place, "--shutdown-seconds", FAR)
    with serving(f"sqlite:///{tmp_path}/l.db?timeout_ms=60000", *words) as server:
        address = envoy_address(server)
        assert workers == 1 or address == place
        wait_until(lambda: workers == 1 or len(server.workers()) == workers)
        for _ in range(8):
            with channel_to(address) as channel:
                assert asked(server, channel) == OK
        with channel_to(address) as channel:
            assert asked(server, channel) == OK
            server.process.send_signal(signal.SIGTERM)
            assert server.process.wait(PATIENCE_SECONDS / 2) == 0


def admitted(server: Serving) -> dict[str, float]:
    """What each worker has admitted, by whichever of them is asked."""
    while True:
        try:
            answer = httpx.get(f"{server.url}/metrics", headers=server.headers, timeout=PATIENCE_SECONDS)
        except httpx.TransportError:
            continue  # it came to the one who was just killed
        found = samples(answer.raise_for_status().text)
        counts = {dict(labels)["worker"]: 0.0 for (_, labels) in found}
        for (name, labels), value in found.items():
            if name == "zae_limiter_acquire_total" and ("result", "admitted") in labels:
                counts[dict(labels)["worker"]] += value
        return counts


def test_numbers_over_a_killed_worker(tmp_path: Path) -> None:
    """Whoever is asked tells of both; those of the other one stay, and whoever comes anew begins at zero."""
    with serving(f"sqlite:///{tmp_path}/l.db?timeout_ms=60000", "--workers", "2") as server:
        wait_until(lambda: len(admitted(server)) == 2)
        for number in range(20):
            assert acquired(server, f"before {number}").status_code == 200
        wait_until(lambda: sum(admitted(server).values()) == 20)
        before = admitted(server)
        victim = server.workers()[0]
        os.kill(victim, signal.SIGKILL)
        wait_until(lambda: victim not in server.workers())
        seen = [admitted(server)]
        while len(seen[-1]) < 2:
            seen.append(admitted(server))
        (survivor,) = {place for place in before if all(place in counts for counts in seen)}
        assert [counts[survivor] for counts in seen] == [before[survivor]] * len(seen)
        for number in range(10):
            assert acquired(server, f"after {number}").status_code == 200
        wait_until(lambda: sum(admitted(server).values()) == before[survivor] + 10)
        assert admitted(server)[survivor] >= before[survivor]
