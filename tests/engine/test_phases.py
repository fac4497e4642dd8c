"""What becomes of a balance when its numbers change with the time of day: against a walk by the minute."""

from __future__ import annotations

import math
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.engine.fake_store import account_of
from zae_limiter.engine import phases
from zae_limiter.engine.bucket_view import carry, stored_terms
from zae_limiter.engine.bucket_writes import write_for
from zae_limiter.engine.law import Rate, gain
from zae_limiter.engine.line_over import on_grid
from zae_limiter.engine.phased import in_phase, instant
from zae_limiter.engine.phases import held_at, rate_at, wait_of
from zae_limiter.engine.posting import Posting
from zae_limiter.models.schedules import schedule_of, with_rest
from zae_limiter.repository_protocol import Item, apply
from zae_limiter.runtime.world import AHEAD_MS_MAX
from zae_limiter.schema import (
    BOOKED,
    BOOKED_SINCE,
    PHASE,
    booking_attributes,
    limit_attributes,
    number,
    rate_attributes,
    stored_rate,
)

MINUTE = 60_000
START = 1_711_846_800_000 - 40 * MINUTE  # before Berlin's clocks go forward
NUMBER = st.integers(1, 40)


@st.composite
def rates(draw: st.DrawFn) -> Rate:
    windows = draw(
        st.lists(
            st.sampled_from(["*/3 * * * *", "*/4 * * * *", "10-30 * * * *", "* 3 * * *"]),
            min_size=1,
            max_size=2,
            unique=True,
        )
    )
    parts = [f"{draw(NUMBER)}:{draw(NUMBER)}({window})" for window in windows]
    capacity, amount = draw(NUMBER) * 1000, draw(NUMBER) * 1000
    period = draw(st.sampled_from([7_000, 60_000, 3_600_000]))
    return Rate(
        capacity, amount, period, None, with_rest(f"{';'.join(parts)}@Europe/Berlin", capacity, amount)
    )


def walked(rate: Rate, tokens: int, origin_ms: int, t_ms: int) -> int:
    """What is held, by going to every minute."""
    at, held, at_ms = rate_at(rate, origin_ms), tokens, origin_ms
    held = min(at.capacity_milli, held)
    start, base = held, origin_ms
    while True:
        next_ms = min(t_ms, (at_ms // MINUTE + 1) * MINUTE)
        held = min(at.capacity_milli, start + gain(at, base, next_ms))
        after = rate_at(rate, next_ms)
        if after != at:
            held = carry(at, after, 0).found(held, after.capacity_milli)
            at, start, base = after, held, next_ms
        at_ms = next_ms
        if at_ms >= t_ms:
            return held


@settings(max_examples=100, deadline=None)
@given(rates(), st.integers(-50_000, 45_000), st.integers(0, 3 * 3_600_000), st.integers(0, 5 * 3_600_000))
def test_what_is_held_is_what_a_walk_through_every_minute_finds(rate, tokens, from_ms, for_ms):
    """Before a boundary the old numbers count and after it the new ones, whatever lies between."""
    origin_ms = START + from_ms
    at_ms = origin_ms + for_ms
    assert held_at(rate, tokens, origin_ms, 0, at_ms) == walked(rate, tokens, origin_ms, at_ms)


@settings(max_examples=100, deadline=None)
@given(
    rates(), st.integers(-50_000, 45_000), st.integers(0, 10**7), st.integers(0, 10**7), st.integers(0, 10**7)
)
def test_whoever_looks_in_between_finds_the_same_in_the_end(rate, tokens, from_ms, first_ms, then_ms):
    """A balance telescopes through phases: a look moves nothing."""
    origin_ms = START + from_ms
    middle_ms, end_ms = origin_ms + first_ms, origin_ms + first_ms + then_ms
    middle = held_at(rate, tokens, origin_ms, 0, middle_ms)
    assert held_at(rate, middle, middle_ms, 0, end_ms) == held_at(rate, tokens, origin_ms, 0, end_ms)


@settings(max_examples=100, deadline=None)
@given(rates(), st.integers(-50_000, 45_000), st.integers(0, 3 * 3_600_000), st.integers(1, 45_000))
def test_a_told_wait_is_exact_to_the_millisecond(rate, tokens, from_ms, need):
    """After it the need is covered, and at no instant before; never only if no phase could hold it."""
    now_ms = START + from_ms
    wait = wait_of(rate, tokens, now_ms, 0, need, now_ms)
    schedule = schedule_of(rate.schedule)
    if need > schedule.capacity_max:
        assert wait == math.inf
        return
    assert wait < math.inf
    turn_ms = now_ms + int(wait)
    assert held_at(rate, tokens, now_ms, 0, turn_ms) >= need
    before = {turn_ms - 1, *range(now_ms, turn_ms, max(1, int(wait) // 200))}
    at_ms = now_ms
    while (end_ms := schedule.phase(at_ms).end_ms) < turn_ms:
        before |= {end_ms - 1, end_ms}
        at_ms = end_ms
    assert all(held_at(rate, tokens, now_ms, 0, at) < need for at in before if now_ms <= at < turn_ms)


@settings(max_examples=100, deadline=None)
@given(rates(), st.integers(-50_000, 45_000), st.integers(0, 3 * 3_600_000))
def test_a_bucket_is_full_as_soon_as_it_is_told_to_be(rate, tokens, from_ms):
    """By the numbers of that time, which may be others than those of now; and at no instant before."""
    now_ms = START + from_ms
    full_ms = now_ms + int(wait_of(rate, tokens, now_ms, 0, None, now_ms))
    assert held_at(rate, tokens, now_ms, 0, full_ms) == rate_at(rate, full_ms).capacity_milli
    before = {full_ms - 1, *range(now_ms, full_ms, max(1, (full_ms - now_ms) // 200))}
    for at_ms in (at for at in before if now_ms <= at < full_ms):
        assert held_at(rate, tokens, now_ms, 0, at_ms) < rate_at(rate, at_ms).capacity_milli


@settings(max_examples=100, deadline=None)
@given(rates(), st.integers(-50_000, 45_000), st.integers(0, 5_000), st.integers(0, 5 * 3_600_000))
def test_giving_back_gives_no_more_than_was_taken(rate, tokens, back, for_ms):
    """What is added at the origin is found later at most once, and never makes it less."""
    without, with_it = (held_at(rate, n, START, 0, START + for_ms) for n in (tokens, tokens + back))
    assert without <= with_it <= without + back


def test_a_bucket_that_nobody_used_for_very_long_is_followed_from_near(monkeypatch):
    """Of what lies further back the least counts that can have come, so nothing is given that did not."""
    monkeypatch.setattr(phases, "PHASES_MAX", 5)
    text = with_rest("9:40(*/2 * * * *)@UTC", 30_000, 1_000)
    rate = Rate(30_000, 1_000, 3_600_000, None, text)
    far = held_at(rate, 0, START, 0, START + 400 * MINUTE)
    monkeypatch.setattr(phases, "PHASES_MAX", 10_000)
    exact = held_at(rate, 0, START, 0, START + 400 * MINUTE)
    assert 0 < far <= exact


@settings(max_examples=100, deadline=None)
@given(rates(), st.integers(0, 45_000), st.integers(0, 3 * 3_600_000), st.integers(1, 5_000))
def test_a_clock_behind_the_origin_does_not_wait_for_what_is_there(rate, tokens, from_ms, behind_ms):
    """Who shows less than the origin finds what the bucket has at its origin, and no wait for that."""
    origin_ms = START + from_ms
    there = held_at(rate, tokens, origin_ms, 0, origin_ms)
    assert wait_of(rate, tokens, origin_ms, 0, there, origin_ms - behind_ms) == 0
    more = wait_of(rate, tokens, origin_ms, 0, there + 1, origin_ms - behind_ms)
    assert more > behind_ms


NIGHT = 1_711_850_400_000  # two o'clock
CUT = Rate(600_000, 600_000, 60_000, None, with_rest("60(0-59 2-23 * * *)@UTC", 600_000, 600_000))


def bucket_in_line(tokens: int, aside: int, over_ms: int) -> Item:
    """A bucket that somebody waited for, with what came back meanwhile."""
    names, booked = limit_attributes("rpm"), booking_attributes("rpm")
    numbers = {names.tk: tokens, names.tc: 0, booked.back: aside, booked.high: 0, booked.higher: 0}
    line = {BOOKED: over_ms, BOOKED_SINCE: over_ms, "rf": NIGHT - 10_000, PHASE: NIGHT - 3_600_000}
    return {**numbers, **line, **rate_attributes("rpm", CUT)}


@settings(max_examples=100, deadline=None)
@given(st.integers(-900_000, -100_000), st.integers(1_000, 10**6))
def test_a_cut_lets_nobody_off_while_somebody_waits(tokens, beyond_ms):
    """Who booked before this schedule was set keeps its slot: what it owes is owed after the boundary too."""
    image = bucket_in_line(tokens, 0, on_grid(NIGHT + beyond_ms))
    seen = in_phase(image, NIGHT)
    assert seen[BOOKED] == image[BOOKED]
    owed = tokens + gain(CUT, NIGHT - 10_000, NIGHT)
    assert number(seen, limit_attributes("rpm").tk) == owed - 540_000


@settings(max_examples=100, deadline=None)
@given(st.integers(-400_000, 600_000), st.integers(0, 600_000), st.integers(1, 9_999))
def test_what_was_set_aside_is_cut_like_all_else(tokens, aside, before_ms):
    """When a phase ends everybody has had its turn: what came back is there, and is cut with the rest."""
    seen = in_phase(bucket_in_line(tokens, aside, on_grid(NIGHT - before_ms)), NIGHT)
    assert BOOKED not in seen
    assert booking_attributes("rpm").back not in seen
    whole = min(600_000, max(tokens, tokens + aside) + gain(CUT, NIGHT - 10_000, NIGHT))
    found = number(seen, limit_attributes("rpm").tk)
    assert found <= carry(CUT, rate_at(CUT, NIGHT), 0).found(whole, 60_000)
    if tokens + aside <= 0:
        assert found == carry(CUT, rate_at(CUT, NIGHT), 0).found(whole, 60_000)


def test_a_bucket_that_a_clock_far_ahead_has_written_goes_by_ours() -> None:
    """Neither its origin nor the begin of its phase is believed, and somebody who comes then is served."""
    ahead_ms = START + 86_400_000
    assert instant({"rf": ahead_ms, PHASE: ahead_ms}, START) == START
    assert instant({"rf": ahead_ms, PHASE: START + 1_000}, START) == START + 1_000


@settings(max_examples=100, deadline=None)
@given(
    st.sampled_from(("need", "debit", "credit")),
    st.integers(-60_000, 700_000),
    st.integers(AHEAD_MS_MAX + 1, 3_600_000),
    st.integers(0, 20_000),
)
def test_whatever_is_written_first_puts_a_bucket_right_that_lies_ahead(kind, tokens, behind_ms, into_ms):
    """It begins at our instant with what it had, by the numbers of that: what comes back does so, too."""
    names, origin_ms, night = limit_attributes("rpm"), NIGHT + into_ms, rate_at(CUT, NIGHT)
    now_ms = min(NIGHT, origin_ms) - behind_ms
    image: Item = {names.tk: tokens, names.tc: 9_000, "rf": origin_ms, PHASE: NIGHT, "cv": 1}
    image |= rate_attributes("rpm", night)
    terms = replace(stored_terms(image), version=1)
    account = account_of()._replace(terms=terms)
    write = write_for(account, Posting(**{kind: {"rpm": 1_000}}), image, now_ms)
    assert write is not None
    after = apply(write, image).item
    assert after is not None
    taken = number(after, names.tc) - 9_000
    assert (number(after, "rf"), stored_rate(after, "rpm")) == (now_ms, CUT)
    held = 540_000 + min(60_000, tokens)
    assert min(600_000, number(after, names.tk)) == min(600_000, held - taken)
    assert stored_rate(in_phase(after, origin_ms), "rpm") == night
