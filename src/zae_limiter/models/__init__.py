"""What the limiter talks about: frozen values, checked when they are made.

Users speak of whole tokens and seconds; inside, everything is millitokens and milliseconds. The
conversions stand here and nowhere else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Self

from ..established.forms import (
    AuditEventForms,
    AvailabilityForms,
    BucketStateForms,
    CacheStatsForms,
    CapabilitiesForms,
    EntityForms,
    LimitStatusForms,
)
from ..established.mapping import NamespaceMapping
from ..exceptions import ValidationError, shown
from ..naming import validate_limit_name
from .checks import (
    NUMBER_MAX,
    PERIOD_SECONDS_MAX,
    TOKENS_MAX,
    check_count,
    check_mapping,
    check_tokens,
)
from .deployments import LimiterInfo, StackOptions, Status, UsageWindow, VersionRecord

__all__ = [
    "AuditAction",
    "AuditEvent",
    "Availability",
    "BackendCapabilities",
    "BucketState",
    "CacheStats",
    "ConfigSource",
    "Entity",
    "EntityCapacity",
    "LIMITS_HINT",
    "LIMITS_MAX",
    "Limit",
    "LimitName",
    "LimitStatus",
    "LimiterConfig",
    "LimiterInfo",
    "NUMBER_MAX",
    "Namespace",
    "NamespaceStatus",
    "OnUnavailable",
    "PERIOD_SECONDS_MAX",
    "ResourceCapacity",
    "StackOptions",
    "Status",
    "TOKENS_MAX",
    "UsageSnapshot",
    "UsageSummary",
    "UsageWindow",
    "VersionRecord",
    "check_count",
    "check_limits",
    "check_mapping",
    "check_tokens",
    "is_limits",
]

LIMITS_MAX = 32
"""The most limits one bucket holds."""


class OnUnavailable(StrEnum):
    """What ``acquire`` does when the store does not answer."""

    ALLOW = "allow"
    BLOCK = "block"

    @classmethod
    def of(cls, value: OnUnavailable | str) -> OnUnavailable:
        if isinstance(value, str) and value in tuple(cls):
            return cls(value)
        raise ValidationError("on_unavailable", value, "use 'allow' or 'block'")


@dataclass(frozen=True, slots=True)
class Limit:
    """A token bucket: it holds ``capacity`` and gains ``refill_amount`` every ``refill_period_seconds``.

    >>> Limit.per_minute("rpm", 60)
    Limit(name='rpm', capacity=60, refill_amount=60, refill_period_seconds=60)
    >>> Limit.per_second("rps", 10, burst=50).capacity
    50
    """

    name: str
    capacity: int
    refill_amount: int
    refill_period_seconds: int

    def __post_init__(self) -> None:
        validate_limit_name(self.name)
        check_tokens(f"capacity of {self.name!r}", self.capacity)
        check_tokens(f"refill_amount of {self.name!r}", self.refill_amount)
        check_count(f"refill_period_seconds of {self.name!r}", self.refill_period_seconds, PERIOD_SECONDS_MAX)

    @classmethod
    def per_second(cls, name: str, rate: int, burst: int | None = None) -> Self:
        """``rate`` tokens a second, in a bucket that holds ``burst``, or ``rate`` if no burst is given."""
        return cls._per(name, rate, burst, 1)

    @classmethod
    def per_minute(cls, name: str, rate: int, burst: int | None = None) -> Self:
        """``rate`` tokens a minute, in a bucket that holds ``burst``, or ``rate`` if no burst is given."""
        return cls._per(name, rate, burst, 60)

    @classmethod
    def per_hour(cls, name: str, rate: int, burst: int | None = None) -> Self:
        """``rate`` tokens a hour, in a bucket that holds ``burst``, or ``rate`` if no burst is given."""
        return cls._per(name, rate, burst, 3600)

    @classmethod
    def per_day(cls, name: str, rate: int, burst: int | None = None) -> Self:
        """``rate`` tokens a day, in a bucket that holds ``burst``, or ``rate`` if no burst is given."""
        return cls._per(name, rate, burst, 86400)

    @classmethod
    def custom(cls, name: str, capacity: int, refill_amount: int, refill_period_seconds: int) -> Self:
        """A bucket of any numbers, such as 10 tokens every 90 seconds."""
        return cls(name, capacity, refill_amount, refill_period_seconds)

    @classmethod
    def from_bucket_state(cls, state: BucketState) -> Self:
        """The limit that a stored bucket was filled by."""
        amount, period = state.refill_amount_milli // 1000, state.refill_period_ms // 1000
        return cls(state.limit_name, state.capacity_milli // 1000, amount, period)

    @classmethod
    def _per(cls, name: str, rate: int, burst: int | None, seconds: int) -> Self:
        return cls(name, rate if burst is None else burst, rate, seconds)

    @property
    def refill_rate(self) -> float:
        """Tokens per second."""
        return self.refill_amount / self.refill_period_seconds

    @property
    def capacity_milli(self) -> int:
        """The capacity in millitokens."""
        return self.capacity * 1000

    @property
    def refill_amount_milli(self) -> int:
        """The refill in millitokens."""
        return self.refill_amount * 1000

    @property
    def refill_period_ms(self) -> int:
        """The period in milliseconds."""
        return self.refill_period_seconds * 1000

    def to_dict(self) -> dict[str, Any]:
        """The limit as plain JSON."""
        return {
            "name": self.name,
            "capacity": self.capacity,
            "refill_amount": self.refill_amount,
            "refill_period_seconds": self.refill_period_seconds,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """The limit that ``to_dict`` told."""
        fields = ("name", "capacity", "refill_amount", "refill_period_seconds")
        given = check_mapping("limit", data, f"pass a mapping of {', '.join(fields)}")
        if missing := [f for f in fields if f not in given]:
            raise ValidationError("limit", given, f"{', '.join(missing)} missing")
        if unknown := sorted(shown(key).strip("'") for key in given if key not in fields):
            raise ValidationError("limit", given, f"unknown keys {', '.join(unknown)}")
        return cls(*(given[f] for f in fields))


@dataclass(frozen=True, slots=True)
class LimitStatus(LimitStatusForms):
    """One limit as one request found it, in whole tokens of the whole bucket."""

    entity_id: str
    resource: str
    limit_name: str
    limit: Limit
    available: int
    requested: int
    exceeded: bool
    retry_after_seconds: float


@dataclass(frozen=True, slots=True)
class BucketState(BucketStateForms):
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

    @property
    def limit(self) -> Limit:
        """The limit that the bucket was filled by."""
        return Limit.from_bucket_state(self)


@dataclass(frozen=True, slots=True)
class Availability(AvailabilityForms):
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


@dataclass(frozen=True, slots=True)
class BackendCapabilities(CapabilitiesForms):
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


@dataclass(frozen=True, slots=True)
class Entity(EntityForms):
    """Somebody who is limited: an API key, a user, a project."""

    entity_id: str
    name: str | None = None
    parent_id: str | None = None
    cascade: bool = False
    metadata: Mapping[str, Any] = field(default_factory=dict)
    created_at: str | None = None
    version: int = 1


class AuditAction(StrEnum):
    """What an audit event records."""

    ENTITY_CREATED = "entity_created"
    ENTITY_UPDATED = "entity_updated"
    ENTITY_DELETED = "entity_deleted"
    LIMITS_SET = "limits_set"
    LIMITS_DELETED = "limits_deleted"
    ENTITY_PARENT_CHANGED = "entity_parent_changed"
    """Written by older versions; here it is an update."""
    BUCKET_RESET = "bucket_reset"
    """Written by older versions."""
    BUCKET_TOPPED_UP = "bucket_topped_up"
    """Written by older versions."""


@dataclass(frozen=True, slots=True)
class AuditEvent(AuditEventForms):
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


class NamespaceStatus(StrEnum):
    """Whether a namespace is in use, deleted, or on its way out."""

    ACTIVE = "active"
    DELETED = "deleted"
    PURGING = "purging"
    PURGED = "purged"
    """All that was there is gone; who still writes there is told by this for some days."""


@dataclass(frozen=True, slots=True, eq=False)
class Namespace(NamespaceMapping):
    """A tenant: its name, and the opaque id that prefixes its keys. It equals that id."""

    namespace_name: str
    namespace_id: str
    status: NamespaceStatus = NamespaceStatus.ACTIVE
    created_at: str | None = None
    deleted_at: str | None = None


class ConfigSource(StrEnum):
    """The level that a set of limits was found at."""

    ENTITY = "entity"
    ENTITY_DEFAULT = "entity_default"
    RESOURCE = "resource"
    SYSTEM = "system"


@dataclass(frozen=True, slots=True)
class LimiterConfig:
    """What one level of configuration says; ``None`` means that it says nothing of a field.

    ``auto_update`` and ``strict_version`` exist at the system level only.
    """

    limits: tuple[Limit, ...] = ()
    on_unavailable: OnUnavailable | None = None
    auto_update: bool | None = None
    strict_version: bool | None = None
    config_version: int = 0

    def __post_init__(self) -> None:
        if not is_limits(self.limits):
            raise ValidationError("limits", self.limits, LIMITS_HINT)
        object.__setattr__(self, "limits", tuple(self.limits))
        if self.on_unavailable is not None:
            object.__setattr__(self, "on_unavailable", OnUnavailable.of(self.on_unavailable))
        for name in ("auto_update", "strict_version"):
            if not isinstance(getattr(self, name), bool | None):
                raise ValidationError(name, getattr(self, name), "use True, False or None")
        check_count("config_version", self.config_version, NUMBER_MAX, 0)


@dataclass(frozen=True, slots=True)
class CacheStats(CacheStatsForms):
    """How often stored configuration was remembered, how much of it, and for how long it serves."""

    hits: int
    misses: int
    size: int
    ttl_seconds: float


@dataclass(frozen=True, slots=True)
class UsageSnapshot:
    """What an entity used of a resource in one window, in whole tokens by limit.

    ``window_start`` and ``window_end`` are instants such as ``2024-01-01T14:00:00Z``; the end is not
    part of the window. ``passed_on`` is the part that was charged to a parent too, by cascading:
    by parent and limit, for a family may change within a window.
    """

    entity_id: str
    resource: str
    window_type: UsageWindow
    window_start: str
    window_end: str
    counters: Mapping[str, int]
    total_events: int = 0
    passed_on: Mapping[str, Mapping[str, int]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class UsageSummary:
    """Several snapshots together: totals and averages by limit, and the span of their starts."""

    snapshot_count: int
    total: Mapping[str, int]
    average: Mapping[str, float]
    total_events: int = 0
    min_window_start: str | None = None
    max_window_start: str | None = None


@dataclass(frozen=True, slots=True)
class EntityCapacity:
    """One entity's share in the capacity of a resource, in whole tokens."""

    entity_id: str
    capacity: int
    available: int

    @property
    def utilization_pct(self) -> float:
        """How much of the capacity is in use, in per cent."""
        return _utilization(self.capacity, self.available)


@dataclass(frozen=True, slots=True)
class ResourceCapacity:
    """One limit of a resource over all buckets there are, parents' and children's, in whole tokens."""

    resource: str
    limit_name: str
    total_capacity: int
    total_available: int
    entities: tuple[EntityCapacity, ...] = ()

    @property
    def utilization_pct(self) -> float:
        """How much of the capacity is in use, in per cent."""
        return _utilization(self.total_capacity, self.total_available)


def _utilization(capacity: int, available: int) -> float:
    return 100 * (capacity - available) / capacity if capacity else 0.0


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


LIMITS_HINT = "pass a list of Limit, such as [Limit.per_minute('rpm', 60)]"


def is_limits(limits: object) -> bool:
    return isinstance(limits, list | tuple) and all(isinstance(one, Limit) for one in limits)


def check_limits(limits: Sequence[Limit]) -> tuple[Limit, ...]:
    """A usable set of limits: some, not too many, no name twice."""
    if not is_limits(limits):
        raise ValidationError("limits", limits, LIMITS_HINT)
    if not limits:
        raise ValidationError("limits", limits, "pass at least one limit")
    if len(limits) > LIMITS_MAX:
        raise ValidationError("limits", len(limits), f"one bucket holds at most {LIMITS_MAX} limits")
    names = [one.name for one in limits]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ValidationError("limits", names, f"{', '.join(twice)} given more than once")
    return tuple(limits)
