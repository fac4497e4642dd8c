"""What the tests of the DynamoDB store need once."""

from pathlib import Path

import pytest

from tests.dynamodb.papers import make_papers


@pytest.fixture(scope="session")
def papers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an authority, a server that it vouches for, and one whose name is another."""
    folder = tmp_path_factory.mktemp("papers")
    make_papers(folder)
    return folder
