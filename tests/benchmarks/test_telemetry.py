"""The comparison of telemetry runs, and shows each way beside a limiter that nobody looks at."""

from benchmarks.telemetry import WAYS, measure, report


def test_each_way_is_measured() -> None:
    """In both colours; what comes of it depends on the machine and is not judged here."""
    best = measure(1)
    assert {colour: set(ways) for colour, ways in best.items()} == {"sync": set(WAYS), "async": set(WAYS)}
    assert len(report(best).splitlines()) == 2 + 2 * len(WAYS)
