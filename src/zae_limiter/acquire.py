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
from .lines import Order
from .models import LimitStatus
from .posting import Posting, fitting, lasts, merged, prolong
from .repository_protocol import Item, Key, Outcome
from .schema import bucket_key, is_deleted
from .sharding import parent_of
from .shards import are_known, gather, known_images, levels, place, relieve, shard_account, shard_keys
from .teller import Teller
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

ATTEMPTS_MAX = 64
"""How often a demand is tried anew, within the time of one call, because its bucket would not hold still."""

SETTLE_ATTEMPTS_MAX = 64
"""The same for what must not be lost: refunds, and debits after the fact."""

RESEND_ATTEMPTS_MAX = 8
"""How often these are sent that did not get through; a store repeats what it can by itself."""

LOOKS_MAX = 2
"""How often a bucket is looked at again whose tokens somebody else may only hold."""

OUTWAIT_STEPS_MAX, OUTWAIT_SECONDS = 20, 0.002
"""How long, in small steps, an acquire waits for another one of this process that holds what it lacks."""

LOOK_AGAIN_SECONDS = 0.02
"""Longer than it takes to give back what could not be had everywhere; the next pause is twice as long."""


class Demand(NamedTuple):
    """What one acquire takes from one bucket, in millitokens by limit."""

    account: Account
    amounts: Mapping[str, int]


def demand_on(account: Account, amounts: Mapping[str, int]) -> Demand | None:
    """What can be asked of an account: the limits it has, if any."""
    known = {name: amount for name, amount in amounts.items() if name in account.terms.rates}
    return Demand(account, known) if known else None


def demands_on(accounts: Sequence[Account], amounts: Mapping[str, int]) -> list[Demand]:
    """Amounts as demands on all who have such limits; somebody must have each of them."""
    for name in amounts:
        if not any(name in account.terms.rates for account in accounts):
            raise unknown_limit(name, accounts)
    return [demand for account in accounts if (demand := demand_on(account, amounts)) is not None]


def unknown_limit(name: str, accounts: Sequence[Account]) -> ValidationError:
    entity_id, resource = accounts[0].entity_id, accounts[0].resource
    known = dict.fromkeys(name for account in accounts for name in account.terms.rates)
    has = f"it has {', '.join(known)}" if known else "it has none"
    return ValidationError("limit name", name, f"{entity_id!r} has no such limit on {resource!r}; {has}")


Renew: TypeAlias = Callable[[Account], Awaitable[Account]]


async def acquire(
    teller: Teller, demands: Sequence[Demand], renew: Renew, *, speculative: bool = True
) -> tuple[Demand, ...]:
    """Take every demand from its bucket, or none; ``renew`` brings the newest terms of an account."""
    if refusal := _remembered(teller, demands):
        raise refusal
    taking = _Taking(teller, demands, renew)
    taking.together = not speculative or taking.can_be_atomic
    until_ms, looks = teller.world.ticks_ms() + teller.backend.capabilities.timeout_ms, 0
    try:
        for attempt in range(ATTEMPTS_MAX):
            asked_ms = teller.world.now_ms()
            misled = await taking.attempt(read_first=not speculative)
            if not taking.owed:
                return tuple(taking.taken)
            if not misled:
                # Who is refused and fits by the time of the reply tries again, but does not race for ever.
                refusal = taking.refusal(teller.world.now_ms())
                refusal = refusal or (taking.refusal(asked_ms) if attempt else None)
                if refusal and await taking.outwait():
                    refusal = taking.refusal(teller.world.now_ms())
                if refusal:
                    doubtful = taking.is_doubtful
                    if looks == LOOKS_MAX or not doubtful:
                        taking.remember(firmly=not doubtful)
                        raise refusal
                    looks += 1
                    await taking.look_again(LOOK_AGAIN_SECONDS * looks)
            if teller.world.ticks_ms() >= until_ms:
                break
        raise RateLimiterUnavailable(f"{taking.place} changed under every attempt")
    except GeneratorExit:  # a coroutine that is thrown away may not await any more
        raise
    except BaseException:
        await give_back(teller, taking.taken)
        raise
    finally:
        taking.let_go()


class _Taking:
    """An acquire under way: what was taken, and what is still owed."""

    def __init__(self, teller: Teller, demands: Sequence[Demand], renew: Renew) -> None:
        self._teller, self._renew = teller, renew
        self._demands = list(demands)
        """All of them, under the newest terms that were seen."""
        self.owed = list(range(len(demands)))
        """The places of those that nobody has admitted yet."""
        self.taken: list[Demand] = []
        self.together = False
        self._seen_gone: set[int] = set()
        self._held: list[Key] = []

    @property
    def can_be_atomic(self) -> bool:
        return len(self._demands) > 1 and self._teller.backend.capabilities.atomic_batches

    @property
    def place(self) -> str:
        return f"bucket {self._demands[self.owed[0]].account.key.partition!r}"

    async def attempt(self, *, read_first: bool) -> bool:
        """Try to take what is owed; whether somebody was misled about a bucket and knows better now."""
        placed = []
        for at in self.owed:
            account, amounts = self._demands[at]
            placed.append((at, Demand(await place(self._teller, account, amounts), amounts)))
        refused = []
        for part in [placed] if self.together else self._in_turn(placed):
            if refused := await self._take(part, read_first=read_first):
                break  # of the others nothing is asked, for it could only be held and given back
        misled = not refused  # nobody is to blame: others were faster
        for at, shard in refused:
            misled = await self._reconsider(at, shard) or misled
        return misled

    def refusal(self, now_ms: int) -> RateLimitExceeded | None:
        """The refusal that the images call for at an instant, or ``None`` if another attempt can succeed."""
        owed = [self._demands[at] for at in self.owed]
        given = [d for at, d in enumerate(self._demands) if at not in self.owed and d.amounts]
        return _refusal(self._teller, owed, now_ms, given, self.taken)

    @property
    def is_doubtful(self) -> bool:
        """Whether tokens are missing that somebody may only hold until another bucket has answered."""
        if self.taken and self._is_held_here:
            return True
        return any(map(self._teller.is_doubtful, self._missing))

    @property
    def _missing(self) -> list[Key]:
        return [self._demands[at].account.key for at in self.owed]

    @property
    def _is_held_here(self) -> bool:
        return any(self._teller.is_held_here(key) for key in self._missing)

    async def outwait(self) -> bool:
        """Wait for acquires of this process that hold what is missing, unless they may wait for us."""
        for step in range(OUTWAIT_STEPS_MAX):
            if self.taken or not self._is_held_here:
                return step > 0
            await self._teller.colour.sleep(OUTWAIT_SECONDS)
        return True

    def let_go(self) -> None:
        """Nothing is held any more: it is taken for good, or given back."""
        for key in self._held:
            self._teller.let_go(key)
        self._held.clear()

    def remember(self, *, firmly: bool) -> None:
        """Let equal demands be refused for a moment without asking again, or else not."""
        for at in self.owed:
            key = self._demands[at].account.key
            (self._teller.note_refusal if firmly else self._teller.reconsider)(key)

    async def look_again(self, seconds: float) -> None:
        """Let go of everything, wait a little and look; from now on all is taken at once or nothing."""
        taken, self.taken = self.taken, []
        await give_back(self._teller, taken)
        self.let_go()
        self.owed = [at for at, demand in enumerate(self._demands) if demand.amounts]
        self.together = True
        await self._teller.colour.sleep(seconds * self._teller.world.random.uniform(1, 2))
        await self._teller.look([demand.account.key for demand in self._demands])

    def _in_turn(self, placed: list[tuple[int, Demand]]) -> list[list[tuple[int, Demand]]]:
        """Whom to ask first: the buckets that are believed to refuse. If none is, all at once."""
        if len(placed) == 1:
            return [placed]
        now_ms, teller = self._teller.world.now_ms(), self._teller
        doubted: list[tuple[int, Demand]] = []
        trusted: list[tuple[int, Demand]] = []
        for at, (account, amounts) in placed:
            (fits,) = fitting([Posting(amounts)], account.terms, teller.image(account.key), now_ms)
            (trusted if fits else doubted).append((at, Demand(account, amounts)))
        return [part for part in (doubted, trusted) if part]

    async def _take(
        self, placed: Sequence[tuple[int, Demand]], *, read_first: bool = False
    ) -> list[tuple[int, Account]]:
        """Post demands, note those that were taken, and return where the others were refused."""
        teller = self._teller
        alone = len(self._demands) == 1 or (self.together and len(placed) == len(self._demands))
        hold = 0 if alone else self._hold([demand.account for _, demand in placed])
        orders = [Order(demand.account, Posting(demand.amounts, hold=hold)) for _, demand in placed]
        if self.together:
            outcomes, interruption = await teller.post_together(orders, read_first=read_first)
        else:
            outcomes, interruption = await teller.post(orders)
        for (at, demand), outcome in zip(placed, outcomes, strict=True):
            if outcome.applied:
                self.taken.append(demand)
                self.owed.remove(at)
            elif hold:
                self._held.remove(demand.account.whole_key)
                teller.let_go(demand.account.whole_key)
        _obey(outcomes, interruption)
        blamed = zip(placed, outcomes, strict=True)
        return [(at, demand.account) for (at, demand), outcome in blamed if not outcome.held]

    def _hold(self, accounts: Sequence[Account]) -> int:
        """Mark what is taken from some buckets of several, here and in the store."""
        for account in accounts:
            self._held.append(account.whole_key)
            self._teller.hold(account.whole_key)
        return self._teller.new_hold([account.key for account in accounts])

    async def _reconsider(self, at: int, shard: Account) -> bool:
        """Find out why a shard refused a demand; whether that was for another reason than tokens."""
        teller, demand = self._teller, self._demands[at]
        image = teller.image(shard.key)
        if is_split(shard, image):
            return True
        # A bucket is made from records that were read after it was seen to be gone: it may have been deleted.
        missing = image is None or is_deleted(image)
        gone = missing and shard.terms.version is not None and at not in self._seen_gone
        if gone or is_outdated(shard.terms, image):
            if gone:
                self._seen_gone.add(at)
            await self._change_terms(at)
            return True
        if is_overloaded(shard, image, teller.world.now_ms()):
            self._demands[at] = demand._replace(account=await relieve(teller, demand.account, shard))
            return True
        await teller.bring_up_to_date(shard)
        if shard_count(teller.image(demand.account.key)) > 1:
            parts = await gather(teller, demand.account, demand.amounts)
            if parts and not await self._gather(at, parts):
                return True
        return False

    async def _gather(self, at: int, parts: Sequence[tuple[Account, dict[str, int]]]) -> bool:
        """Take a demand from several shards at once."""
        hold = self._hold([account for account, _ in parts[:1]]) if len(self._demands) > 1 else 0
        orders = [Order(account, Posting(amounts, hold=hold)) for account, amounts in parts]
        outcomes, interruption = await self._teller.post_together(orders)
        applied = all(outcome.applied for outcome in outcomes)
        if applied:
            self.taken += [Demand(*part) for part in parts]
            self.owed.remove(at)
        _obey(outcomes, interruption)
        return applied

    async def _change_terms(self, at: int) -> None:
        """Go on under the newest configuration of a bucket, which may have fewer limits."""
        demand = self._demands[at]
        renewed = demand_on(account := await self._renew(demand.account), demand.amounts)
        others = [other for place, other in enumerate(self._demands) if place != at]
        for name in demand.amounts:
            if name not in account.terms.rates and not any(name in other.amounts for other in others):
                raise unknown_limit(name, [account])
        if renewed is not None:
            self._demands[at] = renewed
            return
        # A parent that has none of these limits any more is not asked.
        self._demands[at] = Demand(account, {})
        self.owed.remove(at)


def _obey(outcomes: Sequence[Outcome], interruption: BaseException | None) -> None:
    """Raise what was to be told beside some outcomes, once these are noted."""
    if interruption is not None:
        raise interruption
    for outcome in outcomes:
        if outcome.failure is not None:
            raise outcome.failure


async def give_back(teller: Teller, taken: Sequence[Demand]) -> None:
    """Refund demands, each to the item that it was taken from."""
    credits: dict[Key, Order] = {}
    for account, amounts in taken:
        known = credits.get(account.key)
        credit = merged([known.posting, Posting(credit=amounts)]) if known else Posting(credit=amounts)
        credits[account.key] = Order(account, credit)
    await settle(teller, list(credits.values()))


async def settle(teller: Teller, orders: Sequence[Order]) -> list[RateLimiterUnavailable]:
    """Carry out orders that cannot be refused; returns the failures of those that could not be confirmed.

    These are logged and counted as well, for often there is nobody left to tell. A cancellation
    meanwhile waits until the books are right, and is then obeyed. All of it takes no longer than one call
    to the store may take: what is not confirmed by then is given up.
    """
    until_ms = teller.world.ticks_ms() + teller.backend.capabilities.timeout_ms
    owed = list(orders)
    lost: list[RateLimiterUnavailable] = []
    astray: list[Order] = []
    charged: list[tuple[Account, Item]] = []
    interrupted: BaseException | None = None
    for attempt in range(1, SETTLE_ATTEMPTS_MAX + 1):
        if not owed:
            break
        outcomes, interruption = await _posted(teller, owed, until_ms, first=attempt == 1)
        interrupted = interrupted or interruption
        in_time = teller.world.ticks_ms() < until_ms
        answered, owed = list(zip(owed, outcomes, strict=True)), []
        for order, outcome in answered:
            if _is_moot(order, outcome):
                astray += [_with_elder(order)] if order.account.shard_id else []
                continue
            if in_time and _may_try_again(outcome, attempt):
                owed.append(order)
            elif not outcome.applied:
                lost.append(outcome.failure or _contended(order))
                logger.warning(
                    "%s may not have got %s: %s", order.account.key.partition, order.posting, lost[-1]
                )
            elif order.posting.debit and outcome.item is not None:
                charged.append((order.account, outcome.item))
    teller.refunds_lost += len(lost)
    for account, image in charged:
        _, interruption = await teller.colour.finish(_keep_alive(teller, account, image))
        interrupted = interrupted or interruption
    for order in astray:  # one by one, for they may have the same elder
        try:
            lost += await settle(teller, [order])
        except BaseException as error:  # the others must not be lost because of it
            interrupted = interrupted or error
    if interrupted is not None:
        raise interrupted
    return lost


async def _posted(
    teller: Teller, orders: Sequence[Order], until_ms: float, *, first: bool
) -> tuple[list[Outcome], BaseException | None]:
    """Post binding orders, again only for as long as there is time left."""
    if first:  # a call takes no longer than that by itself
        return await teller.post(orders, binding=True)

    async def again() -> tuple[list[Outcome], BaseException | None] | None:
        left_ms = until_ms - teller.world.ticks_ms()
        return await teller.colour.at_most(left_ms / 1000, teller.post(orders, binding=True))

    posted, interruption = await teller.colour.finish(again())
    if posted is None:
        late = RateLimiterUnavailable("no answer within the deadline of a call", ambiguous=True)
        return [Outcome(False, None, failure=late) for _ in orders], interruption
    return posted[0], interruption or posted[1]


def _may_try_again(outcome: Outcome, attempt: int) -> bool:
    """Whether an order surely was not carried out, and was not tried too often."""
    if outcome.failure is None:
        return not outcome.applied and attempt < SETTLE_ATTEMPTS_MAX
    return not outcome.failure.ambiguous and attempt < RESEND_ATTEMPTS_MAX


async def _keep_alive(teller: Teller, account: Account, image: Item | None) -> None:
    """Let a bucket outlive its debts; whoever cannot make sure of that says so."""
    problem: object = "it changed under every attempt"
    for _ in range(RESEND_ATTEMPTS_MAX):
        now_ms = teller.world.now_ms()
        if image is None or lasts(account.terms, image, now_ms):
            return
        write = prolong(stored_terms(image, account.terms.ttl_fills), account.key, image, now_ms)
        if write is None:
            return
        (outcome,) = await teller.backend.write_each([write])
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
    key = bucket_key(account.namespace_id, account.entity_id, account.resource, elder_id)
    return order._replace(account=account._replace(key=key, shard_id=elder_id))


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
    if _refusal(teller, lately, now_ms) is None:
        return None
    return _refusal(teller, demands, now_ms)


def _refused_lately(teller: Teller, account: Account) -> bool:
    """Whether a bucket refused a moment ago under the limits that this caller has too."""
    if not teller.refused_lately(account.key):
        return False
    image = teller.image(account.key)
    return image is None or (
        has_terms(image, shard_account(account, 0, image).terms) and are_known(teller, account)
    )


def _refusal(
    teller: Teller,
    owed: Sequence[Demand],
    now_ms: int,
    given: Sequence[Demand] = (),
    taken: Sequence[Demand] = (),
) -> RateLimitExceeded | None:
    """The refusal that the images call for at an instant, or ``None`` if another attempt can succeed.

    It tells of the demands that were ``given`` too, as their buckets were before this acquire took its part.
    """
    statuses = [s for d in owed for s in demand_statuses(d, known_images(teller, d.account), now_ms)]
    if not any(s.exceeded for s in statuses):
        return None
    parts = {demand.account.key: demand.amounts for demand in taken}
    for demand in given:
        keys = shard_keys(demand.account, shard_count(teller.image(demand.account.key)))
        images = [put_back(teller.image(key), parts.get(key, {})) for key in keys]
        statuses += demand_statuses(demand, images, now_ms)
    return RateLimitExceeded(statuses)


def demand_statuses(demand: Demand, images: Sequence[Item | None], now_ms: int) -> list[LimitStatus]:
    """Every limit of a demand as it stands against the images of all shards of its bucket."""
    account = demand.account
    return [
        status(account, name, need_milli, levels(account, images, name, now_ms), now_ms)
        for name, need_milli in demand.amounts.items()
    ]
