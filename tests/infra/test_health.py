"""How a deployment is doing: each judgement as a table, and all of them on the emulator."""

from typing import Any

import pytest
from botocore.config import Config

from tests.dynamodb.tables import make_table
from tests.engines import dynamodb_local, emulator
from tests.infra.emulated import deployed, manager, place, sync_manager
from tests.infra.scripted_aws import DENIED, NO_STACK, ScriptedAws, recorded, stacks
from tests.stores import drive
from zae_limiter import SyncRepository
from zae_limiter.backends.dynamodb.table import create_table_request
from zae_limiter.backends.dynamodb.transport import ServiceError
from zae_limiter.exceptions import InfrastructureNotFoundError, StackOperationError
from zae_limiter.infra.health import Health, HealthCheck, HealthReport
from zae_limiter.infra.stack_manager import SyncStackManager
from zae_limiter.models import StackOptions
from zae_limiter.version import client_version

TABLE = create_table_request("limits") | {"TableStatus": "ACTIVE", "ItemCount": 7}
GONE = ServiceError("ResourceNotFoundException", "no")
BOTH = pytest.mark.parametrize("sync", [False, True], ids=["async", "sync"])
RESOURCES = {
    "StackResourceSummaries": [
        {"LogicalResourceId": kind, "ResourceType": f"AWS::{kind}", "PhysicalResourceId": kind}
        for kind in ("Lambda::Function", "Lambda::EventSourceMapping", "SQS::Queue", "CloudWatch::Alarm")
    ]
}


def answers(**more: Any) -> dict[str, Any]:
    """Those of a deployment that has everything and where all is well, but for what is said."""
    return {
        "DescribeStacks": stacks("CREATE_COMPLETE"),
        "ListStackResources": RESOURCES,
        "DescribeTable": {"Table": TABLE},
        "DescribeTimeToLive": {"TimeToLiveDescription": {"TimeToLiveStatus": "ENABLED"}},
        "DescribeContinuousBackups": {"ContinuousBackupsDescription": {}},
        "GetItem": recorded(client_version()),
        "GetFunctionConfiguration": {"State": "Active"},
        "GetEventSourceMapping": {"State": "Enabled"},
        "GetQueueAttributes": {},
        "DescribeAlarms": {"MetricAlarms": [{"AlarmName": "a", "StateValue": "OK"}]},
        **more,
    }


def by_part(report: HealthReport) -> dict[str, HealthCheck]:
    return {check.part: check for check in report.checks}


def stack_in(status: str) -> dict[str, Any]:
    return {"DescribeStacks": stacks(status)}


def table_with(**more: Any) -> dict[str, Any]:
    return {"DescribeTable": {"Table": TABLE | more}}


def indexes_in(state: str) -> dict[str, Any]:
    indexes = [index | {"IndexStatus": state} for index in TABLE["GlobalSecondaryIndexes"]]
    return table_with(GlobalSecondaryIndexes=indexes)


def expiry(status: str, attribute: str = "ttl") -> dict[str, Any]:
    described = {"TimeToLiveStatus": status, "AttributeName": attribute}
    return {"DescribeTimeToLive": {"TimeToLiveDescription": described}}


def function_with(**more: Any) -> dict[str, Any]:
    return {"GetFunctionConfiguration": more}


def mapping_with(**more: Any) -> dict[str, Any]:
    return {"GetEventSourceMapping": more}


def messages(count: int) -> dict[str, Any]:
    return {"GetQueueAttributes": {"Attributes": {"ApproximateNumberOfMessages": str(count)}}}


def recorded_as(*versions: str | None) -> dict[str, Any]:
    return {"GetItem": recorded(*versions)}


@pytest.mark.parametrize(
    ("part", "said", "expected", "detail"),
    [
        ("stack", {"DescribeStacks": NO_STACK}, "off", "none around"),
        (
            "stack",
            {"DescribeStacks": DENIED},
            "yellow",
            "unknown: CloudFormation DescribeStacks is not",
        ),
        ("stack", {}, "green", "CREATE_COMPLETE"),
        ("stack", stack_in("UPDATE_IN_PROGRESS"), "yellow", "wait"),
        ("stack", stack_in("UPDATE_ROLLBACK_COMPLETE"), "yellow", "taken back"),
        ("stack", stack_in("UPDATE_ROLLBACK_FAILED"), "red", "continue-update-rollback"),
        ("stack", stack_in("ROLLBACK_COMPLETE"), "red", "delete it first"),
        ("table", {}, "green", "about 7 items"),
        ("table", table_with(TableStatus="DELETING"), "red", "DELETING"),
        ("table", {"DescribeTable": GONE}, "red", "does not exist"),
        ("indexes", indexes_in("ACTIVE"), "green", "4 active"),
        ("indexes", indexes_in("CREATING"), "red", "GSI1, GSI2, GSI3, GSI4 cannot be used"),
        ("indexes", table_with(GlobalSecondaryIndexes=[]), "red", "index GSI1 is missing"),
        ("ttl", expiry("ENABLED"), "green", "'ttl'"),
        ("ttl", expiry("ENABLED", "x"), "yellow", "stays"),
        ("ttl", expiry("DISABLED"), "yellow", "stays in the table"),
        ("stream", {}, "green", "images"),
        ("stream", table_with(StreamSpecification=None), "red", "cannot be counted"),
        ("stream", table_with(StreamSpecification={"StreamViewType": "KEYS_ONLY"}), "red", "lacks"),
        ("function", {"GetFunctionConfiguration": GONE}, "red", "does not exist"),
        ("function", {}, "green", client_version()),
        ("function", function_with(State="Inactive"), "green", "Inactive"),
        ("function", {"GetItem": {}}, "red", "repeat zae-limiter deploy"),
        ("function", recorded_as(None), "red", "not uploaded"),
        ("function", function_with(State="Failed", StateReason="no role"), "red", "no role"),
        ("function", function_with(State="Pending"), "yellow", "being changed"),
        ("function", function_with(LastUpdateStatus="InProgress"), "yellow", "being changed"),
        ("mapping", {"GetEventSourceMapping": GONE}, "red", "does not exist"),
        ("mapping", {}, "green", "nothing yet"),
        ("mapping", mapping_with(State="Enabled", LastProcessingResult="PROBLEM: x"), "red", "x"),
        ("mapping", mapping_with(State="Disabled"), "red", "told of nothing"),
        ("mapping", mapping_with(State="Creating"), "yellow", "Creating"),
        ("dead letters", messages(0), "green", "none"),
        ("dead letters", messages(1200), "yellow", "processed: 1,200"),
        ("alarms", {}, "green", "none raised"),
        (
            "alarms",
            {"DescribeAlarms": {"MetricAlarms": [{"AlarmName": "a", "StateValue": "ALARM"}]}},
            "red",
            "raised: a",
        ),
        ("alarms", {"DescribeAlarms": {"MetricAlarms": []}}, "red", "1 of 1 do not exist"),
        ("versions", {}, "green", "schema 1.0.0"),
        ("versions", {"GetItem": {}}, "yellow", "none recorded"),
        ("versions", {"GetItem": DENIED}, "yellow", "not permitted"),
        ("versions", recorded_as("0.0.1"), "yellow", "zae-limiter upgrade"),
        ("versions", recorded_as(None, "9.0.0"), "red", "newer zae-limiter"),
        ("versions", recorded_as(None, "soon"), "red", "unreadable"),
    ],
)
def test_a_part_is_judged(part: str, said: dict[str, Any], expected: str, detail: str) -> None:
    """Green works, yellow wants to be looked at, red does not work, off was not asked for."""
    check = by_part(ScriptedAws(**answers(**said)).manager.report())[part]
    assert check.health == expected
    assert detail in check.detail


@pytest.mark.parametrize(
    ("enabled", "days", "expected"),
    [
        (True, "35", "green"),
        (True, None, "green"),
        (False, "35", "yellow"),
        (False, "0", "off"),
        (False, None, "off"),
    ],
)
def test_recovery_is_judged_by_what_was_asked_for(enabled: bool, days: str | None, expected: str) -> None:
    """What nobody wanted is not missed."""
    status = {"PointInTimeRecoveryStatus": "ENABLED" if enabled else "DISABLED"}
    parameters = [] if days is None else [{"ParameterKey": "PitrRecoveryDays", "ParameterValue": days}]
    aws = ScriptedAws(
        **answers(
            DescribeContinuousBackups={
                "ContinuousBackupsDescription": {"PointInTimeRecoveryDescription": status}
            },
            DescribeStacks=stacks("CREATE_COMPLETE", Parameters=parameters),
        )
    )
    assert by_part(aws.manager.report())["recovery"].health == expected


@pytest.mark.parametrize(
    ("found", "worst"),
    [("green off", "green"), ("green yellow", "yellow"), ("yellow red green", "red"), ("off", "green")],
)
def test_the_whole_is_as_well_as_its_worst_part(found: str, worst: str) -> None:
    """What is off does not count."""
    checks = tuple(HealthCheck("part", Health(one), "") for one in found.split())
    assert HealthReport("limits", checks).health == worst


def test_what_is_not_permitted_is_unknown() -> None:
    """Nothing else is spoilt by it."""
    aws = ScriptedAws(**answers(DescribeTimeToLive=DENIED, DescribeContinuousBackups=DENIED, GetItem=DENIED))
    report = aws.manager.report()
    checks = by_part(report)
    assert {checks[part].health for part in ("ttl", "recovery", "versions")} == {Health.YELLOW}
    assert "allow the caller dynamodb:DescribeTimeToLive" in checks["ttl"].detail
    assert checks["table"].health == Health.GREEN
    assert report.latency_ms is None


def test_a_table_that_is_gone_is_the_only_news() -> None:
    """Nobody asks about the indexes of nothing."""
    missing = ServiceError("ResourceNotFoundException", "no")
    aws = ScriptedAws(**answers(DescribeTable=missing, GetItem=missing))
    report = aws.manager.report()
    assert [(check.part, check.health) for check in report.checks] == [("stack", "green"), ("table", "red")]
    assert (report.health, report.latency_ms) == (Health.RED, None)


def test_neither_table_nor_stack_is_not_found() -> None:
    """And one that could not be looked for is an error, not a missing one."""
    missing = ServiceError("ResourceNotFoundException", "no")
    with pytest.raises(InfrastructureNotFoundError):
        ScriptedAws(
            **answers(DescribeTable=missing, DescribeStacks=[NO_STACK, {"Stacks": []}])
        ).manager.report()
    with pytest.raises(StackOperationError, match="not permitted"):
        ScriptedAws(**answers(DescribeTable=missing, DescribeStacks=DENIED)).manager.report()


def test_resources_are_read_page_by_page() -> None:
    """A stack has more of them than fit on one."""
    function = {"LogicalResourceId": "F", "ResourceType": "AWS::Lambda::Function", "PhysicalResourceId": "f"}
    unborn = {"LogicalResourceId": "Q", "ResourceType": "AWS::SQS::Queue"}
    pages = [
        {"StackResourceSummaries": [unborn], "NextToken": "2"},
        {"StackResourceSummaries": [function]},
    ]
    checks = by_part(ScriptedAws(**answers(ListStackResources=pages)).manager.report())
    assert checks["function"].health != Health.OFF
    assert checks["dead letters"].health == Health.OFF


def heal(name: str) -> None:
    """Do what the emulator leaves undone of the template."""
    dynamodb = emulator.client("dynamodb")
    ttl = {"Enabled": True, "AttributeName": "ttl"}
    dynamodb.update_time_to_live(TableName=name, TimeToLiveSpecification=ttl)
    recovery = {"PointInTimeRecoveryEnabled": True}
    dynamodb.update_continuous_backups(TableName=name, PointInTimeRecoverySpecification=recovery)


@BOTH
def test_a_deployment_is_examined(sync: bool) -> None:
    """All green when all is well; what breaks turns red or yellow, and nothing else does."""
    with deployed() as name:
        heal(name)

        async def report() -> HealthReport:
            async with manager(sync, name) as stack:
                return await stack.report()

        well = drive(sync, report())
        assert {check.health for check in well.checks} == {Health.GREEN}, well.checks
        assert len(well.checks) == 11
        assert well.latency_ms is not None

        function = f"{name}-aggregator"
        emulator.client("cloudwatch").set_alarm_state(
            AlarmName=f"{function}-errors", StateValue="ALARM", StateReason="a test"
        )
        queue = emulator.client("sqs").get_queue_url(QueueName=f"{function}-dlq")["QueueUrl"]
        emulator.client("sqs").send_message(QueueUrl=queue, MessageBody="a batch")
        emulator.client("lambda").delete_function(FunctionName=function)
        ill = by_part(drive(sync, report()))
        assert ill["alarms"] == HealthCheck("alarms", Health.RED, f"raised: {function}-errors")
        assert ill["dead letters"].health == Health.YELLOW
        assert ill["dead letters"].detail.endswith(": 1")
        assert ill["function"] == HealthCheck("function", Health.RED, "it does not exist")
        still_green = {check.part for check in ill.values() if check.health == Health.GREEN}
        assert still_green >= {"stack", "table", "ttl", "versions"}


def test_a_stack_without_an_aggregator_lacks_nothing() -> None:
    """What was not asked for is off, and the whole is green."""
    with deployed(StackOptions(enable_aggregator=False, pitr_recovery_days=0)) as name:
        heal(name)
        SyncRepository.open(stack=name, **place()).close()
        with sync_manager(name) as stack:
            report = stack.report()
        off = {check.part for check in report.checks if check.health == Health.OFF}
        assert off == {"function", "mapping", "dead letters", "alarms"}
        assert report.health == Health.GREEN


def test_a_table_where_there_is_no_cloudformation() -> None:
    """DynamoDB alone answers what it can; what it has not cannot be deployed there, and is off."""
    once = Config(retries={"total_max_attempts": 1})
    with SyncStackManager(make_table(), "eu-west-1", dynamodb_local.endpoint(), config=once) as stack:
        checks = by_part(stack.report())
    assert checks["table"].health == Health.GREEN
    assert checks["indexes"].health == Health.GREEN
    assert checks["stack"].health == Health.OFF
    assert checks["recovery"].health == Health.OFF
    assert checks["function"].health == Health.OFF
