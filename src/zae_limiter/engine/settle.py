"""What was taken has to be answered for: it is used, given back, or told to be lost.

``settle`` carries out what cannot be refused: refunds, and debits after the fact. A write whose reply was
lost may have happened, so it is never sent again. What is not confirmed in time is logged and counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypeAlias, TypeVar

from ..exceptions import RateLimiterUnavailable
from ..repository_protocol import Item, Key, Outcome
from ..runtime.logs import logger
from .account import Account
from .bucket_view import stored_terms
from .demand import BookedDemand, BucketDemand, Seat, SeatedDemand, Take
from .door import write_each
from .group_commit import BucketWriter
from .lifetime import lasts, prolong
from .mishaps import Mishap
from .posting import Order, Posting, merged
from .seats import take_off
from .shares import parent_of

T = TypeVar("T")

Debtor: TypeAlias = tuple[Key, str | None]
"""An item, and since which deletion of its entity: what was owed to it before is not owed to it now."""


SETTLE_ATTEMPTS_MAX = 64
"""How often refunds, and debits after the fact, are tried anew because their bucket would not hold still."""

RENEWAL_CALLS = 2
"""For how many times the deadline of a call whoever ends a lease waits for a renewal that is under way."""

RESEND_ATTEMPTS_MAX = 8
"""How often these are sent that did not get through; a store repeats what it can by itself."""


class Charge(list[T]):
    """A list whose entries are lost, and told so, if it is dropped before they were taken off it.

    Between any two steps an exception out of a signal handler can unwind whoever was about to go on. So what
    was taken is noted here at once, and taken off only where somebody else answers for it.
    """

    __slots__ = ("_lose",)

    def __init__(self, lose: Callable[[T], None], entries: Iterable[T] = ()) -> None:
        self._lose = lose
        super().__init__(entries)

    def __del__(self) -> None:
        for entry in self:
            self._lose(entry)


def answered_for(writer: BucketWriter, demands: Iterable[BucketDemand] = ()) -> Charge[BucketDemand]:
    """Demands that somebody answers for."""
    return Charge(lambda demand: writer.lose(Order(demand.account, Posting(credit=demand.amounts))), demands)


async def give_back(writer: BucketWriter, taken: Sequence[BucketDemand]) -> None:
    """Refund demands, each to the item that it was taken from, and answer for that."""
    if not taken:  # by somebody who was refused
        return
    interruption = await rest(writer, seats) if (seats := _seats_in(taken)) else None
    credits: dict[Debtor, Order] = {}
    for demand in taken:
        posting = Posting(credit=demand.amounts)
        if isinstance(demand, BookedDemand):
            posting = posting._replace(booking=demand.booking)
        elif isinstance(demand, SeatedDemand):
            back = tuple(seat.back(is_refund=True) for seat in demand.seats if not seat.is_lost)
            posting = Posting(credit=demand.tokens, seats=back)
        enter(credits, demand.account, posting)
    orders = Charge(writer.lose, credits.values())
    if isinstance(taken, Charge):
        del taken[:]
    await settle(writer, orders)
    if interruption is not None:
        raise interruption


def _seats_in(taken: Sequence[BucketDemand]) -> list[Seat]:
    return [seat for demand in taken if isinstance(demand, SeatedDemand) for seat in demand.seats]


async def rest(writer: BucketWriter, seats: Sequence[Seat]) -> BaseException | None:
    """Let nobody renew seats any more, and wait for whoever does just now; returns what came meanwhile."""
    ended = (seat for seat in seats if writer.renewals.end(seat))
    moving = [
        signal for seat in ended if (signal := seat.moving) is not None
    ]  # a thread may end it meanwhile
    interruption: BaseException | None = None
    for signal in moving:
        wait = signal.wait(RENEWAL_CALLS * writer.backend.capabilities.timeout_ms / 1000)
        _, interrupted = await writer.colour.finish(wait)
        interruption = interruption or interrupted
    if any(seat.doubt is not None for seat in seats):
        _, interrupted = await writer.colour.finish(writer.renewals.resolve(seats))
        interruption = interruption or interrupted
    return interruption


def seats_back(orders: list[Order], seats: Sequence[Seat]) -> list[Order]:
    """Orders that also give seats back: the work is done, and was counted."""
    owed = {(order.account.key, order.account.life): order for order in orders}
    for seat in seats:
        if not seat.is_lost:
            enter(owed, seat.account, Posting(seats=(seat.back(),)))
    return list(owed.values())


def cost_of(taken: Sequence[Take], adjusted: Mapping[str, int]) -> dict[str, int]:
    """What was taken and adjusted in all, in tokens by limit."""
    totals_milli: dict[str, int] = {}
    for take in taken:
        for name, amount_milli in take.amounts.items():
            totals_milli[name] = totals_milli.get(name, 0) + amount_milli
    totals = {name: amount_milli // 1000 for name, amount_milli in totals_milli.items()}
    for name, amount in adjusted.items():
        totals[name] = totals.get(name, 0) + amount
    return totals


def settlement(
    accounts: Sequence[Account], taken: Sequence[Take], adjusted: Mapping[str, int]
) -> list[Order]:
    """The orders that store a net adjustment, where a bucket has shards at those that gave the tokens.

    What was not needed goes back to those who gave it, the last first. What was needed besides is paid by the
    family that first gave some of that limit, else by ``accounts``.
    """
    orders: dict[Debtor, Order] = {}
    for name, tokens in adjusted.items():
        payers = (
            next((take.accounts for take in taken if name in take.amounts), accounts) if tokens > 0 else ()
        )
        for account in payers:
            is_owed = name in account.terms.rates and name not in account.terms.seats
            if is_owed and account.is_counted:
                held = [d.account for take in taken for d in take.demands]
                known = [a for a in held if a.entity_id == account.entity_id and name in a.terms.rates]
                enter(orders, next(iter(known), account), Posting(debit={name: tokens * 1000}))
        returned = -tokens * 1000
        for take in reversed(taken):
            if (part := min(returned, take.amounts.get(name, 0))) > 0:
                for demand, share in _last_of(take, name, part):
                    enter(orders, demand.account, Posting(credit={name: share}))
                returned -= part
    return list(orders.values())


def enter(orders: dict[Debtor, Order], account: Account, posting: Posting) -> None:
    """Add a posting to what an item is owed, or owes."""
    known = orders.get((account.key, account.life))
    posting = merged([known.posting, posting]) if known else posting
    orders[account.key, account.life] = Order(account, posting)


def _last_of(take: Take, name: str, amount_milli: int) -> Iterator[tuple[BucketDemand, int]]:
    """Who of each entity of a family gave the last of what was taken."""
    for account in take.accounts:
        left = amount_milli
        for demand in reversed(take.demands):
            share = min(left, demand.amounts.get(name, 0))
            if demand.account.entity_id == account.entity_id and share > 0:
                yield demand, share
                left -= share


async def settle(writer: BucketWriter, orders: Sequence[Order]) -> list[RateLimiterUnavailable]:
    """Carry out orders that cannot be refused; returns the failures of those that could not be confirmed.

    These are logged and counted as well, for often there is nobody left to tell. A cancellation
    meanwhile waits until the books are right, and is then obeyed. All of it takes no longer than one call
    to the store may take: what is not confirmed by then is given up.
    """
    until_ms = writer.world.ticks_ms() + writer.backend.capabilities.timeout_ms
    owed = orders if isinstance(orders, Charge) else Charge(writer.lose, orders)
    lost, astray = list[RateLimiterUnavailable](), Charge(writer.lose)
    firsts = {order.account.key: order for order in reversed(owed)}
    if len(firsts) < len(owed):
        astray += [order for order in owed if firsts[order.account.key] is not order]
        owed[:] = [order for order in owed if firsts[order.account.key] is order]
    charged: list[tuple[Account, Item]] = []
    interrupted: BaseException | None = None
    for attempt in range(1, SETTLE_ATTEMPTS_MAX + 1):
        if not owed:
            break
        outcomes, interruption = await _posted(writer, owed, until_ms, first=attempt == 1)
        interrupted = interrupted or interruption
        in_time = writer.world.ticks_ms() < until_ms
        again: list[Order] = []
        for order, outcome in zip(owed, outcomes, strict=True):
            if _is_moot(order, outcome):
                astray += [_with_elder(order)] if order.account.shard_id else []
                continue
            if in_time and _may_try_again(outcome, attempt):
                still = _still_owed(order, outcome)
                writer.renewals.miss(order, still)
                again += still
            elif not outcome.applied:
                lost.append(outcome.failure or _contended(order))
                writer.refunds_lost += 1
                told = "%s may not have got %s: %s", order.account.key.partition, order.posting, lost[-1]
                writer.mishaps.note(Mishap.REFUND_LOST, order.account, *told)
            elif order.posting.debit and outcome.item is not None:
                charged.append((order.account, outcome.item))
            if outcome.applied and order.posting.seats:
                writer.seat_line.stir(order.account.key)
        owed[:] = again
    for account, image in charged:
        _, interruption = await writer.colour.finish(_keep_alive(writer, account, image))
        interrupted = interrupted or interruption
    while astray:  # one by one, for they may have the same elder, or are owed by one item in two lives
        order = Charge(writer.lose, astray[:1])
        del astray[0]
        try:
            lost += await settle(writer, order)
        except BaseException as error:  # the others must not be lost because of it
            interrupted = interrupted or error
    if interrupted is not None:
        raise interrupted
    return lost


async def _posted(
    writer: BucketWriter, orders: Sequence[Order], until_ms: float, *, first: bool
) -> tuple[list[Outcome], BaseException | None]:
    """Post binding orders, again only for as long as there is time left."""
    if first:  # a call takes no longer than that by itself
        return await writer.post(orders, binding=True)

    async def again() -> tuple[list[Outcome], BaseException | None] | None:
        left_ms = until_ms - writer.world.ticks_ms()
        return await writer.colour.at_most(left_ms / 1000, writer.post(orders, binding=True))

    posted, interruption = await writer.colour.finish(again())
    if posted is None:
        late = RateLimiterUnavailable("no answer within the deadline of a call", ambiguous=True)
        return [Outcome(False, None, failure=late) for _ in orders], interruption
    return posted[0], interruption or posted[1]


def _still_owed(order: Order, outcome: Outcome) -> list[Order]:
    """What is left of an order once seats are taken off it that somebody else has got meanwhile."""
    posting, left = order.posting, dict[tuple[str, int], int]()
    if not posting.seats or outcome.item is None:
        return [order]
    there = tuple(move for move in posting.seats if take_off([move], outcome.item, left))
    if there == posting.seats:
        return [order]
    posting = posting._replace(seats=there)
    return [order._replace(posting=posting)] if there or posting.debit or posting.credit else []


def _may_try_again(outcome: Outcome, attempt: int) -> bool:
    """Whether an order surely was not carried out, and was not tried too often."""
    if outcome.failure is None:
        return not outcome.applied and attempt < SETTLE_ATTEMPTS_MAX
    return not outcome.failure.ambiguous and attempt < RESEND_ATTEMPTS_MAX


async def _keep_alive(writer: BucketWriter, account: Account, image: Item | None) -> None:
    """Let a bucket outlive its debts; whoever cannot make sure of that says so."""
    problem: object = "it changed under every attempt"
    for _ in range(RESEND_ATTEMPTS_MAX):
        now_ms = writer.world.now_ms()
        if image is None or lasts(account.terms, image, now_ms):
            return
        write = prolong(stored_terms(image, account.terms.ttl_fills), account.key, image, now_ms)
        if write is None:
            return
        (outcome,) = await write_each(writer.backend, writer, [write])
        if outcome.applied:
            return
        if outcome.failure is not None:  # the next write to the bucket looks again
            problem = outcome.failure
            break
        image = outcome.item
    logger.warning("%s may disappear before its debts are paid: %s", account.key.partition, problem)


def _with_elder(order: Order) -> Order:
    """What is owed to a shard that is gone, as owed to the one that it is part of again."""
    account = order.account
    elder_id = parent_of(account.shard_id)
    return order._replace(account=account._replace(key=account.shard_key(elder_id), shard_id=elder_id))


def _is_moot(order: Order, outcome: Outcome) -> bool:
    """Whether the item is gone that a refund, or a debit on a shard, could go to."""
    lost = not order.posting.debit or order.account.shard_id > 0
    return lost and not outcome.applied and outcome.failure is None and outcome.item is None


def _contended(order: Order) -> RateLimiterUnavailable:
    return RateLimiterUnavailable(f"bucket {order.account.key.partition!r} changed under every attempt")
