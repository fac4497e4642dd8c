"""The transport for event loops: aiobotocore with its retries switched off.

It follows the rules of the blocking one and shares its settings and its reading of errors. A transport
belongs to the event loop that used it first.
"""

from __future__ import annotations

import socket
from typing import Any

import botocore.exceptions as failures
from aiobotocore.config import AioConfig
from aiobotocore.credentials import AioCredentials
from aiobotocore.session import AioSession
from aiohttp import ClientConnectorError
from botocore import xform_name

from ..._colour import Asyncio, Colour
from .boto import Access, limit_wait, read_timeout_s, transport_error
from .expressions import Payload
from .transport import NoReply

CONNECT_SLACK_S = 0.05


class AiobotocoreTransport:
    def __init__(self, access: Access) -> None:
        self.colour: Colour = Asyncio()
        self._access = access
        self._client: Any = None

    async def call(self, operation: str, payload: Payload, timeout_ms: float) -> Payload:
        client = self._client or await self._connect()
        seconds = max(timeout_ms, 1) / 1000
        token = read_timeout_s.set(seconds)
        try:
            # The client times connecting and reading by itself and tells them apart. This bounds the
            # whole, so it leaves an attempt that has little time left enough to fail at connecting.
            reply: Payload = await self.colour.within(
                max(seconds, self._access.connect_timeout_s + CONNECT_SLACK_S),
                getattr(client, xform_name(operation))(**payload),
            )
        except TimeoutError as error:
            raise NoReply(f"no answer within {timeout_ms:.0f} ms", ambiguous=True) from error
        except Exception as error:
            never_connected = (ClientConnectorError, socket.gaierror)
            raise transport_error(error, never_connected=never_connected) from error
        finally:
            read_timeout_s.reset(token)
        return reply

    async def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    async def _connect(self) -> Any:
        try:
            making = self._session().create_client(
                "dynamodb",
                region_name=self._access.region or self._given("region"),
                endpoint_url=self._access.endpoint_url,
                config=self._access.client_config(AioConfig()),
            )
            client = await making.__aenter__()
        except failures.BotoCoreError as error:
            raise transport_error(error, never_connected=(Exception,)) from error
        client.meta.events.register("before-parameter-build.dynamodb", limit_wait)
        # Two tasks may have come here together; the later one leaves.
        if self._client is not None:
            await client.close()
        else:
            self._client = client
        return self._client

    def _session(self) -> Any:
        given = self._access.session
        if isinstance(given, AioSession):
            return given
        session = AioSession()
        if given is not None:
            credentials = self._access.botocore_session().get_credentials()
            session.register_component("credential_provider", _Lender(credentials))
        return session

    def _given(self, variable: str) -> Any:
        given = self._access.session
        if given is None or isinstance(given, AioSession):
            return None
        return self._access.botocore_session().get_config_variable(variable)


class _Borrowed(AioCredentials):  # type: ignore[misc]  # the driver has no types
    """The credentials of a blocking session, which renews them itself."""

    def __init__(self, credentials: Any) -> None:
        now = credentials.get_frozen_credentials()
        super().__init__(now.access_key, now.secret_key, now.token)
        self._credentials = credentials

    async def get_frozen_credentials(self) -> Any:
        return self._credentials.get_frozen_credentials()


class _Lender:
    """Stands where aiobotocore looks for credentials."""

    def __init__(self, credentials: Any) -> None:
        self._credentials = credentials

    async def load_credentials(self) -> _Borrowed | None:
        return _Borrowed(self._credentials) if self._credentials is not None else None
