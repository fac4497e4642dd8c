"""Session windows: random worlds of processes with old images, judged by a window as one would draw it."""

import random
from dataclasses import dataclass

import pytest

from zae_limiter import Limit
from zae_limiter.engine.account import Account, Meter, Terms
from zae_limiter.engine.bucket_view import level
from zae_limiter.engine.bucket_writes import write_for
from zae_limiter.engine.posting import Posting
from zae_limiter.engine.split import doubled
from zae_limiter.models.accruals import SESSION
from zae_limiter.repository_protocol import Item, apply
from zae_limiter.schema import bucket_key

NOW = 1_700_000_000_000
WINDOW_MS = 60_000
KEY = bucket_key("ns", "e", "r")


def terms(amount: int = 10, version: int = 1) -> Terms:
    return Terms.of([Limit.session("msgs", amount, "1m"), Limit.per_second("rps", 1_000)], version)


def account(amount: int = 10, version: int = 1) -> Account:
    return Account(KEY, "ns", "e", "r", terms(amount, version))


@dataclass
class Drawn:
    """A window on paper: what is left of it, and when it began."""

    amount: int
    left: int
    began_ms: int = 0
    at_ms: int = NOW

    def advance(self, now_ms: int) -> None:
        windows = (now_ms - self.began_ms) // WINDOW_MS - (self.at_ms - self.began_ms) // WINDOW_MS
        self.left = min(self.amount, self.left + windows * self.amount)
        self.at_ms = now_ms

    def take(self, need: int, now_ms: int) -> bool:
        self.advance(now_ms)
        if need > self.left:
            return False
        if now_ms - self.began_ms >= WINDOW_MS:
            self.began_ms = now_ms
        self.left -= need
        return True


@pytest.mark.parametrize("seed", range(60))
def test_processes_agree_about_windows(seed: int) -> None:
    """Whatever they believed: a take is admitted if and only if the window has room."""
    rng = random.Random(seed)
    now_ms, drawn = NOW, Drawn(10_000, 10_000)
    images: list[Item | None] = [None]
    begun = 0
    for _ in range(150):
        now_ms += rng.choice((0, 1, 500, 7_000, WINDOW_MS - 1, 30_000))
        kind = rng.choice(("need", "need", "need", "credit", "debit"))
        amount = rng.randint(1, 6_000)
        posting = Posting(**{kind: {"msgs": amount}})
        image = rng.choice(images[-4:])
        for _ in range(3):
            write = write_for(account(), posting, image, now_ms)
            outcome = None if write is None else apply(write, images[-1])
            if outcome is None or outcome.applied:
                break
            image = images[-1]
        applied = outcome is not None and outcome.applied
        if outcome is not None and outcome.applied:
            images.append(outcome.item)
        before = drawn.began_ms
        if kind == "need":
            assert drawn.take(amount, now_ms) is applied
            begun += drawn.began_ms != before
        elif applied:
            drawn.advance(now_ms)
            drawn.left += amount if kind == "credit" else -amount
            drawn.left = min(drawn.left, drawn.amount)
        last = images[-1]
        if last is not None:
            assert level(terms(), "msgs", last, now_ms).balance(now_ms) == drawn.left
    assert begun > 10


def test_a_window_begins_with_the_first_use() -> None:
    """Not when the bucket was made by another limit, nor when the last window is over, nor by a refund."""
    made = apply(write_for(account(), Posting(need={"rps": 1_000}), None, NOW), None).item
    assert made is not None
    assert "b_msgs_ws" not in made
    used = apply(write_for(account(), Posting(need={"msgs": 4_000}), made, NOW + 5_000), made).item
    assert used is not None
    assert (used["b_msgs_ws"], used["b_msgs_tk"], used["b_msgs_ac"]) == (NOW + 5_000, 6_000, SESSION)
    later = NOW + 5_000 + WINDOW_MS + 7
    back = apply(write_for(account(), Posting(credit={"msgs": 1_000}), used, later), used).item
    assert back is not None
    assert back["b_msgs_ws"] == NOW + 5_000
    again = apply(write_for(account(), Posting(need={"msgs": 10_000}), back, later), back).item
    assert again is not None
    assert (again["b_msgs_ws"], level(terms(), "msgs", again, later).balance(later)) == (later, 0)


def test_the_wait_is_until_the_window_is_over() -> None:
    """To the millisecond."""
    used = apply(write_for(account(), Posting(need={"msgs": 10_000}), None, NOW), None).item
    assert level(terms(), "msgs", used, NOW + 1).retry_after_ms(1_000, NOW + 1) == WINDOW_MS - 1
    refused = write_for(account(), Posting(need={"msgs": 1_000}), used, NOW + WINDOW_MS - 1)
    assert refused is not None
    assert not apply(refused, used).applied
    admitted = write_for(account(), Posting(need={"msgs": 1_000}), used, NOW + WINDOW_MS)
    assert admitted is not None
    assert apply(admitted, used).applied


def test_spends_within_a_window_commute() -> None:
    """Two processes that saw the same image both take; one that missed the new window is told of it."""
    used = apply(write_for(account(), Posting(need={"msgs": 1_000}), None, NOW), None).item
    writes = [write_for(account(), Posting(need={"msgs": 2_000}), used, NOW + 10) for _ in range(2)]
    image = used
    for write in writes:
        assert write is not None
        outcome = apply(write, image)
        assert outcome.applied
        image = outcome.item
    stale = write_for(account(), Posting(need={"msgs": 1_000}), image, NOW + WINDOW_MS - 1)
    begins = write_for(account(), Posting(need={"msgs": 1_000}), image, NOW + WINDOW_MS)
    assert begins is not None
    assert stale is not None
    after = apply(begins, image).item
    assert not apply(stale, after).applied


def test_limits_change_within_a_window() -> None:
    """The window stays; what was used of it stays used."""
    used = apply(write_for(account(), Posting(need={"msgs": 4_000}), None, NOW), None).item
    raised = write_for(account(20, 2), Posting(need={"msgs": 1_000}), used, NOW + 10)
    assert raised is not None
    after = apply(raised, used).item
    assert after is not None
    assert after["b_msgs_ws"] == NOW
    assert level(terms(20, 2), "msgs", after, NOW + 20).balance(NOW + 20) == 15_000


def test_a_bucket_with_a_session_is_never_split() -> None:
    """A window that begins in one place begins in all."""
    busy = account()._replace(meter=Meter.COUNT)
    used = apply(write_for(busy, Posting(need={"msgs": 1_000}), None, NOW), None).item
    assert used is not None
    assert doubled(used) is None
    assert doubled({**used, "b_msgs_ac": None}) is not None
