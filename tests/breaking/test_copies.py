"""The round through all stores, small; ``make copies`` does it with 100,000 entities."""

from pathlib import Path

from tests.breaking.copies import KILLS, went_round


def test_a_namespace_comes_back_as_it_was(tmp_path: Path) -> None:
    """Through every store, killed twice on the way."""
    ways = went_round(300, tmp_path)
    assert [ways[0].source, ways[-1].target] == ["sqlite", "sqlite"]
    assert sum(way.kills for way in ways) == KILLS
