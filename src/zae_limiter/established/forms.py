"""Names under which models were known, each next to the model that it belongs to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from ..models import Limit, LimitStatus


class EntityForms:
    """Other names of an entity's attributes."""

    __slots__ = ()
    entity_id: str
    parent_id: str | None

    @property
    def id(self) -> str:
        """The same as ``entity_id``."""
        return self.entity_id

    @property
    def is_parent(self) -> bool:
        """Whether it has no parent, so that it can be one."""
        return self.parent_id is None

    @property
    def is_child(self) -> bool:
        """Whether it has a parent."""
        return self.parent_id is not None


class LimitStatusForms:
    """What else a status was asked for."""

    __slots__ = ()
    available: int
    requested: int

    @property
    def deficit(self) -> int:
        """How many tokens are missing; 0 if none."""
        return max(0, self.requested - self.available)


class BucketStateForms:
    """A bucket's state in whole tokens, and the state of a bucket that is full."""

    __slots__ = ()
    tokens_milli: int
    capacity_milli: int

    @property
    def tokens(self) -> int:
        """Whole tokens at ``last_refill_ms``."""
        return self.tokens_milli // 1000

    @property
    def capacity(self) -> int:
        """The capacity in whole tokens."""
        return self.capacity_milli // 1000

    @classmethod
    def from_limit(cls, entity_id: str, resource: str, limit: Limit, now_ms: int) -> Self:
        """A full bucket of this limit."""
        make: Any = cls
        capacity = limit.capacity_milli
        rate = (capacity, limit.refill_amount_milli, limit.refill_period_ms)
        return make(entity_id, resource, limit.name, capacity, now_ms, *rate)  # type: ignore[no-any-return]


class CacheStatsForms:
    """The numbers of a cache as a dict."""

    __slots__ = ()
    hits: int
    misses: int
    size: int
    ttl_seconds: float

    def as_dict(self) -> dict[str, float]:
        """Hits, misses and size, and how long an entry serves as ``ttl``."""
        return {"hits": self.hits, "misses": self.misses, "size": self.size, "ttl": self.ttl_seconds}


class AuditEventForms:
    """An audit event as a dict and back."""

    __slots__ = ()
    event_id: str
    timestamp: str
    action: str
    entity_id: str
    principal: str | None
    resource: str | None
    details: Mapping[str, Any]

    def to_dict(self) -> dict[str, Any]:
        """The event as plain JSON; a principal or a resource only if there is one."""
        plain: dict[str, Any] = {"event_id": self.event_id, "timestamp": self.timestamp}
        plain |= {"action": str(self.action), "entity_id": self.entity_id}
        named = {"principal": self.principal, "resource": self.resource}
        return plain | {k: v for k, v in named.items() if v is not None} | {"details": dict(self.details)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """The event that ``to_dict`` told."""
        make: Any = cls
        return make(**data)  # type: ignore[no-any-return]


class AvailabilityForms:
    """What an availability says of the amounts that were asked about."""

    __slots__ = ()
    statuses: Sequence[LimitStatus]
    retry_after_seconds: float

    @property
    def allowed(self) -> bool:
        """Whether an acquire of the amounts would pass now."""
        return not any(status.exceeded for status in self.statuses)

    @property
    def needed(self) -> dict[str, int]:
        """The amounts that were asked about, by limit."""
        return {status.limit_name: status.requested for status in self.statuses}

    @property
    def exceeded(self) -> list[str]:
        """The limits that cannot cover their amount."""
        return [status.limit_name for status in self.statuses if status.exceeded]

    @property
    def deficit(self) -> dict[str, int]:
        """How many tokens are missing, by limit that cannot cover its amount."""
        missing: dict[str, int] = {}
        for status in self.statuses:
            if status.exceeded:
                missing[status.limit_name] = max(status.deficit, missing.get(status.limit_name, 0))
        return missing

    @property
    def limits(self) -> list[Limit]:
        """The limits that the amounts were held against."""
        return [status.limit for status in self.statuses]

    def status(self, limit_name: str) -> LimitStatus | None:
        """The status of one limit, the entity's own first; ``None`` if nothing was asked of it."""
        return next((status for status in self.statuses if status.limit_name == limit_name), None)


class CapabilitiesForms:
    """Other questions to a store: what all of ours do, and what only some do."""

    __slots__ = ()
    name: str
    streams: bool

    @property
    def supports_audit_logging(self) -> bool:
        """Every store keeps audit events."""
        return True

    @property
    def supports_usage_snapshots(self) -> bool:
        """Every store keeps usage."""
        return True

    @property
    def supports_batch_operations(self) -> bool:
        """Every store reads and writes several items at once."""
        return True

    @property
    def supports_change_streams(self) -> bool:
        """Whether changes can be followed from outside the process."""
        return self.streams

    @property
    def supports_infrastructure_management(self) -> bool:
        """Whether a stack can be deployed around it."""
        return self.name == "dynamodb"


class LimiterInfoForms:
    """What the state of a stack means."""

    __slots__ = ()
    stack_name: str
    stack_status: str

    @property
    def user_name(self) -> str:
        """The name that the stack was deployed under, which is the stack's."""
        return self.stack_name

    @property
    def is_healthy(self) -> bool:
        """Whether the last operation ended well."""
        return self.stack_status in {"CREATE_COMPLETE", "UPDATE_COMPLETE", "IMPORT_COMPLETE"}

    @property
    def is_failed(self) -> bool:
        """Whether the last operation failed or is being undone."""
        return "FAILED" in self.stack_status or "ROLLBACK" in self.stack_status

    @property
    def is_in_progress(self) -> bool:
        """Whether an operation is under way."""
        return self.stack_status.endswith("_IN_PROGRESS")
