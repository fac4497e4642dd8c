"""What CloudFormation tells of a stack, as values, and what to make of it. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any, NamedTuple, Self

from ..exceptions import (
    InfrastructureNotFoundError,
    StackAlreadyExistsError,
    StackOperationError,
    ValidationError,
)
from ..models import LimiterInfo, VersionRecord
from ..schema import iso_time
from ..version import client_version, parse_version

STACK = "AWS::CloudFormation::Stack"
DELETED = "DELETE_COMPLETE"
MANAGED_BY, OURS = "ManagedBy", "zae-limiter"

DEPLOYED = frozenset(
    {
        *("CREATE_COMPLETE", "UPDATE_COMPLETE", "UPDATE_ROLLBACK_COMPLETE"),
        *("IMPORT_COMPLETE", "IMPORT_ROLLBACK_COMPLETE"),
    }
)
"""A stack in one of these works and can be updated."""

NEVER_MADE = frozenset({"CREATE_FAILED", "REVIEW_IN_PROGRESS", "ROLLBACK_COMPLETE", "ROLLBACK_FAILED"})
"""A stack in one of these was never there: only its name is, and can be deleted."""

# What CloudFormation says of resources that it gave up because of another one.
CANCELLED = re.compile(r"(?:resource )?(?:creation|update|deletion)? ?cancelled", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class StackEvent:
    """Something that happened to one resource of a stack, or to the stack itself."""

    event_id: str
    at: str
    resource: str
    kind: str
    status: str
    reason: str = ""
    physical_id: str = ""

    @classmethod
    def of(cls, described: Mapping[str, Any]) -> Self:
        return cls(
            event_id=described["EventId"],
            at=_time(described["Timestamp"]) or "",
            resource=described["LogicalResourceId"],
            kind=described["ResourceType"],
            status=described["ResourceStatus"],
            reason=described.get("ResourceStatusReason", ""),
            physical_id=described.get("PhysicalResourceId", ""),
        )

    @property
    def is_failure(self) -> bool:
        return self.status.endswith("_FAILED")


@dataclass(frozen=True, slots=True)
class StackChange:
    """What an update is about to do to one resource."""

    action: str
    resource: str
    kind: str
    replaces: bool = False

    def makes(self, kind: str) -> bool:
        return self.kind == kind and (self.action == "Add" or self.replaces)

    def __str__(self) -> str:
        return f"{self.action.lower()} {self.resource} ({self.kind}{', replaced' if self.replaces else ''})"


class Resource(NamedTuple):
    """Something that a stack consists of."""

    logical_id: str
    kind: str
    physical_id: str

    def __str__(self) -> str:
        return f"{self.kind.rpartition('::')[2].lower()} {self.physical_id!r}"


@dataclass(frozen=True, slots=True)
class Stack:
    """A stack as it is now."""

    name: str
    stack_id: str
    status: str
    reason: str = ""
    tags: Mapping[str, str] = field(default_factory=dict)
    parameters: Mapping[str, str] = field(default_factory=dict)
    created: str | None = None
    updated: str | None = None
    is_protected: bool = False

    @classmethod
    def of(cls, described: Mapping[str, Any]) -> Self:
        said = described.get("Parameters", ())
        return cls(
            name=described["StackName"],
            stack_id=described["StackId"],
            status=described["StackStatus"],
            reason=described.get("StackStatusReason", ""),
            tags={tag["Key"]: tag["Value"] for tag in described.get("Tags", ())},
            parameters={one["ParameterKey"]: one.get("ParameterValue", "") for one in said},
            created=_time(described.get("CreationTime")),
            updated=_time(described.get("LastUpdatedTime")),
            is_protected=described.get("EnableTerminationProtection", False),
        )

    @property
    def is_ours(self) -> bool:
        return self.tags.get(MANAGED_BY) == OURS

    @property
    def version(self) -> str | None:
        """The version of ours that deployed it last."""
        return self.tags.get(f"{OURS}:version")

    @property
    def is_newer(self) -> bool:
        """Whether a newer version than this one has deployed it."""
        try:
            return parse_version(self.version or "0.0") > parse_version(client_version())
        except ValidationError:
            return False

    @property
    def is_busy(self) -> bool:
        """An operation is under way, which ends by itself."""
        return self.status.endswith("_IN_PROGRESS") and self.status not in NEVER_MADE

    def info(self, region: str | None, record: VersionRecord | None = None) -> LimiterInfo:
        """The stack in a list; its table knows the versions better than its tags."""
        return LimiterInfo(
            stack_name=self.name,
            region=region,
            stack_status=self.status,
            creation_time=self.created,
            last_updated_time=self.updated,
            version=self.version,
            lambda_version=record.lambda_version if record else self.tags.get(f"{OURS}:lambda-version"),
            schema_version=record.schema_version if record else self.tags.get(f"{OURS}:schema-version"),
        )

    def check_ours(self) -> None:
        if not self.is_ours:
            raise StackOperationError(
                f"stack {self.name!r} is not one of {OURS}'s: it has no tag {MANAGED_BY}={OURS}; "
                "use the tool that made it, or choose another name",
                stack_name=self.name,
            )

    def check_deployed(self) -> None:
        if self.status not in DEPLOYED:
            raise self._not_usable()

    def check_deletable(self) -> None:
        if self.is_busy:
            raise self._not_usable()
        if self.parameters.get("EnableDeletionProtection") == "true":
            way = f"zae-limiter deploy --name {self.name} --no-deletion-protection"
        elif self.is_protected:
            verb = "update-termination-protection --no-enable-termination-protection"
            way = f"aws cloudformation {verb} --stack-name {self.name}"
        else:
            return
        message = f"stack {self.name!r} is protected from deletion; lift that first: {way}"
        raise StackOperationError(message, stack_name=self.name)

    def _not_usable(self) -> StackOperationError:
        message = f"stack {self.name!r} is {self.status}; {self.way_out}"
        return StackOperationError(message, stack_name=self.name)

    def exists(self) -> StackAlreadyExistsError:
        """What to say to whoever wants to create it."""
        if not self.is_ours:
            way = f" and is not one of {OURS}'s; choose another name"
        elif self.status in DEPLOYED:
            way = f"; update it: zae-limiter deploy --name {self.name}"
        else:
            way = f"; {self.way_out}"
        return StackAlreadyExistsError(
            f"stack {self.name!r} exists ({self.status}){way}", stack_name=self.name
        )

    def failed(self, events: Sequence[StackEvent]) -> StackOperationError:
        """What to say if it settled where it should not."""
        reasons = failed_reasons(events) or [self.reason or "CloudFormation gives no reason"]
        message = f"stack {self.name!r} ended as {self.status}: {'; then '.join(reasons)}; {self.way_out}"
        return StackOperationError(message, reasons, stack_name=self.name)

    @property
    def way_out(self) -> str:
        if self.status in NEVER_MADE:
            first = f"zae-limiter delete --name {self.name}"
            return f"it was never made and cannot be updated; delete it first: {first}"
        if self.status == "UPDATE_ROLLBACK_FAILED":
            return f"finish that first: aws cloudformation continue-update-rollback --stack-name {self.name}"
        if self.status == "DELETE_FAILED":
            return f"remove what is in the way and delete it again: zae-limiter delete --name {self.name}"
        if self.is_busy:
            return f"wait for that to end; see: zae-limiter status --name {self.name}"
        return "it is as it was before; remove the cause and deploy again"


def changes_of(described: Mapping[str, Any]) -> list[StackChange]:
    """The changes on one page of a change set."""
    found = [one["ResourceChange"] for one in described.get("Changes", ()) if "ResourceChange" in one]
    return [
        StackChange(
            one["Action"], one["LogicalResourceId"], one["ResourceType"], one.get("Replacement") == "True"
        )
        for one in found
    ]


def failed_reasons(events: Sequence[StackEvent]) -> list[str]:
    """Why an operation failed, in the order in which it happened: the first cause first."""
    failed = [event for event in events if event.is_failure and event.kind != STACK]
    told = [event for event in failed if not CANCELLED.fullmatch(event.reason.strip())] or failed
    return [f"{event.resource} ({event.kind}) {event.reason or event.status}" for event in told]


def missing_stack(name: str, deployed: Iterable[str]) -> InfrastructureNotFoundError:
    """There is no such stack; perhaps one that is there was meant."""
    like = get_close_matches(name, list(deployed), 3)
    meant = f"; did you mean {' or '.join(map(repr, like))}?" if like else ""
    message = f"stack {name!r} does not exist in this region and account{meant}"
    return InfrastructureNotFoundError(message, stack_name=name)


def _time(at: Any) -> str | None:
    """An instant as the other records have it."""
    return None if at is None else iso_time(round(at.timestamp() * 1000))
