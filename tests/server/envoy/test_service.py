"""Envoy asks a server that was started, over a real connection and in the published messages."""

from __future__ import annotations

import asyncio
import socket
import sys
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import grpc
import pytest
from envoy.service.ratelimit.v3.rls_pb2 import RateLimitResponse
from google.protobuf.wrappers_pb2 import StringValue

from tests.dynamodb.certificates import make_certificates
from tests.odd_stores import Slow
from tests.server.envoy.calls import (
    OK,
    OVER_LIMIT,
    READER,
    SETTINGS,
    Envoy,
    codes_of,
    descriptor,
    headers_of,
    known_tokens,
    lasting,
    started,
    whose,
)
from zae_limiter import Limit
from zae_limiter.exceptions import InfrastructureError, ValidationError
from zae_limiter.server import ServerConfig
from zae_limiter.server.config import REQUEST_SECONDS_MAX
from zae_limiter.server.envoy import check
from zae_limiter.server.envoy.deciding import Verdict, decide
from zae_limiter.server.state import ServerState


async def refused(call: object) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call  # type: ignore[misc]
    return caught.value.code(), caught.value.details() or ""


async def test_hits_are_taken_until_nothing_is_left() -> None:
    """Each call takes one hit and tells what is left; what is one too many takes nothing."""
    async with started() as envoy:
        for left in range(9, -1, -1):
            answer = await envoy.ask(whose("ann"))
            (status,) = answer.statuses
            assert (answer.overall_code, status.code, status.limit_remaining) == (OK, OK, left)
            assert status.current_limit.name == "requests"
        answer = await envoy.ask(whose("ann"))
        (status,) = answer.statuses
        assert (answer.overall_code, status.code, status.limit_remaining) == (OVER_LIMIT, OVER_LIMIT, 0)
        assert (await envoy.ask(whose("bob"))).overall_code == OK
        assert await envoy.left("ann") == 0


async def test_headers_and_limits_are_told() -> None:
    """The headers are those of the middleware; a limit is told in the unit that Envoy has a name for."""
    limits = [Limit.per_day("requests", 24), Limit.per_month("monthly", 1000)]
    async with started() as envoy:
        await envoy.limiter.set_resource_defaults("edge", limits)
        answer = await envoy.ask(whose("ann"), hits=24)
        headers = headers_of(answer)
        assert '"requests";q=24;w=86400' in headers["RateLimit-Policy"]
        assert '"monthly";q=1000;w=' in headers["RateLimit-Policy"]
        assert '"requests";r=0;t=3' in headers["RateLimit"]
        assert "Retry-After" not in headers
        (status,) = answer.statuses
        assert status.current_limit.requests_per_unit == 24
        assert status.current_limit.unit == RateLimitResponse.RateLimit.DAY
        assert 80_000 < status.duration_until_reset.seconds <= 86_400
        answer = await envoy.ask(whose("ann"), hits=2)
        headers = headers_of(answer)
        assert 3600 < int(headers["Retry-After"]) <= 7200
        assert "ann" not in str(answer)
        assert not {name.lower() for name in headers} & {"content-type", "content-length", "cache-control"}
        never = headers_of(await envoy.ask(whose("ann"), hits=25))
        assert (never["Retry-After"], never["x-should-retry"]) == ("31536000", "false")


async def test_how_many_hits() -> None:
    """A descriptor's hits go before the request's, which go before one; none asks whether there is debt."""
    async with started() as envoy:
        await envoy.ask(whose("ann"), hits=4)
        assert await envoy.left("ann") == 6
        await envoy.ask(whose("ann", hits=3), whose("bob"), hits=2)
        assert (await envoy.left("ann"), await envoy.left("bob")) == (3, 8)
        answer = await envoy.ask(whose("ann", hits=0))
        assert (answer.overall_code, answer.statuses[0].limit_remaining) == (OK, 3)
        assert await envoy.left("ann") == 3
        async with envoy.limiter.acquire("ann", "edge", {"requests": 0}) as lease:
            await lease.adjust(requests=4)
        answer = await envoy.ask(whose("ann", hits=0))
        assert (answer.overall_code, codes_of(answer)) == (OVER_LIMIT, [OVER_LIMIT])
        too_many = await envoy.ask(whose("bob", hits=2**64 - 1))
        assert too_many.overall_code == OVER_LIMIT
        assert await envoy.left("bob") == 8


async def test_all_descriptors_or_none() -> None:
    """One that is over its limit refuses the request, and takes nothing of the others."""
    async with started() as envoy:
        await envoy.ask(whose("ann"), hits=10)
        answer = await envoy.ask(whose("bob"), whose("ann"), whose("bob", hits=2))
        assert (answer.overall_code, codes_of(answer)) == (OVER_LIMIT, [OK, OVER_LIMIT, OK])
        assert await envoy.left("bob") == 10
        assert answer.statuses[0].limit_remaining == 10
        answer = await envoy.ask(whose("bob"), whose("cy"), whose("bob", hits=2))
        assert (answer.overall_code, codes_of(answer)) == (OK, [OK] * 3)
        assert [status.limit_remaining for status in answer.statuses] == [7, 9, 7]
        answer = await envoy.ask(whose("ann", hits=5, negative=True), whose("ann", hits=1))
        assert codes_of(answer) == [OK, OVER_LIMIT]
        assert await envoy.left("ann") == 0


async def test_what_a_parent_refuses() -> None:
    """A parent's limit refuses the descriptor that is charged to it; its numbers are nobody's business."""
    async with started() as envoy:
        limiter = envoy.limiter
        await limiter.create_entity("org")
        await limiter.create_entity("ann", parent_id="org", cascade=True)
        await limiter.set_limits("org", [lasting(3)], "edge")
        answer = await envoy.ask(whose("ann"), hits=3)
        assert (answer.overall_code, answer.statuses[0].limit_remaining) == (OK, 7)
        assert "r=7" in headers_of(answer)["RateLimit"]
        assert (await envoy.left("org"), await envoy.left("ann")) == (0, 0)
        for others in ((), (whose("bob"),)):
            answer = await envoy.ask(whose("ann"), *others)
            assert codes_of(answer) == [OVER_LIMIT, *[OK for _ in others]]
            assert not answer.statuses[0].HasField("current_limit")
            assert answer.statuses[0].duration_until_reset.seconds > 0
            assert "q=1;" in headers_of(answer)["RateLimit-Policy"]
            assert "org" not in str(answer)
        back = await envoy.ask(whose("ann", hits=2, negative=True))
        assert back.overall_code == OK
        assert (await envoy.left("org"), await envoy.left("bob")) == (2, 10)
        states = await limiter.repository.get_bucket("ann", "edge")
        assert [state.tokens_milli // 1000 for state in states] == [9]


async def test_what_no_rule_is_for_passes(tmp_path: Path) -> None:
    """Descriptors of other keys or values are OK, and nothing is told of them; beside others, too."""
    rules = """
domains:
  edge:
    - when: {plan: [free, trial], entity: }
      entity: entity
    - {when: {slow: }, entity: {id: everybody}, cost: {requests: 5}}
"""
    async with started(rules, tmp_path) as envoy:
        other = descriptor(("path", "/x"))
        for unknown in (other, whose("ann"), descriptor(("plan", "gold"), ("entity", "ann"))):
            answer = await envoy.ask(unknown, hits=100)
            assert (answer.overall_code, codes_of(answer)) == (OK, [OK])
            assert not answer.statuses[0].HasField("current_limit")
            assert not answer.response_headers_to_add
        assert (await envoy.ask(whose("ann"), domain="elsewhere")).overall_code == OK
        free = descriptor(("entity", "ann"), ("plan", "free"))
        answer = await envoy.ask(other, free, descriptor(("slow", "yes")))
        assert [status.limit_remaining for status in answer.statuses] == [0, 9, 5]
        assert await envoy.left("everybody") == 5


async def test_limits_that_are_sent_along(tmp_path: Path) -> None:
    """A limit that Envoy sends along counts instead of what is stored, unless a rule says otherwise."""
    rules = """
domains:
  edge:
    - {when: {entity: }, entity: entity}
    - {when: {fixed: }, entity: fixed, resource: edge, overrides: false}
    - {when: {both: }, entity: both, cost: {requests: 1, tokens: 10}}
"""
    hour = RateLimitResponse.RateLimit.HOUR
    async with started(rules, tmp_path) as envoy:
        answer = await envoy.ask(whose("ann", limit=(3, hour)))
        (status,) = answer.statuses
        assert (status.current_limit.requests_per_unit, status.current_limit.unit) == (3, hour)
        assert status.limit_remaining == 2
        assert (await envoy.ask(whose("ann", limit=(3, hour), hits=3))).overall_code == OVER_LIMIT
        closed = await envoy.ask(whose("bob", limit=(0, hour)))
        assert closed.overall_code == OVER_LIMIT
        assert headers_of(closed)["Retry-After"] == "31536000"
        ignored = await envoy.ask(descriptor(("fixed", "cy"), limit=(0, hour)))
        assert ignored.statuses[0].limit_remaining == 9
        code, told = await refused(envoy.ask(whose("ann", limit=(3, 0))))
        assert (code, "unit" in told) == (grpc.StatusCode.INVALID_ARGUMENT, True)
        code, told = await refused(envoy.ask(descriptor(("both", "x"), limit=(3, hour))))
        assert (code, "overrides: false" in told) == (grpc.StatusCode.INVALID_ARGUMENT, True)


async def test_hits_that_were_used_already(tmp_path: Path) -> None:
    """They are counted in any case; whoever asks for nothing is refused while that has left debt."""
    rules = "domains: {edge: [{when: {entity: }, entity: entity, afterwards: true}]}"
    async with started(rules, tmp_path) as envoy:
        answer = await envoy.ask(whose("ann", hits=0))
        assert answer.overall_code == OK
        answer = await envoy.ask(whose("ann", hits=25), whose("bob", hits=4))
        assert (answer.overall_code, codes_of(answer)) == (OK, [OK, OK])
        assert [status.limit_remaining for status in answer.statuses] == [0, 6]
        assert (await envoy.left("ann"), await envoy.left("bob")) == (-15, 6)
        assert (await envoy.ask(whose("ann", hits=0))).overall_code == OVER_LIMIT
        await envoy.ask(whose("ann", hits=20, negative=True))
        assert (await envoy.ask(whose("ann", hits=0))).overall_code == OK
        assert await envoy.left("ann") == 5


async def test_who_is_switched_off_is_refused() -> None:
    """A switch is a refusal, for an error would let the request pass; the reason is not told."""
    async with started() as envoy:
        await envoy.limiter.disable(entity_id="ann", reason="they did not pay")
        for asked in (whose("ann"), whose("ann", hits=0)):
            answer = await envoy.ask(whose("bob"), asked)
            assert (answer.overall_code, codes_of(answer)) == (OVER_LIMIT, [OK, OVER_LIMIT])
            assert headers_of(answer)["x-should-retry"] == "false"
            assert "pay" not in str(answer)
        assert await envoy.left("bob") == 10


async def test_what_cannot_be_asked() -> None:
    """Seats, unknown limits and resources without any are mistakes of whoever set it up, and told so."""
    async with started() as envoy:
        await envoy.limiter.set_resource_defaults("seats", [Limit.concurrent("requests", 3)])
        for hits in (0, 1, 3, 4):
            code, told = await refused(envoy.ask(whose("ann", hits=hits), domain="seats"))
            assert (code, "seats" in told) == (grpc.StatusCode.FAILED_PRECONDITION, True), told
        code, told = await refused(envoy.ask(whose("ann", negative=True), domain="seats"))
        assert code == grpc.StatusCode.FAILED_PRECONDITION
        assert await envoy.left("ann", "seats") == 3
        await envoy.limiter.set_resource_defaults("others", [lasting(3, "rpm")])
        for domain, word in (("others", "requests"), ("nothing", "set-defaults")):
            for more in ({}, {"hits": 0}, {"negative": True}):
                code, told = await refused(envoy.ask(whose("tenant-7", **more), domain=domain))
                assert (code, word in told) == (grpc.StatusCode.FAILED_PRECONDITION, True), told
                assert "tenant" not in told


async def test_seats_beside_others_take_nothing(tmp_path: Path) -> None:
    """Whoever asks for a seat with other limits has taken none of these, either."""
    rules = "domains: {edge: [{when: {entity: }, entity: entity, cost: {requests: 1, seats: 1}}]}"
    async with started(rules, tmp_path) as envoy:
        await envoy.limiter.set_resource_defaults("edge", [lasting(10), Limit.concurrent("seats", 3)])
        for others in ((), (whose("bob"),)):
            code, _ = await refused(envoy.ask(whose("ann"), *others))
            assert code == grpc.StatusCode.FAILED_PRECONDITION
        assert await envoy.limiter.available("ann", "edge") == {"requests": 10, "seats": 3}


async def test_soft_limits_are_told_to_nobody(tmp_path: Path) -> None:
    """A limit that refuses nobody is in no status: the hard one is, though it has more left."""
    rules = "domains: {edge: [{when: {entity: }, entity: entity, cost: {requests: 1, tried: 1}}]}"
    async with started(rules, tmp_path) as envoy:
        await envoy.limiter.set_resource_defaults("edge", [lasting(10), lasting(2, "tried").softly()])
        answer = await envoy.ask(whose("ann"), hits=5)
        assert (answer.overall_code, answer.statuses[0].current_limit.name) == (OK, "requests")
        assert "tried" not in str(answer)


async def test_requests_that_say_nothing() -> None:
    """What Envoy never sends is told to be that, and changes nothing."""
    async with started() as envoy:
        wrong = [envoy.ask(), envoy.ask(whose("ann"), domain=""), envoy.ask(descriptor())]
        wrong += [envoy.ask(*[whose("ann")] * 51), envoy.ask(whose("ann"), domain="a#b")]
        wrong += [envoy.send(b"\xff\xff"), envoy.ask(whose("ann"), domain="_default_")]
        for call in wrong:
            code, _ = await refused(call)
            assert code == grpc.StatusCode.INVALID_ARGUMENT
        code, _ = await refused(envoy.send(b"", "Other"))
        assert code == grpc.StatusCode.UNIMPLEMENTED
        assert await envoy.left("ann") == 10


async def test_who_may_ask() -> None:
    """A token with the scope to decide, once; no other, and none of it is told which was near."""
    async with started() as envoy:
        asked = [(None, "UNAUTHENTICATED"), ("zae_wrong", "UNAUTHENTICATED"), (READER, "PERMISSION_DENIED")]
        for secret, name in asked:
            code, told = await refused(Envoy(envoy.server, envoy.channel, secret).ask(whose("ann")))
            assert code.name == name, told
        twice = Envoy(envoy.server, envoy.channel)
        twice.metadata = lambda: [*Envoy.metadata(twice)] * 2  # type: ignore[method-assign]
        code, _ = await refused(twice.ask(whose("ann")))
        assert code == grpc.StatusCode.UNAUTHENTICATED
        assert await envoy.left("ann") == 10
    async with started(tokens=(), insecure_no_tokens=True) as envoy:
        assert (await Envoy(envoy.server, envoy.channel, None).ask(whose("ann"))).overall_code == OK


async def test_over_tls(tmp_path: Path) -> None:
    """With the certificate of the server Envoy asks over TLS, and not without."""
    make_certificates(tmp_path)
    pair = {"tls_cert": tmp_path / "server.pem", "tls_key": tmp_path / "server.key"}
    async with started(**pair) as envoy:
        trusted = grpc.ssl_channel_credentials((tmp_path / "authority.pem").read_bytes())
        address = f"127.0.0.1:{envoy.server.grpc_port}"
        async with grpc.aio.secure_channel(address, trusted) as channel:
            assert (await Envoy(envoy.server, channel).ask(whose("ann"))).overall_code == OK
        code, _ = await refused(envoy.ask(whose("ann")))
        assert code == grpc.StatusCode.UNAVAILABLE


async def test_health() -> None:
    """Its health is told without a token, for itself and for the service."""
    async with started() as envoy:
        check_health = envoy.channel.unary_unary("/grpc.health.v1.Health/Check")
        service = "envoy.service.ratelimit.v3.RateLimitService"
        for name in ("", service):
            assert await check_health(StringValue(value=name).SerializeToString()) == b"\x08\x01"
        code, _ = await refused(check_health(StringValue(value="other").SerializeToString()))
        assert code == grpc.StatusCode.NOT_FOUND
        envoy.server.stopping.set()
        assert await check_health(b"") == b"\x08\x02"


@pytest.mark.parametrize("turns", [0, 3])
async def test_calls_that_are_cancelled_keep_the_books_true(turns: int) -> None:
    """What was answered was taken, and what is missing was asked for: nothing else changes a balance."""
    async with started() as envoy:
        await envoy.limiter.set_resource_defaults("edge", [lasting(100_000)])
        if turns:  # whoever is cancelled is on the way to the store, or back
            connection = envoy.limiter.repository._connection
            connection.backend = connection.writer.backend = Slow(connection.backend, turns)
            connection.writer.swap, connection.writer.colour = None, connection.backend.colour
        before = asyncio.all_tasks()
        for pause in (0, 1, 2, 3, 5, 8):
            calls = [envoy.asking(whose("ann", hits=3), whose("bob", hits=2)) for _ in range(40)]
            for _ in range(pause):
                await asyncio.sleep(0.001)
            for call in calls[::2]:
                call.cancel()
            answers = await asyncio.gather(*calls, return_exceptions=True)
            assert not [a for a in answers[1::2] if isinstance(a, BaseException)]
        late = [envoy.asking(whose("ann", hits=3), timeout=0.0005 * n) for n in range(20)]
        await asyncio.gather(*late, return_exceptions=True)
        await envoy.ask(whose("cy"))
        for task in asyncio.all_tasks() - before:  # what was begun is through
            await asyncio.wait([task], timeout=1)
        ann, bob = 100_000 - await envoy.left("ann"), 100_000 - await envoy.left("bob")
        assert 3 * 6 * 20 <= ann <= 3 * (6 * 40 + 20)
        assert 2 * 6 * 20 <= bob <= 2 * 6 * 40
        assert (ann % 3, bob % 2) == (0, 0)
        for entity_id, used in (("ann", ann), ("bob", bob)):
            (state,) = await envoy.limiter.repository.get_bucket(entity_id, "edge")
            assert state.total_consumed_milli == used * 1000


async def test_workers_share_a_port(tmp_path: Path) -> None:
    """Several workers listen on one port; when one ends the others answer, from the same store."""
    with socket.socket() as free:
        free.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        free.bind(("127.0.0.1", 0))
        place = {"grpc": f"127.0.0.1:{free.getsockname()[1]}", "workers": 2}
        place["store"] = f"sqlite:///{tmp_path}/limits.db?timeout_ms=60000"
        async with started(**place):
            async with started(**place) as envoy:
                for number in range(5):
                    options = [("grpc.use_local_subchannel_pool", 1)]  # a connection of its own
                    async with grpc.aio.insecure_channel(place["grpc"], options) as channel:
                        answer = await Envoy(envoy.server, channel).ask(whose("ann"))
                        assert answer.statuses[0].limit_remaining == 9 - number
            async with grpc.aio.insecure_channel(place["grpc"], options) as channel:
                answer = await Envoy(envoy.server, channel).ask(whose("ann"))
                assert answer.statuses[0].limit_remaining == 4


async def test_calls_under_way_are_answered_before_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever has asked when the server is told to end gets its answer; whoever comes later gets none."""
    server, began, go = ServerState(ServerConfig(**SETTINGS)), asyncio.Event(), asyncio.Event()

    async def held(*given: Any) -> Verdict:
        began.set()
        await go.wait()
        return await decide(*given)

    monkeypatch.setattr("zae_limiter.server.envoy.service.decide", held)
    async with AsyncExitStack() as running:
        await running.enter_async_context(server.running())
        await server.limiter.set_resource_defaults("edge", [lasting(10)])
        async with grpc.aio.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
            call = Envoy(server, channel).asking(whose("ann"))
            await began.wait()
            ending = asyncio.create_task(running.pop_all().aclose())
            await server.stopping.wait()
            go.set()
            assert (await call).overall_code == OK
            await ending
            code, _ = await refused(Envoy(server, channel).ask(whose("ann")))
            assert code == grpc.StatusCode.UNAVAILABLE


async def test_who_never_says_what_it_speaks_delays_no_end() -> None:
    """Neither before its first byte nor after it: what calls may take is not waited for them."""
    async with AsyncExitStack() as running:
        envoy = await running.enter_async_context(started(shutdown_seconds=REQUEST_SECONDS_MAX))
        address = "127.0.0.1", envoy.server.grpc_port
        silent = [socket.create_connection(address) for _ in range(3)]
        silent[0].sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
        assert codes_of(await envoy.ask(whose("key-1"))) == [OK]
        async with asyncio.timeout(100):  # by itself the library ends such a handshake after two minutes
            await running.aclose()
    for one in silent:
        one.close()


async def test_a_port_that_is_taken() -> None:
    """With one worker a port that somebody has is told."""
    async with started() as envoy:
        config = ServerConfig(
            store="memory://", tokens=known_tokens(), grpc=f"127.0.0.1:{envoy.server.grpc_port}"
        )
        with pytest.raises(InfrastructureError, match="choose another --grpc"):
            async with ServerState(config).running():
                pass


def test_what_is_told_before_the_start(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What could not work is told before anything is started, with its way out."""
    tokens = known_tokens()
    with pytest.raises(ValidationError, match="pass --grpc"):
        check(ServerConfig(store="memory://", tokens=tokens, grpc_rules=tmp_path / "x"))
    with pytest.raises(ValidationError, match="--workers 1"):
        check(ServerConfig(store="redis://x", tokens=tokens, grpc="127.0.0.1:0", workers=2))
    with pytest.raises(ValidationError, match="--insecure-no-tls"):
        ServerConfig(store="memory://", tokens=tokens, grpc="0.0.0.0:8401")
    config = ServerConfig(store="memory://", tokens=tokens, grpc="127.0.0.1:0")
    check(config)
    monkeypatch.delitem(sys.modules, "zae_limiter.server.envoy.service", raising=False)
    monkeypatch.delattr("zae_limiter.server.envoy.service", raising=False)
    monkeypatch.setitem(sys.modules, "grpc", None)
    with pytest.raises(InfrastructureError, match="extra: grpc"):
        check(config)
