"""The transport for event loops: aiobotocore with its retries switched off.

It follows the rules of the blocking one and shares its settings and its reading of errors. A client belongs
to an event loop, so each loop has its own.
"""

from __future__ import annotations

import socket
from collections.abc import AsyncGenerator
from types import SimpleNamespace
from typing import Any

import botocore.exceptions as failures
from aiobotocore.config import AioConfig
from aiobotocore.credentials import AioCredentials
from aiobotocore.session import AioSession
from aiohttp import ClientConnectorError
from botocore import xform_name

from ...runtime.colour import ForkSafe, until_shutdown
from ...runtime.loops import Asyncio
from .boto import CONNECT_SLACK_S, Access, create_client, limit_wait, sending, transport_error
from .expressions import Payload, Request, fields_of
from .transport import UNTOLD, Dates, NoReply


class _Client:
    """The client of one event loop, once there is one, and what closes it when that loop shuts down."""

    made: Any = None
    guard: AsyncGenerator[None, None] | None = None


class AiobotocoreTransport:
    def __init__(self, access: Access, dates: Dates = UNTOLD) -> None:
        self.colour: Asyncio = Asyncio()
        self.fanout: Asyncio = self.colour
        self._access, self._dates = access, dates
        self._clients = ForkSafe(_Client, self.colour.home)

    async def call(self, operation: str, request: Request, timeout_ms: float) -> Payload:
        seconds = max(timeout_ms, 1) / 1000
        client = self._clients.get().made or await self._connected(seconds)
        # The client times connecting and reading by itself and tells them apart. This bounds the whole.
        bound_s = max(seconds, self._access.connect_timeout_s + CONNECT_SLACK_S)
        with sending(self._dates, seconds, (ClientConnectorError, socket.gaierror)) as received:
            send = getattr(client, xform_name(operation))
            try:
                reply: Payload = await self.colour.within(bound_s, send(**fields_of(request)))
            except TimeoutError as error:
                raise NoReply(f"no answer within {timeout_ms:.0f} ms", ambiguous=True) from error
            received(reply)
        return reply

    async def close(self) -> None:
        here = self._clients.forget()
        # The others' guards are no longer held, which makes their loops close what these close.
        self._clients.forget_all()
        if here is not None and here.guard is not None:
            await here.guard.aclose()

    async def _connected(self, seconds: float) -> Any:
        # The driver ends what takes too long by cancelling the task that it runs in, so that is not ours.
        try:
            return await self.colour.within(seconds, self._connect())
        except TimeoutError as error:
            raise NoReply("the driver was not ready in time", ambiguous=False) from error

    async def _connect(self) -> Any:
        try:
            session, region = async_session(self._access), region_of(self._access)
            client = await create_client(self._access, session, region, AioConfig()).__aenter__()
        except failures.BotoCoreError as error:
            raise transport_error(error) from error
        client.meta.events.register("before-parameter-build.dynamodb", limit_wait)
        here = self._clients.get()
        # Two tasks may have come here together; the later one leaves.
        if here.made is not None:
            await client.close()
        else:
            here.made, here.guard = client, until_shutdown(client.close)
        return here.made


def async_session(access: Access) -> Any:
    """The session given, if it is one of aiobotocore's, or one that borrows its credentials."""
    if isinstance(access.session, AioSession):
        return access.session
    session = AioSession()
    if access.session is not None:
        credentials = access.botocore_session().get_credentials()

        async def load_credentials() -> _Borrowed | None:
            return _Borrowed(credentials) if credentials is not None else None

        provider = SimpleNamespace(load_credentials=load_credentials)
        session.register_component("credential_provider", provider)
    return session


def region_of(access: Access) -> str | None:
    """The region that was named, or that of a blocking session; ``None`` leaves it to aiobotocore."""
    if access.region or access.session is None or isinstance(access.session, AioSession):
        return access.region
    region: str | None = access.botocore_session().get_config_variable("region")
    return region


class _Borrowed(AioCredentials):  # type: ignore[misc]  # the driver has no types
    """The credentials of a blocking session, which renews them itself."""

    def __init__(self, credentials: Any) -> None:
        now = credentials.get_frozen_credentials()
        super().__init__(now.access_key, now.secret_key, now.token)
        self._credentials = credentials

    async def get_frozen_credentials(self) -> Any:
        return self._credentials.get_frozen_credentials()
