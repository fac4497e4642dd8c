"""From the bytes of a response to the JSON documents in it, one chunk after another.

Each reader is fed chunks that are cut anywhere, and yields every document as soon as it is complete: a
body, the elements of an array, lines of JSON, the data of server-sent events, the payloads of Amazon's
event streams. What a response weighs in memory is bounded, whatever it says: a document that is too large
is passed over, a long text within a body is read as an empty one, and a stream that is broken ends where it
broke.

Readers know framing only. What a document means is for others.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator
from typing import Protocol

DOCUMENT_BYTES_MAX = 1 << 20
"""What is larger is passed over: the largest event of a provider repeats a whole answer, some 600 KB."""

TEXT_BYTES_MAX = 1 << 16
"""A text within a body that is longer, such as an image, is read as an empty one."""

DECODED_BYTES_MAX = 1 << 28
"""How much of a compressed response is read; what is larger is a bomb."""

DECODED_FEED_BYTES, DECODED_FEED_RATIO = 1 << 18, 16
"""How much one chunk may hold: so much, and so many times its own size. More would hold up an event loop."""

_DECODED_STEP_BYTES = 1 << 16
_AHEAD_BYTES = 1 << 9
_ENDS_OF_LINE = re.compile(rb"\r\n|\r|\n")
_BEGINNING = re.compile(rb'["{]')
_BRACKETS = re.compile(rb"[{}\[\]]")
_TEXT = re.compile(rb'(?:[^"\\]++|\\.)*+', re.DOTALL)
_QUOTE = ord('"')
_BOM = b"\xef\xbb\xbf"


class DocumentReader(Protocol):
    """Is fed a response, and yields the documents that are complete with each chunk."""

    def feed(self, chunk: bytes) -> Iterator[bytes]: ...

    def unfinished(self) -> bytes | None:
        """What would be the next document if the response ended here, for servers that end it like that."""


class ServerSentEvents:
    """The data of each event, whose lines belong together. A line ends with CR, LF or both."""

    def __init__(self) -> None:
        self._line = bytearray()
        self._data = bytearray()
        self._is_too_long = self._is_after_cr = False

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        if not chunk:
            return  # what follows a CR is yet to come
        if self._is_after_cr:
            chunk = chunk.removeprefix(b"\n")
            self._is_after_cr = False
        if b"\r" in chunk:
            self._is_after_cr = chunk.endswith(b"\r")
            *ends, rest = _ENDS_OF_LINE.split(chunk)
        else:
            *ends, rest = chunk.split(b"\n")
        for end in ends:
            self._extend(end)
            yield from self._end_of_line()
        self._extend(rest)

    def _extend(self, piece: bytes) -> None:
        self._is_too_long = self._is_too_long or len(self._line) + len(piece) > DOCUMENT_BYTES_MAX
        if self._is_too_long:
            self._line.clear()
        else:
            self._line += piece

    def _end_of_line(self) -> Iterator[bytes]:
        line, is_blank = self._value(), not self._line and not self._is_too_long
        self._line.clear()
        self._is_too_long = False
        if is_blank:
            if self._data:
                yield bytes(self._data)
            self._data.clear()
        elif line is not None and len(self._data) + len(line) < DOCUMENT_BYTES_MAX:
            self._data += line + b"\n"

    def _value(self) -> bytes | None:
        """The data in the line that has come so far."""
        line = self._line.removeprefix(_BOM)
        return bytes(line[5:]) if line.startswith(b"data:") else None

    def unfinished(self) -> bytes | None:
        return bytes(self._data) + (self._value() or b"") or None


class JsonDocuments:
    """The objects in a body: the body itself, the elements of an array, or one after another."""

    def __init__(self) -> None:
        self._document = bytearray()
        self._depth = 0
        self._is_text = self._is_escaped = self._is_long = False
        self._text_from = 0

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        at = 0
        while at < len(chunk):
            if self._is_text:
                at = self._through_text(chunk, at)
            elif not self._depth:
                at = self._to_beginning(chunk, at)
            else:
                ahead = min(at + _AHEAD_BYTES, len(chunk))  # or many small documents would each look at all
                end = chunk.find(b'"', at, ahead) + 1 or ahead
                end = at + self._follow(chunk[at:end])
                self._keep(chunk[at:end])
                if self._depth:
                    self._is_text, self._text_from = chunk[end - 1] == _QUOTE, len(self._document)
                elif self._document:
                    yield bytes(self._document)
                    self._document.clear()
                at = end

    def _to_beginning(self, chunk: bytes, at: int) -> int:
        """Pass over what is between documents, texts too."""
        found = _BEGINNING.search(chunk, at)
        if found is None:
            return len(chunk)
        self._is_text = found.group() == b'"'
        if not self._is_text:
            self._depth, self._document[:] = 1, b"{"
        return found.end()

    def _follow(self, piece: bytes) -> int:
        """Follow the structure where there is no text; how far the document goes."""
        closed = piece.count(b"}") + piece.count(b"]")
        if closed < self._depth:
            self._depth += piece.count(b"{") + piece.count(b"[") - closed
            return len(piece)
        for mark in _BRACKETS.finditer(piece):
            self._depth += 1 if mark.group() in b"{[" else -1
            if not self._depth:
                return mark.end()
        return len(piece)

    def _through_text(self, chunk: bytes, at: int) -> int:
        """Follow a text to its end, or to that of the chunk."""
        found = _TEXT.match(chunk, at + self._is_escaped)
        assert found is not None, "it may be empty"
        stopped_by = chunk[found.end() : found.end() + 1]
        self._is_escaped = stopped_by == b"\\"  # the last byte, and what it escapes is yet to come
        end = found.end() + len(stopped_by)
        self._keep(chunk[at:end])
        if stopped_by == b'"':
            if self._is_long:
                self._document[self._text_from :] = b'"'
            self._is_text = self._is_long = False
        return end

    def _keep(self, piece: bytes) -> None:
        if not self._document:
            return  # it is between documents, or too large
        if self._is_text and len(self._document) - self._text_from + len(piece) > TEXT_BYTES_MAX:
            self._is_long = True
        if self._is_long:
            return
        self._document += piece
        if len(self._document) > DOCUMENT_BYTES_MAX:
            self._document.clear()

    def unfinished(self) -> bytes | None:
        return None  # what is not closed says nothing


class AmazonEvents:
    """The payloads of ``application/vnd.amazon.eventstream``: lengths, headers, payload, and sums of both."""

    _PRELUDE_BYTES, _SUM_BYTES = 12, 4

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._is_broken = False

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        if self._is_broken:
            return
        self._buffer += chunk
        while not self._is_broken and len(self._buffer) >= self._PRELUDE_BYTES:
            size, headers = (int.from_bytes(self._buffer[at : at + 4]) for at in (0, 4))
            least = self._PRELUDE_BYTES + headers + self._SUM_BYTES
            if not least <= size <= DOCUMENT_BYTES_MAX or not self._sum_fits(self._PRELUDE_BYTES):
                self._is_broken = True  # where the next message begins is anybody's guess
            elif len(self._buffer) < size:
                return
            elif self._sum_fits(size):
                yield bytes(self._buffer[self._PRELUDE_BYTES + headers : size - self._SUM_BYTES])
                del self._buffer[:size]
            else:
                self._is_broken = True
        if self._is_broken:
            self._buffer.clear()

    def _sum_fits(self, size: int) -> bool:
        """Whether the last four of so many bytes are the sum of those before."""
        with memoryview(self._buffer) as view:
            return zlib.crc32(view[: size - 4]) == int.from_bytes(view[size - 4 : size])

    def unfinished(self) -> bytes | None:
        return None


class Inflated:
    """What was compressed with ``gzip`` or ``deflate``, piece by piece, none of them large."""

    def __init__(self) -> None:
        self._inflate = zlib.decompressobj(zlib.MAX_WBITS | 32)
        self._left = DECODED_BYTES_MAX
        self.has_given_up: bool = False
        """Whether there was too much to be read."""

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        """What a chunk holds; nothing any more once it is broken or too much."""
        left_now = DECODED_FEED_BYTES + DECODED_FEED_RATIO * len(chunk)
        while chunk and self._left > 0:
            if left_now <= 0:
                self._left, self.has_given_up = 0, True
                return
            try:
                piece = self._inflate.decompress(chunk, _DECODED_STEP_BYTES)
            except zlib.error:
                self._left = 0
                return
            self._left -= len(piece)
            left_now -= len(piece)
            self.has_given_up = self._left <= 0
            if piece:
                yield piece
            if self._inflate.eof:  # another one may follow
                chunk = self._inflate.unused_data
                self._inflate = zlib.decompressobj(zlib.MAX_WBITS | 32)
            else:
                chunk = self._inflate.unconsumed_tail


def reader_for(content_type: str) -> DocumentReader | None:
    """Who reads a content type; ``None`` if it holds no JSON."""
    kind = content_type.partition(";")[0].strip().lower()
    if kind == "text/event-stream":
        return ServerSentEvents()
    if kind == "application/vnd.amazon.eventstream":
        return AmazonEvents()
    is_json = kind.endswith(("/json", "+json", "/x-ndjson", "/jsonl", "/json-seq"))
    return JsonDocuments() if is_json else None


def reader_of(beginning: bytes) -> DocumentReader | None:
    """Who reads a response that does not say what it is, by how it begins; ``None`` if that is not enough."""
    text = beginning.lstrip()
    text = text if _BOM.startswith(text) else text.removeprefix(_BOM).lstrip()
    if _BOM.startswith(text):
        return None
    return JsonDocuments() if text[:1] in (b"{", b"[") else ServerSentEvents()
