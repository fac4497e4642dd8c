"""The arithmetic of shards: how far a limit is split, and when several shards hold enough together."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from zae_limiter.engine.law import Rate, balance
from zae_limiter.engine.level import Level
from zae_limiter.engine.shares import (
    SHARDS_MAX,
    Spread,
    birth_count,
    gathered,
    halves,
    parent_of,
    share,
    splits_further,
)

NOW = 1_700_000_000_000
PARTS = st.tuples(
    st.builds(
        Rate, st.integers(1_000, 20_000), st.integers(1, 5_000), st.integers(1, 2_000), st.none(), st.none()
    ),
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
    """Shard 5 was split off shard 1 when there were four, shard i + k off shard i when there were k."""
    assert [birth_count(shard_id) for shard_id in range(1, 9)] == [1, 2, 2, 4, 4, 4, 4, 8]
    assert [parent_of(shard_id) for shard_id in range(1, 9)] == [0, 0, 1, 0, 1, 2, 3, 0]
    assert [(parent_of(shard_id), birth_count(shard_id)) for shard_id in (17, 31)] == [(1, 16), (15, 16)]


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


@given(st.integers(1, 10**15), st.integers(1, SHARDS_MAX))
def test_shares_add_up_to_the_whole(total: int, count: int) -> None:
    """For every count and remainder, and no two shares differ by more than one."""
    parts = [share(total, shard_id, count) for shard_id in range(count)]
    assert sum(parts) == total
    assert max(parts) - min(parts) <= 1


@given(st.integers(1, 10**15), st.sampled_from([1, 2, 4, 8, 16]))
def test_halves_of_a_share_are_the_shares_of_twice_as_many(total: int, count: int) -> None:
    """So a shard can be split by what it knows itself."""
    for shard_id in range(count):
        kept, new = halves(share(total, shard_id, count))
        assert (kept, new) == (share(total, shard_id, 2 * count), share(total, shard_id + count, 2 * count))


@given(
    st.dictionaries(st.sampled_from("ab"), st.integers(1, 100), min_size=1),
    st.lists(st.dictionaries(st.sampled_from("ab"), st.integers(-20, 60)), min_size=1, max_size=6),
)
def test_gathering_takes_exactly_the_need_and_nothing_that_is_not_there(
    needs: dict[str, int], balances: list[dict[str, int]]
) -> None:
    """It fails only when all shards together have too little."""
    parts = gathered(needs, balances)
    enough = all(sum(max(0, b.get(n, 0)) for b in balances) >= amount for n, amount in needs.items())
    assert (parts is not None) == enough
    if parts is not None:
        for name, amount in needs.items():
            assert sum(part.get(name, 0) for part in parts) == amount
        assert all(
            part[n] <= there.get(n, 0) for part, there in zip(parts, balances, strict=True) for n in part
        )


def test_a_wait_for_shards_counts_what_is_there_when_a_line_is_over() -> None:
    """What was set aside is there for all at that instant, so nobody is told to come later."""
    rate = Rate(10_000, 1_000, 1_000)
    waited_for = Level(rate, -8_000, NOW, None, 3_000, NOW + 9_000)
    other = Level(rate, -8_000, NOW)
    spread = Spread([waited_for, other])
    assert (spread.balance(NOW), spread.balance(NOW + 8_999)) == (-16_000, 1_998)
    assert spread.retry_after_ms(5_000, NOW) == 9_000
    assert spread.retry_after_ms(6_000, NOW) == 9_500
