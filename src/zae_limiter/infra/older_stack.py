"""Stacks that the older product made, up to 0.17: how this version's template takes their place. Pure.

CloudFormation knows a resource by its id in the template. Under another id the table would be deleted and
made anew, and whatever has a name of its own could not be made while the old one is there. So where both
templates mean the same resource it keeps the id it has, and the table keeps the indexes it has. A tag
remembers that, for the next update is under the same ids.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from operator import itemgetter
from typing import Any

from ..exceptions import StackOperationError
from .stack import OURS, Stack, StackChange

LAYOUT = f"{OURS}:layout"
OLDER = "older"

MARK = "SchemaVersion"
"""A parameter that every template of the older product has, and ours has not."""

IDS = {
    "Table": "RateLimitsTable",
    "ArchiveBucket": "AuditArchiveBucket",
    "AggregatorMapping": "AggregatorEventSourceMapping",
    "AggregatorQueue": "AggregatorDLQ",
    "AcquirePolicy": "AcquireOnlyPolicy",
    "FullPolicy": "FullAccessPolicy",
    "ReadPolicy": "ReadOnlyPolicy",
    "NamespaceFullPolicy": "NamespaceFullAccessPolicy",
    "NamespaceReadPolicy": "NamespaceReadOnlyPolicy",
    "ReadRole": "ReadOnlyRole",
    "DurationAlarm": "LambdaDurationAlarm",
}
"""Resources that both templates have, by our ids; those that are not here have the same id or no namesake."""

PARAMETERS = {
    "UsageRetentionDays": "SnapshotRetentionDays",
    "LambdaMemory": "LambdaMemorySize",
    "LambdaDurationThresholdMs": "LambdaDurationThreshold",
    "PitrRecoveryDays": "PITRRecoveryPeriodDays",
    "AlarmSnsTopicArn": "AlarmSNSTopicArn",
    "AuditArchiveGlacierDays": "AuditArchiveGlacierTransitionDays",
    "CreateIam": "EnableIAM",
    "CreateIamRoles": "EnableIAMRoles",
}
SAME = (
    *("SnapshotWindows", "LambdaTimeout", "EnableAggregator", "EnableAlarms", "LogRetentionDays"),
    *("EnableAuditArchival", "EnableTracing", "AggregatorRoleArn", "EnableDeletionProtection"),
)

NAMES: dict[str, tuple[tuple[str, str], ...]] = {
    "RoleName": (("AggregatorRoleName", "aggr"), ("AppRoleName", "app"), ("AdminRoleName", "admin")),
    "PolicyName": (("AcquireOnlyPolicyName", "acq"), ("FullAccessPolicyName", "full")),
}

TABLE_SHAPE = re.compile(
    r"^      AttributeDefinitions:\n.*?(?=^      StreamSpecification:)", re.DOTALL | re.MULTILINE
)


def is_older(stack: Stack) -> bool:
    """Whether the older product made a stack, whoever updated it since."""
    return MARK in stack.parameters or stack.tags.get(LAYOUT) == OLDER


def loses_table(change: StackChange) -> bool:
    """Whether a change would cost the table with all that is in it."""
    return change.kind == "AWS::DynamoDB::Table" and (change.action == "Remove" or change.replaces)


def translated(stack: Stack) -> Stack:
    """The stack as if its parameters were ours; one that was updated since has them."""
    if MARK not in stack.parameters:
        return stack
    theirs = stack.parameters
    said = {name: theirs[name] for name in SAME if theirs.get(name)}
    said |= {ours: theirs[name] for ours, name in PARAMETERS.items() if theirs.get(name)}
    if boundary := theirs.get("PermissionBoundary"):
        said["PermissionBoundaryArn" if boundary.startswith("arn:") else "PermissionBoundaryName"] = boundary
    for parameter, known in NAMES.items():
        custom = next(((theirs[name], kind) for name, kind in known if theirs.get(name)), None)
        if custom is not None:
            said |= _affixes(stack.name, parameter, *custom)
    if said.get("CreateIam") == "false":
        said["CreateIamRoles"] = "false"
    if said.get("CreateIamRoles") == "true":  # the roles of the older product trust the whole account
        _, partition, _, _, account, _ = stack.stack_id.split(":", 5)
        said["RolePrincipals"] = f"arn:{partition}:iam::{account}:*"
    return replace(stack, parameters=said)


def _affixes(stack: str, parameter: str, custom: str, kind: str) -> dict[str, str]:
    prefix, found, suffix = custom.partition(f"{stack}-{kind}")
    if not found:
        raise StackOperationError(
            f"stack {stack!r} calls something {custom!r}, which has no {stack}-{kind} in it; "
            "deploy it under names that have"
        )
    return {f"{parameter}Prefix": prefix, f"{parameter}Suffix": suffix}


def fitted(body: str, table: Mapping[str, Any], deployed: str | Mapping[str, Any]) -> str:
    """Our template under the ids of an older stack, with what cannot be changed as it is deployed."""
    for ours, theirs in IDS.items():
        body = re.sub(rf"^  {ours}:(?=\n    Type: )", f"  {theirs}:", body, flags=re.MULTILINE)
        body = re.sub(rf"((?:!Ref|!GetAtt|DependsOn:) ){ours}(?![A-Za-z0-9])", rf"\g<1>{theirs}", body)
        body = re.sub(rf"\$\{{{ours}(?=[.}}])", f"${{{theirs}", body)
    for policy in re.findall(r"^  (\w+Policy):$", body, re.MULTILINE):
        if (said := _description(deployed, policy)) is not None:
            body = _described(policy).sub(lambda found: f"{found[1]}{said}", body)
    shape = "".join(f"      {name}: {json.dumps(said)}\n" for name, said in _shape(table).items())
    body, count = TABLE_SHAPE.subn(lambda _: shape, body)
    assert count == 1, "the template has one table"
    # Another position would mean another mapping, which cannot be made beside the one that is there.
    return body.replace("StartingPosition: TRIM_HORIZON", "StartingPosition: LATEST")


def _described(policy: str) -> re.Pattern[str]:
    """A policy in a template up to its description, and that."""
    return re.compile(rf"(^  {policy}:\n(?:    .*\n)*?      Description: )(.*)", re.MULTILINE)


def _description(deployed: str | Mapping[str, Any], policy: str) -> str | None:
    """What a policy says of itself, which cannot be changed: as it stands in the template."""
    if isinstance(deployed, str):
        found = _described(policy).search(deployed)
        return None if found is None else found[2]
    said = deployed.get("Resources", {}).get(policy, {}).get("Properties", {}).get("Description")
    return None if said is None else json.dumps(said)


def _shape(table: Mapping[str, Any]) -> dict[str, Any]:
    """What of a table cannot be changed, or not all at once."""
    attributes = sorted(table["AttributeDefinitions"], key=itemgetter("AttributeName"))
    shape: dict[str, Any] = {"AttributeDefinitions": attributes, "KeySchema": table["KeySchema"]}
    for kind in ("GlobalSecondaryIndexes", "LocalSecondaryIndexes"):
        if indexes := table.get(kind):
            shape[kind] = [
                {name: index[name] for name in ("IndexName", "KeySchema", "Projection")}
                for index in sorted(indexes, key=itemgetter("IndexName"))
            ]
    return shape
