"""Clients who hold a lease otherwise: readers who leave a stream, open leases, and coroutines thrown away."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Coroutine, Generator
from contextlib import suppress
from types import TracebackType
from typing import Any

from tests.simulation.parking import Cancelled
from zae_limiter.acquisition import Acquisition
from zae_limiter.exceptions import RateLimiterUnavailable
from zae_limiter.lease import Lease


class Reader:
    """Holds the lease of a stream that it leaves when its own block ends well, and fails when that fails."""

    def __init__(self, acquisition: Acquisition) -> None:
        self._colour = acquisition._lease._buckets.writer.colour
        self._stream = _stream(acquisition)

    async def __aenter__(self) -> Lease:
        return await anext(self._stream)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            await self._stream.aclose()
        elif kind is GeneratorExit:  # then an event loop closes the stream
            self._colour.carry_out(_closing(self._stream), lambda: None)
        else:
            await self._stream.athrow(error)


async def _stream(acquisition: Acquisition) -> AsyncGenerator[Lease, None]:
    async with acquisition as lease:
        yield lease


class Opener:
    """Has an open lease: committed when its own block ends well or is thrown away, else cancelled."""

    def __init__(self, acquisition: Acquisition) -> None:
        self._acquisition = acquisition

    async def __aenter__(self) -> Lease:
        self._lease = await self._acquisition
        return self._lease

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            await self._lease.commit()
        elif kind is GeneratorExit:
            self._lease._buckets.writer.colour.carry_out(_committing(self._lease), lambda: None)
        else:
            await self._lease.cancel()


async def _committing(lease: Lease) -> None:
    with suppress(RateLimiterUnavailable):
        await lease.commit()


async def _closing(stream: AsyncGenerator[Lease, None]) -> None:
    await stream.aclose()


class Steps:
    """The first steps of a coroutine, which is then where it is."""

    def __init__(self, coroutine: Coroutine[Any, Any, None], count: int) -> None:
        self._coroutine, self._count = coroutine, count

    def __await__(self) -> Generator[Any, None, None]:
        coroutine, left, error = self._coroutine, self._count, None
        while left > 0 or error is not None:
            left -= 1
            try:
                parked = coroutine.send(None) if error is None else coroutine.throw(error)
            except StopIteration:
                return
            error = None
            try:
                yield parked
            except Cancelled as cancelled:
                error = cancelled
