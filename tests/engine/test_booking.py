"""Bookings in random worlds: who begins when obeys the theorem, in order, and nothing else is given away."""

import heapq
import os
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest

from tests.engine.booking_bugs import BOOKING_BUGS
from tests.engine.booking_worlds import FOR_EVER_MS, BookedWorld, Tin, Traits
from tests.simulation.bugs import planted
from zae_limiter.engine.account import Account, Terms
from zae_limiter.engine.booking import Booked, outcomes, schedule, turns
from zae_limiter.engine.bucket_view import level
from zae_limiter.engine.bucket_writes import write_for
from zae_limiter.engine.fitting import fitting
from zae_limiter.engine.given_up import GivenUpBookings
from zae_limiter.engine.law import Rate, accrued, balance, gain
from zae_limiter.engine.posting import Booking, Posting, merged
from zae_limiter.engine.rebase import rebase
from zae_limiter.exceptions import RateLimiterUnavailable
from zae_limiter.repository_protocol import Item, Key, Outcome, Update, apply
from zae_limiter.schema import BOOKED, booking_attributes, number

NOW = 1_700_000_000_000
WORLDS = int(os.environ.get("BOOKED_WORLDS", "12"))
"""Of each kind; `make nightly` has more."""
KINDS = {
    "one by one": Traits(grouped=0.0),
    "in groups": Traits(),
    "debits after the fact": Traits(debits=0.3),
    "changes of limits": Traits(changes=0.03),
    "deletions": Traits(deletions=0.02),
    "quotas": Traits(quotas=0.6, debits=0.1),
    "quotas that change": Traits(quotas=0.6, changes=0.03),
    "operators who give": Traits(gifts=0.1, debits=0.2),
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

    def book_all(self, postings: Sequence[Posting], now_ms: int) -> list[Booking]:
        """Book several by one write."""
        assert self.item is not None
        whole = merged(postings) if len(postings) > 1 else postings[0]
        write = write_for(self.account, whole, self.item, now_ms)
        given = turns(self.account, postings, self.item, now_ms)
        assert write is not None
        done = apply(write, self.item)
        assert done.applied, f"{write} was refused by {self.item}"
        self.item = done.item
        assert done.item is not None
        told = outcomes(postings, given, done.item, now_ms)
        return [outcome.booking for outcome in told if isinstance(outcome, Booked)]

    def give_back(self, posting: Posting, given_up: GivenUpBookings, now_ms: int) -> None:
        assert self.item is not None
        given = given_up.giving_back(self.account, posting, self.item, now_ms)
        assert given is not None
        done = apply(given.write, self.item)
        assert done.applied
        given_up.learn(given.write, done, now_ms)
        self.item = done.item


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


def standings(bucket: Bucket, item: Item, now_ms: int) -> dict[str, tuple[int, int]]:
    """What there is of each limit, and what came back to it, as the next write finds it."""
    found = {name: level(bucket.account.terms, name, item, now_ms) for name in bucket.account.terms.rates}
    return {name: (at.tokens_milli, at.back_milli) for name, at in found.items()}


def test_cancellation_of_the_last_gives_its_place_back() -> None:
    """Who cancels and was the last to book leaves a bucket as if it had not come: its place is free again."""
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
        there = standings(bucket, bucket.item or {}, now_ms)
        assert there == standings(bucket, before, now_ms), f"seed {seed}"
        again = bucket.book(left_ms, **need)
        assert again is not None
        assert again.latest_ms == booked.latest_ms, f"seed {seed}: {again} in the place of {booked}"
    assert undone > 100


def test_all_who_give_up_leave_nothing_behind() -> None:
    """Whoever booked, one by one or several in one write: when all have given up, nobody has ever asked.

    That is so in whatever order they leave, and also if a limit that they need besides flows over until then.
    """
    left = 0
    for seed in range(300):
        rng, given_up = random.Random(seed), GivenUpBookings()
        bucket, now_ms = furnished(rng)
        before, leaving = bucket.item or {}, list[Posting]()
        for _ in range(rng.randint(1, 4)):
            needs = [
                {name: rng.randint(1, 5_000) for name in bucket.account.terms.rates if rng.random() < 0.8}
                or {"a": 1_000}
                for _ in range(rng.randint(1, 3))
            ]
            postings = [Posting(need, booking=Booking(FOR_EVER_MS)) for need in needs]
            leaving += [
                Posting(credit=n, booking=b)
                for n, b in zip(needs, bucket.book_all(postings, now_ms), strict=True)
            ]
        if any(it.booking is None or it.booking.latest_ms <= now_ms for it in leaving):
            continue
        rng.shuffle(leaving)
        for posting in leaving:
            bucket.give_back(posting, given_up, now_ms)
        left += len(leaving)
        there = standings(bucket, bucket.item or {}, now_ms)
        assert there == standings(bucket, before, now_ms), f"seed {seed}"
        assert bucket.account.key not in given_up
    assert left > 300


@pytest.mark.parametrize(
    ("taken", "need", "back"),
    [
        pytest.param(
            {"slow": 35_000},
            {"fast": 1, "slow": 10_000},
            {"slow": 7_000},
            id="it flows over until a far slot",
        ),
        pytest.param(
            *({"fast": 10_000, "slow": 6_000}, {"fast": 2_000, "slow": 10_000}, {"slow": 3_000}),
            id="another limit decides the turn",
        ),
    ],
)
def test_what_came_back_unseen_spoils_a_booking(
    taken: dict[str, int], need: dict[str, int], back: dict[str, int]
) -> None:
    """A slot that has come near cuts nothing off, and what is noted of a limit is all that it has."""
    bucket = Bucket(fast=Rate(10_000, 35_000, 60_000), slow=Rate(40_000, 100_000, 86_400_000))
    bucket.post(Posting(taken), NOW)
    stale = bucket.item
    write = write_for(bucket.account, Posting(need, booking=Booking(FOR_EVER_MS)), stale, NOW)
    bucket.post(Posting(credit=back), NOW)
    assert write is not None
    assert apply(write, stale).applied
    assert not apply(write, bucket.item).applied


def test_nobody_is_booked_beyond_the_end_of_a_line_that_has_moved_back() -> None:
    """Who was the last and gives up takes the end of the line along; who booked behind is in line still."""
    bucket, given_up = Bucket(calls=Rate(10_000, 10_000, 10_000)), GivenUpBookings()
    bucket.post(Posting(debit={"calls": 20_000}), NOW)
    leaving = Posting(credit={"calls": 1_000}, booking=bucket.book(NOW, calls=1_000))
    stale, posting = bucket.item, Posting({"calls": 1}, booking=Booking(FOR_EVER_MS))
    write = write_for(bucket.account, posting, stale, NOW)
    bucket.give_back(leaving, given_up, NOW)
    assert isinstance(write, Update)
    assert BOOKED not in {*write.add, *write.set}, "what it saw of the line is long enough"
    assert apply(write, stale).applied
    assert not apply(write, bucket.item).applied


def test_who_fits_by_what_came_back_unseen_is_in_line_as_others_are() -> None:
    """A wait that seemed too long is asked of the store all the same, and may have become short enough."""
    bucket = Bucket(calls=Rate(10_000, 10_000, 10_000))
    bucket.post(Posting(debit={"calls": 30_000}), NOW)  # settled above its estimate
    posting = Posting({"calls": 2_000}, booking=Booking(NOW + 20_000))
    write, given = (
        write_for(bucket.account, posting, bucket.item, NOW),
        turns(bucket.account, [posting], bucket.item, NOW),
    )
    assert write is not None
    bucket.post(Posting(credit={"calls": 4_000}), NOW)
    outcome = apply(write, bucket.item)
    assert outcome.applied
    bucket.item = outcome.item
    (booked,) = outcomes([posting], given, outcome.item or {}, NOW)
    assert isinstance(booked, Booked)
    bucket.post(Posting(credit={"calls": 4_000}), NOW)
    later = bucket.book(NOW, calls=1_000)
    assert later is not None
    assert later.latest_ms >= booked.booking.latest_ms, "nobody overtakes by what came back"


@pytest.mark.parametrize("earliest_ms", [0, 3_000])
def test_what_came_back_unseen_leaves_less_room_for_what_is_set_aside(earliest_ms: int) -> None:
    """Whatever a booking has not seen: with all that is set aside later its limits hold what they can.

    Who waits for one limit of several, or for another bucket, does not begin sooner if there is more.
    """
    booked, judged = Counter[bool](), 0
    for seed in range(1_000):
        rng = random.Random(seed)
        bucket, now_ms = furnished(rng)
        rates = bucket.account.terms.rates
        last, need, back = ({name: rng.randint(1, 5_000) for name in rates} for _ in range(3))
        leaving = Posting(credit=last, booking=bucket.book(now_ms, **last))
        asked = [Posting(need, booking=Booking(FOR_EVER_MS, now_ms + earliest_ms))]
        given = turns(bucket.account, asked, bucket.item, now_ms)
        write = write_for(bucket.account, asked[0], bucket.item, now_ms)
        assert write is not None
        bucket.post(rng.choice((leaving, Posting(credit=back))), now_ms)
        done = apply(write, bucket.item)
        booked[done.applied] += 1
        if not done.applied or done.item is None:
            continue
        (told,) = outcomes(asked, given, done.item, now_ms)
        assert isinstance(told, Booked)
        bucket.item, at_ms = done.item, told.booking.latest_ms
        bucket.post(Posting(credit={name: rate.capacity_milli for name, rate in rates.items()}), now_ms)
        for name, (tokens, aside) in standings(bucket, bucket.item or {}, now_ms).items():
            gained = gain(rates[name], number(bucket.item or {}, "rf"), at_ms)
            held = tokens + aside + need[name] + gained
            assert at_ms <= now_ms or held <= rates[name].capacity_milli, f"seed {seed}: {name} holds {held}"
        judged += at_ms > now_ms
    assert min(judged, *booked.values()) > 100


@pytest.mark.parametrize("capacity", [2_000, 10_000, 15_000])
def test_what_came_back_flows_over_when_the_numbers_change(capacity: int) -> None:
    """A limit and what is set aside of it hold together no more than it can, also by its next numbers."""
    judged = 0
    for seed in range(300):
        randomness = random.Random(seed)
        rate, later = Rate(10_000, 35_000, 60_000), Rate(capacity, 35_000, 60_000)
        bucket = Bucket(fast=rate, slow=Rate(10_000, 10_000, 86_400_000))
        bucket.post(Posting({"fast": randomness.randrange(1, 10_001), "slow": 10_000}), NOW)
        bucket.book(NOW, fast=randomness.randrange(1, 9_000))
        bucket.book(NOW, slow=5_000)
        bucket.post(Posting(credit={"fast": randomness.randrange(1, 9_000)}), NOW)
        image, now_ms = bucket.item or {}, NOW + randomness.randrange(30_000)
        aside = number(image, booking_attributes("fast").back)
        before = min(rate.capacity_milli, balance(rate, number(image, "b_fast_tk"), NOW, now_ms) + aside)
        terms = replace(bucket.account.terms, rates={**bucket.account.terms.rates, "fast": later}, version=2)
        taken = Posting({"fast": 1_000})
        write = rebase(bucket.account._replace(terms=terms), taken, image, now_ms)
        done = apply(write, image)
        if not done.applied or done.item is None or not aside:
            continue
        judged += 1
        assert not apply(write, {**image, "b_fast_bb": aside + 1}).applied, f"seed {seed}"
        stored = balance(later, number(done.item, "b_fast_tk"), number(done.item, "rf"), now_ms)
        held = stored + number(done.item, booking_attributes("fast").back)
        most = min(capacity, before + capacity - rate.capacity_milli) - 1_000
        assert held <= most, f"seed {seed} holds {held} instead of {most}"
    assert judged > 30


def in_line_behind() -> tuple[Bucket, GivenUpBookings, Posting]:
    """An empty bucket, a booking that was given up while another one was behind it, and that other one."""
    bucket, given_up = Bucket(a=Rate(1_000, 1_000, 3_000)), GivenUpBookings()
    bucket.post(Posting({"a": 1_000}), NOW)
    first, second = (bucket.book(NOW, a=1_000) for _ in range(2))
    bucket.give_back(Posting(credit={"a": 1_000}, booking=first), given_up, NOW)
    return bucket, given_up, Posting(credit={"a": 1_000}, booking=second)


@pytest.mark.parametrize("is_lost", [True, False])
def test_what_may_have_been_undone_is_not_undone_again(is_lost: bool) -> None:
    """After a lost reply nobody knows whether a place was given back, so whoever got it since keeps it."""
    bucket, given_up, leaving = in_line_behind()
    given = given_up.giving_back(bucket.account, leaving, bucket.item or {}, NOW)
    assert given is not None
    assert len(given.undone) == 2
    done = apply(given.write, bucket.item)
    failure = RateLimiterUnavailable("the reply is lost", ambiguous=True)
    given_up.learn(given.write, Outcome(False, None, failure=failure) if is_lost else done, NOW)
    bucket.item = done.item
    assert bucket.book(NOW, a=1_000) is not None, "who is in the place of the first"
    assert bucket.item is not None
    again = given_up.giving_back(bucket.account, Posting(), bucket.item, NOW)
    assert again is None or again.undone == []


def test_what_was_not_undone_is_undone_later() -> None:
    """A write that the store refuses, or that surely did not reach it, has undone nothing."""
    for failure in (None, RateLimiterUnavailable("it is gone")):
        bucket, given_up, leaving = in_line_behind()
        given = given_up.giving_back(bucket.account, leaving, bucket.item or {}, NOW)
        assert given is not None
        meanwhile = given_up.giving_back(bucket.account, leaving, bucket.item or {}, NOW)
        assert meanwhile is not None
        assert len(meanwhile.undone) == 1, "the other one is for the write that is under way"
        given_up.learn(meanwhile.write, Outcome(False, None, failure=failure), NOW)
        given_up.learn(given.write, Outcome(False, bucket.item, failure=failure), NOW)
        bucket.give_back(leaving, given_up, NOW)
        assert standings(bucket, bucket.item or {}, NOW) == {"a": (0, 0)}


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
