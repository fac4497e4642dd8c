"""What the tests of the DynamoDB store need once."""

from pathlib import Path

import pytest

from tests.dynamodb.certificates import make_certificates


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an authority, a server that it vouches for, and one whose name is another."""
    folder = tmp_path_factory.mktemp("certificates")
    make_certificates(folder)
    return folder
