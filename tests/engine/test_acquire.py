"""From asking to leaving: what an acquire asks of whom, and what its lease stores when it ends."""

from typing import Any

import pytest

from tests.engine.fake_buckets import FRESH_MS, FakeBuckets, account_of, image_of
from tests.engine.fake_store import NOW, RATE, Scripted, claim, is_busy, release
from zae_limiter import Limit, OnUnavailable, RateLimiterUnavailable, RateLimitExceeded
from zae_limiter.config_cache import Entry
from zae_limiter.engine import holding
from zae_limiter.engine.account import Meter
from zae_limiter.exceptions import LeaseExpiredError, ValidationError
from zae_limiter.lease import Lease
from zae_limiter.repository_protocol import Outcome
from zae_limiter.runtime.colour import Blocking, run_sync

ALLOW, BLOCK = OnUnavailable.ALLOW, OnUnavailable.BLOCK
TTL = (NOW + 2 * RATE.fill_ms) // 1000
"""As soon as a bucket may disappear that is full by then, whatever is taken from it now."""


# At once.


def test_what_is_taken_at_once_is_one_step_and_counts_its_records_as_hits() -> None:
    buckets = FakeBuckets()
    assert buckets.enter({"a": 3_000}).consumed == {"a": 3}
    buckets.enter({"a": 4_000, "b": 1_000})
    assert buckets.left == (3_000, 9_000)
    assert (buckets.work, buckets.cache.hits, buckets.asked) == ((2, 0), 4, [])


def test_what_does_not_fit_is_asked_of_the_store_and_refused() -> None:
    buckets = FakeBuckets(None, image_of(1_000, 4_000))
    with pytest.raises(RateLimitExceeded) as caught:
        buckets.enter({"a": 1_500, "b": 4_000})
    assert {s.limit_name: s.retry_after_seconds for s in caught.value.statuses} == {"a": 0.5, "b": 0.0}
    assert (caught.value.entity_id, buckets.work, buckets.left) == ("e", (0, 1), (1_000, 4_000))


def test_a_limit_that_nobody_has_is_a_mistake_and_takes_nothing() -> None:
    buckets = FakeBuckets()
    with pytest.raises(ValidationError):
        buckets.enter({"a": 1_000, "c": 1_000})
    assert (buckets.work, buckets.asked) == ((0, 0), ["plan"])


def test_nothing_to_take_is_planned_and_written_nowhere() -> None:
    buckets = FakeBuckets()
    assert buckets.enter({}).consumed == {}
    assert buckets.work == (0, 0)


def test_a_bucket_that_somebody_else_has_changed_is_written_to() -> None:
    """The image is not replaced, and nothing is taken twice."""
    buckets = FakeBuckets()
    buckets.shelf.items[buckets.key] = image_of(9_000)
    buckets.enter({"a": 1_000})
    assert (buckets.work, buckets.left) == ((1, 1), (8_000, 10_000))


def test_a_bucket_whose_writes_are_counted_is_never_replaced_at_once() -> None:
    buckets = FakeBuckets(account_of(meter=Meter.COUNT), image_of(shard_count=1))
    buckets.enter({"a": 1_000})
    assert buckets.work == (0, 1)


def test_records_are_used_to_the_last_millisecond_of_the_first_to_expire() -> None:
    buckets = FakeBuckets()
    buckets.clock.now_ms = NOW + FRESH_MS - 1
    buckets.enter({"a": 1_000})
    assert (buckets.work, buckets.asked) == ((1, 0), [])
    buckets.clock.now_ms += 1
    buckets.enter({"a": 1_000})
    assert (buckets.work, buckets.asked) == ((1, 1), ["plan"])


def test_a_record_that_is_withdrawn_ends_a_plan_and_another_does_not() -> None:
    buckets = FakeBuckets()
    buckets.enter({"a": 1_000})
    buckets.cache._withdraw(Entry(None, NOW + FRESH_MS, 1))
    buckets.enter({"a": 1_000})
    assert (buckets.work, buckets.asked) == ((2, 0), [])
    buckets.cache._withdraw(buckets.entries[1])
    buckets.enter({"a": 1_000})
    assert (buckets.work, buckets.asked) == ((2, 1), ["plan"])


@pytest.mark.parametrize(
    "image",
    [image_of(parent_id="p"), image_of(cascade=True), image_of(b_b_cp=11_000), image_of(ttl=TTL + 999)],
)
def test_a_bucket_that_is_not_plain_is_not_replaced_at_once(image: dict[str, Any]) -> None:
    """It is of another family or of other numbers, or the write would remove its ``ttl``."""
    buckets = FakeBuckets(None, image)
    buckets.meanwhile = lambda: buckets.holds(image_of())  # so that it is taken in the end, whoever it is of
    buckets.enter({"a": 1_000})
    assert buckets.swaps == 0
    assert buckets.sent


def test_an_image_is_looked_at_anew_when_it_is_another() -> None:
    buckets = FakeBuckets()
    buckets.enter({"a": 1_000})
    buckets.holds(image_of(b_b_cp=11_000))
    buckets.enter({"a": 1_000})
    assert buckets.work == (1, 1)
    buckets.holds(image_of(5_000))
    buckets.enter({"a": 1_000})
    assert (buckets.work, buckets.left) == ((2, 1), (4_000, 10_000))


@pytest.mark.parametrize(
    ("ttl", "taken"),
    [(None, True), (TTL, True), (TTL - 1, False), (float(TTL + 1), False), (TTL + 10**6, True)],
)
def test_a_bucket_is_taken_from_at_once_while_it_lasts_until_it_is_full(
    ttl: float | None, taken: bool
) -> None:
    """Two fills ahead there is time enough; a second less, or no whole number, needs a write."""
    image = image_of() | ({} if ttl is None else {"ttl": ttl})
    buckets = FakeBuckets(account_of(ttl_fills=7), image)
    buckets.enter({"a": 1_000})
    assert buckets.work == (int(taken), int(not taken))


def test_plans_are_for_the_limits_that_they_were_made_for_and_for_those_who_speculate() -> None:
    buckets = FakeBuckets()
    buckets.enter(limits=(Limit.per_minute("a", 1),))
    assert (buckets.asked, buckets.reads) == (["plan"], 0)
    buckets.enter(speculative=False)
    assert (buckets.asked, buckets.reads) == (["plan", "plan"], 1)
    buckets.plans.clear()
    buckets.enter()
    assert (buckets.asked, buckets.swaps) == (["plan"] * 3, 0)


# By a write.


def remote(image: dict[str, Any] | None = None, **more: Any) -> FakeBuckets:
    return FakeBuckets(None, image, at_once=False, **more)


def test_a_store_that_has_to_be_waited_for_gets_one_write() -> None:
    buckets = remote()
    assert buckets.enter({"a": 4_000, "b": 1_000}).consumed == {"a": 4, "b": 1}
    assert (buckets.left, buckets.work, buckets.cache.hits) == ((6_000, 9_000), (0, 1), 2)


def test_a_refusal_is_repeated_as_long_as_it_is_remembered() -> None:
    """Exactly as the store would give it."""
    buckets = remote(image_of(1_000, 4_000))
    with pytest.raises(RateLimitExceeded):
        buckets.enter({"a": 2_000})
    assert buckets.work == (0, 1)
    for needs, waits in (
        ({"a": 2_000}, {"a": 1.0}),
        ({"a": 1_500, "b": 4_000}, {"a": 0.5, "b": 0.0}),
        ({"b": 4_000, "a": 3_000}, {"b": 0.0, "a": 2.0}),
    ):
        with pytest.raises(RateLimitExceeded) as caught:
            buckets.enter(needs)
        assert {s.limit_name: s.retry_after_seconds for s in caught.value.statuses} == waits
    assert buckets.work == (0, 1)
    buckets.clock.now_ms += 1_001
    with pytest.raises(RateLimitExceeded):
        buckets.enter({"a": 3_000})
    assert buckets.work == (0, 2)


def test_what_fits_is_taken_although_somebody_was_just_refused() -> None:
    buckets = remote()
    buckets.writer.note_refusal(buckets.key)
    assert buckets.enter({"a": 1_000}).consumed == {"a": 1}


def test_who_comes_to_a_busy_bucket_waits_in_its_line() -> None:
    """What it is told then is told by the image that others left."""
    buckets = remote()
    for needs, left in (({"a": 8_000}, 2_000), ({"a": 3_000}, 2_000)):
        claim(buckets.writer, buckets.key)
        buckets.writer.colour = Scripted(lambda: release(buckets.writer, buckets.key))
        if left == buckets.left[0]:
            with pytest.raises(RateLimitExceeded):
                buckets.enter(needs)
        else:
            buckets.enter(needs)
        assert buckets.left[0] == left
        assert not is_busy(buckets.writer, buckets.key)


def test_who_fits_by_the_time_of_the_reply_is_not_refused() -> None:
    buckets = remote(image_of(1_000))

    def pass_time() -> None:
        buckets.clock.now_ms += 2_000

    buckets.meanwhile = pass_time
    assert buckets.enter({"a": 3_000}).consumed == {"a": 3}


@pytest.mark.parametrize(("held", "sent"), [(10_000, [-3_000, 3_000]), (1_000, [-3_000])])
def test_who_is_interrupted_gets_nothing_and_owes_nothing(held: int, sent: list[int]) -> None:
    """It is told of the interruption, and not that it does not fit."""
    buckets, stop = remote(image_of(held)), KeyboardInterrupt()

    class Interrupted(Blocking):
        async def finish(self, coroutine: Any, *_: Any) -> tuple[Any, BaseException | None]:  # type: ignore[override]
            return await coroutine, stop if not buckets.sent[1:] else None

    buckets.writer.colour = Interrupted()
    with pytest.raises(KeyboardInterrupt) as caught:
        buckets.enter({"a": 3_000})
    assert caught.value is stop
    assert (buckets.sent, buckets.left[0]) == (sent, held)


def test_who_charged_the_wrong_family_gives_it_back_and_plans_anew() -> None:
    """The reply tells that the entity has another parent by now."""
    buckets = remote()
    buckets.shelf.items[buckets.key] = image_of(parent_id="p")
    buckets.made = account_plan(buckets)
    assert buckets.enter({"a": 1_000}).consumed == {"a": 1}
    assert (buckets.sent, buckets.left[0]) == ([-1_000, 1_000, -1_000], 9_000)
    assert buckets.asked == ["family of e", "plan"]


def account_plan(buckets: FakeBuckets) -> Any:
    """The plan of somebody who knows of the parent, which has no limits."""
    account = account_of(parent_id="p")
    return type(buckets.made)((account,), BLOCK, None, buckets.cache, buckets.entries)


def test_what_is_more_than_a_want_of_tokens_is_not_remembered_as_one() -> None:
    """An empty bucket that begins in the future is put right by whoever is refused, and fills then."""
    buckets = remote(image_of(0, rf=NOW + 10**9))
    for _ in range(2):
        with pytest.raises(RateLimitExceeded) as caught:
            buckets.enter({"a": 1_000})
        assert caught.value.retry_after_seconds == 1.0
    assert buckets.shelf.items[buckets.key]["rf"] == NOW
    buckets.clock.now_ms += 1_001
    buckets.enter({"a": 1_000})


@pytest.mark.parametrize("at_once", [True, False])
def test_what_was_not_entered_or_was_refused_cannot_be_left(at_once: bool) -> None:
    buckets = FakeBuckets(None, image_of(0), at_once=at_once)
    asked, refused = buckets.ask(), buckets.ask()
    with pytest.raises(RateLimitExceeded):
        run_sync(refused.__aenter__())
    for acquisition in (asked, refused):
        with pytest.raises(LeaseExpiredError, match="was not entered"):
            run_sync(acquisition.__aexit__(None, None, None))
    with pytest.raises(LeaseExpiredError, match="was entered before"):
        run_sync(refused.__aenter__())
    with pytest.raises(RateLimitExceeded):
        run_sync(asked.__aenter__())


def test_a_lease_belongs_to_the_process_that_entered_it() -> None:
    """What was only asked for may be entered in a forked child."""
    buckets = FakeBuckets()
    asked, kept = buckets.ask(), buckets.enter()
    holding.forks += 1
    try:
        lease = run_sync(asked.__aenter__())
        run_sync(lease.adjust(a=1))
        run_sync(asked.__aexit__(ValueError, None, None))
        with pytest.raises(LeaseExpiredError, match="forked"):
            run_sync(kept.adjust(a=1))
    finally:
        holding.forks -= 1
    assert buckets.left[0] == 8_000


def test_the_policy_is_the_one_that_the_lease_was_entered_with() -> None:
    buckets = FakeBuckets(policy=ALLOW)
    lease = buckets.enter()
    buckets.made = type(buckets.made)((account_of(),), BLOCK, None, buckets.cache, buckets.entries)
    buckets.plans.clear()
    run_sync(lease.consume(a=1))
    assert lease._policy is ALLOW


# While the store is down.


DOWN = RateLimiterUnavailable("out of reach")


@pytest.mark.parametrize(
    ("of_call", "of_plan", "admitted"),
    [(None, BLOCK, False), (None, ALLOW, True), (ALLOW, BLOCK, True), (BLOCK, ALLOW, False)],
)
@pytest.mark.parametrize("where", ["at once", "write", "read first"])
def test_when_the_store_is_down_the_call_decides_or_the_plan(
    of_call: OnUnavailable | None, of_plan: OnUnavailable, admitted: bool, where: str
) -> None:
    """What was configured when somebody last looked does not matter then."""
    buckets = FakeBuckets(at_once=where == "at once", policy=of_plan)
    buckets.when_down = BLOCK if of_plan is ALLOW else ALLOW
    if where == "at once":
        buckets.failure = DOWN
    else:
        buckets.replies = [Outcome(False, None, failure=DOWN)]
    speculative = where != "read first"
    if admitted:
        lease = buckets.enter(on_unavailable=of_call, speculative=speculative)
        assert (lease.degraded, lease.consumed) == (True, {"a": 2})
    else:
        with pytest.raises(RateLimiterUnavailable) as caught:
            buckets.enter(on_unavailable=of_call, speculative=speculative)
        assert caught.value is DOWN
    assert (buckets.left, buckets.writer.refunds_lost) == ((10_000, 10_000), 0)


@pytest.mark.parametrize(
    ("of_call", "when_down", "admitted"),
    [(None, BLOCK, False), (None, ALLOW, True), (ALLOW, BLOCK, True), (BLOCK, ALLOW, False)],
)
def test_when_not_even_a_plan_can_be_made_the_call_decides_or_what_is_remembered(
    of_call: OnUnavailable | None, when_down: OnUnavailable, admitted: bool
) -> None:
    buckets = remote()
    buckets.plans.clear()
    buckets.when_down, buckets.failure = when_down, DOWN
    if admitted:
        assert buckets.enter(on_unavailable=of_call).degraded
    else:
        with pytest.raises(RateLimiterUnavailable):
            buckets.enter(on_unavailable=of_call)
    assert buckets.work == (0, 0)


@pytest.mark.parametrize("at_once", [True, False])
def test_what_may_have_been_taken_for_nobody_is_counted(at_once: bool) -> None:
    buckets = FakeBuckets(at_once=at_once)
    unsure = RateLimiterUnavailable("no reply", ambiguous=True)
    buckets.failure, buckets.replies = unsure, [Outcome(False, None, failure=unsure)]
    with pytest.raises(RateLimiterUnavailable):
        buckets.enter()
    assert buckets.writer.refunds_lost == 1


# The lease.


def test_all_that_was_consumed_is_given_back_after_a_failure() -> None:
    buckets = FakeBuckets()
    visit = buckets.ask()
    lease = run_sync(visit.__aenter__())
    run_sync(lease.consume(a=1))
    run_sync(lease.consume(a=3))
    assert lease.consumed == {"a": 6}
    run_sync(visit.__aexit__(ValueError, None, None))
    assert buckets.sent == [-1_000, -3_000, 6_000]


@pytest.mark.parametrize(("ambiguous", "consumed"), [(False, 5), (True, 2)])
def test_consuming_while_the_store_is_down_is_noted_unless_it_may_have_been_stored(
    ambiguous: bool, consumed: int
) -> None:
    """If the policy allows it at all."""
    down = RateLimiterUnavailable("no answer", ambiguous=ambiguous)
    for policy in (ALLOW, BLOCK):
        buckets = FakeBuckets(policy=policy)
        lease = buckets.enter()
        buckets.replies = [Outcome(False, None, failure=down)]
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
    buckets = FakeBuckets(policy=policy)
    visit = buckets.ask()
    lease = run_sync(visit.__aenter__())
    run_sync(lease.adjust(a=1))
    unsure = RateLimiterUnavailable("no reply", ambiguous=True)
    buckets.replies = [Outcome(False, None, failure=unsure)]
    if policy is ALLOW:
        run_sync(visit.__aexit__(None, None, None))
    else:
        with pytest.raises(RateLimiterUnavailable) as caught:
            run_sync(visit.__aexit__(None, None, None))
        told = "the work of 'e' on 'r' is done, but not all it cost was stored: no reply"
        assert (str(caught.value), caught.value.ambiguous) == (told, True)
        assert (caught.value.entity_id, caught.value.resource) == ("e", "r")
    assert (buckets.sent, buckets.writer.refunds_lost) == ([-1_000], 1)
    with pytest.raises(LeaseExpiredError):
        run_sync(lease.adjust(a=1))


@pytest.mark.parametrize(
    ("kind", "adjusted", "sent"),
    [
        (None, 0, []),
        (None, 1, [-1_000]),
        (None, -1, [1_000]),
        (ValueError, 0, [2_000]),
        (ValueError, 1, [2_000]),
        (GeneratorExit, 0, []),
        (GeneratorExit, 1, [-1_000]),
        (GeneratorExit, -1, [1_000]),
    ],
)
def test_what_leaving_writes(kind: Any, adjusted: int, sent: list[int]) -> None:
    """Nothing if nothing was adjusted, all of it after a failure; a reader who leaves is no failure."""
    buckets = FakeBuckets()
    visit = buckets.ask()
    lease = run_sync(visit.__aenter__())
    if adjusted:
        run_sync(lease.adjust(a=adjusted))
    run_sync(visit.__aexit__(kind, None, None))
    assert buckets.sent == sent
    with pytest.raises(LeaseExpiredError):
        run_sync(lease.consume(a=1))


@pytest.mark.parametrize("policy", [ALLOW, BLOCK])
def test_a_reader_who_leaves_is_not_told_what_is_lost(policy: OnUnavailable) -> None:
    """There is nobody who could do anything about it: it is counted."""
    buckets = FakeBuckets(policy=policy)
    visit = buckets.ask()
    lease = run_sync(visit.__aenter__())
    run_sync(lease.adjust(a=1))
    buckets.replies = [Outcome(False, None, failure=RateLimiterUnavailable("no reply", ambiguous=True))]
    run_sync(visit.__aexit__(GeneratorExit, GeneratorExit(), None))
    assert (buckets.sent, buckets.writer.refunds_lost) == ([-1_000], 1)


@pytest.mark.parametrize(("change", "sent"), [(None, []), (1, [-1_000]), (-1, [1_000])])
def test_a_lease_that_nobody_left_is_settled_when_it_is_dropped(change: int | None, sent: list[int]) -> None:
    """Some generators vanish without being closed; what their leases noted is stored, once."""
    buckets = FakeBuckets()
    visit = buckets.ask()
    lease = run_sync(visit.__aenter__())
    if change is not None:
        run_sync(lease.adjust(a=change))
    del visit, lease
    assert buckets.sent == sent


@pytest.mark.parametrize("kind", [GeneratorExit, ValueError, None])
def test_a_lease_that_was_dropped_has_nothing_to_settle_when_it_is_left(kind: Any) -> None:
    """The garbage of a cycle is finalized in any order, the lease before the generator that holds it too."""
    buckets = FakeBuckets()
    visit = buckets.ask()
    lease = run_sync(visit.__aenter__())
    run_sync(lease.adjust(a=1))
    lease.__del__()
    run_sync(visit.__aexit__(kind, None, None))
    assert buckets.sent == [-1_000]


def test_what_is_noted_when_the_lease_has_just_ended_is_refused() -> None:
    """Whoever ended it may have looked for notes already."""
    buckets = FakeBuckets()
    visit = buckets.ask()
    lease = run_sync(visit.__aenter__())
    checked = lease._check_open

    class Ending(Lease):
        __slots__ = ()

        def _check_open(self) -> None:
            checked()
            run_sync(
                visit.__aexit__(None, None, None)
            )  # what another thread does just after it was found open

    object.__setattr__(lease, "__class__", Ending)
    with pytest.raises(LeaseExpiredError):
        run_sync(lease.adjust(a=1))
    assert (lease.consumed, buckets.sent) == ({"a": 2}, [])
