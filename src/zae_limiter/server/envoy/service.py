"""The gRPC server of one worker, from its start to its end.

    async with answering(server) as port: ...

It answers ``ShouldRateLimit``, and ``grpc.health.v1`` without a token. Who may ask, over which connection and
for how long, is what the HTTP server says, too. What goes wrong within is told to the log only; Envoy gets a
status, and does then what its ``failure_mode_deny`` says.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, Never

import grpc
from google.protobuf.message import DecodeError
from google.protobuf.wrappers_pb2 import Int32Value, StringValue

from ...exceptions import ClosedError, InfrastructureError, RateLimiterUnavailable
from ...runtime.logs import server_logger as logger
from ..config import address_of
from ..state import ServerState
from ..tokens import TokenScope
from . import rules_of
from .asking import asked_by
from .deciding import Unanswerable, decide
from .telling import response_to
from .wire import Misread, read_request

SERVICE = "envoy.service.ratelimit.v3.RateLimitService"
HEALTH = "grpc.health.v1.Health"

MESSAGE_BYTES_MAX = 2**20
"""Envoy puts headers of clients into descriptors, and lets pass what is too large to be answered."""

TOLD_MAX = 256
"""So many kinds of what is set up wrong are told to the log."""

_SERVING, _NOT_SERVING = 1, 2

QUIET_SECONDS = 0.05
"""When nothing has been under way for so long, twice in a row, the end waits for nobody."""

Method = Callable[[bytes, Any], Coroutine[Any, Any, bytes]]


@asynccontextmanager
async def answering(server: ServerState) -> AsyncIterator[int]:
    """Answer Envoy until the end, and then as long as calls under way may take; gives the port."""
    config = server.config
    assert config.grpc is not None
    service = _RateLimitService(server)
    methods: dict[str, dict[str, Method]] = {
        SERVICE: {"ShouldRateLimit": service.should_rate_limit},
        HEALTH: {"Check": service.check},
    }
    listening = grpc.aio.server(
        handlers=[_handler(name, known) for name, known in methods.items()],
        maximum_concurrent_rpcs=config.concurrent_max,
        options=[
            ("grpc.so_reuseport", int(config.workers > 1)),
            ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
            ("grpc.max_concurrent_streams", config.concurrent_max),
        ],
    )
    port = _bound(listening, server)
    await listening.start()
    try:
        yield port
    finally:
        await _end(listening, service, config.shutdown_seconds)


async def _end(listening: Any, service: _RateLimitService, seconds_max: float) -> None:
    """Answer what is under way; a connection that says nothing, not even what it speaks, keeps nobody."""
    ending, quiet = asyncio.create_task(listening.stop(seconds_max)), 0
    while quiet < 2 and not ending.done():
        await asyncio.wait({ending}, timeout=QUIET_SECONDS)
        quiet = 0 if service.under_way else quiet + 1
    await listening.stop(None)
    await ending


def _handler(name: str, methods: dict[str, Method]) -> Any:
    known = {method: grpc.unary_unary_rpc_method_handler(call) for method, call in methods.items()}
    return grpc.method_handlers_generic_handler(name, known)


def _bound(listening: Any, server: ServerState) -> int:
    config = server.config
    assert config.grpc is not None
    host, port = address_of("grpc", config.grpc)
    where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    pair = None
    if config.tls_cert is not None and config.tls_key is not None:
        pair = config.tls_key.read_bytes(), config.tls_cert.read_bytes()
    try:
        if pair is None:
            return int(listening.add_insecure_port(where))
        return int(listening.add_secure_port(where, grpc.ssl_server_credentials([pair])))
    except RuntimeError as error:
        raise InfrastructureError(f"cannot listen on {where} for Envoy; choose another --grpc") from error


class _RateLimitService:
    """The methods, from bytes to bytes."""

    def __init__(self, server: ServerState) -> None:
        self._server, self._rules = server, rules_of(server.config)
        self._told: set[str] = set()
        self.under_way = 0

    async def check(self, data: bytes, context: Any) -> bytes:
        """``grpc.health.v1``: its messages are a text and a number, each in the first field."""
        try:
            asked = StringValue.FromString(data).value
        except DecodeError:
            asked = "?"
        if asked not in ("", SERVICE):
            await _abort(context, grpc.StatusCode.NOT_FOUND, "this server has no such service")
        ending = self._server.stopping.is_set()
        told: bytes = Int32Value(value=_NOT_SERVING if ending else _SERVING).SerializeToString()
        return told

    async def should_rate_limit(self, data: bytes, context: Any) -> bytes:
        """``ShouldRateLimit``."""
        self.under_way += 1
        context.add_done_callback(self._done)
        await self._check_caller(context)
        try:
            async with asyncio.timeout(self._server.config.request_seconds_max):
                return await self._answer(data)
        except Misread as error:
            code, told = grpc.StatusCode.INVALID_ARGUMENT, str(error)
            self._tell_once(told)
        except Unanswerable as error:
            code, told = grpc.StatusCode.FAILED_PRECONDITION, str(error)
            self._tell_once(told)
        except (RateLimiterUnavailable, ClosedError):
            code = grpc.StatusCode.UNAVAILABLE
            told = "whether the request is within its limits cannot be said just now"
        except TimeoutError:
            code, told = grpc.StatusCode.DEADLINE_EXCEEDED, "it took too long"
        except Exception:
            logger.exception("a call of Envoy could not be answered")
            code, told = grpc.StatusCode.INTERNAL, "a mistake within; the log of the server tells it"
        return await _abort(context, code, told)

    def _done(self, _: Any) -> None:
        self.under_way -= 1

    async def _answer(self, data: bytes) -> bytes:
        asked = asked_by(read_request(data), self._rules)
        verdict = await decide(self._server.limiter, asked)
        answer: bytes = response_to(asked, verdict, self._server.answers).SerializeToString()
        return answer

    async def _check_caller(self, context: Any) -> None:
        """Go on if whoever calls may ask for decisions."""
        if self._server.config.insecure_no_tokens:
            return
        sent = [value for name, value in context.invocation_metadata() or () if name == "authorization"]
        scheme, _, secret = sent[0].partition(" ") if len(sent) == 1 else ("", "", "")
        caller = self._server.access.bearer(secret.strip()) if scheme.lower() == "bearer" else None
        if caller is None:
            told = "send a token that this server knows, as metadata: authorization: Bearer TOKEN"
            await _abort(context, grpc.StatusCode.UNAUTHENTICATED, told)
        if TokenScope.DECIDE not in caller.scopes:
            await _abort(context, grpc.StatusCode.PERMISSION_DENIED, "this token is not good for 'decide'")

    def _tell_once(self, told: str) -> None:
        """Tell the log what is set up wrong: Envoy may go on as if nothing was."""
        if told not in self._told and len(self._told) < TOLD_MAX:
            self._told.add(told)
            logger.error("Envoy cannot be answered: %s", told)


async def _abort(context: Any, code: Any, told: str) -> Never:
    await context.abort(code, told)
    raise AssertionError("it was aborted")
