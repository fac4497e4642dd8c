"""The transport without a driver, against a peer that misbehaves: what is told, kept and closed."""

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.dynamodb.peer import CLOSE, Peer, answer, ask, connected, refusal, store
from tests.stores import drive
from zae_limiter.backends.dynamodb.transport import ServiceError
from zae_limiter.repository_protocol import Key, Outcome, Update

BOTH = pytest.mark.parametrize("sync", [False, True], ids=["async", "sync"])
A = Key("a", "s")
IMAGE = {"Attributes": {"PK": {"S": "a"}, "SK": {"S": "s"}, "n": {"N": "1"}}}


@pytest.fixture
def peer() -> Iterator[Peer]:
    with Peer().running() as running:
        yield running


WRONG = {
    "nothing": [CLOSE],
    "half a head": [b"HTTP/1.1 200 OK\r\nContent-Le", CLOSE],
    "half a body": [answer(IMAGE)[:-3], CLOSE],
    "half a chunk": [b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{", CLOSE],
    "no HTTP": [b"SSH-2.0-OpenSSH_9.6\r\n\r\n"],
    "no length": [b"HTTP/1.1 200 OK\r\n\r\n{}"],
    "no JSON": [answer(b"<html>")],
    "no object": [answer(b"[]")],
    "no UTF-8": [answer(b'"\xff"')],
    "a wrong checksum": [answer(IMAGE, fields={"x-amz-crc32": "1"})],
    "compressed": [answer(b"x", fields={"Content-Encoding": "gzip"})],
    "nothing to see": [answer(status="204 No Content")],
    "asked to go on": [b"HTTP/1.1 100 Continue\r\n\r\n", answer(IMAGE)],
    "broken": [answer({"__type": "x#InternalServerError"}, status="500 Internal Server Error")],
    "broken without words": [answer(b"", status="502 Bad Gateway")],
    "no by a gateway": [answer(b"<html>", "403 Forbidden")],
    "no without a code": [answer(b"[1]", "400 Bad Request")],
    "elsewhere": [answer(b"", "307 Temporary Redirect", {"Location": "http://x"})],
}


@BOTH
@pytest.mark.parametrize("said", WRONG.values(), ids=WRONG)
def test_no_proper_answer_is_ambiguous_and_sent_once(sync: bool, peer: Peer, said: list[Any]) -> None:
    """The write may have happened; the next one gets a connection of its own, and works."""

    async def scenario() -> None:
        async with store(sync, peer) as backend:
            peer.say(*said)
            peer.say(answer(IMAGE))
            (lost,) = await backend.write_each([Update(A, {"n": 1})])
            assert lost.failure is not None
            assert lost.failure.ambiguous
            assert len(peer.asked) == 1
            assert await backend.write_each([Update(A, {"n": 1})]) == [Outcome(True, {"n": 1})]

    drive(sync, scenario())


REFUSED = {
    "in words": (refusal("ValidationException", "bad"), "ValidationException", "bad"),
    "in capitals": (
        answer({"__type": "ValidationException", "Message": "bad"}, "400 Bad Request"),
        "ValidationException",
        "bad",
    ),
    "with a link": (
        answer({"__type": "a#AccessDenied:http://internal", "message": "no"}, "403 Forbidden"),
        "AccessDenied",
        "no",
    ),
}


@BOTH
@pytest.mark.parametrize(("said", "code", "message"), REFUSED.values(), ids=REFUSED)
def test_a_refusal_is_known_not_to_have_acted(
    sync: bool, peer: Peer, said: bytes, code: str, message: str
) -> None:
    """It says so with a code of DynamoDB's, whatever else its body holds, and the connection is kept."""

    async def scenario() -> None:
        async with connected(sync, peer) as transport:
            peer.say(said)
            with pytest.raises(ServiceError) as raised:
                await ask(transport)
            assert (raised.value.code, raised.value.message) == (code, message)
            assert await ask(transport) == {}
            assert peer.connections == 1

    drive(sync, scenario())


@BOTH
def test_a_refused_write_brings_its_image(sync: bool, peer: Peer) -> None:
    """The body of the refusal is read to the end."""

    async def scenario() -> None:
        async with store(sync, peer) as backend:
            peer.say(refusal("ConditionalCheckFailedException", Item=IMAGE["Attributes"]))
            assert await backend.write_each([Update(A, {"n": 1})]) == [Outcome(False, {"n": 1}, held=False)]

    drive(sync, scenario())


@BOTH
@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cuts=st.lists(st.integers(1, 400), max_size=4), text=st.text(max_size=40))
def test_an_answer_may_come_in_pieces(sync: bool, peer: Peer, cuts: list[int], text: str) -> None:
    """With any text in it."""
    whole = answer({"text": text})
    places = sorted({min(cut, len(whole) - 1) for cut in cuts})
    pieces = [whole[start:end] for start, end in zip([0, *places], [*places, len(whole)], strict=True)]

    async def scenario() -> None:
        async with connected(sync, peer) as transport:
            peer.say(*pieces)
            assert await ask(transport) == {"text": text}

    drive(sync, scenario())


@BOTH
def test_a_request_is_what_it_says(sync: bool, peer: Peer) -> None:
    """Texts outside of ASCII arrive as they are, and no compressed answer is asked for."""

    async def scenario() -> None:
        async with connected(sync, peer) as transport:
            await transport.call("PutItem", {"text": 'é中😀"\\\n\ud800'}, 20_000)
            (asked,) = peer.asked
            assert (asked.operation, asked.body) == ("PutItem", {"text": 'é中😀"\\\n\ud800'})
            assert asked.fields["content-type"] == "application/x-amz-json-1.0"
            assert asked.fields["accept-encoding"] == "identity"
            assert "zae-limiter" in asked.fields["user-agent"]

    drive(sync, scenario())


@BOTH
def test_a_clock_that_is_wrong_is_corrected(sync: bool, peer: Peer) -> None:
    """A request refused for its date did not happen; it is sent again with the service's own date."""
    theirs = "Thu, 01 Jan 2032 12:00:00 GMT"

    async def scenario() -> None:
        async with connected(sync, peer) as transport:
            peer.say(refusal("InvalidSignatureException", "Signature expired", {"Date": theirs}))
            assert await ask(transport) == {}
            assert len(peer.asked) == 2
            assert peer.asked[1].fields["x-amz-date"].startswith("20320101T12000")
            assert await ask(transport) == {}
            assert peer.asked[2].fields["x-amz-date"].startswith("20320101T12000")

            peer.say(refusal("InvalidSignatureException", "wrong key", {"Date": theirs}))
            with pytest.raises(ServiceError, match="wrong key"):
                await ask(transport)
            assert len(peer.asked) == 4

    drive(sync, scenario())


@BOTH
@pytest.mark.parametrize("date", [None, "yesterday", "Thu, 01 Jan 2032 12:00:00 GMT"])
def test_a_refusal_for_other_reasons_is_not_repeated(sync: bool, peer: Peer, date: str | None) -> None:
    """Also if the clock should be wrong."""

    async def scenario() -> None:
        async with connected(sync, peer) as transport:
            fields = {"Date": date} if date else {}
            code = "InvalidSignatureException" if date != "Thu, 01 Jan 2032 12:00:00 GMT" else "AccessDenied"
            peer.say(refusal(code, fields=fields))
            with pytest.raises(ServiceError):
                await ask(transport)
            assert len(peer.asked) == 1

    drive(sync, scenario())
