"""How a deployed table and everything around it are doing: one check for each part.

Each check is a question to AWS and a judgement, which is pure. Green works, yellow works but wants to
be looked at, red does not work, and off is not there because nobody asked for it. A question that AWS
does not answer is yellow: it says nothing about the part.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from ..backends.dynamodb.table import TTL_ATTRIBUTE, problems
from ..exceptions import InfrastructureError, ValidationError
from ..models import VersionRecord
from ..runtime.world import World
from ..version import check_compatibility, client_version
from .cloud import Cloud, NotOffered
from .function import function_config
from .operations import Operations
from .stack import DEPLOYED, Stack
from .version_record import readable_version

TABLE_USABLE = frozenset({"ACTIVE", "UPDATING"})
ALARMS_PER_REQUEST = 100


class Health(StrEnum):
    GREEN = "green"
    YELLOW = "yellow"
    RED = "red"
    OFF = "off"


@dataclass(frozen=True, slots=True)
class HealthCheck:
    """What was found out about one part."""

    part: str
    health: Health
    detail: str


@dataclass(frozen=True, slots=True)
class HealthReport:
    """All checks of one deployment, and what they tell together."""

    name: str
    checks: tuple[HealthCheck, ...]
    stack: Stack | None = None
    record: VersionRecord | None = None
    latency_ms: float | None = None

    @property
    def health(self) -> Health:
        found = {check.health for check in self.checks}
        return next((worst for worst in (Health.RED, Health.YELLOW) if worst in found), Health.GREEN)


Judged = tuple[Health, str]
NO_AGGREGATOR = Health.OFF, "no aggregator is deployed"


async def examine(cloud: Cloud, name: str, world: World) -> HealthReport | None:
    """Look at the table of a name and at the stack around it; ``None`` if there is neither."""
    operations = Operations(name, cloud, world)
    found = await cloud.find("dynamodb", "DescribeTable", TableName=name)
    table = None if found is None else found["Table"]
    stack, unknown = await _stack(operations, required=table is None)
    if stack is None and table is None:
        return None
    parts: dict[str, list[str]] = defaultdict(list)
    for one in [] if stack is None else await operations.resources(stack.stack_id):
        parts[one.kind].append(one.physical_id)
    started_ms = world.ticks_ms()
    record, trouble = await readable_version(cloud, name)
    latency_ms = world.ticks_ms() - started_ms
    questions: list[tuple[str, Judged | Awaitable[Judged]]] = [
        ("stack", stack_health(stack, unknown)),
        ("table", table_health(table)),
    ]
    if table is not None:  # what belongs to a table that is not there need not be asked about
        questions += [
            ("indexes", indexes_health(table)),
            ("ttl", _ttl(cloud, name)),
            ("recovery", _recovery(cloud, name, stack)),
            ("stream", stream_health(table)),
            ("function", _function(cloud, parts["AWS::Lambda::Function"], record)),
            ("mapping", _mapping(cloud, parts["AWS::Lambda::EventSourceMapping"])),
            ("dead letters", _queue(cloud, parts["AWS::SQS::Queue"])),
            ("alarms", _alarms(cloud, parts["AWS::CloudWatch::Alarm"])),
            ("versions", version_health(record, trouble)),
        ]
    checks = await cloud.colour.together([_check(part, answer) for part, answer in questions])
    return HealthReport(name, tuple(checks), stack, record, None if trouble or table is None else latency_ms)


# Judgements.


def stack_health(stack: Stack | None, unknown: str = "") -> Judged:
    if unknown:
        return Health.YELLOW, f"unknown: {unknown}"
    if stack is None:
        return Health.OFF, "there is none around the table"
    if stack.is_busy or stack.status not in DEPLOYED:
        return Health.YELLOW if stack.is_busy else Health.RED, f"{stack.status}; {stack.way_out}"
    if "ROLLBACK" in stack.status:
        return Health.YELLOW, f"{stack.status}: the last change was taken back"
    return Health.GREEN, stack.status


def table_health(table: Mapping[str, Any] | None) -> Judged:
    if table is None:
        return Health.RED, "it does not exist"
    status = table["TableStatus"]
    health = Health.GREEN if status in TABLE_USABLE else Health.RED
    return health, f"{status}, about {table.get('ItemCount', 0):,} items"


def indexes_health(table: Mapping[str, Any]) -> Judged:
    if found := problems(dict(table)):
        return Health.RED, "; ".join(found)
    indexes = table.get("GlobalSecondaryIndexes", ())
    idle = [i["IndexName"] for i in indexes if i.get("IndexStatus", "ACTIVE") not in TABLE_USABLE]
    if idle:
        return Health.RED, f"{', '.join(idle)} cannot be used yet"
    return Health.GREEN, f"{len(indexes)} active"


def ttl_health(described: Mapping[str, Any]) -> Judged:
    status = described.get("TimeToLiveStatus", "DISABLED")
    attribute = described.get("AttributeName", TTL_ATTRIBUTE)
    if status in {"ENABLED", "ENABLING"} and attribute == TTL_ATTRIBUTE:
        return Health.GREEN, f"{status} on {attribute!r}"
    return Health.YELLOW, f"{status}: what has expired stays in the table"


def recovery_health(described: Mapping[str, Any], days: str | None) -> Judged:
    point = described.get("PointInTimeRecoveryDescription", {})
    if point.get("PointInTimeRecoveryStatus") == "ENABLED":
        return Health.GREEN, f"any second of the last {point.get('RecoveryPeriodInDays', days) or '35'} days"
    if days in (None, "0"):
        return Health.OFF, "not asked for"
    return Health.YELLOW, "point-in-time recovery is switched off"


def stream_health(table: Mapping[str, Any]) -> Judged:
    stream = table.get("StreamSpecification") or {}
    if stream.get("StreamEnabled") and stream.get("StreamViewType") == "NEW_AND_OLD_IMAGES":
        return Health.GREEN, "old and new images"
    return Health.RED, "usage cannot be counted: the stream lacks old or new images"


def function_health(config: Mapping[str, Any] | None, record: VersionRecord | None) -> Judged:
    if config is None:
        return Health.RED, "it does not exist"
    state, last = config.get("State", "Active"), config.get("LastUpdateStatus", "Successful")
    if "Failed" in {state, last}:
        return Health.RED, config.get("StateReason") or config.get(
            "LastUpdateStatusReason"
        ) or "no reason given"
    if record is None or record.lambda_version is None:
        return Health.RED, "its code was not uploaded; repeat zae-limiter deploy"
    if state == "Pending" or last == "InProgress":
        return Health.YELLOW, "it is being changed"
    return Health.GREEN, f"{state}, version {record.lambda_version}, {config.get('CodeSize', 0) // 1000} kB"


def mapping_health(described: Mapping[str, Any] | None) -> Judged:
    if described is None:
        return Health.RED, "it does not exist"
    state, last = described.get("State", ""), described.get("LastProcessingResult") or "nothing yet"
    if last.startswith("PROBLEM"):
        return Health.RED, f"{state}; {last}"
    if state == "Enabled":
        return Health.GREEN, f"{state}; last result: {last}"
    if state in {"Disabled", "Disabling", "Deleting"}:
        return Health.RED, f"{state}: the function is told of nothing"
    return Health.YELLOW, state


def queue_health(attributes: Mapping[str, str]) -> Judged:
    if count := int(attributes.get("ApproximateNumberOfMessages", 0)):
        return Health.YELLOW, f"batches that could not be processed: {count:,}"
    return Health.GREEN, "none"


def alarms_health(alarms: Sequence[Mapping[str, Any]], expected: int) -> Judged:
    if raised := [alarm["AlarmName"] for alarm in alarms if alarm.get("StateValue") == "ALARM"]:
        return Health.RED, f"raised: {', '.join(raised)}"
    if len(alarms) < expected:
        return Health.RED, f"{expected - len(alarms)} of {expected} do not exist"
    return Health.GREEN, f"{expected}, none raised"


def version_health(record: VersionRecord | None, trouble: str = "") -> Judged:
    if trouble or record is None:
        return Health.YELLOW, trouble or "none recorded; whoever first opens the table does that"
    client = client_version()
    stored = record.schema_version, record.client_min_version, record.lambda_version
    try:
        verdict = check_compatibility(client, *stored)
    except ValidationError as error:
        return Health.RED, f"unreadable: {error}"
    if not verdict.is_compatible:
        return Health.RED, verdict.message
    if verdict.requires_lambda_update:
        return Health.YELLOW, verdict.message
    return Health.GREEN, f"schema {record.schema_version}, client {client}"


# Questions.


async def _check(part: str, answer: Judged | Awaitable[Judged]) -> HealthCheck:
    try:
        return HealthCheck(part, *(answer if isinstance(answer, tuple) else await answer))
    except NotOffered:
        return HealthCheck(part, Health.OFF, "there is no such thing here")
    except InfrastructureError as error:
        return HealthCheck(part, Health.YELLOW, f"unknown: {error}")


async def _stack(operations: Operations, *, required: bool) -> tuple[Stack | None, str]:
    """The stack, or why it is not known: a table alone may well be somewhere without CloudFormation."""
    try:
        return await operations.look(operations.name), ""
    except NotOffered:
        return None, ""
    except InfrastructureError as error:
        if required:
            raise
        return None, str(error)


async def _ttl(cloud: Cloud, name: str) -> Judged:
    reply = await cloud.ask("dynamodb", "DescribeTimeToLive", TableName=name)
    return ttl_health(reply["TimeToLiveDescription"])


async def _recovery(cloud: Cloud, name: str, stack: Stack | None) -> Judged:
    reply = await cloud.ask("dynamodb", "DescribeContinuousBackups", TableName=name)
    days = None if stack is None else stack.parameters.get("PitrRecoveryDays")
    return recovery_health(reply["ContinuousBackupsDescription"], days)


async def _function(cloud: Cloud, names: Sequence[str], record: VersionRecord | None) -> Judged:
    return function_health(await function_config(cloud, names[0]), record) if names else NO_AGGREGATOR


async def _mapping(cloud: Cloud, ids: Sequence[str]) -> Judged:
    if not ids:
        return NO_AGGREGATOR
    return mapping_health(await cloud.find("lambda", "GetEventSourceMapping", UUID=ids[0]))


async def _queue(cloud: Cloud, urls: Sequence[str]) -> Judged:
    if not urls:
        return NO_AGGREGATOR
    names = ["ApproximateNumberOfMessages"]
    reply = await cloud.ask("sqs", "GetQueueAttributes", QueueUrl=urls[0], AttributeNames=names)
    return queue_health(reply.get("Attributes", {}))


async def _alarms(cloud: Cloud, names: Sequence[str]) -> Judged:
    if not names:
        return Health.OFF, "none are deployed"
    asked = list(names[:ALARMS_PER_REQUEST])
    reply = await cloud.ask("cloudwatch", "DescribeAlarms", AlarmNames=asked)
    return alarms_health(reply.get("MetricAlarms", ()), len(asked))
