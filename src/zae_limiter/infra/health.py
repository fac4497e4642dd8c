"""How a deployed table and everything around it are doing: one check for each part.

Green works, yellow works but wants to be looked at, red does not work, and off is not there because nobody
asked for it. A question that AWS does not answer is yellow: it says nothing about the part.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple

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
UNKNOWN = "unknown: "


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

    @property
    def is_unknown(self) -> bool:
        """Whether nobody answered, or nobody was allowed to ask."""
        return self.detail.startswith(UNKNOWN)


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
MISSING: Judged = (Health.RED, "it does not exist")
NO_AGGREGATOR: Judged = (Health.OFF, "no aggregator is deployed")


async def examine(cloud: Cloud, name: str, world: World) -> HealthReport | None:
    """Look at the table of a name and at the stack around it; ``None`` if there is neither."""
    operations = Operations(name, cloud, world)
    found = await cloud.find("dynamodb", "DescribeTable", TableName=name)
    stack, judged = await _stack(operations, required=found is None)
    if stack is None and found is None:
        return None
    started_ms = world.ticks_ms()
    record, trouble = await readable_version(cloud, name)
    latency_ms = world.ticks_ms() - started_ms
    about_stack = HealthCheck("stack", *judged)
    if found is None:  # what belongs to a table that is not there need not be asked about
        return HealthReport(name, (about_stack, HealthCheck("table", *MISSING)), stack, record)
    parts: dict[str, list[str]] = defaultdict(list)
    for one in [] if stack is None else await operations.resources(stack.stack_id):
        parts[one.kind].append(one.physical_id)
    seen = Deployed(cloud, name, found["Table"], stack, parts, record)
    checks = await cloud.colour.together([_check(part, seen) for part in QUESTIONS])
    checks = [about_stack, *checks, HealthCheck("versions", *version_health(record, trouble))]
    return HealthReport(name, tuple(checks), stack, record, None if trouble else latency_ms)


async def _stack(operations: Operations, *, required: bool) -> tuple[Stack | None, Judged]:
    """The stack, if it is known: a table alone may well be somewhere without CloudFormation."""
    try:
        stack = await operations.look(operations.name)
    except NotOffered:
        stack = None
    except InfrastructureError as error:
        if required:
            raise
        return None, (Health.YELLOW, f"{UNKNOWN}{error}")
    if stack is None:
        return None, (Health.OFF, "there is none around the table")
    if stack.is_busy or stack.status not in DEPLOYED:
        return stack, (Health.YELLOW if stack.is_busy else Health.RED, f"{stack.status}; {stack.way_out}")
    if "ROLLBACK" in stack.status:
        return stack, (Health.YELLOW, f"{stack.status}: the last change was taken back")
    return stack, (Health.GREEN, stack.status)


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


async def _check(part: str, seen: Deployed) -> HealthCheck:
    try:
        return HealthCheck(part, *await QUESTIONS[part](seen))
    except NotOffered:
        return HealthCheck(part, Health.OFF, "there is no such thing here")
    except InfrastructureError as error:
        return HealthCheck(part, Health.YELLOW, f"{UNKNOWN}{error}")


class Deployed(NamedTuple):
    """What is known of a deployment before its parts are looked at, each by a method of its own."""

    cloud: Cloud
    name: str
    table: dict[str, Any]
    stack: Stack | None
    parts: Mapping[str, list[str]]
    record: VersionRecord | None

    async def state(self) -> Judged:
        status = self.table["TableStatus"]
        health = Health.GREEN if status in TABLE_USABLE else Health.RED
        return health, f"{status}, about {self.table.get('ItemCount', 0):,} items"

    async def indexes(self) -> Judged:
        if found := problems(self.table):
            return Health.RED, "; ".join(found)
        indexes = self.table.get("GlobalSecondaryIndexes", ())
        idle = [i["IndexName"] for i in indexes if i.get("IndexStatus", "ACTIVE") not in TABLE_USABLE]
        if idle:
            return Health.RED, f"{', '.join(idle)} cannot be used yet"
        return Health.GREEN, f"{len(indexes)} active"

    async def ttl(self) -> Judged:
        reply = await self.cloud.ask("dynamodb", "DescribeTimeToLive", TableName=self.name)
        described = reply["TimeToLiveDescription"]
        status = described.get("TimeToLiveStatus", "DISABLED")
        attribute = described.get("AttributeName", TTL_ATTRIBUTE)
        if status in {"ENABLED", "ENABLING"} and attribute == TTL_ATTRIBUTE:
            return Health.GREEN, f"{status} on {attribute!r}"
        return Health.YELLOW, f"{status}: what has expired stays in the table"

    async def recovery(self) -> Judged:
        reply = await self.cloud.ask("dynamodb", "DescribeContinuousBackups", TableName=self.name)
        point = reply["ContinuousBackupsDescription"].get("PointInTimeRecoveryDescription", {})
        days = None if self.stack is None else self.stack.parameters.get("PitrRecoveryDays")
        if point.get("PointInTimeRecoveryStatus") == "ENABLED":
            period = point.get("RecoveryPeriodInDays", days) or "35"
            return Health.GREEN, f"any second of the last {period} days"
        if days in (None, "0"):
            return Health.OFF, "not asked for"
        return Health.YELLOW, "point-in-time recovery is switched off"

    async def stream(self) -> Judged:
        stream = self.table.get("StreamSpecification") or {}
        if stream.get("StreamEnabled") and stream.get("StreamViewType") == "NEW_AND_OLD_IMAGES":
            return Health.GREEN, "old and new images"
        return Health.RED, "usage cannot be counted: the stream lacks old or new images"

    async def function(self) -> Judged:
        if not (names := self.parts["AWS::Lambda::Function"]):
            return NO_AGGREGATOR
        if (config := await function_config(self.cloud, names[0])) is None:
            return MISSING
        state, last = config.get("State", "Active"), config.get("LastUpdateStatus", "Successful")
        if "Failed" in {state, last}:
            reason = config.get("StateReason") or config.get("LastUpdateStatusReason")
            return Health.RED, reason or "no reason given"
        if self.record is None or self.record.lambda_version is None:
            return Health.RED, "its code was not uploaded; repeat zae-limiter deploy"
        if state == "Pending" or last == "InProgress":
            return Health.YELLOW, "it is being changed"
        size_kb = config.get("CodeSize", 0) // 1000
        return Health.GREEN, f"{state}, version {self.record.lambda_version}, {size_kb} kB"

    async def mapping(self) -> Judged:
        if not (ids := self.parts["AWS::Lambda::EventSourceMapping"]):
            return NO_AGGREGATOR
        if (described := await self.cloud.find("lambda", "GetEventSourceMapping", UUID=ids[0])) is None:
            return MISSING
        state, last = described.get("State", ""), described.get("LastProcessingResult") or "nothing yet"
        if last.startswith("PROBLEM"):
            return Health.RED, f"{state}; {last}"
        if state == "Enabled":
            return Health.GREEN, f"{state}; last result: {last}"
        if state in {"Disabled", "Disabling", "Deleting"}:
            return Health.RED, f"{state}: the function is told of nothing"
        return Health.YELLOW, state

    async def dead_letters(self) -> Judged:
        if not (urls := self.parts["AWS::SQS::Queue"]):
            return NO_AGGREGATOR
        asked = {"QueueUrl": urls[0], "AttributeNames": ["ApproximateNumberOfMessages"]}
        reply = await self.cloud.ask("sqs", "GetQueueAttributes", **asked)
        if count := int(reply.get("Attributes", {}).get("ApproximateNumberOfMessages", 0)):
            return Health.YELLOW, f"batches that could not be processed: {count:,}"
        return Health.GREEN, "none"

    async def alarms(self) -> Judged:
        if not (names := self.parts["AWS::CloudWatch::Alarm"][:ALARMS_PER_REQUEST]):
            return Health.OFF, "none are deployed"
        reply = await self.cloud.ask("cloudwatch", "DescribeAlarms", AlarmNames=names)
        found = reply.get("MetricAlarms", ())
        if raised := [alarm["AlarmName"] for alarm in found if alarm.get("StateValue") == "ALARM"]:
            return Health.RED, f"raised: {', '.join(raised)}"
        if len(found) < len(names):
            return Health.RED, f"{len(names) - len(found)} of {len(names)} do not exist"
        return Health.GREEN, f"{len(names)}, none raised"


QUESTIONS: dict[str, Callable[[Deployed], Coroutine[Any, Any, Judged]]] = {
    "table": Deployed.state,
    "indexes": Deployed.indexes,
    "ttl": Deployed.ttl,
    "recovery": Deployed.recovery,
    "stream": Deployed.stream,
    "function": Deployed.function,
    "mapping": Deployed.mapping,
    "dead letters": Deployed.dead_letters,
    "alarms": Deployed.alarms,
}
