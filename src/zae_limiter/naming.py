"""What may be called what.

Entities, their parents, principals and resources are called whatever people call them: an address, a path,
``auth0|abc``. What is refused is what keys and terminals could not bear, and nothing else: ``#``, at which
keys are cut, what is no text, white space at either end, which nobody sees, and a few words of our own. At
most 256 characters and 500 bytes in UTF-8: two such names fit into one sort key of DynamoDB. Limits,
namespaces and stacks have narrower rules: their names become attributes, parts of other names, and resources
of AWS.
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
STACK_NAME_LENGTH_MIN = 3

# Spelled out and not asked of Python's tables, so that a name is good on every version of Python.
_NO_TEXT = (
    r"\x00-\x1f\x7f-\x9f"  # control characters
    r"\u2028\u2029"  # separators of lines and paragraphs
    r"\u202a-\u202e\u2066-\u2069"  # marks that turn the direction of writing around
    r"\ud800-\udfff"  # halves of surrogate pairs, which cannot be written down
    r"\ufdd0-\ufdef"  # kept for no character, like the last two of every plane
    + "".join(rf"\U{plane:04x}fffe\U{plane:04x}ffff" for plane in range(17))
)
_WRONG = re.compile(rf"[#{_NO_TEXT}]")
_NAME_RULE = "use any characters but '#' and control characters"

# How other names are spelled, as a pattern and as a sentence, and how long they may be.
_Spelling = tuple[str, str, int]
_LIMIT = (r"[A-Za-z][A-Za-z0-9_.\-]*", "start with a letter, then letters, digits, '_', '.' or '-'", 64)
_STACK = (r"[A-Za-z][A-Za-z0-9-]*", "start with a letter, then letters, digits or '-'", 55)
_NAMESPACE_RULE = "start with a letter or digit, then letters, digits, '_', '.' or '-'"
_NAMESPACE = (r"[A-Za-z0-9][A-Za-z0-9_.\-]*", _NAMESPACE_RULE, 64)
_NAMESPACE_ID = (r"(?!_\Z)[A-Za-z0-9_.\-]+", "pass the namespace_id of a namespace", 64)


def plain(name: str) -> str:
    """A name without what else it may be: a member of an enumeration is formatted by its class."""
    return str.__str__(name) if isinstance(name, str) else name


def _remembered(validate: Callable[[str], str]) -> Callable[[str], str]:
    """Valid names recur on every request, so their verdict is kept; errors are not."""
    known = lru_cache(4096)(validate)

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
    return plain(_checked_entity("parent_id", parent_id))


def validate_key(key: str) -> str:
    return _checked_name(InvalidIdentifierError, "key", key)


def validate_principal(principal: str) -> str:
    return _checked_name(InvalidIdentifierError, "principal", principal)


@_remembered
def validate_resource(resource: str) -> str:
    if isinstance(resource, str) and resource == DEFAULT_RESOURCE:
        raise InvalidNameError("resource", resource, "it stands for every resource; choose another name")
    return _checked_name(InvalidNameError, "resource", resource)


@_remembered
def validate_model(model: str) -> str:
    return _checked_name(InvalidNameError, "model", model)


@_remembered
def validate_limit_name(name: str) -> str:
    if isinstance(name, str) and name == WCU:
        raise InvalidNameError("limit name", name, "it is reserved for internal use; choose another name")
    return _checked(InvalidNameError, "limit name", name, _LIMIT)


def validate_stack_name(name: str) -> str:
    _checked(InvalidNameError, "stack name", name, _STACK)
    if len(name) < STACK_NAME_LENGTH_MIN:  # its table has the same name, and DynamoDB takes no shorter one
        needed = f"it has {len(name)} characters; at least {STACK_NAME_LENGTH_MIN} are needed"
        raise InvalidNameError("stack name", name, needed)
    return name


def validate_namespace(name: str) -> str:
    if isinstance(name, str) and name == "_":
        raise InvalidNameError("namespace", name, "it is reserved for the registry; choose another name")
    if isinstance(name, str) and "://" in name:
        raise InvalidNameError("namespace", name, "this is a store; say open(store=…)")
    return _checked(InvalidNameError, "namespace", name, _NAMESPACE)


def validate_namespace_id(namespace_id: str) -> str:
    """An opaque id, as ``Namespace.namespace_id`` has it; every key of the namespace begins with it."""
    return _checked(InvalidIdentifierError, "namespace id", namespace_id, _NAMESPACE_ID)


def _checked_entity(field: str, value: str) -> str:
    if isinstance(value, str) and value.startswith("$"):  # changes of defaults are audited under such names
        raise InvalidIdentifierError(field, value, "'$' at the start is reserved; begin with anything else")
    return _checked_name(InvalidIdentifierError, field, value)


def _checked_name(error: type[ValidationError], field: str, value: str) -> str:
    _check_length(error, field, value, NAME_LENGTH_MAX, _NAME_RULE)
    if wrong := _WRONG.search(value):
        why = "is reserved" if wrong[0] == "#" else "is no character of a name"
        raise error(field, value, f"{wrong[0]!r} {why}; {_NAME_RULE}")
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


def _checked(error: type[ValidationError], field: str, value: str, spelling: _Spelling) -> str:
    pattern, rule, length_max = spelling
    _check_length(error, field, value, length_max, rule)
    if re.fullmatch(pattern, value):
        return value
    raise error(field, value, f"'#' is reserved; {rule}" if "#" in value else rule)
