"""The reader of answers: any split of a right one is read, and no wrong one is."""

import contextlib
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zae_limiter.backends.dynamodb.http import http1
from zae_limiter.backends.dynamodb.http.http1 import Malformed, Response

OK = b"HTTP/1.1 200 OK\r\n"


def framed(body: bytes, fields: bytes = b"", status: bytes = OK) -> bytes:
    return status + fields + b"Content-Length: %d\r\n\r\n" % len(body) + body


def chunked(*pieces: bytes, fields: bytes = b"", trailer: bytes = b"") -> bytes:
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces if piece)
    return OK + fields + b"Transfer-Encoding: chunked\r\n\r\n" + chunks + b"0\r\n" + trailer + b"\r\n"


def read(*parts: bytes) -> Response:
    """The response that the parts make up, with the last of them and not before."""
    response = Response()
    assert [response.feed(part) for part in parts] == [False] * (len(parts) - 1) + [True]
    return response


@st.composite
def answers(draw: st.DrawFn) -> tuple[bytes, bytes, bool]:
    """A right answer, its body, and whether the connection may be used again."""
    body = draw(st.binary(max_size=60) | st.sampled_from([b"\r\n", b"0\r\n\r\n", b"HTTP/1.1 200 OK\r\n\r\n"]))
    fields = draw(st.sampled_from([b"", b"Server: x\r\n", b"X-Empty:\r\n", b"Date:  a: b \t\r\n"]))
    kept = draw(st.booleans())
    fields += draw(
        st.sampled_from([b"", b"Connection: Keep-Alive\r\n"] if kept else [b"CONNECTION: close\r\n"])
    )
    if draw(st.booleans()):
        fields += b"x-amz-crc32: %d\r\n" % crc32(body)
    if draw(st.booleans()):
        return framed(body, fields), body, kept
    cut = draw(st.integers(0, len(body)))
    trailer = draw(st.sampled_from([b"", b"x-checksum: 1\r\n", b"a:\r\nb: c\r\n"]))
    return chunked(body[:cut], body[cut:], fields=fields, trailer=trailer), body, kept


@given(answers(), st.data())
def test_any_split_is_read(answer: tuple[bytes, bytes, bool], data: st.DataObject) -> None:
    """The network cuts where it likes."""
    whole, body, kept = answer
    cuts = sorted(data.draw(st.sets(st.integers(1, len(whole) - 1), max_size=8)))
    parts = [whole[start:end] for start, end in zip([0, *cuts], [*cuts, len(whole)], strict=True)]
    response = read(*parts)
    assert (response.status, response.body, response.reusable) == (200, body, kept)


@given(answers())
def test_byte_by_byte_and_no_byte_less(answer: tuple[bytes, bytes, bool]) -> None:
    """An answer is there with its last byte and not before: what is cut off is never taken for whole."""
    whole, body, _ = answer
    assert read(*(whole[at : at + 1] for at in range(len(whole)))).body == body


@given(answers(), st.binary(min_size=1, max_size=20))
def test_what_follows_an_answer_spoils_the_connection(answer: tuple[bytes, bytes, bool], more: bytes) -> None:
    """It belongs to no request."""
    whole, body, _ = answer
    response = read(whole + more)
    assert (response.body, response.reusable) == (body, False)


@given(st.binary(max_size=200))
def test_garbage_is_never_an_answer(garbage: bytes) -> None:
    """It is refused, or more is waited for; it never crashes otherwise."""
    with contextlib.suppress(Malformed):
        assert not Response().feed(garbage)


@given(answers(), st.data())
def test_a_flipped_byte_of_a_checked_body_is_seen(
    answer: tuple[bytes, bytes, bool], data: st.DataObject
) -> None:
    """The service sends a checksum with every answer."""
    _, body, _ = answer
    if not body:
        return
    at = data.draw(st.integers(0, len(body) - 1))
    wrong = body[:at] + bytes([body[at] ^ data.draw(st.integers(1, 255))]) + body[at + 1 :]
    with pytest.raises(Malformed, match="checksum"):
        read(framed(wrong, b"X-Amz-Crc32: %d\r\n" % crc32(body)))


@pytest.mark.parametrize(
    "answer",
    [
        b"\r\n" + framed(b""),
        b"HTTP/2 200 OK\r\n\r\n",
        b"HTTP/1.1 99 OK\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\n" + framed(b"{}"),
        b"HTTP/1.1 600 OK\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200\tOK\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 0\n\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length : 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n Content-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: a\r\n folded\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: \x00\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n: nameless\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nno colon\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length:\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: +1\r\n\r\n{",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1_0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 0x1\r\n\r\n{",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1, 1\r\n\r\n{",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\n{",
        b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % (http1.BODY_BYTES_MAX + 1),
        framed(b"", b"Content-Encoding: gzip\r\n"),
        framed(b"", b"Transfer-Encoding: chunked\r\n"),
        chunked(b"x", fields=b"Transfer-Encoding: chunked\r\n"),
        OK + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        OK + b"Transfer-Encoding: identity\r\n\r\n",
        b"HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        OK + b"Transfer-Encoding: chunked\r\n\r\nx\r\n",
        OK + b"Transfer-Encoding: chunked\r\n\r\n-1\r\n",
        OK + b"Transfer-Encoding: chunked\r\n\r\n\r\n",
        OK + b"Transfer-Encoding: chunked\r\n\r\n1\r\nxy\r\n",
        OK + b"Transfer-Encoding: chunked\r\n\r\nffffffff\r\n",
        OK + b"Transfer-Encoding: chunked\r\n\r\n111111111\r\n",
        OK + b"Transfer-Encoding: chunked\r\n\r\n0\r\nno colon\r\n\r\n",
        OK + b"Transfer-Encoding: chunked\r\n\r\n1;" + b"x" * http1.CHUNK_LINE_BYTES_MAX,
        OK + b"X: " + b"x" * http1.HEAD_BYTES_MAX,
        framed(b"", b"X: " + b"x" * http1.HEAD_BYTES_MAX + b"\r\n"),
        framed(b"", b"a: b\r\n" * http1.FIELDS_MAX),
        framed(b"{}", b"x-amz-crc32: " + b"9" * 5_000 + b"\r\n"),
        chunked(b"x", trailer=b"a: b\r\n" * (http1.FIELDS_MAX + 1)),
        chunked(b"x", trailer=(b"a: " + b"x" * 4_000 + b"\r\n") * 5),
        OK + b"Transfer-Encoding: chunked\r\n\r\n" + b"1\r\nx\r\n" * (http1.CHUNKS_MAX + 1),
        b"<html>",
    ],
)
def test_a_wrong_answer_is_refused(answer: bytes) -> None:
    """Nothing is guessed, whether it comes at once or in pieces."""
    with pytest.raises(Malformed):
        Response().feed(answer)
    response = Response()
    with pytest.raises(Malformed):  # noqa: PT012 - which byte it is does not matter
        for at in range(len(answer)):
            assert not response.feed(answer[at : at + 1])


def test_an_older_server_closes_after_each_answer() -> None:
    """HTTP/1.0 has no connections that are kept."""
    response = read(
        framed(b"{}", status=b"HTTP/1.0 400 Bad Request\r\n", fields=b"Connection: keep-alive\r\n")
    )
    assert (response.status, response.body, response.reusable) == (400, b"{}", False)


def test_what_says_nothing_about_the_end_may_be_repeated() -> None:
    """By a balancer on the way, for one."""
    twice = b"Date: a\r\nDate: b\r\nConnection: keep-alive\r\nConnection: close\r\n"
    assert not read(framed(b"{}", twice)).reusable


def test_fields_are_found_in_any_spelling() -> None:
    """Names have no case, and only whole names count."""
    response = read(framed(b"", b"X-Date: no\r\nDATE:\t Mon, 01 Jan \r\nDated: no\r\n"))
    assert response.fields == {b"date": b"mon, 01 jan ", b"content-length": b"0"}


def test_a_large_body_is_read_in_linear_time() -> None:
    """A page of a query comes in hundreds of pieces."""
    body = b"x" * (16 << 20)
    whole = framed(body)
    assert read(*(whole[at : at + 65_536] for at in range(0, len(whole), 65_536))).body == body
