"""Structured fields as RFC 9651 writes them: the few forms that headers of limits need.

It serialises, and parses nothing: tests read what it wrote with a parser that is not ours. What the
standard cannot say is an error and never a field that somebody reads otherwise. It knows no limits.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from ..exceptions import ValidationError

INTEGER_MAX = 999_999_999_999_999
"""The largest integer that a structured field holds."""

_VISIBLE = re.compile(r"[ -~]*")
_KEY = re.compile(r"[a-z*][a-z0-9_.*-]*")


def text_of(value: str | int, what: str = "string of a header") -> str:
    """A bare item: a string in quotes, or an integer; ``what`` it is called if it cannot be one.

    >>> text_of('say "hi"'), text_of(-7)
    ('"say \\\\"hi\\\\""', '-7')
    """
    if isinstance(value, str):
        if not _VISIBLE.fullmatch(value):
            raise ValidationError(what, value, "use visible ASCII characters")
        escaped = value.replace("\\", "\\\\").replace('"', '\\"')
        return f'"{escaped}"'
    if not -INTEGER_MAX <= value <= INTEGER_MAX:
        raise ValidationError("integer of a header", value, f"use at most {INTEGER_MAX}")
    return str(value)


def item(name: str, parameters: Mapping[str, str | int]) -> str:
    """A string with its parameters.

    >>> item("rpm", {"q": 100, "w": 60, "qu": "requests"})
    '"rpm";q=100;w=60;qu="requests"'
    """
    for key in parameters:
        if not _KEY.fullmatch(key):
            raise ValidationError("parameter of a header", key, "begin with a letter, in lower case")
    return text_of(name) + "".join(f";{key}={text_of(value)}" for key, value in parameters.items())


def listed(items: Iterable[str]) -> str:
    """Several items as one field."""
    return ", ".join(items)
