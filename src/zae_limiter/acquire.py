"""One acquire from beginning to end: take from every bucket or from none, settle, give back.

``acquire`` is the one coroutine that holds the branches; what it decides is decided by pure
functions. What was taken from one bucket stays taken while another is retried, and is given back
when the whole cannot be had, whatever the reason: a refusal, a store that is gone, a cancellation.

A write whose reply was lost may have happened. Such a debit counts as spent and is never sent again;
such a refund is never repeated. Nothing is applied twice.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from .exceptions import RateLimiterUnavailable, RateLimitExceeded
from .models import LimitStatus
from .posting import Account, Level, Posting, is_outdated, level, prolong, status, stored_terms
from .repository_protocol import Item, Outcome
from .teller import Order, Teller

logger = logging.getLogger("zae_limiter")

ATTEMPTS_MAX = 8
"""How often a demand is tried anew because limits changed or its bucket would not hold still."""

SETTLE_ATTEMPTS_MAX = 64
"""The same for what must not be lost: refunds, and debits after the fact."""


class Demand(NamedTuple):
    """What one acquire takes from one bucket, in millitokens by limit."""

    account: Account
    amounts: Mapping[str, int]


Renew: TypeAlias = Callable[[Account], Awaitable[Account]]


async def acquire(
    teller: Teller, demands: Sequence[Demand], renew: Renew, *, speculative: bool = True
) -> tuple[Demand, ...]:
    """Take every demand from its bucket, or none; ``renew`` brings the newest terms of an account."""
    taken: list[Demand] = []
    owed = list(demands)
    try:
        for _ in range(ATTEMPTS_MAX):
            orders = [Order(d.account, Posting(need=d.amounts)) for d in owed]
            post = teller.post if speculative else teller.post_together
            outcomes, interruption = await post(orders)
            answered = list(zip(owed, outcomes, strict=True))
            taken += [demand for demand, outcome in answered if outcome.applied]
            owed = [demand for demand, outcome in answered if not outcome.applied]
            if interruption is not None:
                raise interruption
            for outcome in outcomes:
                if outcome.failure is not None:
                    raise outcome.failure
            if not owed:
                return tuple(taken)
            owed = [d._replace(account=await _newest(teller, d.account, renew)) for d in owed]
            if refusal := _refusal(teller, taken, owed):
                raise refusal
        raise RateLimiterUnavailable(
            f"bucket {owed[0].account.key.partition!r} changed under each of {ATTEMPTS_MAX} attempts"
        )
    except GeneratorExit:  # a coroutine that is thrown away may not await any more
        raise
    except BaseException:
        await give_back(teller, taken)
        raise


async def give_back(teller: Teller, taken: Sequence[Demand]) -> None:
    """Refund demands."""
    await settle(teller, [Order(d.account, Posting(credit=d.amounts)) for d in taken])


async def settle(teller: Teller, orders: Sequence[Order]) -> list[RateLimiterUnavailable]:
    """Carry out orders that cannot be refused; returns the failures of those that could not be confirmed.

    These are logged and counted as well, for often there is nobody left to tell. A cancellation
    meanwhile waits until the books are right, and is then obeyed.
    """
    owed = list(orders)
    lost: list[RateLimiterUnavailable] = []
    interrupted: BaseException | None = None
    for attempt in range(1, SETTLE_ATTEMPTS_MAX + 1):
        if not owed:
            break
        outcomes, interruption = await teller.post(owed, binding=True)
        interrupted = interrupted or interruption
        answered, owed = list(zip(owed, outcomes, strict=True)), []
        for order, outcome in answered:
            if _is_moot(order, outcome):
                continue
            if (outcome.failure is None and not outcome.applied and attempt < SETTLE_ATTEMPTS_MAX) or (
                outcome.failure is not None and not outcome.failure.ambiguous and attempt < ATTEMPTS_MAX
            ):
                owed.append(order)
            elif not outcome.applied:
                lost.append(outcome.failure or _contended(order))
                logger.warning(
                    "%s may not have got %s: %s", order.account.key.partition, order.posting, lost[-1]
                )
            elif order.posting.debit and outcome.item is not None:
                await _keep_alive(teller, order.account, outcome.item)
    teller.refunds_lost += len(lost)
    if interrupted is not None:
        raise interrupted
    return lost


async def _keep_alive(teller: Teller, account: Account, image: Item) -> None:
    terms = stored_terms(image, account.terms.ttl_fills)
    write = prolong(terms, account.key, image, teller.world.now_ms())
    if write is not None:
        await teller.backend.write_each([write])


async def _newest(teller: Teller, account: Account, renew: Renew) -> Account:
    if is_outdated(account.terms, teller.image(account.key)):
        return await renew(account)
    return account


def _is_moot(order: Order, outcome: Outcome) -> bool:
    """Whether there is no bucket any more that a refund could go to: the next one starts full."""
    refund = not order.posting.need and not order.posting.debit
    return refund and not outcome.applied and outcome.failure is None and outcome.item is None


def _contended(order: Order) -> RateLimiterUnavailable:
    return RateLimiterUnavailable(f"bucket {order.account.key.partition!r} changed under every attempt")


def _refusal(teller: Teller, taken: Sequence[Demand], owed: Sequence[Demand]) -> RateLimitExceeded | None:
    """The refusal that the images call for, or ``None`` if another attempt can succeed."""
    now_ms = teller.world.now_ms()
    statuses = [s for d in owed for s in demand_statuses(d, teller.image(d.account.key), now_ms)]
    if not any(s.exceeded for s in statuses):
        return None
    for demand in taken:  # as it was found, before this acquire took its part
        statuses += demand_statuses(demand, teller.image(demand.account.key), now_ms, put_back=True)
    return RateLimitExceeded(statuses)


def demand_statuses(
    demand: Demand, image: Item | None, now_ms: int, *, put_back: bool = False
) -> list[LimitStatus]:
    """Every limit of a demand as it stands against this image."""
    account, found = demand.account, []
    for name, need_milli in demand.amounts.items():
        at = level(account.terms, name, image, now_ms)
        if put_back:
            at = Level(at.rate, at.tokens_milli + need_milli, at.origin_ms)
        found.append(status(account, name, need_milli, at, now_ms))
    return found
