"""Replies as they arrive: in whatever pieces they come they are the same, and what is no reply is told so."""

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zae_limiter.backends.redis.resp import MalformedReply, Refused, Replies, bulk, command

lines = st.text(st.characters(exclude_characters="\r\n", codec="utf-8"), max_size=12)
words = st.binary(max_size=12) | st.sampled_from([b"\r\n", b"\n", b"$3\r\nabc\r\n", b"*1\r\n"])
replies = st.recursive(
    st.none() | st.integers() | words | lines.map(Refused),
    lambda some: st.lists(some, max_size=4),
    max_leaves=12,
)


def written(reply: Any) -> bytes:
    """A reply as a server sends it."""
    if reply is None:
        return b"$-1\r\n"
    if isinstance(reply, Refused):
        return b"-%b\r\n" % reply.message.encode()
    if isinstance(reply, int):
        return b":%d\r\n" % reply
    if isinstance(reply, bytes):
        return bulk(reply)
    return b"*%d\r\n%b" % (len(reply), b"".join(map(written, reply)))


def shown(reply: Any) -> Any:
    """What can be compared: a refusal is itself alone."""
    if isinstance(reply, Refused):
        return f"-{reply.message}"
    return [shown(one) for one in reply] if isinstance(reply, list) else reply


def pieces(data: bytes, cuts: list[int]) -> Iterator[bytes]:
    edges = sorted({0, *(cut % (len(data) + 1) for cut in cuts), len(data)})
    return (data[start:end] for start, end in pairwise(edges))


def read(data: bytes, cuts: list[int], count: int) -> list[Any] | None:
    """What is read of bytes that arrive in pieces: nothing before the last one."""
    reader, found = Replies(count), None
    for piece in pieces(data, cuts):
        assert found is None, "there is more to come"
        found = reader.feed(piece)
    return found


cuts = st.lists(st.integers(0, 10_000), max_size=30)
several = st.lists(replies, min_size=1, max_size=3)


@settings(deadline=None)
@given(several, cuts)
def test_pieces_make_no_difference(sent: list[Any], cuts: list[int]) -> None:
    """Also where a piece ends within the end of a line, or within text that looks like a reply."""
    assert shown(read(b"".join(map(written, sent)), cuts, len(sent))) == shown(sent)


@pytest.mark.parametrize(
    "last", [b"", b"\n", [b"\r\n", None, [], -1], Refused("ERR no"), b"*1\r\n"], ids=repr
)
def test_one_byte_at_a_time(last: Any) -> None:
    """Whatever comes last is there with its last byte, and not before."""
    data = b"+OK\r\n" + written(last)
    assert shown(read(data, list(range(len(data))), 2)) == shown([b"OK", last])


@settings(deadline=None)
@given(several, cuts, st.data())
def test_what_was_damaged_is_read_or_refused(sent: list[Any], cuts: list[int], data: st.DataObject) -> None:
    """Bytes that are other ones, missing or too many: a reply, a wait for more, or one exception."""
    damaged = bytearray(b"".join(map(written, sent)))
    piece = st.binary(max_size=4) | st.sampled_from([b"\r\n", b"-1", b"9" * 30, b"*", b"$", b":", b"_"])
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(damaged)))
        damaged[at : at + data.draw(st.integers(0, 4))] = data.draw(piece)
    assert_read_or_refused(bytes(damaged), cuts, len(sent))


@settings(deadline=None)
@given(st.binary(max_size=60), cuts)
def test_any_bytes_are_read_or_refused(data: bytes, cuts: list[int]) -> None:
    assert_read_or_refused(data + b"\r\n", cuts, 1)


def assert_read_or_refused(data: bytes, cuts: list[int], count: int) -> None:
    reader = Replies(count)
    try:
        for piece in pieces(data, cuts):
            if (found := reader.feed(piece)) is not None:
                assert len(found) == count
                return
    except MalformedReply:
        return


ODD = [
    b"*1\r\n" * 1_000 + b":1\r\n",
    b"*" + b"9" * 5_000 + b"\r\n",
    b"$" + b"9" * 30 + b"\r\n\n",
    b":\r\n",
    b"\r\n",
    b"*1000000000\r\n:1\r\n",
]


@pytest.mark.parametrize("data", ODD, ids=range(len(ODD)))
def test_what_nobody_would_believe(data: bytes) -> None:
    """Depth, lengths and counts without end."""
    assert_read_or_refused(data, [], 1)


def test_a_command_is_a_reply_of_texts() -> None:
    """Lengths are those of bytes, not of characters."""
    assert read(command("SET", "ключ", b"\xff\r\n"), [], 1) == [[b"SET", "ключ".encode(), b"\xff\r\n"]]
