"""A proxy in a process of its own that breaks what passes: ``python -m tests.breaking.faulty_proxy``.

Which requests it hits is chance, but the faults are dealt from a deck, so that each comes as often as the
others. Each is noted in a file by its name when it strikes, for this process is killed itself now and then.
On SIGTERM it delivers what it holds back and ends; when its standard input is closed it just ends.

What a request is and what belongs to its answer the proxy learns from a ``Dialect``: HTTP, Redis's protocol
or PostgreSQL's. In all of them one request of a connection is under way at a time.
"""

import argparse
import asyncio
import json
import os
import random
import re
import signal
import socket
import struct
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from zae_limiter.backends.redis.resp import _Incomplete, _parse

FAULTS = (
    "lost request",  # the connection is closed, and nothing was passed on
    "lost reply",  # it is closed after the request was carried out
    "torn reply",  # it is reset in the middle of the answer
    "late request",  # the request arrives when nobody waits for its answer any more
    "late reply",  # the answer comes after the deadline
    "half-open",  # the request is swallowed, and the connection stays
    "throttled",  # the service refuses everybody for a while
    "broken",  # the service says that something went wrong inside
)
OF_SERVERS = FAULTS[:6]
"""Those that no server has a word for; the last two are answers of DynamoDB."""
BURST_SECONDS = 0.3
LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)


def answer(status: str, code: str) -> bytes:
    body = json.dumps({"__type": f"com.amazonaws.dynamodb.v20120810#{code}", "message": "said the proxy"})
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()


ENCRYPTION = {80877103, 80877104}
"""Questions for TLS and GSSAPI, which are answered with one byte."""

THROTTLED = answer("400 Bad Request", "ProvisionedThroughputExceededException")
BROKEN = answer("500 Internal Server Error", "InternalServerError")


Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Dialect:
    """HTTP, as DynamoDB speaks it."""

    async def greet(self, client: Streams, engine: Streams) -> None:
        """Let both sides say what comes before the first request."""

    async def request(self, client: Streams, engine: Streams) -> bytes:
        """The next one; what the engine says unasked meanwhile is passed on."""
        del engine
        return await self._message(client[0])

    async def reply(self, reader: asyncio.StreamReader, request: bytes) -> bytes:
        del request
        return await self._message(reader)

    async def _message(self, reader: asyncio.StreamReader) -> bytes:
        head = await reader.readuntil(b"\r\n\r\n")
        length = LENGTH.search(head)
        return head + await reader.readexactly(int(length[1]) if length else 0)


class Resp(Dialect):
    """Redis's: a request is all commands that arrived at once, and has as many replies."""

    async def request(self, client: Streams, engine: Streams) -> bytes:
        del engine
        return await self._values(client[0], 1)

    async def reply(self, reader: asyncio.StreamReader, request: bytes) -> bytes:
        return await self._values(reader, values_in(request)[0])

    async def _values(self, reader: asyncio.StreamReader, count_min: int) -> bytes:
        data = b""
        while True:
            piece = await reader.read(2**20)
            if not piece:
                raise asyncio.IncompleteReadError(data, None)
            data += piece
            count, is_whole = values_in(data)
            if is_whole and count >= count_min:
                return data


def values_in(data: bytes) -> tuple[int, bool]:
    """How many commands or replies there are, and whether nothing of another one follows."""
    at = count = 0
    with suppress(_Incomplete):
        while at < len(data):
            _, at = _parse(data, at, 0)
            count += 1
    return count, at == len(data)


class Frontend(Dialect):
    """PostgreSQL's: messages with a letter and a length; the last of a request and of an answer are known."""

    async def greet(self, client: Streams, engine: Streams) -> None:
        while True:
            head = await client[0].readexactly(8)
            length, code = struct.unpack("!ii", head)
            engine[1].write(head + await client[0].readexactly(length - 8))
            if code not in ENCRYPTION:
                break
            client[1].write(await engine[0].readexactly(1))
        client[1].write(await self.reply(engine[0], b""))

    async def request(self, client: Streams, engine: Streams) -> bytes:
        hearing = asyncio.ensure_future(self._pass_on(engine[0], client[1]))
        try:
            return await self._until(client[0], b"SQX")
        finally:
            hearing.cancel()
            await asyncio.wait([hearing])  # nobody else may read until it is over

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """What is told to who listens; it ends with the engine, and so does the connection."""
        with suppress(OSError):
            while told := await reader.read(2**16):
                writer.write(told)
        writer.close()

    async def reply(self, reader: asyncio.StreamReader, request: bytes) -> bytes:
        return b"" if request[:1] == b"X" else await self._until(reader, b"Z")

    async def _until(self, reader: asyncio.StreamReader, last: bytes) -> bytes:
        whole = b""
        while True:
            head = await reader.readexactly(5)
            whole += head + await reader.readexactly(struct.unpack("!i", head[1:])[0] - 4)
            if head[:1] in last:
                return whole


DIALECTS: dict[str, Callable[[], Dialect]] = {"dynamodb": Dialect, "redis": Resp, "postgres": Frontend}


class FaultyProxy:
    """Who is hit next, by what, and what is still held back."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._engine_port, self._rate, self._deadline_s = (
            options.engine_port,
            options.rate,
            options.deadline_s,
        )
        self._notes = os.open(options.notes, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._rng, self._faults = random.Random(options.seed), options.faults or FAULTS
        self._dialect = DIALECTS[options.dialect]()
        self._deck: list[str] = []
        self._burst_until = 0.0
        self._busy: set[asyncio.Task[Any]] = set()
        self._never = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One client's connection, with one of its own to the engine."""
        engine: Streams | None = None
        task = asyncio.current_task()
        assert task is not None
        self._busy.add(task)
        try:
            engine = await asyncio.open_connection("127.0.0.1", self._engine_port)
            await self._dialect.greet((reader, writer), engine)
            while True:
                request = await self._dialect.request((reader, writer), engine)
                fault = self._draw()
                if fault == "lost request":
                    break
                if fault in ("throttled", "broken"):
                    writer.write(THROTTLED if fault == "throttled" else BROKEN)
                    continue
                if fault == "half-open":
                    self._busy.discard(task)
                    await self._never.wait()
                if fault == "late request":
                    await asyncio.sleep(self._deadline_s * self._rng.uniform(1.1, 1.5))
                engine[1].write(request)
                reply = await self._dialect.reply(engine[0], request)
                if fault == "lost reply":
                    break
                if fault == "torn reply":
                    self._tear(writer, reply)
                    break
                if fault == "late reply":
                    await asyncio.sleep(self._deadline_s * 1.2)
                writer.write(reply)
                await writer.drain()
        except (OSError, asyncio.IncompleteReadError):
            """One of the two has gone, and takes the other along."""
        finally:
            self._busy.discard(task)
            for it in (writer, engine[1] if engine else None):
                if it is not None:
                    it.close()

    def _draw(self) -> str | None:
        now = asyncio.get_running_loop().time()
        fault = "throttled" if now < self._burst_until else None
        if fault is None and self._rng.random() < self._rate:
            self._deck = self._deck or self._rng.sample(self._faults, len(self._faults))
            fault = self._deck.pop()
            if fault == "throttled":
                self._burst_until = now + BURST_SECONDS
        if fault is not None:
            os.write(self._notes, f"{fault}\n".encode())
        return fault

    def _tear(self, writer: asyncio.StreamWriter, reply: bytes) -> None:
        writer.write(reply[: len(reply) // 2])
        linger = struct.pack("ii", 1, 0)
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        writer.transport.abort()

    async def deliver(self) -> None:
        """Wait until nothing is on its way any more; all clients have gone."""
        if self._busy:
            await asyncio.wait(self._busy)


async def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.breaking.faulty_proxy")
    parser.add_argument("port", type=int)
    parser.add_argument("engine_port", type=int)
    parser.add_argument("notes", type=Path)
    parser.add_argument("rate", type=float)
    parser.add_argument("deadline_s", type=float)
    parser.add_argument("seed", type=int)
    parser.add_argument("dialect", choices=DIALECTS)
    parser.add_argument("faults", nargs="*", choices=FAULTS, help="which ones; all if none is named")
    options = parser.parse_args()
    proxy = FaultyProxy(options)
    loop, calm, over = asyncio.get_running_loop(), asyncio.Event(), asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, calm.set)
    loop.add_reader(sys.stdin.fileno(), over.set)
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", options.port, backlog=512)
    print("ready", flush=True)
    waiting = [asyncio.ensure_future(event.wait()) for event in (calm, over)]
    await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    server.close()
    if calm.is_set():
        await proxy.deliver()
    os._exit(0)


if __name__ == "__main__":
    asyncio.run(main())
