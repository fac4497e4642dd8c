"""Stacks of older releases, made from the templates that they print, and upgraded on an emulator of AWS."""

import json
import subprocess
from typing import Any

import pytest
from click.testing import CliRunner, Result

from tests.engines import emulator
from tests.infra.test_end_to_end import until
from tests.infra.test_template import lints
from tests.older.releases import ROOT, VERSIONS, alone, recorded
from zae_limiter import Limit, StackOptions, SyncRateLimiter, SyncRepository
from zae_limiter.backends.dynamodb.expressions import encode, encode_key
from zae_limiter.cli.app import program
from zae_limiter.exceptions import IncompatibleSchemaError, StackOperationError
from zae_limiter.infra.lambda_builder import build, code_sha256
from zae_limiter.infra.older_stack import IDS, fitted, loses_table, translated
from zae_limiter.infra.stack import Stack, StackChange
from zae_limiter.infra.stack_manager import SyncStackManager
from zae_limiter.infra.stack_request import StackRequest
from zae_limiter.infra.template import template_text

RELEASES = {"0.10": ("0.10.3", "0.9.0"), "0.17": ("0.17.0", "0.10.0")}

UNKNOWN_TO_THE_EMULATOR = "!Select [0, !Split [':', !Ref PermissionBoundary]]"


def printed(version: str) -> str:
    """The template of a release, as its own command prints it."""
    program_ = ROOT / f".engines/older-{version}/bin/zae-limiter"
    if not program_.exists():
        pytest.fail(f"release {version} is not installed; run: make engines", pytrace=False)
    words = [str(program_), "cfn-template"]
    done = subprocess.run(words, env=alone(), capture_output=True, text=True, check=True)
    return done.stdout


def deployed(version: str) -> str:
    """A stack as that release deploys it, its table filled by it."""
    name, (release, schema) = emulator.fresh_name(), RELEASES[version]
    body = printed(version).replace(UNKNOWN_TO_THE_EMULATOR, "!Ref PermissionBoundary")
    tags = {"ManagedBy": "zae-limiter", "zae-limiter:version": release, "zae-limiter:name": name, "team": "a"}
    emulator.client("cloudformation").create_stack(
        StackName=name,
        TemplateBody=body,
        Parameters=[
            {"ParameterKey": "SchemaVersion", "ParameterValue": schema},
            {"ParameterKey": "SnapshotRetentionDays", "ParameterValue": "30"},
            {"ParameterKey": "EnableIAMRoles", "ParameterValue": "false"},
        ],
        Capabilities=["CAPABILITY_NAMED_IAM"],
        Tags=[{"Key": key, "Value": value} for key, value in tags.items()],
    )
    until(lambda: described(name)["StackStatus"], lambda status: status == "CREATE_COMPLETE")
    items = [
        {"PutRequest": {"Item": encode_key(key) | {n: encode(v) for n, v in item.items()}}}
        for key, item in recorded(version).items()
    ]
    for at in range(0, len(items), 25):
        emulator.client("dynamodb").batch_write_item(RequestItems={name: items[at : at + 25]})
    return name


def described(name: str) -> Any:
    return emulator.client("cloudformation").describe_stacks(StackName=name)["Stacks"][0]


def table_of(name: str) -> Any:
    return emulator.client("dynamodb").describe_table(TableName=name)["Table"]


def mapping_of(name: str) -> Any:
    (mapping,) = emulator.client("lambda").list_event_source_mappings(FunctionName=f"{name}-aggregator")[
        "EventSourceMappings"
    ]
    return mapping


def run(name: str, *words: str) -> Result:
    where = ["--name", name, "--region", emulator.REGION, "--endpoint-url", emulator.endpoint()]
    return CliRunner().invoke(program, [*words, *where])


@pytest.mark.parametrize("version", VERSIONS)
def test_function_filter_and_template_are_replaced(version: str) -> None:
    """With a plan first. The table stays what it was, and first uses are counted from then on."""
    name = deployed(version)
    table = table_of(name)
    with (
        SyncStackManager(name, emulator.REGION, emulator.endpoint()) as manager,
        pytest.raises(IncompatibleSchemaError, match="zae-limiter upgrade"),
    ):
        manager.update()  # its function could not read the table
    plan = run(name, "upgrade", "--dry-run")
    assert plan.exit_code == 0, plan.stderr
    assert f"stack '{name}' of zae-limiter {RELEASES[version][0]} would be changed" in plan.stdout
    assert "modify RateLimitsTable (AWS::DynamoDB::Table)" in plan.stdout
    assert "remove ProvisionerFunction (AWS::Lambda::Function)" in plan.stdout
    assert "SchemaVersion" in {one["ParameterKey"] for one in described(name)["Parameters"]}
    done = run(name, "upgrade", "--yes", "--output", "json")
    assert done.exit_code == 0, done.stderr
    assert json.loads(done.stdout)["lambda_updated"] is True

    now = table_of(name)
    for part in ("CreationDateTime", "AttributeDefinitions", "LocalSecondaryIndexes"):
        assert now.get(part) == table.get(part)
    function = emulator.client("lambda").get_function_configuration(FunctionName=f"{name}-aggregator")
    assert function["CodeSha256"] == code_sha256(build())
    assert function["Environment"]["Variables"]["SNAPSHOT_TTL_DAYS"] == "30"
    mapping = mapping_of(name)
    assert mapping["State"] == "Enabled"
    assert '"INSERT"' in json.dumps(json.loads(mapping["FilterCriteria"]["Filters"][0]["Pattern"]))
    tags = {tag["Key"]: tag["Value"] for tag in described(name)["Tags"]}
    assert (tags["team"], tags["zae-limiter:layout"]) == ("a", "older")

    with SyncRepository.open(
        stack=name, region=emulator.REGION, endpoint_url=emulator.endpoint()
    ) as repository:
        assert repository.get_limits("user-0", "gpt-4") == [Limit.custom("rpd", 20, 1, 86_400)]
        limiter = SyncRateLimiter(repository=repository)
        with limiter.acquire("newcomer", "gpt-4", {"rpd": 2}):
            pass
        counted = until(lambda: limiter.get_usage_snapshots(entity_id="newcomer")[0])
        assert [dict(one.counters)["rpd"] for one in counted] == [2] * len(counted)
    again = run(name, "upgrade", "--output", "json")
    assert json.loads(again.stdout)["changed"] is False
    with SyncStackManager(name, emulator.REGION, emulator.endpoint()) as manager:
        manager.update(StackOptions(lambda_memory=512))  # the next update is under the same ids
        assert table_of(name)["CreationDateTime"] == table["CreationDateTime"]


def test_an_upgrade_that_cannot_be_touches_no_stack() -> None:
    """Records in the way: neither the table nor the stack is changed, and the function goes on."""
    name = deployed("0.17")
    key, item = next((key, item) for key, item in recorded("0.17").items() if key.sort == "#CONFIG#gpt-4")
    emulator.client("dynamodb").put_item(
        TableName=name,
        Item=encode_key(key) | {n: encode(v) for n, v in {**item, "moon": "full"}.items()},
    )
    before = described(name)
    result = run(name, "upgrade", "--yes")
    assert (result.exit_code, "nobody knows what 'moon' says" in result.stderr) == (1, True)
    assert described(name) == before
    assert mapping_of(name)["State"] == "Enabled"


TABLE = {
    "AttributeDefinitions": [
        {"AttributeName": name, "AttributeType": "S"} for name in ("SK", "PK", "LSI1SK")
    ],
    "KeySchema": [{"AttributeName": "PK", "KeyType": "HASH"}, {"AttributeName": "SK", "KeyType": "RANGE"}],
    "LocalSecondaryIndexes": [
        {
            "IndexName": "LSI1",
            "KeySchema": [
                {"AttributeName": "PK", "KeyType": "HASH"},
                {"AttributeName": "LSI1SK", "KeyType": "RANGE"},
            ],
            "Projection": {"ProjectionType": "ALL"},
            "IndexArn": "arn:aws:dynamodb:…",
        }
    ],
}


def test_the_fitted_template_is_sound() -> None:
    """Every reference is to something in it, and what cannot be changed is as it is deployed."""
    theirs = "Resources:\n  ReadOnlyPolicy:\n    Properties:\n      Description: Reads (all)\n"
    body = fitted(template_text(), TABLE, theirs)
    assert lints(body) == []
    for ours, older in IDS.items():
        assert f"\n  {older}:\n    Type: " in body
        assert f"\n  {ours}:\n    Type: " not in body
    assert "      Description: Reads (all)\n" in body
    assert '"IndexName": "LSI1"' in body
    assert "IndexArn" not in body
    as_data = {"Resources": {"ReadOnlyPolicy": {"Properties": {"Description": "Reads (all)"}}}}
    assert '      Description: "Reads (all)"\n' in fitted(template_text(), TABLE, as_data)


def test_parameters_mean_what_they_meant() -> None:
    """Renamed ones, names with a format, a boundary, and roles that trust the account."""
    stack = Stack(
        "limits",
        "arn:aws:cloudformation:eu-west-1:123456789012:stack/limits/1",
        "CREATE_COMPLETE",
        parameters={
            "SchemaVersion": "0.10.0",
            "SnapshotRetentionDays": "30",
            "PITRRecoveryPeriodDays": "",
            "EnableIAM": "true",
            "EnableIAMRoles": "true",
            "AggregatorRoleName": "pb-limits-aggr-x",
            "PermissionBoundary": "edge",
            "LambdaTimeout": "9",
            "AcquireOnlyPolicyName": "p-limits-acq",
        },
    )
    assert translated(stack).parameters == {
        "UsageRetentionDays": "30",
        "CreateIam": "true",
        "CreateIamRoles": "true",
        "RolePrincipals": "arn:aws:iam::123456789012:*",
        "RoleNamePrefix": "pb-",
        "RoleNameSuffix": "-x",
        "PolicyNamePrefix": "p-",
        "PolicyNameSuffix": "",
        "PermissionBoundaryName": "edge",
        "LambdaTimeout": "9",
    }
    said = StackRequest("limits", StackOptions(lambda_timeout=7)).change(stack)["Parameters"]
    assert {"ParameterKey": "LambdaTimeout", "ParameterValue": "7"} in said
    assert not any("UsePreviousValue" in one for one in said)
    odd = Stack("limits", "", "", parameters={"SchemaVersion": "0.10.0", "AppRoleName": "somebody"})
    with pytest.raises(StackOperationError, match="'somebody'"):
        translated(odd)


@pytest.mark.parametrize(
    ("change", "loses"),
    [
        (StackChange("Modify", "RateLimitsTable", "AWS::DynamoDB::Table"), False),
        (StackChange("Modify", "RateLimitsTable", "AWS::DynamoDB::Table", replaces=True), True),
        (StackChange("Remove", "RateLimitsTable", "AWS::DynamoDB::Table"), True),
        (StackChange("Remove", "ProvisionerFunction", "AWS::Lambda::Function"), False),
    ],
)
def test_what_would_cost_the_table(change: StackChange, loses: bool) -> None:
    """Nothing else is worth stopping for."""
    assert loses_table(change) is loses
