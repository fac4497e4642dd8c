"""Bookings in random worlds: who begins when obeys the theorem, in order, and nothing else is given away."""

import heapq
import random

import pytest

from tests.engine.booking_bugs import BOOKING_BUGS
from tests.engine.booking_worlds import FOR_EVER_MS, BookedWorld, Tin, Traits
from tests.simulation.bugs import planted
from zae_limiter.engine.account import Account, Terms
from zae_limiter.engine.booking import Booked, outcomes, schedule, turns
from zae_limiter.engine.bucket_writes import fitting, write_for
from zae_limiter.engine.law import Rate, accrued
from zae_limiter.engine.posting import Booking, Posting
from zae_limiter.repository_protocol import Item, Key, Outcome, apply
from zae_limiter.schema import booking_attributes, limit_attributes, number

NOW = 1_700_000_000_000
WORLDS = 30
KINDS = {
    "one by one": Traits(grouped=0.0),
    "in groups": Traits(),
    "debits after the fact": Traits(debits=0.3),
    "changes of limits": Traits(changes=0.03),
    "deletions": Traits(deletions=0.02),
    "quotas": Traits(quotas=0.6, debits=0.1),
    "quotas that change": Traits(quotas=0.6, changes=0.03),
}


@pytest.mark.parametrize("kind", KINDS)
def test_who_waits_begins_as_the_theorem_says(kind: str) -> None:
    """Whoever begins finds what it needs, in the order of asking, at the latest when it would have left."""
    begun = refused = undone = 0
    for seed in range(WORLDS):
        world = BookedWorld(seed, KINDS[kind]).run()
        assert world.wrong == [], f"{kind}, seed {seed}"
        begun, refused, undone = begun + len(world.begun), refused + world.refused, undone + world.undone
    assert min(begun, refused, undone) > WORLDS, "a world where nothing happens proves nothing"


class Bucket:
    """One bucket whose users see it as it is."""

    def __init__(self, **rates: Rate) -> None:
        self.account = Account(Key("p", "s"), "n", "e", "r", Terms(rates, 1))
        self.item: Item | None = None

    def post(self, posting: Posting, now_ms: int) -> Outcome | None:
        """``None`` if it does not fit."""
        if not fitting([posting], self.account.terms, self.item, now_ms)[0]:
            return None
        write = write_for(self.account, posting, self.item, now_ms)
        assert write is not None
        given = turns(self.account, [posting], self.item, now_ms) if posting.booking and posting.need else []
        outcome = apply(write, self.item)
        assert outcome.applied, f"{write} was refused by {self.item}"
        self.item = outcome.item
        assert outcome.item is not None
        return outcomes([posting], given, outcome.item, now_ms)[0] if given else outcome

    def book(self, now_ms: int, wait_ms: int = FOR_EVER_MS, /, **need: int) -> Booking | None:
        outcome = self.post(Posting(need, booking=Booking(now_ms + wait_ms)), now_ms)
        if outcome is None:
            return None
        assert isinstance(outcome, Booked)
        return outcome.booking


def furnished(rng: random.Random) -> tuple[Bucket, int]:
    """A bucket that some wait for, and the time."""
    rates = {
        name: Rate(rng.choice((5_000, 20_000)), rng.choice((1_000, 7_000)), rng.choice((333, 1_000, 60_000)))
        for name in ("a", "b")[: rng.choice((1, 2))]
    }
    bucket, now_ms = Bucket(**rates), NOW + rng.randrange(10**5)
    for _ in range(rng.randrange(1, 30)):
        now_ms += rng.choice((0, 1, 50, 2_000))
        need = {name: rng.randint(1, 5_000) for name in rates if rng.random() < 0.7} or {"a": 1_000}
        if bucket.post(Posting(need, booking=Booking(now_ms + rng.choice((100, 10**7)))), now_ms) is None:
            continue
        if rng.random() < 0.3:
            bucket.post(Posting(credit={name: amount // 2 for name, amount in need.items()}), now_ms)
    return bucket, now_ms


def test_cancellation_of_the_last_gives_its_place_back() -> None:
    """Who cancels and was the last to book leaves a bucket as if it had not come: its place is free again.

    Only what a limit would have lost by flowing over until then may be lost, if others wait for it, too.
    """
    undone = 0
    for seed in range(300):
        rng = random.Random(seed)
        bucket, now_ms = furnished(rng)
        need = {name: rng.randint(1, 5_000) for name in bucket.account.terms.rates}
        before = bucket.item or {}
        booked = bucket.book(now_ms, **need)
        assert booked is not None
        if booked.latest_ms <= now_ms:
            continue
        undone += 1
        left_ms = rng.randrange(now_ms, booked.latest_ms)
        bucket.post(Posting(credit=need, booking=booked), left_ms)
        after = bucket.item or {}
        for name in need:
            tokens, names = limit_attributes(name).tk, booking_attributes(name)
            found, left = number(before, tokens), number(after, tokens)
            assert left == found or (left < found and names.high in before), f"seed {seed}"
            assert number(after, names.back) <= number(before, names.back), f"seed {seed}"
        again = bucket.book(left_ms, **need)
        assert again is not None
        assert again.latest_ms == booked.latest_ms, f"seed {seed}: {again} in the place of {booked}"
    assert undone > 100


def test_refused_wait_is_told_to_the_millisecond() -> None:
    """Who would wait a millisecond longer than is refused gets the slot, and it is what was told."""
    for seed in range(300):
        rng = random.Random(seed)
        bucket, now_ms = furnished(rng)
        need = {name: rng.randint(1, 5_000) for name in bucket.account.terms.rates}
        posting = Posting(need, booking=Booking(FOR_EVER_MS))
        (turn,) = schedule([posting], bucket.account.terms, bucket.item, now_ms)
        if turn.at_ms > now_ms:
            before = bucket.item
            assert bucket.book(now_ms, turn.at_ms - now_ms - 1, **need) is None
            assert bucket.item is before
            booked = bucket.book(now_ms, turn.at_ms - now_ms, **need)
            assert booked is not None, f"seed {seed}"
            assert booked.latest_ms == turn.at_ms


@pytest.mark.parametrize(("workers", "capacity"), [(40, 1_000_000), (400, 2_000_000)])
@pytest.mark.parametrize("returned", [0.0, 0.5])
def test_all_of_the_rate_is_used(workers: int, capacity: int, returned: float) -> None:
    """When there are always some who wait, work takes all that accrues, also if half of it comes back.

    That holds as long as the bucket could hold what comes back while the last in line waits.
    """
    rate, rng, need, seconds = Rate(capacity, 100_000, 1_000), random.Random(1), 2_000, 60
    bucket, tin, begun = Bucket(a=rate), Tin(rate, 0, NOW), 0
    bucket.post(Posting(debit={"a": capacity}, need={"a": 1}), NOW)
    events = [(NOW + rng.randrange(50), who, "ask") for who in range(workers)]
    heapq.heapify(events)
    warm_ms, until_ms = NOW + seconds * 250, NOW + seconds * 1_000
    while events[0][0] < until_ms:
        now_ms, who, what = heapq.heappop(events)
        tin.advance(now_ms)
        if what == "ask":
            booked = bucket.book(now_ms, a=need)
            assert booked is not None
            heapq.heappush(events, (booked.latest_ms, who, "begin"))
        elif what == "begin":
            tin.level -= need
            assert tin.level >= 0, f"{tin} at {now_ms - NOW} ms"
            begun += (need - int(need * returned)) * (now_ms > warm_ms)
            heapq.heappush(events, (now_ms + 100, who, "end"))
        else:
            back = int(need * returned)
            tin.pour(back)
            if back:
                bucket.post(Posting(credit={"a": back}), now_ms)
            heapq.heappush(events, (now_ms + 1, who, "ask"))
    assert begun >= 0.97 * (accrued(rate, until_ms) - accrued(rate, warm_ms))


@pytest.mark.parametrize("bug", BOOKING_BUGS)
def test_planted_bug_is_found(bug: str) -> None:
    """A law that is broken in one place does not survive sixty worlds."""
    with planted(bug, BOOKING_BUGS):
        worlds = (BookedWorld(seed, KINDS["one by one"]).run() for seed in range(60))
        found = next((world.wrong for world in worlds if world.wrong), [])
    assert any("stands at" in promise or "overtook" in promise for promise in found)
