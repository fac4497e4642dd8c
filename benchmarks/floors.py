"""What the machine itself allows: the same effect on the store with nothing around it.

For DynamoDB that is one signed ``UpdateItem`` after the other over one connection that is kept open, with
a body that never changes and a reply that nobody parses. For SQLite it is one prepared statement.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import socket
import sqlite3
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from .loops import Tally, sync_loop

REGION = "eu-west-1"
KEY_ID, SECRET = "bench", "bench"
SIGNED = "content-type;host;x-amz-date;x-amz-target"
CONTENT_TYPE = "application/x-amz-json-1.0"
TABLE = "bench-bare"


def hmac_sha256(key: bytes, text: str) -> bytes:
    return hmac.digest(key, text.encode(), "sha256")


class Requests:
    """Signed requests over one blocking socket."""

    def __init__(self, endpoint: str) -> None:
        parts = urlsplit(endpoint)
        self._host = parts.netloc
        self._socket = socket.create_connection((parts.hostname or "", parts.port or 80), timeout=60)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._day, self._key = "", b""

    def send(self, operation: str, body: bytes) -> bytes:
        """The body of the reply, which must be a success."""
        self._socket.sendall(self._signed(f"DynamoDB_20120810.{operation}", body))
        reply = self._received()
        while (head := reply.find(b"\r\n\r\n")) < 0:
            reply += self._received()
        begin = reply.lower().index(b"content-length:") + 15
        length = int(reply[begin : reply.index(b"\r\n", begin)])
        while len(reply) < head + 4 + length:
            reply += self._received()
        if not reply.startswith(b"HTTP/1.1 200"):
            raise RuntimeError(reply.decode(errors="replace"))
        return reply[head + 4 :]

    def close(self) -> None:
        self._socket.close()

    def _received(self) -> bytes:
        data = self._socket.recv(65_536)
        if not data:
            raise ConnectionError("the engine closed the connection")
        return data

    def _signed(self, target: str, body: bytes) -> bytes:
        now = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
        day = now[:8]
        scope = f"{day}/{REGION}/dynamodb/aws4_request"
        if day != self._day:
            key = hmac_sha256(f"AWS4{SECRET}".encode(), day)
            for part in (REGION, "dynamodb", "aws4_request"):
                key = hmac_sha256(key, part)
            self._day, self._key = day, key
        headers = f"content-type:{CONTENT_TYPE}\nhost:{self._host}\nx-amz-date:{now}\nx-amz-target:{target}\n"
        request = f"POST\n/\n\n{headers}\n{SIGNED}\n{hashlib.sha256(body).hexdigest()}"
        digest = hashlib.sha256(request.encode()).hexdigest()
        signature = hmac_sha256(self._key, f"AWS4-HMAC-SHA256\n{now}\n{scope}\n{digest}").hex()
        return (
            f"POST / HTTP/1.1\r\nHost: {self._host}\r\nContent-Type: {CONTENT_TYPE}\r\nX-Amz-Date: {now}\r\n"
            f"X-Amz-Target: {target}\r\nContent-Length: {len(body)}\r\n"
            f"Authorization: AWS4-HMAC-SHA256 Credential={KEY_ID}/{scope}, "
            f"SignedHeaders={SIGNED}, Signature={signature}\r\n\r\n"
        ).encode() + body


class BareBench:
    """One conditional addition to one item, again and again."""

    def __init__(self, endpoint: str) -> None:
        self._endpoint, self._requests = endpoint, Requests(endpoint)
        key = {"PK": {"S": "key"}, "SK": {"S": "#STATE"}}
        self._update = json.dumps(
            {
                "TableName": TABLE,
                "Key": key,
                "UpdateExpression": "ADD tk :taken, tc :counted",
                "ConditionExpression": "tk <= :most",
                "ExpressionAttributeValues": {
                    ":taken": {"N": "-1000"},
                    ":counted": {"N": "1000"},
                    ":most": {"N": "0"},
                },
            }
        ).encode()
        self._item = key | {"tk": {"N": "0"}, "tc": {"N": "0"}}

    def found(self) -> None:
        columns = [{"AttributeName": name, "AttributeType": "S"} for name in ("PK", "SK")]
        keys = [
            {"AttributeName": "PK", "KeyType": "HASH"},
            {"AttributeName": "SK", "KeyType": "RANGE"},
        ]
        table = {"AttributeDefinitions": columns, "KeySchema": keys, "BillingMode": "PAY_PER_REQUEST"}
        self._requests.send("CreateTable", json.dumps({"TableName": TABLE, **table}).encode())
        self._requests.send("PutItem", json.dumps({"TableName": TABLE, "Item": self._item}).encode())

    def prepare(self) -> None:
        """Connect late: the engine does not keep a connection that nobody uses."""
        self._requests.close()
        self._requests = Requests(self._endpoint)

    def arrange(self) -> None:
        """Nothing."""

    def round(self, seconds: float) -> dict[str, Any]:
        return sync_loop(
            lambda: self._requests.send("UpdateItem", self._update), seconds, Tally(PermissionError)
        )

    def close(self) -> None:
        self._requests.close()


def bare_update(folder: Path) -> Any:
    """One conditional update of one row in WAL; a callable."""
    database = sqlite3.connect(folder / "floor.db", isolation_level=None)
    database.execute("PRAGMA journal_mode = WAL")
    database.execute("PRAGMA synchronous = NORMAL")
    database.execute("CREATE TABLE items (key TEXT PRIMARY KEY, tokens INTEGER) WITHOUT ROWID")
    database.execute("INSERT INTO items VALUES ('key', 0)")
    update = "UPDATE items SET tokens = tokens - 1 WHERE key = 'key' AND tokens <= 1 RETURNING tokens"
    return lambda: database.execute(update).fetchone()
