"""What a value is on the server: a class of its own changes nothing of it."""

import enum

import pytest

from zae_limiter.backends.postgres.encoding import condition_of, value_of
from zae_limiter.repository_protocol import Equal


class Word(str):
    """A text of a class of its own, as names and ids of namespaces are."""

    __slots__ = ()


class Number(enum.IntEnum):
    FIVE = 5


@pytest.mark.parametrize(("own", "plain"), [(Word("text"), "text"), (Number.FIVE, 5)], ids=["text", "number"])
def test_a_class_of_its_own_changes_no_value(own: object, plain: object) -> None:
    """It is stored and compared as what it is, not as an object that equals nothing."""
    assert (value_of(own), type(value_of(own))) == (plain, type(plain))
    assert condition_of([Equal("a", own)]) == condition_of([Equal("a", plain)])  # type: ignore[arg-type]
