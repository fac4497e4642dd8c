"""An AWS that replays answers by operation, with a clock of its own, and the answers it may give."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from tests.dynamodb.scripted import Clock
from zae_limiter.backends.dynamodb.transport import NoReply, ServiceError
from zae_limiter.infra.cloud import Cloud
from zae_limiter.infra.stack_manager import SyncStackManager
from zae_limiter.infra.template import tags
from zae_limiter.models import StackOptions, VersionRecord
from zae_limiter.records.items import version_item
from zae_limiter.runtime.colour import Colour

NAME = "limits"
STACK_ID = f"arn:aws:cloudformation:eu-west-1:123456789012:stack/{NAME}/1"
NO_STACK = ServiceError("ValidationError", f"Stack with id {NAME} does not exist")
NO_TABLE = ServiceError("ResourceNotFoundException", "Requested resource not found")
NO_ANSWER = NoReply("connection reset", ambiguous=True)
DENIED = ServiceError("AccessDenied", "you shall not pass")

Reply = dict[str, Any] | Exception | Callable[[dict[str, Any]], dict[str, Any]]


class ScriptedAws(Cloud):
    """Replays answers by operation; the last one of each is repeated. Sleeping moves its clock only."""

    region = "eu-west-1"

    def __init__(self, **answers: Reply | list[Reply]) -> None:
        self.clock = Clock()
        self.colour: Colour = self.clock
        self.sent: list[tuple[str, dict[str, Any]]] = []
        self._answers = {
            name: list(said) if isinstance(said, list) else [said]
            for name, said in {**DEPLOYED_FUNCTION, **answers}.items()
        }

    async def send(self, service: str, operation: str, request: dict[str, Any]) -> dict[str, Any]:
        assert service in {"cloudformation", "dynamodb", "lambda", "sqs", "cloudwatch"}
        self.sent.append((operation, request))
        answers = self._answers[operation]
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer(request) if callable(answer) else answer

    async def close(self) -> None:
        self.sent.append(("close", {}))

    @property
    def operations(self) -> list[str]:
        return [operation for operation, _ in self.sent]

    def requests(self, operation: str) -> list[dict[str, Any]]:
        return [request for name, request in self.sent if name == operation]

    @property
    def changes(self) -> list[str]:
        """The operations that change something."""
        looks = ("Describe", "List", "Get", "close")
        return [operation for operation in self.operations if not operation.startswith(looks)]

    @property
    def manager(self) -> SyncStackManager:
        return SyncStackManager(NAME, world=self.clock.world, cloud=self)


DEPLOYED_FUNCTION: dict[str, Reply | list[Reply]] = {
    "DescribeTable": NO_TABLE,
    "GetItem": {},
    "PutItem": {},
    "UpdateItem": {},
    "GetFunctionConfiguration": {
        "FunctionName": f"{NAME}-aggregator",
        "CodeSha256": "another",
        "LastUpdateStatus": "Successful",
    },
    "UpdateFunctionCode": {},
    "CreateStack": {"StackId": STACK_ID},
    "DeleteStack": {},
    "CreateChangeSet": {"Id": "change-set"},
    "ExecuteChangeSet": {},
    "DeleteChangeSet": {},
    "DescribeStackEvents": {"StackEvents": []},
}


def recorded(lambda_version: str | None, schema: str = "1.0.0", client_min: str = "0.0.0") -> Reply:
    item = version_item(VersionRecord(schema, lambda_version, client_min))
    return {"Item": {name: {"S": str(value)} for name, value in item.items() if value is not None}}


def stacks(status: str, *, ours: bool = True, **more: Any) -> dict[str, Any]:
    """An answer of DescribeStacks."""
    own = tags(NAME, StackOptions()) if ours else {"team": "another"}
    described = {
        "StackName": NAME,
        "StackId": STACK_ID,
        "StackStatus": status,
        "Tags": [{"Key": key, "Value": value} for key, value in own.items()],
        "Parameters": [],
        "CreationTime": datetime(2026, 1, 1, tzinfo=UTC),
    }
    return {"Stacks": [described | more]}


def event(number: int, resource: str, status: str, reason: str = "", kind: str = "") -> dict[str, Any]:
    return {
        "EventId": str(number),
        "Timestamp": datetime(2026, 1, 1, tzinfo=UTC),
        "LogicalResourceId": resource,
        "PhysicalResourceId": resource.lower(),
        "ResourceType": kind or f"AWS::Test::{resource}",
        "ResourceStatus": status,
        "ResourceStatusReason": reason,
    }


def ending(number: int, status: str) -> dict[str, Any]:
    """The event with which an operation on the stack itself ends."""
    return event(number, NAME, status, kind="AWS::CloudFormation::Stack")


def events(*newest_first: dict[str, Any], more: str = "") -> dict[str, Any]:
    page: dict[str, Any] = {"StackEvents": list(newest_first)}
    return page | ({"NextToken": more} if more else {})


def change_set(*changes: tuple[str, str, bool], more: str = "") -> dict[str, Any]:
    """A change set that is ready: action, resource and whether it is replaced."""
    described: dict[str, Any] = {
        "Status": "CREATE_COMPLETE",
        "StackId": STACK_ID,
        "Changes": [
            {
                "ResourceChange": {
                    "Action": action,
                    "LogicalResourceId": resource,
                    "ResourceType": f"AWS::Test::{resource}",
                    "Replacement": str(replaced),
                }
            }
            for action, resource, replaced in changes
        ],
    }
    return described | ({"NextToken": more} if more else {})


def failed_change_set(reason: str) -> dict[str, Any]:
    return {"Status": "FAILED", "StackId": STACK_ID, "StatusReason": reason}
