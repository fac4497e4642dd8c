"""A lease: the tokens one piece of work holds.

They were taken before the work began. While it runs, ``consume`` takes more if it is there, ``adjust``
and ``release`` note what the work really cost; when it ends well the difference is stored, and when
it ends with any exception, a cancellation included, all of it is given back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import TracebackType

from .acquire import Demand, Renew, acquire, give_back, logger, settle
from .exceptions import LeaseExpiredError, RateLimiterUnavailable, ValidationError
from .models import TOKENS_MAX, Limit, OnUnavailable, check_count, check_tokens
from .posting import Posting, merged
from .records.buckets import BucketRecords, demands_on
from .repository_protocol import Key
from .teller import Order, Teller
from .terms import Account


class Lease:
    """What an acquire has taken. Amounts are whole tokens by limit name."""

    def __init__(
        self, teller: Teller, accounts: Sequence[Account], renew: Renew, *, speculative: bool
    ) -> None:
        self._teller, self._accounts, self._renew = teller, tuple(accounts), renew
        self._speculative = speculative
        self._taken: list[Demand] = []
        self._adjusted: dict[str, int] = {}
        self._ended = self._abandoned = False

    @property
    def degraded(self) -> bool:
        """True when the store was down and the policy let the work go ahead: nothing is recorded."""
        return False

    @property
    def consumed(self) -> dict[str, int]:
        """What this lease has cost so far, adjustments included."""
        totals_milli: dict[str, int] = {}
        for demand in self._taken:
            if demand.account.entity_id == self._accounts[0].entity_id:
                for name, amount_milli in demand.amounts.items():
                    totals_milli[name] = totals_milli.get(name, 0) + amount_milli
        totals = {name: amount_milli // 1000 for name, amount_milli in totals_milli.items()}
        for name, amount in self._adjusted.items():
            totals[name] = totals.get(name, 0) + amount
        return totals

    async def consume(self, amounts: Mapping[str, int] | None = None, /, **named: int) -> None:
        """Take more, if it is there: a real debit that may raise ``RateLimitExceeded``."""
        self._check_open()
        await self._take(needs_milli(_named(amounts, named)))

    async def adjust(self, amounts: Mapping[str, int] | None = None, /, **named: int) -> None:
        """Correct the cost by a difference, up or down. Never refused: the bucket may go into debt."""
        self._check_open()
        changes = _named(amounts, named)
        known, consumed = self._accounts[0].terms.rates, self.consumed
        for name, change in changes.items():
            check_count(f"adjustment of {name!r}", change, TOKENS_MAX, -TOKENS_MAX)
            if name not in known:
                raise ValidationError("limit name", name, f"this lease knows {', '.join(known)}")
            if consumed.get(name, 0) + change < 0:
                raise ValidationError(
                    f"adjustment of {name!r}", change, f"the lease holds only {consumed.get(name, 0)}"
                )
        for name, change in changes.items():
            self._adjusted[name] = self._adjusted.get(name, 0) + change

    async def release(self, amounts: Mapping[str, int] | None = None, /, **named: int) -> None:
        """Give back part of what the lease holds."""
        returned = _named(amounts, named)
        for name, amount in returned.items():
            check_tokens(f"amount of {name!r}", amount)
        await self.adjust({name: -amount for name, amount in returned.items()})

    async def _take(self, amounts_milli: Mapping[str, int]) -> None:
        demands = demands_on(self._accounts, amounts_milli)
        taken = await acquire(self._teller, demands, self._renew, speculative=self._speculative)
        if self._abandoned:  # the work failed while a task of its own was still asking for more
            await give_back(self._teller, taken)
            self._check_open()
        self._taken += taken

    async def _finish(self) -> None:
        """Store the net adjustment."""
        self._ended = True
        orders = _settlement(self._accounts, self._taken, self._adjusted)
        for failure in await settle(self._teller, orders):
            raise failure

    async def _abandon(self) -> None:
        """Give everything back."""
        self._ended = self._abandoned = True
        await give_back(self._teller, self._taken)

    def _check_open(self) -> None:
        if self._ended:
            raise LeaseExpiredError(self._accounts[0].entity_id, self._accounts[0].resource)


class DegradedLease(Lease):
    """A lease given while the store was down: it writes nothing and refuses nothing."""

    def __init__(self, entity_id: str, resource: str, amounts: Mapping[str, int]) -> None:
        self._entity_id, self._resource = entity_id, resource
        self._adjusted = dict(amounts)
        self._ended = False

    @property
    def degraded(self) -> bool:
        return True

    @property
    def consumed(self) -> dict[str, int]:
        return dict(self._adjusted)

    async def consume(self, amounts: Mapping[str, int] | None = None, /, **named: int) -> None:
        needs = _named(amounts, named)
        needs_milli(needs)
        await self.adjust(needs)

    async def adjust(self, amounts: Mapping[str, int] | None = None, /, **named: int) -> None:
        self._check_open()
        for name, change in _named(amounts, named).items():
            check_count(f"adjustment of {name!r}", change, TOKENS_MAX, -TOKENS_MAX)
            self._adjusted[name] = self._adjusted.get(name, 0) + change

    async def _finish(self) -> None:
        self._ended = True

    _abandon = _finish

    def _check_open(self) -> None:
        if self._ended:
            raise LeaseExpiredError(self._entity_id, self._resource)


class Acquisition:
    """What ``acquire`` returns: enter it to take the tokens and get the lease."""

    def __init__(
        self,
        buckets: BucketRecords,
        entity_id: str,
        resource: str,
        consume: Mapping[str, int],
        limits: tuple[Limit, ...] | None,
        on_unavailable: OnUnavailable | None,
        speculative: bool,
    ) -> None:
        self._buckets, self._entity_id, self._resource = buckets, entity_id, resource
        self._consume, self._limits = consume, limits
        self._on_unavailable, self._speculative = on_unavailable, speculative
        self._policy: OnUnavailable | None = None
        self._lease: Lease | None = None

    async def __aenter__(self) -> Lease:
        assert self._lease is None, "an acquisition is entered once; call acquire again"
        try:
            self._lease = await self._acquire()
        except RateLimiterUnavailable as error:
            policy = self._policy or self._buckets.policy_when_down(self._entity_id, self._resource)
            if (self._on_unavailable or policy) is OnUnavailable.BLOCK:
                raise
            logger.warning("admitting %s on %s unchecked: %s", self._entity_id, self._resource, error)
            self._lease = DegradedLease(self._entity_id, self._resource, self._consume)
        return self._lease

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._lease is not None, "an acquisition is left once, after it was entered"
        if kind is GeneratorExit:  # a generator that is thrown away may not await any more
            self._lease._ended = True
            return
        if kind is not None:
            await self._lease._abandon()
            return
        try:
            await self._lease._finish()
        except RateLimiterUnavailable:  # logged where it happened
            if (self._on_unavailable or self._policy) is not OnUnavailable.ALLOW:
                raise

    async def _acquire(self) -> Lease:
        buckets = self._buckets
        plan = await buckets.plan(self._entity_id, self._resource, self._limits, self._consume)
        self._policy = plan.on_unavailable
        lease = Lease(buckets.teller, plan.accounts, buckets.renewed, speculative=self._speculative)
        await lease._take(needs_milli(self._consume))
        return lease


def needs_milli(amounts: Mapping[str, int]) -> dict[str, int]:
    """Amounts to be taken, checked, in millitokens."""
    if not isinstance(amounts, Mapping) or not amounts:
        raise ValidationError("consume", amounts, "name at least one limit, such as {'rpm': 1}")
    return {name: check_tokens(f"amount of {name!r}", amount) * 1000 for name, amount in amounts.items()}


def _settlement(
    accounts: Sequence[Account], taken: Sequence[Demand], adjusted: Mapping[str, int]
) -> list[Order]:
    """The orders that store a net adjustment, where a bucket has shards at those that gave the tokens."""
    orders: dict[Key, Order] = {}

    def post(account: Account, posting: Posting) -> None:
        known = orders.get(account.key)
        orders[account.key] = Order(account, merged([known.posting, posting]) if known else posting)

    for account in accounts:
        held = [demand for demand in taken if demand.account.entity_id == account.entity_id]
        for name, tokens in adjusted.items():
            if name not in account.terms.rates:
                continue
            if tokens > 0:
                payer = next((d.account for d in held if name in d.account.terms.rates), account)
                post(payer, Posting(debit={name: tokens * 1000}))
            returned = -tokens * 1000
            for demand in reversed(held):
                if (part := min(returned, demand.amounts.get(name, 0))) > 0:
                    post(demand.account, Posting(credit={name: part}))
                    returned -= part
    return list(orders.values())


def _named(amounts: Mapping[str, int] | None, named: Mapping[str, int]) -> dict[str, int]:
    """Amounts from a mapping, for names that are no identifiers, and from keywords."""
    if amounts is not None and not isinstance(amounts, Mapping):
        raise ValidationError("amounts", amounts, "name at least one limit, such as {'rpm': 1}")
    both = {**(amounts or {}), **named}
    if amounts and named and (twice := sorted(set(amounts) & set(named))):
        raise ValidationError("amounts", both, f"{', '.join(twice)} given twice")
    return both
