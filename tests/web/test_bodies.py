"""Bodies that a callable reads, wholly or until they are too large: the application gets all of it."""

import asyncio
import io
from contextlib import nullcontext
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.web.calls import http_scope
from zae_limiter.web import Request, RequestRefused, SyncRequest

bodies = st.lists(st.binary(max_size=9), max_size=5)
limits = st.lists(st.integers(0, 40), max_size=4)


def messages_of(chunks: list[bytes]) -> list[dict[str, Any]]:
    coming = [{"type": "http.request", "body": chunk, "more_body": True} for chunk in chunks]
    return [*coming, {"type": "http.request", "more_body": False}]


@given(bodies, limits)
def test_what_was_read_is_received_first(chunks: list[bytes], sizes: list[int]) -> None:
    """However often it was asked for, and given up as too large."""
    coming, whole = messages_of(chunks), b"".join(chunks)

    async def receive() -> Any:
        return coming.pop(0)

    async def read() -> bytes:
        request = Request(http_scope("/", "POST"), receive)
        for size in sizes:
            with pytest.raises(RequestRefused, match="413") if len(whole) > size else nullcontext():
                assert await request.body(size) == whole
        found, more = b"", True
        while more:
            message = await request.receive()
            found, more = found + message.get("body", b""), message["more_body"]
        assert coming == []
        return found

    assert asyncio.run(read()) == whole


async def test_a_reader_that_gives_up() -> None:
    """What it had read by then is not lost, either."""
    arrived, coming = asyncio.Event(), messages_of([b"one", b"two"])

    async def receive() -> Any:
        if len(coming) == 2 and not arrived.is_set():
            arrived.set()
            await asyncio.Event().wait()
        return coming.pop(0)

    request = Request(http_scope("/", "POST"), receive)
    reading = asyncio.ensure_future(request.body())
    await arrived.wait()
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    assert await request.receive() == {"type": "http.request", "body": b"one", "more_body": True}


READ: dict[str, Any] = {
    "read": lambda body: body.read(),
    "pieces": lambda body: b"".join(iter(lambda: body.read(3), b"")),
    "lines": lambda body: b"".join(body.readlines()),
    "each line": b"".join,
    "line": lambda body: b"".join(iter(body.readline, b"")),
}


@given(
    st.binary(max_size=30) | st.text("a\n", max_size=30).map(str.encode),
    limits,
    st.sampled_from(["told", "terminated", "neither"]),
    st.sampled_from(sorted(READ)),
)
def test_what_was_read_is_in_the_input(body: bytes, sizes: list[int], kind: str, how: str) -> None:
    """The same where it blocks; an input that nobody says the length of is left alone."""
    environ: dict[str, Any] = {"REQUEST_METHOD": "POST", "PATH_INFO": "/", "wsgi.input": io.BytesIO(body)}
    if kind == "told":
        environ["CONTENT_LENGTH"] = str(len(body))
    elif kind == "terminated":
        environ["wsgi.input_terminated"] = True
    request, readable = SyncRequest(environ), b"" if kind == "neither" else body
    for size in sizes:
        with pytest.raises(RequestRefused, match="413") if len(readable) > size else nullcontext():
            assert request.body(size) == readable
    assert READ[how](environ["wsgi.input"]) == body
