"""Reading one HTTP/1.1 response, strictly and without any input of its own. Pure.

The server is one of DynamoDB's: it frames every answer by ``Content-Length`` or in chunks, and sends
nothing unasked. Whatever does not look like that is ``Malformed``; guessing where one answer ends would
hand its rest to the next request.
"""

from __future__ import annotations

import re
from collections.abc import Generator
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
_FIELD = re.compile(_NAME + rb":" + _TEXT)
_HEAD = re.compile(
    rb"HTTP/1\.([01]) ([2-5][0-9][0-9])(?: %b)?(\r\n(?:%b\r\n)*+)\r\n" % (_TEXT, _FIELD.pattern)
)
_CHUNK = re.compile(rb"([0-9A-Fa-f]{1,8})[ \t]*(?:;" + _TEXT + rb")?")

# The few fields that anything depends on; taking the others apart would cost more than all the rest.
_TELLING = re.compile(
    rb"\r\n(connection|content-encoding|content-length|date|transfer-encoding|x-amz-crc32):[ \t]*+([^\r]*)"
)


class Malformed(ValueError):
    """The other side does not speak HTTP as expected."""


class Response:
    """One answer, which takes its bytes as they come and says when it is whole."""

    status: int
    body: bytes
    fields: dict[bytes, bytes]
    """Those that tell something, their names in small letters, and their values too."""
    reusable: bool
    """Whether the connection is ready for another request."""

    _head = b""
    _minor: bytes
    _length = 0
    _part: bytearray | None = None
    _chunks: Generator[tuple[bytes, bytes] | None, bytes, None] | None = None

    def feed(self, data: bytes) -> bool:
        """Take some bytes; true when they were the last."""
        if self._part is None and self._chunks is None:
            head = self._read_head(data)
            if head is None:
                return False
            data = head
        behind: bytes | bytearray
        if self._chunks is not None:
            found = self._chunks.send(data)
            if found is None:
                return False
            body, behind = found
        elif self._part is None and len(data) == self._length:
            body, behind = data, b""
        else:
            if self._part is None:
                _check_length(self._length)
                self._part = bytearray()
            self._part += data
            if len(self._part) < self._length:
                return False
            body, behind = bytes(self._part[: self._length]), self._part[self._length :]
        fields = self.fields
        if fields.get(b"content-encoding", b"identity").strip() != b"identity":
            raise Malformed(
                f"the answer is encoded as {fields[b'content-encoding']!r}, which was not asked for"
            )
        checksum = fields.get(b"x-amz-crc32")
        if checksum is not None and checksum.strip() != b"%d" % crc32(body):
            raise Malformed(f"the answer's checksum {checksum!r} is not that of its {len(body)} bytes")
        # What stands behind an answer was not asked for, so nobody knows what it belongs to.
        self.reusable = not behind and self._minor == b"1" and b"close" not in fields.get(b"connection", b"")
        self.body = body
        return True

    def _read_head(self, data: bytes) -> bytes | None:
        """What follows the head, once that is whole."""
        if self._head:
            data = self._head + data
        # A head that comes in crumbs is not taken apart for each of them.
        match = _HEAD.match(data) if not self._head or b"\r\n\r\n" in data else None
        if match is None:
            if b"\r\n\r\n" in data or not (data.startswith(_BEGINNING) or _BEGINNING.startswith(data)):
                raise Malformed(f"{data[:64]!r} is not the head of an answer")
            if len(data) > HEAD_BYTES_MAX:
                raise Malformed(f"the head is longer than {HEAD_BYTES_MAX} bytes")
            self._head = data
            return None
        self._minor, status, block = match.groups()
        if len(block) > HEAD_BYTES_MAX or block.count(b"\r\n") > FIELDS_MAX:
            raise Malformed(f"the head is longer than {HEAD_BYTES_MAX} bytes or {FIELDS_MAX} fields")
        found = _TELLING.findall(block.lower())
        self.status, self.fields = int(status), dict(found)
        if len(self.fields) < len(found):
            # Whatever is on the way may repeat a date, but nobody repeats where an answer ends.
            names = [name for name, _ in found]
            if names.count(b"content-length") > 1 or names.count(b"transfer-encoding") > 1:
                raise Malformed("it is said twice where the answer ends")
        length = self.fields.get(b"content-length", b"").strip()
        if b"transfer-encoding" in self.fields:
            encoding = self.fields[b"transfer-encoding"].strip()
            if self._minor == b"0" or encoding != b"chunked" or b"content-length" in self.fields:
                raise Malformed(f"the transfer encoding {encoding!r} has no business here")
            self._chunks = _chunks()
            next(self._chunks)
        elif not length.isdigit() or len(length) > LENGTH_DIGITS_MAX:
            raise Malformed(f"{length!r} is not the length of an answer")
        else:
            self._length = int(length)
        return data[match.end() :]


def _chunks() -> Generator[tuple[bytes, bytes] | None, bytes, None]:
    """Takes a body that is sent in pieces; yields it, and what stands behind it, once it is whole."""
    buffer, body = bytearray(), bytearray()
    count = trailer_bytes = trailer_fields = 0
    is_last = False
    while True:
        while (end := buffer.find(b"\r\n")) < 0 and len(buffer) <= CHUNK_LINE_BYTES_MAX:
            buffer += yield None
        if end < 0 or end > CHUNK_LINE_BYTES_MAX:
            raise Malformed(f"a line between chunks is longer than {CHUNK_LINE_BYTES_MAX} bytes")
        line = bytes(buffer[:end])
        del buffer[: end + 2]
        if not is_last:
            match = _CHUNK.fullmatch(line)
            if match is None:
                raise Malformed(f"{line!r} is not the length of a chunk")
            count, length = count + 1, int(match[1], 16)
            if count > CHUNKS_MAX:
                raise Malformed(f"there are more than {CHUNKS_MAX} chunks")
            _check_length(len(body) + length)
            is_last = not length
            while length and len(buffer) < length + 2:
                buffer += yield None
            if length and buffer[length : length + 2] != b"\r\n":
                raise Malformed("a chunk does not end where it said")
            if length:
                body += buffer[:length]
                del buffer[: length + 2]
        elif not line:
            yield bytes(body), bytes(buffer)
        else:
            # A checksum or the like may follow; nothing is made of it.
            if not _FIELD.fullmatch(line):
                raise Malformed(f"{line!r} is no field")
            trailer_bytes, trailer_fields = trailer_bytes + len(line), trailer_fields + 1
            if trailer_bytes > HEAD_BYTES_MAX or trailer_fields > FIELDS_MAX:
                raise Malformed(
                    f"more than {HEAD_BYTES_MAX} bytes or {FIELDS_MAX} fields follow the last chunk"
                )


def _check_length(length: int) -> None:
    if length > BODY_BYTES_MAX:
        raise Malformed(f"an answer of {length} bytes is longer than {BODY_BYTES_MAX}")
