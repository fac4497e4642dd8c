"""The two wires to AWS: botocore for sync, aiobotocore for async. They need their drivers installed."""

from __future__ import annotations

import threading
from typing import Any

import botocore.exceptions as failures
from aiobotocore.config import AioConfig
from botocore import xform_name
from botocore.config import Config
from botocore.parsers import ResponseParserError

from ..backends.dynamodb.access import Access
from ..backends.dynamodb.aioboto import async_session, region_of
from ..backends.dynamodb.boto import transport_error
from ..backends.dynamodb.transport import NotConfigured, TransportError
from ..runtime.colour import Asyncio, Blocking, Colour
from .cloud import Unreadable

ATTEMPTS_MAX = 4
CONNECT_SECONDS_MAX = 5
READ_SECONDS_MAX = 60
"""An upload of the function's code has to fit in."""


def config_of(access: Access, defaults: Any) -> Any:
    """Our defaults, and the user's wishes over them."""
    ours = Config(
        retries={"total_max_attempts": ATTEMPTS_MAX, "mode": "standard"},
        connect_timeout=CONNECT_SECONDS_MAX,
        read_timeout=READ_SECONDS_MAX,
    )
    wished = defaults.merge(ours)
    return wished if access.config is None else wished.merge(access.config)


class BotocoreWire:
    def __init__(self, access: Access) -> None:
        self.colour: Colour = Blocking()
        self._access, self._session = access, access.botocore_session()
        self._clients: dict[str, Any] = {}
        self._lock = threading.Lock()

    @property
    def region(self) -> str | None:
        region: str | None = self._access.region or self._session.get_config_variable("region")
        return region

    async def send(self, service: str, operation: str, request: dict[str, Any]) -> dict[str, Any]:
        try:
            reply: dict[str, Any] = getattr(self._client(service), xform_name(operation))(**request)
        except Exception as error:
            raise reason_of(error) from error
        return reply

    def _client(self, service: str) -> Any:
        with self._lock:
            if service not in self._clients:
                self._clients[service] = self._session.create_client(
                    service,
                    region_name=self._access.region,
                    endpoint_url=self._access.endpoint_url,
                    config=config_of(self._access, Config()),
                )
            return self._clients[service]

    async def close(self) -> None:
        while self._clients:
            self._clients.popitem()[1].close()


class AiobotocoreWire:
    """Belongs to the event loop that used it first."""

    def __init__(self, access: Access) -> None:
        self.colour: Colour = Asyncio()
        self._access, self._session = access, async_session(access)
        self._clients: dict[str, Any] = {}

    @property
    def region(self) -> str | None:
        region: str | None = region_of(self._access) or self._session.get_config_variable("region")
        return region

    async def send(self, service: str, operation: str, request: dict[str, Any]) -> dict[str, Any]:
        try:
            client = self._clients.get(service) or await self._connect(service)
            reply: dict[str, Any] = await getattr(client, xform_name(operation))(**request)
        except Exception as error:
            raise reason_of(error) from error
        return reply

    async def _connect(self, service: str) -> Any:
        client = await self._session.create_client(
            service,
            region_name=self.region,
            endpoint_url=self._access.endpoint_url,
            config=config_of(self._access, AioConfig()),
        ).__aenter__()
        # Two tasks may have come here together; the later one leaves.
        if service in self._clients:
            await client.close()
        return self._clients.setdefault(service, client)

    async def close(self) -> None:
        while self._clients:
            await self._clients.popitem()[1].close()


def reason_of(error: Exception) -> TransportError:
    if isinstance(error, failures.NoRegionError):
        return NotConfigured("no AWS region; name one, or set AWS_DEFAULT_REGION")
    if isinstance(error, ResponseParserError):
        return Unreadable(type(error).__name__)
    # Whether a request was sent makes no difference here: each may be sent again.
    return transport_error(error, never_connected=(Exception,))
