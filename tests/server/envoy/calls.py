"""A server that answers Envoy on a real port, and a client that asks it in the published messages."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
from envoy.extensions.common.ratelimit.v3.ratelimit_pb2 import RateLimitDescriptor
from envoy.service.ratelimit.v3.rls_pb2 import RateLimitRequest, RateLimitResponse
from envoy.service.ratelimit.v3.rls_pb2_grpc import RateLimitServiceStub

from zae_limiter import Limit, RateLimiter
from zae_limiter.models import PERIOD_SECONDS_MAX
from zae_limiter.server import ServerConfig, Token
from zae_limiter.server.state import ServerState
from zae_limiter.server.tokens import token_of

OK, OVER_LIMIT = RateLimitResponse.OK, RateLimitResponse.OVER_LIMIT
SECRET = "zae_" + "5" * 64
READER = "zae_" + "6" * 64

NEGATIVE = b"\x20\x01"
"""``is_negative_hits`` as Envoy sends it, which the installed messages do not know yet."""


def lasting(capacity: int, name: str = "requests") -> Limit:
    """A limit that gains nothing while a test looks at it."""
    return Limit(name, capacity, 1, PERIOD_SECONDS_MAX)


def descriptor(
    *entries: tuple[str, str],
    hits: int | None = None,
    negative: bool = False,
    limit: tuple[int, int] | None = None,
) -> RateLimitDescriptor:
    """One descriptor of a request."""
    made = RateLimitDescriptor()
    for key, value in entries:
        made.entries.add(key=key, value=value)
    if hits is not None:
        made.hits_addend.value = hits
    if limit is not None:
        made.limit.requests_per_unit, made.limit.unit = limit
    if negative:
        made.MergeFromString(NEGATIVE)
    return made


def whose(entity_id: str, **more: Any) -> RateLimitDescriptor:
    """The descriptor of an entity, by the default rule."""
    return descriptor(("entity", entity_id), **more)


class Envoy:
    """A proxy that asks."""

    def __init__(self, server: ServerState, channel: Any, secret: str | None = SECRET) -> None:
        self.server, self.channel, self._secret = server, channel, secret
        self._stub = RateLimitServiceStub(channel)

    @property
    def limiter(self) -> RateLimiter:
        return self.server.limiter

    def asking(
        self, *descriptors: RateLimitDescriptor, domain: str = "edge", hits: int = 0, **more: Any
    ) -> Any:
        """A call that is under way."""
        request = RateLimitRequest(domain=domain, descriptors=descriptors, hits_addend=hits)
        return self._stub.ShouldRateLimit(request, metadata=self.metadata(), **more)

    async def ask(self, *descriptors: RateLimitDescriptor, **more: Any) -> RateLimitResponse:
        return await self.asking(*descriptors, **more)

    def metadata(self) -> Sequence[tuple[str, str]]:
        return () if self._secret is None else (("authorization", f"Bearer {self._secret}"),)

    async def send(self, data: bytes, method: str = "ShouldRateLimit") -> bytes:
        """Any bytes as a request."""
        call = self.channel.unary_unary(f"/envoy.service.ratelimit.v3.RateLimitService/{method}")
        answer: bytes = await call(data, metadata=self.metadata())
        return answer

    async def left(self, entity_id: str, resource: str = "edge", name: str = "requests") -> int:
        return (await self.limiter.available(entity_id, resource))[name]


def known_tokens() -> tuple[Token, ...]:
    return token_of("envoy", ["decide"], SECRET), token_of("reader", ["read"], READER)


SETTINGS: Mapping[str, Any] = {"store": "memory://", "tokens": known_tokens(), "grpc": "127.0.0.1:0"}


@asynccontextmanager
async def started(rules: str | None = None, path: Path | None = None, **config: Any) -> AsyncIterator[Envoy]:
    """A server whose domain ``edge`` lets 10 hits pass, and a client of it."""
    if rules is not None:
        assert path is not None
        (path / "envoy.yaml").write_text(rules)
        config["grpc_rules"] = path / "envoy.yaml"
    server = ServerState(ServerConfig(**{**SETTINGS, **config}))
    async with server.running():
        await server.limiter.set_resource_defaults("edge", [lasting(10)])
        async with grpc.aio.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
            yield Envoy(server, channel)


def headers_of(answer: RateLimitResponse) -> Mapping[str, str]:
    found = {header.key: header.value for header in answer.response_headers_to_add}
    assert len(found) == len(answer.response_headers_to_add), "a header is told twice"
    return found


def codes_of(answer: RateLimitResponse) -> list[int]:
    return [status.code for status in answer.statuses]
