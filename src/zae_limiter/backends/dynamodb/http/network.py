"""What a call needs of the network, and how each colour offers it: ``blocking`` and ``loop``."""

from __future__ import annotations

import select
from collections.abc import Awaitable, Callable, Coroutine, Hashable
from typing import Any, Protocol, TypeVar

from ....runtime.colour import Colour
from .endpoint import Target
from .http1 import Response

T = TypeVar("T")


class HttpConnection(Protocol):
    idle_since_ms: float

    def is_quiet(self) -> bool:
        """Whether the connection is open and nothing has arrived."""
        ...

    def exchange(self, request: bytes, until_ms: float) -> Awaitable[Response]:
        """Send a request and read its answer; after anything else than an answer the connection is spoilt."""
        ...

    def close(self) -> None: ...

    async def closed(self) -> None:
        """Wait until nothing is left of it."""
        ...


class Network(Protocol):
    """How one colour connects, waits, and does work aside."""

    @property
    def colour(self) -> Colour: ...

    @property
    def fanout(self) -> Colour: ...

    @property
    def home(self) -> Callable[[], Hashable] | None:
        """What connections cannot leave besides the process, and what may end before that does."""
        ...

    async def connect(self, target: Target, until_ms: float, share_s: float) -> HttpConnection:
        """A new connection; no address may take longer than its share to accept one."""
        ...

    async def aside(self, function: Callable[[], T]) -> T:
        """Call a function that may block."""
        ...

    def start(self, work: Coroutine[Any, Any, T]) -> Any:
        """Begin work that does not end with its caller: a job, which has ``done``."""
        ...

    async def wait(self, job: Any, seconds: float) -> Any:
        """The result of a job; ``TimeoutError`` if it takes longer."""
        ...

    async def abandon(self, job: Any) -> None:
        """Let go of a job, if there is one, and of what did it."""
        ...


def arrivals_of(descriptor: int) -> Callable[[int], object]:
    """A question to ask again and again, with 0 for its timeout: is there something to read?"""
    if not hasattr(select, "poll"):  # Windows
        return lambda _: select.select([descriptor], [], [], 0)[0]
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return poll.poll
