"""The template is sound, says what its options say, and cannot drift from the code that it deploys."""

import json
from dataclasses import replace
from fnmatch import fnmatchcase
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from cfnlint.api import lint
from cfnlint.config import ManualArgs
from hatchling.builders.wheel import WheelBuilder

from tests.aggregator.images import expired, record
from tests.aggregator.known_usage import Stream
from tests.dynamodb.tables import make_table
from tests.infra import flows
from tests.infra.chosen import BOUNDARY, CODE, EVERYTHING, KEY, PRINCIPALS, ROLE, TOPIC
from tests.infra.rendering import MADE, NAME, TEMPLATE, Refused, load, render
from tests.records.catalogue import samples
from zae_limiter import StackOptions
from zae_limiter.backends.dynamodb.expressions import decode_item, decode_key
from zae_limiter.backends.dynamodb.table import create_table_request, time_to_live_request
from zae_limiter.infra import template
from zae_limiter.infra.lambda_builder import HANDLER
from zae_limiter.infra.template import parameters, template_text
from zae_limiter.schema import audit_key, checkpoint_key, entity_key, sk_state
from zae_limiter.testing import ManualClock
from zae_limiter_aggregator import FILTERS, Change, change_of, handler

ROOT = Path(__file__).resolve().parents[2]


def lints(text: str) -> list[str]:
    config = ManualArgs(include_checks=["I"], regions=["eu-west-1"])
    return [str(found) for found in lint(text, config=config)]


def test_cfn_lint_has_nothing_to_say() -> None:
    """Not even for information; what it is told to overlook stands in the template with its reason."""
    assert lints(template_text()) == []
    assert TEMPLATE["Metadata"]["cfn-lint"]["config"] == {"ignore_checks": ["W1030"]}


def test_cfn_lint_can_find_something() -> None:
    """The check can fail."""
    assert lints(template_text().replace("PAY_PER_REQUEST", "PAY_AS_YOU_LIKE"))


def test_the_template_fits_into_a_request_and_is_in_the_wheel() -> None:
    """A longer one would need a bucket to be deployed from."""
    assert len(template_text().encode()) <= template.TEMPLATE_BYTES_MAX
    packed = [file.distribution_path for file in WheelBuilder(str(ROOT)).recurse_included_files()]
    assert "zae_limiter/infra/cfn_template.yaml" in packed


def test_the_table_is_the_one_that_the_store_makes() -> None:
    """Keys, indexes, stream and TTL, attribute by attribute."""
    made = render().properties("Table")
    wanted = create_table_request(NAME)
    stream = wanted.pop("StreamSpecification")
    assert {name: made[name] for name in wanted} == wanted
    assert made["StreamSpecification"] == {"StreamViewType": stream["StreamViewType"]}
    ttl = time_to_live_request(NAME)["TimeToLiveSpecification"]
    assert made["TimeToLiveSpecification"] == ttl


def test_what_holds_data_is_kept_under_its_name() -> None:
    """A resource of another logical name would be a new one, and the data would stay with the old."""
    kept = {
        name: (one["Type"], one["UpdateReplacePolicy"])
        for name, one in TEMPLATE["Resources"].items()
        if one.get("DeletionPolicy") == "RetainExceptOnCreate"
    }
    assert kept == {
        "Table": ("AWS::DynamoDB::Table", "Retain"),
        "ArchiveBucket": ("AWS::S3::Bucket", "Retain"),
    }
    assert "BucketName" not in render().properties("ArchiveBucket"), (
        "the next stack makes a bucket of its own"
    )
    gone = load(template_text(retain=False))["Resources"]
    assert {gone[name]["DeletionPolicy"] for name in kept} == {"Delete"}
    assert {gone[name]["UpdateReplacePolicy"] for name in kept} == {"Retain"}


def test_what_an_update_cannot_change_stays() -> None:
    """A named resource that would have to be made anew stops an update; these properties would do that."""
    policies = {
        name: one["Properties"]["Description"]
        for name, one in render().resources.items()
        if one["Type"] == "AWS::IAM::ManagedPolicy"
    }
    within = "in the namespace of the tag zae-limiter-namespace-id."
    assert policies == {
        "AcquirePolicy": "Acquire from the limits of demo in every namespace and nothing else.",
        "FullPolicy": "Use and administer the limits of demo in every namespace.",
        "ReadPolicy": "Read the limits and the usage of demo in every namespace.",
        "NamespaceAcquirePolicy": f"Acquire from the limits of demo {within}",
        "NamespaceFullPolicy": f"Use and administer the limits of demo {within}",
        "NamespaceReadPolicy": f"Read the limits and the usage of demo {within}",
    }
    assert render().properties("AggregatorMapping")["StartingPosition"] == "TRIM_HORIZON"


def test_an_update_leaves_the_uploaded_code_alone() -> None:
    """CloudFormation touches code only when the template says something else about it than before."""
    assert render().properties("AggregatorFunction")["Code"] == {
        "ZipFile": "# The package of zae-limiter is uploaded after this."
    }
    changed = render(parameters(replace(EVERYTHING, lambda_timeout=5)))
    assert (
        changed.properties("AggregatorFunction")["Code"] == render().properties("AggregatorFunction")["Code"]
    )
    by_bucket = render(CODE).properties("AggregatorFunction")
    assert by_bucket["Code"] == {"S3Bucket": "bucket", "S3Key": "package.zip", "S3ObjectVersion": "3"}
    without = render(CODE | {"CodeVersion": ""}).properties("AggregatorFunction")
    assert without["Code"] == {"S3Bucket": "bucket", "S3Key": "package.zip"}


def test_the_function_is_the_handler_and_understands_its_environment() -> None:
    """The variables of the template are those that the handler reads."""
    function = render(parameters(EVERYTHING)).properties("AggregatorFunction")
    assert function["Handler"] == HANDLER == f"{handler.handler.__module__}.{handler.handler.__name__}"
    environment = function["Environment"]["Variables"]
    settings = handler.settings_from(environment)
    assert settings.windows == EVERYTHING.snapshot_windows
    assert settings.retention_days == 400
    assert handler.archive_from(environment).bucket == MADE["ArchiveBucket"]  # type: ignore[union-attr]
    assert environment["TABLE_NAME"] == NAME
    assert set(environment) == {word for word in handler.__doc__.split() if word.isupper() and "_" in word}
    plain = render().properties("AggregatorFunction")["Environment"]["Variables"]
    assert handler.settings_from(plain) == handler.settings_from({}), "both have the same defaults"
    without = render(EnableAuditArchival="false").properties("AggregatorFunction")
    assert handler.archive_from(without["Environment"]["Variables"]) is None


def test_the_stream_is_followed_with_care() -> None:
    """Partial answers, halving, an end to repeating, and a queue for what nobody can read."""
    mapping = render().properties("AggregatorMapping")
    assert mapping["FunctionName"] == f"{NAME}-aggregator"
    assert mapping["EventSourceArn"] == MADE["Table.StreamArn"]
    assert mapping["FunctionResponseTypes"] == ["ReportBatchItemFailures"]
    assert mapping["BisectBatchOnFunctionError"] is True
    assert 0 < mapping["MaximumRetryAttempts"] < 10_000
    assert mapping["DestinationConfig"]["OnFailure"]["Destination"] == MADE["AggregatorQueue.Arn"]
    assert mapping["MaximumBatchingWindowInSeconds"] > 0


def test_what_is_stored_elsewhere_is_encrypted_and_private() -> None:
    """The archive and the queue."""
    stack = render(AuditArchiveGlacierDays="10")
    bucket = stack.properties("ArchiveBucket")
    (rule,) = bucket["BucketEncryption"]["ServerSideEncryptionConfiguration"]
    assert rule["ServerSideEncryptionByDefault"]["SSEAlgorithm"] == "AES256"
    assert list(bucket["PublicAccessBlockConfiguration"].values()) == [True] * 4
    assert bucket["VersioningConfiguration"] == {"Status": "Enabled"}
    (moved,) = bucket["LifecycleConfiguration"]["Rules"]
    assert moved["Transitions"] == [{"StorageClass": "GLACIER", "TransitionInDays": "10"}]
    assert moved["NoncurrentVersionTransitions"] == moved["Transitions"]
    assert not [name for name in moved if "Expiration" in name], "no version is ever thrown away"
    (denied,) = stack.properties("ArchiveBucketPolicy")["PolicyDocument"]["Statement"]
    assert (denied["Effect"], denied["Principal"], denied["Action"]) == ("Deny", "*", "s3:*")
    assert denied["Condition"] == {"Bool": {"aws:SecureTransport": "false"}}
    assert denied["Resource"] == [MADE["ArchiveBucket.Arn"], MADE["ArchiveBucket.Arn"] + "/*"]
    assert stack.properties("AggregatorQueue")["SqsManagedSseEnabled"] is True


def test_a_key_of_ones_own_encrypts_all_that_is_stored() -> None:
    """Table, archive, queue and logs; without one AWS has keys of its own."""
    stack, plain = render(KmsKeyArn=KEY), render()
    table = {"SSEEnabled": True, "SSEType": "KMS", "KMSMasterKeyId": KEY}
    assert stack.properties("Table")["SSESpecification"] == table
    (rule,) = stack.properties("ArchiveBucket")["BucketEncryption"]["ServerSideEncryptionConfiguration"]
    archive = {"SSEAlgorithm": "aws:kms", "KMSMasterKeyID": KEY}
    assert rule == {"ServerSideEncryptionByDefault": archive, "BucketKeyEnabled": True}
    queue = stack.properties("AggregatorQueue")
    assert queue["KmsMasterKeyId"] == KEY
    assert "SqsManagedSseEnabled" not in queue
    assert stack.properties("AggregatorLogGroup")["KmsKeyId"] == KEY
    assert "arn:aws:kms" not in str(plain.resources)
    assert "kms:" not in str(plain.resources)


# Filters.


def matches(pattern: Any, value: Any) -> bool:
    """What an event source mapping does with a filter."""
    if isinstance(pattern, dict):
        return isinstance(value, dict) and all(matches(p, value.get(name)) for name, p in pattern.items())
    return any(
        isinstance(value, str) and value.startswith(one["prefix"]) if isinstance(one, dict) else value == one
        for one in pattern
    )


def patterns(**said: str) -> list[Any]:
    filters = render(**said).properties("AggregatorMapping")["FilterCriteria"]["Filters"]
    return [json.loads(one["Pattern"]) for one in filters]


def test_the_filters_are_those_of_the_aggregator() -> None:
    """Without an archive nobody needs the events that expire."""
    assert patterns() == list(FILTERS)
    assert patterns(EnableAuditArchival="false") == [FILTERS[0]]
    assert all(len(json.dumps(pattern)) <= 4096 for pattern in FILTERS), "as long as a pattern may be"


@pytest.fixture(scope="module")
def records() -> list[dict[str, Any]]:
    """Stream records of every kind of item, made by the library itself, as Lambda gets them."""
    table, clock = make_table(with_stream=True), ManualClock(4_000_000_000_000)
    with flows.opened(table, clock) as (repository, _):
        flows.administration(repository)
    stream = Stream(table)
    stream.drain(clock.now_ms)
    kinds = [(one.key, one.item) for one in samples() if one.key.sort != sk_state()]
    by_hand = [
        record(key, None, item, number)
        for number, (key, item) in enumerate([*kinds, (checkpoint_key("shard"), {"position": "1"})])
    ]
    real = [*map(repaired, stream.records), *by_hand]
    gone = [removed(one, number) for number, one in enumerate(real) if "NewImage" in one["dynamodb"]]
    # What its ttl removes looks the same as what somebody deletes, but for who did it.
    return [*real, *gone, *map(expired, gone)]


def repaired(one: Any) -> Any:
    """DynamoDB Local's stream does not say of an empty map what it is."""
    if not isinstance(one, dict):
        return one
    return {name: {"M": {}} if part == {} else repaired(part) for name, part in one.items()}


def removed(one: dict[str, Any], number: int) -> dict[str, Any]:
    content = one["dynamodb"]
    return record(decode_key(content["Keys"]), decode_item(content["NewImage"]), None, 1_000_000 + number)


def is_needed(one: dict[str, Any], *, archive: bool) -> bool:
    """Whether the handler does anything about a record."""
    found = change_of(one)
    return found.new is not None if isinstance(found, Change) else found is not None and archive


@pytest.mark.parametrize("archive", [True, False])
def test_the_filters_let_pass_exactly_what_the_handler_needs(
    archive: bool, records: list[dict[str, Any]]
) -> None:
    """Of every kind of record, made, changed, deleted and expired."""
    assert {one["eventName"] for one in records} == {"INSERT", "MODIFY", "REMOVE"}
    filters = patterns(EnableAuditArchival="true" if archive else "false")
    wrong = [
        (one["eventName"], one["dynamodb"]["Keys"])
        for one in records
        if any(matches(pattern, one) for pattern in filters) != is_needed(one, archive=archive)
    ]
    assert wrong == []
    assert any(is_needed(one, archive=archive) for one in records)


def test_records_that_nobody_needs_are_not_even_read() -> None:
    """Without filters, as the program gets them, an image that nobody understands stops nothing."""
    for key in (entity_key("ns", "user"), audit_key("ns", "user", "01J")):
        one = record(key, None, {"metadata": {}}, 1)
        one["dynamodb"]["NewImage"]["metadata"] = {}
        assert change_of(one) is None


# Choices.


SWITCHED = ("EnableAggregator", "EnableAlarms", "EnableAuditArchival", "CreateIam", "CreateIamRoles")


@pytest.mark.parametrize("switches", list(product(["true", "false"], repeat=len(SWITCHED))), ids=" ".join)
def test_every_combination_of_switches_is_whole(switches: tuple[str, ...]) -> None:
    """Nothing refers to what is not made, and exactly what is switched on is made."""
    aggregator, alarms, archival, iam, roles = (value == "true" for value in switches)
    said = dict(zip(SWITCHED, switches, strict=True)) | {"RolePrincipals": ",".join(PRINCIPALS)}
    for role in ("", ROLE):
        if (roles and not iam) or (aggregator and not iam and not role):
            with pytest.raises(Refused):
                render(said, AggregatorRoleArn=role)
            continue
        stack = render(said, AggregatorRoleArn=role)
        made = {"Table"}
        if aggregator:
            made |= {"AggregatorFunction", "AggregatorLogGroup", "AggregatorMapping", "AggregatorQueue"}
        if aggregator and alarms:
            made |= {"ErrorAlarm", "DurationAlarm", "IteratorAgeAlarm", "ThrottleAlarm", "QueueAlarm"}
        if aggregator and archival:
            made |= {"ArchiveBucket", "ArchiveBucketPolicy"}
        if aggregator and iam and not role:
            made |= {"AggregatorRole"}
        if iam:
            kinds = ("Acquire", "Full", "Read")
            made |= {f"{prefix}{kind}Policy" for prefix in ("", "Namespace") for kind in kinds}
        if roles:
            made |= {"AppRole", "AdminRole", "ReadRole"}
        assert set(stack.resources) == made
        if aggregator:
            assert stack.properties("AggregatorFunction")["Role"] == (role or "AggregatorRole.Arn")


def test_smaller_choices_reach_their_properties() -> None:
    """Recovery, protection, tracing, alarms, boundaries."""
    plain, full = render(), render(parameters(replace(EVERYTHING, aggregator_role_arn=None)))
    table = plain.properties("Table")
    assert table["PointInTimeRecoverySpecification"] == {
        "PointInTimeRecoveryEnabled": True,
        "RecoveryPeriodInDays": "35",
    }
    assert table["DeletionProtectionEnabled"] is False
    assert full.properties("Table")["DeletionProtectionEnabled"] is True
    off = render(PitrRecoveryDays="0").properties("Table")["PointInTimeRecoverySpecification"]
    assert off == {"PointInTimeRecoveryEnabled": False}
    assert plain.properties("AggregatorFunction")["TracingConfig"] == {"Mode": "PassThrough"}
    assert full.properties("AggregatorFunction")["TracingConfig"] == {"Mode": "Active"}
    assert full.properties("AggregatorLogGroup")["RetentionInDays"] == "14"
    assert full.properties("DurationAlarm")["Threshold"] == "60000"
    roles = ("AggregatorRole", "AppRole", "AdminRole", "ReadRole")
    assert {full.properties(role)["PermissionsBoundary"] for role in roles} == {BOUNDARY}
    assert not any("PermissionsBoundary" in plain.properties("AggregatorRole") for _ in roles)
    named = StackOptions(permission_boundary="bound", create_iam_roles=True, role_principals=PRINCIPALS)
    by_name = render(parameters(named))
    assert {by_name.properties(role)["PermissionsBoundary"] for role in roles} == {BOUNDARY}
    for alarm in (name for name in full.resources if name.endswith("Alarm")):
        assert full.properties(alarm)["AlarmActions"] == [TOPIC]
        assert "AlarmActions" not in plain.properties(alarm)
        assert plain.properties(alarm)["TreatMissingData"] == "notBreaching"


def test_roles_have_the_policies_of_their_names() -> None:
    """One each."""
    stack = render(CreateIamRoles="true", RolePrincipals=ROLE)
    wanted = {"AppRole": "AcquirePolicy", "AdminRole": "FullPolicy", "ReadRole": "ReadPolicy"}
    assert {role: stack.properties(role)["ManagedPolicyArns"] for role in wanted} == {
        role: [policy] for role, policy in wanted.items()
    }


def test_roles_trust_those_who_are_named() -> None:
    """Nobody else of the account, whatever else they may do; a stack with roles names somebody."""
    stack = render(CreateIamRoles="true", RolePrincipals=",".join(PRINCIPALS))
    for role in ("AppRole", "AdminRole", "ReadRole"):
        (trusted,) = stack.properties(role)["AssumeRolePolicyDocument"]["Statement"]
        assert trusted["Action"] == "sts:AssumeRole"
        (named,) = trusted["Condition"]["ArnLike"].values()
        assert list(trusted["Condition"]["ArnLike"]) == ["aws:PrincipalArn"]
        may = {
            who: any(fnmatchcase(f"arn:aws:iam::123456789012:{who}", arn) for arn in named)
            for who in ("role/team-a", "user/ann", "user/bob", "role/other", "root")
        }
        assert [who for who, allowed in may.items() if allowed] == ["role/team-a", "user/ann"]
    with pytest.raises(Refused, match="RolePrincipals"):
        render(CreateIamRoles="true")
    for wrong in ("*", "arn:aws:iam::123456789012:role/a, b", "arn:aws:iam::*:role/a", f"{ROLE},"):
        with pytest.raises(Refused):
            render(CreateIamRoles="true", RolePrincipals=wrong)
