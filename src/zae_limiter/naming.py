"""What may be called what.

Every name becomes part of a key, so ``#`` is never allowed, and whatever is allowed must work
everywhere: in keys, in expressions, in usage rows. Names are checked once, at the public edge.
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

IDENTIFIER_LENGTH_MAX = 256
LIMIT_NAME_LENGTH_MAX = 64
RESOURCE_LENGTH_MAX = 64
STACK_NAME_LENGTH_MAX = 55
NAMESPACE_LENGTH_MAX = 64

_IDENTIFIER = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.\-:@]*")
_LIMIT = re.compile(r"[A-Za-z][A-Za-z0-9_.\-]*")
_RESOURCE = re.compile(r"[A-Za-z][A-Za-z0-9_.\-/:]*")
_STACK = re.compile(r"[A-Za-z][A-Za-z0-9-]*")
_NAMESPACE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.\-]*")
_NAMESPACE_ID = re.compile(r"(?!_\Z)[A-Za-z0-9_.\-]+")

_IDENTIFIER_RULE = "start with a letter or digit, then letters, digits, '_', '.', '-', ':' or '@'"
_LIMIT_RULE = "start with a letter, then letters, digits, '_', '.' or '-'"
_RESOURCE_RULE = "start with a letter, then letters, digits, '.', '_', '-', '/' or ':'"
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
    return _checked(InvalidIdentifierError, "entity_id", entity_id, _IDENTIFIER, _IDENTIFIER_RULE)


def validate_parent_id(parent_id: str) -> str:
    return _checked(InvalidIdentifierError, "parent_id", parent_id, _IDENTIFIER, _IDENTIFIER_RULE)


def validate_principal(principal: str) -> str:
    return _checked(InvalidIdentifierError, "principal", principal, _IDENTIFIER, _IDENTIFIER_RULE)


@_remembered
def validate_resource(resource: str) -> str:
    return _checked(InvalidNameError, "resource", resource, _RESOURCE, _RESOURCE_RULE, RESOURCE_LENGTH_MAX)


@_remembered
def validate_limit_name(name: str) -> str:
    if isinstance(name, str) and name == WCU:
        raise InvalidNameError("limit name", name, "it is reserved for internal use; choose another name")
    return _checked(InvalidNameError, "limit name", name, _LIMIT, _LIMIT_RULE, LIMIT_NAME_LENGTH_MAX)


def validate_stack_name(name: str) -> str:
    return _checked(InvalidNameError, "stack name", name, _STACK, _STACK_RULE, STACK_NAME_LENGTH_MAX)


def validate_namespace(name: str) -> str:
    if isinstance(name, str) and name == "_":
        raise InvalidNameError("namespace", name, "it is reserved for the registry; choose another name")
    return _checked(InvalidNameError, "namespace", name, _NAMESPACE, _NAMESPACE_RULE, NAMESPACE_LENGTH_MAX)


def validate_namespace_id(namespace_id: str) -> str:
    """An opaque id, as ``Namespace.namespace_id`` has it; every key of the namespace begins with it."""
    rule = "pass the namespace_id of a namespace"
    return _checked(
        InvalidIdentifierError, "namespace id", namespace_id, _NAMESPACE_ID, rule, NAMESPACE_LENGTH_MAX
    )


def _checked(
    error: type[ValidationError],
    field: str,
    value: str,
    pattern: re.Pattern[str],
    rule: str,
    length_max: int = IDENTIFIER_LENGTH_MAX,
) -> str:
    if not isinstance(value, str):
        raise error(field, value, f"it must be a string, not {type(value).__name__}")
    if not value:
        raise error(field, value, f"it is empty; {rule}")
    if len(value) > length_max:
        raise error(field, value, f"it has {len(value)} characters; at most {length_max} are allowed")
    if pattern.fullmatch(value):
        return value
    if "#" in value:
        raise error(field, value, f"'#' is reserved; {rule}")
    raise error(field, value, rule)
