"""Options, names and tags of a deployment: checked before anything is sent, and understood by the stack."""

import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.infra.chosen import BOUNDARY, CODE, EVERYTHING, KEY, PRINCIPALS, ROLE, TOPIC
from tests.infra.rendering import NAME, PARAMETERS, Refused, render
from zae_limiter import InvalidNameError, StackOptions, UsageWindow, ValidationError
from zae_limiter.infra import template
from zae_limiter.infra.template import names, parameter_of, parameters, tags
from zae_limiter.models.deployments import COUNTS, LOG_RETENTION_DAYS, SWITCHES
from zae_limiter.version import SCHEMA_VERSION, client_version

ROOT = Path(__file__).resolve().parents[2]
NO_PARAMETER = {
    "audit_retention_days": "clients write it into the events themselves",
    "tags": "they are the stack's",
}


def test_every_option_has_a_parameter_and_every_parameter_an_option() -> None:
    """Or a reason why not."""
    for field in fields(StackOptions):
        value = getattr(EVERYTHING, field.name)
        assert value is not None, f"name a value of {field.name} in EVERYTHING"
        said = parameters(StackOptions(**{field.name: value}), deployed={"RolePrincipals": "somebody"})
        assert bool(said) == (field.name not in NO_PARAMETER), field.name
    assert parameters(EVERYTHING).keys() | CODE.keys() == PARAMETERS.keys()
    assert parameters(StackOptions()) == {}, "what is not said is left to the template, or as it is"


def test_the_guide_knows_every_option_with_its_default() -> None:
    """The table of options in the guide is that of the code and of the template."""
    guide = (ROOT / "docs" / "stack.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \| (?:`(\w+)`.*?)?\| (\S+) \|", guide, re.MULTILINE)
    assert sorted(option for option, _, _ in rows) == sorted(field.name for field in fields(StackOptions))
    plain = {"none": "", "`{}`": ""}
    for option, parameter, default in rows:
        assert bool(parameter) == (option not in NO_PARAMETER), option
        if option == "lambda_duration_threshold_pct":
            assert default == str(template.SLOW_PCT)
        elif parameter:
            assert str(PARAMETERS[parameter]["Default"]) == plain.get(default, default), option


def test_options_and_template_agree_on_ranges_and_defaults() -> None:
    """So that what one of them refuses the other does, too."""
    for option in set(template.PLAIN) & set(COUNTS):
        found = PARAMETERS[parameter_of(option)]
        assert (found["MinValue"], found["MaxValue"]) == COUNTS[option], option
    for option in SWITCHES:
        assert PARAMETERS[parameter_of(option)]["AllowedValues"] == ["true", "false"]
    assert tuple(PARAMETERS["LogRetentionDays"]["AllowedValues"]) == LOG_RETENTION_DAYS
    assert PARAMETERS["LambdaTimeout"]["Default"] == template.TIMEOUT_SECONDS
    slow = template.TIMEOUT_SECONDS * 10 * template.SLOW_PCT
    assert PARAMETERS["LambdaDurationThresholdMs"]["Default"] == slow


@pytest.mark.parametrize(
    ("options", "deployed", "expected"),
    [
        (StackOptions(lambda_timeout=30), {}, "24000"),
        (StackOptions(lambda_duration_threshold_pct=50), {}, "30000"),
        (StackOptions(lambda_timeout=100, lambda_duration_threshold_pct=90), {}, "90000"),
        (
            StackOptions(lambda_timeout=100),
            {"LambdaTimeout": "200", "LambdaDurationThresholdMs": "20000"},
            "10000",
        ),
        (
            StackOptions(lambda_duration_threshold_pct=75),
            {"LambdaTimeout": "200", "LambdaDurationThresholdMs": "20000"},
            "150000",
        ),
        (StackOptions(lambda_timeout=900, lambda_duration_threshold_pct=100), {}, "900000"),
        (StackOptions(lambda_timeout=1, lambda_duration_threshold_pct=1), {}, "10"),
    ],
)
def test_a_slow_batch_is_a_part_of_the_timeout(
    options: StackOptions, deployed: dict[str, str], expected: str
) -> None:
    """Of the timeout that will be, and the part that was if none is said."""
    said = parameters(options, deployed=deployed)
    assert said["LambdaDurationThresholdMs"] == expected
    render(said)


@pytest.mark.parametrize(
    ("bad", "field"),
    [
        ({"enable_aggregator": "yes"}, "enable_aggregator"),
        ({"create_iam": 1}, "create_iam"),
        ({"pitr_recovery_days": 36}, "pitr_recovery_days"),
        ({"pitr_recovery_days": -1}, "pitr_recovery_days"),
        ({"pitr_recovery_days": True}, "pitr_recovery_days"),
        ({"usage_retention_days": 1.5}, "usage_retention_days"),
        ({"log_retention_days": 8}, "log_retention_days"),
        ({"log_retention_days": True}, "log_retention_days"),
        ({"log_retention_days": "7"}, "log_retention_days"),
        ({"log_retention_days": 7.0}, "log_retention_days"),
        ({"snapshot_windows": 7}, "snapshot_windows"),
        ({"lambda_timeout": 901}, "lambda_timeout"),
        ({"lambda_timeout": "60"}, "lambda_timeout"),
        ({"lambda_memory": 64}, "lambda_memory"),
        ({"lambda_duration_threshold_pct": 0}, "lambda_duration_threshold_pct"),
        ({"lambda_duration_threshold_pct": 101}, "lambda_duration_threshold_pct"),
        ({"alarm_sns_topic": "alarms"}, "alarm_sns_topic"),
        ({"alarm_sns_topic": ROLE}, "alarm_sns_topic"),
        ({"aggregator_role_arn": "mine"}, "aggregator_role_arn"),
        ({"aggregator_role_arn": BOUNDARY}, "aggregator_role_arn"),
        ({"permission_boundary": ""}, "permission_boundary"),
        ({"permission_boundary": ROLE}, "permission_boundary"),
        ({"permission_boundary": "a b"}, "permission_boundary"),
        ({"role_name_format": "team"}, "role_name_format"),
        ({"role_name_format": "{}{}"}, "role_name_format"),
        ({"role_name_format": "team/{}"}, "role_name_format"),
        ({"policy_name_format": 3}, "policy_name_format"),
        ({"snapshot_windows": ()}, "snapshot_windows"),
        ({"snapshot_windows": "hourly,weekly"}, "window_type"),
        ({"snapshot_windows": ("weekly",)}, "window_type"),
        ({"audit_archive_glacier_days": 0}, "audit_archive_glacier_days"),
        ({"kms_key_arn": "alias/mine"}, "kms_key_arn"),
        ({"kms_key_arn": "arn:aws:kms:eu-west-1:123456789012:alias/mine"}, "kms_key_arn"),
        ({"role_principals": ()}, "role_principals"),
        ({"role_principals": ROLE}, "role_principals"),
        ({"role_principals": ("*",)}, "role_principals"),
        ({"role_principals": (f"{ROLE},*",)}, "role_principals"),
        ({"role_principals": (ROLE, 1)}, "role_principals"),
        ({"create_iam": False}, "create_iam"),
        ({"create_iam_roles": True}, "create_iam_roles"),
        (
            {
                "create_iam": False,
                "aggregator_role_arn": ROLE,
                "create_iam_roles": True,
                "role_principals": PRINCIPALS,
            },
            "create_iam_roles",
        ),
    ],
    ids=str,
)
def test_a_bad_option_is_told_by_its_name(bad: dict[str, Any], field: str) -> None:
    """Before anything is sent."""
    with pytest.raises(ValidationError) as caught:
        parameters(StackOptions(**bad))
    assert caught.value.field == field
    assert field in str(caught.value)


def test_what_is_deployed_counts_when_options_are_judged() -> None:
    """An update says only what it changes."""
    deployed = {"CreateIam": "true", "AggregatorRoleArn": ROLE, "CreateIamRoles": "false"}
    assert parameters(StackOptions(create_iam=False), deployed=deployed) == {"CreateIam": "false"}
    known = {"RolePrincipals": ROLE}
    assert parameters(StackOptions(create_iam_roles=True), deployed=known) == {"CreateIamRoles": "true"}
    with pytest.raises(ValidationError, match="name them by role_principals"):
        parameters(StackOptions(lambda_memory=256), deployed={"CreateIamRoles": "true"})
    with pytest.raises(ValidationError, match="create_iam_roles"):
        parameters(StackOptions(create_iam=False), deployed={**deployed, "CreateIamRoles": "true"})
    with pytest.raises(ValidationError, match="aggregator needs a role"):
        parameters(
            StackOptions(enable_aggregator=True), deployed={"CreateIam": "false", "EnableAggregator": "false"}
        )


def maybe(values: Any) -> Any:
    return st.none() | values


AFFIX = st.text("aZ9_+=,.@-", max_size=4)
OPTIONS = st.builds(
    StackOptions,
    snapshot_windows=maybe(st.lists(st.sampled_from(UsageWindow), min_size=1).map(tuple)),
    usage_retention_days=maybe(st.integers(0, 10_000)),
    enable_aggregator=maybe(st.booleans()),
    pitr_recovery_days=maybe(st.integers(0, 35)),
    log_retention_days=maybe(st.sampled_from(LOG_RETENTION_DAYS)),
    lambda_timeout=maybe(st.integers(1, 900)),
    lambda_memory=maybe(st.integers(128, 10_240)),
    enable_alarms=maybe(st.booleans()),
    alarm_sns_topic=maybe(st.just(TOPIC)),
    lambda_duration_threshold_pct=maybe(st.integers(1, 100)),
    permission_boundary=maybe(st.sampled_from([BOUNDARY, "bound", "arn:aws:iam::aws:policy/ReadOnlyAccess"])),
    role_name_format=maybe(st.builds("{}{{}}{}".format, AFFIX, AFFIX)),
    policy_name_format=maybe(st.builds("{}{{}}{}".format, AFFIX, AFFIX)),
    enable_audit_archival=maybe(st.booleans()),
    audit_archive_glacier_days=maybe(st.integers(1, 3_650)),
    enable_tracing=maybe(st.booleans()),
    create_iam_roles=maybe(st.booleans()),
    create_iam=maybe(st.booleans()),
    aggregator_role_arn=maybe(st.just(ROLE)),
    enable_deletion_protection=maybe(st.booleans()),
    kms_key_arn=maybe(st.just(KEY)),
    role_principals=maybe(st.sampled_from([PRINCIPALS, PRINCIPALS[:1]])),
)


@given(OPTIONS, st.sampled_from([CODE, {}]))
def test_the_template_takes_what_the_options_allow(options: StackOptions, code: dict[str, str]) -> None:
    """And everything is called what it was said to be called, wherever it is made."""
    try:
        said = parameters(options) | code
    except ValidationError:
        # Only contradictions are left to be refused, and the template refuses these as well.
        switches = {parameter_of(name): getattr(options, name) for name in SWITCHES}
        stated = {name: str(value).lower() for name, value in switches.items() if value is not None}
        if options.aggregator_role_arn is not None:
            stated["AggregatorRoleArn"] = options.aggregator_role_arn
        if options.role_principals is not None:
            stated["RolePrincipals"] = ",".join(options.role_principals)
        with pytest.raises(Refused):
            render(stated)
        return
    stack, called = render(said), names(NAME, options)
    found = {
        one["Properties"].get(field)
        for one in stack.resources.values()
        for field in (
            "TableName",
            "FunctionName",
            "LogGroupName",
            "QueueName",
            "RoleName",
            "ManagedPolicyName",
        )
        if field in one["Properties"] and one["Type"] != "AWS::Lambda::EventSourceMapping"
    }
    expected = {called.table}
    if options.enable_aggregator is not False:
        expected |= {called.function, called.log_group, called.queue}
        if options.create_iam is not False and options.aggregator_role_arn is None:
            expected.add(called.roles["aggr"])
    if options.create_iam is not False:
        expected |= set(called.policies.values())
        if options.create_iam_roles:
            expected |= {called.roles[kind] for kind in ("app", "admin", "read")}
    assert found == expected


# Names and tags.


def test_names_follow_the_rule() -> None:
    """Everything is called after the stack."""
    called = names("limits", StackOptions(role_name_format="x-{}"))
    assert (called.stack, called.table, called.function) == ("limits", "limits", "limits-aggregator")
    assert called.queue == "limits-aggregator-dlq"
    assert called.roles["app"] == "x-limits-app"
    assert called.policies["ns-full"] == "limits-ns-full"


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("a" * 54, StackOptions(), "at most 53"),
        ("1limits", StackOptions(), "stack name"),
        ("a" * 53, StackOptions(role_name_format="team-x-{}"), "'team-x-aaa"),
        ("a" * 53, StackOptions(policy_name_format="x" * 70 + "{}"), "128"),
    ],
)
def test_a_name_that_aws_would_refuse_is_told_before(name: str, options: StackOptions, said: str) -> None:
    """With the length that is too much, and what would do."""
    with pytest.raises(ValidationError) as caught:
        names(name, options)
    assert said in str(caught.value)


def test_the_longest_name_needs_a_stack_without_a_function() -> None:
    """The limit of a stack's name is that of its roles."""
    assert names("a" * 55, StackOptions(enable_aggregator=False)).table == "a" * 55
    with pytest.raises(InvalidNameError):
        names("a" * 55)


def test_tags_tell_what_is_deployed() -> None:
    """And whose it is; tags of the user stand beside them."""
    found = tags("limits", StackOptions(tags={"team": "a b", "empty": ""}))
    assert found == {
        "ManagedBy": "zae-limiter",
        "zae-limiter:version": client_version(),
        "zae-limiter:lambda-version": client_version(),
        "zae-limiter:schema-version": SCHEMA_VERSION,
        "zae-limiter:name": "limits",
        "zae-limiter:type": "limiter",
        "team": "a b",
        "empty": "",
    }
    assert "zae-limiter:lambda-version" not in tags("limits", StackOptions(enable_aggregator=False))


@pytest.mark.parametrize(
    "bad",
    [
        {"aws:x": "y"},
        {"AWS:x": "y"},
        {"zae-limiter:name": "other"},
        {"ManagedBy": "me"},
        {"": "x"},
        {"x" * 129: "y"},
        {"x": "y" * 257},
        {"x": "a*b"},
        {"x": 1},
        {1: "x"},
        {f"tag{n}": "x" for n in range(45)},
        "team=a",
    ],
    ids=lambda bad: str(bad)[:20],
)
def test_a_bad_tag_is_told(bad: Any) -> None:
    with pytest.raises(ValidationError, match="tag"):
        tags("limits", StackOptions(tags=bad))
