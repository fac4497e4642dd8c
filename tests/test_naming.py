"""Which names are good, and what the others are told."""

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
from hypothesis import given

from tests import names
from zae_limiter.exceptions import InvalidIdentifierError, InvalidNameError, ValidationError
from zae_limiter.naming import (
    WCU,
    validate_entity_id,
    validate_limit_name,
    validate_namespace,
    validate_parent_id,
    validate_principal,
    validate_resource,
    validate_stack_name,
)


class Kind(NamedTuple):
    """A kind of name: what it is called, how long it may be, and which signs it may hold where."""

    validate: Callable[[Any], str]
    field: str
    error: type[ValidationError]
    length_max: int
    starts: str
    signs: str
    reserved: tuple[str, ...] = ()
    length_min: int = 1


DIGITS, LETTERS = "09", "azAZ"
NARROW = [
    Kind(validate_limit_name, "limit name", InvalidNameError, 64, LETTERS, "_.-", (WCU,)),
    Kind(validate_stack_name, "stack name", InvalidNameError, 55, LETTERS, "-", length_min=3),
    Kind(validate_namespace, "namespace", InvalidNameError, 64, LETTERS + DIGITS, "_.-", ("_",)),
]
WIDE = [
    Kind(
        validate_entity_id, "entity_id", InvalidIdentifierError, 256, "", "", ("$", "$SYSTEM", "$RESOURCE:x")
    ),
    Kind(
        validate_parent_id, "parent_id", InvalidIdentifierError, 256, "", "", ("$", "$SYSTEM", "$RESOURCE:x")
    ),
    Kind(validate_principal, "principal", InvalidIdentifierError, 256, "", ""),
    Kind(validate_resource, "resource", InvalidNameError, 256, "", "", ("_default_",)),
]
KINDS = [*WIDE, *NARROW]
PRINTABLE = [chr(code) for code in range(32, 127)]
FOREIGN = ["ä", "ﬀ", "１", "٣", "Ⅷ", "🙂", "\u200b", "\x00", "\t", "\n", "\r", "\x7f", "\u2028"]

every_kind = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.field)
narrow = pytest.mark.parametrize("kind", NARROW, ids=lambda kind: kind.field)
wide = pytest.mark.parametrize("kind", WIDE, ids=lambda kind: kind.field)


def refusal(kind: Kind, value: Any) -> ValidationError | None:
    """The error that a value gets, checked for what all of them have in common; ``None`` if it is good."""
    try:
        accepted = kind.validate(value)
    except ValidationError as caught:
        error = caught
    else:
        assert accepted == value
        return None
    assert type(error) is kind.error
    assert (error.field, error.value is value) == (kind.field, True)
    assert str(error).startswith(f"invalid {kind.field} {repr(value)[:100]}")
    return error


@narrow
def test_the_first_sign(kind: Kind) -> None:
    """A name starts with a letter, or a digit where digits may lead; nothing else."""
    rest = "x" * (kind.length_min - 1)
    good = {sign for sign in (*PRINTABLE, *FOREIGN) if refusal(kind, sign + rest) is None}
    letters_and_digits = {sign for sign in PRINTABLE if sign.isalnum()}
    assert good == {s for s in letters_and_digits if s.isalpha() or DIGITS[0] in kind.starts}


@narrow
def test_the_signs_within(kind: Kind) -> None:
    """Inside, letters, digits and the signs of the kind are good, and the rule tells them all."""
    good = {sign for sign in (*PRINTABLE, *FOREIGN) if refusal(kind, f"a{sign}b") is None}
    assert good == {sign for sign in PRINTABLE if sign.isalnum()} | set(kind.signs)
    rule = str(refusal(kind, "a b"))
    assert all(f"'{sign}'" in rule for sign in kind.signs)


EDGES = [plane << 16 | low for plane in range(17) for low in (0, 0xFFFD, 0xFFFE, 0xFFFF)]


@pytest.mark.parametrize(
    ("kind", "codes"),
    [(kind, range(0x300)) for kind in WIDE[:-1]] + [(WIDE[-1], range(0x10000))],
    ids=lambda one: getattr(one, "field", ""),
)
def test_every_character(kind: Kind, codes: range) -> None:
    """Of all that there are, the good ones are those that are text, within a name and alone."""
    every = [chr(code) for code in (*codes, *range(0x10000, 0x110000, 251), *EDGES)]
    good = {sign for sign in every if _is_good(kind, f"a{sign}b")}
    assert good == {sign for sign in every if names.is_allowed(sign)}
    alone = {sign for sign in every if _is_good(kind, sign)}
    reserved = {"$"} & set(kind.reserved)
    assert alone == {sign for sign in good if not sign.isspace()} - reserved


def _is_good(kind: Kind, name: str) -> bool:
    try:
        return bool(kind.validate(name))
    except kind.error:
        return False


@wide
@given(names.names)
def test_any_name_of_the_alphabet(kind: Kind, name: str) -> None:
    """What is no word of ours is good, whatever it begins and ends with."""
    begins = tuple(word for word in kind.reserved if word == "$")
    if name not in kind.reserved and not name.startswith(begins or "#"):
        assert kind.validate(name) == name


@wide
@pytest.mark.parametrize("name", [" a", "a ", "\u00a0a", "a\u3000", " ", "\u2003"])
def test_white_space_at_the_ends(kind: Kind, name: str) -> None:
    """Nobody sees it, so two names would look like one."""
    assert "white space; strip it" in str(refusal(kind, name))
    assert refusal(kind, f"a{name.strip()}b c") is None


@wide
@pytest.mark.parametrize(("name", "size"), [("é" * 251, 502), ("日" * 167, 501), ("🦄" * 126, 504)])
def test_the_bytes(kind: Kind, name: str, size: int) -> None:
    """Keys are counted in bytes, so names of many bytes are shorter."""
    assert f"it has {size} bytes in UTF-8; at most 500 are allowed" in str(refusal(kind, name))
    assert refusal(kind, name[:-1]) is None


@every_kind
@pytest.mark.parametrize("end", ["\n", " ", "#"])
def test_the_last_sign_counts_too(kind: Kind, end: str) -> None:
    """A pattern that stops at the end of a line would let a line feed through."""
    assert refusal(kind, f"name{end}") is not None


@every_kind
def test_the_length(kind: Kind) -> None:
    """The longest and the shortest good name are good; beyond, the number is told that is allowed."""
    assert refusal(kind, "x" * kind.length_max) is None
    error = refusal(kind, "x" * (kind.length_max + 1))
    assert error is not None
    assert f"has {kind.length_max + 1} characters; at most {kind.length_max}" in str(error)
    for length in range(1, kind.length_min):
        assert f"has {length} characters; at least {kind.length_min}" in str(refusal(kind, "x" * length))
    assert refusal(kind, "x" * kind.length_min) is None


@every_kind
def test_an_empty_name_is_told_the_rule(kind: Kind) -> None:
    """Emptiness is a case of its own."""
    rule = "start with a letter" if kind in NARROW else "use any characters but '#' and control characters"
    assert f"it is empty; {rule}" in str(refusal(kind, ""))


@every_kind
@pytest.mark.parametrize("value", ["#", "a#b", "#a", "a#", "a##b"])
def test_the_separator_is_reserved(kind: Kind, value: str) -> None:
    """Keys are cut at ``#``, so the error says that and what to use instead."""
    assert "'#' is reserved; " in str(refusal(kind, value))


@every_kind
@pytest.mark.parametrize(
    "value",
    [None, 0, 1, True, 1.5, b"name", ["name"], {"name": 1}, {1}, object()],
    ids=lambda value: type(value).__name__,
)
def test_what_is_no_string_is_told_its_type(kind: Kind, value: object) -> None:
    """Also what cannot be hashed gets the error of its kind, though good names are remembered."""
    assert f"it must be a string, not {type(value).__name__}" in str(refusal(kind, value))


@every_kind
def test_reserved_names(kind: Kind) -> None:
    """What we use ourselves is refused with that reason, and only there."""
    for name in kind.reserved:
        assert any(why in str(refusal(kind, name)) for why in ("reserved", "stands for every resource"))
    for name in {WCU} - set(kind.reserved):
        assert refusal(kind, name) is None


@every_kind
def test_a_verdict_does_not_depend_on_the_past(kind: Kind) -> None:
    """Good names stay good and bad ones bad, however often and in which order they are asked about."""
    for _ in range(3):
        assert refusal(kind, "name") is None
        assert refusal(kind, "na#me") is not None
        assert refusal(kind, ["name"]) is not None


@pytest.mark.parametrize(
    ("validate", "name"),
    [
        (validate_entity_id, "arn:aws:iam::123456789012:user@example.com"),
        (validate_entity_id, "8da5a8b5-71da-3dec"),
        (validate_entity_id, "ann+x@y.com"),
        (validate_entity_id, "auth0|abc"),
        (validate_principal, "arn:aws:sts::123456789012:assumed-role/Admin/ann"),
        (validate_resource, "/v1/chat"),
        (validate_resource, "openai/gpt-4:turbo"),
        (validate_resource, "models.gpt_4"),
        (validate_limit_name, "tokens.in"),
        (validate_limit_name, "a-b"),
        (validate_limit_name, "WCU"),
        (validate_namespace, "tenant_1.eu-west"),
        (validate_stack_name, "my-app-Limits2"),
    ],
)
def test_names_people_use(validate: Callable[[str], str], name: str) -> None:
    """Names from real systems are good."""
    assert validate(name) == name


def test_the_example_of_the_style_guide() -> None:
    """The message is the whole help: what, why, and what to use."""
    with pytest.raises(InvalidNameError) as caught:
        validate_resource("gpt#4")
    assert str(caught.value) == (
        "invalid resource 'gpt#4': '#' is reserved; use any characters but '#' and control characters"
    )
