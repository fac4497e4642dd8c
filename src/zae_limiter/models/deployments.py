"""What is deployed around a store: how a stack is asked for, what one says of itself, which versions fit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..established import AsMapping
from ..exceptions import ValidationError
from .checks import check_count
from .usage import UsageWindow


@dataclass(frozen=True, slots=True, eq=False)
class VersionRecord(AsMapping):
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
class LimiterInfo:
    """A stack that is deployed."""

    stack_name: str
    region: str | None
    stack_status: str
    creation_time: str | None = None
    last_updated_time: str | None = None
    version: str | None = None
    lambda_version: str | None = None
    schema_version: str | None = None

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


SWITCHES = (
    *("enable_aggregator", "enable_alarms", "enable_audit_archival", "enable_tracing"),
    *("enable_deletion_protection", "create_iam", "create_iam_roles"),
)
COUNTS = {
    "usage_retention_days": (0, 10_000),
    "audit_retention_days": (0, 10_000),
    "pitr_recovery_days": (0, 35),
    "lambda_timeout": (1, 900),
    "lambda_memory": (128, 10_240),
    "lambda_duration_threshold_pct": (1, 100),
    "audit_archive_glacier_days": (1, 3_650),
}
"""Whole numbers: the smallest and the largest."""

LOG_RETENTION_DAYS = (
    *(1, 3, 5, 7, 14, 30, 60, 90, 120, 150, 180, 365, 400, 545, 731),
    *(1096, 1827, 2192, 2557, 2922, 3288, 3653),
)
"""The only numbers of days for which CloudWatch keeps logs."""


@dataclass(frozen=True, slots=True)
class StackOptions:
    """What a stack around a table is deployed with; ``None`` leaves a choice to the deployment."""

    snapshot_windows: Sequence[UsageWindow | str] | str | None = None
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

    def __post_init__(self) -> None:
        """Check each option by itself; what they say together is checked when they are deployed."""
        for option in SWITCHES:
            if not isinstance(getattr(self, option), bool | None):
                raise ValidationError(option, getattr(self, option), "use True or False")
        for option, (least, most) in COUNTS.items():
            if (count := getattr(self, option)) is not None:
                check_count(option, count, most, least)
        days = self.log_retention_days
        if days is not None and (type(days) is not int or days not in LOG_RETENTION_DAYS):
            known = ", ".join(map(str, LOG_RETENTION_DAYS))
            raise ValidationError("log_retention_days", days, f"CloudWatch knows only {known}")
        for option in ("role_name_format", "policy_name_format"):
            form = getattr(self, option)
            if form is not None and (not isinstance(form, str) or form.count("{}") != 1):
                reason = "put {} once where the default name goes, such as 'team-{}'"
                raise ValidationError(option, form, reason)
        if self.snapshot_windows is not None:
            object.__setattr__(self, "snapshot_windows", _windows(self.snapshot_windows))


def _windows(windows: object) -> tuple[UsageWindow, ...]:
    """Windows as a list, or as a text such as ``hourly,daily``."""
    listed = windows.split(",") if isinstance(windows, str) and windows else windows
    if not isinstance(listed, list | tuple) or not listed:
        raise ValidationError("snapshot_windows", windows, "pass some of hourly, daily, monthly")
    return tuple(dict.fromkeys(UsageWindow.of(w.strip() if isinstance(w, str) else w) for w in listed))
