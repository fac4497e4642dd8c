"""What is given back and settled, and what a settlement does about each answer."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from tests.engine.fake_store import (
    KEY,
    NOW,
    OTHER,
    RATE,
    Store,
    account_of,
    credit,
    debit,
    demand,
    image_of,
    writer_of,
)
from zae_limiter import RateLimiterUnavailable
from zae_limiter.engine.account import Account, Meter, Terms
from zae_limiter.engine.group_commit import MOOT, BucketWriter
from zae_limiter.engine.posting import Order, Posting
from zae_limiter.engine.settle import (
    RESEND_ATTEMPTS_MAX,
    SETTLE_ATTEMPTS_MAX,
    _is_moot,
    answered_for,
    give_back,
    settle,
)
from zae_limiter.repository_protocol import Outcome, Update, Write
from zae_limiter.runtime.colour import Blocking, run_sync
from zae_limiter.runtime.loops import Asyncio
from zae_limiter.schema import bucket_key

SHARD = bucket_key("ns", "e", "r", 1)
GONE = RateLimiterUnavailable("out of reach")
UNSURE = RateLimiterUnavailable("no reply", ambiguous=True)
REFUSED = Outcome(False, image_of(), held=False)
METERED = account_of(meter=Meter.COUNT)
BOTH = (account_of(), account_of(OTHER))


class Answering(BucketWriter):
    """A writer that is told what becomes of its orders; the last answer is repeated."""

    def __init__(self, *answers: Outcome) -> None:
        self.store = Store()
        super().__init__(self.store, self.store.clock.world)
        self.answers, self.posts = list(answers), list[list[Order]]()
        self.interruptions: list[BaseException | None] = []

    async def post(
        self, orders: Sequence[Order], *, binding: bool = False
    ) -> tuple[list[Outcome], BaseException | None]:
        assert binding, "a settlement cannot be taken back"
        assert orders
        self.posts.append(list(orders))
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        return [answer] * len(orders), self.interruptions.pop(0) if self.interruptions else None

    def settle(self, *orders: Order) -> list[RateLimiterUnavailable]:
        return run_sync(settle(self, orders))


def test_refunds_to_one_item_are_one_order() -> None:
    writer = Answering(MOOT)
    run_sync(give_back(writer, [demand(1_000), demand(2_000), demand(4_000, BOTH[1])]))
    run_sync(give_back(writer, []))
    assert [[(o.account.key, *o.posting[:3]) for o in orders] for orders in writer.posts] == [
        [(KEY, {}, {}, {"a": 3_000}), (OTHER, {}, {}, {"a": 4_000})]
    ]
    assert writer.posts[0][1].posting == Posting(credit={"a": 4_000})


def test_what_is_confirmed_is_posted_once() -> None:
    writer = Answering(Outcome(True, image_of()))
    assert writer.settle(credit(1_000), debit(1_000, BOTH[1])) == []
    assert (len(writer.posts), writer.refunds_lost, writer.store.calls) == (1, 0, [])


@pytest.mark.parametrize(
    ("answer", "attempts", "lost"),
    [
        (REFUSED, SETTLE_ATTEMPTS_MAX, "changed under every attempt"),
        (Outcome(False, None, failure=GONE), RESEND_ATTEMPTS_MAX, "out of reach"),
        (Outcome(False, None, failure=UNSURE), 1, "no reply"),
    ],
)
def test_what_cannot_be_confirmed_is_tried_and_then_told(answer: Outcome, attempts: int, lost: str) -> None:
    """Sixty-four times while the bucket changes, eight while nothing gets through, once when it may have."""
    for order in (credit(1_000), debit(1_000)):
        writer = Answering(answer)
        (failure,) = writer.settle(order)
        assert lost in str(failure)
        assert answer.failure in (None, failure)
        assert (writer.posts, writer.refunds_lost) == ([[order]] * attempts, 1)


@pytest.mark.parametrize("answer", [REFUSED, Outcome(False, None, failure=GONE)])
@pytest.mark.parametrize(("takes_ms", "attempts"), [(2_000, 1), (1_999, 2), (700, 3)])
def test_what_takes_longer_than_one_call_may_take_is_given_up(
    answer: Outcome, takes_ms: int, attempts: int
) -> None:
    """However little an attempt takes, all of them together take no longer than one deadline."""

    class Slow(Answering):
        async def post(self, orders: Sequence[Order], *, binding: bool = False) -> Any:
            self.store.clock.advance(takes_ms / 1000)
            return await super().post(orders, binding=binding)

    class Patient(Blocking):
        async def at_most(self, seconds: float, coroutine: Any) -> Any:
            assert seconds > 0
            return await coroutine

    writer = Slow(answer)
    writer.colour = Patient()
    (failure,) = writer.settle(credit(1_000))
    assert answer.failure in (None, failure)
    assert (len(writer.posts), writer.refunds_lost) == (attempts, 1)


def test_an_attempt_that_is_not_answered_in_time_may_have_happened() -> None:
    """It goes on by itself, and nobody sends it again."""

    class Late(Blocking):
        async def at_most(self, seconds: float, coroutine: Any) -> Any:
            assert seconds == 1.5
            await coroutine

    class Slow(Answering):
        async def post(self, orders: Sequence[Order], *, binding: bool = False) -> Any:
            self.store.clock.advance(0.5)
            return await super().post(orders, binding=binding)

    writer = Slow(REFUSED, Outcome(True, image_of()))
    writer.colour = Late()
    (failure,) = writer.settle(credit(1_000))
    assert failure.ambiguous
    assert (len(writer.posts), writer.refunds_lost) == (2, 1)


def test_what_is_confirmed_in_the_end_is_not_lost() -> None:
    gone = Outcome(False, None, failure=GONE)
    writer = Answering(gone, REFUSED, gone, Outcome(True, image_of()))
    assert writer.settle(credit(1_000)) == []
    assert (len(writer.posts), writer.refunds_lost) == (4, 0)


def test_only_what_is_owed_is_posted_again() -> None:
    first, second = credit(1_000), credit(1_000, BOTH[1])

    class Half(Answering):
        async def post(self, orders: Sequence[Order], *, binding: bool = False) -> Any:
            outcomes, interruption = await super().post(orders, binding=binding)
            return [*outcomes[:-1], REFUSED] if len(outcomes) > 1 else outcomes, interruption

    writer = Half(Outcome(True, image_of()))
    assert writer.settle(first, second) == []
    assert writer.posts == [[first, second], [second]]


def test_a_cancellation_is_obeyed_when_the_books_are_right() -> None:
    """The first one counts, whether or not another follows."""
    stop, again = KeyboardInterrupt(), SystemExit()
    for interruptions in ([stop, None], [stop, again], [None, stop]):
        writer = Answering(REFUSED, Outcome(True, image_of()))
        writer.interruptions = list(interruptions)
        with pytest.raises(KeyboardInterrupt) as caught:
            writer.settle(credit(1_000))
        assert caught.value is stop
        assert len(writer.posts) == 2


MISSING = Outcome(False, None, held=False)
ON_SHARD = account_of(SHARD, shard_id=1, shard_count=2)


@pytest.mark.parametrize(
    ("order", "outcome", "moot"),
    [
        (credit(1_000), MISSING, True),
        (credit(1_000, ON_SHARD), MISSING, True),
        (debit(1_000), MISSING, False),
        (debit(1_000, ON_SHARD), MISSING, True),
        (credit(1_000), REFUSED, False),
        (credit(1_000), MOOT, False),
        (credit(1_000), Outcome(False, None, failure=GONE), False),
        (debit(1_000, ON_SHARD), REFUSED, False),
    ],
)
def test_what_could_only_go_to_an_item_that_is_gone_is_moot(
    order: Order, outcome: Outcome, moot: bool
) -> None:
    """A debit makes the bucket anew, but not a shard: nobody makes these from nothing."""
    assert _is_moot(order, outcome) is moot
    if moot and order.account.shard_id == 0:
        writer = Answering(outcome)
        assert writer.settle(order) == []
        assert (len(writer.posts), writer.refunds_lost) == (1, 0)


@pytest.mark.parametrize("owed", [credit, debit])
def test_what_is_owed_to_a_shard_that_is_gone_goes_to_its_elder(owed: Any) -> None:
    """It is part of that one again, and so on up to the bucket itself."""
    third = owed(1_000, account_of(SHARD, shard_id=3, shard_count=4))
    writer = Answering(MISSING, MISSING, Outcome(True, image_of()))
    assert writer.settle(third) == []
    posted = [(order.account.shard_id, order.posting) for orders in writer.posts for order in orders]
    assert posted == [(shard_id, third.posting) for shard_id in (3, 1, 0)]
    assert [orders[0].account.key for orders in writer.posts[1:]] == [SHARD, KEY]
    assert writer.refunds_lost == 0


FILL_S = RATE.fill_ms // 1000
KEPT = account_of()._replace(terms=Terms({"a": RATE}, 1, 7))


def settled(image: dict[str, Any], order: Callable[[int, Account], Order]) -> list[Any]:
    """What is written besides when an order leaves this image behind."""
    writer = Answering(Outcome(True, image))
    writer.store.shelf.items[KEY] = image
    assert writer.settle(order(1_000, KEPT)) == []
    return [write for _, given in writer.store.calls for write in given]


def test_a_debit_keeps_a_bucket_alive_until_its_debts_are_paid() -> None:
    """It takes three fills to pay twenty tokens and be full, and it is kept for three fills longer."""
    soon = NOW // 1000 + 2 * FILL_S
    (write,) = settled(image_of(-20_000, ttl=soon), debit)
    assert (write.key, dict(write.add), dict(write.set)) == (KEY, {}, {"ttl": NOW // 1000 + 7 * FILL_S})
    (write,) = settled(image_of(-50_000, ttl=soon), debit)
    assert dict(write.set) == {"ttl": NOW // 1000 + 9 * FILL_S}


class SlowToProlong(Store):
    """A store that takes its time to prolong the life of a bucket."""

    def __init__(self, **images: dict[str, Any]) -> None:
        super().__init__(**images)
        self.asked, self.gate = asyncio.Event(), asyncio.Event()

    async def write_each(self, writes: Sequence[Write]) -> list[Outcome]:
        if any(isinstance(write, Update) and set(write.set) == {"ttl"} for write in writes):
            self.asked.set()
            await self.gate.wait()
        return await super().write_each(writes)


def test_who_is_cancelled_while_a_bucket_is_kept_alive_keeps_it_alive() -> None:
    """The debit is stored by then, so the bucket has to outlive it; then the cancellation is obeyed."""

    async def story() -> tuple[SlowToProlong, bool]:
        soon = NOW // 1000 + 2 * FILL_S
        store = SlowToProlong(e=image_of(-20_000, ttl=soon), f=image_of(-20_000, ttl=soon))
        writer = BucketWriter(store, store.clock.world)
        writer.colour = Asyncio()
        orders = debit(0, KEPT), debit(0, KEPT._replace(key=OTHER))
        await writer.look([KEY, OTHER])

        async def posted(orders: Sequence[Order], *, binding: bool = False) -> Any:
            del binding
            return [Outcome(True, store.shelf.items[order.account.key]) for order in orders], None

        writer.post = posted  # type: ignore[method-assign]
        settling = asyncio.ensure_future(settle(writer, orders))
        await store.asked.wait()
        settling.cancel()
        await asyncio.sleep(0)
        store.gate.set()
        with pytest.raises(asyncio.CancelledError):
            await settling
        return store, writer.refunds_lost == 0

    store, is_right = asyncio.run(story())
    assert is_right
    assert [store.shelf.items[key]["ttl"] for key in (KEY, OTHER)] == [NOW // 1000 + 7 * FILL_S] * 2


def test_nothing_is_written_for_a_bucket_that_lasts() -> None:
    """It has time enough, or is kept for ever; a refund shortens no debt that it could outlive."""
    soon, late = (NOW // 1000 + fills * FILL_S for fills in (2, 4))
    assert settled(image_of(1_000, ttl=soon), debit) == []
    assert settled(image_of(-20_000, ttl=late), debit) == []
    assert settled(image_of(-20_000), debit) == []
    assert settled(image_of(-20_000, ttl=soon), credit) == []


def test_a_debit_on_a_limit_that_is_gone_needs_no_bucket() -> None:
    writer = Answering(MOOT)
    assert writer.settle(debit(1_000, KEPT)) == []
    assert (len(writer.posts), writer.store.calls) == (1, [])


# Who answers for what was taken.


def test_what_is_dropped_with_nobody_to_answer_for_it_is_counted(caplog: pytest.LogCaptureFixture) -> None:
    """Unless somebody else answers for it by then."""
    store = Store(e=image_of())
    writer = writer_of(store)
    charge = answered_for(writer, [demand(1_000), demand(2_000)])
    del charge[0]
    del charge
    assert writer.refunds_lost == 1
    assert "2000" in caplog.text
    charge = answered_for(writer, [demand(1_000)])
    run_sync(give_back(writer, charge))
    assert list(charge) == []
    del charge
    assert (writer.refunds_lost, store.sent) == (1, [[1_000]])
