"""The template of the stack, and what a deployment says to it: parameters, tags, names. Pure.

Only what was said becomes a parameter. The template has the defaults, and an update leaves what it does
not mention as it is deployed. Everything is checked here, so that a bad option is told before anything
is made, and by the name under which it was given.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any, NamedTuple

from ..exceptions import InvalidNameError, ValidationError, shown
from ..models import StackOptions, check_mapping
from ..naming import validate_stack_name
from ..version import SCHEMA_VERSION, client_version

TEMPLATE_BYTES_MAX = 51_200
"""What CloudFormation takes in a request; a longer one would need a bucket."""

ROLES = ("aggr", "app", "admin", "read")
POLICIES = ("acq", "full", "read", "ns-acq", "ns-full", "ns-read")

FUNCTION_NAME_MAX = 64
ROLE_NAME_MAX = 64
POLICY_NAME_MAX = 128
TAGS_MAX = 50
OWN_TAG = "zae-limiter:"

PLAIN = (
    *("enable_aggregator", "enable_alarms", "enable_audit_archival", "enable_tracing", "create_iam"),
    *("create_iam_roles", "enable_deletion_protection", "usage_retention_days", "pitr_recovery_days"),
    *("lambda_timeout", "lambda_memory", "audit_archive_glacier_days", "log_retention_days"),
    "snapshot_windows",
)
"""Options that are parameters as they are, called the same but for the spelling."""

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
TAG_TEXT = re.compile(r"[\w\s.:/=+\-@]*")


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
    text = files(__package__).joinpath("cfn_template.yaml").read_text(encoding="utf-8")
    return text if retain else text.replace("DeletionPolicy: RetainExceptOnCreate", "DeletionPolicy: Delete")


def parameter_names(body: str) -> set[str]:
    """What a template can be told. It is read as text: not every installation can read YAML."""
    section = re.search(r"^Parameters:\n((?:[ #].*\n|\n)*)", body, re.MULTILINE)
    return set(re.findall(r"^  (\w+):", section[1], re.MULTILINE)) if section else set()


def retained_in(body: str | Mapping[str, Any]) -> set[str]:
    """The resources that outlive a stack of this template."""
    if not isinstance(body, str):
        resources = body.get("Resources", {})
        return {name for name, one in resources.items() if "Retain" in str(one.get("DeletionPolicy"))}
    return set(re.findall(r"^  (\w+):\n(?:(?!  \w).*\n)*?    DeletionPolicy: Retain", body, re.MULTILINE))


def parameters(options: StackOptions, deployed: Mapping[str, str] | None = None) -> dict[str, str]:
    """The parameters of the template that say what the options say, checked.

    ``deployed`` are the parameters of the stack that is to be updated: where options depend on each other,
    what they do not say is taken from there.
    """
    deployed = deployed or {}
    said: dict[str, str] = {}
    for option in PLAIN:
        if (value := getattr(options, option)) is not None:
            said[parameter_of(option)] = _text(value)
    for option, (parameter, pattern, what) in ARNS.items():
        if (arn := getattr(options, option)) is not None:
            if not isinstance(arn, str) or not re.fullmatch(pattern, arn):
                raise ValidationError(option, arn, f"pass the ARN of {what}")
            said[parameter] = arn
    if options.lambda_timeout is not None or options.lambda_duration_threshold_pct is not None:
        said["LambdaDurationThresholdMs"] = _slow(options, deployed)
    if options.role_principals is not None:
        said["RolePrincipals"] = _principals(options.role_principals)
    if options.permission_boundary is not None:
        said |= _boundary(options.permission_boundary)
    for option, parameter in (("role_name_format", "RoleName"), ("policy_name_format", "PolicyName")):
        if (form := getattr(options, option)) is not None:
            prefix, suffix = _affixes(option, form)
            said |= {f"{parameter}Prefix": prefix, f"{parameter}Suffix": suffix}
    _check_together({**deployed, **said})
    return said


def parameter_of(option: str) -> str:
    return "".join(map(str.capitalize, option.split("_")))


def tags(name: str, options: StackOptions) -> dict[str, str]:
    """The tags of a stack, which everything in it inherits: ours, and those of the options."""
    own = {
        "ManagedBy": "zae-limiter",
        f"{OWN_TAG}version": client_version(),
        f"{OWN_TAG}schema-version": SCHEMA_VERSION,
        f"{OWN_TAG}name": validate_stack_name(name),
        f"{OWN_TAG}type": "limiter",
    }
    if options.enable_aggregator is not False:
        own[f"{OWN_TAG}lambda-version"] = client_version()
    said = {} if options.tags is None else options.tags
    given = check_mapping("tags", said, "pass a mapping of texts to texts")
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
        reason = (
            f"the function {function!r} would have {len(function)} characters, and AWS allows "
            f"{FUNCTION_NAME_MAX}; use at most {FUNCTION_NAME_MAX - len('-aggregator')}, or deploy "
            "without an aggregator"
        )
        raise InvalidNameError("stack name", name, reason)
    roles = _formatted("role_name_format", options.role_name_format, name, ROLES, ROLE_NAME_MAX)
    policies = _formatted("policy_name_format", options.policy_name_format, name, POLICIES, POLICY_NAME_MAX)
    return Names(name, name, function, f"/aws/lambda/{function}", f"{function}-dlq", roles, policies)


def _text(value: int | Sequence[str]) -> str:
    return str(value).lower() if isinstance(value, int) else ",".join(value)


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


def _affixes(option: str, form: str) -> tuple[str, str]:
    """What stands before and behind a default name; templates cannot put one text into another."""
    prefix, suffix = form.split("{}")
    if not IAM_NAME.fullmatch(f"{prefix}-{suffix}"):
        raise ValidationError(option, form, "names of IAM have letters, digits and '_+=,.@-' only")
    return prefix, suffix


def _formatted(option: str, form: str | None, name: str, kinds: tuple[str, ...], most: int) -> dict[str, str]:
    prefix, suffix = _affixes(option, form or "{}")
    found = {kind: f"{prefix}{name}-{kind}{suffix}" for kind in kinds}
    longest = max(found.values(), key=len)
    if len(longest) > most:
        reason = f"{longest!r} would have {len(longest)} characters, and AWS allows {most}; shorten it"
        raise ValidationError(option, form, reason)
    return found


def _check_tag(key: str, value: str) -> None:
    for what, text, most in (("tag", key, 128), (f"tag {shown(key)}", value, 256)):
        if not isinstance(text, str) or len(text) > most or not TAG_TEXT.fullmatch(text):
            reason = f"use at most {most} letters, digits, spaces and '_.:/=+-@'"
            raise ValidationError(what, text, reason)
    if not key or key.lower().startswith(("aws:", OWN_TAG)) or key == "ManagedBy":
        raise ValidationError("tag", key, f"'aws:', '{OWN_TAG}' and 'ManagedBy' are reserved")


def _check_together(said: Mapping[str, str]) -> None:
    """Options that contradict each other, or what is deployed; the template has the same rules."""
    with_roles = said.get("CreateIamRoles") == "true"
    if with_roles and not said.get("RolePrincipals"):
        raise ValidationError(
            "create_iam_roles", True, "nobody is said to assume the roles; name them by role_principals"
        )
    if said.get("CreateIam", "true") == "true":
        return
    if with_roles:
        raise ValidationError("create_iam_roles", True, "create_iam is switched off; leave one of them out")
    if said.get("EnableAggregator", "true") == "true" and not said.get("AggregatorRoleArn"):
        reason = "the aggregator needs a role; pass aggregator_role_arn, or enable_aggregator=False"
        raise ValidationError("create_iam", False, reason)
