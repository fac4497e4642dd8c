"""A lease: the tokens one piece of work holds.

They were taken before the work began. While it runs, ``consume`` takes more if it is there, ``adjust``,
``settle`` and ``release`` note what the work really cost; when it ends well the difference is stored, and
when it ends with any exception, a cancellation included, all of it is given back. A reader who leaves a
stream is no failure of the work: what was noted until then is stored. ``on_error`` says otherwise.
A lease is held by a block, or open: then ``commit`` or ``cancel`` ends it.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar

from .engine.acquire import acquire
from .engine.demand import unknown_limit
from .engine.holding import _noting
from .engine.settle import cost_of
from .exceptions import LeaseExpiredError, RateLimiterUnavailable, ValidationError, shown
from .lease_view import View
from .models import TOKENS_MAX, OnUnavailable, check_count
from .models.checks import named_amounts, needs_milli
from .models.leases import OnError
from .runtime.current import Current
from .runtime.logs import logger


class Lease(View, Current):
    """What an acquire has taken. Amounts are whole tokens by limit name."""

    __slots__ = ()
    _place = ContextVar("lease")
    _acquire = acquire

    @property
    def degraded(self) -> bool:
        """True when the store was down and the policy let the work go ahead: nothing is recorded."""
        return False

    @property
    def bypassed(self) -> bool:
        """True when a switch let the work go past the limits, counted or not."""
        return bool(self._accounts) and self._accounts[0].bypass is not None

    @property
    def consumed(self) -> dict[str, int]:
        """What this lease has cost so far, adjustments included."""
        return cost_of(self._taken(), self._adjusted)

    @property
    def waited_ms(self) -> int:
        """How long its work had to wait for its turn, in milliseconds."""
        return self._waited_ms

    def __repr__(self) -> str:
        states = "degraded" if self.degraded else "", self._state or ("ended" if self._ended else "")
        return f"<Lease of {self._told()}{''.join(f', {it}' for it in states if it)}>"

    def _told(self) -> str:
        return f"{self._entity_id!r} on {self._resource!r}, consumed={self.consumed}"

    async def consume(self, amounts: Mapping[str, int] | None = None, /, **named: int) -> None:
        """Take more, if it is there: a real debit that may raise ``RateLimitExceeded``.

        It goes by the limits and is charged to the family that bind now, like another acquire. While the
        store is down ``on_unavailable`` decides. What is let through is stored when the lease ends, unless it
        may have been stored already.
        """
        self._check_open()
        wanted = named_amounts(amounts, named)
        try:
            if (needs := needs_milli(wanted)) and (taking := self._acquire(needs)) is not None:
                await taking
        except RateLimiterUnavailable as error:
            self._let_through(f"letting a lease of {self._entity_id} consume", error)
            if not error.ambiguous:
                self._add(wanted)

    async def adjust(self, amounts: Mapping[str, int] | None = None, /, **named: int) -> None:
        """Note what it cost more or less; stored when the lease ends. Never refused: there may be debt.

        >>> async with limiter.acquire("key-1", "gpt-4", {"tpm": 500}) as lease:
        ...     await lease.adjust(tpm=10_000)
        >>> await limiter.available("key-1", "gpt-4")
        {'rpm': 60, 'tpm': -500}
        """
        self._check_open()
        changes = named_amounts(amounts, named)
        for name, change in changes.items():
            check_count(f"adjustment of {shown(name)}", change, TOKENS_MAX, -TOKENS_MAX)
            self._check_known(name)
        with _noting.get():
            consumed = self.consumed
            for name, change in changes.items():
                if change < -consumed.get(name, 0):
                    changes[name] = -consumed.get(name, 0)
                    logger.warning(
                        "a lease of %s gives back %s of %s: it holds no more, and %s were to be given back",
                        *(self._entity_id, -changes[name], name, -change),
                    )
            self._add(changes)

    async def settle(self, amounts: Mapping[str, int] | None = None, /, **named: int) -> None:
        """Note the whole cost, by limit; stored when the lease ends. Never refused: there may be debt.

        >>> async with limiter.acquire("key-1", "gpt-4", {"tpm": 500}) as lease:
        ...     await lease.settle(tpm=620)
        >>> await limiter.available("key-1", "gpt-4")
        {'rpm': 60, 'tpm': 9380}
        """
        self._check_open()
        totals = named_amounts(amounts, named)
        for name, total in totals.items():
            check_count(f"total of {shown(name)}", total, TOKENS_MAX, 0)
            self._check_known(name)
        with _noting.get():
            consumed = self.consumed
            self._add({name: total - consumed.get(name, 0) for name, total in totals.items()})

    async def release(self, amounts: Mapping[str, int] | None = None, /, **named: int) -> None:
        """Note that part of what the lease holds was not needed; it is given back when the lease ends.

        >>> async with limiter.acquire("key-1", "gpt-4", {"tpm": 500}) as lease:
        ...     await lease.release(tpm=200)
        >>> lease.consumed
        {'tpm': 300}
        """
        returned = named_amounts(amounts, named)
        for name, amount in returned.items():
            check_count(f"amount of {shown(name)}", amount, TOKENS_MAX, 0)
        await self.adjust({name: -amount for name, amount in returned.items()})

    async def keep(self) -> None:
        """From now on nothing is given back if the work fails, as by ``on_error="keep"``."""
        self._check_open()
        self._on_error = OnError.KEEP

    async def commit(self) -> None:
        """The work is done: store what was noted, and end the lease.

        What was committed before, or ended well with its block, is left alone. What was given back cannot be
        committed: ``LeaseExpiredError``.

        >>> lease = await limiter.acquire("key-1", "gpt-4", {"tpm": 500}).open()
        >>> await lease.commit()
        >>> await limiter.available("key-1", "gpt-4")
        {'rpm': 60, 'tpm': 9500}
        """
        if not self._is_over() and not self._is_even("committed"):
            await self._buckets.writer.colour.keep(self._end_well("committed"), self._lost)
        elif self._state == "cancelled":
            raise LeaseExpiredError(self._entity_id, self._resource, "was given back; call acquire again")

    async def cancel(self) -> None:
        """The work came to nothing: give everything back, and end the lease, unless it has ended before.

        >>> lease = await limiter.acquire("key-1", "gpt-4", {"tpm": 500}).open()
        >>> await lease.cancel()
        >>> await limiter.available("key-1", "gpt-4")
        {'rpm': 60, 'tpm': 10000}
        """
        if not self._is_over():
            await self._buckets.writer.colour.keep(self._abandon(), self._lost)

    def _is_over(self) -> bool:
        with _noting.get():
            if not self._ended:
                self._check_open()  # in this process
            return self._ended

    async def _end_well(self, state: str = "") -> None:
        """Store the net adjustment, and tell whoever did the work if that failed."""
        try:
            await self._finish(state)
        except RateLimiterUnavailable as error:  # logged where it happened
            if self._policy is not OnUnavailable.ALLOW:
                raise error.after_work(self._entity_id, self._resource) from error.__cause__

    def _check_known(self, name: str) -> None:
        if any(name in account.terms.seats for account in self._accounts):
            told = "it counts who is at work, not what that costs: it is given back when the lease ends"
            raise ValidationError("limit name", name, told)
        if any(name in account.terms.rates for account in self._accounts):
            return
        if not any(name in take.amounts for take in self._later):
            raise unknown_limit(name, self._accounts)

    def _let_through(self, what: str, error: RateLimiterUnavailable) -> None:
        """Count what goes ahead unchecked, if the policy is to let it while the store is down."""
        buckets = self._buckets
        if self._is_blocked():
            raise error.about(self._entity_id, self._resource, buckets.stack_name) from error.__cause__
        buckets.writer.let_through(what, error)

    def _is_blocked(self) -> bool:
        self._buckets.check_switches_when_down(self._entity_id, self._resource)
        policy = self._policy or self._on_unavailable
        policy = policy or self._buckets.policy_when_down(self._entity_id, self._resource)
        return policy is OnUnavailable.BLOCK
