"""A lease: the tokens one piece of work holds.

They were taken before the work began. While it runs, ``consume`` takes more if it is there, ``adjust``
and ``release`` note what the work really cost; when it ends well the difference is stored, and when
it ends with any exception, a cancellation included, all of it is given back. A reader who leaves a stream
is no failure of the work: what was noted until then is stored.

Nothing that was noted is lost, whoever ends the work and however: a block, a generator or a coroutine that is
thrown away, or the garbage collector. Several threads or tasks may use one lease.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Mapping
from types import TracebackType

from .engine.acquire import PLANS_MAX, acquire, demands_on, logger, restless, unknown_limit
from .engine.bucket_view import Account, given_limits
from .engine.plan import Till, knows_all
from .engine.settle import Charge, Demand, Take, answered_for, cost_of, give_back, settle, settlement
from .exceptions import LeaseExpiredError, RateLimiterUnavailable, RateLimitExceeded, shown
from .models import TOKENS_MAX, Limit, OnUnavailable, check_count
from .models.checks import named_amounts, needs_milli
from .records.buckets import BucketRecords
from .repository_protocol import NOTHING
from .runtime.colour import ForkSafe, at_fork
from .runtime.unentered import Asking

_noting = ForkSafe(threading.RLock)
"""Around what a lease notes: one lock for all of them, for most leases end without a note.

Garbage may be collected within it, and end another lease in the same thread.
"""

_forks = 0
"""How often this process was forked off another one: a lease belongs to the process that took it."""


def _note_fork() -> None:
    global _forks  # noqa: PLW0603 - there is one process
    _forks += 1


at_fork(after_in_child=_note_fork)


class Lease:
    """What an acquire has taken. Amounts are whole tokens by limit name."""

    __slots__ = (
        "_abandoned",
        "_accounts",
        "_adjusted",
        "_at_once",
        "_buckets",
        "_counted",
        "_ended",
        "_forks",
        "_in_block",
        "_later",
        "_policy",
        "_settled",
        "_speculative",
    )

    def __init__(
        self,
        buckets: BucketRecords,
        accounts: tuple[Account, ...],
        policy: OnUnavailable,
        speculative: bool,
        at_once: Mapping[str, int] = NOTHING,
    ) -> None:
        self._buckets, self._accounts, self._policy = buckets, accounts, policy
        self._speculative, self._at_once = speculative, at_once
        """What a till has taken from the first account, in millitokens."""
        self._later: tuple[Take, ...] = ()
        self._adjusted: Mapping[str, int] = NOTHING
        self._ended = self._settled = self._abandoned = self._in_block = self._counted = False
        self._forks = _forks

    @property
    def degraded(self) -> bool:
        """True when the store was down and the policy let the work go ahead: nothing is recorded."""
        return False

    @property
    def consumed(self) -> dict[str, int]:
        """What this lease has cost so far, adjustments included."""
        return cost_of(self._taken(), self._adjusted)

    @property
    def _place(self) -> tuple[str, str]:
        """Whose it is, and on which resource."""
        return self._accounts[0].entity_id, self._accounts[0].resource

    def __repr__(self) -> str:
        state = f"{', degraded' if self.degraded else ''}{', ended' if self._ended else ''}"
        return "<Lease of {!r} on {!r}, consumed={}{}>".format(*self._place, self.consumed, state)

    async def consume(self, amounts: Mapping[str, int] | None = None, /, **named: int) -> None:
        """Take more, if it is there: a real debit that may raise ``RateLimitExceeded``.

        It goes by the limits and is charged to the family that bind now, like another acquire. While the
        store is down ``on_unavailable`` decides. What is let through is stored when the lease ends, unless it
        may have been stored already.
        """
        self._check_open()
        wanted = named_amounts(amounts, named)
        try:
            await self._buckets.writer.colour.keep(self._take_more(needs_milli(wanted)), self._lost)
        except RateLimiterUnavailable as error:
            if self._policy is OnUnavailable.BLOCK:
                raise error.about(*self._place, self._buckets.stack_name) from error.__cause__
            what = f"letting a lease of {self._accounts[0].entity_id} consume"
            self._buckets.writer.let_through(what, error)
            if not error.ambiguous:
                self._add(wanted)

    async def adjust(self, amounts: Mapping[str, int] | None = None, /, **named: int) -> None:
        """Note what it cost more or less; stored when the lease ends. Never refused: there may be debt."""
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
                        *(self._place[0], -changes[name], name, -change),
                    )
            self._add(changes)

    def _check_known(self, name: str) -> None:
        if not knows_all(self._accounts, (name,)) and not any(name in t.amounts for t in self._later):
            raise unknown_limit(name, self._accounts)

    def _add(self, changes: Mapping[str, int]) -> None:
        with _noting.get():
            before = self._adjusted
            total = {name: before.get(name, 0) + change for name, change in changes.items()}
            self._adjusted = {**before, **total}
            if self._ended:  # by another thread, which may have found nothing to store
                self._adjusted = before
                self._check_open()

    async def release(self, amounts: Mapping[str, int] | None = None, /, **named: int) -> None:
        """Note that part of what the lease holds was not needed; it is given back when the lease ends."""
        returned = named_amounts(amounts, named)
        for name, amount in returned.items():
            check_count(f"amount of {shown(name)}", amount, TOKENS_MAX, 0)
        await self.adjust({name: -amount for name, amount in returned.items()})

    def _taken(self) -> tuple[Take, ...]:
        if not self._at_once:
            return self._later
        demand = Demand(self._accounts[0], self._at_once)
        return (Take(self._accounts, self._at_once, (demand,)), *self._later)

    async def _take_more(self, amounts_milli: Mapping[str, int]) -> None:
        """Take by a plan of now; by another one if that charged the wrong family."""
        buckets, first = self._buckets, self._accounts[0]
        if not amounts_milli:
            return
        await buckets.notice_changes()
        given = given_limits(first.terms)
        for attempt in range(1, PLANS_MAX + 1):
            plan = await buckets.plan(first.entity_id, first.resource, given, amounts_milli)
            if await self._take(plan.accounts, amounts_milli, last=attempt == PLANS_MAX):
                return
        raise restless(first.entity_id)

    async def _take(self, accounts: tuple[Account, ...], needs: Mapping[str, int], *, last: bool) -> bool:
        """Take amounts from a family; false, and nothing taken, if the entity has another one by now."""
        buckets, writer = self._buckets, self._buckets.writer
        seen = writer.image(accounts[0].key)
        if not (demands := demands_on(accounts, needs)):
            return True
        try:
            taken = await acquire(writer, demands, buckets.renewed, speculative=self._speculative)
        except RateLimitExceeded as refusal:
            refusal.entity_id = accounts[0].entity_id
            if last or not await buckets.is_moved_by_now(accounts, refusal, seen):
                raise
            return False
        moved = buckets.moved(accounts[0], [demand.account for demand in taken])
        with _noting.get():
            abandoned = self._abandoned
            if not abandoned and not moved:
                self._later += (Take(accounts, needs, (*taken,)),)
                del taken[:]
                return True
        await give_back(writer, taken)
        if abandoned:  # the work failed while a task of its own was still asking for more
            self._check_open()
        await buckets.notice_families(moved)
        return False

    async def _finish(self) -> None:
        """Store the net adjustment."""
        writer = self._buckets.writer
        with _noting.get():
            orders = Charge(writer.lose, settlement(self._accounts, self._taken(), self._adjusted))
            if not self._is_first():
                del orders[:]
        for failure in await settle(writer, orders):
            raise failure

    async def _abandon(self) -> None:
        """Give everything back."""
        writer = self._buckets.writer
        with _noting.get():
            self._abandoned = True
            taken = answered_for(writer, (demand for take in self._taken() for demand in take.demands))
            if not self._is_first():
                del taken[:]
        await give_back(writer, taken)

    def _is_first(self) -> bool:
        """End the lease; whether nobody has settled it yet: garbage is left and dropped, in any order.

        What was inherited from the process that took it is settled there.
        """
        settled, self._ended, self._settled = self._settled, True, True
        return not settled and self._forks == _forks

    async def _leave_behind(self) -> None:
        """Store the net adjustment for nobody who could be told."""
        with contextlib.suppress(RateLimiterUnavailable):  # logged and counted where it happened
            await self._finish()

    def _lost(self) -> None:
        """Note that what this lease owes its buckets, or they owe it, could not even be sent."""
        self._buckets.writer.refunds_lost += 1
        logger.warning("a lease of %s on %s was thrown away and not settled", *self._place)

    def __del__(self) -> None:
        """Settle a lease that nobody left: some generators are dropped without being closed.

        Sync code leaves every block that it entered, unless a signal handler raised just then. Nobody knows
        whether the work was done in that case, so it is counted.
        """
        try:
            if self._forks != _forks:
                return
            if self._in_block and not self._ended and (self._adjusted or self._taken()):
                self._counted = True
                self._lost()
            if self._adjusted and not self._settled:
                self._buckets.writer.colour.carry_out(self._leave_behind(), self._lost)
        except AttributeError:
            pass  # it was never made

    def _check_open(self) -> None:
        if self._ended:
            raise LeaseExpiredError(*self._place)
        if self._forks != _forks:
            raise LeaseExpiredError(*self._place, "belongs to the process that forked")


class DegradedLease(Lease):
    """A lease given while the store was down: it writes nothing and refuses nothing."""

    __slots__ = ("_entity_id", "_resource")

    def __init__(self, entity_id: str, resource: str, amounts: Mapping[str, int]) -> None:
        self._entity_id, self._resource = entity_id, resource
        self._adjusted = dict(amounts)
        self._ended, self._settled, self._counted = False, True, False  # there is nothing to settle
        self._forks = _forks

    @property
    def degraded(self) -> bool:
        return True

    @property
    def _place(self) -> tuple[str, str]:
        return self._entity_id, self._resource

    @property
    def consumed(self) -> dict[str, int]:
        return dict(self._adjusted)

    async def consume(self, amounts: Mapping[str, int] | None = None, /, **named: int) -> None:
        needs = named_amounts(amounts, named)
        needs_milli(needs)
        await self.adjust(needs)

    def _check_known(self, name: str) -> None:
        """Nobody can be asked which limits there are."""

    async def _finish(self) -> None:
        self._ended = True

    _abandon = _leave_behind = _finish

    def __del__(self) -> None:
        """There is nothing to settle."""


class Acquisition(Asking):
    """What ``acquire`` returns: enter it to take the tokens and get the lease."""

    __slots__ = (
        "_buckets",
        "_entered",
        "_entity_id",
        "_got",
        "_lease",
        "_limits",
        "_needs",
        "_on_unavailable",
        "_policy",
        "_resource",
        "_speculative",
        "_till",
    )

    def __init__(
        self,
        buckets: BucketRecords,
        entity_id: str,
        resource: str,
        needs: Mapping[str, int],
        limits: tuple[Limit, ...] | None,
        on_unavailable: OnUnavailable | None,
        speculative: bool,
    ) -> None:
        self._buckets, self._entity_id, self._resource, self._needs = buckets, entity_id, resource, needs
        self._limits, self._on_unavailable, self._speculative = limits, on_unavailable, speculative
        self._policy: OnUnavailable | None = None
        self._lease: Lease | None = None
        self._till: Till | None = None
        self._entered = self._got = False
        """Whether the till has taken what nobody has a lease for yet."""

    async def __aenter__(self) -> Lease:
        lease = self.enter_at_once()
        if lease is None:
            lease = await self._buckets.writer.colour.keep(self.enter(), self._lost)
        return lease

    def enter_at_once(self) -> Lease | None:
        """The lease if a till can give it without waiting; a remembered refusal is raised."""
        if self._entered:
            reason = "was entered before; call acquire again for another one"
            raise LeaseExpiredError(self._entity_id, self._resource, reason)
        self._entered = True
        buckets = self._buckets
        till = buckets.tills.get((self._entity_id, self._resource))
        if till is None or till.given != self._limits or not self._speculative or not self._needs:
            return None
        self._till, accounts, policy = till, *till.plan
        self._policy = policy = self._on_unavailable or policy
        try:
            self._got = till.take(self._needs)
            if not self._got:
                return None
        except RateLimiterUnavailable as error:
            self._lease = self._degraded(error)
        else:
            self._lease = Lease(buckets, accounts, policy, True, self._needs)
        return self._lease

    @property
    def holds(self) -> bool:
        """Whether anything may have been taken, though perhaps the caller has not got it."""
        return self._got or self._lease is not None

    async def undo(self) -> None:
        """Give back what was taken for a caller who was interrupted before it got the lease."""
        lease, got, self._got = self._lease, self._got, False
        if lease is None and got:
            assert self._till is not None
            assert self._policy is not None
            lease = Lease(self._buckets, self._till.plan.accounts, self._policy, True, self._needs)
        if lease is not None:
            await lease._abandon()

    async def enter(self) -> Lease:
        """The lease, by whatever it takes."""
        buckets, till = self._buckets, self._till
        try:
            await buckets.notice_changes()
            if till is not None and (lease := await self._ordered(till)) is not None:
                self._lease = lease
                return lease
            self._lease = await self._planned()
        except RateLimiterUnavailable as error:
            self._lease = None
            self._lease = self._degraded(error)
        return self._lease

    async def _planned(self) -> Lease:
        """The lease by a plan; by another one if the replies tell that this one charged the wrong family."""
        buckets = self._buckets
        for attempt in range(1, PLANS_MAX + 1):
            plan = await buckets.plan(self._entity_id, self._resource, self._limits, self._needs)
            self._policy = policy = self._on_unavailable or plan.on_unavailable
            # Known before it holds anything, so that it can be undone from then on.
            self._lease = lease = Lease(buckets, plan.accounts, policy, self._speculative)
            try:
                if await lease._take(plan.accounts, self._needs, last=attempt == PLANS_MAX):
                    return lease
            except RateLimitExceeded:
                self._lease = None
                raise
        raise restless(self._entity_id)

    async def _ordered(self, till: Till) -> Lease | None:
        """The lease if one write of the till is all it takes."""
        outcome, interruption = await till.order(self._needs)
        if outcome is not None and outcome.applied:
            self._got = True
            assert self._policy is not None
            lease = Lease(self._buckets, till.plan.accounts, self._policy, True, self._needs)
            if interruption is None and not self._buckets.is_moved(till.plan.accounts[0]):
                return lease
            self._got = False
            await lease._abandon()
        if interruption is not None:
            raise interruption
        if outcome is not None and outcome.failure is not None:
            raise outcome.failure
        return None

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if not self.leave_at_once(kind):
            await self.leave(kind, error)

    @property
    def is_left(self) -> bool:
        """Whether somebody has begun to settle the lease, and answers for it."""
        return self._lease is None or self._lease._settled

    def leave_at_once(self, kind: type[BaseException] | None) -> bool:
        """End the lease; false if there is something to store or to give back."""
        lease = self._lease
        if lease is None:
            raise LeaseExpiredError(self._entity_id, self._resource, "was not entered, so it cannot be left")
        # In this order: a thread that notes something now either is seen here or sees that it came too late.
        lease._ended = True
        if lease._counted:  # the garbage of a cycle is dropped before it is left, or after
            lease._counted = False
            self._buckets.writer.refunds_lost -= 1
        return (kind is None or kind is GeneratorExit) and not lease._adjusted

    async def leave(self, kind: type[BaseException] | None, error: BaseException | None = None) -> None:
        """Settle the lease, if need be by others who do it afterwards."""
        assert self._lease is not None
        colour = self._buckets.writer.colour
        if kind is GeneratorExit and not colour.may_wait(error):
            colour.carry_out(self._lease._leave_behind(), self._lost)
        else:
            await colour.keep(self._end(self._lease, kind), self._lost)

    async def _end(self, lease: Lease, kind: type[BaseException] | None) -> None:
        """Store the net adjustment if the work ended well, or its reader left; else give everything back."""
        if kind is GeneratorExit:
            await lease._leave_behind()
        elif kind is not None:
            await lease._abandon()
        else:
            try:
                await lease._finish()
            except RateLimiterUnavailable as error:  # logged where it happened
                if self._policy is not OnUnavailable.ALLOW:
                    raise error.after_work(self._entity_id, self._resource) from error.__cause__

    def _lost(self) -> None:
        """Note that an acquire could not be undone, or its lease not be settled."""
        self._buckets.writer.refunds_lost += 1
        logger.warning(
            "an acquire of %s on %s was thrown away and not settled", self._entity_id, self._resource
        )

    def _degraded(self, error: RateLimiterUnavailable) -> Lease:
        """A lease that was not recorded, if the policy wants one while the store is down."""
        policy = (
            self._policy
            or self._on_unavailable
            or self._buckets.policy_when_down(self._entity_id, self._resource)
        )
        if policy is OnUnavailable.BLOCK:
            raise error.about(self._entity_id, self._resource, self._buckets.stack_name) from error.__cause__
        self._buckets.writer.let_through(f"admitting {self._entity_id} on {self._resource}", error)
        amounts = {name: need // 1000 for name, need in self._needs.items()}
        return DegradedLease(self._entity_id, self._resource, amounts)
