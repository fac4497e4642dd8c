"""What an operator gives: exact over all shards, never above a capacity, and nothing that was consumed."""

from typing import Any
from unittest import mock

from hypothesis import given
from hypothesis import strategies as st

from tests.engine.booking_worlds import BookedWorld, Traits
from zae_limiter.engine.account import Account, Terms
from zae_limiter.engine.booking import booked, turns
from zae_limiter.engine.bucket_writes import write_for
from zae_limiter.engine.law import Rate, balance
from zae_limiter.engine.operator_writes import Gift, gifts, give, room_of, shared
from zae_limiter.engine.posting import Booking, Posting
from zae_limiter.repository_protocol import Item, Update, apply
from zae_limiter.schema import bucket_key, limit_attributes, number, stored_rate

NOW = 1_700_000_000_000
KEYS = [bucket_key("ns", "e", "r", shard_id) for shard_id in range(32)]
NAMES = ("a", "b")

amounts = st.integers(0, 10**12)
rates = st.builds(Rate, st.integers(1, 10**9), st.integers(1, 10**9), st.integers(1, 10**8))


@st.composite
def shards(draw: st.DrawFn) -> list[Item | None]:
    """Some shards of a bucket, each with a share of some limits, full, empty or in debt; some are missing."""
    images: list[Item | None] = []
    for at in range(draw(st.integers(1, 6))):
        image: dict[str, Any] = {"rf": NOW - draw(st.integers(-3_000, 10**6)), "cv": 1}
        for name in NAMES:
            if draw(st.booleans()):
                rate = draw(rates)
                tokens = draw(st.integers(-2 * rate.capacity_milli, 2 * rate.capacity_milli))
                image |= zip(limit_attributes(name), (tokens, *rate[:3], 7), strict=True)
        images.append(image if at == 0 or draw(st.booleans()) else None)
    return images


def held(image: Item | None, name: str, now_ms: int = NOW) -> int:
    """What a shard holds of a limit, by the law alone."""
    rate = None if image is None else stored_rate(image, name)
    if image is None or rate is None:
        return 0
    return balance(rate, number(image, limit_attributes(name).tk), number(image, "rf"), now_ms)


@given(amounts, st.lists(amounts, max_size=32))
def test_an_amount_is_shared_to_the_last_millitoken(amount: int, rooms: list[int]) -> None:
    """The parts add up to the amount, or to all the room there is, and none is more than its room."""
    parts = shared(amount, rooms)
    assert sum(parts) == min(amount, sum(rooms))
    assert all(0 <= part <= room for part, room in zip(parts, rooms, strict=True))


@given(shards(), st.sampled_from(Gift), st.fixed_dictionaries(dict.fromkeys(NAMES, st.integers(1, 10**7))))
def test_what_is_given_is_exact(images: list[Item | None], kind: Gift, tokens: dict[str, int]) -> None:
    """The shards hold together what they held and what was given, none above its capacity, and all refill on.

    What they have consumed, and since when they gain, stays.
    """
    gift = gifts(kind, NAMES, images, NOW, tokens)
    after: list[Item | None] = []
    for key, image, mine in zip(KEYS, images, gift.by_shard, strict=False):
        outcome = apply(give(key, image, mine, NOW), image) if image is not None and mine else None
        assert outcome is None or outcome.applied
        after.append(image if outcome is None else outcome.item)
    for name in NAMES:
        before, then = (sum(held(image, name) for image in some) for some in (images, after))
        room = sum(r.room_milli for image in images if (r := room_of(image, name, NOW)))
        wanted = {Gift.TOP_UP: tokens[name] * 1000, Gift.RESET: room, Gift.FORGIVE: max(0, -before)}[kind]
        assert gift.before[name] == before
        assert then - before == gift.given[name] == min(wanted, room)
        for image, new in zip(images, after, strict=True):
            if new is None or image is None or (rate := stored_rate(new, name)) is None:
                continue
            names = limit_attributes(name)
            assert held(new, name) <= rate.capacity_milli
            assert {k: v for k, v in new.items() if not k.endswith("_tk")} == {
                k: v for k, v in image.items() if not k.endswith("_tk")
            }
            # Until it flows over, it holds at every instant what it would have held, and the gift.
            mine = number(new, names.tk) - number(image, names.tk)
            for later_ms in (NOW + 1, NOW + 12_345):
                most = rate.capacity_milli
                assert held(new, name, later_ms) == min(most, held(image, name, later_ms) + mine)


@given(shards(), st.sampled_from(Gift), st.integers(-(10**9), 10**9))
def test_a_gift_commutes_or_is_refused(images: list[Item | None], kind: Gift, change: int) -> None:
    """Whatever others take or give back before it is written: all of it is given, or nothing, and it fits."""
    image = images[0]
    assert image is not None
    (mine,) = gifts(kind, NAMES, [image], NOW, dict.fromkeys(NAMES, 5_000)).by_shard
    if not mine:
        return
    meanwhile = {limit_attributes(name).tk: change for name in mine}
    moved = apply(Update(KEYS[0], meanwhile), image).item
    outcome = apply(give(KEYS[0], image, mine, NOW), moved)
    assert outcome.applied or change > 0, "what is taken meanwhile is no obstacle"
    if outcome.applied:
        assert outcome.item is not None
        for name, amount in mine.items():
            rate, tokens = stored_rate(image, name), limit_attributes(name).tk
            assert rate is not None
            assert number(outcome.item, tokens) == number(moved or {}, tokens) + amount
            assert held(outcome.item, name) == held(moved, name) + amount <= rate.capacity_milli


def test_whoever_changed_the_bucket_makes_a_gift_look_again() -> None:
    """Other numbers, another origin, another life, or somebody who began to wait."""
    rate = Rate(10_000, 1_000, 1_000)
    image: Item = {"rf": NOW, "cv": 1} | dict(
        zip(limit_attributes("a"), (2_000, *rate[:3], 8_000), strict=True)
    )
    write = give(KEYS[0], image, {"a": 5_000}, NOW)
    assert apply(write, image).applied
    for changed in ({"rf": NOW - 1}, {"cv": 2}, {"life": "01"}, {"booked_since": NOW}):
        assert not apply(write, {**image, **changed}).applied
    assert not apply(write, None).applied
    assert not apply(write, {"status": "deleted"}).applied


def test_who_waits_is_not_overtaken_by_whom_an_operator_helps() -> None:
    """What is given while somebody waits is for those who come later, and when the line is over for all."""
    rate = Rate(10_000, 1_000, 1_000)
    account = Account(KEYS[0], "ns", "e", "r", Terms({"a": rate}, 1))

    def taken(image: Item | None, need: int, now_ms: int, wait_ms: int | None = None) -> Item | None:
        booking = None if wait_ms is None else Booking(now_ms + wait_ms)
        write = write_for(account, Posting({"a": need}, booking=booking), image, now_ms)
        assert write is not None
        outcome = apply(write, image)
        return outcome.item if outcome.applied else None

    image = taken(None, 9_000, NOW)
    image = taken(image, 5_000, NOW, 60_000)
    assert image is not None
    assert number(image, "b_a_tk") == -4_000, "somebody begins in four seconds"
    (mine,) = gifts(Gift.TOP_UP, ["a"], [image], NOW, {"a": 3}).by_shard
    given = apply(give(KEYS[0], image, mine, NOW), image).item
    assert given is not None
    assert (number(given, "b_a_tk"), number(given, "b_a_bb")) == (-4_000, 3_000)
    assert taken(given, 1_000, NOW) is None, "nobody who does not wait goes before"
    later = taken(given, 3_000, NOW, 60_000)
    assert later is not None
    assert number(later, "b_a_tk") == -4_001, "who waits for the gift begins right behind"
    over_ms = NOW + 5_000
    for what in (Gift.TOP_UP, Gift.RESET):
        (mine,) = gifts(what, ["a"], [given], over_ms, {"a": 2}).by_shard
        assert mine == {"a": {Gift.TOP_UP: 2_000, Gift.RESET: 6_000}[what]}
        plain = apply(give(KEYS[0], given, mine, over_ms), given).item
        assert plain is not None
        assert "booked" not in plain
        assert held(plain, "a", over_ms) == 4_000 + mine["a"]


GENEROUS = Traits(gifts=0.3, debits=0.3)


def test_worlds_in_which_operators_give_obey_the_law_of_waiting() -> None:
    """And something is given in them."""
    worlds = [BookedWorld(seed, GENEROUS).run() for seed in range(20)]
    assert [world.wrong for world in worlds if world.wrong] == []
    assert sum(world.given for world in worlds) > 300
    assert sum(world.ended for world in worlds) > 100


def test_what_was_ended_and_is_given_back_as_well_is_found() -> None:
    """Who gives up what an operator has given would make room for others once more."""
    with mock.patch("zae_limiter.engine.set_aside.is_ended", return_value=False):
        wrong = (BookedWorld(seed, GENEROUS).run().wrong for seed in range(20))
        assert any("stands at" in promise for found in wrong for promise in found)


def test_a_booking_that_was_ended_is_not_taken_for_a_later_one() -> None:
    """Though the bucket stands where it left it: another one brought it there since."""
    account = Account(KEYS[0], "ns", "e", "r", Terms({"a": Rate(10_000, 1_000, 1_000)}, 1))
    image, left = None, list[Booking]()
    for need, wait_ms in ((9_000, None), (5_000, 60_000), (None, None), (9_000, None), (5_000, 60_000)):
        if need is None:
            assert image is not None
            gift = gifts(Gift.RESET, ["a"], [image], NOW, {})
            assert (gift.before, gift.given, gift.booked) == ({"a": -4_000}, {"a": 14_000}, {"a": 4_000})
            image = apply(give(KEYS[0], image, gift.by_shard[0], NOW, gift.ended[0]), image).item
            assert image is not None
            assert (image["b_a_tk"], image["b_a_be"], image.get("booked")) == (10_000, 1, None)
            continue
        booking = None if wait_ms is None else Booking(NOW + wait_ms)
        posting = Posting({"a": need}, booking=booking)
        write = write_for(account, posting, image, NOW)
        assert write is not None
        turn = turns(account, [posting], image, NOW)[0]
        image = apply(write, image).item
        assert image is not None
        left += [booked(posting, turn, image, NOW)] if booking else []
    for booking, tokens in ((left[0], -4_000), (left[1], 1_000)):
        write = write_for(account, Posting(credit={"a": 5_000}, booking=booking), image, NOW)
        assert write is not None
        outcome = apply(write, image)
        assert outcome.applied
        image = outcome.item
        assert image is not None
        assert image["b_a_tk"] == tokens
    assert image["b_a_tc"] == 18_000, "neither has consumed anything"


def test_a_gift_that_is_there_for_all_at_once_is_found() -> None:
    """Whoever comes later would begin before those who wait."""

    def for_all(_: str, amount: int, *rest: object) -> int:
        del rest
        return amount

    with mock.patch("zae_limiter.engine.operator_writes.set_aside", for_all):
        wrong = (BookedWorld(seed, GENEROUS).run().wrong for seed in range(20))
        assert any("overtook" in promise or "stands at" in promise for found in wrong for promise in found)
