"""What may be said about an entity: its name, its metadata. Checked so that every store keeps it alike."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ..exceptions import ValidationError, shown
from ..models import check_mapping

NAME_LENGTH_MAX = 256
METADATA_BYTES_MAX = 64 * 1024
METADATA_DEPTH_MAX = 16
NUMBER_MAX = 10**38
"""Numbers of more digits, or much nearer to zero, are not kept exactly by every store."""


def check_name(name: str | None) -> str | None:
    if name is None:
        return None
    if not isinstance(name, str) or not 0 < len(name) <= NAME_LENGTH_MAX:
        raise ValidationError("name", name, f"it must be a text of 1 to {NAME_LENGTH_MAX} characters")
    if problem := problem_of(name):
        raise ValidationError("name", name, problem)
    return name


def check_cascade(cascade: bool) -> bool:
    if not isinstance(cascade, bool):
        raise ValidationError("cascade", cascade, "use True or False")
    return cascade


def check_metadata(metadata: Mapping[str, Any] | None) -> dict[str, Any]:
    """Metadata as plain JSON data."""
    if metadata is None:
        return {}
    rule = "it must be a mapping of JSON values"
    given = check_mapping("metadata", metadata, rule)
    try:
        text = json.dumps(given, allow_nan=False)
        plain: dict[str, Any] = json.loads(text)
    except (TypeError, ValueError, RecursionError) as error:
        raise ValidationError("metadata", metadata, f"{rule} ({error})") from error
    if len(text) > METADATA_BYTES_MAX:
        raise ValidationError("metadata", f"{len(text)} bytes", f"at most {METADATA_BYTES_MAX} are kept")
    if problem := problem_of(plain, METADATA_DEPTH_MAX):
        raise ValidationError("metadata", metadata, problem)
    return plain


def problem_of(value: Any, depth_left: int = 0) -> str | None:
    """What keeps a value from being stored the same way everywhere."""
    match value:
        case None | bool():
            return None
        case str():
            return None if _is_whole(value) else "half of a character is in it"
        case int() | float():
            exact = not value or 1 / NUMBER_MAX <= abs(value) < NUMBER_MAX
            return None if exact else f"the number {shown(value)} is not kept exactly"
        case dict() | list() if not depth_left:
            return f"it is nested more than {METADATA_DEPTH_MAX} levels deep"
        case dict():
            if "" in value:
                return "a key is empty"
            if not all(isinstance(key, str) and _is_whole(key) for key in value):
                return "a key is no text"
            return next((found for one in value.values() if (found := problem_of(one, depth_left - 1))), None)
        case list():
            return next((found for one in value if (found := problem_of(one, depth_left - 1))), None)
        case _:
            return f"a store keeps texts, numbers, lists and mappings, not {type(value).__name__}"


def _is_whole(text: str) -> bool:
    """Whether no half of a surrogate pair stands alone, which cannot be written down."""
    return not any("\ud800" <= letter <= "\udfff" for letter in text)
