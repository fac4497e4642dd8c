"""What one acquire asks of the store, step by step, and what a settlement does about each answer."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from tests.facts.stage import (
    KEY,
    NOW,
    OTHER,
    RATE,
    Store,
    account_of,
    calls,
    credit,
    debit,
    demand,
    image_of,
    take,
    teller_of,
    throw_away,
    waits,
)
from zae_limiter import RateLimiterUnavailable, RateLimitExceeded, ValidationError
from zae_limiter._colour import Blocking, run_sync
from zae_limiter.acquire import (
    ATTEMPTS_MAX,
    RESEND_ATTEMPTS_MAX,
    SETTLE_ATTEMPTS_MAX,
    Demand,
    _is_moot,
    demands_on,
    give_back,
    settle,
)
from zae_limiter.bucket import Rate
from zae_limiter.lines import Order
from zae_limiter.posting import Posting
from zae_limiter.repository_protocol import Key, Outcome
from zae_limiter.schema import bucket_key
from zae_limiter.teller import MOOT, Teller
from zae_limiter.terms import Account, Meter, Terms

SHARD = bucket_key("ns", "e", "r", 1)
GONE = RateLimiterUnavailable("out of reach")
UNSURE = RateLimiterUnavailable("no reply", ambiguous=True)
REFUSED = Outcome(False, image_of(), held=False)
METERED = account_of(meter=Meter.COUNT)
BOTH = (account_of(), account_of(OTHER))


# What is asked of whom.


def test_a_demand_is_for_limits_that_are_there() -> None:
    """Everybody of a family is asked for the limits it has, and somebody must have each."""
    account, parent = account_of(), account_of(OTHER)._replace(terms=Terms({"b": RATE}))
    assert demands_on([account], {"a": 1}) == [Demand(account, {"a": 1})]
    assert demands_on([account, parent], {"a": 1, "b": 2}) == [
        Demand(account, {"a": 1}),
        Demand(parent, {"b": 2}),
    ]
    assert demands_on([account, parent], {"b": 2}) == [Demand(parent, {"b": 2})]
    assert demands_on([account, parent], {}) == []
    with pytest.raises(ValidationError, match=r"'c'.*it has a, b"):
        demands_on([account, parent], {"a": 1, "c": 2})


# All or nothing.


def test_all_that_is_asked_for_is_taken_at_once() -> None:
    store = Store(e=image_of(), f=image_of())
    demands = demand(1_000), demand(2_000, BOTH[1])
    assert take(teller_of(store), *demands) == demands
    assert (calls(store), store.sent) == ([("write_each", 2)], [[-1_000, -2_000]])


def test_without_speculation_it_is_a_read_and_a_transaction() -> None:
    store = Store(e=image_of(), f=image_of())
    take(teller_of(store), demand(1_000), demand(2_000, BOTH[1]), speculative=False)
    assert calls(store) == [("batch_get", 2), ("transact_write", 2)]


def test_what_was_taken_is_given_back_when_the_rest_is_refused() -> None:
    """The refusal tells of all, first of those that refused, and of the others as they were found."""
    store = Store(e=image_of(5_000), f=image_of(1_000))
    teller = teller_of(store)
    teller.remember({OTHER: image_of(5_000)})
    with pytest.raises(RateLimitExceeded) as caught:
        take(teller, demand(4_000), demand(2_500, BOTH[1]))
    assert waits(caught.value) == [(1, 2, 1.5), (5, 4, 0.0)]
    assert store.sent == [[-4_000, -2_500], [4_000]]
    assert [store.tokens(key) for key in (KEY, OTHER)] == [5_000, 1_000]


def test_what_was_taken_is_given_back_when_the_store_fails_for_the_rest() -> None:
    store = Store(e=image_of(), f=image_of())
    teller = teller_of(store)
    store.replies = [Outcome(True, image_of(9_000)), Outcome(False, None, failure=GONE)]
    store.meanwhile = lambda: store.replies.clear() if len(store.calls) == 2 else None
    with pytest.raises(RateLimiterUnavailable) as caught:
        take(teller, demand(1_000), demand(1_000, BOTH[1]))
    assert caught.value is GONE
    assert [[(w.key, w.add["b_a_tk"]) for w in given] for _, given in store.calls[1:]] == [[(KEY, 1_000)]]


def test_what_was_taken_is_given_back_to_who_is_interrupted() -> None:
    store = Store(e=image_of())
    teller = teller_of(store)
    stop = KeyboardInterrupt()

    class Interrupted(Teller):
        async def post(self, orders: Sequence[Order], *, binding: bool = False) -> Any:
            outcomes, _ = await teller.post(orders, binding=binding)
            return outcomes, None if binding else stop

    with pytest.raises(KeyboardInterrupt) as caught:
        take(Interrupted(store, store.clock.world), demand(1_000))
    assert caught.value is stop
    assert store.sent == [[-1_000], [1_000]]


def test_an_acquire_that_is_thrown_away_does_nothing_more() -> None:
    store = Store(e=image_of())
    teller = teller_of(store)

    store.meanwhile = throw_away
    with pytest.raises(GeneratorExit):
        take(teller, demand(1_000))
    assert len(store.calls) == 1


# Trying again.


def test_who_fits_by_the_time_of_the_reply_tries_again() -> None:
    store = Store(e=image_of(0))
    teller = teller_of(store)
    store.meanwhile = lambda: store.clock.advance(1)
    take(teller, demand(1_000))
    assert store.sent == [[-1_000], [-1_000]]


def test_who_is_beaten_again_is_refused() -> None:
    """It would fit by now, and did not when it asked for the second time."""
    store = Store(e=image_of(0))
    teller = teller_of(store)

    def others_are_faster() -> None:
        if len(store.calls) == 2:
            store.shelf.items[KEY] = image_of(-1_000)
        store.clock.advance(1)

    store.meanwhile = others_are_faster
    with pytest.raises(RateLimitExceeded) as caught:
        take(teller, demand(1_000))
    assert waits(caught.value) == [(0, 1, 1.0)]
    assert len(store.calls) == 2


def test_a_bucket_that_never_holds_still_ends_in_an_error() -> None:
    store = Store(e=image_of())
    teller = teller_of(store)

    def move() -> None:
        image = store.shelf.items[KEY]
        store.shelf.items[KEY] = {**image, "rf": image["rf"] - 1}  # type: ignore[operator]

    store.meanwhile = move
    with pytest.raises(RateLimiterUnavailable, match="changed under every attempt"):
        take(teller, demand(1_000), speculative=False)
    assert calls(store) == [("batch_get", 1), ("write_each", 1)] * ATTEMPTS_MAX


def test_limits_that_are_newer_are_asked_for_once() -> None:
    """A parent that has lost the limit is asked for nothing then."""
    store = Store(e=image_of(cv=2), f=image_of(cv=2))
    renewed: list[Key] = []

    async def renew(account: Account) -> Account:
        renewed.append(account.key)
        return account._replace(terms=Terms({"a": RATE} if account.key == KEY else {}, 2))

    demands = demand(1_000), demand(1_000, BOTH[1])
    (taken,) = take(teller_of(store), *demands, renew=renew)
    assert (taken.account.key, taken.account.terms.version, taken.amounts) == (KEY, 2, {"a": 1_000})
    assert renewed == [KEY, OTHER]
    assert store.sent == [[None, None], [-1_000]]


def test_a_bucket_that_refuses_everybody_still_gets_its_new_numbers() -> None:
    store = Store(e=image_of(0))
    account = account_of(version=2, rate=Rate(10_000, 2_000, 1_000))
    with pytest.raises(RateLimitExceeded) as caught:
        take(teller_of(store), demand(4_000, account))
    assert waits(caught.value) == [(0, 4, 2.0)]
    assert calls(store) == [("write_each", 1)] * 2
    assert (store.shelf.items[KEY]["b_a_ra"], store.shelf.items[KEY]["cv"]) == (2_000, 2)


# Refusals that are remembered.


def test_a_refusal_is_repeated_without_asking() -> None:
    store = Store(e=image_of(1_000), f=image_of(9_000))
    teller = teller_of(store)
    teller.note_refusal(KEY)
    with pytest.raises(RateLimitExceeded) as caught:
        take(teller, demand(2_000, BOTH[1]), demand(2_000))
    assert waits(caught.value) == [(9, 2, 0.0), (1, 2, 1.0)]
    assert store.calls == []


def test_what_fits_is_asked_for_although_somebody_was_refused() -> None:
    store = Store(e=image_of(1_000), f=image_of(1_000))
    teller = teller_of(store)
    teller.note_refusal(KEY)
    take(teller, demand(1_000))
    with pytest.raises(RateLimitExceeded):
        take(teller, demand(2_000, BOTH[1]))
    assert len(store.calls) == 2


# Shards.


def sharded(first: int, second: int) -> tuple[Store, Teller]:
    """A bucket in two halves of five tokens."""
    half = {"b_a_cp": 5_000, "b_a_ra": 500, "shard_count": 2, "b_a_sc": 2}
    store = Store(e=image_of(first, **half))
    store.shelf.items[SHARD] = image_of(second, **half)
    return store, teller_of(store)


def test_a_demand_that_no_shard_can_serve_alone_is_gathered_in_one_transaction() -> None:
    store, teller = sharded(3_000, 2_000)
    taken = take(teller, demand(4_000, METERED))
    assert sum(part.amounts["a"] for part in taken) == 4_000
    assert sorted(part.account.key for part in taken) == sorted((KEY, SHARD))
    assert sum(store.tokens(key) for key in (KEY, SHARD)) == 1_000
    verbs = [verb for verb, _ in store.calls]
    assert verbs == ["write_each", "batch_get", "batch_get", "transact_write"]


def test_a_demand_that_all_shards_cannot_serve_is_a_refusal_of_the_bucket() -> None:
    store, teller = sharded(3_000, 2_000)
    with pytest.raises(RateLimitExceeded) as caught:
        take(teller, demand(6_000, METERED))
    assert waits(caught.value) == [(5, 6, 1.0)]
    assert teller.refused_lately(KEY)
    assert [verb for verb, _ in store.calls] == ["write_each", "batch_get", "batch_get"]
    with pytest.raises(RateLimitExceeded):
        take(teller, demand(6_000, METERED))
    assert len(store.calls) == 3


def test_a_bucket_in_one_item_is_not_gathered() -> None:
    store = Store(e=image_of(1_000, shard_count=1))
    with pytest.raises(RateLimitExceeded):
        take(teller_of(store), demand(2_000, METERED))
    assert calls(store) == [("write_each", 1)]


def test_a_bucket_that_was_split_is_placed_anew() -> None:
    """The process knew one item; the reply shows that there are two, and the demand goes to one of these."""
    store, teller = sharded(5_000, 5_000)
    teller.remember({KEY: image_of(shard_count=1)})
    (taken,) = take(teller, demand(3_000, METERED))
    assert taken.account.shard_count == 2
    assert calls(store) == [("write_each", 1)] * 2
    assert store.tokens(taken.account.key) == 2_000


def test_a_bucket_that_is_written_too_often_is_split() -> None:
    """The demand is then counted and no longer hindered."""
    writes = dict(zip(("b_wcu_tk", "b_wcu_cp", "b_wcu_ra", "b_wcu_rp"), (0, 10**6, 1, 10**6), strict=True))
    store = Store(e=image_of(shard_count=1, b_wcu_tc=0, **writes))
    (taken,) = take(teller_of(store), demand(1_000, account_of(meter=Meter.LIMIT)))
    assert taken.account.meter is Meter.COUNT
    assert calls(store)[:2] == [("write_each", 1), ("transact_write", 2)]
    assert sum(store.held(key) for key in (KEY, SHARD)) == 9_000


# Giving back.


class Answering(Teller):
    """A teller that is told what becomes of its orders; the last answer is repeated."""

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
    teller = Answering(MOOT)
    run_sync(give_back(teller, [demand(1_000), demand(2_000), demand(4_000, BOTH[1])]))
    run_sync(give_back(teller, []))
    assert [[(o.account.key, *o.posting[:3]) for o in orders] for orders in teller.posts] == [
        [(KEY, {}, {}, {"a": 3_000}), (OTHER, {}, {}, {"a": 4_000})]
    ]
    assert teller.posts[0][1].posting == Posting(credit={"a": 4_000})


def test_what_is_confirmed_is_posted_once() -> None:
    teller = Answering(Outcome(True, image_of()))
    assert teller.settle(credit(1_000), debit(1_000, BOTH[1])) == []
    assert (len(teller.posts), teller.refunds_lost, teller.store.calls) == (1, 0, [])


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
        teller = Answering(answer)
        (failure,) = teller.settle(order)
        assert lost in str(failure)
        assert answer.failure in (None, failure)
        assert (teller.posts, teller.refunds_lost) == ([[order]] * attempts, 1)


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

    teller = Slow(answer)
    teller.colour = Patient()
    (failure,) = teller.settle(credit(1_000))
    assert answer.failure in (None, failure)
    assert (len(teller.posts), teller.refunds_lost) == (attempts, 1)


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

    teller = Slow(REFUSED, Outcome(True, image_of()))
    teller.colour = Late()
    (failure,) = teller.settle(credit(1_000))
    assert failure.ambiguous
    assert (len(teller.posts), teller.refunds_lost) == (2, 1)


def test_what_is_confirmed_in_the_end_is_not_lost() -> None:
    gone = Outcome(False, None, failure=GONE)
    teller = Answering(gone, REFUSED, gone, Outcome(True, image_of()))
    assert teller.settle(credit(1_000)) == []
    assert (len(teller.posts), teller.refunds_lost) == (4, 0)


def test_only_what_is_owed_is_posted_again() -> None:
    first, second = credit(1_000), credit(1_000, BOTH[1])

    class Half(Answering):
        async def post(self, orders: Sequence[Order], *, binding: bool = False) -> Any:
            outcomes, interruption = await super().post(orders, binding=binding)
            return [*outcomes[:-1], REFUSED] if len(outcomes) > 1 else outcomes, interruption

    teller = Half(Outcome(True, image_of()))
    assert teller.settle(first, second) == []
    assert teller.posts == [[first, second], [second]]


def test_a_cancellation_is_obeyed_when_the_books_are_right() -> None:
    """The first one counts, whether or not another follows."""
    stop, again = KeyboardInterrupt(), SystemExit()
    for interruptions in ([stop, None], [stop, again], [None, stop]):
        teller = Answering(REFUSED, Outcome(True, image_of()))
        teller.interruptions = list(interruptions)
        with pytest.raises(KeyboardInterrupt) as caught:
            teller.settle(credit(1_000))
        assert caught.value is stop
        assert len(teller.posts) == 2


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
        teller = Answering(outcome)
        assert teller.settle(order) == []
        assert (len(teller.posts), teller.refunds_lost) == (1, 0)


@pytest.mark.parametrize("owed", [credit, debit])
def test_what_is_owed_to_a_shard_that_is_gone_goes_to_its_elder(owed: Any) -> None:
    """It is part of that one again, and so on up to the bucket itself."""
    third = owed(1_000, account_of(SHARD, shard_id=3, shard_count=4))
    teller = Answering(MISSING, MISSING, Outcome(True, image_of()))
    assert teller.settle(third) == []
    posted = [(order.account.shard_id, order.posting) for orders in teller.posts for order in orders]
    assert posted == [(shard_id, third.posting) for shard_id in (3, 1, 0)]
    assert [orders[0].account.key for orders in teller.posts[1:]] == [SHARD, KEY]
    assert teller.refunds_lost == 0


FILL_S = RATE.fill_ms // 1000
KEPT = account_of()._replace(terms=Terms({"a": RATE}, 1, 7))


def settled(image: dict[str, Any], order: Callable[[int, Account], Order]) -> list[Any]:
    """What is written besides when an order leaves this image behind."""
    teller = Answering(Outcome(True, image))
    teller.store.shelf.items[KEY] = image
    assert teller.settle(order(1_000, KEPT)) == []
    return [write for _, given in teller.store.calls for write in given]


def test_a_debit_keeps_a_bucket_alive_until_its_debts_are_paid() -> None:
    """It takes three fills to pay twenty tokens and be full, and it is kept for three fills longer."""
    soon = NOW // 1000 + 2 * FILL_S
    (write,) = settled(image_of(-20_000, ttl=soon), debit)
    assert (write.key, dict(write.add), dict(write.set)) == (KEY, {}, {"ttl": NOW // 1000 + 7 * FILL_S})
    (write,) = settled(image_of(-50_000, ttl=soon), debit)
    assert dict(write.set) == {"ttl": NOW // 1000 + 9 * FILL_S}


def test_nothing_is_written_for_a_bucket_that_lasts() -> None:
    """It has time enough, or is kept for ever; a refund shortens no debt that it could outlive."""
    soon, late = (NOW // 1000 + fills * FILL_S for fills in (2, 4))
    assert settled(image_of(1_000, ttl=soon), debit) == []
    assert settled(image_of(-20_000, ttl=late), debit) == []
    assert settled(image_of(-20_000), debit) == []
    assert settled(image_of(-20_000, ttl=soon), credit) == []


def test_a_debit_on_a_limit_that_is_gone_needs_no_bucket() -> None:
    teller = Answering(MOOT)
    assert teller.settle(debit(1_000, KEPT)) == []
    assert (len(teller.posts), teller.store.calls) == (1, [])
