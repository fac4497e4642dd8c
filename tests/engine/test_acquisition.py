"""From asking to leaving: what an acquisition asks of whom, and what its lease stores when it ends."""

from types import SimpleNamespace
from typing import Any

import pytest

from tests.engine.fake_store import Store, account_of, image_of, writer_of
from zae_limiter import Limit, OnUnavailable, RateLimiterUnavailable
from zae_limiter.engine.bucket_view import Account
from zae_limiter.engine.plan import Plan
from zae_limiter.exceptions import LeaseExpiredError
from zae_limiter.lease import Acquisition, Lease
from zae_limiter.repository_protocol import Outcome
from zae_limiter.runtime.colour import run_sync

ALLOW, BLOCK = OnUnavailable.ALLOW, OnUnavailable.BLOCK


class Shop:
    """All that an acquisition needs: a bucket of ten tokens, a till that does as it is told, a plan."""

    stack_name = "limits"

    def __init__(self, *, takes: Any = False, orders: Any = (None, None), policy: Any = BLOCK) -> None:
        self.store = Store(e=image_of())
        self.writer = writer_of(self.store)
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

    def moved(self, account: Account, shards: Any) -> list[Account]:
        assert [account] == list(shards)
        return []

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
        told = "the work of 'e' on 'r' is done, but not all it cost was stored: no reply"
        assert (str(caught.value), caught.value.ambiguous) == (told, True)
        assert (caught.value.entity_id, caught.value.resource) == ("e", "r")
    assert (shop.store.sent, shop.writer.refunds_lost) == ([[-1_000]], 1)
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
        (GeneratorExit, 0, []),
        (GeneratorExit, 1, [[-1_000]]),
        (GeneratorExit, -1, [[1_000]]),
    ],
)
def test_what_leaving_writes(kind: Any, adjusted: int, sent: list[list[int]]) -> None:
    """Nothing if nothing was adjusted, all of it after a failure; a reader who leaves is no failure."""
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


@pytest.mark.parametrize("policy", [ALLOW, BLOCK])
def test_a_reader_who_leaves_is_not_told_what_is_lost(policy: OnUnavailable) -> None:
    """There is nobody who could do anything about it: it is counted."""
    shop = Shop(takes=True, policy=policy)
    visit = shop.visit()
    lease = run_sync(visit.__aenter__())
    run_sync(lease.adjust(a=1))
    shop.store.replies = [Outcome(False, None, failure=RateLimiterUnavailable("no reply", ambiguous=True))]
    run_sync(visit.__aexit__(GeneratorExit, GeneratorExit(), None))
    assert (shop.store.sent, shop.writer.refunds_lost) == ([[-1_000]], 1)


@pytest.mark.parametrize(("change", "sent"), [(None, []), (1, [[-1_000]]), (-1, [[1_000]])])
def test_a_lease_that_nobody_left_is_settled_when_it_is_dropped(
    change: int | None, sent: list[list[int]]
) -> None:
    """Some generators vanish without being closed; what their leases noted is stored, once."""
    shop = Shop(takes=True)
    visit = shop.visit()
    lease = run_sync(visit.__aenter__())
    if change is not None:
        run_sync(lease.adjust(a=change))
    del visit, lease
    assert shop.store.sent == sent


@pytest.mark.parametrize("kind", [GeneratorExit, ValueError, None])
def test_a_lease_that_was_dropped_has_nothing_to_settle_when_it_is_left(kind: Any) -> None:
    """The garbage of a cycle is finalized in any order, the lease before the generator that holds it too."""
    shop = Shop(takes=True)
    visit = shop.visit()
    lease = run_sync(visit.__aenter__())
    run_sync(lease.adjust(a=1))
    lease.__del__()
    run_sync(visit.__aexit__(kind, None, None))
    assert shop.store.sent == [[-1_000]]


def test_what_is_noted_when_the_lease_has_just_ended_is_refused() -> None:
    """Whoever ended it may have looked for notes already."""
    shop = Shop(takes=True)
    visit = shop.visit()
    lease = run_sync(visit.__aenter__())
    checked = lease._check_open

    class Ending(Lease):
        __slots__ = ()

        def _check_open(self) -> None:
            checked()
            visit.leave_at_once(None)  # what another thread does just after it was found open

    object.__setattr__(lease, "__class__", Ending)
    with pytest.raises(LeaseExpiredError):
        run_sync(lease.adjust(a=1))
    assert (lease.consumed, shop.store.sent) == ({"a": 2}, [])
