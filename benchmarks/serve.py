"""Leases under load while workers are killed: ``python -m benchmarks.serve --seconds 120``.

Clients take leases over HTTP, note what they cost, and commit, cancel or forget them. Every few seconds a
worker is killed; who has no answer sends its request again with the same key. In the end the books of the
clients are compared with the buckets: each lease has cost exactly once what its client was told. A bare
route of Starlette is asked by as many clients before that. A run in which nobody was killed, or somebody was
refused, shows nothing, and fails.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import sys
import tempfile
import time
from asyncio.subprocess import PIPE, Process
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from zae_limiter import Limit, Repository
from zae_limiter.records.leases import PLACES, due_leases

ENTITIES = 40
LEASE_SECONDS = 3
TRIES_MAX = 400
FAR_MS = 10**14


class LoadPlan(NamedTuple):
    """How much of what."""

    seconds: float = 120.0
    connections: int = 200
    workers: int = 2
    kill_every: float = 4.0
    bare_seconds: float = 5.0
    seed: int = 1


class Tally:
    """What clients were told, and how long they waited."""

    def __init__(self) -> None:
        self.cost: Counter[str] = Counter()
        self.events: Counter[str] = Counter()
        self.waits: list[float] = []

    def quantile(self, share: float) -> float:
        """In milliseconds."""
        waits = sorted(self.waits) or [0.0]
        return 1000 * waits[min(len(waits) - 1, int(share * len(waits)))]


class Connection:
    """One client's connection, which is made anew when it breaks."""

    def __init__(self, port: int, token: str, tally: Tally) -> None:
        self._port, self._token, self._tally = port, token, tally
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, path: str, said: Any, key: str) -> tuple[int, Any]:
        """Ask until there is an answer, with the same key each time."""
        body = json.dumps(said).encode()
        head = (
            f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1:{self._port}\r\nAuthorization: Bearer {self._token}\r\n"
            f"Content-Type: application/json\r\nIdempotency-Key: {key}\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        for _ in range(TRIES_MAX):
            since = time.perf_counter()
            try:
                status, told = await self._once(head.encode() + body)
            except (OSError, EOFError, asyncio.IncompleteReadError, ValueError):
                self._tally.events["broken connections"] += 1
                self.close()
                await asyncio.sleep(0.05)
                continue
            self._tally.waits.append(time.perf_counter() - since)
            if status < 500:
                return status, told
            self._tally.events[f"answers {status}"] += 1
            await asyncio.sleep(0.05)
        raise RuntimeError(f"no answer to {path} in {TRIES_MAX} tries")

    async def _once(self, request: bytes) -> tuple[int, Any]:
        if self._streams is None:
            self._streams = await asyncio.open_connection("127.0.0.1", self._port)
        reader, writer = self._streams
        writer.write(request)
        lines = (await reader.readuntil(b"\r\n\r\n")).split(b"\r\n")
        lengths = [int(line.split(b":")[1]) for line in lines if line.lower().startswith(b"content-length:")]
        body = await reader.readexactly(lengths[0])
        return int(lines[0].split()[1]), json.loads(body)

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None


async def lease_after_lease(
    connection: Connection, tally: Tally, rng: random.Random, number: int, until: float
) -> None:
    """Take leases and end them in one way or another, and keep books."""
    turn = 0
    while time.monotonic() < until:
        turn += 1
        entity, name = f"e-{rng.randrange(ENTITIES)}", f"{number}-{turn}"
        refunds = rng.random() < 0.5
        said = {
            "entity": entity,
            "resource": "api",
            "consume": {"tokens": 10},
            "lease_seconds": LEASE_SECONDS,
            "on_expiry": "refund" if refunds else "settle",
        }
        status, told = await connection.ask("/v1/acquire", said, f"take-{name}")
        if status != 200:
            tally.events[f"refusals {status}"] += 1
            continue
        tally.events["leases"] += 1
        path, way = f"/v1/leases/{told['lease']}", rng.random()
        if way < 0.1:
            tally.events["forgotten"] += 1
            tally.cost[entity] += 0 if refunds else 10
            continue
        if way < 0.4:
            status, told = await connection.ask(f"{path}/cancel", {}, f"end-{name}")
        else:
            cost = rng.randrange(25)
            status, told = await connection.ask(f"{path}/commit", {"totals": {"tokens": cost}}, f"end-{name}")
        if status == 410:
            tally.events["too late"] += 1
        elif status != 200:
            raise RuntimeError(f"{path}: {status} {told}")
        tally.cost[entity] += told["consumed"]["tokens"]
    connection.close()


async def bare_after_bare(connection: Connection, until: float) -> None:
    while time.monotonic() < until:
        await connection.ask("/bare", {"entity": "e", "consume": {"tokens": 10}}, "k")
    connection.close()


@asynccontextmanager
async def running(*words: str, env: dict[str, str] | None = None) -> Any:
    """A process that is ended afterwards."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, *words, stderr=PIPE, stdin=None, env={**os.environ, **(env or {})}
    )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            process.terminate()
        await process.wait()


async def port_of(process: Process) -> tuple[int, str]:
    """Where a server says that it listens, and its token."""
    port, token, assert_stderr = 0, "", process.stderr
    assert assert_stderr is not None
    while not port or not token:
        line = (await assert_stderr.readline()).decode()
        if not line:
            raise RuntimeError("the server has ended")
        if " at http://" in line:
            port = int(line.split(" at http://")[1].split(";")[0].rpartition(":")[2])
        if line.startswith("token: "):
            token = line.split()[1]
    return port, token


async def drained(process: Process) -> None:
    """Read on, so that it can write on."""
    assert process.stderr is not None
    while await process.stderr.readline():
        pass


def children_of(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


async def killing(pid: int, every: float, until: float, rng: random.Random, tally: Tally) -> None:
    """Kill a worker now and then."""
    while time.monotonic() + every < until:
        await asyncio.sleep(every)
        if workers := children_of(pid):
            with suppress(ProcessLookupError):
                os.kill(rng.choice(workers), signal.SIGKILL)
                tally.events["kills"] += 1


async def bare(plan: LoadPlan) -> Tally:
    """The same clients on a route that does nothing."""
    tally = Tally()
    listening = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]
    listening.close()
    await listening.wait_closed()
    words = ("-m", "uvicorn", "benchmarks.bare:app", "--port", str(port), "--workers", str(plan.workers))
    async with running(*words, "--log-level", "error"):
        for _ in range(TRIES_MAX):
            with suppress(OSError):
                (await asyncio.open_connection("127.0.0.1", port))[1].close()
                break
            await asyncio.sleep(0.05)
        until = time.monotonic() + plan.bare_seconds
        asking = [bare_after_bare(Connection(port, "t", tally), until) for _ in range(plan.connections)]
        await asyncio.gather(*asking)
    return tally


async def loaded(plan: LoadPlan, url: str) -> Tally:
    """Leases under load, and the tally of the clients."""
    rng, tally = random.Random(plan.seed), Tally()
    words = ("-m", "zae_limiter", "serve", "--store", url, "--port", "0", "--workers", str(plan.workers))
    async with running(*words) as process:
        port, token = await port_of(process)
        draining = asyncio.create_task(drained(process))
        until = time.monotonic() + plan.seconds
        clients: list[Awaitable[None]] = [
            lease_after_lease(Connection(port, token, tally), tally, random.Random(rng.random()), n, until)
            for n in range(plan.connections)
        ]
        if plan.kill_every:
            clients.append(killing(process.pid, plan.kill_every, until, rng, tally))
        await asyncio.gather(*clients)
        await settled(url)
        draining.cancel()
    return tally


async def settled(url: str) -> None:
    """Wait until no lease is held any more: what was forgotten has expired, and was found."""
    repository = await Repository.open(store=url)
    try:
        for place in range(PLACES):
            for _ in range(100_000):
                held, _ = await due_leases(repository._scope, place, FAR_MS, 1)
                if not held:
                    break
                await asyncio.sleep(0.1)
    finally:
        await repository.close()


async def compared(url: str, tally: Tally) -> dict[str, tuple[int, int]]:
    """Whose bucket has counted something else than its clients were told: both numbers."""
    repository = await Repository.open(store=url)
    wrong = {}
    try:
        for n in range(ENTITIES):
            found = await repository.get_bucket(f"e-{n}", "api")
            counted = sum(state.total_consumed_milli for state in found) // 1000
            if counted != tally.cost[f"e-{n}"]:
                wrong[f"e-{n}"] = counted, tally.cost[f"e-{n}"]
    finally:
        await repository.close()
    return wrong


async def measure(plan: LoadPlan, folder: Path, say: Callable[[str], None] = print) -> Tally:
    """All of it; raises if the books are wrong."""
    url = f"sqlite:///{folder}/limits.db"
    repository = await Repository.open(store=url)
    await repository.set_resource_defaults("api", [Limit.per_day("tokens", 10**9)])
    await repository.close()
    bare_tally = await bare(plan) if plan.bare_seconds else None
    tally = await loaded(plan, url)
    if bare_tally is not None:
        say(
            f"bare route: {len(bare_tally.waits) / plan.bare_seconds:,.0f} requests/s, "
            f"p50 {bare_tally.quantile(0.5):.1f} ms, p99 {bare_tally.quantile(0.99):.1f} ms"
        )
    say(
        f"leases: {len(tally.waits) / plan.seconds:,.0f} requests/s over {plan.connections} connections and "
        f"{plan.workers} workers, p50 {tally.quantile(0.5):.1f} ms, p99 {tally.quantile(0.99):.1f} ms"
    )
    say(", ".join(f"{name}: {count:,}" for name, count in sorted(tally.events.items())))
    if lack := lacking(plan, tally):
        raise SystemExit(lack)
    if wrong := await compared(url, tally):
        raise SystemExit(f"the books are wrong (counted, told): {wrong}")
    say(
        f"books: {sum(tally.cost.values()):,} tokens, counted by the buckets exactly as the clients were told"
    )
    return tally


def lacking(plan: LoadPlan, tally: Tally) -> str:
    """Why a run shows nothing; empty if it shows something."""
    if plan.kill_every and not tally.events["kills"]:
        return "no worker was killed"
    if refused := [name for name in tally.events if name.startswith("refusals")]:
        return f"nobody should be refused, but there were {', '.join(refused)}"
    return "" if tally.events["leases"] else "no lease was taken"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="ten seconds")
    for name, value in LoadPlan()._asdict().items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(value), default=value)
    said = vars(parser.parse_args())
    plan = LoadPlan(**(said | {"seconds": 10.0} if said.pop("quick") else said))
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(measure(plan, Path(folder)))


if __name__ == "__main__":
    main()
