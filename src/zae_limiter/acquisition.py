"""What ``acquire`` returns: how it is entered and left, or opened; and the lease of a store that is down."""

from __future__ import annotations

import warnings
from collections.abc import Generator, Mapping
from types import TracebackType
from typing import Any

from .engine import holding
from .engine.demand import seats_of
from .exceptions import LeaseExpiredError, RateLimiterUnavailable
from .lease import Lease
from .models.checks import named_amounts, needs_milli
from .runtime.unentered import Asked


class DegradedLease(Lease):
    """A lease given while the store was down: it writes nothing and refuses nothing."""

    __slots__ = ()

    def __init__(self, lease: Lease, amounts: Mapping[str, int]) -> None:
        super().__init__(lease._buckets, lease._entity_id, lease._resource)
        self._adjusted, self._settled = dict(amounts), True  # there is nothing to settle
        self._on_error, self._waited_ms = lease._on_error, lease._waited_ms

    @property
    def degraded(self) -> bool:
        return True

    async def consume(self, amounts: Mapping[str, int] | None = None, /, **named: int) -> None:
        needs = named_amounts(amounts, named)
        needs_milli(needs)
        await self.adjust(needs)

    def _check_known(self, name: str) -> None:
        """Nobody can be asked which limits there are."""

    def _is_even(self, state: str) -> bool:  # noqa: ARG002 - it says so where it ends
        return False

    async def _finish(self, state: str = "") -> None:
        self._ended, self._state = True, state

    async def _abandon(self) -> None:
        await self._finish("cancelled")

    async def _leave_behind(self, *, failed: bool = False) -> None:
        await self._finish("cancelled" if self._gives_back(failed=failed) else "")

    def __del__(self) -> None:
        """There is nothing to settle."""


class Acquisition(Asked):
    """What ``acquire`` returns: enter it to take the tokens and get the lease, leave it to settle that.

    Or await it, for a lease that stays open until it is told to end.
    """

    __slots__ = ("_entered", "_lease", "_needs")
    _entered_by = "async with limiter.acquire(…) as lease"

    def __init__(self, lease: Lease, needs: Mapping[str, int]) -> None:
        self._lease, self._needs = lease, needs
        self._entered: bool | None = False
        """``None`` if entering it has begun, and not led to a lease."""

    def __repr__(self) -> str:
        lease, amounts = self._lease, {name: need // 1000 for name, need in self._needs.items()}
        state = "not entered" if self._entered is False else "entered"
        return f"<Acquisition of {amounts} by {lease._entity_id!r} on {lease._resource!r}, {state}>"

    def __del__(self) -> None:
        """Whoever forgets to enter it is limited by nothing."""
        if self._entered is False:
            way_out = "`with limiter.acquire(…)`, `async with` in a coroutine; or `.open()`, there `await`"
            warnings.warn(f"{self!r} took nothing: write {way_out}", RuntimeWarning, stacklevel=2)

    def entered_before(self) -> LeaseExpiredError:
        reason = "was entered before; call acquire again for another one"
        return LeaseExpiredError(self._lease._entity_id, self._lease._resource, reason)

    def degrade(self, error: RateLimiterUnavailable) -> None:
        """Let the work go ahead without tokens, if the policy is to."""
        lease = self._lease
        lease._let_through(f"admitting {lease._entity_id} on {lease._resource}", error)
        self._lease = DegradedLease(lease, {name: need // 1000 for name, need in self._needs.items()})

    async def __aenter__(self) -> Lease:
        if self._entered is not False:
            raise self.entered_before()
        self._entered, self._lease._forks = None, holding.forks
        try:
            if (taking := self._lease._acquire(self._needs)) is not None:
                await taking
        except RateLimiterUnavailable as error:
            self.degrade(error)
        self._entered = True
        return self._lease

    async def open(self) -> Lease:
        """Take the tokens for work that no block holds; ``await limiter.acquire(…)`` does the same.

        Such a lease is open until ``commit`` or ``cancel`` ends it. One that is dropped before warns, and
        counts as left by its reader.
        """
        lease = await self.__aenter__()
        lease._state = "open"
        return lease

    def __await__(self) -> Generator[Any, Any, Lease]:
        return self.open().__await__()

    def end(self, kind: type[BaseException] | None) -> bool:
        """End the lease; whether there is something to store or to give back."""
        lease = self._lease
        if not self._entered:
            reason = "was not entered, so it cannot be left"
            raise LeaseExpiredError(lease._entity_id, lease._resource, reason)
        # In this order: a thread that notes something now either is seen here or sees that it came too late.
        before, lease._ended = lease._ended, True
        if lease._counted:  # the garbage of a cycle is dropped before it is left, or after
            lease._counted = False
            lease._buckets.writer.refunds_lost -= 1
        if before:  # by its commit or cancel
            return False
        if lease._adjusted or (kind is not None and lease._gives_back(failed=kind is not GeneratorExit)):
            return True
        return bool(lease._later) and bool(seats_of(lease._later))

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.end(kind):
            await self.leave(kind, error)

    async def leave(self, kind: type[BaseException] | None, error: BaseException | None) -> None:
        """Settle the lease, if need be by others who do it afterwards."""
        lease, colour = self._lease, self._lease._buckets.writer.colour
        if kind is None:
            await colour.keep(lease._end_well(), lease._lost)
        elif kind is GeneratorExit and not colour.may_wait(error):
            colour.carry_out(lease._leave_behind(), lease._lost)
        else:
            await colour.keep(lease._leave_behind(failed=kind is not GeneratorExit), lease._lost)
