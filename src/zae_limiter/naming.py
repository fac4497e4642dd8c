"""What may be called what.

Entities, their parents, principals and resources are called whatever people call them: an address, a path,
``auth0|abc``. What is refused is what keys and terminals could not bear, and nothing else:

- ``#``, at which keys are cut
- what is no text: control characters, line and paragraph separators, marks that turn the direction of writing
  around, halves of surrogate pairs, and code points that Unicode keeps for no character
- white space at either end, which nobody sees
- more than 256 characters, or more than 500 bytes in UTF-8: two such names fit into one sort key of DynamoDB
- a few words of our own: entities do not begin with ``$``, and no resource is called ``_default_``

The set is spelled out and not asked of Python's tables, so that a name is good on every version of Python.
Names are compared code point by code point. Limits, namespaces and stacks have narrower rules: their names
become attributes, parts of other names, and resources of AWS. All are checked once, at the public edge.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache, wraps

from .exceptions import InvalidIdentifierError, InvalidNameError, ValidationError

WCU = "wcu"
"""The reserved limit that counts the writes of a bucket shard; users never see it."""

DEFAULT_RESOURCE = "_default_"
"""Stands for "every resource" in an entity's own configuration."""

NAME_LENGTH_MAX = 256
NAME_BYTES_MAX = 500
LIMIT_NAME_LENGTH_MAX = 64
STACK_NAME_LENGTH_MIN = 3
STACK_NAME_LENGTH_MAX = 55
NAMESPACE_LENGTH_MAX = 64

_NO_TEXT = (
    r"\x00-\x1f\x7f-\x9f"  # control characters
    r"\u2028\u2029"  # separators of lines and paragraphs
    r"\u202a-\u202e\u2066-\u2069"  # marks that turn the direction of writing around
    r"\ud800-\udfff"  # halves of surrogate pairs, which cannot be written down
    r"\ufdd0-\ufdef"  # kept for no character, like the last two of every plane
    + "".join(rf"\U{plane:04x}fffe\U{plane:04x}ffff" for plane in range(17))
)
_WRONG = re.compile(rf"[#{_NO_TEXT}]")
_LIMIT = re.compile(r"[A-Za-z][A-Za-z0-9_.\-]*")
_STACK = re.compile(r"[A-Za-z][A-Za-z0-9-]*")
_NAMESPACE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.\-]*")
_NAMESPACE_ID = re.compile(r"(?!_\Z)[A-Za-z0-9_.\-]+")

_NAME_RULE = "use any characters but '#' and control characters"
_LIMIT_RULE = "start with a letter, then letters, digits, '_', '.' or '-'"
_STACK_RULE = "start with a letter, then letters, digits or '-'"
_NAMESPACE_RULE = "start with a letter or digit, then letters, digits, '_', '.' or '-'"

_REMEMBERED = 4096


def _remembered(validate: Callable[[str], str]) -> Callable[[str], str]:
    """Valid names recur on every request, so their verdict is kept; errors are not."""
    known = lru_cache(_REMEMBERED)(validate)

    @wraps(validate)
    def check(name: str) -> str:
        try:
            return known(name)
        except TypeError:  # what cannot be hashed is no name either, and is told so
            return validate(name)

    return check


@_remembered
def validate_entity_id(entity_id: str) -> str:
    return _checked_entity("entity_id", entity_id)


def validate_parent_id(parent_id: str) -> str:
    return _checked_entity("parent_id", parent_id)


def validate_principal(principal: str) -> str:
    return _checked_name(InvalidIdentifierError, "principal", principal)


@_remembered
def validate_resource(resource: str) -> str:
    if isinstance(resource, str) and resource == DEFAULT_RESOURCE:
        raise InvalidNameError("resource", resource, "it stands for every resource; choose another name")
    return _checked_name(InvalidNameError, "resource", resource)


@_remembered
def validate_limit_name(name: str) -> str:
    if isinstance(name, str) and name == WCU:
        raise InvalidNameError("limit name", name, "it is reserved for internal use; choose another name")
    return _checked(InvalidNameError, "limit name", name, _LIMIT, _LIMIT_RULE, LIMIT_NAME_LENGTH_MAX)


def validate_stack_name(name: str) -> str:
    _checked(InvalidNameError, "stack name", name, _STACK, _STACK_RULE, STACK_NAME_LENGTH_MAX)
    if len(name) < STACK_NAME_LENGTH_MIN:  # its table has the same name, and DynamoDB takes no shorter one
        needed = f"it has {len(name)} characters; at least {STACK_NAME_LENGTH_MIN} are needed"
        raise InvalidNameError("stack name", name, needed)
    return name


def validate_namespace(name: str) -> str:
    if isinstance(name, str) and name == "_":
        raise InvalidNameError("namespace", name, "it is reserved for the registry; choose another name")
    if isinstance(name, str) and "://" in name:
        raise InvalidNameError("namespace", name, "this is a store; say open(store=…)")
    return _checked(InvalidNameError, "namespace", name, _NAMESPACE, _NAMESPACE_RULE, NAMESPACE_LENGTH_MAX)


def validate_namespace_id(namespace_id: str) -> str:
    """An opaque id, as ``Namespace.namespace_id`` has it; every key of the namespace begins with it."""
    rule = "pass the namespace_id of a namespace"
    return _checked(
        InvalidIdentifierError, "namespace id", namespace_id, _NAMESPACE_ID, rule, NAMESPACE_LENGTH_MAX
    )


def _checked_entity(field: str, value: str) -> str:
    if isinstance(value, str) and value.startswith("$"):  # changes of defaults are audited under such names
        raise InvalidIdentifierError(field, value, "'$' at the start is reserved; begin with anything else")
    return _checked_name(InvalidIdentifierError, field, value)


def _checked_name(error: type[ValidationError], field: str, value: str) -> str:
    _check_length(error, field, value, NAME_LENGTH_MAX, _NAME_RULE)
    wrong = _WRONG.search(value)
    if wrong is not None and wrong[0] == "#":
        raise error(field, value, f"'#' is reserved; {_NAME_RULE}")
    if wrong is not None:
        raise error(field, value, f"{wrong[0]!r} is no character of a name; {_NAME_RULE}")
    if value[0].isspace() or value[-1].isspace():
        raise error(field, value, "it begins or ends with white space; strip it")
    if not value.isascii() and (size := len(value.encode())) > NAME_BYTES_MAX:
        raise error(field, value, f"it has {size} bytes in UTF-8; at most {NAME_BYTES_MAX} are allowed")
    return value


def _check_length(error: type[ValidationError], field: str, value: str, length_max: int, rule: str) -> None:
    if not isinstance(value, str):
        raise error(field, value, f"it must be a string, not {type(value).__name__}")
    if not value:
        raise error(field, value, f"it is empty; {rule}")
    if len(value) > length_max:
        raise error(field, value, f"it has {len(value)} characters; at most {length_max} are allowed")


def _checked(
    error: type[ValidationError],
    field: str,
    value: str,
    pattern: re.Pattern[str],
    rule: str,
    length_max: int,
) -> str:
    _check_length(error, field, value, length_max, rule)
    if pattern.fullmatch(value):
        return value
    if "#" in value:
        raise error(field, value, f"'#' is reserved; {rule}")
    raise error(field, value, rule)
