"""The short way takes exactly what the long way would."""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.engine.fake_store import NOW, RATE, Scripted, claim, is_busy, release
from zae_limiter import OnUnavailable, RateLimitExceeded
from zae_limiter.backends.memory import MemoryBackend, Shelf
from zae_limiter.bucket import Rate
from zae_limiter.config_cache import ConfigCache, Entry
from zae_limiter.engine.bucket_view import Account, Meter, Terms, is_ahead
from zae_limiter.engine.bucket_writes import Posting, write_for
from zae_limiter.engine.group_commit import BucketWriter
from zae_limiter.engine.plan import Plan, Slot, Till, spent
from zae_limiter.repository_protocol import Item, Outcome, Write, apply
from zae_limiter.runtime.colour import Blocking, run_sync
from zae_limiter.schema import bucket_key, limit_attributes
from zae_limiter.testing import Fault, ManualClock
from zae_limiter.testing.stores import Wrapper

NAMES = ("a", "b", "a_tk")

rates = st.builds(
    lambda capacity, amount, period: Rate(capacity * 1000, amount * 1000, period * 1000),
    st.integers(1, 50),
    st.integers(1, 100),
    st.integers(1, 3600),
)


@st.composite
def buckets(draw: st.DrawFn) -> tuple[Terms, dict[str, Any]]:
    """Terms, and a bucket that has their numbers: full, overfilled, used or in debt."""
    terms = Terms(
        {name: draw(rates) for name in sorted(draw(st.sets(st.sampled_from(NAMES), min_size=1)))}, 1
    )
    image: dict[str, Any] = {"rf": draw(st.integers(NOW - 10**5, NOW + 10**3)), "cv": 1, "cascade": False}
    for name, rate in terms.rates.items():
        held = draw(
            st.integers(-2 * rate.capacity_milli, 2 * rate.capacity_milli) | st.just(rate.capacity_milli)
        )
        image |= dict(zip(limit_attributes(name), (held, *rate, draw(st.integers(0, 10**6))), strict=True))
    return terms, image


@given(buckets(), st.data())
@settings(max_examples=300)
def test_what_is_spent_at_once_is_what_the_write_would_leave(
    bucket: tuple[Terms, dict[str, Any]], data: st.DataObject
) -> None:
    """Both ways admit the same needs and leave the same image; the short one never admits alone."""
    terms, image = bucket
    now_ms = data.draw(st.integers(NOW - 10**4, NOW + 10**7))
    assume(not is_ahead(image, now_ms))  # else it is put right first, which is no business of a till
    needs = data.draw(
        st.dictionaries(
            st.sampled_from(sorted(terms.rates)),
            st.integers(1, 60).map(lambda tokens: tokens * 1000),
            min_size=1,
        )
    )
    slots = {
        name: Slot(*rate, limit_attributes(name).tk, limit_attributes(name).tc)
        for name, rate in terms.rates.items()
    }
    account = Account(bucket_key("ns", "e", "r"), "ns", "e", "r", terms)
    write = write_for(account, Posting(need=needs), image, now_ms)
    assert write is not None
    outcome = apply(write, image)
    changed = spent(slots, needs, image, now_ms)
    assert (changed is not None) is outcome.applied
    if changed is not None:
        assert {**image, **changed} == outcome.item


def test_a_limit_that_is_not_there_is_left_to_the_long_way() -> None:
    assert spent({}, {"a": 1000}, {"rf": NOW}, NOW) is None


def test_all_that_is_there_is_spent_at_once_and_no_more() -> None:
    """To the last millitoken, from a bucket that was used and from one that is full."""
    slots = {"a": Slot(10_000, 1_000, 1_000, "b_a_tk", "b_a_tc")}
    image = {"rf": NOW, "b_a_tk": 4_000, "b_a_tc": 7}
    assert spent(slots, {"a": 6_000}, image, NOW + 2_000) == {"b_a_tk": -2_000, "b_a_tc": 6_007}
    assert spent(slots, {"a": 6_001}, image, NOW + 2_000) is None
    assert spent(slots, {"a": 10_000}, image, NOW + 20_000) == {"b_a_tk": -20_000, "b_a_tc": 10_007}
    assert spent(slots, {"a": 10_001}, image, NOW + 20_000) is None


FRESH_MS = 60_000
TTL = (NOW + 2 * RATE.fill_ms) // 1000
"""As soon as a bucket may disappear that is full by then, whatever is taken from it now."""


def account_of(entity_id: str = "e", /, ttl_fills: int = 0, **more: Any) -> Account:
    terms = Terms({"a": RATE, "b": RATE}, 1, ttl_fills)
    return Account(bucket_key("ns", entity_id, "r"), "ns", entity_id, "r", terms, **more)


def image_of(a: int = 10_000, b: int = 10_000, /, **more: Any) -> dict[str, Any]:
    image: dict[str, Any] = {"rf": NOW, "cv": 1, "cascade": False}
    for name, tokens in (("a", a), ("b", b)):
        image |= zip(limit_attributes(name), (tokens, *RATE, 0), strict=True)
    return image | more


class Counter(Wrapper):
    """A till with a bucket, and all that happens at it.

    Its plan was made from two records, of which one is fresh for longer than the other.
    """

    def __init__(self, account: Account, image: dict[str, Any] | None, *parents: Account) -> None:
        self.clock, self.key = ManualClock(NOW), account.key
        self.shelf = Shelf()
        super().__init__(MemoryBackend(self.clock.world, self.shelf))
        self.writer, self.cache = BucketWriter(self, self.clock.world), ConfigCache(FRESH_MS)
        self.entries = [Entry(None, NOW + FRESH_MS, 1), Entry(None, NOW + 2 * FRESH_MS, 1)]
        self.till = Till(
            self.writer, self.cache, Plan((account, *parents), OnUnavailable.BLOCK), None, self.entries
        )
        self.swaps = self.writes = 0
        self.fault: Fault | None = None
        self.reply_takes_ms = 0
        self.holds(image)

    def holds(self, image: dict[str, Any] | None) -> None:
        """Let the bucket be this, and let the process know it."""
        self.shelf.items.pop(self.key, None)
        if image is not None:
            self.shelf.items[self.key] = image
        self.writer.remember({self.key: image})

    @property
    def left(self) -> tuple[Any, Any]:
        item = self.shelf.items[self.key]
        return item["b_a_tk"], item["b_b_tk"]

    @property
    def work(self) -> tuple[int, int]:
        return self.swaps, self.writes

    def swap(self, *given: Any) -> Item | None:
        self.swaps += 1
        return MemoryBackend(self.clock.world, self.shelf).swap(*given)

    async def write_each(self, writes: Sequence[Write]) -> list[Outcome]:
        self.writes += len(writes)
        if self.fault is not None:
            return [Outcome(False, None, failure=self.fault.failure()) for _ in writes]
        outcomes = await super().write_each(writes)
        self.clock.now_ms += self.reply_takes_ms
        return outcomes

    def order(self, **needs: int) -> tuple[Outcome | None, BaseException | None]:
        return run_sync(self.till.order(needs))


def test_a_till_takes_at_once_and_counts_its_records_as_hits() -> None:
    counter = Counter(account_of(), image_of())
    assert counter.till.take({"a": 3_000})
    assert counter.till.take({"a": 4_000, "b": 1_000})
    assert counter.left == (3_000, 9_000)
    assert (counter.work, counter.cache.hits) == ((2, 0), 4)
    assert not counter.till.take({"a": 3_001})
    assert (counter.work, counter.cache.hits) == ((2, 0), 4)


def test_a_till_does_not_take_what_it_has_no_slot_for() -> None:
    counter = Counter(account_of(), image_of())
    assert not counter.till.take({"a": 1_000, "c": 1_000})
    counter.writer.note_refusal(counter.key)
    assert not counter.till.take({"a": 11_000, "c": 1_000}), "a refusal would not know the limit"
    assert counter.work == (0, 0)


def test_a_bucket_that_somebody_else_has_changed_is_left_to_the_long_way() -> None:
    counter = Counter(account_of(), image_of())
    counter.shelf.items[counter.key] = image_of(9_000)
    assert not counter.till.take({"a": 1_000})
    assert (counter.work, counter.cache.hits, counter.left) == ((1, 0), 0, (9_000, 10_000))


def test_a_bucket_whose_writes_are_counted_is_never_swapped() -> None:
    counter = Counter(account_of(meter=Meter.COUNT), image_of(shard_count=1))
    assert not counter.till.take({"a": 1_000})
    counter.writer.note_refusal(counter.key)
    assert not counter.till.take({"a": 1_000})
    assert counter.work == (0, 0)
    with pytest.raises(RateLimitExceeded):
        counter.till.take({"a": 11_000})


def test_a_till_of_two_accounts_takes_nothing() -> None:
    """A family is charged in one step or not at all, which is more than a swap can do."""
    counter = Counter(account_of(), image_of(), account_of("p"))
    assert not counter.till.take({"a": 1_000})
    assert counter.order(a=1_000) == (None, None)
    assert counter.work == (0, 0)


def test_records_are_used_to_the_last_millisecond_of_the_first_to_expire() -> None:
    counter = Counter(account_of(), image_of())
    counter.clock.now_ms = NOW + FRESH_MS - 1
    assert counter.till.take({"a": 1_000})
    counter.clock.now_ms += 1
    assert not counter.till.take({"a": 1_000})
    assert counter.order(a=1_000) == (None, None)
    assert counter.work == (1, 0)


def test_a_record_that_is_withdrawn_ends_a_till_and_another_does_not() -> None:
    counter = Counter(account_of(), image_of())
    assert counter.till.take({"a": 1_000})
    counter.cache._withdraw(Entry(None, NOW + FRESH_MS, 1))
    assert counter.till.take({"a": 1_000})
    counter.cache._withdraw(counter.entries[1])
    assert not counter.till.take({"a": 1_000})
    assert counter.left == (8_000, 10_000)


@pytest.mark.parametrize(
    "image",
    [
        None,
        image_of(parent_id="p"),
        image_of(cascade=True),
        image_of(cv=2),
        image_of(b_b_cp=11_000),
        image_of(ttl=TTL + 999),
    ],
)
def test_a_bucket_that_is_not_as_planned_is_left_to_the_long_way(image: dict[str, Any] | None) -> None:
    """It is missing, of another family or of other numbers, or the write would remove its ``ttl``."""
    counter = Counter(account_of(), image)
    assert not counter.till.take({"a": 1_000})
    assert counter.order(a=1_000) == (None, None)
    assert counter.work == (0, 0)


def test_an_image_is_looked_at_anew_when_it_is_another() -> None:
    counter = Counter(account_of(), image_of())
    assert counter.till.take({"a": 1_000})
    counter.holds(image_of(cv=2))
    assert not counter.till.take({"a": 1_000})
    counter.holds(None)
    assert not counter.till.take({"a": 1_000})
    counter.holds(image_of(5_000))
    assert counter.till.take({"a": 1_000})
    assert counter.left == (4_000, 10_000)


def test_a_shard_whose_shares_were_cut_anew_is_left_to_the_long_way() -> None:
    counter = Counter(account_of(meter=Meter.COUNT), image_of(shard_count=2))
    assert counter.order(a=1_000) == (None, None)
    counter.holds(image_of(shard_count=1))
    outcome, _ = counter.order(a=1_000)
    assert outcome is not None
    assert outcome.applied
    assert counter.work == (0, 1)


@pytest.mark.parametrize(
    ("ttl", "taken"),
    [(None, True), (TTL, True), (TTL - 1, False), (float(TTL + 1), False), (TTL + 10**6, True)],
)
def test_a_bucket_is_taken_from_while_it_lasts_until_it_is_full(ttl: float | None, taken: bool) -> None:
    """Two fills ahead there is time enough; a second less, or no whole number, needs a write."""
    counter = Counter(account_of(ttl_fills=7), image_of() | ({} if ttl is None else {"ttl": ttl}))
    assert counter.till.take({"a": 1_000}) is taken
    assert counter.work == (int(taken), 0)


def test_a_refusal_is_repeated_as_long_as_it_is_remembered() -> None:
    """Exactly as the store would give it, on a store that swaps and on one that does not."""
    for swap in (True, False):
        counter = Counter(account_of(), image_of(1_000, 4_000))
        counter.writer.swap = counter.swap if swap else None
        assert not counter.till.take({"a": 2_000})
        counter.writer.note_refusal(counter.key)
        for needs, waits in (
            ({"a": 2_000}, {"a": 1.0}),
            ({"a": 1_500, "b": 4_000}, {"a": 0.5, "b": 0.0}),
            ({"b": 4_000, "a": 3_000}, {"b": 0.0, "a": 2.0}),
        ):
            with pytest.raises(RateLimitExceeded) as caught:
                counter.till.take(needs)
            assert {s.limit_name: s.retry_after_seconds for s in caught.value.statuses} == waits
        assert counter.work == (0, 0)
        counter.clock.now_ms += 1_001
        assert not counter.till.take({"a": 3_000})


def test_a_till_without_a_swap_takes_nothing_although_it_would_fit() -> None:
    counter = Counter(account_of(), image_of())
    counter.writer.swap = None
    assert not counter.till.take({"a": 1_000})
    counter.writer.note_refusal(counter.key)
    assert not counter.till.take({"a": 1_000})
    assert (counter.work, counter.left) == ((0, 0), (10_000, 10_000))


def test_an_order_is_one_write() -> None:
    counter = Counter(account_of(), image_of())
    outcome, interruption = counter.order(a=4_000, b=1_000)
    assert outcome is not None
    assert outcome.applied
    assert interruption is None
    assert counter.left == (6_000, 9_000)
    assert (counter.work, counter.cache.hits) == ((0, 1), 2)


def test_nothing_is_ordered_for_a_limit_that_is_not_there() -> None:
    counter = Counter(account_of(), image_of())
    assert counter.order(a=1_000, c=1_000) == (None, None)
    assert (counter.work, counter.cache.hits) == ((0, 0), 0)


def test_an_order_waits_for_a_bucket_that_is_busy() -> None:
    """What it is told then is told by the image that others left."""
    counter = Counter(account_of(), image_of())
    claim(counter.writer, counter.key)
    counter.writer.colour = Scripted(lambda: release(counter.writer, counter.key))
    outcome, _ = counter.order(a=8_000)
    assert outcome is not None
    assert outcome.applied
    assert (counter.work, counter.cache.hits) == ((0, 1), 2)
    claim(counter.writer, counter.key)
    counter.writer.colour = Scripted(lambda: release(counter.writer, counter.key))
    with pytest.raises(RateLimitExceeded):
        counter.order(a=3_000)
    assert counter.left == (2_000, 10_000)


def test_an_order_that_does_not_fit_raises_the_refusal() -> None:
    counter = Counter(account_of(), image_of(1_000))
    with pytest.raises(RateLimitExceeded) as caught:
        counter.order(a=3_000)
    assert caught.value.retry_after_seconds == 2.0
    assert (counter.work, counter.cache.hits) == ((0, 1), 0)
    assert counter.writer.refused_lately(counter.key)


def test_an_order_that_fits_by_the_time_of_the_reply_is_not_refused() -> None:
    counter = Counter(account_of(), image_of(1_000))
    counter.reply_takes_ms = 2_000
    outcome, _ = counter.order(a=3_000)
    assert outcome is not None
    assert not outcome.applied


def test_who_is_interrupted_is_told_so_and_not_that_it_does_not_fit() -> None:
    counter = Counter(account_of(), image_of(1_000))
    stop = KeyboardInterrupt()

    class Interrupted(Blocking):
        async def finish(self, coroutine: Any, *_: Any) -> tuple[Any, BaseException]:
            return await coroutine, stop

    counter.writer.colour = Interrupted()
    outcome, interruption = counter.order(a=3_000)
    assert outcome is not None
    assert not outcome.applied
    assert interruption is stop


def test_a_refusal_for_another_reason_is_not_remembered_as_want_of_tokens() -> None:
    """The limits have changed meanwhile, or the bucket is gone and the demand more than it could hold."""
    changed = Counter(account_of(), image_of())
    changed.shelf.items[changed.key] = image_of(cv=2)
    gone = Counter(account_of(), image_of())
    del gone.shelf.items[gone.key]
    for counter, need in ((changed, 1_000), (gone, 11_000)):
        outcome, _ = counter.order(a=need)
        assert outcome is not None
        assert not outcome.applied
        assert not counter.writer.refused_lately(counter.key)
        assert (counter.work, counter.cache.hits) == ((0, 1), 0)


def test_a_bucket_that_changed_under_an_order_is_tried_again_the_long_way() -> None:
    counter = Counter(account_of(), image_of())
    counter.shelf.items[counter.key] = image_of(cv=0)
    assert counter.order(a=1_000) == (None, None)
    assert not is_busy(counter.writer, counter.key)


def test_a_store_that_does_not_answer_says_nothing_of_the_bucket() -> None:
    counter = Counter(account_of(), image_of())
    counter.writer.note_refusal(counter.key)
    counter.fault = Fault.UNREACHABLE
    outcome, _ = counter.order(a=1_000)
    assert outcome is not None
    assert outcome.failure is not None
    assert counter.writer.refused_lately(counter.key)


def test_a_plan_stands_while_its_records_are_fresh_and_no_image_says_otherwise() -> None:
    counter = Counter(account_of(), image_of(), account_of("p"))
    counter.writer.remember({bucket_key("ns", "p", "r"): None})
    assert counter.till.stands(["a", "b"], NOW + FRESH_MS - 1)
    assert counter.cache.hits == 2
    assert not counter.till.stands(["a", "b"], NOW + FRESH_MS)
    assert not counter.till.stands(["a", "c"], NOW)
    assert counter.cache.hits == 2


@pytest.mark.parametrize("told", [True, False])
def test_a_bucket_that_is_missing_is_made_from_what_is_known_to_be_right(told: bool) -> None:
    """Its records may have been deleted since, unless the store would have told."""
    counter = Counter(account_of(), None)
    counter.cache.changes = 0 if told else None
    assert counter.till.stands(["a"], NOW) is told


@pytest.mark.parametrize(
    ("image", "stands"),
    [
        (image_of(), True),
        (None, True),
        (image_of(cv=0, b_a_cp=1), True),
        (image_of(cv=2), False),
        (image_of(parent_id="x"), False),
        (image_of(cascade=True), False),
    ],
)
def test_a_plan_falls_with_the_image_of_any_of_its_accounts(
    image: dict[str, Any] | None, stands: bool
) -> None:
    """Numbers that are behind are no reason: the next write brings them up to date."""
    counter = Counter(account_of(), image_of(), account_of("p"))
    assert not counter.till.stands(["a"], NOW), "nothing is known of the parent"
    counter.writer.remember({bucket_key("ns", "p", "r"): image})
    assert counter.till.stands(["a"], NOW) is stands
    assert counter.cache.hits == 2 * stands


def test_what_is_needed_is_looked_for_at_the_entity() -> None:
    """A parent need not have the limit."""
    bare = account_of("p")._replace(terms=Terms({}, 1))
    counter = Counter(account_of(), image_of(), bare)
    counter.writer.remember({bare.key: None})
    assert counter.till.stands(["a"], NOW)
