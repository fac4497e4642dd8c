"""The way to AWS: botocore for sync, aiobotocore for async. It needs its drivers installed."""

from __future__ import annotations

import inspect
import threading
from typing import Any

import botocore.exceptions as failures
from aiobotocore.config import AioConfig
from botocore import xform_name
from botocore.config import Config
from botocore.parsers import ResponseParserError

from ..backends.dynamodb.aioboto import async_session, region_of
from ..backends.dynamodb.boto import Access, transport_error
from ..backends.dynamodb.transport import NotConfigured, TransportError
from ..runtime.colour import Colour, colour_of
from .cloud import Cloud, Unreadable

# An upload of the function's code has to fit into the time for reading.
DEFAULTS: Any = Config(
    retries={"total_max_attempts": 4, "mode": "standard"}, connect_timeout=5, read_timeout=60
)


class BotocoreCloud(Cloud):
    """One client for each service. An async one belongs to the event loop that used it first."""

    def __init__(self, access: Access, *, sync: bool) -> None:
        self.colour: Colour = colour_of(sync=sync)
        self._access = access
        self._session = access.botocore_session() if sync else async_session(access)
        self._config = (Config() if sync else AioConfig()).merge(DEFAULTS).merge(access.config or Config())
        self._clients: dict[str, Any] = {}
        self._lock = threading.Lock()

    @property
    def region(self) -> str | None:
        region: str | None = region_of(self._access) or self._session.get_config_variable("region")
        return region

    async def send(self, service: str, operation: str, request: dict[str, Any]) -> dict[str, Any]:
        try:
            client = self._clients.get(service) or await self._connect(service)
            reply: dict[str, Any] = await _result(getattr(client, xform_name(operation))(**request))
        except Exception as error:
            raise _reason_of(error) from error
        return reply

    async def _connect(self, service: str) -> Any:
        with self._lock:  # making clients from one session is not safe for threads
            made = self._session.create_client(
                service, region_name=self.region, endpoint_url=self._access.endpoint_url, config=self._config
            )
        client = await made.__aenter__() if hasattr(made, "__aenter__") else made
        # Two may have come here together; the later one leaves.
        if self._clients.setdefault(service, client) is not client:
            await _result(client.close())
        return self._clients[service]

    async def close(self) -> None:
        while self._clients:
            await _result(self._clients.popitem()[1].close())


async def _result(answer: Any) -> Any:
    return await answer if inspect.isawaitable(answer) else answer


def _reason_of(error: Exception) -> TransportError:
    if isinstance(error, failures.NoRegionError):
        return NotConfigured("no AWS region; name one, or set AWS_DEFAULT_REGION")
    if isinstance(error, ResponseParserError):
        return Unreadable(type(error).__name__)
    # Whether a request was sent makes no difference here: each may be sent again.
    return transport_error(error)
