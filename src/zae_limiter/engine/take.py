"""Taking from several buckets, or from one that would not give at the first try: all or nothing.

What was taken from one bucket stays taken while another is retried, and is given back when the whole cannot
be had, whatever the reason: a refusal, a store that is gone, a cancellation.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import replace
from typing import TypeAlias

from ..exceptions import RateLimiterUnavailable, RateLimitExceeded
from ..repository_protocol import Key, Outcome, Write
from ..schema import is_deleted
from .account import Account
from .bucket_view import is_outdated, is_overloaded, is_split, life_of, shard_count
from .demand import BucketDemand, demand_on, of_life, order_of, seated, taken_from, unknown_limit
from .fitting import fitting
from .group_commit import BucketWriter
from .posting import Booking, Order, Posting
from .receipts import Record, RecordedBefore
from .refusal import refusal_of, waiting_statuses
from .settle import Charge, answered_for, give_back
from .split import gather, place, relieve
from .waiting_room import Courtesy

RACES_MAX = 8
"""How often a transaction races others before it stands in line. Races are faster where a store is far away,
but each sends all of it again, which a busy store cannot carry out in time."""

ATTEMPTS_MAX = 64
"""How often a demand is tried anew, within the time of one call, because its bucket would not hold still."""

SOON_SECONDS = 0.001
"""The wait of whoever need not wait for tokens, only be faster than others the next time."""

LOOKS_MAX = 2
"""How often a bucket is looked at again whose tokens somebody else may only hold."""

OUTWAIT_STEPS_MAX, OUTWAIT_SECONDS = 20, 0.002
"""How long, in small steps, an acquire waits for another one of this process that holds what it lacks."""

LOOK_AGAIN_SECONDS = 0.02
"""Longer than it takes to give back what could not be had everywhere; the next pause is twice as long."""

Renew: TypeAlias = Callable[[Account], Awaitable[Account]]


class Contended(RateLimiterUnavailable):
    """A bucket changed under every attempt: the store answers, but others were faster each time."""


async def take(
    writer: BucketWriter,
    demands: Sequence[BucketDemand],
    renew: Renew,
    *,
    speculative: bool = True,
    refused: Account | None = None,
    booking: Booking | None = None,
    record: Record | None = None,
) -> Charge[BucketDemand]:
    """Take every demand from its bucket, or none; ``renew`` brings the newest terms of an account.

    ``refused`` is the account of a lone demand that its bucket has just refused, ``booking`` says for when
    a lone one may be booked. The caller answers for what was taken, or a ``record`` that is written with it.
    """
    until_ms, looks = writer.world.ticks_ms() + writer.backend.capabilities.timeout_ms, 0
    taking = _Taking(writer, demands, renew, booking, Courtesy(until_ms))
    taking.record, speculative = record, speculative and record is None
    taking.together = not speculative or taking.can_be_atomic
    try:
        for attempt in range(ATTEMPTS_MAX):
            asked_ms, taking.courtesy.in_line = writer.world.now_ms(), attempt >= RACES_MAX
            if refused is not None:
                misled, refused = await taking.reconsider(0, refused), None
            else:
                misled = await taking.attempt(read_first=not speculative)
            if not taking.owed:
                taking.let_go()
                return taking.taken
            if not misled:
                # Who is refused and fits by the time of the reply tries again, but does not race for ever.
                refusal = taking.refusal(writer.world.now_ms())
                refusal = refusal or (
                    taking.lost_race(max(asked_ms, taking.courtesy.over_ms)) if attempt else None
                )
                if refusal and await taking.outwait():
                    refusal = taking.refusal(writer.world.now_ms())
                if refusal and not await taking.catch_up():
                    doubtful = taking.is_doubtful
                    if looks == LOOKS_MAX or not doubtful:
                        taking.remember(firmly=not doubtful)
                        raise refusal
                    looks += 1
                    await taking.look_again(LOOK_AGAIN_SECONDS * looks)
            if writer.world.ticks_ms() >= until_ms:
                break
        raise Contended(f"{taking.place} changed under every attempt")
    except GeneratorExit:  # a coroutine that is thrown away may not await any more
        del taking.taken[:]  # whoever keeps coroutines knows of it
        taking.let_go()
        raise
    except BaseException:
        if taking.is_recorded:
            del taking.taken[:]
        await give_back(writer, taking.taken)
        taking.let_go()
        raise


class _Taking:
    """An acquire under way: what was taken, and what is still owed."""

    def __init__(
        self,
        writer: BucketWriter,
        demands: Sequence[BucketDemand],
        renew: Renew,
        booking: Booking | None,
        courtesy: Courtesy,
    ) -> None:
        self._writer, self._renew, self._booking, self.courtesy = writer, renew, booking, courtesy
        self._demands = list(demands)
        """All of them, under the newest terms that were seen."""
        self.owed = list(range(len(demands)))
        """The places of those that nobody has admitted yet."""
        self.taken = answered_for(writer)
        self.together = self.is_recorded = False
        self.record: Record | None = None
        self._seen_gone: set[int] = set()
        self._held: list[Key] = []

    @property
    def can_be_atomic(self) -> bool:
        return len(self._demands) > 1 and self._writer.backend.capabilities.atomic_batches

    @property
    def place(self) -> str:
        return f"bucket {self._demands[self.owed[0]].account.key.partition!r}"

    async def attempt(self, *, read_first: bool) -> bool:
        """Try to take what is owed; whether somebody was misled about a bucket and knows better now."""
        placed = []
        for at in self.owed:
            account, amounts = self._demands[at]
            demand = BucketDemand(await place(self._writer, account, amounts), amounts)
            placed.append((at, self._seated(demand, self._writer.world.now_ms())))
        refused = []
        for part in [placed] if self.together else self._in_turn(placed):
            if refused := await self._take(part, read_first=read_first):
                break  # of the others nothing is asked, for it could only be held and given back
        misled = not refused  # nobody is to blame: others were faster
        for at, shard in refused:
            if at in self.owed:  # beside a record it may have been taken with another one
                misled = await self.reconsider(at, shard) or misled
        return misled

    def refusal(self, now_ms: int) -> RateLimitExceeded | None:
        """The refusal that the images call for at an instant, or ``None`` if another attempt can succeed."""
        owed = [self._demands[at] for at in self.owed]
        given = [d for at, d in enumerate(self._demands) if at not in self.owed and d.amounts]
        refusal = refusal_of(self._writer, owed, now_ms, given, self.taken)
        if refusal is None or self._booking is None:
            return refusal
        (demand,), image = owed, self._writer.image(owed[0].account.key)
        posting = Posting(demand.amounts, booking=self._booking)
        if shard_count(image) == 1 and all(fitting([posting], demand.account.terms, image, now_ms)):
            return None
        return RateLimitExceeded(waiting_statuses(refusal.statuses, demand, image, now_ms))

    def lost_race(self, asked_ms: int) -> RateLimitExceeded | None:
        """The refusal of somebody who fits by now: at that instant others were faster."""
        if (refusal := self.refusal(asked_ms)) is None:
            return None
        by_now = [replace(s, retry_after_seconds=SOON_SECONDS) if s.exceeded else s for s in refusal.statuses]
        return RateLimitExceeded(by_now)

    @property
    def is_doubtful(self) -> bool:
        """Whether tokens are missing that somebody may only hold until another bucket has answered."""
        if self.taken and self._is_held_here:
            return True
        return True in [self._writer.is_doubtful(key) for key in self._missing]  # each is watched from now on

    @property
    def _missing(self) -> list[Key]:
        return [self._demands[at].account.key for at in self.owed]

    @property
    def _is_held_here(self) -> bool:
        return any(self._writer.is_held_here(key) for key in self._missing)

    async def outwait(self) -> bool:
        """Wait for acquires of this process that hold what is missing, unless they may wait for us."""
        for step in range(OUTWAIT_STEPS_MAX):
            if self.taken or not self._is_held_here:
                return step > 0
            await self._writer.colour.sleep(OUTWAIT_SECONDS)
        return True

    def _let_go_of(self, accounts: Iterable[Account]) -> None:
        """Nothing was taken from these, so nobody has to wait for it."""
        for account in accounts:
            self._writer.let_go(account.whole_key)
            self._held.remove(account.whole_key)

    def let_go(self) -> None:
        """Nothing is held any more: it is taken for good, or given back."""
        while self._held:
            self._writer.let_go(self._held[-1])
            self._held.pop()

    def __del__(self) -> None:
        """Let go whatever has ended the acquire."""
        if getattr(self, "_held", ()):
            self.let_go()

    def remember(self, *, firmly: bool) -> None:
        """Let equal demands be refused for a moment without asking again, or else not."""
        for at in self.owed:
            key = self._demands[at].account.key
            (self._writer.note_refusal if firmly else self._writer.reconsider)(key)

    async def look_again(self, seconds: float) -> None:
        """Let go of everything, wait a little and look; from now on all is taken at once or nothing."""
        taken, self.taken = self.taken, answered_for(self._writer)
        await give_back(self._writer, taken)
        self.let_go()
        self.owed = [at for at, demand in enumerate(self._demands) if demand.amounts]
        self.together = True
        await self._writer.colour.sleep(seconds * self._writer.world.random.uniform(1, 2))
        await self._writer.look([demand.account.key for demand in self._demands])

    def _in_turn(self, placed: list[tuple[int, BucketDemand]]) -> list[list[tuple[int, BucketDemand]]]:
        """Whom to ask first: the buckets that are believed to refuse. If none is, all at once."""
        if len(placed) == 1:
            return [placed]
        now_ms, writer = self._writer.world.now_ms(), self._writer
        doubted: list[tuple[int, BucketDemand]] = []
        trusted: list[tuple[int, BucketDemand]] = []
        for at, demand in placed:
            account, amounts = demand
            (fits,) = fitting([Posting(amounts)], account.terms, writer.image(account.key), now_ms)
            (trusted if fits else doubted).append((at, demand))
        return [part for part in (doubted, trusted) if part]

    async def _take(
        self, placed: Sequence[tuple[int, BucketDemand]], *, read_first: bool = False
    ) -> list[tuple[int, Account]]:
        """Post demands, note those that were taken, and return where the others were refused."""
        writer = self._writer
        alone = len(self._demands) == 1 or (self.together and len(placed) == len(self._demands))
        hold = 0 if alone else self._hold([demand.account for _, demand in placed])
        posting = Posting(hold=hold, booking=self._booking)
        orders = [order_of(demand, posting) for _, demand in placed]
        if self.together:
            beside = self._beside(placed)
            outcomes, interruption = await writer.post_together(
                orders, self.courtesy, beside, read_first=read_first
            )
            if self.record is not None:  # else no call, which a signal handler could come between
                outcomes = self._recorded(outcomes)
        else:
            outcomes, interruption = await writer.post(orders)
        try:
            self._note(placed, outcomes)
        except BaseException:
            self._note(placed, outcomes)
            raise
        if hold:
            self._let_go_of(
                asked[1].account for asked, o in zip(placed, outcomes, strict=True) if not o.applied
            )
        self._obey(orders, outcomes, interruption)
        blamed = zip(placed, outcomes, strict=True)
        return [(at, demand.account) for (at, demand), outcome in blamed if not outcome.held]

    def _note(self, placed: Sequence[tuple[int, BucketDemand]], outcomes: Sequence[Outcome]) -> None:
        """Note what was taken; until the last steps, which no signal handler can come between, nothing is."""
        applied = [(*asked, o) for asked, o in zip(placed, outcomes, strict=True) if o.applied]
        places = [at for at, _, _ in applied]
        demands = [taken_from(demand, outcome) for _, demand, outcome in applied]
        owed = [at for at in self.owed if at not in places]
        self.taken += demands
        self.owed = owed

    def _seated(self, demand: BucketDemand, now_ms: int) -> BucketDemand:
        return seated(demand, now_ms, is_recorded=self.record is not None)

    def _beside(self, placed: Sequence[tuple[int, BucketDemand]]) -> Callable[[], Write] | None:
        """The write of the record that goes with demands, made once their buckets were read."""
        if (record := self.record) is None:
            return None
        image = self._writer.image
        return lambda: record([of_life(demand, life_of(image(demand.account.key))) for _, demand in placed])

    def _recorded(self, outcomes: list[Outcome]) -> list[Outcome]:
        """What became of demands, once it is noted what became of the record beside them."""
        *outcomes, noted = outcomes
        if noted.failure is None and not noted.held:
            raise RecordedBefore
        self.is_recorded = noted.applied
        return outcomes

    def _hold(self, accounts: Sequence[Account]) -> int:
        """Mark what is taken from some buckets of several, here and in the store."""
        for account in accounts:
            self._held.append(account.whole_key)
            self._writer.hold(account.whole_key)
        return self._writer.new_hold([account.key for account in accounts])

    async def reconsider(self, at: int, shard: Account) -> bool:
        """Find out why a shard refused a demand; whether that was for another reason than tokens."""
        writer, demand = self._writer, self._demands[at]
        image = writer.image(shard.key)
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
        if is_overloaded(shard, image, writer.world.now_ms()):
            self._demands[at] = demand._replace(account=await relieve(writer, demand.account, shard))
            return True
        if shard.key in writer.given_up.get() and await writer.tidy_up(shard):
            return True
        was_behind = self._booking is not None and writer.is_behind(shard, writer.world.now_ms())
        await writer.bring_up_to_date(shard)
        if was_behind:
            return True  # only what has the right numbers can be booked
        if shard_count(writer.image(demand.account.key)) > 1:
            placed = await self._spread([at] if self.record is None else [at, *self.owed])
            if placed and not await self._gather(placed):  # beside a record another one may have refused it
                return self.record is None or self.refusal(writer.world.now_ms()) is None
        return False

    async def catch_up(self) -> bool:
        """Go on under newer terms where others of this process have seen them meanwhile; whether any were."""
        behind = [at for at in self.owed if self._is_outdated(at)]
        for at in behind:
            await self._change_terms(at)
        return any(not self._is_outdated(at) for at in behind)

    def _is_outdated(self, at: int) -> bool:
        account = self._demands[at].account
        return is_outdated(account.terms, self._writer.image(account.key))

    async def _spread(self, places: Sequence[int]) -> list[tuple[int, BucketDemand]]:
        """What to take from which shards for some demands; nothing if those of one have not enough."""
        writer, placed = self._writer, list[tuple[int, BucketDemand]]()
        now_ms = writer.world.now_ms()
        for at in dict.fromkeys(places):
            account, amounts = self._demands[at]
            parts = [(account, dict(amounts))]
            if shard_count(writer.image(account.key)) > 1:
                parts = await gather(writer, account, amounts)
            if not parts:
                return []
            placed += [(at, self._seated(BucketDemand(*part), now_ms)) for part in parts]
        return placed

    async def _gather(self, placed: Sequence[tuple[int, BucketDemand]]) -> bool:
        """Take a demand from several shards at once; beside a record all others with it."""
        held = [demand.account for _, demand in placed[:1]]
        hold = self._hold(held) if len(self._demands) > 1 and self.record is None else 0
        orders = [order_of(demand, Posting(hold=hold)) for _, demand in placed]
        beside = self._beside(placed)
        outcomes, interruption = await self._writer.post_together(orders, self.courtesy, beside)
        if self.record is not None:
            outcomes = self._recorded(outcomes)
        try:
            self._note(placed, outcomes)
        except BaseException:
            self._note(placed, outcomes)
            raise
        had = all(outcome.applied for outcome in outcomes)
        if hold and not had:
            self._let_go_of(held)
        self._obey(orders, outcomes, interruption)
        return had

    def _obey(
        self, orders: Sequence[Order], outcomes: Sequence[Outcome], interruption: BaseException | None
    ) -> None:
        """Raise what was to be told beside some outcomes, once these are noted."""
        if interruption is not None:
            raise interruption
        self._writer.count_unsure(orders, outcomes)
        for outcome in outcomes:
            if outcome.failure is not None:
                raise outcome.failure

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
        self._demands[at] = BucketDemand(account, {})
        self.owed.remove(at)
