"""What a lease settles with whom, to the millitoken, and which amounts it takes at all."""

from collections.abc import Callable
from types import MappingProxyType, SimpleNamespace
from typing import Any

import pytest

from tests.facts.stage import KEY, OTHER, RATE, Store, account_of, image_of, teller_of
from zae_limiter import Limit, OnUnavailable, RateLimiterUnavailable, ValidationError
from zae_limiter._colour import run_sync
from zae_limiter.acquire import Demand
from zae_limiter.exceptions import LeaseExpiredError
from zae_limiter.lease import Acquisition, DegradedLease, Lease, _named, _settlement, needs_milli
from zae_limiter.models import TOKENS_MAX
from zae_limiter.posting import Posting
from zae_limiter.repository_protocol import Key, Outcome
from zae_limiter.schema import bucket_key
from zae_limiter.terms import Account, Terms
from zae_limiter.till import Plan

ALLOW, BLOCK = OnUnavailable.ALLOW, OnUnavailable.BLOCK
SHARD = bucket_key("ns", "e", "r", 1)
WHOLE = account_of()._replace(terms=Terms({"a": RATE, "b": RATE}, 1))
PARENT = account_of(OTHER)._replace(entity_id="p")
ON_SHARD = account_of(SHARD, shard_id=1, shard_count=2)


def settled(
    accounts: list[Account], taken: list[Demand], **adjusted: int
) -> list[tuple[Key, dict[str, int], dict[str, int]]]:
    """The debits and credits of a settlement, by item."""
    orders = _settlement(accounts, taken, adjusted)
    assert not any(order.posting.need for order in orders)
    return [(order.account.key, dict(order.posting.debit), dict(order.posting.credit)) for order in orders]


def test_what_was_not_needed_goes_back_where_it_came_from_the_last_first() -> None:
    taken = [Demand(WHOLE, {"a": 2_000}), Demand(ON_SHARD, {"a": 3_000})]
    assert settled([WHOLE], taken, a=-2) == [(SHARD, {}, {"a": 2_000})]
    assert settled([WHOLE], taken, a=-3) == [(SHARD, {}, {"a": 3_000})]
    assert settled([WHOLE], taken, a=-4) == [(SHARD, {}, {"a": 3_000}), (KEY, {}, {"a": 1_000})]
    assert settled([WHOLE], taken[::-1], a=-4) == [(KEY, {}, {"a": 2_000}), (SHARD, {}, {"a": 2_000})]


def test_shards_get_back_the_very_millitokens_that_they_gave() -> None:
    taken = [Demand(WHOLE, {"a": 999}), Demand(ON_SHARD, {"a": 1})]
    assert settled([WHOLE], taken, a=-1) == [(SHARD, {}, {"a": 1}), (KEY, {}, {"a": 999})]


def test_limits_are_returned_to_those_who_gave_them() -> None:
    """What was taken of one limit says nothing of another; both of one item are one order."""
    taken = [Demand(WHOLE, {"a": 1_000, "b": 1_000}), Demand(ON_SHARD, {"a": 1_000})]
    assert settled([WHOLE], taken, b=-1) == [(KEY, {}, {"b": 1_000})]
    assert settled([WHOLE], taken, b=-1, a=-2) == [
        (KEY, {}, {"b": 1_000, "a": 1_000}),
        (SHARD, {}, {"a": 1_000}),
    ]
    assert settled([WHOLE], taken[:1], a=5, b=-1) == [(KEY, {"a": 5_000}, {"b": 1_000})]


def test_what_was_needed_besides_is_paid_where_the_first_tokens_came_from() -> None:
    """A shard that does not hold the limit cannot pay; then the whole bucket does."""
    on_shard, on_whole = Demand(ON_SHARD, {"a": 1_000}), Demand(WHOLE, {"a": 1_000, "b": 1_000})
    assert settled([WHOLE], [on_shard, on_whole], a=1) == [(SHARD, {"a": 1_000}, {})]
    assert settled([WHOLE], [on_whole, on_shard], a=1) == [(KEY, {"a": 1_000}, {})]
    assert settled([WHOLE], [on_shard], b=7) == [(KEY, {"b": 7_000}, {})]
    assert settled([WHOLE], [], b=7) == [(KEY, {"b": 7_000}, {})]


def test_a_parent_settles_what_it_has() -> None:
    taken = [Demand(WHOLE, {"a": 2_000, "b": 2_000}), Demand(PARENT, {"a": 2_000})]
    assert settled([WHOLE, PARENT], taken, a=-1, b=3) == [
        (KEY, {"b": 3_000}, {"a": 1_000}),
        (OTHER, {}, {"a": 1_000}),
    ]


def test_an_adjustment_of_nothing_is_no_order() -> None:
    assert settled([WHOLE], [Demand(WHOLE, {"a": 1_000})], a=0) == []
    assert _settlement([WHOLE], [Demand(WHOLE, {"a": 1_000})], {}) == []


def test_an_order_of_one_limit_is_as_plain_as_can_be() -> None:
    (order,) = _settlement([WHOLE], [], {"a": 1})
    assert (order.account, order.posting) == (WHOLE, Posting(debit={"a": 1_000}))


def test_needs_are_whole_tokens_in_millitokens() -> None:
    assert needs_milli({"a": 1, "b": TOKENS_MAX}) == {"a": 1_000, "b": TOKENS_MAX * 1_000}
    assert needs_milli(MappingProxyType({"a": 2})) == {"a": 2_000}


@pytest.mark.parametrize(
    "amounts", [{"a": -1}, {"a": TOKENS_MAX + 1}, {"a": True}, {"a": 1.5}, ["a"], None, "a"]
)
def test_needs_that_are_none_are_not_taken(amounts: Any) -> None:
    with pytest.raises(ValidationError):
        needs_milli(amounts)


@pytest.mark.parametrize("amounts", [{}, {"a": 0}, {"a": 0, "b": 0}])
def test_nothing_is_no_demand(amounts: dict[str, int]) -> None:
    assert needs_milli(amounts) == {}
    assert needs_milli({**amounts, "c": 1}) == {"c": 1_000}


def test_amounts_have_one_source_each() -> None:
    assert _named(None, {"a": 1}) == {"a": 1}
    assert _named({"a b": 2}, {"a": 1}) == {"a b": 2, "a": 1}
    with pytest.raises(ValidationError, match="a given twice"):
        _named({"a": 2}, {"a": 1})


def lease_of() -> Lease:
    """A lease of two tokens, of a store that nobody asks."""
    buckets: Any = SimpleNamespace()
    return Lease(buckets, (WHOLE,), OnUnavailable.BLOCK, True, {"a": 2_000})


def degraded_lease() -> Lease:
    return DegradedLease("e", "r", {"a": 2})


LEASES = pytest.mark.parametrize("make", [lease_of, degraded_lease])


@LEASES
@pytest.mark.parametrize("change", [True, 1.5, "1", None, TOKENS_MAX + 1, -TOKENS_MAX - 1])
def test_an_adjustment_is_a_whole_number_within_bounds(make: Callable[[], Lease], change: Any) -> None:
    """One that is not changes nothing, nor do those beside it."""
    lease = make()
    with pytest.raises(ValidationError):
        run_sync(lease.adjust({"b": 1, "a": change}))
    assert lease.consumed == {"a": 2}


@LEASES
def test_adjustments_add_up(make: Callable[[], Lease]) -> None:
    lease = make()
    run_sync(lease.adjust(a=TOKENS_MAX))
    run_sync(lease.adjust({"a": -TOKENS_MAX}, b=3))
    run_sync(lease.release(a=1))
    assert lease.consumed == {"a": 1, "b": 3}


@LEASES
def test_what_is_released_is_positive(make: Callable[[], Lease]) -> None:
    for amount in (0, -1, True):
        with pytest.raises(ValidationError):
            run_sync(make().release(a=amount))


@LEASES
def test_what_is_consumed_is_not_negative(make: Callable[[], Lease]) -> None:
    for amount in (-1, True):
        with pytest.raises(ValidationError):
            run_sync(make().consume(a=amount))


def test_a_lease_returns_at_most_what_it_holds(caplog: pytest.LogCaptureFixture) -> None:
    """What is given back beyond that is cut off, and said; a limit that nobody has is bad input."""
    lease = lease_of()
    run_sync(lease.release(a=3))
    assert lease.consumed == {"a": 0}
    assert "gives back 2 of a" in caplog.text
    with pytest.raises(ValidationError):
        run_sync(lease.adjust(b=1, c=1))
    assert lease.consumed == {"a": 0}


@pytest.mark.parametrize("verb", ["consume", "adjust", "release"])
def test_a_degraded_lease_ends_like_any_other(verb: str) -> None:
    lease = degraded_lease()
    run_sync(lease.consume(a=3))
    assert (lease.consumed, lease.degraded) == ({"a": 5}, True)
    run_sync(lease._finish())
    with pytest.raises(LeaseExpiredError):
        run_sync(getattr(lease, verb)(a=1))


def test_what_is_taken_for_work_that_failed_meanwhile_is_given_back() -> None:
    """A task of its own was still asking for more; it is told that the lease has ended."""
    store = Store(e=image_of())
    teller = teller_of(store)
    buckets: Any = SimpleNamespace(teller=teller, renewed=None)
    lease = Lease(buckets, (account_of(),), OnUnavailable.BLOCK, True)
    run_sync(lease.consume(a=1))

    def fail() -> None:
        lease._ended = lease._abandoned = True

    store.meanwhile = fail
    with pytest.raises(LeaseExpiredError):
        run_sync(lease.consume(a=2))
    assert (store.sent, lease.consumed) == ([[-1_000], [-2_000], [2_000]], {"a": 1})


# From asking to leaving.


class Shop:
    """All that an acquisition needs: a bucket of ten tokens, a till that does as it is told, a plan."""

    def __init__(self, *, takes: Any = False, orders: Any = (None, None), policy: Any = BLOCK) -> None:
        self.store = Store(e=image_of())
        self.teller = teller_of(self.store)
        self.takes, self.orders, self.given = takes, orders, None
        self.plan_of_till = Plan((account_of(),), policy)
        self.asked: list[str] = []
        self.when_down = BLOCK
        self.failure: RateLimiterUnavailable | None = None
        self.tills: dict[Any, Any] = {
            ("e", "r"): SimpleNamespace(given=None, plan=self.plan_of_till, take=self.take, order=self.order)
        }

    def take(self, needs: Any) -> bool:
        assert needs == {"a": 2_000}
        self.asked.append("take")
        if isinstance(self.takes, BaseException):
            raise self.takes
        return bool(self.takes)

    async def order(self, needs: Any) -> Any:
        assert needs == {"a": 2_000}
        self.asked.append("order")
        return self.orders

    async def notice_changes(self) -> None:
        """Nobody else is there who could change anything."""

    def is_moved(self, account: Account) -> bool:
        assert account == self.plan_of_till.accounts[0]
        return False

    async def plan(self, *asked: Any) -> Plan:
        assert asked[:2] == ("e", "r")
        self.asked.append("plan")
        if self.failure is not None:
            raise self.failure
        return self.plan_of_till

    async def renewed(self, account: Account) -> Account:
        raise AssertionError(f"nobody changed the limits of {account.entity_id}")

    def policy_when_down(self, entity_id: str, resource: str) -> OnUnavailable:
        assert (entity_id, resource) == ("e", "r")
        return self.when_down

    def visit(
        self, limits: Any = None, on_unavailable: OnUnavailable | None = None, speculative: bool = True
    ) -> Acquisition:
        buckets: Any = self
        return Acquisition(buckets, "e", "r", {"a": 2_000}, limits, on_unavailable, speculative)

    def enter(self, **more: Any) -> Lease:
        return run_sync(self.visit(**more).__aenter__())


def test_a_till_that_takes_gives_the_lease_at_once() -> None:
    shop = Shop(takes=True)
    visit = shop.visit()
    lease = visit.enter_at_once()
    assert lease is not None
    assert (lease.consumed, lease.degraded, shop.asked) == ({"a": 2}, False, ["take"])
    run_sync(lease.consume(a=1))
    assert (lease.consumed, shop.store.sent) == ({"a": 3}, [[-1_000]])
    assert [verb for verb, _ in shop.store.calls] == ["write_each"], "as speculative as the till"
    run_sync(visit.__aexit__(ValueError, None, None))
    assert shop.store.sent[1:] == [[3_000]], "what the till took is given back too"


def test_a_till_is_for_the_limits_that_it_was_opened_for_and_for_those_who_speculate() -> None:
    shop = Shop(takes=True)
    shop.enter(limits=(Limit.per_minute("a", 1),))
    assert shop.asked == ["plan"]
    shop.enter(speculative=False)
    assert shop.asked == ["plan", "plan"]
    assert [verb for verb, _ in shop.store.calls] == ["write_each", "batch_get", "write_each"]
    shop.tills.clear()
    shop.enter()
    assert shop.asked == ["plan", "plan", "plan"]


def test_a_till_that_cannot_take_is_given_an_order() -> None:
    applied = Outcome(True, image_of(8_000))
    shop = Shop(orders=(applied, None))
    visit = shop.visit()
    lease = run_sync(visit.__aenter__())
    assert (lease.consumed, shop.asked, shop.store.calls) == ({"a": 2}, ["take", "order"], [])
    run_sync(lease.consume(a=1))
    assert [verb for verb, _ in shop.store.calls] == ["write_each"], "as speculative as the till"
    run_sync(visit.__aexit__(None, None, None))
    with pytest.raises(LeaseExpiredError):
        run_sync(lease.adjust(a=1))


@pytest.mark.parametrize("outcome", [None, Outcome(False, image_of(), held=False)])
def test_an_order_without_success_leaves_it_to_the_plan(outcome: Outcome | None) -> None:
    shop = Shop(orders=(outcome, None))
    assert shop.enter().consumed == {"a": 2}
    assert (shop.asked, shop.store.sent) == (["take", "order", "plan"], [[-2_000]])


@pytest.mark.parametrize(
    ("outcome", "sent"),
    [(None, []), (Outcome(False, image_of(), held=False), []), (Outcome(True, image_of()), [[2_000]])],
)
def test_an_order_that_is_interrupted_is_given_back_if_it_was_carried_out(
    outcome: Outcome | None, sent: list[list[int]]
) -> None:
    stop = KeyboardInterrupt()
    shop = Shop(orders=(outcome, stop))
    with pytest.raises(KeyboardInterrupt) as caught:
        shop.enter()
    assert caught.value is stop
    assert (shop.asked, shop.store.sent) == (["take", "order"], sent)


DOWN = RateLimiterUnavailable("out of reach")


@pytest.mark.parametrize(
    ("of_call", "of_plan", "admitted"),
    [(None, BLOCK, False), (None, ALLOW, True), (ALLOW, BLOCK, True), (BLOCK, ALLOW, False)],
)
@pytest.mark.parametrize("where", ["take", "order", "write"])
def test_when_the_store_is_down_the_call_decides_or_the_plan(
    of_call: OnUnavailable | None, of_plan: OnUnavailable, admitted: bool, where: str
) -> None:
    """What was configured when somebody last looked does not matter then."""
    shop = Shop(policy=of_plan)
    shop.when_down = BLOCK if of_plan is ALLOW else ALLOW
    if where == "take":
        shop.takes = DOWN
    elif where == "order":
        shop.orders = Outcome(False, None, failure=DOWN), None
    else:
        shop.tills.clear()
        shop.store.replies = [Outcome(False, None, failure=DOWN)]
    if admitted:
        lease = shop.enter(on_unavailable=of_call)
        assert (lease.degraded, lease.consumed) == (True, {"a": 2})
    else:
        with pytest.raises(RateLimiterUnavailable) as caught:
            shop.enter(on_unavailable=of_call)
        assert caught.value is DOWN


@pytest.mark.parametrize(
    ("of_call", "when_down", "admitted"),
    [(None, BLOCK, False), (None, ALLOW, True), (ALLOW, BLOCK, True), (BLOCK, ALLOW, False)],
)
def test_when_not_even_a_plan_can_be_made_the_call_decides_or_what_is_remembered(
    of_call: OnUnavailable | None, when_down: OnUnavailable, admitted: bool
) -> None:
    shop = Shop()
    shop.tills.clear()
    shop.when_down, shop.failure = when_down, DOWN
    if admitted:
        assert shop.enter(on_unavailable=of_call).degraded
    else:
        with pytest.raises(RateLimiterUnavailable):
            shop.enter(on_unavailable=of_call)
    assert shop.store.calls == []


def test_all_that_was_consumed_is_given_back_after_a_failure() -> None:
    shop = Shop(takes=True)
    visit = shop.visit()
    lease = run_sync(visit.__aenter__())
    run_sync(lease.consume(a=1))
    run_sync(lease.consume(a=3))
    assert lease.consumed == {"a": 6}
    run_sync(visit.__aexit__(ValueError, None, None))
    assert shop.store.sent == [[-1_000], [-3_000], [6_000]]


@pytest.mark.parametrize(("ambiguous", "consumed"), [(False, 5), (True, 2)])
def test_consuming_while_the_store_is_down_is_noted_unless_it_may_have_been_stored(
    ambiguous: bool, consumed: int
) -> None:
    """If the policy allows it at all."""
    down = RateLimiterUnavailable("no answer", ambiguous=ambiguous)
    for policy in (ALLOW, BLOCK):
        shop = Shop(takes=True, policy=policy)
        lease = shop.enter()
        shop.store.replies = [Outcome(False, None, failure=down)]
        if policy is ALLOW:
            run_sync(lease.consume(a=3))
            assert lease.consumed == {"a": consumed}
        else:
            with pytest.raises(RateLimiterUnavailable) as caught:
                run_sync(lease.consume(a=3))
            assert caught.value is down
            assert lease.consumed == {"a": 2}


@pytest.mark.parametrize("policy", [ALLOW, BLOCK])
def test_a_settlement_that_is_lost_is_told_unless_the_policy_allows_it(policy: OnUnavailable) -> None:
    shop = Shop(takes=True, policy=policy)
    visit = shop.visit()
    lease = run_sync(visit.__aenter__())
    run_sync(lease.adjust(a=1))
    unsure = RateLimiterUnavailable("no reply", ambiguous=True)
    shop.store.replies = [Outcome(False, None, failure=unsure)]
    if policy is ALLOW:
        run_sync(visit.__aexit__(None, None, None))
    else:
        with pytest.raises(RateLimiterUnavailable) as caught:
            run_sync(visit.__aexit__(None, None, None))
        assert caught.value is unsure
    assert (shop.store.sent, shop.teller.refunds_lost) == ([[-1_000]], 1)
    with pytest.raises(LeaseExpiredError):
        run_sync(lease.adjust(a=1))


@pytest.mark.parametrize(
    ("kind", "adjusted", "sent"),
    [
        (None, 0, []),
        (None, 1, [[-1_000]]),
        (None, -1, [[1_000]]),
        (ValueError, 0, [[2_000]]),
        (ValueError, 1, [[2_000]]),
        (GeneratorExit, 1, []),
    ],
)
def test_what_leaving_writes(kind: Any, adjusted: int, sent: list[list[int]]) -> None:
    """Nothing if nothing was adjusted, all of it after a failure, nothing where nobody may wait."""
    shop = Shop(takes=True)
    visit = shop.visit()
    lease = run_sync(visit.__aenter__())
    if adjusted:
        run_sync(lease.adjust(a=adjusted))
    assert visit.leave_at_once(kind) is (not sent)
    if sent:
        run_sync(visit.leave(kind))
    assert shop.store.sent == sent
    with pytest.raises(LeaseExpiredError):
        run_sync(lease.consume(a=1))
