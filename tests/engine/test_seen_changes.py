"""What two have seen of the configuration is compared level by level."""

from hypothesis import given
from hypothesis import strategies as st

from zae_limiter.engine.seen_changes import STEPS, counts_of, has_missed, stamp_of, together, version_of
from zae_limiter.models import NUMBER_MAX

few = st.tuples(*[st.integers(0, 3)] * 4)
histories = st.tuples(*[st.integers(0, STEPS // 2 - 1) | st.integers(0, 3)] * 4)


@given(histories)
def test_a_version_says_how_often_each_level_was_changed(counts: tuple[int, ...]) -> None:
    """It is a number that a record can hold, stamped or not, and short for who has nothing of its own."""
    version = version_of(counts)
    assert tuple(counts_of(version)) == tuple(counts_of(stamp_of(version))) == counts
    assert 0 <= version < stamp_of(version) <= NUMBER_MAX
    assert any(counts[:2]) or version < STEPS**2
    assert stamp_of(stamp_of(version)) == stamp_of(version)


@given(few | histories, few | histories)
def test_who_knows_less_of_any_level_is_behind(one: tuple[int, ...], other: tuple[int, ...]) -> None:
    """However much more it knows of the others, and whether or not the other number is a stamp."""
    mine, theirs = version_of(one), version_of(other)
    behind = any(a < b for a, b in zip(one, other, strict=True))
    assert has_missed(mine, theirs) is has_missed(mine, stamp_of(theirs)) is behind


@given(few | histories, few | histories)
def test_together_nothing_is_missed(one: tuple[int, ...], other: tuple[int, ...]) -> None:
    """What two have seen has no change more than theirs."""
    both = together(version_of(one), version_of(other))
    assert counts_of(both) == [max(pair) for pair in zip(one, other, strict=True)]


@given(st.integers(0, 3 * STEPS), st.integers(0, STEPS // 2 - 1), st.integers(0, 3))
def test_counts_begin_anew(count: int, steps: int, place: int) -> None:
    """Behind the last count comes the first, and the newer one is still known by that."""
    before, after = [0] * 4, [0] * 4
    before[place], after[place] = count, count + steps
    assert has_missed(version_of(before), version_of(after)) is (steps > 0)
    assert not has_missed(version_of(after), version_of(before))


@given(st.integers(-NUMBER_MAX, NUMBER_MAX), few)
def test_a_number_of_somebody_else_is_compared_all_the_same(strange: int, counts: tuple[int, ...]) -> None:
    """Whatever a bucket says, what comes of it is a version."""
    both = together(strange, version_of(counts))
    assert 0 <= both < stamp_of(0)
    assert not has_missed(both, version_of(counts))
