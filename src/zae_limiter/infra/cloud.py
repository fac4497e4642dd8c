"""The control plane of AWS: any operation of any service, in both colours.

Unlike the store's requests these may be sent again: they are reads, or carry a token, or say what is to
be and not what is to be added. The drivers' own retries are therefore welcome here. Trouble that a caller
does not expect comes out as an exception of ours that says what to do.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Collection
from typing import Any

from ..backends.dynamodb import check_endpoint
from ..backends.dynamodb.transport import (
    DENIED_CODES,
    NOT_FOUND,
    UNKNOWN_CALLER_CODES,
    NotConfigured,
    ServiceError,
    TransportError,
)
from ..exceptions import InfrastructureError, StackOperationError, ZAELimiterError
from ..runtime.colour import Colour
from ..runtime.world import World

POLL_SECONDS_MIN = 0.1
POLL_SECONDS_MAX = 5.0
POLL_GROWTH = 1.5
PAGES_MAX = 100

# As people write them, by what botocore calls them.
SERVICES = {name.lower(): name for name in ("CloudFormation", "CloudWatch", "DynamoDB", "Lambda", "SQS")}


class NotOffered(InfrastructureError):
    """What answers at this endpoint does not have the service at all, such as a DynamoDB by itself."""


class Unreadable(TransportError):
    """An answer came that is none of this service's."""


class Cloud(ABC):
    """One account in one region."""

    colour: Colour

    @property
    @abstractmethod
    def region(self) -> str | None:
        """Where the requests go, as far as it is known."""

    @abstractmethod
    async def send(self, service: str, operation: str, request: dict[str, Any]) -> dict[str, Any]:
        """Carry one request to one service and bring its answer, or raise a ``TransportError``."""

    @abstractmethod
    async def close(self) -> None: ...

    async def ask(
        self, service: str, operation: str, *, expected: Collection[str] = (), **request: Any
    ) -> dict[str, Any]:
        """The answer to a request; refusals whose code is ``expected`` come out as ``ServiceError``."""
        try:
            return await self.send(service, operation, request)
        except TransportError as error:
            if isinstance(error, ServiceError) and error.code in expected:
                raise
            raise failure(error, service, operation) from error

    async def find(
        self, service: str, operation: str, *, unless: str = NOT_FOUND, **request: Any
    ) -> dict[str, Any] | None:
        """The answer to a request; ``None`` if it is refused by this code."""
        try:
            return await self.ask(service, operation, expected=(unless,), **request)
        except ServiceError:
            return None

    async def pages(self, service: str, operation: str, **request: Any) -> AsyncIterator[dict[str, Any]]:
        """The answers to a request that takes several, each of which names the next."""
        for _ in range(PAGES_MAX):
            reply = await self.ask(service, operation, **request)
            yield reply
            if not reply.get("NextToken"):
                return
            request["NextToken"] = reply["NextToken"]


class Patience:
    """Looking again and again, at growing intervals and no longer than asked."""

    def __init__(self, cloud: Cloud, world: World, seconds: float) -> None:
        self.seconds = seconds
        self._colour, self._world = cloud.colour, world
        self._until_ms = world.ticks_ms() + seconds * 1000
        self._pause_seconds = POLL_SECONDS_MIN

    async def lasts(self) -> bool:
        """Let a moment pass before the next look; false if there is no time for one."""
        left_seconds = (self._until_ms - self._world.ticks_ms()) / 1000
        if left_seconds <= 0:
            return False
        await self._colour.sleep(min(self._pause_seconds, left_seconds))
        self._pause_seconds = min(self._pause_seconds * POLL_GROWTH, POLL_SECONDS_MAX)
        return True


def open_cloud(
    *, sync: bool, region: str | None = None, endpoint_url: str | None = None, **client: Any
) -> Cloud:
    """The account that the arguments and the environment name. Nothing is sent yet.

    ``client`` is a ``session`` of boto3 or botocore, and a ``config`` of botocore.
    """
    check_endpoint(endpoint_url)
    try:
        from ..backends.dynamodb.boto import Access
        from .clients import BotocoreCloud

        return BotocoreCloud(Access(region, endpoint_url, **client), sync=sync)
    except ImportError as error:
        if (error.name or "").partition(".")[0] == __name__.partition(".")[0]:
            raise
        raise InfrastructureError(
            f"stacks need {error.name}, which is not installed; install this package with its extra: dynamodb"
        ) from error


def failure(error: TransportError, service: str, operation: str) -> ZAELimiterError:
    """What to tell of a request that brought no answer."""
    what = f"{SERVICES[service]} {operation}"
    match error:
        case Unreadable() | ServiceError(code="UnknownOperationException"):
            return NotOffered(
                f"{what} is not offered at this endpoint, which seems to be a DynamoDB by itself; "
                "make a table alone with: zae-limiter table create"
            )
        case ServiceError(code=code, message=message) if code in DENIED_CODES:
            told = f"is not permitted: {message}; allow the caller {service}:{operation}"
        case ServiceError(code=code) if code in UNKNOWN_CALLER_CODES:
            told = f"was not accepted from these credentials: {error}; renew or correct them"
        case ServiceError():
            told = f"was refused: {error}"
        case _:
            sent = "sent" if isinstance(error, NotConfigured) else "answered"
            return InfrastructureError(f"{what} was not {sent}: {error}")
    return StackOperationError(f"{what} {told}")
