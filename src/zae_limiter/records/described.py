"""What may be said about an entity: its name, its metadata. Checked so that every store keeps it alike."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ..exceptions import ValidationError

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
    return name


def check_cascade(cascade: bool) -> bool:
    if not isinstance(cascade, bool):
        raise ValidationError("cascade", cascade, "use True or False")
    return cascade


def check_metadata(metadata: Mapping[str, Any] | None) -> dict[str, Any]:
    """Metadata as plain JSON data."""
    if metadata is None:
        return {}
    if not isinstance(metadata, Mapping):
        raise ValidationError("metadata", metadata, "it must be a mapping of JSON values")
    try:
        text = json.dumps(dict(metadata), allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise ValidationError(
            "metadata", metadata, f"it must be a mapping of JSON values ({error})"
        ) from error
    if len(text) > METADATA_BYTES_MAX:
        raise ValidationError("metadata", f"{len(text)} bytes", f"at most {METADATA_BYTES_MAX} are kept")
    plain: dict[str, Any] = json.loads(text)
    if problem := _problem(plain, METADATA_DEPTH_MAX):
        raise ValidationError("metadata", metadata, problem)
    return plain


def _problem(value: Any, depth_left: int) -> str | None:
    """What keeps a value from being stored the same way everywhere."""
    if isinstance(value, dict | list):
        if not depth_left:
            return f"it is nested more than {METADATA_DEPTH_MAX} levels deep"
        if isinstance(value, dict) and "" in value:
            return "a key is empty"
        inner = value.values() if isinstance(value, dict) else value
        return next((found for one in inner if (found := _problem(one, depth_left - 1))), None)
    if isinstance(value, int | float) and value and not 1 / NUMBER_MAX <= abs(value) < NUMBER_MAX:
        return f"the number {value} is not kept exactly"
    return None
