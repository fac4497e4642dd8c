"""What is deployed around a store: how a stack is asked for, what one says of itself, which versions fit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from .established.forms import LimiterInfoForms
from .established.mapping import VersionMapping
from .exceptions import ValidationError


class UsageWindow(StrEnum):
    """How long a usage snapshot counts."""

    HOURLY = "hourly"
    DAILY = "daily"
    MONTHLY = "monthly"

    @classmethod
    def of(cls, value: UsageWindow | str) -> UsageWindow:
        if isinstance(value, str) and value in tuple(cls):
            return cls(value)
        raise ValidationError("window_type", value, "use 'hourly', 'daily' or 'monthly'")


@dataclass(frozen=True, slots=True, eq=False)
class VersionRecord(VersionMapping):
    """What a store says about the versions that may use it."""

    schema_version: str
    lambda_version: str | None = None
    client_min_version: str = "0.0.0"
    updated_at: str | None = None
    updated_by: str | None = None


@dataclass(frozen=True, slots=True)
class Status:
    """How a store and what is deployed around it are doing."""

    available: bool
    store: str
    namespace: str
    latency_ms: float | None = None
    client_version: str | None = None
    schema_version: str | None = None
    lambda_version: str | None = None
    stack_status: str | None = None


@dataclass(frozen=True, slots=True)
class LimiterInfo(LimiterInfoForms):
    """A stack that is deployed."""

    stack_name: str
    region: str | None
    stack_status: str
    creation_time: str | None = None
    last_updated_time: str | None = None
    version: str | None = None
    lambda_version: str | None = None
    schema_version: str | None = None


@dataclass(frozen=True, slots=True)
class StackOptions:
    """What a stack around a table is deployed with; ``None`` leaves a choice to the deployment."""

    snapshot_windows: tuple[UsageWindow, ...] | None = None
    usage_retention_days: int | None = None
    audit_retention_days: int | None = None
    enable_aggregator: bool | None = None
    pitr_recovery_days: int | None = None
    log_retention_days: int | None = None
    lambda_timeout: int | None = None
    lambda_memory: int | None = None
    enable_alarms: bool | None = None
    alarm_sns_topic: str | None = None
    lambda_duration_threshold_pct: int | None = None
    permission_boundary: str | None = None
    role_name_format: str | None = None
    policy_name_format: str | None = None
    enable_audit_archival: bool | None = None
    audit_archive_glacier_days: int | None = None
    enable_tracing: bool | None = None
    create_iam_roles: bool | None = None
    create_iam: bool | None = None
    aggregator_role_arn: str | None = None
    enable_deletion_protection: bool | None = None
    kms_key_arn: str | None = None
    role_principals: tuple[str, ...] | None = None
    tags: Mapping[str, str] | None = None
