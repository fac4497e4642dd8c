"""What the tests of bad input share."""

from pathlib import Path

import pytest

from tests.fuzz.files import furnish_file


@pytest.fixture(scope="module")
def furnished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The furnished store as a file in a directory of its own."""
    return furnish_file(tmp_path_factory.mktemp("fuzz") / "furnished.db")
