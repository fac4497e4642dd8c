"""Through whom acquires, refunds and settlements of a process reach its buckets.

A bucket has at most one write of this process in flight. Orders that arrive meanwhile stand in line,
and when the reply is there the first of them is called to lead all who are in line when it comes: one
write for all of them. A lone order is written at once and alone. Whatever goes wrong while somebody leads,
the others have an answer or another leader.

A group is decided as if its orders came one after another: in the order of arrival, each against what
those before it left. Beliefs about a bucket only shape writes; that an order does not fit is told only
by an image which the store returned after the order had been placed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from ..exceptions import RateLimiterUnavailable
from ..repository_protocol import Backend, Item, Key, Outcome, Write
from ..runtime.colour import ForkSafe
from ..runtime.logs import logger
from ..runtime.world import World
from ..schema import BOOKED, LIFE, PHASE, is_deleted
from .account import Account
from .booking import Turn, outcomes, turns
from .bucket_view import has_terms_now, in_line, is_ahead, is_outdated, is_overloaded, is_split, outlived
from .bucket_writes import write_for
from .door import Call, write_each
from .fitting import fitting
from .histogram import GROUP_ENDS, Histogram
from .line import WITHDRAWN, Lines, Ticket
from .mishaps import Mishaps
from .phase_writes import brought_up_to_date
from .phased import in_phase
from .posting import Order, Posting, merged
from .receipts import Beside, with_record
from .renewal import Renewals
from .seen_buckets import SeenBuckets
from .sending import MOOT, Sending, interrupted, outcome_of, unknown
from .visit import Visit
from .waiting_room import CLOSING_SECONDS, Comer, Courtesy, Turnstile, WaitingRoom

WRITE_ATTEMPTS_MAX = 16
"""How often a group is shaped anew for a bucket that changes under it."""


class BucketWriter(SeenBuckets):
    """Shapes, groups and sends the writes of one process, and remembers what it sees of the buckets."""

    def __init__(self, backend: Backend, world: World, images_max: int = 100_000) -> None:
        super().__init__(world, images_max)
        self.backend = backend
        self.colour: Final = backend.colour
        self.swap: Final = backend.swap
        """How this store replaces an image at once, if it can."""
        self.refunds_lost: int = 0
        """How many refunds and settlements could not be stored, each of them logged."""
        self.soft_exceeded = 0
        """How many acquires were admitted although a limit that refuses nothing had not enough."""
        self.mishaps: Final = Mishaps()
        self.group_sizes: Histogram = Histogram(GROUP_ENDS)
        self.degraded: int = 0
        """How often work went ahead unchecked, each time logged."""
        self.waiting_room: Final = ForkSafe(lambda: WaitingRoom(self.colour))
        self._lines, self._told = ForkSafe(Lines), set[str]()  # what is set up wrong, as far as was told
        self.renewals: Final = Renewals(self)
        self.seat_line: Final = Turnstile()
        self._transactions: Final = Turnstile()

    async def close(self) -> None:
        """Wake those who wait, and give them the time of a call to give their places back."""
        room, until_ms = self.waiting_room.get(), self.world.ticks_ms() + self.backend.capabilities.timeout_ms
        self.renewals.close()
        room.closing.give()
        self.seat_line.stir()
        while room.waiting and self.world.ticks_ms() < until_ms:
            await self.colour.sleep(CLOSING_SECONDS)

    async def look(self, keys: Sequence[Key]) -> list[Item | None]:
        """Read buckets as they are now."""
        images = await self.backend.batch_get(keys)
        self.remember(dict(zip(keys, images, strict=True)))
        return images

    async def post(
        self, orders: Sequence[Order], *, binding: bool = False
    ) -> tuple[list[Outcome], BaseException | None]:
        """Carry out orders on different buckets, each with whatever else is in line for its bucket.

        If the caller is cancelled meanwhile, what is in line is taken back, unless the orders are
        ``binding``, and what is in flight is waited for; the cancellation is returned beside the
        outcomes.
        """
        for account, posting in orders if self.refusals else ():
            if posting.credit or posting.seats:
                self.refusals.pop(account.whole_key, None)
        interruption: BaseException | None = None
        visit, outcomes = Visit(self, orders, binding=binding), list[Outcome]()
        try:  # most are answered where they wait; who leads must not be cancelled, which takes more to see to
            if binding or not (outcomes := await visit.answers()):
                outcomes, interruption = await self.colour.finish(visit.run(), visit.withdraw)
        except GeneratorExit:
            raise
        except BaseException as error:
            self.lines.withdraw(visit, interrupted(error))
            outcomes, interruption = [ticket.outcome or unknown(error) for ticket in visit.tickets], error
        interruption = visit.interruption or interruption
        if interruption is not None and not binding:
            self.count_unsure(orders, outcomes)
        return outcomes, interruption

    async def post_one(self, order: Order) -> tuple[Outcome | None, BaseException | None]:
        """Carry out one order without a credit, like ``post``, with less ado if nobody else is in line.

        No outcome means that nothing happened because the bucket changed meanwhile.
        """
        lines = self._lines.get()
        if order.account.key in lines.by_key:
            (answer,), interruption = await self.post((order,))
            return answer, interruption
        ticket = Ticket(order, self.colour.gone())
        try:
            if not lines.claim(ticket):  # somebody else was faster
                return await self.post_one(order)
            outcome, interruption = await self.colour.finish(self.write_alone(ticket, lines))
            if outcome is None:
                lines.hand_over([ticket])
        except GeneratorExit:
            raise
        except BaseException as error:
            lines.hand_over([ticket])
            outcome, interruption = ticket.outcome or WITHDRAWN, error
        if interruption is not None and outcome is not None:
            self.count_unsure([order], [outcome])
        return outcome, interruption

    async def post_together(
        self,
        orders: Sequence[Order],
        courtesy: Courtesy,
        beside: Beside = None,
        *,
        read_first: bool = False,
    ) -> tuple[list[Outcome], BaseException | None]:
        """Carry out orders all or none, from images read for the purpose if wanted; last, a record beside.

        Who is to stand in line, and all who come meanwhile, go one at a time for each bucket: they would
        most often be shaped for what another has changed.
        """
        call, count = Call(), len(orders) + (beside is not None)
        me = Comer(self._transactions, [order.account.key for order in orders], self.colour)
        try:
            if courtesy.in_line or me.is_expected:
                me.join()
                await self._turn_of(me, courtesy)
            result = await self.colour.finish(self._transact(orders, call, beside, read_first=read_first))
            me.leave()
            return result
        except GeneratorExit:
            me.leave()
            raise
        except RateLimiterUnavailable as error:
            me.has_left = True  # first of all, for a signal handler may come between any two calls
            self.count_unsure([] if beside else orders, [Outcome(False, None, failure=error)] * count)
            me.leave()
            raise
        except BaseException as error:
            me.has_left = True
            me.leave()
            outcomes = [outcome_of(call, place, error) or WITHDRAWN for place in range(count)]
            self.count_unsure([] if beside else orders, outcomes)
            return outcomes, error

    async def _turn_of(self, me: Comer, courtesy: Courtesy) -> None:
        """Wait for those who came before to these buckets, as long as there is time for that, and then go.

        Who was first for half the time of a call does not come back, and nobody else has to wait for it.
        """
        ticks_ms, slept_ms, call_ms = self.world.ticks_ms, 0.0, self.backend.capabilities.timeout_ms
        since_ms, until_ms = ticks_ms(), min(courtesy.until_ms, ticks_ms() + call_ms)
        while ahead := me.ahead:
            left_ms = until_ms - max(ticks_ms(), since_ms + slept_ms)
            if left_ms <= 0:
                break
            if not await me.wait(left_ms / 1000):
                slept_ms += left_ms
                for other in ahead if left_ms >= call_ms / 2 else ():
                    other.has_left = True
        courtesy.over_ms = self.world.now_ms()

    async def _transact(
        self, orders: Sequence[Order], call: Call, beside: Beside = None, *, read_first: bool
    ) -> list[Outcome]:
        if read_first:
            await self.look([order.account.key for order in orders])
        now_ms = self.world.now_ms()
        writes = [write for order in orders if (write := self._shape([order], now_ms)) is not None]
        assert len(writes) == len(orders), "a refund needs no transaction"
        writes = with_record(writes, beside, self.images)
        given = self._turns(orders, now_ms)
        results = await write_each(self.backend, self, writes, call, together=len(writes) > 1)
        if given and results[0].applied and results[0].item is not None:
            return outcomes([order.posting for order in orders], given, results[0].item, now_ms)
        return results

    def count_unsure(self, orders: Sequence[Order], outcomes: Iterable[Outcome]) -> None:
        """Count what may have been taken for nobody: the reply was lost, or nobody waited for it."""
        for order, outcome in zip(orders, outcomes, strict=False):  # a record answers for itself
            if outcome.failure is not None and outcome.failure.ambiguous:
                self.lose(order, outcome.failure)

    def lose(self, order: Order, error: object = "interrupted") -> None:
        """Count an order that may or may not have been carried out."""
        self.refunds_lost += 1
        self.mishaps.lose(order, error)

    def let_through(self, what: str, error: RateLimiterUnavailable) -> None:
        """Count work that goes ahead unchecked, and log it; what is set up wrong, as an error and once."""
        self.degraded += 1
        if error.misconfigured and error.misconfigured not in self._told:
            self._told.add(error.misconfigured)
            logger.error("nothing is limited, waiting will not help, the store is set up wrong: %s", error)
        logger.warning("%s unchecked: %s", what, error)

    async def bring_up_to_date(self, account: Account) -> None:
        """Give a bucket the numbers of its terms although nobody takes anything from it.

        Else a bucket that refuses everybody would go on to fill at the rate it had before.
        """
        write = self._refresh(account, self.world.now_ms())
        if write is not None:
            await write_each(self.backend, self, [write])

    def is_behind(self, account: Account, now_ms: int) -> bool:
        """Whether a bucket has other numbers than its terms, and no newer ones, or a wrong origin."""
        image = self.image(account.key)
        if image is None or is_deleted(image) or is_outdated(account.terms, image):
            return False
        if PHASE in image and in_phase(image, now_ms) is not image:
            return True
        return not has_terms_now(image, account.terms, now_ms) or is_ahead(image, now_ms)

    # The lines.

    @property
    def lines(self) -> Lines:
        """Who waits for which bucket."""
        return self._lines.get()

    async def write_alone(self, ticket: Ticket, lines: Lines) -> Outcome | None:
        """Write one order to a bucket that was claimed for it; ``None``, and still claimed, to try again."""
        try:
            sent_ms, outcome = self.world.now_ms(), MOOT
            write = self._shape([ticket.order], sent_ms)
            given = self._turns([ticket.order], sent_ms) if ticket.order.posting.booking else ()
            if write is not None:
                ticket.sent = True
                (outcome,) = await write_each(self.backend, self, [write], ticket)
                if not outcome.applied and outcome.failure is None:
                    if self._fitting([ticket.order], outcome, sent_ms)[0]:
                        ticket.sent, ticket.asked, ticket.replies = False, False, None
                        return None
                    outcome = Outcome(False, outcome.item, held=False)
                elif given and outcome.applied and outcome.item is not None:
                    (outcome,) = outcomes([ticket.order.posting], given, outcome.item, sent_ms)
            ticket.outcome = outcome
            lines.leave(ticket)
            return outcome
        except BaseException as error:
            ticket.outcome = outcome_of(ticket, 0, error) or ticket.outcome or interrupted(error)
            (lines.throw_away if isinstance(error, GeneratorExit) else lines.hand_over)([ticket])
            raise

    async def serve(self, groups: list[list[Ticket]]) -> None:
        """Write groups, one for each bucket, until their leaders have an answer; then others lead."""
        lines, call, sendings = self._lines.get(), Call(), list[Sending]()
        led = groups
        until_ms = self.world.ticks_ms() + self.backend.capabilities.timeout_ms
        try:
            for _ in range(WRITE_ATTEMPTS_MAX):
                sent_ms = self.world.now_ms()
                sendings, call = [self._sending(group, sent_ms) for group in groups], Call()
                due = [sending.write for sending in sendings if sending.write is not None]
                if due:
                    await write_each(self.backend, self, due, call)
                self._take_in(sendings, call.replies or (), sent_ms)
                unanswered = [group for group in groups if group[0].outcome is None]
                if not unanswered:
                    break
                for group in groups:
                    if group[0].outcome is not None:
                        lines.hand_over(group)
                groups = unanswered
                if self.world.ticks_ms() >= until_ms:
                    break
            if groups[0][0].outcome is None:
                for group in groups:  # a bucket that would not hold still
                    image = self.image(group[0].order.account.key)
                    lines.tell(group[:1], Outcome(False, image, held=False))
            if any(len(group) > 1 for group in groups):
                # Who was answered just now often has another order, and is in line for the next write then.
                await self.colour.sleep(0)
            for group in groups:
                lines.hand_over(group)
        except BaseException as error:
            self._give_out(led, sendings, call, error)
            raise

    def _sending(self, group: list[Ticket], now_ms: int) -> Sending:
        chosen = self._chosen(group, now_ms)
        self.group_sizes.add(len(chosen))
        orders = [ticket.order for ticket in chosen]
        return Sending(group, chosen, self._shape(orders, now_ms), self._turns(orders, now_ms))

    def _turns(self, orders: Sequence[Order], now_ms: int) -> list[Turn]:
        """What those are believed to get who wait for a bucket."""
        if not orders or orders[0].posting.booking is None:
            return []
        account = orders[0].account
        return turns(account, [order.posting for order in orders], self.images.get(account.key), now_ms)

    def _take_in(self, sendings: Sequence[Sending], replies: Sequence[Outcome], sent_ms: int) -> None:
        """Answer groups as far as the replies to their writes do."""
        landed = iter(replies)
        for sending in sendings:
            if sending.write is None:
                self._lines.get().tell(sending.chosen, MOOT)
            else:
                self._judge(sending, next(landed), sent_ms)

    def _give_out(
        self, groups: Sequence[list[Ticket]], sendings: Sequence[Sending], call: Call, error: BaseException
    ) -> None:
        """End a turn that something has gone wrong with: who leads is told, and who was sent.

        The others are led by the next, for whatever it was need not happen to them.
        """
        lines, place = self._lines.get(), 0
        for _, chosen, write, _ in sendings:
            if write is not None:
                outcome = outcome_of(call, place, error)
                place += 1
                for ticket in chosen if outcome is not None else ():
                    ticket.outcome = ticket.outcome or outcome
        for group in groups:
            group[0].outcome = group[0].outcome or interrupted(error)
            (lines.throw_away if isinstance(error, GeneratorExit) else lines.hand_over)(group)

    def _chosen(self, group: Sequence[Ticket], now_ms: int) -> list[Ticket]:
        """Those who go out now: the ones believed to fit; if nobody is, the first asks for the truth."""
        chosen = [ticket for ticket in group if ticket.outcome is None]
        if len(chosen) > 1:
            account = group[0].order.account
            image = self.image(account.key)
            postings = [t.order.posting for t in chosen]
            if image is None or is_deleted(image):  # nothing can be booked before it is there
                postings = [posting._replace(booking=None) for posting in postings]
            fits = fitting(postings, account.terms, image, now_ms)
            chosen = [t for t, fit in zip(chosen, fits, strict=True) if fit] or chosen[:1]
        return self._lines.get().send(group, chosen)

    def _judge(self, sending: Sending, outcome: Outcome, sent_ms: int) -> None:
        """Answer all of a group whom the reply to its write answers, as of the time it was sent.

        Who would fit by the time of the reply has still been refused: somebody else may have been faster.
        """
        chosen = sending.chosen
        if outcome.applied and outcome.item is not None and sending.turns:
            postings = [ticket.order.posting for ticket in chosen]
            told = outcomes(postings, sending.turns, outcome.item, sent_ms)
            for ticket, each in zip(chosen, told, strict=True):
                self._lines.get().tell([ticket], each)
        elif outcome.applied or outcome.failure is not None:
            self._lines.get().tell(chosen, outcome)
        waiting = [ticket for ticket in sending.group if ticket.outcome is None]
        if not waiting or outcome.failure is not None:
            return
        fits = self._fitting([ticket.order for ticket in waiting], outcome, sent_ms)
        refused = [ticket for ticket, fit in zip(waiting, fits, strict=True) if not fit]
        self._lines.get().tell(refused, Outcome(False, outcome.item, held=False))

    def _fitting(self, orders: Sequence[Order], outcome: Outcome, sent_ms: int) -> list[bool]:
        """Which orders the image in a reply leaves room for; a refusal for want of tokens is noted."""
        account, image = orders[0].account, outcome.item
        postings = [order.posting for order in orders]
        misled = is_outdated(account.terms, image) or is_split(account, image)
        if postings[0].booking is not None and self.is_behind(account, sent_ms):
            return [not posting.need for posting in postings]  # only what has the right numbers can be booked
        if misled or is_overloaded(account, image, sent_ms):
            fits = [not posting.need for posting in postings]
        else:
            fits = fitting(postings, account.terms, image, sent_ms)
        if image is None and not any(posting.need or posting.debit for posting in postings):
            fits = [False] * len(postings)  # there is no bucket that refunds could go to
        refused = not all(fits) and not outcome.applied and account.shard_count == 1
        if refused and not self.is_doubtful(account.key) and not self.is_held_here(account.key):
            self.note_refusal(account.key)
        return fits

    # Writes.

    def _shape(self, orders: Sequence[Order], now_ms: int) -> Write | None:
        """The write that carries out some orders on one bucket, by what is believed of it."""
        if not orders:
            return None
        account, posting = orders[0]
        image = self.images.get(account.key)
        if len(orders) > 1 or (image is not None and LIFE in image and outlived(account, image)):
            posting = merged([o.posting for o in orders if o.posting.need or not outlived(o.account, image)])
        gives_up = posting.credit and (posting.booking or posting.turns)
        if gives_up and image is not None and BOOKED in image and in_line(image, now_ms):
            given = self.given_up.get().giving_back(account, posting, image, now_ms)
            return None if given is None else given.write
        return write_for(account, posting, image, now_ms)

    async def tidy_up(self, account: Account) -> bool:
        """Undo bookings of this process that were given up, if nobody is behind them any more."""
        image, now_ms = self.image(account.key), self.world.now_ms()
        if image is None or not in_line(image, now_ms):
            return False
        given = self.given_up.get().giving_back(account, Posting(), image, now_ms)
        if given is None or not given.undone:
            return False
        (outcome,) = await write_each(self.backend, self, [given.write])
        return outcome.applied

    def _refresh(self, account: Account, now_ms: int) -> Write | None:
        """The write that gives a bucket the numbers of its terms, if it has others, and a right origin."""
        image = self.image(account.key)
        if image is None or not self.is_behind(account, now_ms):
            return None
        return brought_up_to_date(account, image, now_ms)
