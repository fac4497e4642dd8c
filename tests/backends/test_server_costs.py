"""What each operation costs on Redis and PostgreSQL: requests, commands and bytes, against their pages.

Requests and bytes are what a proxy saw, commands inside the script what Redis counted of itself. Requests and
commands are compared exactly, bytes within a tenth: names and numbers have other lengths for other users.
``UPDATE_DOCS=1`` writes the tables anew.
"""

import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Awaitable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, Protocol, Self

import pytest

from tests.engines import postgres, redis_server
from tests.postgres.proxy import Proxy
from tests.postgres.schemas import lent_schema
from tests.redis.faulty_wire import FaultyWire
from tests.redis.fleet import OwnServer
from tests.stores import drive
from zae_limiter import Demand, Limit, RateLimiter, RateLimitExceeded, Repository
from zae_limiter.backends import open_backend
from zae_limiter.runtime.world import World
from zae_limiter.testing import ManualClock

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGES = {"redis": DOCS / "redis.md", "postgres": DOCS / "postgresql.md"}
BEGIN, END = "<!-- generated table -->\n", "<!-- end of generated table -->\n"
RESOURCE = "gpt-4"
LIMITS = [Limit.per_minute("rpm", 60), Limit.per_minute("tpm", 60_000)]
LIMITED = [*LIMITS, Limit.concurrent("parallel", 5, hold="1m")]
BYTES_APART = 0.1


class Bill(NamedTuple):
    requests: Counter[str]
    commands: Counter[str]
    sent: int
    received: int


class Meter(Protocol):
    """What passed a proxy, and what its server has done since it was last asked to forget."""

    port: int

    def forget(self) -> None: ...

    def bill(self) -> Bill: ...


class RedisMeter:
    """Commands are those of the script; nobody else uses the server."""

    def __init__(self, wire: FaultyWire, server: OwnServer) -> None:
        self._wire, self._server, self.port = wire, server, wire.port

    def forget(self) -> None:
        self._wire.forget()
        self._server.ask("CONFIG", "RESETSTAT")

    def bill(self) -> Bill:
        counted = self._server.ask("INFO", "commandstats")
        commands = Counter(
            {name.removeprefix("cmdstat_").upper(): stats["calls"] for name, stats in counted.items()}
        )
        requests = Counter(self._wire.commands)
        for known in (*requests, "CONFIG|RESETSTAT", "INFO", "HELLO", "CLIENT|SETINFO"):
            commands.pop(known, None)
        return Bill(requests, commands, self._wire.bytes_out, self._wire.bytes_in)


class PostgresMeter:
    """A request is a call of a function, and there is nothing else."""

    def __init__(self, proxy: Proxy) -> None:
        self._proxy, self.port = proxy, proxy.port

    def forget(self) -> None:
        for counts in (self._proxy.calls, self._proxy.bytes_sent, self._proxy.bytes_received):
            counts.clear()

    def bill(self) -> Bill:
        sent, received = self._proxy.bytes_sent.total(), self._proxy.bytes_received.total()
        return Bill(Counter(self._proxy.calls), Counter(), sent, received)


@contextmanager
def metered(kind: str) -> Iterator[tuple[Meter, str]]:
    """A store behind a meter, by its URL."""
    if kind == "postgres":
        with Proxy(postgres.SERVER.port()).running() as proxy:
            yield (
                PostgresMeter(proxy),
                postgres.url(lent_schema(), proxy.port, timeout_ms=60_000, listen="off"),
            )
        return
    folder = Path(tempfile.mkdtemp(prefix="zae-limiter-", dir="/tmp"))
    server = OwnServer(folder)
    with FaultyWire(server.port).running() as wire:
        yield RedisMeter(wire, server), redis_server.url("costs", wire.port, timeout_ms=60_000)
    server.stop()
    shutil.rmtree(folder)


class Cost(NamedTuple):
    operation: str
    requests: str
    commands: str
    sent: int
    received: int

    def row(self, kind: str) -> str:
        words = [self.operation, self.requests, *([self.commands] if kind == "redis" else [])]
        return f"| {' | '.join(words)} | {self.sent:,} | {self.received:,} |"


class Client:
    """One process that uses the store."""

    def __init__(self, repository: Repository) -> None:
        self.repository, self.limiter = repository, RateLimiter(repository)

    @classmethod
    async def open(cls, url: str, clock: ManualClock, sync: bool) -> Self:
        # Deadlines are those of a real server.
        backend = open_backend(url, sync=sync, world=World(now_ms=clock.world.now_ms))
        return cls(await Repository.over(backend, world=clock.world))

    async def take(self, entity_id: str, amount: int = 1, adjust: int = 0) -> None:
        async with self.limiter.acquire(entity_id, RESOURCE, {"rpm": amount, "tpm": 100}) as lease:
            await lease.adjust(tpm=adjust)

    async def take_all(self, demands: Sequence[Demand]) -> None:
        async with self.limiter.acquire(demands):
            pass

    async def refused(self, entity_id: str, amount: int = 61) -> None:
        with pytest.raises(RateLimitExceeded):
            await self.take(entity_id, amount)

    async def failing(self, entity_id: str) -> None:
        with pytest.raises(ZeroDivisionError):
            async with self.limiter.acquire(entity_id, RESOURCE, {"rpm": 1}):
                raise ZeroDivisionError


async def costs_of(kind: str, sync: bool) -> list[Cost]:
    """Every operation once, in the order of the page."""
    clock, found = ManualClock(seed=1), list[Cost]()
    with metered(kind) as (meter, url):

        async def cost(operation: str, work: Awaitable[object]) -> None:
            meter.forget()
            await work
            found.append(as_cost(operation, meter.bill()))

        admin = await Client.open(url, clock, sync)
        await admin.repository.set_resource_defaults(RESOURCE, LIMITS)
        await admin.repository.set_resource_defaults("seats", LIMITED)
        await admin.repository.create_entity("parent")
        await admin.repository.create_entity("child", parent_id="parent", cascade=True)
        client = await Client.open(url, clock, sync)
        await cost("first acquire of an entity", client.take("user"))
        await cost("second one, the first write of an hour", client.take("user"))
        await cost("acquire, warm", client.take("user"))
        await client.take("user", 56)
        await cost("refusal", client.refused("user"))
        await cost("refusal again within a second", client.refused("user"))
        clock.advance(60)
        await cost("acquire, when the cache has expired", client.take("user"))
        other = await Client.open(url, clock, sync)
        await cost("acquire, cold process", other.take("user"))
        await cost("acquire + adjust", other.take("user", adjust=7))
        await cost("acquire + refund", other.failing("user"))
        for _ in range(2):
            await other.take("child")
        await cost("cascade, warm", other.take("child"))
        await cost("cascade, warm, + adjust", other.take("child", adjust=7))
        demands = [Demand("user", RESOURCE, {"rpm": 1}), Demand("user", "seats", {"rpm": 1})]
        for _ in range(2):
            await other.take_all(demands)
        await cost("two resources at once, warm", other.take_all(demands))
        seated = [Demand("user", "seats", {"rpm": 1, "parallel": 1})]
        await other.take_all(seated)
        await cost("acquire with a seat, and its end", other.take_all(seated))
        await cost("available", other.limiter.available("user", RESOURCE))
        await cost("resolve_limits, cached", other.repository.resolve_limits("user", RESOURCE))
        await cost("set_limits", other.repository.set_limits("user", LIMITS, RESOURCE))
        for one in (admin, client, other):
            await one.limiter.close()
    return found


def as_cost(operation: str, bill: Bill) -> Cost:
    requests, commands = (
        ", ".join(f"{count} {name}" for name, count in sorted(counts.items()) if count)
        for counts in (bill.requests, bill.commands)
    )
    return Cost(operation, requests or "none", commands, bill.sent, bill.received)


def header_of(kind: str) -> str:
    names = ["operation", "requests", *(["commands in the script"] if kind == "redis" else [])]
    lines = [[*names, "bytes sent", "received"], ["---"] * len(names) + ["---:"] * 2]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


@pytest.mark.parametrize("sync", [True, False], ids=["sync", "async"])
@pytest.mark.parametrize("kind", PAGES)
def test_costs_are_those_of_the_page(kind: str, sync: bool) -> None:
    """A request too many, or a tenth more of bytes, fails here: by threads and by tasks."""
    costs, page = drive(sync, costs_of(kind, sync)), PAGES[kind].read_text(encoding="utf-8")
    before, begin, rest = page.partition(BEGIN)
    shown, end, after = rest.partition(END)
    assert begin, "the page has no table"
    assert end, "the table has no end"
    if os.environ.get("UPDATE_DOCS"):
        rows = "".join(f"{cost.row(kind)}\n" for cost in costs)
        PAGES[kind].write_text(before + begin + header_of(kind) + rows + end + after, encoding="utf-8")
        return
    assert shown.startswith(header_of(kind))
    rows = [line.strip("| ").split(" | ") for line in shown.splitlines()[2:]]
    assert [row[:-2] for row in rows] == [cost.row(kind).strip("| ").split(" | ")[:-2] for cost in costs]
    for row, cost in zip(rows, costs, strict=True):
        for told, measured in zip(row[-2:], (cost.sent, cost.received), strict=True):
            assert abs(int(told.replace(",", "")) - measured) <= BYTES_APART * measured, (row, cost)
