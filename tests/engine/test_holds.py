"""Demands on two buckets beside other processes: nobody is refused because of tokens that are only held."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from tests.engine.fake_store import (
    KEY,
    OTHER,
    RATE,
    Store,
    account_of,
    calls,
    demand,
    image_of,
    take,
    waits,
    writer_of,
)
from zae_limiter import RateLimitExceeded
from zae_limiter.engine.account import Account, Meter
from zae_limiter.engine.group_commit import BucketWriter
from zae_limiter.engine.seen_buckets import PROCESSES_TOLD_APART
from zae_limiter.engine.take import LOOKS_MAX
from zae_limiter.repository_protocol import Key, Outcome, Write
from zae_limiter.schema import HOLDS, bucket_key, number

BOTH = (account_of(), account_of(OTHER))
SHARD = bucket_key("ns", "e", "r", 1)


def mark(process: int, place: int) -> int:
    """The mark that a process leaves in a place."""
    return (5 * PROCESSES_TOLD_APART + process) * len(HOLDS) + place


def be_process(writer: BucketWriter, number: int) -> None:
    """Let a writer have the number and the place of a certain process."""
    writer._number._made[None] = number
    writer._place = 7


@pytest.mark.parametrize(("first", "second"), [(5_000, 1_000), (1_000, 5_000)])
def test_who_is_believed_to_refuse_is_asked_first(first: int, second: int) -> None:
    """Then nothing has to be taken from the other, where it would be missing for a moment."""
    store = Store(e=image_of(first), f=image_of(second))
    with pytest.raises(RateLimitExceeded) as caught:
        take(writer_of(store), demand(2_500), demand(2_500, BOTH[1]))
    assert calls(store) == [("write_each", 1)]
    assert store.calls[0][1][0].key == (KEY if first < second else OTHER)
    assert [wait for *_, wait in waits(caught.value)] == ([1.5, 0.0] if first < second else [0.0, 1.5])


def test_a_wrong_belief_that_somebody_refuses_costs_one_more_call() -> None:
    """The rest is asked for when the first has answered."""
    store = Store(e=image_of(5_000), f=image_of(5_000))
    writer = writer_of(store)
    writer.remember({OTHER: image_of(0)})
    take(writer, demand(2_500), demand(2_500, BOTH[1]))
    assert [[w.key for w in given] for _, given in store.calls] == [[OTHER], [KEY]]


HELD = {"hold_0": mark(1, 0)}
"""Somebody else's mark; this process has the tag of another."""


def test_a_refusal_that_may_rest_on_a_hold_is_looked_at_again() -> None:
    """Another process took from this bucket together with another one, and gives back what it only held."""
    store = Store(e=image_of(0, **HELD))
    writer = writer_of(store)
    be_process(writer, 7)

    async def given_back(_: float) -> None:
        store.shelf.items[KEY] = image_of(5_000, **HELD)

    writer.colour.sleep = given_back  # type: ignore[method-assign]
    take(writer, demand(5_000))
    assert calls(store) == [("write_each", 1), ("batch_get", 1), ("write_each", 1)]
    assert not writer.refused_lately(KEY)


def test_a_refusal_is_told_when_nobody_gives_anything_back() -> None:
    """It was looked at twice; such a refusal is not remembered, one that has stood for a while is."""
    store = Store(e=image_of(0, **HELD))
    writer = writer_of(store)
    be_process(writer, 7)
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    writer.colour.sleep = sleep  # type: ignore[method-assign]
    with pytest.raises(RateLimitExceeded):
        take(writer, demand(5_000))
    assert len(slept) == LOOKS_MAX
    assert not writer.refused_lately(KEY)
    store.clock.advance(0.1)
    with pytest.raises(RateLimitExceeded):
        take(writer, demand(5_000))
    assert len(slept) == LOOKS_MAX
    assert writer.refused_lately(KEY)


def test_nobody_is_refused_under_limits_that_its_bucket_has_left_meanwhile() -> None:
    """Another acquire of this process has found it under newer ones: this one asks again under these."""
    store = Store(e=image_of(0))
    writer, more = writer_of(store), RATE._replace(capacity_milli=30_000)
    renewed = account_of(version=2, rate=more)
    writer.hold(KEY)

    async def seen(_: float) -> None:
        image = image_of(24_000, cv=2, b_a_cp=30_000)
        store.shelf.items[KEY] = image
        writer.remember({KEY: image})
        writer.let_go(KEY)

    async def renew(_: Account) -> Account:
        return renewed

    writer.colour.sleep = seen  # type: ignore[method-assign]
    (taken,) = take(writer, demand(12_000), renew=renew)
    assert (taken.account.terms, taken.amounts) == (renewed.terms, {"a": 12_000})
    assert store.held() == 12_000


@pytest.mark.parametrize("version", [1, 2])
def test_a_refusal_stands_whatever_another_bucket_has_seen(version: int) -> None:
    """Terms are read again for the other one, once; whether that brings newer ones or not."""
    store, renewed = Store(e=image_of(0), f=image_of(5_000, cv=2)), list[Key]()

    async def renew(account: Account) -> Account:
        renewed.append(account.key)
        return account_of(account.key, version=version)

    with pytest.raises(RateLimitExceeded):
        take(writer_of(store), demand(2_500), demand(2_500, BOTH[1]), renew=renew)
    assert renewed == [OTHER]


def test_a_hold_of_this_process_is_no_reason_for_doubt() -> None:
    """Its own demands stand in line, so none of them is in the way of another."""
    store = Store(e=image_of(0, hold_7=mark(7, 7)))
    writer = writer_of(store)
    be_process(writer, 7)
    with pytest.raises(RateLimitExceeded):
        take(writer, demand(5_000))
    assert calls(store) == [("write_each", 1)]


def test_whoever_was_partly_refused_lets_go_before_it_looks_again() -> None:
    """And then takes all at once, so that of two who hold what the other needs one gets both."""
    store = Store(e=image_of(1_000), f=image_of(0, **HELD))
    writer = writer_of(store)
    be_process(writer, 7)
    writer.remember({OTHER: image_of(1_000)})

    async def given_back(_: float) -> None:
        assert store.tokens(KEY) == 1_000
        store.shelf.items[OTHER] = image_of(1_000, **HELD)

    writer.colour.sleep = given_back  # type: ignore[method-assign]
    take(writer, demand(1_000), demand(1_000, BOTH[1]))
    assert [verb for verb, _ in store.calls] == ["write_each", "write_each", "batch_get", "transact_write"]
    assert [store.tokens(key) for key in (KEY, OTHER)] == [0, 0]


def test_where_transactions_cost_nothing_nobody_holds_anything() -> None:
    store = Store(e=image_of(5_000), f=image_of(1_000))
    store.inner.capabilities = replace(store.capabilities, atomic_batches=True)  # type: ignore[misc]
    writer = writer_of(store)
    be_process(writer, 7)
    writer.remember({OTHER: image_of(5_000)})
    with pytest.raises(RateLimitExceeded):
        take(writer, demand(2_500), demand(2_500, BOTH[1]))
    assert calls(store) == [("transact_write", 2)]
    take(writer, demand(1_000), demand(1_000, BOTH[1]))
    assert calls(store) == [("transact_write", 2)] * 2
    assert not any("hold_7" in item for item in store.shelf.items.values())


def test_processes_do_not_hide_each_others_marks() -> None:
    """Who finds the mark of another in its place takes one that is free, and still knows its own marks."""
    store = Store(e=image_of(5_000, hold_7=mark(15, 7)), f=image_of(5_000))
    writer = writer_of(store)
    be_process(writer, 7)
    take(writer, demand(1_000), demand(1_000, BOTH[1]))
    item = store.shelf.items[KEY]
    assert item["hold_7"] == mark(15, 7)
    assert item["hold_0"] == store.shelf.items[OTHER]["hold_0"]
    assert writer._is_own(number(item, "hold_0"))
    assert not writer._is_own(number(item, "hold_7"))


def test_acquires_of_one_process_wait_for_what_another_holds() -> None:
    """A hold of this process is over when the acquire is, so nobody looks at the store for that."""
    store = Store(e=image_of(0))
    writer = writer_of(store)
    writer.hold(KEY)

    async def given_back(_: float) -> None:
        store.shelf.items[KEY] = image_of(5_000)
        writer.remember({KEY: image_of(5_000)})
        writer.let_go(KEY)

    writer.colour.sleep = given_back  # type: ignore[method-assign]
    take(writer, demand(5_000))
    assert calls(store) == [("write_each", 1)] * 2
    assert not writer.is_held_here(KEY)


def test_a_forked_child_is_another_process() -> None:
    """What its parent holds it does not take for its own."""
    writer = writer_of(Store(e=image_of()))
    before = writer.new_hold([])
    assert writer._is_own(before)
    writer._number.forget()  # as in a child
    be_process(writer, before // len(HOLDS) % PROCESSES_TOLD_APART + 1)
    assert not writer._is_own(before)


class Robbed(Store):
    """A store in which somebody else empties a shard before each transaction."""

    async def transact_write(self, writes: Sequence[Write]) -> list[Outcome]:
        self.shelf.items[SHARD] = {**self.shelf.items[SHARD], "b_a_tk": 0}
        return await super().transact_write(writes)


def test_what_could_not_be_gathered_is_not_held() -> None:
    """Who took nothing from the shards of one of two buckets does not wait for itself to give it back."""
    half = {"b_a_cp": 5_000, "b_a_ra": 500, "shard_count": 2, "b_a_sc": 2}
    store = Robbed(e=image_of(3_000, **half), f=image_of())
    store.shelf.items[SHARD] = image_of(2_000, **half)
    writer, sleeps = writer_of(store), list[float]()

    async def sleep(seconds: float) -> None:
        sleeps.append(seconds)

    writer.colour.sleep = sleep  # type: ignore[method-assign]
    with pytest.raises(RateLimitExceeded):
        take(writer, demand(4_000, account_of(meter=Meter.COUNT)), demand(1_000, BOTH[1]))
    assert "transact_write" in [verb for verb, _ in store.calls]
    assert (sleeps, store.tokens(OTHER)) == ([], 10_000)
    assert not writer.is_held_here(KEY)
