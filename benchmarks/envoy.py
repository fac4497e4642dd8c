"""What a call of Envoy costs, beside a method of gRPC that does nothing, in the same run.

    python -m benchmarks.envoy [SECONDS]

Each server is a process of its own, with the memory store; the client is this one. Both are asked in turns,
by so many callers at once that one of the two processes is busy.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Awaitable, Callable
from multiprocessing import get_context
from typing import Any, NamedTuple

from .cases import PLENTY

CALLERS = 32
ROUNDS = 3
METHOD = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"


class Measured(NamedTuple):
    """One round: calls a second, the median and the 99th percentile, and CPU for a call."""

    calls: float
    p50_ms: float
    p99_ms: float
    server_us: float
    client_us: float


def cpu_seconds(pid: int) -> float:
    """What a process has used of the CPU so far."""
    with open(f"/proc/{pid}/stat", encoding="ascii") as stat:
        fields = stat.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def _bare(found: Any) -> None:
    import grpc

    async def nothing(data: bytes, _: Any) -> bytes:
        return data

    service, method = METHOD[1:].split("/")
    known = {method: grpc.unary_unary_rpc_method_handler(nothing)}
    server = grpc.aio.server(handlers=[grpc.method_handlers_generic_handler(service, known)])
    found.put(server.add_insecure_port("127.0.0.1:0"))
    await server.start()
    await server.wait_for_termination()


async def _answering(found: Any) -> None:
    from zae_limiter import Limit
    from zae_limiter.server import ServerConfig
    from zae_limiter.server.state import ServerState

    server = ServerState(ServerConfig(store="memory://", insecure_no_tokens=True, grpc="127.0.0.1:0"))
    async with server.running():
        await server.limiter.set_resource_defaults("edge", [Limit.per_second("requests", PLENTY)])
        found.put(server.grpc_port)
        await asyncio.Event().wait()


def _serve(serving: Callable[[Any], Awaitable[None]], found: Any) -> None:
    asyncio.run(serving(found))  # type: ignore[arg-type]


def _request(descriptors: int) -> bytes:
    from envoy.service.ratelimit.v3.rls_pb2 import RateLimitRequest

    request = RateLimitRequest(domain="edge")
    for number in range(descriptors):
        request.descriptors.add().entries.add(key="api_key", value=f"key-{number}")
    data: bytes = request.SerializeToString()
    return data


async def measured(port: int, pid: int, data: bytes, seconds: float) -> Measured:
    import grpc

    took: list[float] = []
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        call = channel.unary_unary(METHOD)
        await call(data)
        server, client, begin = cpu_seconds(pid), time.process_time(), time.perf_counter()

        async def ask() -> None:
            while (at := time.perf_counter()) < begin + seconds:
                await call(data)
                took.append(time.perf_counter() - at)

        await asyncio.gather(*[ask() for _ in range(CALLERS)])
        lasted = time.perf_counter() - begin
        server, client = cpu_seconds(pid) - server, time.process_time() - client
    took.sort()
    n = len(took)
    return Measured(
        n / lasted, took[n // 2] * 1000, took[n * 99 // 100] * 1000, server / n * 1e6, client / n * 1e6
    )


def main(seconds: float) -> None:
    spawning = get_context("spawn")
    ports: dict[str, tuple[int, int]] = {}
    processes = []
    for name, serving in (("a bare method", _bare), ("ShouldRateLimit", _answering)):
        found = spawning.Queue()
        process = spawning.Process(target=_serve, args=(serving, found), daemon=True)
        process.start()
        assert process.pid is not None
        processes.append(process)
        ports[name] = found.get(), process.pid
    cases = [("a bare method", "a bare method", 1), ("one descriptor", "ShouldRateLimit", 1)]
    cases += [("two descriptors", "ShouldRateLimit", 2)]
    best: dict[str, Measured] = {}
    for _ in range(ROUNDS):
        for case, name, descriptors in cases:
            one = asyncio.run(measured(*ports[name], _request(descriptors), seconds))
            best[case] = max(best.get(case, one), one)
    lines = ["| | calls/s | p50 | p99 | CPU of the server | CPU of the client |", "|---|--:|--:|--:|--:|--:|"]
    for case, it in best.items():
        times = f"{it.p50_ms:.1f} ms | {it.p99_ms:.1f} ms | {it.server_us:.0f} µs | {it.client_us:.0f} µs"
        lines.append(f"| {case} | {it.calls:,.0f} | {times} |")
    sys.stdout.write("\n".join(lines) + "\n")
    for process in processes:
        process.terminate()


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 2.0)
