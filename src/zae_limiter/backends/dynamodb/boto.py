"""botocore: how to reach DynamoDB by its settings, what its errors mean, and the blocking transport over it.

The transport is for who asks for it by ``transport=boto``, and for what our own one leaves to a driver. What
no session or ``Config`` can bring is a request that is sent twice: a driver would repeat a write whose reply
was lost, and report success. Whatever is not surely unsent counts as ambiguous.
"""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import botocore.session
from botocore import exceptions as failures
from botocore import xform_name
from botocore.config import Config

from ...runtime.colour import Blocking, ForkSafe
from .expressions import Payload, Request, fields_of
from .transport import UNTOLD, Dates, NoReply, NotConfigured, TransportError, discreet, refusal, without_user


def _errors(names: str) -> tuple[type[Exception], ...]:
    return tuple(getattr(failures, name) for name in names.split())


_NO_CREDENTIALS = _errors(
    "NoCredentialsError PartialCredentialsError CredentialRetrievalError NoAuthTokenError TokenRetrievalError"
    " SSOError MetadataRetrievalError"
)
_NO_DESTINATION = _errors(
    "NoRegionError InvalidRegionError UnknownEndpointError EndpointProviderError ProfileNotFound"
)
_NEVER_SENT = _errors("ConnectTimeoutError ProxyConnectionError")

CONNECT_SLACK_S = 0.05
"""An attempt that has little time left still gets enough to fail at connecting."""

read_timeout_s: contextvars.ContextVar[float] = contextvars.ContextVar("read_timeout_s")
"""How long the request that is being sent may wait for its answer."""


# One attempt; the standard mode, because the legacy one has checks of its own that send again.
ONE_ATTEMPT: dict[str, Any] = {"total_max_attempts": 1, "mode": "standard"}

CONNECT_SHARE = 0.45
"""Of the time for a call; two attempts to connect then leave too little for a third."""


@dataclass(frozen=True, slots=True)
class Access:
    """How to reach DynamoDB; what is ``None`` comes from botocore's usual places.

    ``session`` is a boto3 or botocore session, ``config`` a botocore ``Config``.
    """

    region: str | None = None
    endpoint_url: str | None = None
    pool: int = 64
    timeout_ms: int = 1000
    session: Any = None
    config: Any = None

    @property
    def connect_timeout_s(self) -> float:
        """Connecting gives up first: a request that was never sent must not look like a lost reply."""
        return self.timeout_ms / 1000 * CONNECT_SHARE

    def client_config(self, defaults: Any) -> Any:
        """The user's wishes over our defaults, and what must not be wished away over both."""
        # Our requests are built by code that is tested against the engine itself.
        ours = Config(max_pool_connections=self.pool, tcp_keepalive=True, parameter_validation=False)
        forced = Config(
            retries=ONE_ATTEMPT, connect_timeout=self.connect_timeout_s, read_timeout=self.timeout_ms / 1000
        )
        return defaults.merge(ours).merge(self.config or Config()).merge(forced)

    def botocore_session(self) -> Any:
        """The session given, without boto3's shell, or a new one."""
        if self.session is None:
            return botocore.session.Session()
        return getattr(self.session, "_session", self.session)


class BotocoreTransport:
    """One client per process, safe for threads."""

    def __init__(self, access: Access, dates: Dates = UNTOLD) -> None:
        self.colour: Blocking = Blocking()
        self.fanout: Blocking = self.colour
        self._access, self._dates = access, dates
        self._lock = ForkSafe(threading.Lock)
        self._client = ForkSafe(self._connect)
        self._threads = ForkSafe(lambda: ThreadPoolExecutor(access.pool, "zae-limiter-driver"))

    async def call(self, operation: str, request: Request, timeout_ms: float) -> Payload:
        send = getattr(self._client.get(), xform_name(operation))
        seconds = max(timeout_ms, 1) / 1000
        try:
            # The driver's own timeouts are for each piece of an answer, which has any number of them.
            job = self._threads.get().submit(self._call, send, fields_of(request), seconds)
        except RuntimeError:
            # An interpreter that is shutting down starts no threads, but a last refund may still be due.
            return self._call(send, fields_of(request), seconds)
        try:
            return job.result(max(seconds, self._access.connect_timeout_s + CONNECT_SLACK_S))
        except TimeoutError as error:
            raise NoReply(f"no answer within {timeout_ms:.0f} ms", ambiguous=not job.cancel()) from error

    def _call(self, send: Callable[..., Payload], fields: Payload, seconds: float) -> Payload:
        with sending(self._dates, seconds) as received:
            reply = send(**fields)
            received(reply)
        return reply

    async def close(self) -> None:
        if client := self._client.peek():
            client.close()
        if threads := self._threads.forget():
            threads.shutdown(wait=False)

    def _connect(self) -> Any:
        # Making clients from one session is not safe for threads; using one client is.
        with self._lock.get():
            try:
                client = create_client(
                    self._access, self._access.botocore_session(), self._access.region, Config()
                )
            except failures.BotoCoreError as error:
                raise transport_error(error) from error
        client.meta.events.register("before-parameter-build.dynamodb", limit_wait)
        return client


@contextmanager
def sending(
    dates: Dates, seconds: float, never_connected: tuple[type[BaseException], ...] = (Exception,)
) -> Iterator[Callable[[Any], None]]:
    """A request of a driver on its way: its timeout, its errors as ours, and the date of what comes back."""
    token, sent_ms = read_timeout_s.set(seconds), dates.ticks_ms()

    def received(answer: Any) -> None:
        about = answer.get("ResponseMetadata", {}) if isinstance(answer, dict) else {}
        # A server that broke may be wrong about the time, too.
        date = about.get("HTTPHeaders", {}).get("date") if about.get("HTTPStatusCode", 500) < 500 else None
        dates.read(date if isinstance(date, str) else None, sent_ms)

    try:
        yield received
    except TransportError:
        raise
    except Exception as error:
        received(getattr(error, "response", None))
        raise transport_error(error, never_connected) from error
    finally:
        read_timeout_s.reset(token)


def create_client(access: Access, session: Any, region: str | None, config: Any) -> Any:
    wished = access.client_config(config)
    return session.create_client(
        "dynamodb", region_name=region, endpoint_url=access.endpoint_url, config=wished
    )


def limit_wait(context: dict[str, Any], **_: Any) -> None:
    """Give one request its own timeout; versions of botocore that know no such thing use the client's."""
    context["read_timeout"] = read_timeout_s.get()


def transport_error(
    error: Exception, never_connected: tuple[type[BaseException], ...] = (Exception,)
) -> TransportError:
    """What an exception of botocore means.

    ``EndpointConnectionError`` alone proves nothing: aiobotocore raises it for a connection that broke
    after the request was sent, too. It is unsent only if the HTTP client's own error, which it holds,
    is one of ``never_connected``.
    """
    if (said := without_user(str(error))) != str(error):
        error.args = (said,)  # it will stand in a traceback beside ours
    if isinstance(error, failures.ClientError):
        answer = error.response.get("Error", {})
        status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 400)
        error.args = (discreet(str(error)),)
        return refusal(status, answer.get("Code", "?"), answer.get("Message", ""), error.response)
    if isinstance(error, _NO_CREDENTIALS):
        way_out = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, set AWS_PROFILE, or attach a role"
        return NotConfigured(f"no AWS credentials: {error}; {way_out}")
    if isinstance(error, _NO_DESTINATION):
        way_out = "add region=… to the store's URL or set AWS_DEFAULT_REGION"
        return NotConfigured(f"no AWS region: {error}; {way_out}")
    if isinstance(error, _NEVER_SENT):
        return NoReply(str(error), ambiguous=False)
    if isinstance(error, failures.EndpointConnectionError):
        return NoReply(str(error), ambiguous=not isinstance(error.kwargs.get("error"), never_connected))
    return NoReply(f"{type(error).__name__}: {error}", ambiguous=True)
