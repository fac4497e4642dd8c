"""Seats against the simplest model there is: a set of holders, each with the instant until which it holds."""

from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from tests.engine.fake_store import NOW
from zae_limiter.engine import seating
from zae_limiter.engine.account import Account, Terms
from zae_limiter.engine.bucket_view import level
from zae_limiter.engine.bucket_writes import write_for
from zae_limiter.engine.fitting import fitting
from zae_limiter.engine.law import Rate
from zae_limiter.engine.posting import Posting, merged
from zae_limiter.engine.seats import (
    PLACES_MAX,
    TICK_MS,
    Place,
    SeatMove,
    due_ms,
    held,
    places,
    until,
    value_of,
)
from zae_limiter.models.accruals import CONCURRENT
from zae_limiter.repository_protocol import Item, apply
from zae_limiter.schema import bucket_key

NAME = "parallel"
TRIES_MAX = 4
RPM = Rate(1_000_000, 1_000_000, 60_000)


def rate_of(capacity: int, hold_seconds: int) -> Rate:
    return Rate(capacity * 1000, capacity * 1000, hold_seconds * 1000, CONCURRENT)


class Holder:
    def __init__(self, count: int, held_until: int, since_ms: int, hold_ms: int) -> None:
        self.count, self.until = count, held_until
        self.sure_ms, self.latest_ms = since_ms + hold_ms, since_ms + hold_ms * 9 // 8 + 1
        """Until when it surely holds, and by when its seat is surely back unless it renews."""


class World:
    """One bucket, clients who may have an old image of it, and the model beside it."""

    def __init__(self, capacity: int, hold_seconds: int) -> None:
        self.now_ms, self.version = NOW, 1
        self.rate: Rate | None = rate_of(capacity, hold_seconds)
        self.image: Item | None = None
        self.seen: dict[int, Item | None] = {0: None, 1: None, 2: None}
        self.holders: list[Holder] = []
        self.left: list[Holder] = []
        self.taken = self.refunded = 0

    @property
    def account(self) -> Account:
        rates = {"rpm": RPM} if self.rate is None else {NAME: self.rate, "rpm": RPM}
        return Account(bucket_key("ns", "e", "r"), "ns", "e", "r", Terms(rates, self.version, 7))

    def write(self, client: int, posting: Posting) -> bool | None:
        """Whether a posting got through; ``None`` if it was moot. A wrong belief is corrected and retried."""
        for _ in range(TRIES_MAX):
            fits = all(fitting([posting], self.account.terms, self.seen[client], self.now_ms))
            if not fits and self.seen[client] == self.image:
                return False
            write = write_for(self.account, posting, self.seen[client], self.now_ms)
            if write is None:
                return None
            outcome = apply(write, self.image)
            self.seen[client] = outcome.item
            if outcome.applied:
                self.image = outcome.item
                return True
        raise AssertionError(f"{posting} was refused {TRIES_MAX} times")

    def take(self, client: int, count: int) -> None:
        if self.rate is None:
            return
        at = until(self.rate, self.now_ms)
        posting = Posting({NAME: count * 1000, "rpm": 1000}, seats=(SeatMove(NAME, at, count),))
        sure = sum(holder.count for holder in self.holders if holder.sure_ms > self.now_ms)
        most = sum(holder.count for holder in self.holders if holder.latest_ms > self.now_ms)
        if self.write(client, posting):
            assert sure + count <= self.rate.capacity_milli // 1000, "more at work than there are seats"
            self.holders.append(Holder(count, at, self.now_ms, self.rate.refill_period_ms))
            self.taken += count
        else:
            assert most + count > self.rate.capacity_milli // 1000, "refused, although there was a seat"

    def leave(self, client: int, which: int, *, is_refund: bool) -> None:
        """Give back, or try to: it may be too late, and it may be the second time."""
        if not self.holders and not self.left:
            return
        holder = (self.holders + self.left)[which % len(self.holders + self.left)]
        before = self.total
        self.write(client, Posting(seats=(SeatMove(NAME, holder.until, -holder.count, is_refund),)))
        if holder in self.holders and holder.sure_ms > self.now_ms:
            assert self.total == before - holder.count
            self.refunded += holder.count if is_refund and self.rate is not None else 0
            self.holders.remove(holder)
        elif holder in self.holders:  # too late perhaps: nobody knows, but it is not there twice
            self.refunded += before - self.total if is_refund and self.rate is not None else 0
            self.holders.remove(holder)

    def renew(self, client: int, which: int) -> None:
        if not self.holders or self.rate is None:
            return
        holder = self.holders[which % len(self.holders)]
        later = until(self.rate, self.now_ms)
        move = SeatMove(NAME, holder.until, -holder.count, later=later)
        renewed = self.write(client, Posting(seats=(move,)))
        if holder.sure_ms > self.now_ms:
            assert renewed, "a seat that is held was not renewed"
        if renewed:
            self.holders.remove(holder)
            self.holders.append(Holder(holder.count, later, self.now_ms, self.rate.refill_period_ms))
        else:
            self.holders.remove(holder)

    @property
    def total(self) -> int:
        return sum(place.taken for place in places(self.image or {}, NAME))

    def change(self, rate: Rate | None) -> None:
        self.rate, self.version = rate, self.version + 1

    def check(self) -> None:
        image = self.image
        if image is None or "b_parallel_tk" not in image:
            return
        assert image["b_parallel_tk"] + 1000 * self.total == image["b_parallel_cp"]
        assert image["b_parallel_tc"] == 1000 * (self.taken - self.refunded)
        assert image["ttl"] * 1000 >= max(  # type: ignore[operator]
            (place.until * TICK_MS for place in places(image, NAME) if place.taken), default=0
        )


steps = st.lists(
    st.one_of(
        st.tuples(st.just("take"), st.integers(0, 2), st.integers(1, 3)),
        st.tuples(st.just("leave"), st.integers(0, 2), st.integers(0, 9), st.booleans()),
        st.tuples(st.just("renew"), st.integers(0, 2), st.integers(0, 9)),
        st.tuples(st.just("pass"), st.sampled_from((0, 1, 124, 125, 999, 1_000, 2_500, 20_000))),
        st.tuples(st.just("change"), st.integers(1, 8), st.sampled_from((1, 8, 10))),
    ),
    max_size=60,
)


def lived(world: World, story: list[Any]) -> None:
    for what, *rest in story:
        if what == "take":
            world.take(*rest)
        elif what == "leave":
            world.leave(*rest[:2], is_refund=rest[2])
        elif what == "renew":
            world.renew(*rest)
        elif what == "change":
            world.change(rate_of(*rest))
        else:
            world.now_ms += rest[0]
        world.check()


@given(st.integers(1, 6), st.sampled_from((1, 8, 10)), steps)
@settings(max_examples=400)
def test_never_more_at_work_than_seats(capacity: int, hold_seconds: int, story: list[Any]) -> None:
    """Whatever clients do and believe: never too many, nobody is refused a seat, none comes back twice."""
    world = World(capacity, hold_seconds)
    lived(world, story)
    if world.image is None or world.rate is None:
        return
    # Everybody crashes. An eighth of a hold later than it, all seats are there for the next who asks.
    longest_ms = max((h.latest_ms for h in world.holders), default=world.now_ms)
    world.now_ms = max(world.now_ms, longest_ms)
    at = level(world.account.terms, NAME, world.image, world.now_ms)
    assert at.balance(world.now_ms) == world.rate.capacity_milli


@given(st.integers(1, 6), st.sampled_from((1, 8, 10)), steps, st.integers(1, 7))
@settings(max_examples=200)
def test_a_refusal_tells_when_a_seat_surely_comes_back(
    capacity: int, hold_seconds: int, story: list[Any], need: int
) -> None:
    """At that millisecond so many are free, if nobody takes or returns one; a millisecond earlier not."""
    world = World(capacity, hold_seconds)
    lived(world, story)
    assert world.rate is not None
    terms, now_ms = world.account.terms, world.now_ms
    wait_ms = level(terms, NAME, world.image, now_ms).retry_after_ms(need * 1000, now_ms)
    if need * 1000 > world.rate.capacity_milli:
        assert wait_ms == float("inf")
        return
    at_ms = now_ms + int(wait_ms)
    assert level(terms, NAME, world.image, at_ms).balance(at_ms) >= need * 1000
    if wait_ms:
        assert level(terms, NAME, world.image, at_ms - 1).balance(at_ms - 1) < need * 1000


@given(st.integers(1, 86_400), st.integers(0, 10**13))
def test_how_long_a_seat_is_held(hold_seconds: int, now_ms: int) -> None:
    """For ``hold``, and an eighth of it longer at most; it is renewed when half of that is over."""
    rate = rate_of(1, hold_seconds)
    held_ms = until(rate, now_ms) * TICK_MS - now_ms
    assert hold_seconds * 1000 <= held_ms < hold_seconds * 1125
    assert 0.375 * hold_seconds <= (due_ms(rate, until(rate, now_ms)) - now_ms) / 1000 <= hold_seconds / 2


def test_a_place_is_another_one_by_now() -> None:
    """Who gives back late, and remembers the place as it was, takes nothing off those who have it now."""
    world = World(2, 1)
    world.take(0, 1)
    late = world.holders.pop()
    world.now_ms += 60_000
    world.take(1, 2)
    assert world.write(0, Posting(seats=(SeatMove(NAME, late.until, -1),))) is False
    assert world.total == 2
    world.check()


def test_a_group_takes_and_returns_in_one_write() -> None:
    """Several who take, and several who give back, are one write."""
    world = World(5, 8)
    for _ in range(3):
        world.take(0, 1)
    at = world.holders[0].until
    back = Posting(seats=(SeatMove(NAME, at, -1),))
    taking = Posting({NAME: 1000}, seats=(SeatMove(NAME, at, 1),))
    assert world.write(0, merged([back, taking, taking, back]))
    assert world.total == 3
    assert world.image is not None
    assert world.image["b_parallel_tk"] == 2000


def test_a_group_in_which_somebody_is_late() -> None:
    """A seat that lapsed is free for who takes one; who gives it back in the same write frees it no more."""
    world = World(2, 8)
    world.take(0, 2)
    late = world.holders.pop().until
    world.now_ms += 10_000
    back = Posting(seats=(SeatMove(NAME, late, -1, is_refund=True),))
    taking = Posting({NAME: 2000}, seats=(SeatMove(NAME, until(rate_of(2, 8), world.now_ms), 2),))
    assert world.write(0, merged([back, taking]))
    assert world.image is not None
    assert (world.total, world.image["b_parallel_tk"], world.image["b_parallel_tc"]) == (2, 0, 3000)


def test_two_places_of_one_instant() -> None:
    """Two clients who know different images make a place for one instant at once: both count, and empty."""
    world = World(9, 8)
    world.take(0, 1)
    world.now_ms += 2_000
    before = world.image
    world.seen[1] = {name: value for name, value in (before or {}).items() if name != "b_parallel_h0"}
    world.take(0, 2)
    world.seen[1] = {**before, "b_parallel_h1": 1, "b_parallel_h2": None}  # type: ignore[dict-item]
    world.image = {**world.image, "b_parallel_h5": value_of(world.holders[-1].until, 3)}  # type: ignore[dict-item]
    world.image["b_parallel_tk"] -= 3_000  # type: ignore[index,operator]
    at = world.holders[-1].until
    assert world.write(2, Posting(seats=(SeatMove(NAME, at, -4),)))
    assert [place.taken for place in places(world.image, NAME) if place.until == at] == [0, 1]
    assert world.image["b_parallel_tk"] == 7_000  # type: ignore[index]


def test_a_lower_limit_keeps_who_is_at_work() -> None:
    """7 of 10 are held and the limit becomes 3: nobody comes while 3 are left; a raise counts at once."""
    world = World(10, 10)
    for _ in range(7):
        world.take(0, 1)
    world.change(rate_of(3, 10))
    for _ in range(4):
        world.take(1, 1)
        world.leave(1, 0, is_refund=False)
    assert len(world.holders) == 3
    world.take(1, 1)
    assert len(world.holders) == 3
    world.leave(1, 0, is_refund=False)
    world.take(1, 1)
    assert len(world.holders) == 3
    world.change(rate_of(5, 10))
    world.take(2, 2)
    assert sum(holder.count for holder in world.holders) == 5
    world.check()


def test_who_held_a_seat_before_the_limit_was_taken_away_holds_it_when_it_is_back() -> None:
    """A limit that goes and comes back counts those who are still at work, and each of them once."""
    world = World(3, 10)
    world.take(0, 2)
    rate, world.rate = world.rate, None
    world.version += 1
    assert world.write(0, Posting({"rpm": 1000}))
    assert world.image is not None
    assert "b_parallel_tk" not in world.image
    world.change(rate)
    world.take(1, 2)
    assert [holder.count for holder in world.holders] == [2]
    world.take(1, 1)
    world.leave(0, 0, is_refund=False)
    assert held(world.image, NAME, world.now_ms) == 1
    assert world.image["b_parallel_tk"] == 2000


def test_another_kind_of_limit_by_the_same_name() -> None:
    """A rate that becomes a limit of concurrency starts with all seats free, and the other way round full."""
    world = World(3, 10)
    world.take(0, 3)
    world.change(Rate(3000, 3000, 60_000))
    assert world.write(0, Posting({NAME: 3000}))
    world.leave(0, 0, is_refund=True)
    assert world.image is not None
    assert world.image["b_parallel_tk"] == 0
    world.change(rate_of(2, 10))
    assert world.write(0, Posting({NAME: 2000}, seats=(SeatMove(NAME, until(rate_of(2, 10), NOW), 2),)))
    assert world.write(0, Posting(credit={NAME: 1000})) is None, "what a rate gave is no seat"
    assert world.image["b_parallel_tk"] == 0


def test_no_place_is_left() -> None:
    """So many callers with so many holds: who finds no place is refused until one is over."""
    world = World(99, 1)
    for hold_seconds in range(20, 99):
        if len(places(world.image or {}, NAME)) < PLACES_MAX:
            world.change(rate_of(99, hold_seconds))
            world.take(0, 1)
    world.change(rate_of(99, 1000))
    posting = Posting({NAME: 1000}, seats=(SeatMove(NAME, until(rate_of(99, 1000), NOW), 1),))
    assert world.write(0, posting) is False
    wait_ms = level(world.account.terms, NAME, world.image, NOW).retry_after_ms(1000, NOW)
    assert 20_000 <= wait_ms <= 22_500
    world.now_ms += int(wait_ms)
    assert world.write(0, posting)


@pytest.mark.parametrize(
    ("module", "name", "bug"),
    [
        (seating, "take_off", lambda *_: True),
        (seating, "lapsed", lambda *_: []),
        (Place, "is_over", lambda *_: False),
        (Place, "is_over", lambda place, now_ms: place.until * TICK_MS - 1000 <= now_ms),
    ],
    ids=[
        "returned twice",
        "made of nothing",
        "never reclaimed",
        "reclaimed too early",
    ],
)
def test_what_is_planted_is_found(module: Any, name: str, bug: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The model sees each of the ways in which seats can be miscounted."""
    monkeypatch.setattr(module, name, bug)

    @given(st.integers(1, 6), st.sampled_from((1, 8, 10)), steps)
    @settings(max_examples=2_000, database=None, phases=[Phase.generate])
    def lives(capacity: int, hold_seconds: int, story: list[Any]) -> None:
        world = World(capacity, hold_seconds)
        lived(world, story)
        world.now_ms = max([world.now_ms, *(h.latest_ms for h in world.holders)])
        at = level(world.account.terms, NAME, world.image, world.now_ms)
        assert world.rate is None or at.balance(world.now_ms) == world.rate.capacity_milli

    with pytest.raises(BaseException):  # noqa: B017 - an assertion, or several of them
        lives()
