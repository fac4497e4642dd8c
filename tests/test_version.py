"""Which client, schema and Lambda fit together."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import zae_limiter
from zae_limiter.exceptions import ValidationError
from zae_limiter.version import (
    SCHEMA_VERSION,
    Compatibility,
    Version,
    check_compatibility,
    client_version,
    parse_version,
)

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("1.2.3", (1, 2, 3)),
        ("v1.2.3", (1, 2, 3)),
        ("1.2", (1, 2, 0)),
        ("0.0.0", (0, 0, 0)),
        ("10.20.30", (10, 20, 30)),
        ("1.2.3.dev4+abc", (1, 2, 3)),
        ("1.2.3rc1", (1, 2, 3)),
        ("1.2.3-beta", (1, 2, 3)),
        ("1.2.dev1", (1, 2, 0)),
    ],
)
def test_versions_that_are_read(text: str, version: tuple[int, int, int]) -> None:
    """What follows the numbers is ignored."""
    assert parse_version(text) == Version(*version)


@pytest.mark.parametrize(
    "text", ["", "1", "one", "1.", ".1", "1.x", "1.2.3\n", " 1.2.3", "1,2", "-1.2.3", None, 1.2, b"1.2.3", []]
)
def test_versions_that_are_not(text: Any) -> None:
    """The error shows the text and how a version is written."""
    with pytest.raises(ValidationError, match=r"write it as 1\.2\.3") as caught:
        parse_version(text)
    assert repr(text) in str(caught.value)


def test_versions_compare_as_numbers() -> None:
    """Ten is more than nine, which text does not know."""
    assert parse_version("1.10.0") > parse_version("1.9.9")
    assert str(parse_version("v1.2")) == "1.2.0"


def test_the_package_knows_its_version() -> None:
    """What is exported is what the package is built as, and above every version of the older product."""
    built = subprocess.run(
        [sys.executable, "-m", "hatchling", "version"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert zae_limiter.__version__ == client_version() == built.stdout.strip()
    assert parse_version(zae_limiter.__version__) >= Version(1, 0, 0)


MINE = parse_version(SCHEMA_VERSION)
OLDER, NEWER = f"{MINE.major - 1}.9.9", f"{MINE.major + 1}.0.0"


@pytest.mark.parametrize(
    ("arguments", "verdict", "hint"),
    [
        (("1.0.0", SCHEMA_VERSION), (True, False, False, False), "compatible"),
        (("1.0.0", f"{MINE.major}.99.0"), (True, False, False, False), "compatible"),
        (("1.0.0", OLDER), (False, True, False, False), "run `zae-limiter upgrade`"),
        (("1.0.0", NEWER), (False, False, True, False), "install a newer zae-limiter"),
        (("1.0.0", SCHEMA_VERSION, "1.0.0"), (True, False, False, False), "compatible"),
        (("1.0.0", SCHEMA_VERSION, "1.0.1"), (False, False, True, False), "needs client 1.0.1 or newer"),
        (("1.0.0", SCHEMA_VERSION, "0.0.0", "1.0.0"), (True, False, False, False), "compatible"),
        (("1.0.0", SCHEMA_VERSION, "0.0.0", "1.1.0"), (True, False, False, False), "compatible"),
        (("1.0.0", SCHEMA_VERSION, "0.0.0", "0.9.0"), (True, False, False, True), "the aggregator is 0.9.0"),
        # A schema that cannot be read comes before everything else, an outdated client before the Lambda.
        (("1.0.0", NEWER, "9.0.0", "0.1.0"), (False, False, True, False), f"has schema {NEWER}"),
        (("1.0.0", SCHEMA_VERSION, "9.0.0", "0.1.0"), (False, False, True, False), "needs client 9.0.0"),
    ],
)
def test_who_may_use_what(
    arguments: tuple[str, ...], verdict: tuple[bool, bool, bool, bool], hint: str
) -> None:
    """Each disagreement has its own verdict and its own way out."""
    found = check_compatibility(*arguments)
    assert found == Compatibility(*verdict, found.message)
    assert hint in found.message
