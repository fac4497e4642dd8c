"""What clients make up: nobody steps past a limit by it, and no answer tells a name."""

from __future__ import annotations

import asyncio
import random

import grpc
import pytest
from envoy.service.ratelimit.v3.rls_pb2 import RateLimitResponse

from tests.server.envoy.calls import OK, OVER_LIMIT, Envoy, lasting, started

HOSTILE = [
    *(b"", b"\xff", b"\x00", b"a#b", b"$system", b" ann", b"ann ", b"x" * 300, "é".encode() * 300),
    *(
        "\u202eevil".encode(),
        "\ud800".encode("utf-8", "surrogatepass"),
        b"_default_",
        b"*",
        b"{}",
        b"\xc0\x80",
    ),
    *(b"../../x", b"a\nb", b"%s%n", b"'; drop table", b"sha256:0", b"\xf0\x9f\x92\xa9", b"x" * 60_000),
]


def field(number: int, data: bytes) -> bytes:
    """A field of bytes as it is sent."""
    size, length = len(data), b""
    while True:
        size, low = size >> 7, size & 0x7F
        length += bytes([low | (0x80 if size else 0)])
        if not size:
            return bytes([number << 3 | 2]) + length + data


def descriptor_of(value: bytes, key: bytes = b"entity", more: bytes = b"") -> bytes:
    """A descriptor in a request; its texts are sent as they are, be they text or not."""
    return field(2, field(1, field(1, key) + field(2, value)) + more)


async def overall(envoy: Envoy, data: bytes) -> int:
    """The code of an answer; what was answered names nobody."""
    answer = RateLimitResponse.FromString(await envoy.send(data))
    assert "system" not in str(answer)
    assert "sha256" not in str(answer)
    return answer.overall_code


@pytest.mark.parametrize("value", HOSTILE, ids=[repr(value[:12]) for value in HOSTILE])
async def test_every_value_has_a_limit(value: bytes) -> None:
    """Whatever a header says is somebody, who is refused when nothing is left."""
    async with started() as envoy:
        await envoy.limiter.set_resource_defaults("edge", [lasting(2)])
        sent = field(1, b"edge") + descriptor_of(value)
        assert [await overall(envoy, sent) for _ in range(3)] == [OK, OK, OVER_LIMIT]
        assert await overall(envoy, field(1, b"edge") + descriptor_of(b"other")) == OK


async def test_what_is_too_large_is_no_request() -> None:
    """All headers that Envoy lets pass fit several times; a message without end is not received."""
    async with started() as envoy:
        sent = field(1, b"edge") + descriptor_of(b"x" * 60_000) * 16
        assert await overall(envoy, sent) == OVER_LIMIT  # for it is sixteen hits
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await envoy.send(field(1, b"edge") + descriptor_of(b"x" * 2**20))
        assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_who_names_itself_twice_is_refused() -> None:
    """Two limits for one bucket cannot both be kept: that refuses, for an error would let it pass."""
    hour, day = field(2, b"\x08\x05\x10\x03"), field(2, b"\x08\x63\x10\x04")
    async with started() as envoy:
        sent = field(1, b"edge") + descriptor_of(b"ann", b"api_key", hour) + descriptor_of(b"ann", more=day)
        assert await overall(envoy, sent) == OVER_LIMIT
        sent = field(1, b"edge") + descriptor_of(b"ann", b"api_key", hour) + descriptor_of(b"bob", more=day)
        assert await overall(envoy, sent) == OK


@pytest.mark.parametrize("seed", range(3))
async def test_any_bytes_leave_the_server_well(seed: int) -> None:
    """Requests that were damaged on their way are answered or refused, never a mistake within; books hold."""
    chance = random.Random(seed)
    seen = set()
    async with started() as envoy:

        async def damaged() -> None:
            whole = field(1, b"edge") + b"".join(
                descriptor_of(chance.choice(HOSTILE)[:40], chance.choice([b"entity", b"api_key", b""]))
                for _ in range(chance.randint(1, 4))
            )
            data = bytearray(whole)
            for _ in range(chance.randint(0, 6)):
                data[chance.randrange(len(data))] = chance.randrange(256)
            try:
                seen.add(await overall(envoy, bytes(data)))
            except grpc.aio.AioRpcError as error:
                seen.add(error.code())

        for _ in range(12):
            await asyncio.gather(*[damaged() for _ in range(10)])
        assert await overall(envoy, field(1, b"edge") + descriptor_of(b"somebody new")) == OK
    assert seen <= {OK, OVER_LIMIT, grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.FAILED_PRECONDITION}
    assert {OK, grpc.StatusCode.INVALID_ARGUMENT} <= seen
