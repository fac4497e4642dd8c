"""What a lease is told and tells: what becomes of it if the work fails, and how its buckets stood."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from . import Limit
from .checks import Choice
from .header_data import HeaderData, header_fields


class OnError(Choice):
    """What a lease costs whose work ends by an exception or a cancellation, or whose reader leaves."""

    REFUND = "refund"
    """Nothing: all of it is given back."""
    KEEP = "keep"
    """All that was taken, and what was noted beyond that; nothing is given back."""
    SETTLE = "settle"
    """What was noted so far, as if the work had ended well."""

    @classmethod
    def of(cls, value: OnError | str) -> OnError:
        return cls.chosen("on_error", value)


@dataclass(frozen=True, slots=True)
class LeaseStatus(HeaderData):
    """One limit of one bucket, just after a lease had taken its part, in whole tokens of the whole bucket.

    ``remaining`` is negative while the bucket is in debt. It is full again after ``full_after_seconds`` if
    nobody takes anything.
    """

    entity_id: str
    resource: str
    limit_name: str
    limit: Limit
    remaining: int
    full_after_seconds: float
    reset_after_seconds: float = 0.0
    next_after_seconds: float = 0.0
    checked_at_ms: int = 0

    @property
    def soft(self) -> bool:
        """Whether the limit refuses nothing."""
        return self.limit.soft

    def public_dict(self) -> dict[str, Any]:
        """What headers say of it, and nobody's name: for whoever's own limit it is."""
        limit = self.limit.to_dict()
        place = {"resource": self.resource, "limit_name": limit.pop("name")}
        return {**place, **limit, **header_fields(self, self.remaining)}
