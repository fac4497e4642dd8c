"""The arithmetic of shards: how far a limit is split, and when several shards hold enough together."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from zae_limiter.bucket import Level, Rate, balance
from zae_limiter.engine.shares import Spread, birth_count, gathered, parent_of, splits_further

NOW = 1_700_000_000_000
PARTS = st.tuples(
    st.builds(Rate, st.integers(1_000, 20_000), st.integers(1, 5_000), st.integers(1, 2_000)),
    st.integers(-20_000, 25_000),
    st.integers(NOW - 3_000, NOW + 3_000),
)


@pytest.mark.parametrize(
    ("share_milli", "largest_milli", "splits"),
    [
        (2_000, 0, True),
        (1_999, 0, False),
        (2_001, 1_001, False),
        (2_002, 1_001, True),
        (600_000, 300_000, True),
        (599_999, 300_000, False),
    ],
)
def test_half_a_share_must_still_be_useful(share_milli: int, largest_milli: int, splits: bool) -> None:
    """At least a token, and at least what somebody was given at once."""
    assert splits_further(share_milli, largest_milli) is splits


def test_where_shards_come_from() -> None:
    """Shard 5 was split off shard 1 when there were four."""
    assert [birth_count(shard_id) for shard_id in range(1, 9)] == [1, 2, 2, 4, 4, 4, 4, 8]
    assert [parent_of(shard_id) for shard_id in range(1, 9)] == [0, 0, 1, 0, 1, 2, 3, 0]


@given(st.lists(PARTS, min_size=2, max_size=4), st.integers(1, 80_000))
@example([(Rate(1_000, 1_000, 1_000), 0, NOW)] * 2, 2_000)
@example([(Rate(1_000, 1_000, 1_000), 0, NOW)] * 2, 2)
@example([(Rate(1_000, 1_000, 1_000), 0, NOW)] * 2, 3)
def test_the_wait_for_several_shards_is_the_shortest_that_is_enough(
    parts: list[tuple[Rate, int, int]], need_milli: int
) -> None:
    """One millisecond earlier they hold too little; without end only if all of them full are not enough."""

    def held(now_ms: int) -> int:
        return sum(balance(rate, tokens, origin, now_ms) for rate, tokens, origin in parts)

    spread = Spread([Level(*part) for part in parts])
    wait_ms = spread.retry_after_ms(need_milli, NOW)
    assert (wait_ms == float("inf")) is (need_milli > sum(rate.capacity_milli for rate, _, _ in parts))
    if wait_ms == 0:
        assert held(NOW) >= need_milli
    elif wait_ms != float("inf"):
        assert held(NOW + int(wait_ms)) >= need_milli > held(NOW + int(wait_ms) - 1)


def test_shards_are_gathered_from_the_fullest_on() -> None:
    """What is in debt gives nothing, and nobody gives part of what is not there."""
    assert gathered({"a": 5}, [{"a": 2}, {"a": 4}]) == [{"a": 1}, {"a": 4}]
    assert gathered({"a": 5}, [{"a": 5}, {"a": -3}, {}]) == [{"a": 5}, {}, {}]
    assert gathered({"a": 5}, [{"a": 4}, {"a": -3}]) is None
    assert gathered({"a": 1}, [{"a": 0}, {"a": 1}]) == [{}, {"a": 1}]
