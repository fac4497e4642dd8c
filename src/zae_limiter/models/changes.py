"""What an operator did to a bucket."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class BucketChange:
    """What ``top_up``, ``reset`` or ``forgive`` did, in whole tokens by limit.

    ``given`` is the difference of ``after`` and ``before``, which are what the bucket held, negative while in
    debt, when the verb looked at it; what others take meanwhile is not in them. ``over`` is what a top-up
    found no room for. A bucket that was never ``used`` is full, so nothing was given. Whoever sends the verb
    again with the same ``key`` gets the same answer, and nothing happens twice.

    ``booked`` tells of limits that somebody waited for how far below zero that had brought them, and
    ``booked_until_ms`` until when somebody may have waited. ``reset`` and ``forgive`` end that, and it is
    part of what they give; a top-up leaves it as it is.
    """

    entity_id: str
    resource: str
    key: str
    used: bool
    before: Mapping[str, int] = field(default_factory=dict)
    given: Mapping[str, int] = field(default_factory=dict)
    after: Mapping[str, int] = field(default_factory=dict)
    over: Mapping[str, int] = field(default_factory=dict)
    booked: Mapping[str, int] = field(default_factory=dict)
    booked_until_ms: int | None = None

    def to_dict(self) -> dict[str, Any]:
        """The change as plain JSON."""
        return asdict(self)
