"""Requests signed and sent by our own hand, in either colour.

A call signs its request, takes a connection, and reads the answer. Nothing is sent twice, with one
exception that cannot do harm: a request that was refused for its date is signed again by the service's
clock.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from functools import partial
from json.scanner import make_scanner
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from ....runtime.colour import Colour, ForkSafe, until_shutdown
from ....runtime.world import World
from ...pool import Pool
from ..boto import Access
from ..expressions import Payload, Request
from ..transport import Dates, NoReply, Transport, TransportError, refusal, seconds_of, unreadable
from .credentials import SignerSource
from .http1 import Response

if TYPE_CHECKING:
    from .blocking import BlockingConnection, BlockingNetwork
    from .loop import LoopConnection, LoopNetwork

    # What differs between the colours.
    Network: TypeAlias = BlockingNetwork | LoopNetwork
    HttpConnection: TypeAlias = BlockingConnection | LoopConnection

logger: Final = logging.getLogger(__name__)

SKEW_MIN_S = 240
"""AWS accepts a date that is five minutes off; a refusal for less is not about the clock."""

DATE_CODES = frozenset(
    {"InvalidSignatureException", "RequestExpired", "RequestInTheFuture", "RequestTimeTooSkewed"}
)

_scan: Any = make_scanner(json.JSONDecoder())  # type: ignore[arg-type]  # the stubs are mistaken
"""Reads JSON without the search for blanks around it, which DynamoDB does not send."""

_write_json = json.JSONEncoder(separators=(",", ":")).encode


class HttpTransport:
    """A way to DynamoDB without a driver, unless something was asked for that only the driver does."""

    def __init__(
        self, access: Access, network: Network, driver: Callable[[], Transport], dates: Dates
    ) -> None:
        # What is signed is dated by the machine and, once AWS complains, by AWS: a world may be of any time.
        world, self._dates = World(), dates
        self._now_ms, self._ticks_ms = world.now_ms, world.ticks_ms
        self._access, self._network, self._driver = access, network, driver
        self.colour: Colour = network.colour
        self.fanout: Colour = network.fanout
        self._signers = SignerSource(access, network, self._ticks_ms)
        self._pools = ForkSafe(self._new_pool, network.home, bury=Pool.close)
        self._ready = False
        self._instead: Transport | None = None
        self._skew_s = 0

    async def call(self, operation: str, request: Request, timeout_ms: float) -> Payload:
        if not self._ready:
            await self._prepare()
            if self._instead is not None:
                return await self._instead.call(operation, request, timeout_ms)
        body = (request if type(request) is str else _write_json(request)).encode()
        now_ms = self._ticks_ms()
        until_ms = now_ms + max(timeout_ms, 1)
        is_redated = False
        while True:
            at_s = self._now_ms() // 1000 + self._skew_s
            signers, pool = self._signers, self._pools.get()
            signer = signers.signer
            if signer is None or signers.checked_s != at_s:
                signer = await signers.renew(at_s, until_ms)
            connection = pool.take_idle(now_ms) or await pool.take(until_ms)
            try:
                signed, sent_ms = signer.request(operation, body, at_s), self._dates.ticks_ms()
                response = await connection.exchange(signed, until_ms)
                if response.status < 500:
                    self._dates.read(response.fields.get(b"date"), sent_ms)
            except BaseException:
                pool.drop(connection)
                raise
            if response.reusable:
                pool.give(connection, now_ms)
            else:
                pool.drop(connection)
            try:
                if response.status == 200:
                    text = response.body.decode()
                    found, end = _scan(text, 0)
                    if end != len(text):
                        found = json.loads(text)
                    if type(found) is not dict:
                        raise TypeError(f"it is {type(found)} and not an object")
                    return found
                refused = _content(response)
                if is_redated or not self._learns_time(response, refused):
                    failed = _refusal(response.status, refused)
                    break
            except Exception as error:
                raise unreadable(error) from error
            now_ms, is_redated = self._ticks_ms(), True
        raise failed

    async def close(self) -> None:
        if self._instead is not None:
            await self._instead.close()
        await self._network.abandon(self._signers.stop())
        here = self._pools.peek()
        for pool in self._pools.forget_all():
            if pool is not here:
                pool.close()
            elif pool.guard is not None:
                await pool.guard.aclose()
            else:
                await pool.shut()

    async def _prepare(self) -> None:
        if self._instead is not None:
            return
        await self._signers.prepare()
        if self._signers.obstacle is None:
            self._ready = True
        elif self._instead is None:
            logger.debug("requests go through botocore: %s", self._signers.obstacle)
            self._instead = self._driver()

    def _new_pool(self) -> Pool[HttpConnection]:
        target = self._signers.target
        assert target is not None
        network, share_s = self._network, self._access.connect_timeout_s

        async def connect(until_ms: float) -> HttpConnection:
            return await network.connect(target, until_ms, share_s)

        busy = partial(NoReply, ambiguous=False)
        pool = Pool(connect, target.pool, network.fanout.signal, self._ticks_ms, busy)
        if self._network.home is not None:
            pool.guard = until_shutdown(pool.shut)
        return pool

    def _learns_time(self, response: Response, refused: Payload) -> bool:
        """Whether a refusal was about the date, and the service's own date helps."""
        theirs_s = seconds_of(response.fields.get(b"date", b""))
        if response.status >= 500 or _code(refused) not in DATE_CODES or theirs_s is None:
            return False
        skew_s = theirs_s - self._now_ms() // 1000
        if abs(skew_s - self._skew_s) < SKEW_MIN_S:
            return False
        logger.warning(
            "this clock differs from that of DynamoDB by %d s; requests are dated by theirs", skew_s
        )
        self._skew_s = skew_s
        return True


def _refusal(status: int, refused: Payload) -> TransportError:
    message = refused.get("message") or refused.get("Message") or ""
    return refusal(status, _code(refused), str(message), refused)


def _content(response: Response) -> Payload:
    """The body of a refusal, as far as it can be read."""
    try:
        body = json.loads(response.body)
    except ValueError:
        return {}
    return body if type(body) is dict else {}


def _code(refused: Payload) -> str:
    """``com.amazonaws.dynamodb.v20120810#ThrottlingException:…`` without what surrounds it."""
    return str(refused.get("__type", "")).rpartition("#")[2].partition(":")[0]
