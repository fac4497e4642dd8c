"""The template of the stack, and what a deployment says to it: parameters, tags, names. Pure.

Only what was said becomes a parameter. The template has the defaults, and an update leaves what it does
not mention as it is deployed. Everything is checked here, so that a bad option is told before anything
is made, and by the name under which it was given.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import NamedTuple

from ..exceptions import InvalidNameError, ValidationError, shown
from ..models import StackOptions, check_mapping
from ..naming import validate_stack_name
from ..version import SCHEMA_VERSION, client_version

TEMPLATE = "cfn_template.yaml"
TEMPLATE_BYTES_MAX = 51_200
"""What CloudFormation takes in a request; a longer one would need a bucket."""

RETAINED = "DeletionPolicy: RetainExceptOnCreate"
DELETED = "DeletionPolicy: Delete"

ROLES = ("aggr", "app", "admin", "read")
POLICIES = ("acq", "full", "read", "ns-acq", "ns-full", "ns-read")

FUNCTION_NAME_MAX = 64
ROLE_NAME_MAX = 64
POLICY_NAME_MAX = 128
TAGS_MAX = 50
OWN_TAG = "zae-limiter:"

SWITCHES = {
    "enable_aggregator": "EnableAggregator",
    "enable_alarms": "EnableAlarms",
    "enable_audit_archival": "EnableAuditArchival",
    "enable_tracing": "EnableTracing",
    "enable_deletion_protection": "EnableDeletionProtection",
    "create_iam": "CreateIam",
    "create_iam_roles": "CreateIamRoles",
}

COUNTS = {
    "usage_retention_days": "UsageRetentionDays",
    "pitr_recovery_days": "PitrRecoveryDays",
    "lambda_timeout": "LambdaTimeout",
    "lambda_memory": "LambdaMemory",
    "audit_archive_glacier_days": "AuditArchiveGlacierDays",
}

ARNS = {
    "alarm_sns_topic": ("AlarmSnsTopicArn", "arn:aws[a-z-]*:sns:[a-z0-9-]+:[0-9]{12}:.+", "an SNS topic"),
    "aggregator_role_arn": ("AggregatorRoleArn", "arn:aws[a-z-]*:iam::[0-9]{12}:role/.+", "an IAM role"),
    "kms_key_arn": ("KmsKeyArn", "arn:aws[a-z-]*:kms:[a-z0-9-]+:[0-9]{12}:key/.+", "a KMS key"),
}

TIMEOUT_SECONDS, SLOW_PCT = 60, 80
"""What the template has by default."""

POLICY_ARN = re.compile("arn:aws[a-z-]*:iam::(?:aws|[0-9]{12}):policy/.+")
PRINCIPAL_ARN = re.compile("arn:aws[a-z-]*:iam::[0-9]{12}:[^,\\s]+")
IAM_NAME = re.compile(r"[A-Za-z0-9_+=,.@-]+")
BUCKET_NAME = re.compile("[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
TAG_TEXT = re.compile(r"[\w\s.:/=+\-@]*")


class CodeLocation(NamedTuple):
    """An object of S3 that holds the aggregator's package."""

    bucket: str
    key: str
    version: str | None = None


class Names(NamedTuple):
    """What everything in a stack is called; roles and policies by their kind."""

    stack: str
    table: str
    function: str
    log_group: str
    queue: str
    roles: Mapping[str, str]
    policies: Mapping[str, str]


def template_text(*, retain: bool = True) -> str:
    """The template; unless ``retain``, deleting the stack deletes table and archive with all their data."""
    text = files(__package__).joinpath(TEMPLATE).read_text(encoding="utf-8")
    return text if retain else text.replace(RETAINED, DELETED)


def parameters(
    options: StackOptions, code: CodeLocation | None = None, deployed: Mapping[str, str] | None = None
) -> dict[str, str]:
    """The parameters of the template that say what the options say, checked.

    Without ``code`` the function is made empty-handed: whoever deploys uploads its package then.
    ``deployed`` are the parameters of the stack that is to be updated: where options depend on each other,
    what they do not say is taken from there.
    """
    said: dict[str, str] = {}
    for option, parameter in SWITCHES.items():
        if (switch := getattr(options, option)) is not None:
            said[parameter] = "true" if switch else "false"
    for option, parameter in COUNTS.items():
        if (count := getattr(options, option)) is not None:
            said[parameter] = str(count)
    for option, (parameter, pattern, what) in ARNS.items():
        if (arn := getattr(options, option)) is not None:
            said[parameter] = _arn(option, arn, pattern, what)
    if options.log_retention_days is not None:
        said["LogRetentionDays"] = str(options.log_retention_days)
    if options.lambda_timeout is not None or options.lambda_duration_threshold_pct is not None:
        said["LambdaDurationThresholdMs"] = _slow(options, deployed or {})
    if options.snapshot_windows is not None:
        said["SnapshotWindows"] = ",".join(options.snapshot_windows)
    if options.role_principals is not None:
        said["RolePrincipals"] = _principals(options.role_principals)
    if options.permission_boundary is not None:
        said |= _boundary(options.permission_boundary)
    if options.role_name_format is not None:
        said |= _affixes("role_name_format", options.role_name_format, "RoleName")
    if options.policy_name_format is not None:
        said |= _affixes("policy_name_format", options.policy_name_format, "PolicyName")
    if code is not None:
        said |= _code(code)
    _check_together(said, deployed or {})
    return said


def tags(name: str, options: StackOptions, *, kind: str = "limiter") -> dict[str, str]:
    """The tags of a stack, which everything in it inherits: ours, and those of the options."""
    own = {
        "ManagedBy": "zae-limiter",
        f"{OWN_TAG}version": client_version(),
        f"{OWN_TAG}schema-version": SCHEMA_VERSION,
        f"{OWN_TAG}name": validate_stack_name(name),
        f"{OWN_TAG}type": kind,
    }
    if options.enable_aggregator is not False:
        own[f"{OWN_TAG}lambda-version"] = client_version()
    given: dict[str, str] = {}
    if options.tags is not None:
        given = check_mapping("tags", options.tags, "pass a mapping of texts to texts")
    for key, value in given.items():
        _check_tag(key, value)
    if len(given) + len(own) > TAGS_MAX:
        reason = f"a stack has at most {TAGS_MAX} tags, {len(own)} of them ours"
        raise ValidationError("tags", len(given), reason)
    return {**own, **given}


def names(name: str, options: StackOptions | None = None) -> Names:
    """What the parts of a stack will be called; a name that AWS would not take is told here."""
    options = options or StackOptions()
    function = f"{validate_stack_name(name)}-aggregator"
    if options.enable_aggregator is not False and len(function) > FUNCTION_NAME_MAX:
        room = FUNCTION_NAME_MAX - len("-aggregator")
        raise InvalidNameError(
            "stack name",
            name,
            f"the function {function!r} would have {len(function)} characters, and AWS allows "
            f"{FUNCTION_NAME_MAX}; use at most {room}, or deploy without an aggregator",
        )
    return Names(
        stack=name,
        table=name,
        function=function,
        log_group=f"/aws/lambda/{function}",
        queue=f"{function}-dlq",
        roles=_formatted("role_name_format", options.role_name_format, name, ROLES, ROLE_NAME_MAX),
        policies=_formatted(
            "policy_name_format", options.policy_name_format, name, POLICIES, POLICY_NAME_MAX
        ),
    )


def _arn(option: str, value: str, pattern: str, what: str) -> str:
    if not isinstance(value, str) or not re.fullmatch(pattern, value):
        raise ValidationError(option, value, f"pass the ARN of {what}")
    return value


def _slow(options: StackOptions, deployed: Mapping[str, str]) -> str:
    """When a batch takes too long: templates cannot multiply."""
    timeout = int(deployed.get("LambdaTimeout", TIMEOUT_SECONDS))
    percent = int(deployed.get("LambdaDurationThresholdMs", timeout * 10 * SLOW_PCT)) // (timeout * 10)
    if options.lambda_duration_threshold_pct is not None:
        percent = options.lambda_duration_threshold_pct
    return str((options.lambda_timeout or timeout) * 10 * max(1, percent))


def _principals(arns: Sequence[str]) -> str:
    reason = "pass ARNs of roles and users, such as ['arn:aws:iam::123456789012:role/team-*']"
    if not isinstance(arns, list | tuple) or not arns:
        raise ValidationError("role_principals", arns, reason)
    for arn in arns:
        if not isinstance(arn, str) or not PRINCIPAL_ARN.fullmatch(arn):
            raise ValidationError("role_principals", arn, reason)
    return ",".join(dict.fromkeys(arns))


def _boundary(policy: str) -> dict[str, str]:
    """A policy by its ARN, or by the name it has in the account of the stack."""
    if isinstance(policy, str) and POLICY_ARN.fullmatch(policy):
        return {"PermissionBoundaryArn": policy, "PermissionBoundaryName": ""}
    if isinstance(policy, str) and IAM_NAME.fullmatch(policy) and len(policy) <= POLICY_NAME_MAX:
        return {"PermissionBoundaryArn": "", "PermissionBoundaryName": policy}
    raise ValidationError("permission_boundary", policy, "pass the name or the ARN of a managed policy")


def _affixes(option: str, form: str, parameter: str) -> dict[str, str]:
    """What stands before and behind a default name; templates cannot put one text into another."""
    prefix, suffix = form.split("{}")
    if not IAM_NAME.fullmatch(f"{prefix}-{suffix}"):
        raise ValidationError(option, form, "names of IAM have letters, digits and '_+=,.@-' only")
    return {f"{parameter}Prefix": prefix, f"{parameter}Suffix": suffix}


def _formatted(option: str, form: str | None, name: str, kinds: tuple[str, ...], most: int) -> dict[str, str]:
    prefix, suffix = _affixes(option, form, "").values() if form is not None else ("", "")
    found = {kind: f"{prefix}{name}-{kind}{suffix}" for kind in kinds}
    longest = max(found.values(), key=len)
    if len(longest) > most:
        reason = f"{longest!r} would have {len(longest)} characters, and AWS allows {most}; shorten it"
        raise ValidationError(option, form, reason)
    return found


def _code(code: CodeLocation) -> dict[str, str]:
    if not BUCKET_NAME.fullmatch(code.bucket):
        raise ValidationError("code bucket", code.bucket, "it is not the name of a bucket")
    if not code.key:
        raise ValidationError("code key", code.key, "name the object that holds the package")
    return {"CodeBucket": code.bucket, "CodeKey": code.key, "CodeVersion": code.version or ""}


def _check_tag(key: str, value: str) -> None:
    for what, text, most in (("tag", key, 128), (f"tag {shown(key)}", value, 256)):
        if not isinstance(text, str) or len(text) > most or not TAG_TEXT.fullmatch(text):
            reason = f"use at most {most} letters, digits, spaces and '_.:/=+-@'"
            raise ValidationError(what, text, reason)
    if not key or key.lower().startswith(("aws:", OWN_TAG)) or key == "ManagedBy":
        raise ValidationError("tag", key, f"'aws:', '{OWN_TAG}' and 'ManagedBy' are reserved")


def _check_together(said: Mapping[str, str], deployed: Mapping[str, str]) -> None:
    """Options that contradict each other, or what is deployed; the template has the same rules."""
    will_be = {"EnableAggregator": "true", "CreateIam": "true", **deployed, **said}
    with_roles = will_be.get("CreateIamRoles") == "true"
    if with_roles and not will_be.get("RolePrincipals"):
        raise ValidationError(
            "create_iam_roles", True, "nobody is said to assume the roles; name them by role_principals"
        )
    if will_be["CreateIam"] == "true":
        return
    if with_roles:
        raise ValidationError("create_iam_roles", True, "create_iam is switched off; leave one of them out")
    if will_be["EnableAggregator"] == "true" and not will_be.get("AggregatorRoleArn"):
        raise ValidationError(
            "create_iam",
            False,
            "the aggregator needs a role; pass aggregator_role_arn, or enable_aggregator=False",
        )
