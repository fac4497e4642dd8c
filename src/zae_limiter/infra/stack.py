"""What CloudFormation tells of a stack, as values, and what to make of it. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

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
PROTECTION = "EnableDeletionProtection"
MANAGED_BY, OURS = "ManagedBy", "zae-limiter"

DEPLOYED = frozenset(
    {
        "CREATE_COMPLETE",
        "UPDATE_COMPLETE",
        "UPDATE_ROLLBACK_COMPLETE",
        "IMPORT_COMPLETE",
        "IMPORT_ROLLBACK_COMPLETE",
    }
)
"""A stack in one of these works and can be updated."""

NEVER_MADE = frozenset({"CREATE_FAILED", "REVIEW_IN_PROGRESS", "ROLLBACK_COMPLETE", "ROLLBACK_FAILED"})
"""A stack in one of these was never there: only its name is, and can be deleted."""

NO_CHANGES = ("didn't contain changes", "No updates are to be performed")

# What CloudFormation says of resources that it gave up because of another one.
CANCELLED = re.compile(r"(?:resource )?(?:creation|update|deletion)? ?cancelled", re.IGNORECASE)


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

    @property
    def is_ours(self) -> bool:
        return self.tags.get(MANAGED_BY) == OURS

    @property
    def version(self) -> str | None:
        """The version of ours that deployed it last."""
        return self.tags.get(f"{OURS}:version")

    @property
    def is_busy(self) -> bool:
        """An operation is under way, which ends by itself."""
        return self.status.endswith("_IN_PROGRESS") and self.status not in NEVER_MADE

    def info(self, region: str | None, record: VersionRecord | None = None) -> LimiterInfo:
        """The stack in a list; its table knows the versions better than its tags."""
        tagged = {word: self.tags.get(f"{OURS}:{word}") for word in ("lambda-version", "schema-version")}
        return LimiterInfo(
            stack_name=self.name,
            region=region,
            stack_status=self.status,
            creation_time=self.created,
            last_updated_time=self.updated,
            version=self.version,
            lambda_version=record.lambda_version if record else tagged["lambda-version"],
            schema_version=record.schema_version if record else tagged["schema-version"],
        )


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


@dataclass(frozen=True, slots=True)
class Resource:
    """Something that a stack consists of."""

    logical_id: str
    kind: str
    physical_id: str

    def __str__(self) -> str:
        return f"{self.kind.rpartition('::')[2].lower()} {self.physical_id!r}"


def resource_of(described: Mapping[str, Any]) -> Resource:
    return Resource(
        described["LogicalResourceId"], described["ResourceType"], described.get("PhysicalResourceId", "")
    )


def stack_of(described: Mapping[str, Any]) -> Stack:
    return Stack(
        name=described["StackName"],
        stack_id=described["StackId"],
        status=described["StackStatus"],
        reason=described.get("StackStatusReason", ""),
        tags={tag["Key"]: tag["Value"] for tag in described.get("Tags", ())},
        parameters={p["ParameterKey"]: p.get("ParameterValue", "") for p in described.get("Parameters", ())},
        created=_time(described.get("CreationTime")),
        updated=_time(described.get("LastUpdatedTime")),
        is_protected=described.get("EnableTerminationProtection", False),
    )


def event_of(described: Mapping[str, Any]) -> StackEvent:
    return StackEvent(
        event_id=described["EventId"],
        at=_time(described["Timestamp"]) or "",
        resource=described["LogicalResourceId"],
        kind=described["ResourceType"],
        status=described["ResourceStatus"],
        reason=described.get("ResourceStatusReason", ""),
        physical_id=described.get("PhysicalResourceId", ""),
    )


def changes_of(described: Mapping[str, Any]) -> list[StackChange]:
    """The changes on one page of a change set."""
    found = [
        change["ResourceChange"] for change in described.get("Changes", ()) if "ResourceChange" in change
    ]
    return [
        StackChange(
            change["Action"],
            change["LogicalResourceId"],
            change["ResourceType"],
            change.get("Replacement") == "True",
        )
        for change in found
    ]


def says_nothing_changes(reason: str) -> bool:
    """Whether this is why a change set failed: there is nothing to do, which is fine."""
    return any(text in reason for text in NO_CHANGES)


def is_missing(code: str, message: str) -> bool:
    """Whether CloudFormation refuses because there is no such stack; it has no code for that."""
    return code == "ValidationError" and "does not exist" in message


def parameter_names(body: str) -> set[str]:
    """What a template can be told. It is read as text: not every installation can read YAML."""
    section = re.search(r"^Parameters:\n((?:[ #].*\n|\n)*)", body, re.MULTILINE)
    return set(re.findall(r"^  (\w+):", section[1], re.MULTILINE)) if section else set()


def retained_in(body: str | Mapping[str, Any]) -> set[str]:
    """The resources that outlive a stack of this template."""
    if not isinstance(body, str):
        resources = body.get("Resources", {})
        return {name for name, one in resources.items() if "Retain" in str(one.get("DeletionPolicy"))}
    found, resource = set(), ""
    for line in body.splitlines():
        if named := re.match(r"  (\w+):$", line):
            resource = named[1]
        elif re.match(r"    DeletionPolicy: Retain", line):
            found.add(resource)
    return found


def parameter_list(
    body: str, said: Mapping[str, str], deployed: Mapping[str, str] | None = None
) -> list[dict[str, Any]]:
    """What is said, and what stays as it is deployed; the rest has the template's defaults."""
    kept = parameter_names(body) & (deployed or {}).keys() - said.keys()
    return [
        *({"ParameterKey": name, "ParameterValue": value} for name, value in sorted(said.items())),
        *({"ParameterKey": name, "UsePreviousValue": True} for name in sorted(kept)),
    ]


def tag_list(tags: Mapping[str, str]) -> list[dict[str, str]]:
    return [{"Key": key, "Value": value} for key, value in tags.items()]


def failed_reasons(events: Sequence[StackEvent]) -> list[str]:
    """Why an operation failed, in the order in which it happened: the first cause first."""
    failed = [event for event in events if event.is_failure and event.kind != STACK]
    told = [event for event in failed if not CANCELLED.fullmatch(event.reason.strip())] or failed
    return [f"{event.resource} ({event.kind}) {event.reason or event.status}" for event in told]


def operation_failed(stack: Stack, events: Sequence[StackEvent]) -> StackOperationError:
    """A stack that settled where it should not."""
    reasons = failed_reasons(events) or [stack.reason or "CloudFormation gives no reason"]
    causes = "; then ".join(reasons)
    message = f"stack {stack.name!r} ended as {stack.status}: {causes}; {way_out(stack)}"
    return StackOperationError(message, reasons, stack_name=stack.name)


def not_usable(stack: Stack) -> StackOperationError:
    """A stack that is in no state for what is asked of it."""
    message = f"stack {stack.name!r} is {stack.status}; {way_out(stack)}"
    return StackOperationError(message, stack_name=stack.name)


def way_out(stack: Stack) -> str:
    name = stack.name
    if stack.status in NEVER_MADE:
        return f"it was never made and cannot be updated; delete it first: zae-limiter delete --name {name}"
    if stack.status == "UPDATE_ROLLBACK_FAILED":
        return f"finish that first: aws cloudformation continue-update-rollback --stack-name {name}"
    if stack.status == "DELETE_FAILED":
        return f"remove what is in the way and delete it again: zae-limiter delete --name {name}"
    if stack.is_busy:
        return f"wait for that to end; see: zae-limiter status --name {name}"
    return "it is as it was before; remove the cause and deploy again"


def is_newer(stack: Stack) -> bool:
    """Whether a newer version than this one has deployed a stack."""
    try:
        return parse_version(stack.version or "0.0") > parse_version(client_version())
    except ValidationError:
        return False


def owned(stack: Stack) -> Stack:
    if stack.is_ours:
        return stack
    raise StackOperationError(
        f"stack {stack.name!r} is not one of {OURS}'s: it has no tag {MANAGED_BY}={OURS}; "
        "use the tool that made it, or choose another name",
        stack_name=stack.name,
    )


def already(stack: Stack) -> StackAlreadyExistsError:
    """What to say to whoever wants to create a stack that is there."""
    what = f"stack {stack.name!r} exists ({stack.status})"
    if not stack.is_ours:
        theirs = f"{what} and is not one of {OURS}'s; choose another name"
        return StackAlreadyExistsError(theirs, stack_name=stack.name)
    way = f"update it: zae-limiter deploy --name {stack.name}" if stack.status in DEPLOYED else way_out(stack)
    return StackAlreadyExistsError(f"{what}; {way}", stack_name=stack.name)


def check_deletable(stack: Stack) -> None:
    if stack.is_busy:
        raise not_usable(stack)
    if stack.parameters.get(PROTECTION) == "true":
        way = f"zae-limiter deploy --name {stack.name} --no-deletion-protection"
    elif stack.is_protected:
        way = (
            "aws cloudformation update-termination-protection --no-enable-termination-protection "
            f"--stack-name {stack.name}"
        )
    else:
        return
    message = f"stack {stack.name!r} is protected from deletion; lift that first: {way}"
    raise StackOperationError(message, stack_name=stack.name)


def missing_stack(name: str, deployed: Iterable[str] = ()) -> InfrastructureNotFoundError:
    """There is no such stack; perhaps one that is there was meant."""
    like = get_close_matches(name, list(deployed), 3)
    meant = f"; did you mean {' or '.join(map(repr, like))}?" if like else ""
    message = f"stack {name!r} does not exist in this region and account{meant}"
    return InfrastructureNotFoundError(message, stack_name=name)


def _time(at: Any) -> str | None:
    """An instant as the other records have it."""
    return None if at is None else iso_time(round(at.timestamp() * 1000))
