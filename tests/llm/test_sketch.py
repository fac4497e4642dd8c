"""The arithmetic of sketches: bins that never change, sums in any order, quantiles on the upper side."""

import random
from collections import Counter
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zae_limiter.llm.sketch import ENDS, bin_of, covering, merged
from zae_limiter.models import TOKENS_MAX

amounts = st.integers(0, 5_000) | st.integers(0, TOKENS_MAX)


@given(amount=amounts)
def test_a_bin_holds_what_is_at_most_an_eighth_smaller(amount: int) -> None:
    """So a reservation is an eighth too high at most, and exact up to 16."""
    at = bin_of(amount)
    assert ENDS[at] >= amount > (ENDS[at - 1] if at else -1)
    assert ENDS[at] <= max(amount * 9 // 8, amount + 1)
    assert amount > 16 or ENDS[at] == amount


def test_the_bins_are_stored_and_stay() -> None:
    """Another table would read what others have counted as something else."""
    assert (len(ENDS), ENDS[16:24], ENDS[60], ENDS[112], ENDS[-1]) == (
        230,
        (16, 18, 20, 22, 24, 27, 30, 33),
        2_377,
        1_085_143,
        TOKENS_MAX,
    )


@given(
    counts=st.dictionaries(st.integers(0, 80), st.integers(1, 300), max_size=12),
    percent=st.integers(50, 99),
)
def test_what_covers_a_share(counts: dict[int, int], percent: int) -> None:
    """It is the end of a bin, that share of the calls lies within, and more with each higher share."""
    covers = covering(counts, Fraction(percent, 100))
    if covers is not None:
        within = sum(count for at, count in counts.items() if ENDS[at] <= covers)
        assert within * 100 >= percent * sum(counts.values())
        assert covers <= ENDS[max(counts)]
        lower = covering(counts, Fraction(percent - 1, 100))
        assert lower is not None
        assert lower <= covers


@pytest.mark.parametrize(("quantile", "calls"), [(0.5, 4), (0.9, 36), (0.95, 76), (0.99, 396)])
def test_too_few_calls_say_nothing(quantile: float, calls: int) -> None:
    """The cap it is, until luck can be told from what is usual."""
    share = Fraction(quantile).limit_denominator(10_000)
    assert covering({}, share) is None
    assert covering({30: calls - 1}, share) is None
    assert covering({30: calls}, share) == ENDS[30]


def test_luck_is_allowed_for() -> None:
    """Of many samples of one distribution nearly all lead to a reservation that covers its share."""
    chance = random.Random(7)
    short = 0
    for _ in range(400):
        counts = Counter(bin_of(int(chance.lognormvariate(5.5, 0.9))) for _ in range(150))
        covers = covering(counts, Fraction(95, 100))
        assert covers is not None
        later = sum(chance.lognormvariate(5.5, 0.9) <= covers for _ in range(400))
        short += later < 0.95 * 400 - 9  # two standard deviations of this very count
    assert short <= 20


@given(
    sketches=st.lists(st.dictionaries(st.integers(0, 20), st.integers(1, 50), max_size=5), max_size=5),
    enough=st.integers(1, 300),
)
def test_the_newest_count_first(sketches: list[dict[int, int]], enough: int) -> None:
    """As many generations as it takes, and none more."""
    sums = [sum(one.values()) for one in sketches]
    taken = next((n for n in range(1, len(sums)) if sum(sums[:n]) >= enough), len(sums))
    expected: Counter[int] = Counter()
    for one in sketches[:taken]:
        expected.update(one)
    assert merged(sketches, enough) == dict(expected)
