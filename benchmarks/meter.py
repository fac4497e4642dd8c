"""A proxy before the engine that keeps the bill: requests and capacity units, for whoever talks through it.

It asks the engine to report the capacity of every request and passes the replies on unchanged. It is used
in passes of its own, never while a clock is looked at, and it is the same for every contestant.

The engine bills nothing for some things that AWS bills, and those are added: a refused conditional write
(one write unit), a cancelled transaction (two for each of its writes) and keys of a batch that are not
there (half a read unit each, one if the read is strongly consistent).
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any
from urllib.parse import urlsplit

READS = frozenset({"GetItem", "BatchGetItem", "Query", "Scan", "TransactGetItems"})
WRITES = frozenset({"PutItem", "UpdateItem", "DeleteItem", "TransactWriteItems", "BatchWriteItem"})
BILLED = READS | WRITES


def bill(operation: str, request: dict[str, Any], status: int, reply: dict[str, Any]) -> tuple[float, float]:
    """Read and write units of one request as AWS would bill them."""
    if status != 200:
        code = str(reply.get("__type", "")).rpartition("#")[2]
        if code == "ConditionalCheckFailedException":
            return 0.0, 1.0
        if code == "TransactionCanceledException":
            return 0.0, 2.0 * len(request["TransactItems"])
        return 0.0, 0.0
    bills = reply.get("ConsumedCapacity", [])
    units = sum(one["CapacityUnits"] for one in (bills if isinstance(bills, list) else [bills]))
    if operation == "BatchGetItem":
        units += missing_units(request, reply)
    return (units, 0.0) if operation in READS else (0.0, units)


def missing_units(request: dict[str, Any], reply: dict[str, Any]) -> float:
    units = 0.0
    for table, asked in request["RequestItems"].items():
        unread = reply.get("UnprocessedKeys", {}).get(table, {}).get("Keys", [])
        missing = len(asked["Keys"]) - len(reply["Responses"].get(table, [])) - len(unread)
        units += missing * (1.0 if asked.get("ConsistentRead") else 0.5)
    return units


class Meter:
    """What went through since the last ``reset``."""

    def __init__(self, engine: str) -> None:
        parts = urlsplit(engine)
        self._engine = (parts.hostname or "", parts.port or 80)
        self._lock = threading.Lock()
        self._ready = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self.reset()

    def reset(self) -> None:
        with self._lock:
            self.requests: Counter[str] = Counter()
            self.read_units = self.write_units = 0.0

    def reading(self) -> dict[str, Any]:
        with self._lock:
            return {
                "requests": dict(sorted(self.requests.items())),
                "calls": self.requests.total(),
                "rcu": self.read_units,
                "wcu": self.write_units,
            }

    @contextmanager
    def running(self) -> Iterator[str]:
        """The address to talk to instead of the engine's."""
        self._thread.start()
        self._ready.wait()
        try:
            yield f"http://127.0.0.1:{self._port}"
        finally:
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join()

    def _serve(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._listen())

    async def _listen(self) -> None:
        self._stop = asyncio.Event()
        server = await asyncio.start_server(self._converse, "127.0.0.1", 0, backlog=256)
        self._port = server.sockets[0].getsockname()[1]
        self._ready.set()
        await self._stop.wait()
        server.close()

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        engine_reader, engine_writer = await asyncio.open_connection(*self._engine)
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head, body = await _message(reader)
                operation = _operation(head)
                asked = json.loads(body) if operation in BILLED else {}
                if operation in BILLED:
                    asked["ReturnConsumedCapacity"] = "INDEXES"
                    body = json.dumps(asked).encode()
                engine_writer.write(_with_body(head, body))
                answer_head, answer = await _message(engine_reader)
                self._note(operation, asked, answer_head, answer)
                writer.write(answer_head + answer)
                await writer.drain()
        engine_writer.close()
        writer.close()

    def _note(self, operation: str, asked: dict[str, Any], head: bytes, answer: bytes) -> None:
        status = int(head.split(b" ", 2)[1])
        rcu, wcu = bill(operation, asked, status, json.loads(answer)) if asked else (0.0, 0.0)
        with self._lock:
            self.requests[operation] += 1
            self.read_units += rcu
            self.write_units += wcu


async def _message(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    head = await reader.readuntil(b"\r\n\r\n")
    return head, await reader.readexactly(int(_field(head, b"content-length") or 0))


def _field(head: bytes, name: bytes) -> bytes | None:
    for line in head.split(b"\r\n")[1:]:
        key, _, value = line.partition(b":")
        if key.strip().lower() == name:
            return value.strip()
    return None


def _operation(head: bytes) -> str:
    """The operation of a request; some clients also ask the engine for things that it has not."""
    return (_field(head, b"x-amz-target") or b"?").decode().rpartition(".")[2]


def _with_body(head: bytes, body: bytes) -> bytes:
    lines = [line for line in head[:-4].split(b"\r\n") if not line.lower().startswith(b"content-length:")]
    return b"\r\n".join([*lines, b"Content-Length: %d" % len(body), b"", body])
