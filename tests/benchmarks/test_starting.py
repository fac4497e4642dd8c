"""What a start costs can be measured where nothing but the package is installed."""

from benchmarks.starting import OURS, THEIRS, measured


def test_every_program_runs() -> None:
    """Each of ours, once; those of peers where they are installed."""
    found = measured(1)
    assert {*OURS} <= {*found} <= {*OURS, *THEIRS}
    assert all(ms > 0 and len(runs) == 1 for runs in found.values() for ms in runs)
