"""Signature Version 4 for the one kind of request that is sent: a POST of JSON to the root of a host. Pure.

The signing key is kept for a day. Whatever is hashed before the body's own hash is kept for a second, as
hashes that have already read it: to sign is to copy them and let them read the rest, which takes half the
time of starting them anew. What comes out is byte for byte what botocore's own signer makes.
"""

from __future__ import annotations

import re
from hashlib import sha256
from hmac import digest
from time import gmtime, strftime
from typing import Any, NamedTuple

SERVICE = "dynamodb"
ALGORITHM = "AWS4-HMAC-SHA256"

BLOCK_BYTES = 64
INNER, OUTER = (bytes(byte ^ pad for byte in range(256)) for pad in (0x36, 0x5C))
"""What RFC 2104 makes of each byte of a key before its text and before its digest are hashed."""

SENDABLE = re.compile(r"[!-~]+")
"""What a key or a token may consist of: anything else would end its header, or arrive as something else."""


_fresh = sha256()


class _Frame(NamedTuple):
    """What surrounds a body in one second: hashes that wait for their last piece (two of an HMAC), a head."""

    canonical: Any
    inner: Any
    outer: Any
    head: bytes


class Signer:
    """Makes complete requests to one host in the name of one caller. Safe for threads.

    ``credentials`` are botocore's, frozen.
    """

    def __init__(self, credentials: Any, region: str, host: str, user_agent: str) -> None:
        sent = credentials.access_key, credentials.token or "none"
        if not all(map(SENDABLE.fullmatch, sent)):
            # It is not shown: a token with a line break in it is still a token.
            raise ValueError("the access key or session token has characters that no header can carry")
        self._credentials = credentials
        self._region, self._host, self._user_agent = region, host, user_agent
        self._key_of_day = ("", b"")
        # Replaced as a whole when the second changes, so that no thread sees parts of two.
        self._frames: tuple[int, dict[str, _Frame]] = (-1, {})

    def request(self, operation: str, body: bytes, at_s: int) -> bytes:
        """The bytes to send: head, signature and body."""
        second, frames = self._frames
        if second != at_s:
            second, frames = self._frames = at_s, {}
        frame = frames.get(operation)
        if frame is None:
            frame = frames[operation] = self._frame(operation, at_s)
        hashed = _fresh.copy()
        hashed.update(body)
        canonical = frame.canonical.copy()
        canonical.update(hashed.hexdigest().encode())
        inner = frame.inner.copy()
        inner.update(canonical.hexdigest().encode())
        outer = frame.outer.copy()
        outer.update(inner.digest())
        signature = outer.hexdigest().encode()
        return b"%b%b\r\ncontent-length: %d\r\n\r\n%b" % (frame.head, signature, len(body), body)

    def _frame(self, operation: str, at_s: int) -> _Frame:
        moment = strftime("%Y%m%dT%H%M%SZ", gmtime(at_s))
        scope = f"{moment[:8]}/{self._region}/{SERVICE}/aws4_request"
        signed = {"content-type": "application/x-amz-json-1.0", "host": self._host, "x-amz-date": moment}
        if self._credentials.token:
            signed["x-amz-security-token"] = self._credentials.token
        signed["x-amz-target"] = f"DynamoDB_20120810.{operation}"
        names = ";".join(signed)
        lines = "".join(f"{name}:{value}\n" for name, value in signed.items())
        sent = {
            **signed,
            "accept-encoding": "identity",
            "user-agent": self._user_agent,
            "authorization": f"{ALGORITHM} Credential={self._credentials.access_key}/{scope}, "
            f"SignedHeaders={names}, Signature=",
        }
        head = "\r\n".join(("POST / HTTP/1.1", *(f"{name}: {value}" for name, value in sent.items())))
        key = self._signing_key(moment[:8]).ljust(BLOCK_BYTES, b"\0")
        return _Frame(
            sha256(f"POST\n/\n\n{lines}\n{names}\n".encode()),
            sha256(key.translate(INNER) + f"{ALGORITHM}\n{moment}\n{scope}\n".encode()),
            sha256(key.translate(OUTER)),
            head.encode(),
        )

    def _signing_key(self, day: str) -> bytes:
        known, key = self._key_of_day
        if known != day:
            key = f"AWS4{self._credentials.secret_key}".encode()
            for part in (day, self._region, SERVICE, "aws4_request"):
                key = digest(key, part.encode(), "sha256")
            self._key_of_day = (day, key)
        return key
