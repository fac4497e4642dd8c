"""What the judge of those who wait believes of a bucket that several are booked at by one write."""

import random

from tests.engine.test_booking import NOW, Bucket, furnished
from tests.simulation.waiting import alone_ms, booked_from
from zae_limiter.engine.booking import MARGIN_MS_MAX
from zae_limiter.engine.law import Rate


def test_limit_that_somebody_holds_up_cannot_give() -> None:
    """Who waits an hour for one limit keeps others from what else it takes, also if one write books both."""
    bucket = Bucket(fast=Rate(10_000, 35_000, 60_000), slow=Rate(40_000, 100_000, 86_400_000))
    bucket.post(booked_from({"fast": 10_000, "slow": 34_000}), NOW)
    assert bucket.item is not None
    both, fast = {"fast": 2_000, "slow": 10_000}, {"fast": 4_000}
    before_ms, behind_ms = (alone_ms(fast, ahead, bucket.item, NOW) for ahead in ([], [booked_from(both)]))
    _, booking = bucket.book_all([booked_from(both), booked_from(fast)], NOW)
    assert before_ms is not None
    assert behind_ms is not None
    assert before_ms < 7_000
    assert 3_400_000 < behind_ms <= booking.latest_ms - NOW <= behind_ms + MARGIN_MS_MAX


def test_judge_allows_nobody_a_longer_wait_than_it_has() -> None:
    """Whatever came back and whoever stands in line: it expects the slots, but for the margin of a write."""
    judged = 0
    for seed in range(300):
        rng = random.Random(seed)
        bucket, now_ms = furnished(rng)
        assert bucket.item is not None
        needs = [
            {name: rng.randint(1, 5_000) for name in bucket.account.terms.rates if rng.random() < 0.7}
            or {"a": 1_000}
            for _ in range(3)
        ]
        image, postings = bucket.item, [booked_from(need) for need in needs]
        for at, booking in enumerate(bucket.book_all(postings, now_ms)):
            waits_ms, told_ms = alone_ms(needs[at], postings[:at], image, now_ms), booking.latest_ms - now_ms
            assert waits_ms is not None
            assert waits_ms <= told_ms <= waits_ms + MARGIN_MS_MAX, f"seed {seed}: {told_ms} ms"
            judged += told_ms > 0
    assert judged > 300
