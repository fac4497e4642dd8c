"""A proxy in a process of its own that breaks what passes: ``python -m tests.breaking.faulty_proxy``.

Which requests it hits is chance, but the faults are dealt from a deck, so that each comes as often as the
others. Each is noted in a file by its name when it strikes, for this process is killed itself now and then.
On SIGTERM it delivers what it holds back and ends; when its standard input is closed it just ends.
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
from pathlib import Path
from typing import Any

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
BURST_SECONDS = 0.3
LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)


def answer(status: str, code: str) -> bytes:
    body = json.dumps({"__type": f"com.amazonaws.dynamodb.v20120810#{code}", "message": "said the proxy"})
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()


THROTTLED = answer("400 Bad Request", "ProvisionedThroughputExceededException")
BROKEN = answer("500 Internal Server Error", "InternalServerError")


async def message(reader: asyncio.StreamReader) -> bytes:
    """One request or answer, as it came."""
    head = await reader.readuntil(b"\r\n\r\n")
    length = LENGTH.search(head)
    return head + await reader.readexactly(int(length[1]) if length else 0)


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
        self._deck: list[str] = []
        self._burst_until = 0.0
        self._busy: set[asyncio.Task[Any]] = set()
        self._never = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One client's connection, with one of its own to the engine."""
        engine: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        task = asyncio.current_task()
        assert task is not None
        self._busy.add(task)
        try:
            while True:
                request, fault = await message(reader), self._draw()
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
                engine = engine or await asyncio.open_connection("127.0.0.1", self._engine_port)
                engine[1].write(request)
                reply = await message(engine[0])
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
