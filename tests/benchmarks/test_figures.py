"""What is computed from samples, without taking any."""

import pytest
from hypothesis import given
from hypothesis import strategies as some

from benchmarks.figures import Figure, compact, figure, measured, percentile, ratio, times
from tests.benchmarks.stored import sample


@pytest.mark.parametrize(
    ("values", "part", "expected"),
    [
        ([5.0], 0.5, 5.0),
        ([1.0, 2.0, 3.0, 4.0], 0.5, 2.0),
        ([float(n) for n in range(1, 101)], 0.99, 99.0),
        ([float(n) for n in range(1, 102)], 0.99, 100.0),
    ],
)
def test_a_percentile_is_one_of_the_values(values: list[float], part: float, expected: float) -> None:
    """The smallest that enough of the others do not exceed."""
    assert percentile(values, part) == expected


@given(some.lists(some.integers(0, 10**9), min_size=1), some.sampled_from([0.5, 0.9, 0.99]))
def test_a_percentile_covers_its_part(values: list[int], part: float) -> None:
    """At least that part of the values is not larger, and with any smaller value it would be less."""
    ordered = sorted(values)
    found = percentile(ordered, part)
    assert sum(value <= found for value in ordered) >= part * len(ordered)
    assert sum(value < found for value in ordered) < part * len(ordered)


def test_nothing_has_no_percentile() -> None:
    with pytest.raises(ValueError, match="no values"):
        percentile([], 0.5)


def test_a_figure_is_the_median_and_the_range() -> None:
    """One round in which the machine was busy moves the range and not the median."""
    assert figure([3.0, 1.0, 2.0]) == Figure(2.0, 1.0, 3.0)
    assert figure([3.0, 1.0, 2.0]).spread == 1.0


def test_rounds_become_figures() -> None:
    """Throughput and CPU are for each operation; latencies are medians of the rounds' own."""
    found = measured([sample(100, p50_us=5.0), sample(200, p50_us=7.0), sample(400, p50_us=6.0)])
    assert found.throughput == Figure(200.0, 100.0, 400.0)
    assert found.cpu_us == Figure(5_000.0, 2_500.0, 10_000.0)
    assert (found.p50_us.median, found.p99_us.median) == (6.0, 60.0)


def test_a_round_without_success_says_nothing() -> None:
    """But a case without any success must not look like one that was not measured."""
    failed = sample(0) | {"p50_us": None, "p99_us": None}
    assert measured([failed, sample(10)]).throughput == Figure(10.0, 10.0, 10.0)
    with pytest.raises(ValueError, match="succeeded"):
        measured([failed])


def test_a_ratio_to_nothing_is_none() -> None:
    assert ratio(1.0, 0.0) is None
    assert ratio(1.0, 4.0) == 0.25
    assert times(None) == "–"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (0.000251, "0.000251"),
        (0.5, "0.5"),
        (12.345, "12.3"),
        (999.9, "1,000"),
        (123_456, "123,000"),
    ],
)
def test_numbers_have_three_digits(value: float, text: str) -> None:
    """More would promise what a busy machine cannot keep."""
    assert compact(value) == text
