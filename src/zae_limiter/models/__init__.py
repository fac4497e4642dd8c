"""What the limiter talks about: frozen values, checked when they are made.

Users speak of whole tokens and seconds; inside, everything is millitokens and milliseconds. The
conversions stand here and nowhere else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any, ClassVar, Literal, Self

from ..established import AsMapping
from ..exceptions import ValidationError
from .accruals import CONCURRENT
from .checks import NUMBER_MAX as NUMBER_MAX
from .checks import PERIOD_SECONDS_MAX as PERIOD_SECONDS_MAX
from .checks import SEATS_MAX as SEATS_MAX
from .checks import TOKENS_MAX as TOKENS_MAX
from .checks import Choice
from .checks import check_count as check_count
from .checks import check_mapping as check_mapping
from .deployments import LimiterInfo, StackOptions, Status, VersionRecord
from .header_data import HeaderData
from .limits import Limit, LimitKind
from .switches import Bypass as Bypass
from .switches import check_disabled
from .usage import EntityCapacity, ResourceCapacity, UsageSnapshot, UsageSummary, UsageWindow

__all__ = [
    "AuditAction", "AuditEvent", "Availability", "BackendCapabilities", "BucketState", "CacheStats",
    "ConfigSource", "Entity", "EntityCapacity", "Limit", "LimitKind", "LimitName", "LimitStatus",
    "LimiterConfig", "LimiterInfo", "Namespace", "NamespaceStatus", "OnUnavailable", "ResourceCapacity",
    "StackOptions", "Status", "UsageSnapshot", "UsageSummary", "UsageWindow", "VersionRecord",
]  # fmt: skip

LIMITS_MAX, SEAT_LIMITS_MAX = 32, 16
"""The most limits one bucket holds, and how many of them may be of concurrency: a write names all places."""


class OnUnavailable(Choice):
    """What ``acquire`` does when the store does not answer."""

    ALLOW = "allow"
    BLOCK = "block"

    @classmethod
    def of(cls, value: OnUnavailable | str) -> OnUnavailable:
        return cls.chosen("on_unavailable", value)


@dataclass(frozen=True, slots=True)
class LimitStatus(HeaderData):
    """One limit as one request found it, in whole tokens of the whole bucket."""

    entity_id: str
    resource: str
    limit_name: str
    limit: Limit
    available: int
    requested: int
    exceeded: bool
    retry_after_seconds: float
    reset_after_seconds: float = 0.0
    next_after_seconds: float = 0.0
    checked_at_ms: int = 0

    @property
    def soft(self) -> bool:
        """Whether the limit refuses nothing, so that it is never exceeded and there is no wait for it."""
        return self.limit.soft

    @property
    def deficit(self) -> int:
        """How many tokens are missing; 0 if none."""
        return max(0, self.requested - self.available)


@dataclass(frozen=True, slots=True)
class BucketState:
    """One limit of one bucket as it is stored: what ``tokens_milli`` was at ``last_refill_ms``."""

    entity_id: str
    resource: str
    limit_name: str
    tokens_milli: int
    last_refill_ms: int
    capacity_milli: int
    refill_amount_milli: int
    refill_period_ms: int
    total_consumed_milli: int = 0
    shard_id: int = 0
    accrual: str | None = None

    @property
    def limit(self) -> Limit:
        """The limit that the bucket was filled by."""
        return Limit.from_bucket_state(self)

    @property
    def tokens(self) -> int:
        """Whole tokens at ``last_refill_ms``."""
        return self.tokens_milli // 1000

    @property
    def capacity(self) -> int:
        """The capacity in whole tokens."""
        return self.capacity_milli // 1000

    @property
    def held(self) -> int | None:
        """How many seats of a limit of concurrency are held; ``None`` for any other limit."""
        is_counted = self.accrual == CONCURRENT
        return (self.capacity_milli - self.tokens_milli) // 1000 if is_counted else None

    @classmethod
    def from_limit(cls, entity_id: str, resource: str, limit: Limit, now_ms: int) -> Self:
        """A full bucket of this limit."""
        capacity, amount, period = limit.capacity_milli, limit.refill_amount_milli, limit.refill_period_ms
        numbers = capacity, now_ms, capacity, amount, period
        return cls(entity_id, resource, limit.name, *numbers, accrual=limit.accrual)


@dataclass(frozen=True, slots=True)
class Availability:
    """What a bucket holds and how long a demand would have to wait, from one snapshot."""

    available: Mapping[str, int]
    retry_after_seconds: float
    statuses: tuple[LimitStatus, ...] = ()
    entity_id: str = ""
    resource: str = ""
    checked_at_ms: int = 0

    @property
    def is_available(self) -> bool:
        """Whether nothing has to be waited for."""
        return self.retry_after_seconds == 0

    @property
    def allowed(self) -> bool:
        """Whether an acquire of the amounts would pass now."""
        return not self.exceeded

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


@dataclass(frozen=True, slots=True)
class BackendCapabilities:
    """What a store can do; the limiter adapts to it."""

    name: str
    hot_partitions: bool = False
    """Writes to one item have a ceiling of their own, so hot buckets are worth sharding."""
    streams: bool = False
    """Changes can be followed from outside the process."""
    shared: bool = True
    """Several processes can open the same store."""
    atomic_batches: bool = False
    """A transaction costs no more than the same writes one by one."""
    timeout_ms: int = 2_000
    """How long one call may take before it counts as failed."""
    made_before: bool = False
    """Opening never makes it, so a store whose records can be read need not be looked at first."""

    supports_audit_logging: ClassVar[bool] = True
    supports_usage_snapshots: ClassVar[bool] = True
    supports_batch_operations: ClassVar[bool] = True
    """Every store keeps audit events, and usage, and reads and writes several items at once."""

    @property
    def supports_change_streams(self) -> bool:
        """Whether changes can be followed from outside the process."""
        return self.streams

    @property
    def supports_infrastructure_management(self) -> bool:
        """Whether a stack can be deployed around it."""
        return self.name == "dynamodb"


GENERATIONS_MAX = 8
"""How many entities of a family stand above one another, the lowest and the highest included."""


@dataclass(frozen=True, slots=True)
class Entity:
    """Somebody who is limited: an API key, a user, a project."""

    entity_id: str
    name: str | None = None
    parent_id: str | None = None
    cascade: bool = False
    metadata: Mapping[str, Any] = field(default_factory=dict)
    created_at: str | None = None
    version: int = 1

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


class AuditAction(StrEnum):
    """What an audit event records."""

    ENTITY_CREATED = "entity_created"
    ENTITY_UPDATED = "entity_updated"
    ENTITY_DELETED = "entity_deleted"
    LIMITS_SET = "limits_set"
    LIMITS_DELETED = "limits_deleted"
    DISABLED = "disabled"
    ENABLED = "enabled"
    BYPASSED = "bypassed"
    ENTITY_PARENT_CHANGED = "entity_parent_changed"
    """By ``set_parent``; ``update_entity`` is an update, whatever it changes."""
    BUCKET_RESET = "bucket_reset"
    BUCKET_TOPPED_UP = "bucket_topped_up"
    BUCKET_FORGIVEN = "bucket_forgiven"


@dataclass(frozen=True, slots=True)
class AuditEvent:
    """One change somebody made. ``entity_id`` is ``$SYSTEM`` or ``$RESOURCE:{name}`` for defaults.

    An action that this version does not know is the text that was written.
    """

    event_id: str
    timestamp: str
    action: AuditAction | str
    entity_id: str
    principal: str | None = None
    resource: str | None = None
    details: Mapping[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """The event as plain JSON; a principal or a resource only if there is one."""
        plain = {one.name: getattr(self, one.name) for one in fields(self)}
        plain |= {"action": str(self.action), "details": dict(self.details)}
        there = {"principal": self.principal, "resource": self.resource}
        return {name: value for name, value in plain.items() if there.get(name, name) is not None}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """The event that ``to_dict`` told."""
        return cls(**data)


class NamespaceStatus(StrEnum):
    """Whether a namespace is in use, deleted, or on its way in or out."""

    ACTIVE = "active"
    DELETED = "deleted"
    PURGING = "purging"
    PURGED = "purged"
    """All that was there is gone; who still writes there is told by this for some days."""
    COPYING = "copying"
    """It is being copied from another store, and nobody may use it until it is there."""


@dataclass(frozen=True, slots=True, eq=False)
class Namespace(AsMapping):
    """A tenant: its name, and the opaque id that prefixes its keys. It equals that id."""

    namespace_name: str
    namespace_id: str
    status: NamespaceStatus = NamespaceStatus.ACTIVE
    created_at: str | None = None
    deleted_at: str | None = None

    def _as_dict(self) -> dict[str, Any]:
        told: dict[str, Any] = {
            "name": self.namespace_name,
            "namespace_id": self.namespace_id,
            "status": self.status,
        }
        told["created_at"] = self.created_at
        return told if self.deleted_at is None else {**told, "deleted_at": self.deleted_at}

    def __getitem__(self, key: str) -> Any:
        if key in {"namespace", "namespace_name"}:
            return self.namespace_name
        return self.deleted_at if key == "deleted_at" else self._as_dict()[key]

    def __eq__(self, other: object) -> bool:
        return other == self.namespace_id if isinstance(other, str) else AsMapping.__eq__(self, other)

    def __hash__(self) -> int:
        return hash(self.namespace_id)


class ConfigSource(StrEnum):
    """The level that a set of limits was found at."""

    ENTITY = "entity"
    ENTITY_DEFAULT = "entity_default"
    RESOURCE = "resource"
    SYSTEM = "system"


@dataclass(frozen=True, slots=True)
class LimiterConfig:
    """What one level of configuration says; ``None`` means that it says nothing of a field.

    ``cascade`` says whether entities cascade there, whatever they are set to themselves. ``auto_update`` and
    ``strict_version`` exist at the system level only. ``disabled`` is the reason why nobody may acquire,
    ``False`` where acquires go by the limits whatever broader levels say; ``bypass`` lets all of them pass,
    ``"counted"`` or ``"uncounted"``. A level has one of the two, or neither.
    """

    limits: tuple[Limit, ...] = ()
    on_unavailable: OnUnavailable | None = None
    auto_update: bool | None = None
    strict_version: bool | None = None
    config_version: int = 0
    disabled: str | Literal[False] | None = None
    bypass: Bypass | None = None
    cascade: bool | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "limits", _listed(self.limits))
        if self.bypass is not None:
            object.__setattr__(self, "bypass", Bypass.of(self.bypass))
        check_disabled(self.disabled, self.bypass)
        if self.on_unavailable is not None:
            object.__setattr__(self, "on_unavailable", OnUnavailable.of(self.on_unavailable))
        for name in ("cascade", "auto_update", "strict_version"):
            if not isinstance(getattr(self, name), bool | None):
                raise ValidationError(name, getattr(self, name), "use True, False or None")
        check_count("config_version", self.config_version, NUMBER_MAX, 0)

    @property
    def has_switch(self) -> bool:
        """Whether it says that something is on, off, or past the limits."""
        return self.disabled is not None or self.bypass is not None


@dataclass(frozen=True, slots=True)
class CacheStats:
    """How often stored configuration was remembered, how much of it, and for how long it serves."""

    hits: int
    misses: int
    size: int
    ttl_seconds: float

    def as_dict(self) -> dict[str, float]:
        """Hits, misses and size, and how long an entry serves as ``ttl``."""
        return {"hits": self.hits, "misses": self.misses, "size": self.size, "ttl": self.ttl_seconds}


class LimitName(StrEnum):
    """Customary names of limits; any other name is as good."""

    RPS = "rps"
    RPM = "rpm"
    RPH = "rph"
    RPD = "rpd"
    TPS = "tps"
    TPM = "tpm"
    TPH = "tph"
    TPD = "tpd"


def is_limits(limits: object) -> bool:
    return isinstance(limits, list | tuple) and all(isinstance(one, Limit) for one in limits)


def _listed(limits: Sequence[Limit]) -> tuple[Limit, ...]:
    if not is_limits(limits):
        raise ValidationError("limits", limits, "pass a list of Limit, such as [Limit.per_minute('rpm', 60)]")
    return tuple(limits)


def check_limits(limits: Sequence[Limit]) -> tuple[Limit, ...]:
    """A usable set of limits: some, not too many, no name twice."""
    listed = _listed(limits)
    if not listed:
        raise ValidationError("limits", limits, "pass at least one limit")
    if len(listed) > LIMITS_MAX:
        raise ValidationError("limits", len(limits), f"one bucket holds at most {LIMITS_MAX} limits")
    if (seats := sum(one.accrual == CONCURRENT for one in listed)) > SEAT_LIMITS_MAX:
        raise ValidationError(
            "limits", seats, f"one bucket holds at most {SEAT_LIMITS_MAX} limits of concurrency"
        )
    names = [one.name for one in listed]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ValidationError("limits", names, f"{', '.join(twice)} given more than once")
    return listed
