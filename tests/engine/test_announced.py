"""Who waits for seats, as a bucket tells it: what is written is read, and nothing else that stands there."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.engine.fake_store import NOW
from zae_limiter.engine.account import Account, Terms
from zae_limiter.engine.announced import (
    AHEAD_MS,
    TICKETS_PER_MS,
    VALID_MS,
    WAITERS_MAX,
    Announcement,
    said,
    waiters,
    waiters_attribute,
)
from zae_limiter.engine.announcing import announce
from zae_limiter.engine.bucket_writes import write_for
from zae_limiter.engine.posting import Posting
from zae_limiter.engine.seats import SeatMove, until
from zae_limiter.models import SEATS_MAX, Limit
from zae_limiter.repository_protocol import Item, apply
from zae_limiter.schema import bucket_key

NAME = "parallel"
WAITS = waiters_attribute(NAME)
TERMS = Terms.of([Limit.concurrent(NAME, 2, hold="60s")])
ACCOUNT = Account(bucket_key("ns", "key", "api"), "ns", "key", "api", TERMS)
HONEST = st.builds(
    Announcement,
    st.integers((NOW - 10**9) * TICKETS_PER_MS, (NOW + 10**6) * TICKETS_PER_MS),
    st.integers(NOW + 1, NOW + VALID_MS + AHEAD_MS),
    st.integers(1, SEATS_MAX),
)


def taking() -> Posting:
    move = SeatMove(NAME, until(TERMS.rates[NAME], NOW), 1)
    return Posting({NAME: 1_000}, seats=(move,))


def made() -> Item:
    """A bucket of which one seat is taken."""
    done = apply(write_for(ACCOUNT, taking(), None, NOW), None)
    assert done.item is not None
    return done.item


@given(st.lists(HONEST, max_size=WAITERS_MAX))
def test_what_is_told_is_read(there: list[Announcement]) -> None:
    """All of it, the first first, whatever else the bucket says."""
    assert waiters({WAITS: said(there)}, NAME, NOW) == sorted(there)


@pytest.mark.parametrize(
    "damaged",
    [
        "9" * 5_000 + f":{NOW + 1_000}:1",
        f"1:{NOW + 1_000}:" + "9" * 5_000,
        "1:" + "9" * 400_000 + ":1",
        f"1:{NOW + 1_000}",
        f"1:{NOW + 1_000}:1:1",
        f"-1:{NOW + 1_000}:1",
        f"1:{NOW + 1_000}:1.5",
        "::",
        "\x00 \u0662:\u0662:\u0662",
        17,
        ["1:2:3"],
    ],
)
def test_what_nobody_can_have_told_is_in_nobodys_way(damaged: object) -> None:
    """A damaged text is no waiter: a seat is taken as if it were not there, and who waits says so anew."""
    image: Item = {**made(), WAITS: damaged}  # type: ignore[dict-item]  # which it is not
    assert waiters(image, NAME, NOW) == []
    told = announce(ACCOUNT, {NAME: 2}, NOW * TICKETS_PER_MS, image, NOW)
    assert told is not None
    assert len(waiters(apply(told, image).item or {}, NAME, NOW)) == 1
    taken = apply(write_for(ACCOUNT, taking(), image, NOW), image)
    assert taken.applied
    assert WAITS not in (taken.item or {})


@given(st.lists(HONEST, min_size=WAITERS_MAX, max_size=100, unique_by=lambda it: it.ticket))
def test_a_bucket_tells_of_so_many_at_most(many: list[Announcement]) -> None:
    """However many announce themselves: the first ones stay, and the text stays short."""
    image = made()
    for waiter in many:
        write = announce(ACCOUNT, {NAME: waiter.seats}, waiter.ticket, image, NOW)
        image = image if write is None else (apply(write, image).item or {})
    there = [waiter.ticket for waiter in waiters(image, NAME, NOW)]
    assert there == sorted(waiter.ticket for waiter in many)[:WAITERS_MAX]
    assert len(str(image[WAITS])) <= WAITERS_MAX * 40
