"""Carrying what is asked to a server: one request for all who travel together, sent until there is an answer.

This is the only place that sends again. A write is sent again if it surely was not carried out: nobody took
the connection, the server has yet to learn the script, or it said "not now" or "not here". A write whose
reply was lost is ``ambiguous`` and sent once. Every reply tells the server's time and how often limits were
changed.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncGenerator, Sequence
from importlib.resources import files
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

from ...exceptions import RateLimiterUnavailable
from ...runtime.colour import ForkSafe
from ...runtime.world import World
from ..convoy import Convoy
from ..pool import Pool
from .address import RedisAddress
from .requests import Question
from .resp import Refused, Reply, bulk, command
from .servers import RedisConnection, Servers
from .trouble import RedisTrouble, not_sent, trouble_of, unreadable

if TYPE_CHECKING:
    from .servers import Network

ATTEMPTS_MAX = 64
PAUSE_MIN_MS, PAUSE_MAX_MS = 5, 100
LEFT_SHARE_MIN = 0.1
"""A request with less than this of the call's time left would be cut off, and then nobody knows."""
WEIGHT_MAX = 64
WAYS = 2
CONVOYS_MAX = 1_000

SCRIPT = (files(__package__) / "script.lua").read_bytes()
_SHA = hashlib.sha1(SCRIPT).hexdigest().encode()
_BY_SHA = bulk(b"EVALSHA") + bulk(_SHA)
_BY_TEXT = bulk(b"EVAL") + bulk(SCRIPT)


class RedisOptions(NamedTuple):
    root: str
    """What every key begins with, up to the name of its namespace."""
    timeout_ms: int = 2_000
    pool: int = 10
    wait_replicas: int = 0
    tls: bool = False


class RedisRide(NamedTuple):
    """What one call asks, and by when it must have its answers."""

    asked: Sequence[Question]
    tag: bytes
    until_ms: float


class _Home:
    """What cannot leave its event loop, or its process."""

    def __init__(self) -> None:
        self.pools: dict[RedisAddress, Pool[RedisConnection]] = {}
        self.convoys: dict[tuple[bytes, bool], Convoy[RedisRide, list[Any] | RateLimiterUnavailable]] = {}
        self.guard: AsyncGenerator[None, None] | None = None


class Carrier:
    """The way to the servers of one store, for one colour."""

    def __init__(self, network: Network, servers: Servers, options: RedisOptions, world: World) -> None:
        self.network = network
        self.servers = servers
        self.options = options
        self.world = world
        self._root = bulk(options.root.encode())
        self._homes = ForkSafe(_Home, network.colour.home, _bury)
        self._is_sync = network.guarded is None
        self._heard: dict[bytes, bytes] = {}
        self.news: int = 0
        """Another number after each reply that told of changed limits."""

    def deadline(self) -> float:
        return self.world.ticks_ms() + self.options.timeout_ms

    async def ask(self, asked: Sequence[Question], tag: bytes, *, is_write: bool) -> list[Any]:
        """The answers of the script, one for each that was asked, or ``RateLimiterUnavailable``."""
        ride = RedisRide(asked, tag, self.deadline())
        if self._is_sync:
            (answer,) = await self._carry([ride], is_write)
        else:
            answer = await self._convoy(tag, is_write).ride(ride, len(asked))
        if isinstance(answer, RateLimiterUnavailable):
            raise answer
        return answer

    async def say(self, tag: bytes, *words: bytes | str) -> Reply:
        """The reply to a plain command that does no harm if it arrives twice; it may be a refusal."""
        until_ms = self.deadline()

        async def once() -> Reply:
            return (await self._exchange(command(*words), 1, tag, until_ms))[0]

        reply: Reply = await self._repeat(once, until_ms, is_write=False)
        return reply

    async def close(self) -> None:
        for home in self._homes.forget_all():
            for pool in home.pools.values():
                for connection in pool.close():
                    if home.guard is not None:
                        await connection.closed()

    # Rides.

    def _convoy(self, tag: bytes, is_write: bool) -> Convoy[RedisRide, list[Any] | RateLimiterUnavailable]:
        """Who travels together: all, but on a cluster only those to one slot. Reads travel apart."""
        home = self._homes.get()
        route = (tag if self.servers.is_cluster else b"", is_write)
        convoy = home.convoys.get(route)
        if convoy is None:
            if len(home.convoys) >= CONVOYS_MAX:
                home.convoys = {route: it for route, it in home.convoys.items() if not it.is_idle}

            async def send(rides: Sequence[RedisRide]) -> list[list[Any] | RateLimiterUnavailable]:
                return await self._carry(rides, is_write)

            def refuse(ride: RedisRide) -> RateLimiterUnavailable | None:
                if ride.until_ms > self.world.ticks_ms() + self.options.timeout_ms * LEFT_SHARE_MIN:
                    return None
                late = not_sent("what came before it took all the time")
                return late.as_failure(str(self.servers), is_write=is_write)

            convoy = home.convoys[route] = Convoy(send, WAYS, WEIGHT_MAX, refuse)
        return convoy

    async def _carry(
        self, rides: Sequence[RedisRide], is_write: bool
    ) -> list[list[Any] | RateLimiterUnavailable]:
        """The answers to each ride, or why it has none."""
        try:
            answers = iter(await self._run(rides, is_write))
        except RedisTrouble as trouble:
            return [trouble.as_failure(str(self.servers), is_write=is_write) for _ in rides]
        return [list(islice(answers, len(ride.asked))) for ride in rides]

    async def _run(self, rides: Sequence[RedisRide], is_write: bool) -> list[Any]:
        """The answers of the script to all that is asked."""
        asked = [one for ride in rides for one in ride.asked]
        until_ms, tag = min([ride.until_ms for ride in rides]), rides[0].tag
        keys, counts, arguments, lengths = zip(*asked, strict=True)
        length = 5 + sum(counts) + sum(lengths)
        now = bulk(b"%d" % self.world.now_ms())
        rest = b"".join((bulk(b"%d" % sum(counts)), *keys, now, self._root, *arguments))
        by = _BY_SHA

        async def once() -> Any:
            nonlocal by
            reply = await self._write_out(b"*%d\r\n%b%b" % (length, by, rest), tag, until_ms, is_write)
            if isinstance(reply, Refused) and reply.code == "NOSCRIPT":
                by = _BY_TEXT
                reply = await self._write_out(b"*%d\r\n%b%b" % (length, by, rest), tag, until_ms, is_write)
            if isinstance(reply, Refused):
                raise trouble_of(reply)
            return reply

        reply = await self._repeat(once, until_ms, is_write=is_write)
        try:
            _, _, news, answers = reply
            self._hear(news)
            if len(answers) != len(asked):
                raise ValueError(f"{len(answers)} answers to {len(asked)} questions")
            return list(answers)
        except (TypeError, ValueError) as error:
            raise unreadable(error) from error

    async def _write_out(self, request: bytes, tag: bytes, until_ms: float, is_write: bool) -> Reply:
        count, replicas = 1, self.options.wait_replicas if is_write else 0
        if replicas:
            left_ms = max(1, int(until_ms - self.world.ticks_ms()) // 2)
            request += command("WAIT", str(replicas), str(left_ms))
            count = 2
        sent_ms = self.world.ticks_ms()
        reply, *confirmed = await self._exchange(request, count, tag, until_ms)
        if isinstance(reply, list):
            self._observe(reply, sent_ms)
            if replicas and (not isinstance(confirmed[0], int) or confirmed[0] < replicas):
                raise RedisTrouble(
                    f"it wrote, but only {confirmed[0]!r} of {replicas} replicas confirmed it in time",
                    ambiguous=True,
                )
        return reply

    def _observe(self, reply: list[Any], sent_ms: float) -> None:
        """Tell the world the time at which the server ran the script."""
        try:
            at_ms = int(reply[0]) * 1000 + int(reply[1]) / 1000
        except (TypeError, ValueError, OverflowError, IndexError) as error:
            raise unreadable(error) from error
        self.world.observe(at_ms, at_ms, sent_ms, self.world.ticks_ms())

    def _hear(self, news: Sequence[bytes]) -> None:
        for tag, count in zip(news[::2], news[1::2], strict=True):
            if self._heard.get(tag) != count:
                if tag in self._heard:
                    self.news += 1
                elif len(self._heard) >= 100_000:
                    self._heard.clear()  # of namespaces that come again we hear when they change again
                self._heard[tag] = count

    # Attempts.

    async def _exchange(self, request: bytes, count: int, tag: bytes, until_ms: float) -> list[Reply]:
        """Send to the server that has the keys, or to the one that it sends us to."""
        address, asking = await self.servers.locate(self.network, tag, until_ms), False
        for _ in range(5):
            pool = self._pool(address)
            connection = await pool.take(until_ms)
            try:
                sent = command("ASKING") + request if asking else request
                replies = await connection.exchange(sent, count + asking, until_ms)
            except BaseException:
                pool.drop(connection)
                raise
            pool.give(connection, self.world.ticks_ms())
            reply = replies[int(asking)]
            if not isinstance(reply, Refused) or reply.code not in ("MOVED", "ASK"):
                return replies[int(asking) :]
            if asking and isinstance(refused := replies[0], Refused):
                raise trouble_of(refused)  # and not for what we asked, which we would carry round and round
            address, asking = self.servers.moved(reply, address), reply.code == "ASK"
        raise RedisTrouble("the nodes of the cluster send us round and round", transient=True, elsewhere=True)

    async def _repeat(self, once: Any, until_ms: float, *, is_write: bool) -> Any:
        attempt = 0
        while True:
            try:
                return await once()
            except RedisTrouble as trouble:
                if trouble.elsewhere:
                    self.servers.forget()
                attempt += 1
                again = trouble.transient or (trouble.ambiguous and not is_write)
                if not again or not await self._pause(attempt, until_ms):
                    raise

    async def _pause(self, attempt: int, until_ms: float) -> bool:
        """Wait a little longer after each attempt; false when there is no time for another one."""
        longest_ms = min(PAUSE_MAX_MS, PAUSE_MIN_MS * 2 ** min(attempt, 10))
        pause_ms = self.world.random.uniform(longest_ms / 2, longest_ms)
        left_ms = until_ms - self.world.ticks_ms() - pause_ms
        if attempt >= ATTEMPTS_MAX or left_ms < self.options.timeout_ms * LEFT_SHARE_MIN:
            return False
        await self.network.colour.sleep(pause_ms / 1000)
        return True

    def _pool(self, address: RedisAddress) -> Pool[RedisConnection]:
        home = self._homes.get()
        if home.guard is None and self.network.guarded is not None:
            home.guard = self.network.guarded(lambda: _shut(home))
        pool = home.pools.get(address)
        if pool is None:

            async def connect(until_ms: float) -> Any:
                return await self.servers.connect(self.network, address, until_ms)

            made: Pool[RedisConnection] = Pool(
                connect, self.options.pool, self.network.colour.signal, self.world.ticks_ms, not_sent
            )
            pool = home.pools.setdefault(address, made)
        return pool


async def _shut(home: _Home) -> None:
    """Close the connections of a loop that ends, and wait until nothing is left of them."""
    for pool in home.pools.values():
        for connection in pool.close():
            await connection.closed()


def _bury(home: _Home) -> None:
    for pool in home.pools.values():
        pool.close()
