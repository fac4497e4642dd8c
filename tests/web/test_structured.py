"""Structured fields, read back by a parser that is not ours."""

import http_sfv
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zae_limiter import ValidationError
from zae_limiter.web.structured import INTEGER_MAX, item, listed, text_of

visible = st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E))
keys = st.from_regex(r"\A[a-z*][a-z0-9_.*\-]{0,6}\Z")
integers = st.integers(-INTEGER_MAX, INTEGER_MAX)


@given(st.lists(st.tuples(visible, st.dictionaries(keys, visible | integers, max_size=4)), min_size=1))
def test_a_list_is_read_back(items: list[tuple[str, dict[str, str | int]]]) -> None:
    """Strings with any visible characters, and parameters of both kinds."""
    parsed = http_sfv.List()
    parsed.parse(listed(item(name, parameters) for name, parameters in items).encode("ascii"))
    assert [(one.value, dict(one.params)) for one in parsed] == items


@pytest.mark.parametrize("value", ["a\nb", "\x7f", "ü", "\x00", INTEGER_MAX + 1, -INTEGER_MAX - 1])
def test_what_cannot_be_said_is_an_error(value: str | int) -> None:
    """A field that others would read differently is never written."""
    with pytest.raises(ValidationError, match="of a header"):
        text_of(value)


@pytest.mark.parametrize("key", ["", "Q", "1a", "a b", "ä"])
def test_a_parameter_has_a_key(key: str) -> None:
    """Keys are lower case and begin with a letter or a star."""
    with pytest.raises(ValidationError, match="parameter of a header"):
        item("rpm", {key: 1})
