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

from .exceptions import RateLimiterUnavailable, RateLimitExceeded, ValidationError
from .models import LimitStatus
from .posting import Posting, lasts, merged, prolong
from .repository_protocol import Item, Key, Outcome
from .shards import gather, known_images, levels, place, relieve, shard_account
from .teller import Order, Teller
from .terms import (
    Account,
    has_terms,
    is_outdated,
    is_overloaded,
    is_split,
    put_back,
    shard_count,
    status,
    stored_terms,
)

logger = logging.getLogger("zae_limiter")

ATTEMPTS_MAX = 8
"""How often a demand is tried anew because limits changed or its bucket would not hold still."""

SETTLE_ATTEMPTS_MAX = 64
"""The same for what must not be lost: refunds, and debits after the fact."""


class Demand(NamedTuple):
    """What one acquire takes from one bucket, in millitokens by limit."""

    account: Account
    amounts: Mapping[str, int]
    optional: bool = False
    """Limits that the account does not have are no reason to refuse: a parent is asked for those it has."""


def demand_on(account: Account, amounts: Mapping[str, int], *, optional: bool = False) -> Demand | None:
    """What can be asked of an account: everything, or where that is ``optional`` what it has, if anything."""
    rates = account.terms.rates
    known = {name: amount for name, amount in amounts.items() if name in rates}
    if len(known) < len(amounts) and not optional:
        unknown = next(name for name in amounts if name not in rates)
        raise ValidationError(
            "limit name",
            unknown,
            f"{account.entity_id!r} has no such limit on {account.resource!r}; it has {', '.join(rates)}",
        )
    return Demand(account, known, optional) if known else None


Renew: TypeAlias = Callable[[Account], Awaitable[Account]]


async def acquire(
    teller: Teller, demands: Sequence[Demand], renew: Renew, *, speculative: bool = True
) -> tuple[Demand, ...]:
    """Take every demand from its bucket, or none; ``renew`` brings the newest terms of an account."""
    if refusal := _remembered(teller, demands):
        raise refusal
    taken: list[Demand] = []
    owed = list(demands)
    try:
        for attempt in range(ATTEMPTS_MAX):
            asked_ms = teller.world.now_ms()
            placed = [d._replace(account=await place(teller, d.account, d.amounts)) for d in owed]
            refused = await _take(teller, placed, taken, speculative=speculative)
            owed = [d for d, p in zip(owed, placed, strict=True) if p in refused]
            if not owed:
                return tuple(taken)
            owed = [
                next_try
                for demand, shard in zip(owed, refused, strict=True)
                if (next_try := await _reconsidered(teller, demand, shard.account, taken, renew))
            ]
            if not owed:
                return tuple(taken)
            refusal = _refusal(teller, taken, owed, teller.world.now_ms())
            # Who is refused and fits by the time of the reply tries again, but does not race for ever.
            if refusal := refusal or (_refusal(teller, taken, owed, asked_ms) if attempt else None):
                raise refusal
        raise RateLimiterUnavailable(
            f"bucket {owed[0].account.key.partition!r} changed under each of {ATTEMPTS_MAX} attempts"
        )
    except GeneratorExit:  # a coroutine that is thrown away may not await any more
        raise
    except BaseException:
        await give_back(teller, taken)
        raise


async def _take(
    teller: Teller, demands: Sequence[Demand], taken: list[Demand], *, speculative: bool
) -> list[Demand]:
    """Post demands, note those that were taken, and return those that were refused."""
    orders = [Order(d.account, Posting(need=d.amounts)) for d in demands]
    outcomes, interruption = await (teller.post if speculative else teller.post_together)(orders)
    answered = list(zip(demands, outcomes, strict=True))
    taken += [demand for demand, outcome in answered if outcome.applied]
    if interruption is not None:
        raise interruption
    for outcome in outcomes:
        if outcome.failure is not None:
            raise outcome.failure
    return [demand for demand, outcome in answered if not outcome.applied]


async def _reconsidered(
    teller: Teller, demand: Demand, shard: Account, taken: list[Demand], renew: Renew
) -> Demand | None:
    """What is left of a demand after a shard refused it: the demand as it is to be tried again, if at all."""
    image = teller.image(shard.key)
    if is_split(shard, image):
        return demand
    # A bucket is made from records that were read after it was seen to be gone: it may have been deleted.
    if is_outdated(shard.terms, image) or (image is None and shard.terms.version is not None):
        return demand_on(await renew(demand.account), demand.amounts, optional=demand.optional)
    if is_overloaded(shard, image, teller.world.now_ms()):
        return demand._replace(account=await relieve(teller, demand.account, shard))
    await teller.bring_up_to_date(shard)
    if shard_count(teller.image(demand.account.key)) == 1:
        return demand
    parts = [Demand(*part) for part in await gather(teller, demand.account, demand.amounts)]
    if not parts:
        teller.note_refusal(demand.account.key)
        return demand
    return demand if await _take(teller, parts, taken, speculative=False) else None


async def give_back(teller: Teller, taken: Sequence[Demand]) -> None:
    """Refund demands, each to the item that it was taken from."""
    credits: dict[Key, Order] = {}
    for account, amounts, _ in taken:
        known = credits.get(account.key)
        credit = merged([known.posting, Posting(credit=amounts)]) if known else Posting(credit=amounts)
        credits[account.key] = Order(account, credit)
    await settle(teller, list(credits.values()))


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
    now_ms = teller.world.now_ms()
    if lasts(account.terms, image, now_ms):
        return
    write = prolong(stored_terms(image, account.terms.ttl_fills), account.key, image, now_ms)
    if write is not None:
        await teller.backend.write_each([write])


def _is_moot(order: Order, outcome: Outcome) -> bool:
    """Whether the item is gone that a refund, or a debit on a shard, could go to."""
    lost = not order.posting.debit or order.account.shard_id > 0
    return lost and not outcome.applied and outcome.failure is None and outcome.item is None


def _contended(order: Order) -> RateLimiterUnavailable:
    return RateLimiterUnavailable(f"bucket {order.account.key.partition!r} changed under every attempt")


def _remembered(teller: Teller, demands: Sequence[Demand]) -> RateLimitExceeded | None:
    """The refusal that a bucket's last one calls for, if that was a moment ago."""
    lately = [demand for demand in demands if _refused_lately(teller, demand.account)]
    if not lately:
        return None
    now_ms = teller.world.now_ms()
    if _refusal(teller, (), lately, now_ms) is None:
        return None
    return _refusal(teller, (), demands, now_ms)


def _refused_lately(teller: Teller, account: Account) -> bool:
    """Whether a bucket refused a moment ago under the limits that this caller has too."""
    if not teller.refused_lately(account.key):
        return False
    image = teller.image(account.key)
    return image is None or has_terms(image, shard_account(account, 0, image).terms)


def _refusal(
    teller: Teller, taken: Sequence[Demand], owed: Sequence[Demand], now_ms: int
) -> RateLimitExceeded | None:
    """The refusal that the images call for at an instant, or ``None`` if another attempt can succeed."""
    statuses = [s for d in owed for s in demand_statuses(d, known_images(teller, d.account), now_ms)]
    if not any(s.exceeded for s in statuses):
        return None
    for demand in taken:  # as it was found, before this acquire took its part
        image = teller.image(demand.account.key)
        statuses += demand_statuses(demand, [put_back(image, demand.amounts)], now_ms)
    return RateLimitExceeded(statuses)


def demand_statuses(demand: Demand, images: Sequence[Item | None], now_ms: int) -> list[LimitStatus]:
    """Every limit of a demand as it stands against the images of all shards of its bucket."""
    account = demand.account
    return [
        status(account, name, need_milli, levels(account, images, name, now_ms), now_ms)
        for name, need_milli in demand.amounts.items()
    ]
