"""Requests signed and sent by our own hand, in either colour.

A call signs its request, takes a connection, and reads the answer. What differs between the colours is a
``Wire``: how to connect, how to wait and how to do slow work aside. Nothing is sent twice, with one
exception that cannot do harm: a request that was refused for its date is signed again by the service's
clock.
"""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncGenerator, Callable, Coroutine, Hashable
from json.scanner import make_scanner
from typing import Any, Protocol

from ....runtime.colour import Colour, ForkSafe, Signal
from ....runtime.world import World
from ..access import Access
from ..dates import Dates, seconds_of
from ..expressions import Payload, Request
from ..request_templates import Rendered
from ..transport import Transport, TransportError, refusal, understood
from .endpoint import Target
from .http1 import Response
from .identity import Identity, Workers
from .pool import Connection, Pool

logger = logging.getLogger(__name__)

SKEW_MIN_S = 240
"""AWS accepts a date that is five minutes off; a refusal for less is not about the clock."""

DATE_CODES = frozenset(
    {"InvalidSignatureException", "RequestExpired", "RequestInTheFuture", "RequestTimeTooSkewed"}
)

_scan: Any = make_scanner(json.JSONDecoder())  # type: ignore[arg-type]  # the stubs are mistaken
_write_json = json.JSONEncoder(separators=(",", ":")).encode


class Wire(Workers, Protocol):
    """A colour's way to the network."""

    @property
    def colour(self) -> Colour: ...

    @property
    def lanes(self) -> Colour: ...

    @property
    def home(self) -> Callable[[], Hashable] | None:
        """What connections cannot leave besides the process."""
        ...

    def signal(self) -> Signal: ...

    def until_shutdown(
        self, close: Callable[[], Coroutine[Any, Any, None]]
    ) -> AsyncGenerator[None, None] | None:
        """Have something closed when its ``home`` ends, for as long as what is returned is held."""
        ...

    async def abandon(self, job: Any) -> None:
        """Let go of work that was started, and of what did it."""
        ...

    async def connect(self, target: Target, until_ms: float, share_s: float) -> Connection:
        """A new connection; no address may take longer than its share to accept one."""
        ...


class LeanTransport:
    """A way to DynamoDB without a driver, unless something was asked for that only the driver does."""

    def __init__(self, access: Access, wire: Wire, driver: Callable[[], Transport], dates: Dates) -> None:
        # What is signed is dated by the machine and, once AWS complains, by AWS: a world may be of any time.
        world, self._dates = World(), dates
        self._now_ms, self._ticks_ms = world.now_ms, world.ticks_ms
        self._access, self._wire, self._driver = access, wire, driver
        self.colour, self.lanes = wire.colour, wire.lanes
        self._identity = Identity(access, wire, wire.home, self._ticks_ms)
        self._pools = ForkSafe(self._new_pool, wire.home, bury=Pool.close)
        self._ready = False
        self._instead: Transport | None = None
        self._skew_s = 0

    async def call(self, operation: str, payload: Request, timeout_ms: float) -> Payload:
        if not self._ready:
            await self._prepare()
            if self._instead is not None:
                return await self._instead.call(operation, payload, timeout_ms)
        body = (payload.text if type(payload) is Rendered else _write_json(payload)).encode()
        now_ms = self._ticks_ms()
        until_ms = now_ms + max(timeout_ms, 1)
        response = await self._exchange(operation, body, now_ms, until_ms)
        if response.status != 200 and understood(self._learns_time, response):
            response = await self._exchange(operation, body, self._ticks_ms(), until_ms)
        if response.status == 200:
            return understood(_reply, response)
        raise understood(_refusal, response)

    async def close(self) -> None:
        if self._instead is not None:
            await self._instead.close()
        await self._wire.abandon(self._identity.stop())
        here = self._pools.peek()
        for pool in self._pools.forget_all():
            if pool is not here:
                pool.close()
            elif pool.guard is not None:
                await pool.guard.aclose()
            else:
                await _shut(pool)

    async def _prepare(self) -> None:
        if self._instead is not None:
            return
        await self._identity.prepare()
        if self._identity.obstacle is None:
            self._ready = True
        elif self._instead is None:
            logger.debug("requests go through botocore: %s", self._identity.obstacle)
            self._instead = self._driver()

    async def _exchange(self, operation: str, body: bytes, now_ms: float, until_ms: float) -> Response:
        at_s = self._now_ms() // 1000 + self._skew_s
        identity, pool = self._identity, self._pools.get()
        signer = identity.signer
        if signer is None or identity.checked_s != at_s:
            signer = await identity.renew(at_s, until_ms)
        connection = pool.take_idle(now_ms) or await pool.take(until_ms)
        try:
            request, sent_ms = signer.request(operation, body, at_s), self._dates.ticks_ms()
            response = await connection.exchange(request, until_ms)
            if response.status < 500:
                self._dates.read(_date(response), sent_ms)
        except BaseException:
            pool.drop(connection)
            raise
        if response.reusable:
            pool.give(connection, now_ms)
        else:
            pool.drop(connection)
        return response

    def _new_pool(self) -> Pool:
        target = self._identity.target
        assert target is not None

        async def connect(until_ms: float) -> Connection:
            return await self._wire.connect(target, until_ms, self._access.connect_timeout_s)

        pool = Pool(target.pool, connect, self._wire.signal, self._ticks_ms)
        pool.guard = self._wire.until_shutdown(lambda: _shut(pool))
        return pool

    def _learns_time(self, response: Response) -> bool:
        """Whether a refusal was about the date, and the service's own date helps."""
        if response.status >= 500 or _code(_content(response)) not in DATE_CODES:
            return False
        theirs_s = seconds_of(_date(response))
        if theirs_s is None:
            return False
        skew_s = theirs_s - self._now_ms() // 1000
        if abs(skew_s - self._skew_s) < SKEW_MIN_S:
            return False
        logger.warning(
            "this clock differs from that of DynamoDB by %d s; requests are dated by theirs", skew_s
        )
        self._skew_s = skew_s
        return True


def _date(response: Response) -> str:
    return response.fields.get(b"date", b"").decode("latin-1")


async def _shut(pool: Pool) -> None:
    """Close the idle connections of this home, and wait until nothing is left of them."""
    for connection in pool.close():
        await connection.closed()


def _reply(response: Response) -> Payload:
    text = response.body.decode()
    # Without the search for blanks around it, which DynamoDB does not send.
    found, end = _scan(text, 0)
    if end != len(text):
        found = json.loads(text)
    if type(found) is not dict:
        raise TypeError(f"it is {type(found)} and not an object")
    return found


def _refusal(response: Response) -> TransportError:
    body = _content(response)
    message = body.get("message") or body.get("Message") or ""
    return refusal(response.status, _code(body), str(message), body)


def _content(response: Response) -> dict[str, Any]:
    """The body of a refusal, as far as it can be read."""
    try:
        body = json.loads(response.body)
    except ValueError:
        return {}
    return body if type(body) is dict else {}


def _code(body: dict[str, Any]) -> str:
    """``com.amazonaws.dynamodb.v20120810#ThrottlingException:…`` without what surrounds it."""
    return str(body.get("__type", "")).rpartition("#")[2].partition(":")[0]
