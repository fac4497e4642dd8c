"""Reading one HTTP/1.1 response, strictly and without any input of its own. Pure.

The server is one of DynamoDB's: it frames every answer by ``Content-Length`` or in chunks, and sends
nothing unasked. Whatever does not look like that is ``Malformed``; guessing where one answer ends would
hand its rest to the next request.
"""

from __future__ import annotations

import re
from zlib import crc32

HEAD_BYTES_MAX = 16_384
BODY_BYTES_MAX = 64 << 20
"""DynamoDB answers with at most 16 MB of items, which JSON can triple."""

FIELDS_MAX = 200
"""Of a head, and as many behind the last chunk."""

CHUNK_LINE_BYTES_MAX = 4_096
CHUNKS_MAX = 65_536
LENGTH_DIGITS_MAX = 10

_BEGINNING = b"HTTP/1."
_NAME = rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]++"
_TEXT = rb"[^\x00-\x08\x0a-\x1f\x7f]*+"
_HEAD = re.compile(
    rb"HTTP/1\.([01]) ([2-5][0-9][0-9])(?: "
    + _TEXT
    + rb")?(\r\n(?:"
    + _NAME
    + rb":"
    + _TEXT
    + rb"\r\n)*+)\r\n"
)
_FIELD = re.compile(_NAME + rb":" + _TEXT)
_CHUNK = re.compile(rb"([0-9A-Fa-f]{1,8})[ \t]*(?:;" + _TEXT + rb")?")

# The few fields that anything depends on; taking the others apart would cost more than all the rest.
_TELLING = re.compile(
    rb"\r\n(connection|content-encoding|content-length|date|transfer-encoding|x-amz-crc32):[ \t]*+([^\r]*)"
)


class Malformed(ValueError):
    """The other side does not speak HTTP as expected."""


class Response:
    """One answer, which takes its bytes as they come and says when it is whole."""

    __slots__ = ("_chunks", "_head", "_length", "_minor", "_part", "body", "fields", "reusable", "status")

    status: int
    body: bytes
    fields: dict[bytes, bytes]
    """Those that tell something, their names in small letters, and their values too."""
    reusable: bool
    """Whether the connection is ready for another request."""

    def __init__(self) -> None:
        self._head = b""
        self._chunks: _Chunks | None = None
        self._part: bytearray | None = None

    def feed(self, data: bytes) -> bool:
        """Take some bytes; true when they were the last."""
        if self._part is not None:
            return self._fill(self._part, data)
        if self._chunks is not None:
            return self._chain(self._chunks, data)
        if self._head:
            data = self._head + data
        # A head that comes in crumbs is not taken apart for each of them.
        match = _HEAD.match(data) if not self._head or b"\r\n\r\n" in data else None
        if match is None:
            _check_unfinished(data)
            self._head = data
            return False
        self._minor, status, block = match.groups()
        if len(block) > HEAD_BYTES_MAX or block.count(b"\r\n") > FIELDS_MAX:
            raise Malformed(f"the head is longer than {HEAD_BYTES_MAX} bytes or {FIELDS_MAX} fields")
        found = _TELLING.findall(block.lower())
        self.status, self.fields = int(status), dict(found)
        if len(self.fields) < len(found):
            _check_repeated(found)
        rest = data[match.end() :]
        if b"transfer-encoding" in self.fields:
            _check_chunked(self._minor, self.fields)
            self._chunks = _Chunks()
            return self._chain(self._chunks, rest)
        text = self.fields.get(b"content-length", b"").strip()
        if not text.isdigit() or len(text) > LENGTH_DIGITS_MAX:
            raise Malformed(f"{text!r} is not the length of an answer")
        self._length = int(text)
        if len(rest) == self._length:
            return self._finish(rest, clean=True)
        _check_length(self._length)
        self._part = bytearray()
        return self._fill(self._part, rest)

    def _fill(self, part: bytearray, data: bytes) -> bool:
        part += data
        if len(part) < self._length:
            return False
        return self._finish(bytes(part[: self._length]), clean=len(part) == self._length)

    def _chain(self, chunks: _Chunks, data: bytes) -> bool:
        behind = chunks.feed(data)
        return behind is not None and self._finish(bytes(chunks.body), clean=not behind)

    def _finish(self, body: bytes, clean: bool) -> bool:
        fields = self.fields
        if b"content-encoding" in fields and fields[b"content-encoding"].strip() != b"identity":
            raise Malformed(
                f"the answer is encoded as {fields[b'content-encoding']!r}, which was not asked for"
            )
        checksum = fields.get(b"x-amz-crc32")
        if checksum is not None and checksum.strip() != b"%d" % crc32(body):
            raise Malformed(f"the answer's checksum {checksum!r} is not that of its {len(body)} bytes")
        # What stands behind an answer was not asked for, so nobody knows what it belongs to.
        self.reusable = clean and self._minor == b"1" and b"close" not in fields.get(b"connection", b"")
        self.body = body
        return True


class _Chunks:
    """A body that is sent in pieces, each with its length before it."""

    def __init__(self) -> None:
        self.body = bytearray()
        self._buffer = bytearray()
        self._left = 0
        self._ended = False
        self._count = self._trailer_bytes = self._trailer_fields = 0

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
                self._pass_over(line)
            else:
                self._begin(line)

    def _pass_over(self, line: bytes) -> None:
        """A checksum or the like may follow; nothing is made of it."""
        if not _FIELD.fullmatch(line):
            raise Malformed(f"{line!r} is no field")
        self._trailer_bytes += len(line)
        self._trailer_fields += 1
        if self._trailer_bytes > HEAD_BYTES_MAX or self._trailer_fields > FIELDS_MAX:
            raise Malformed(f"more than {HEAD_BYTES_MAX} bytes or {FIELDS_MAX} fields follow the last chunk")

    def _begin(self, line: bytes) -> None:
        match = _CHUNK.fullmatch(line)
        if match is None:
            raise Malformed(f"{line!r} is not the length of a chunk")
        self._count += 1
        if self._count > CHUNKS_MAX:
            raise Malformed(f"there are more than {CHUNKS_MAX} chunks")
        self._left = int(match[1], 16)
        self._ended = self._left == 0
        _check_length(len(self.body) + self._left)


def _check_unfinished(data: bytes) -> None:
    """Whether this can still become the head of a response."""
    if b"\r\n\r\n" in data or not (data.startswith(_BEGINNING) or _BEGINNING.startswith(data)):
        raise Malformed(f"{data[:64]!r} is not the head of an answer")
    if len(data) > HEAD_BYTES_MAX:
        raise Malformed(f"the head is longer than {HEAD_BYTES_MAX} bytes")


def _check_repeated(found: list[tuple[bytes, bytes]]) -> None:
    """Whatever is on the way may repeat a date, but nobody repeats where an answer ends."""
    names = [name for name, _ in found]
    if names.count(b"content-length") > 1 or names.count(b"transfer-encoding") > 1:
        raise Malformed("it is said twice where the answer ends")


def _check_length(length: int) -> None:
    if length > BODY_BYTES_MAX:
        raise Malformed(f"an answer of {length} bytes is longer than {BODY_BYTES_MAX}")


def _check_chunked(minor: bytes, fields: dict[bytes, bytes]) -> None:
    encoding = fields[b"transfer-encoding"].strip()
    if minor == b"0" or encoding != b"chunked" or b"content-length" in fields:
        raise Malformed(f"the transfer encoding {encoding!r} has no business here")
