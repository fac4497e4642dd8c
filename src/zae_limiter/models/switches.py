"""A switch of a level: off with a reason, past the limits, or on whatever broader levels say."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ..exceptions import ValidationError
from .checks import Choice

REASON_CHARACTERS_MAX = 500
"""A record of a level is read by every acquire that it concerns."""


class Bypass(Choice):
    """How work goes past the limits."""

    COUNTED = "counted"
    """It is charged like any other, into debt if need be."""
    UNCOUNTED = "uncounted"
    """Nothing is written."""

    @classmethod
    def of(cls, value: Bypass | str) -> Bypass:
        return cls.chosen("bypass", value)


@dataclass(frozen=True, slots=True)
class Switch:
    """What the most specific level with a switch says, and which level that is.

    ``disabled`` is the reason, ``False`` if it is on; ``bypass`` says that limits do not refuse.
    """

    level: str
    disabled: str | Literal[False] | None = None
    bypass: Bypass | None = None


@dataclass(frozen=True, slots=True)
class ThrownSwitch(Switch):
    """A switch of some level as a list shows it: where it is, and since when and by whom, if that is known.

    ``level`` is ``system``, ``resource``, ``entity_default`` for an entity's on all resources, or ``entity``.
    """

    entity_id: str | None = None
    resource: str | None = None
    since: str | None = None
    """When it was thrown into this position, such as ``2024-01-01T14:00:00.000Z``."""
    by: str | None = None
    """The ``principal`` who did so."""


def check_reason(value: str) -> str:
    """A reason that can be told to whoever is refused."""
    if not isinstance(value, str) or not value.strip():
        raise ValidationError("reason", value, "say in a few words why, such as 'maintenance until 15:00'")
    if len(value) > REASON_CHARACTERS_MAX:
        raise ValidationError("reason", value, f"it may have {REASON_CHARACTERS_MAX} characters at most")
    if not value.isprintable():
        raise ValidationError("reason", value, "it must be one line of printable characters")
    return value


def check_disabled(value: str | bool | None, bypass: Bypass | None) -> None:
    """Whether a level may say this of its switch; it has one, with one position."""
    if value is None or (value is False and bypass is None):
        return
    if bypass is not None:
        told = "a level has one switch: leave out `disabled` or `bypass`"
        raise ValidationError("bypass", bypass.value, told)
    if isinstance(value, bool) or not isinstance(value, str):
        raise ValidationError("disabled", value, "give the reason as text, False for on, or None for nothing")
    check_reason(value)
