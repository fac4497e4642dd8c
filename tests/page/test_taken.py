"""The pictures and the film of the documents show the page as it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.page import taken


@pytest.mark.parametrize("kind", taken.HOW)
def test_they_are_of_this_page(kind: str) -> None:
    """Whoever changes the page takes them anew."""
    assert taken.older(kind) == ""


def test_older_ones_are_seen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It says how to take them."""
    monkeypatch.setattr(taken, "PLACE", tmp_path)
    taken.note("film")
    assert taken.older("film") == ""
    (tmp_path / "film.digest").write_text("of another page\n")
    assert "python -m tests.page.film" in taken.older("film")
