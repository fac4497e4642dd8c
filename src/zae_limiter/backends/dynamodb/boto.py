"""The blocking transport through botocore, with its retries switched off: see ``access``.

It is for who asks for it by ``transport=boto``, and for what our own transport leaves to a driver. Whatever
is not surely unsent counts as ambiguous.
"""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import botocore.exceptions as failures
from botocore import xform_name
from botocore.config import Config

from ...runtime.colour import Blocking, ForkSafe
from ...runtime.world import World
from .access import Access
from .dates import Dates
from .expressions import Payload, Request, fields_of
from .transport import NoReply, NotConfigured, TransportError, discreet, refusal, without_user

_NO_CREDENTIALS = (
    failures.NoCredentialsError,
    failures.PartialCredentialsError,
    failures.CredentialRetrievalError,
    failures.NoAuthTokenError,
    failures.TokenRetrievalError,
    failures.SSOError,
    failures.MetadataRetrievalError,
)
_NO_DESTINATION = (
    failures.NoRegionError,
    failures.InvalidRegionError,
    failures.UnknownEndpointError,
    failures.EndpointProviderError,
    failures.ProfileNotFound,
)
_NEVER_SENT = (failures.ConnectTimeoutError, failures.ProxyConnectionError)

CONNECT_SLACK_S = 0.05
"""An attempt that has little time left still gets enough to fail at connecting."""

read_timeout_s: contextvars.ContextVar[float] = contextvars.ContextVar("read_timeout_s")
"""How long the request that is being sent may wait for its answer."""


class BotocoreTransport:
    """One client per process, safe for threads."""

    def __init__(self, access: Access, dates: Dates | None = None) -> None:
        self.colour = self.fanout = Blocking()
        self._access, self._dates = access, dates or Dates(World())
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
                client = self._access.botocore_session().create_client(
                    "dynamodb",
                    region_name=self._access.region,
                    endpoint_url=self._access.endpoint_url,
                    config=self._access.client_config(Config()),
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
    match error:
        case failures.ClientError():
            answer = error.response.get("Error", {})
            status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 400)
            error.args = (discreet(str(error)),)
            return refusal(status, answer.get("Code", "?"), answer.get("Message", ""), error.response)
        case _ if isinstance(error, _NO_CREDENTIALS):
            return NotConfigured(
                f"no AWS credentials: {error}; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, "
                "set AWS_PROFILE, or attach a role"
            )
        case _ if isinstance(error, _NO_DESTINATION):
            return NotConfigured(
                f"no AWS region: {error}; add region=… to the store's URL or set AWS_DEFAULT_REGION"
            )
        case _ if isinstance(error, _NEVER_SENT):
            return NoReply(str(error), ambiguous=False)
        case failures.EndpointConnectionError():
            return NoReply(str(error), ambiguous=not isinstance(error.kwargs.get("error"), never_connected))
        case _:
            return NoReply(f"{type(error).__name__}: {error}", ambiguous=True)
