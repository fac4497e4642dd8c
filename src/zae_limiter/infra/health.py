"""How a deployed table and everything around it are doing: one check for each part.

Each check is a question to AWS and a judgement, which is pure. Green works, yellow works but wants to
be looked at, red does not work, and off is not there because nobody asked for it. A question that AWS
does not answer is yellow: it says nothing about the part.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from ..backends.dynamodb.failures import NOT_FOUND
from ..backends.dynamodb.table import TTL_ATTRIBUTE, problems
from ..backends.dynamodb.transport import ServiceError
from ..exceptions import InfrastructureError, ValidationError, VersionError
from ..models import VersionRecord
from ..runtime.world import World
from ..version import check_compatibility, client_version
from .cloud import Cloud, NotOffered
from .operations import Operations
from .stack import DEPLOYED, Resource, Stack, way_out
from .version_record import read_version

TABLE_USABLE = frozenset({"ACTIVE", "UPDATING"})
ALARMS_PER_REQUEST = 100


class Health(StrEnum):
    GREEN = "green"
    YELLOW = "yellow"
    RED = "red"
    OFF = "off"


@dataclass(frozen=True, slots=True)
class Check:
    """What was found out about one part."""

    part: str
    health: Health
    detail: str


@dataclass(frozen=True, slots=True)
class Report:
    """All checks of one deployment, and what they tell together."""

    name: str
    checks: tuple[Check, ...]
    stack: Stack | None = None
    record: VersionRecord | None = None
    latency_ms: float | None = None

    @property
    def health(self) -> Health:
        found = {check.health for check in self.checks}
        return next((worst for worst in (Health.RED, Health.YELLOW) if worst in found), Health.GREEN)


Question = Callable[[], Coroutine[Any, Any, Check]]


async def examine(cloud: Cloud, name: str, world: World) -> Report | None:
    """Look at the table of a name and at the stack around it; ``None`` if there is neither."""
    operations = Operations(name, cloud, world)
    table = await _table(cloud, name)
    stack, unknown = await _stack(operations, name, required=table is None)
    if stack is None and table is None:
        return None
    parts = Parts([] if stack is None else await operations.resources(stack.stack_id))
    started_ms = world.ticks_ms()
    record, trouble = await _record(cloud, name)
    latency_ms = world.ticks_ms() - started_ms
    questions: dict[str, Question] = {
        "stack": lambda: _said(stack_check(stack, unknown)),
        "table": lambda: _said(table_check(table)),
        "indexes": lambda: _said(indexes_check(table)),
        "ttl": lambda: _ttl(cloud, name),
        "recovery": lambda: _recovery(cloud, name, stack),
        "stream": lambda: _said(stream_check(table)),
        "function": lambda: _function(cloud, parts.one("AWS::Lambda::Function"), record),
        "mapping": lambda: _mapping(cloud, parts.one("AWS::Lambda::EventSourceMapping")),
        "dead letters": lambda: _queue(cloud, parts.one("AWS::SQS::Queue")),
        "alarms": lambda: _alarms(cloud, parts.all("AWS::CloudWatch::Alarm")),
        "versions": lambda: _said(version_check(record, trouble)),
    }
    # What belongs to a table that is not there need not be asked about.
    asked = [part for part in questions if table is not None or part in {"stack", "table"}]
    checks = await cloud.colour.together([_answered(part, questions[part]) for part in asked])
    return Report(name, tuple(checks), stack, record, None if trouble or table is None else latency_ms)


class Parts:
    """The resources of a stack: physical ids by their kind."""

    def __init__(self, resources: Sequence[Resource]) -> None:
        self._resources = resources

    def all(self, kind: str) -> list[str]:
        return [one.physical_id for one in self._resources if one.kind == kind]

    def one(self, kind: str) -> str | None:
        return next(iter(self.all(kind)), None)


# Judgements.


def stack_check(stack: Stack | None, unknown: str = "") -> Check:
    if unknown:
        return Check("stack", Health.YELLOW, f"unknown: {unknown}")
    if stack is None:
        return Check("stack", Health.OFF, "there is none around the table")
    if stack.is_busy:
        return Check("stack", Health.YELLOW, f"{stack.status}; {way_out(stack)}")
    if stack.status not in DEPLOYED:
        return Check("stack", Health.RED, f"{stack.status}; {way_out(stack)}")
    if "ROLLBACK" in stack.status:
        return Check("stack", Health.YELLOW, f"{stack.status}: the last change was taken back")
    return Check("stack", Health.GREEN, stack.status)


def table_check(table: Mapping[str, Any] | None) -> Check:
    if table is None:
        return Check("table", Health.RED, "it does not exist")
    status = table["TableStatus"]
    health = Health.GREEN if status in TABLE_USABLE else Health.RED
    return Check("table", health, f"{status}, about {table.get('ItemCount', 0):,} items")


def indexes_check(table: Mapping[str, Any] | None) -> Check:
    if found := problems(dict(table or {})):
        return Check("indexes", Health.RED, "; ".join(found))
    indexes = (table or {}).get("GlobalSecondaryIndexes", ())
    idle = [i["IndexName"] for i in indexes if i.get("IndexStatus", "ACTIVE") not in TABLE_USABLE]
    if idle:
        return Check("indexes", Health.RED, f"{', '.join(idle)} cannot be used yet")
    return Check("indexes", Health.GREEN, f"{len(indexes)} active")


def ttl_check(described: Mapping[str, Any]) -> Check:
    status = described.get("TimeToLiveStatus", "DISABLED")
    attribute = described.get("AttributeName", TTL_ATTRIBUTE)
    if status in {"ENABLED", "ENABLING"} and attribute == TTL_ATTRIBUTE:
        return Check("ttl", Health.GREEN, f"{status} on {attribute!r}")
    return Check("ttl", Health.YELLOW, f"{status}: what has expired stays in the table")


def recovery_check(described: Mapping[str, Any], days: str | None) -> Check:
    point = described.get("PointInTimeRecoveryDescription", {})
    if point.get("PointInTimeRecoveryStatus") == "ENABLED":
        period = point.get("RecoveryPeriodInDays", days)
        return Check("recovery", Health.GREEN, f"any second of the last {period or '35'} days")
    if days in (None, "0"):
        return Check("recovery", Health.OFF, "not asked for")
    return Check("recovery", Health.YELLOW, "point-in-time recovery is switched off")


def stream_check(table: Mapping[str, Any] | None) -> Check:
    stream = (table or {}).get("StreamSpecification") or {}
    if stream.get("StreamEnabled") and stream.get("StreamViewType") == "NEW_AND_OLD_IMAGES":
        return Check("stream", Health.GREEN, "old and new images")
    return Check("stream", Health.RED, "usage cannot be counted: the stream lacks old or new images")


def function_check(config: Mapping[str, Any] | None, record: VersionRecord | None) -> Check:
    if config is None:
        return Check("function", Health.RED, "it does not exist")
    state, last = config.get("State", "Active"), config.get("LastUpdateStatus", "Successful")
    if "Failed" in {state, last}:
        reason = config.get("StateReason") or config.get("LastUpdateStatusReason") or "no reason given"
        return Check("function", Health.RED, reason)
    if record is None or record.lambda_version is None:
        return Check("function", Health.RED, "its code was not uploaded; repeat zae-limiter deploy")
    if state == "Pending" or last == "InProgress":
        return Check("function", Health.YELLOW, "it is being changed")
    size_kb = config.get("CodeSize", 0) // 1000
    return Check("function", Health.GREEN, f"{state}, version {record.lambda_version}, {size_kb} kB")


def mapping_check(described: Mapping[str, Any] | None) -> Check:
    if described is None:
        return Check("mapping", Health.RED, "it does not exist")
    state, last = described.get("State", ""), described.get("LastProcessingResult") or "nothing yet"
    if last.startswith("PROBLEM"):
        return Check("mapping", Health.RED, f"{state}; {last}")
    if state == "Enabled":
        return Check("mapping", Health.GREEN, f"{state}; last result: {last}")
    if state in {"Disabled", "Disabling", "Deleting"}:
        return Check("mapping", Health.RED, f"{state}: the function is told of nothing")
    return Check("mapping", Health.YELLOW, state)


def queue_check(attributes: Mapping[str, str]) -> Check:
    count = int(attributes.get("ApproximateNumberOfMessages", 0))
    if count:
        return Check("dead letters", Health.YELLOW, f"batches that could not be processed: {count:,}")
    return Check("dead letters", Health.GREEN, "none")


def alarms_check(alarms: Sequence[Mapping[str, Any]], expected: int) -> Check:
    raised = [alarm["AlarmName"] for alarm in alarms if alarm.get("StateValue") == "ALARM"]
    if raised:
        return Check("alarms", Health.RED, f"raised: {', '.join(raised)}")
    if len(alarms) < expected:
        return Check("alarms", Health.RED, f"{expected - len(alarms)} of {expected} do not exist")
    return Check("alarms", Health.GREEN, f"{expected}, none raised")


def version_check(record: VersionRecord | None, trouble: str = "") -> Check:
    if trouble:
        return Check("versions", Health.YELLOW, trouble)
    if record is None:
        return Check("versions", Health.YELLOW, "none recorded; whoever first opens the table does that")
    client = client_version()
    try:
        verdict = check_compatibility(
            client, record.schema_version, record.client_min_version, record.lambda_version
        )
    except ValidationError as error:
        return Check("versions", Health.RED, f"unreadable: {error}")
    if not verdict.is_compatible:
        return Check("versions", Health.RED, verdict.message)
    if verdict.requires_lambda_update:
        return Check("versions", Health.YELLOW, verdict.message)
    return Check("versions", Health.GREEN, f"schema {record.schema_version}, client {client}")


# Questions.


async def _said(check: Check) -> Check:
    return check


async def _answered(part: str, question: Question) -> Check:
    try:
        return await question()
    except NotOffered:
        return Check(part, Health.OFF, "there is no such thing here")
    except InfrastructureError as error:
        return Check(part, Health.YELLOW, f"unknown: {error}")


async def _unless_missing(
    cloud: Cloud, service: str, operation: str, missing: str, **request: Any
) -> dict[str, Any] | None:
    try:
        return await cloud.ask(service, operation, expected=frozenset({missing}), **request)
    except ServiceError:
        return None


async def _stack(operations: Operations, name: str, *, required: bool) -> tuple[Stack | None, str]:
    """The stack, or why it is not known: a table alone may well be somewhere without CloudFormation."""
    try:
        return await operations.look(name), ""
    except NotOffered:
        return None, ""
    except InfrastructureError as error:
        if required:
            raise
        return None, str(error)


async def _table(cloud: Cloud, name: str) -> dict[str, Any] | None:
    reply = await _unless_missing(cloud, "dynamodb", "DescribeTable", NOT_FOUND, TableName=name)
    return None if reply is None else reply["Table"]


async def _record(cloud: Cloud, name: str) -> tuple[VersionRecord | None, str]:
    try:
        return await read_version(cloud, name), ""
    except (InfrastructureError, VersionError) as error:
        return None, str(error)


async def _ttl(cloud: Cloud, name: str) -> Check:
    reply = await cloud.ask("dynamodb", "DescribeTimeToLive", TableName=name)
    return ttl_check(reply["TimeToLiveDescription"])


async def _recovery(cloud: Cloud, name: str, stack: Stack | None) -> Check:
    reply = await cloud.ask("dynamodb", "DescribeContinuousBackups", TableName=name)
    days = None if stack is None else stack.parameters.get("PitrRecoveryDays")
    return recovery_check(reply["ContinuousBackupsDescription"], days)


async def _function(cloud: Cloud, function: str | None, record: VersionRecord | None) -> Check:
    if function is None:
        return Check("function", Health.OFF, "no aggregator is deployed")
    reply = await _unless_missing(
        cloud, "lambda", "GetFunctionConfiguration", NOT_FOUND, FunctionName=function
    )
    return function_check(reply, record)


async def _mapping(cloud: Cloud, uuid: str | None) -> Check:
    if uuid is None:
        return Check("mapping", Health.OFF, "no aggregator is deployed")
    reply = await _unless_missing(cloud, "lambda", "GetEventSourceMapping", NOT_FOUND, UUID=uuid)
    return mapping_check(reply)


async def _queue(cloud: Cloud, url: str | None) -> Check:
    if url is None:
        return Check("dead letters", Health.OFF, "no aggregator is deployed")
    names = ["ApproximateNumberOfMessages"]
    reply = await cloud.ask("sqs", "GetQueueAttributes", QueueUrl=url, AttributeNames=names)
    return queue_check(reply.get("Attributes", {}))


async def _alarms(cloud: Cloud, names: Sequence[str]) -> Check:
    if not names:
        return Check("alarms", Health.OFF, "none are deployed")
    asked = list(names[:ALARMS_PER_REQUEST])
    reply = await cloud.ask("cloudwatch", "DescribeAlarms", AlarmNames=asked)
    return alarms_check([*reply.get("MetricAlarms", ())], len(asked))
