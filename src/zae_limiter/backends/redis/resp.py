"""Redis's protocol, RESP2: commands as bytes, and replies out of bytes as they arrive.

A reply is bytes, an integer, ``None``, a list of replies, or a ``Refused``, which is a value like the others:
who sent the command knows what it means.
"""

from __future__ import annotations

from typing import Any, TypeAlias

REPLY_BYTES_MAX = 64 * 2**20
"""More than any reply of ours has; whoever sends more is not to be believed."""
_DEPTH_MAX = 16


class Refused(Exception):
    """What the server says instead of a result; the first word is its code."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message
        self.code: str = message.partition(" ")[0]


Reply: TypeAlias = bytes | int | list[Any] | Refused | None


class MalformedReply(Exception):
    """These bytes are no reply."""


class _Incomplete(Exception):
    """The rest has yet to arrive."""


LENGTHS = {length: b"$%d" % length for length in range(256)}  # what stands in the line before a word


def bulk(word: bytes) -> bytes:
    return b"$%d\r\n%b\r\n" % (len(word), word)


def command(*words: bytes | str) -> bytes:
    encoded = [word.encode() if isinstance(word, str) else word for word in words]
    return b"*%d\r\n%b" % (len(encoded), b"".join(map(bulk, encoded)))


class Replies:
    """The replies to some commands that were sent together."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._pieces: list[bytes] = []
        self._length = 0

    def feed(self, data: bytes) -> list[Reply] | None:
        """All replies, as soon as the last byte of the last one is here."""
        self._pieces.append(data)
        self._length += len(data)
        if self._length > REPLY_BYTES_MAX:
            raise MalformedReply("the reply is too long")
        if not data.endswith(b"\n"):
            return None  # no reply ends here
        if len(self._pieces) > 1:
            data = b"".join(self._pieces)
            self._pieces = [data]
        try:
            at, replies = 0, []
            for _ in range(self._count):
                reply, at = _parse(data, at, 0)
                replies.append(reply)
        except _Incomplete:
            return None
        except (ValueError, RecursionError) as error:
            raise MalformedReply(f"the reply makes no sense: {error}") from error
        if at != len(data):
            raise MalformedReply("there is more than the reply")
        return replies


def _parse(data: bytes, at: int, depth: int) -> tuple[Reply, int]:
    end = data.find(b"\r\n", at)
    if end < 0:
        raise _Incomplete
    kind, line, at = data[at], data[at + 1 : end], end + 2
    if kind == 36:  # $
        length = int(line)
        if length < 0:
            return None, at
        if len(data) < at + length + 2:
            raise _Incomplete
        return data[at : at + length], at + length + 2
    if kind == 58:  # :
        return int(line), at
    if kind == 42:  # *
        if depth > _DEPTH_MAX:
            raise ValueError("it is nested too deeply")
        if (count := int(line)) < 0:
            return None, at
        found: list[Reply] = []
        for _ in range(count):
            one, at = _parse(data, at, depth + 1)
            found.append(one)
        return found, at
    if kind == 43:  # +
        return line, at
    if kind == 45:  # -
        return Refused(line.decode("utf-8", "replace")), at
    raise ValueError(f"it begins with {data[at : at + 1]!r}")
