"""Reading one HTTP/1.1 response, strictly and without any input of its own. Pure.

The server is one of DynamoDB's: it frames every answer by ``Content-Length`` or in chunks, and sends
nothing unasked. Whatever does not look like that is ``Malformed``; guessing where one answer ends would
hand its rest to the next request.
"""

from __future__ import annotations

import re
from typing import NamedTuple
from zlib import crc32

HEAD_BYTES_MAX = 16_384
BODY_BYTES_MAX = 64 << 20
"""DynamoDB answers with at most 16 MB of items, which JSON can triple."""

CHUNK_LINE_BYTES_MAX = 4_096

_BEGINNING = b"HTTP/1."
_NAME = rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+"
_TEXT = rb"[^\x00-\x08\x0a-\x1f\x7f]*"
_HEAD = re.compile(
    rb"HTTP/1\.([01]) ([2-5][0-9][0-9])(?: "
    + _TEXT
    + rb")?(\r\n(?:"
    + _NAME
    + rb":"
    + _TEXT
    + rb"\r\n)*)\r\n"
)
_FIELD = re.compile(_NAME + rb":" + _TEXT)
_CHUNK = re.compile(rb"([0-9A-Fa-f]{1,8})[ \t]*(?:;" + _TEXT + rb")?")
_LENGTH = re.compile(rb"[0-9]{1,10}")


class Malformed(ValueError):
    """The other side does not speak HTTP as expected."""


class Response(NamedTuple):
    status: int
    fields: bytes
    """The header fields in small letters, from the line break before the first to the one behind the last."""
    body: bytes
    reusable: bool
    """Whether the connection is ready for another request."""

    def field(self, name: bytes) -> bytes | None:
        return _field(self.fields, b"\r\n" + name + b":")


class Reader:
    """Takes the bytes of one response as they come, and returns the response when it is whole."""

    __slots__ = ("_body", "_chunks", "_fields", "_head", "_length", "_minor", "_status")

    def __init__(self) -> None:
        self._head = b""
        self._length = 0
        self._body: bytearray | None = None
        self._chunks: _Chunks | None = None

    def feed(self, data: bytes) -> Response | None:
        if self._body is not None:
            return self._framed(data)
        if self._chunks is not None:
            return self._chunked(data)
        if self._head:
            data = self._head + data
        # A head that comes in crumbs is not taken apart for each of them.
        match = _HEAD.match(data) if not self._head or b"\r\n\r\n" in data else None
        if match is None:
            _check_unfinished(data)
            self._head = data
            return None
        minor, status, fields = match.groups()
        self._minor, self._status, self._fields = minor, int(status), fields.lower()
        rest = data[match.end() :]
        if b"\r\ntransfer-encoding:" in self._fields:
            _check_chunked(self._minor, self._fields)
            self._chunks = _Chunks()
            return self._chunked(rest)
        text = _field(self._fields, b"\r\ncontent-length:")
        if text is None or not _LENGTH.fullmatch(text):
            raise Malformed(f"{text!r} is not the length of an answer")
        self._length = int(text)
        if len(rest) == self._length:
            return self._response(rest)
        _check_length(self._length)
        self._body = bytearray()
        return self._framed(rest)

    def _framed(self, data: bytes) -> Response | None:
        assert self._body is not None
        self._body += data
        if len(self._body) < self._length:
            return None
        return self._response(bytes(self._body[: self._length]), clean=len(self._body) == self._length)

    def _chunked(self, data: bytes) -> Response | None:
        assert self._chunks is not None
        behind = self._chunks.feed(data)
        return None if behind is None else self._response(bytes(self._chunks.body), clean=not behind)

    def _response(self, body: bytes, clean: bool = True) -> Response:
        fields = self._fields
        if b"\r\ncontent-encoding:" in fields and _field(fields, b"\r\ncontent-encoding:") != b"identity":
            raise Malformed("the answer is encoded, which was not asked for")
        checksum = _field(fields, b"\r\nx-amz-crc32:")
        if checksum is not None and checksum != b"%d" % crc32(body):
            raise Malformed(f"the answer's checksum {checksum!r} is not that of its {len(body)} bytes")
        # What stands behind an answer was not asked for, so nobody knows what it belongs to.
        last = not clean or self._minor == b"0" or b"close" in (_field(fields, b"\r\nconnection:") or b"")
        return Response(self._status, fields, body, not last)


class _Chunks:
    """A body that is sent in pieces, each with its length before it."""

    def __init__(self) -> None:
        self.body = bytearray()
        self._buffer = bytearray()
        self._left = 0
        self._ended = False

    def feed(self, data: bytes) -> bytes | None:
        """What stands behind the body, once that is whole."""
        self._buffer += data
        while True:
            if self._left:
                if len(self._buffer) < self._left + 2:
                    return None
                if self._buffer[self._left : self._left + 2] != b"\r\n":
                    raise Malformed("a chunk does not end where it said")
                self.body += self._buffer[: self._left]
                del self._buffer[: self._left + 2]
                self._left = 0
            end = self._buffer.find(b"\r\n")
            if end > CHUNK_LINE_BYTES_MAX or (end < 0 and len(self._buffer) > CHUNK_LINE_BYTES_MAX):
                raise Malformed(f"a line between chunks is longer than {CHUNK_LINE_BYTES_MAX} bytes")
            if end < 0:
                return None
            line = bytes(self._buffer[:end])
            del self._buffer[: end + 2]
            if self._ended:
                if not line:
                    return bytes(self._buffer)
                # A checksum or the like may follow; nothing is made of it.
                if not _FIELD.fullmatch(line):
                    raise Malformed(f"{line!r} is no field")
            else:
                self._begin(line)

    def _begin(self, line: bytes) -> None:
        match = _CHUNK.fullmatch(line)
        if match is None:
            raise Malformed(f"{line!r} is not the length of a chunk")
        self._left = int(match[1], 16)
        self._ended = self._left == 0
        _check_length(len(self.body) + self._left)


def _check_unfinished(data: bytes) -> None:
    """Whether this can still become the head of a response."""
    if b"\r\n\r\n" in data or not (data.startswith(_BEGINNING) or _BEGINNING.startswith(data)):
        raise Malformed(f"{data[:64]!r} is not the head of an answer")
    if len(data) > HEAD_BYTES_MAX:
        raise Malformed(f"the head is longer than {HEAD_BYTES_MAX} bytes")


def _field(fields: bytes, mark: bytes) -> bytes | None:
    """The value behind a mark, which is a line break, a name and a colon.

    Searching for the few names that matter is several times faster than taking the head apart.
    """
    at = fields.find(mark)
    if at < 0:
        return None
    if fields.find(mark, at + 2) >= 0:
        raise Malformed(f"{mark.strip()!r} is there twice")
    start = at + len(mark)
    return fields[start : fields.index(b"\r\n", start)].strip(b" \t")


def _check_length(length: int) -> None:
    if length > BODY_BYTES_MAX:
        raise Malformed(f"an answer of {length} bytes is longer than {BODY_BYTES_MAX}")


def _check_chunked(minor: bytes, fields: bytes) -> None:
    encoding = _field(fields, b"\r\ntransfer-encoding:")
    if minor == b"0" or encoding != b"chunked" or _field(fields, b"\r\ncontent-length:") is not None:
        raise Malformed(f"the transfer encoding {encoding!r} has no business here")
