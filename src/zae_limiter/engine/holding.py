"""What one piece of work holds of its buckets, and how that is settled when the work ends.

Nothing that was noted is lost, whoever ends the work and however: a block, a generator or a coroutine that is
thrown away, or the garbage collector. Several threads or tasks may use one holding, and a signal handler may
raise between any two steps.
"""

from __future__ import annotations

import contextlib
import threading
import warnings
from collections import OrderedDict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Protocol

from ..exceptions import LeaseExpiredError, RateLimiterUnavailable, RateLimitExceeded
from ..models import Limit, OnUnavailable
from ..models.leases import OnError
from ..repository_protocol import NOTHING, Item, Key
from ..runtime.colour import ForkSafe, at_fork
from .account import Account
from .demand import BucketDemand, Take, seats_of
from .group_commit import BucketWriter
from .mishaps import Mishap, WhoseName
from .plan import Plan
from .posting import Order
from .receipts import Receipt
from .remaining import UNSEEN, Seen
from .settle import Charge, answered_for, give_back, rest, seats_back, settle, settlement

_noting = ForkSafe(threading.RLock)
"""Around what is noted: one lock for all holdings, for most of them end without a note.

Garbage may be collected within it, and end another one in the same thread.
"""

forks: int = 0
"""How often this process was forked off another one: what is held belongs to the process that took it."""


def _note_fork() -> None:
    global forks  # noqa: PLW0603 - there is one process
    forks += 1


at_fork(after_in_child=_note_fork)


class Buckets(Protocol):
    """The buckets of a namespace: whom an acquire charges, and how to write to them."""

    plans: OrderedDict[tuple[str, str], Plan]
    """Those that may still stand, by entity and resource."""

    writer: BucketWriter

    observer: Any
    """Who counts what acquires come to, if somebody does; nothing here asks it."""

    @property
    def stack_name(self) -> str | None: ...

    async def plan(
        self, entity_id: str, resource: str, limits: Sequence[Limit] | None, needed: Collection[str] = ()
    ) -> Plan: ...

    async def notice_changes(self) -> None: ...

    async def renewed(self, account: Account) -> Account: ...

    def moved(self, accounts: Sequence[Account], shards: Iterable[Account] = ()) -> list[Account]: ...

    async def is_moved_by_now(
        self, accounts: Sequence[Account], refusal: RateLimitExceeded, seen: Mapping[Key, Item | None]
    ) -> bool: ...

    async def notice_families(self, moved: Iterable[Account]) -> None: ...

    def policy_when_down(self, entity_id: str, resource: str) -> OnUnavailable: ...

    def check_switches_when_down(self, entity_id: str, resource: str) -> None: ...


class Holding:
    """What was taken for somebody on one resource, and what became of it since. Amounts are by limit name."""

    _counted_in: ClassVar[Any] = None
    """Where what becomes of it is counted, if it is; a class that counts has a place of its own for that."""

    __slots__ = (
        *("_abandoned", "_accounts", "_adjusted", "_buckets", "_counted", "_ended", "_entity_id"),
        *("_forks", "_given", "_in_block", "_later", "_latest_ms", "_on_error", "_on_unavailable"),
        *("_policy", "_receipt", "_resource", "_seen", "_settled", "_speculative", "_state"),
        *("_taken_alone", "_wait_ms", "_waited_ms"),
    )

    def __init__(
        self,
        buckets: Buckets,
        entity_id: str,
        resource: str,
        given: tuple[Limit, ...] | None = None,
        on_unavailable: OnUnavailable | None = None,
        speculative: bool = True,
    ) -> None:
        self._buckets, self._entity_id, self._resource, self._given = buckets, entity_id, resource, given
        self._on_unavailable, self._speculative = on_unavailable, speculative
        self._policy: OnUnavailable | None = None
        """What to do if the store does not answer, once that is known."""
        self._accounts: tuple[Account, ...] = ()
        """The family that was charged first."""
        self._taken_alone: Mapping[str, int] = NOTHING
        """What the first of these gave in one step, in millitokens."""
        self._later: tuple[Take, ...] = ()
        self._seen: Seen = UNSEEN
        """What the replies showed that admitted it, last."""
        self._receipt: Receipt | None = None
        """The record that answers for it, instead of this process."""
        self._on_error: OnError | None = None
        self._state = ""
        """How it is held or was ended, as far as a caller said so: open, committed or cancelled."""
        self._adjusted: Mapping[str, int] = NOTHING
        self._ended = self._settled = self._abandoned = self._in_block = self._counted = False
        self._forks = forks
        self._wait_ms: int | None = None
        """How long to wait at most for one's turn; refused at once otherwise."""
        self._latest_ms: int | None = None
        """Until when, once it was asked."""
        self._waited_ms = 0

    def _taken(self) -> tuple[Take, ...]:
        if not self._taken_alone:
            return self._later
        demand = BucketDemand(self._accounts[0], self._taken_alone)
        return (Take(self._accounts, self._taken_alone, (demand,)), *self._later)

    def _take_in(self, takes: tuple[Take, ...], taken: Charge[BucketDemand]) -> bool:
        """Note what was taken; false if the work has failed meanwhile: then the caller answers for it."""
        with _noting.get():
            if self._abandoned:
                return False
            seats = seats_of(takes)
            if seats and self._settled:  # nobody would give them back
                return False
            self._later += takes
            del taken[:]
            if self._receipt is not None and self._receipt.is_written:
                self._ended = self._settled = True
                return True
        for seat in seats:
            self._buckets.writer.renewals.add(seat)
        return True

    def _add(self, changes: Mapping[str, int]) -> None:
        with _noting.get():
            before = self._adjusted
            total = {name: before.get(name, 0) + change for name, change in changes.items()}
            self._adjusted = {**before, **total}
            if self._ended:  # by another thread, which may have found nothing to store
                self._adjusted = before
                self._check_open()

    def _settlement(self) -> list[Order]:
        return settlement(self._accounts, self._taken(), self._adjusted)

    async def _finish(self, state: str = "") -> None:
        """Store the net adjustment."""
        writer, seats = self._buckets.writer, seats_of(self._later) if self._later else ()
        interruption = await rest(writer, seats) if seats else None
        with _noting.get():
            orders = Charge(writer.lose, self._settlement())
            if seats:
                orders[:] = seats_back(orders, seats)
            if not self._is_first(state):
                del orders[:]
        failures = await settle(writer, orders)
        if interruption is not None:
            raise interruption
        for failure in failures if self._adjusted else ():  # a seat comes back by itself
            raise failure

    def _is_even(self, state: str) -> bool:
        """End it if nothing is to be stored: it cost what was taken, and no seat is to be given back."""
        if self._adjusted or (self._later and seats_of(self._later)):
            return False
        with _noting.get():
            if self._adjusted:  # by another thread just now
                return False
            self._is_first(state)
        return True

    async def _abandon(self) -> None:
        """Give everything back."""
        writer = self._buckets.writer
        with _noting.get():
            self._abandoned = True
            taken = answered_for(writer, (demand for take in self._taken() for demand in take.demands))
            if not self._is_first("cancelled"):
                del taken[:]
        await give_back(writer, taken)

    def _is_first(self, state: str) -> bool:
        """End it; whether nobody has settled it yet: garbage is left and dropped, in any order.

        What was inherited from the process that took it is settled there.
        """
        settled, self._ended, self._settled = self._settled, True, True
        if not settled:
            self._state = state
        return not settled and self._forks == forks

    def _gives_back(self, *, failed: bool) -> bool:
        """Whether all of it is given back if the work has ``failed``, or else if its reader left."""
        return failed if self._on_error is None else self._on_error is OnError.REFUND

    async def _leave_behind(self, *, failed: bool = False) -> None:
        """End it as ``on_error`` says, for nobody who could be told."""
        if self._gives_back(failed=failed):
            await self._abandon()
            return
        if self._on_error is OnError.KEEP:
            with _noting.get():
                self._adjusted = {name: more for name, more in self._adjusted.items() if more > 0}
        with contextlib.suppress(RateLimiterUnavailable):  # logged and counted where it happened
            await self._finish()

    def _lost(self) -> None:
        """Note that what is owed to the buckets, or by them, could not even be sent."""
        writer, whose = self._buckets.writer, (self._entity_id, self._resource)
        writer.refunds_lost += 1
        told = "a lease of %s on %s was thrown away and not settled"
        writer.mishaps.note(Mishap.REFUND_LOST, WhoseName(*whose), told, *whose)

    def _forgotten(self) -> None:
        """Nobody has ended it, and nobody will: it is collected. For classes that count."""

    def __del__(self) -> None:
        """Settle what nobody ended: an open lease that was forgotten, or a generator's that was not closed.

        Sync code leaves every block that it entered, unless a signal handler raised just then. Nobody knows
        whether the work was done in that case, so it is counted.
        """
        try:
            if self._forks != forks or (self._ended and (self._settled or not self._adjusted)):
                return
            is_held = not self._ended and bool(self._adjusted or self._taken())
            told = repr(self) if is_held and self._state == "open" else ""
            if is_held:
                self._forgotten()
            if is_held and self._in_block:
                self._counted = True
                self._lost()
            is_back = is_held and not self._in_block and self._gives_back(failed=False)
            is_back = is_back or (is_held and not self._in_block and bool(seats_of(self._later)))
            try:
                if is_back or (self._adjusted and not self._settled):
                    self._buckets.writer.colour.carry_out(self._leave_behind(), self._lost)
            finally:
                if told:
                    way_out = "call its commit() or cancel(), or hold it in a block: with limiter.acquire(…)"
                    warnings.warn(f"{told} was forgotten: {way_out}", ResourceWarning, 2, source=self)
        except AttributeError:
            pass  # it was never made

    def _check_open(self) -> None:
        if self._ended:
            raise LeaseExpiredError(self._entity_id, self._resource)
        if self._forks != forks:
            raise LeaseExpiredError(self._entity_id, self._resource, "belongs to the process that forked")
