"""What CloudFormation does with one stack, operation by operation, and how to follow it to its end."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from ..backends.dynamodb.transport import ServiceError
from ..exceptions import InfrastructureError, StackOperationError
from ..runtime.world import World
from .cloud import Cloud, Patience, failure
from .stack import DELETED, OURS, STACK, Resource, Stack, StackChange, StackEvent, changes_of

CALLABLE = re.compile(r"[A-Za-z][A-Za-z0-9-]{0,127}|arn:.*")
"""What CloudFormation takes for the name of a stack, or its id; tables have other names too."""

NO_CHANGES = ("didn't contain changes", "No updates are to be performed")
"""Why a change set fails that has nothing to do, which is fine."""

Progress = Callable[[StackEvent], None]
"""Is told of each thing that happens to a resource, once and in order."""


class ChangeSet(NamedTuple):
    """What an operation would do to a stack."""

    change_set_id: str
    stack_id: str
    changes: tuple[StackChange, ...]


class Operations:
    """The stack of one name."""

    def __init__(self, name: str, cloud: Cloud, world: World) -> None:
        self.name = name
        self._cloud, self._token = cloud, world.new_ulid
        self._ask = functools.partial(cloud.ask, "cloudformation")
        self._seen: set[str] = set()

    async def look(self, name_or_id: str) -> Stack | None:
        """A stack as it is; ``None`` if there is none, or none can be called so."""
        if not CALLABLE.fullmatch(name_or_id):
            return None
        try:
            reply = await self._ask("DescribeStacks", StackName=name_or_id, expected=("ValidationError",))
        except ServiceError as error:
            if "does not exist" in error.message:  # CloudFormation has no code for that
                return None
            raise failure(error, "cloudformation", "DescribeStacks") from error
        return Stack.of(reply["Stacks"][0])

    async def create(self, request: Mapping[str, Any]) -> str | None:
        """Begin a stack; its id, or ``None`` if there is one already."""
        request = {**request, "ClientRequestToken": self._token()}
        reply = await self._cloud.find(
            "cloudformation", "CreateStack", unless="AlreadyExistsException", **request
        )
        return None if reply is None else reply["StackId"]

    async def propose(self, request: Mapping[str, Any], patience: Patience) -> ChangeSet | None:
        """What an operation would do; ``None`` if there is nothing to do."""
        reply = await self._ask("CreateChangeSet", ChangeSetName=f"{OURS}-{self._token()}", **request)
        change_set_id = reply["Id"]
        while True:
            described = await self._ask("DescribeChangeSet", ChangeSetName=change_set_id)
            if described["Status"] == "CREATE_COMPLETE":
                break
            if described["Status"] == "FAILED":
                await self.discard(change_set_id)
                reason = described.get("StatusReason", "")
                if any(text in reason for text in NO_CHANGES):
                    return None
                raise StackOperationError(f"stack {self.name!r} cannot be changed so: {reason}", [reason])
            if not await patience.lasts():
                await self.discard(change_set_id)
                raise StackOperationError(
                    f"CloudFormation did not work out the changes of stack {self.name!r} within "
                    f"{patience.seconds:g} seconds; nothing was changed"
                )
        changes = changes_of(described)
        while token := described.get("NextToken"):
            described = await self._ask("DescribeChangeSet", ChangeSetName=change_set_id, NextToken=token)
            changes += changes_of(described)
        return ChangeSet(change_set_id, described["StackId"], tuple(changes))

    async def execute(self, change_set: ChangeSet) -> None:
        await self._news(change_set.stack_id)  # what has happened so far does not belong to what comes next
        request = {"ChangeSetName": change_set.change_set_id, "ClientRequestToken": self._token()}
        await self._ask("ExecuteChangeSet", **request)

    async def discard(self, change_set_id: str) -> None:
        await self._ask("DeleteChangeSet", ChangeSetName=change_set_id)

    async def delete(self, stack_id: str) -> None:
        await self._news(stack_id)
        await self._ask("DeleteStack", StackName=stack_id, ClientRequestToken=self._token())

    async def follow(
        self, stack: Stack, patience: Patience, progress: Progress | None = None
    ) -> tuple[Stack, list[StackEvent]]:
        """Wait until an operation has ended; the stack then, and what happened since.

        The status alone does not tell: for a moment it may be that of before the operation. Its end is
        an event of the stack itself.
        """
        events: list[StackEvent] = []
        while True:
            news: list[StackEvent] = []
            try:
                now = await self.look(stack.stack_id)
                # Events are read after the status, so that those which led to it are among them.
                news = [] if now is None else await self._news(stack.stack_id)
                # What is deleted is found by its id for some time, but not for ever.
                stack = now or Stack(stack.name, stack.stack_id, DELETED)
            except StackOperationError:
                raise
            except InfrastructureError:
                pass  # no answer is no news: the next look will tell
            if progress is not None:
                for event in news:
                    progress(event)
            events += news
            has_ended = any(event.kind == STACK and event.status == stack.status for event in events)
            if stack.status == DELETED or (has_ended and not stack.is_busy):
                return stack, events
            if not await patience.lasts():
                raise StackOperationError(
                    f"stack {stack.name!r} is still {stack.status} after {patience.seconds:g} seconds; "
                    f"CloudFormation goes on: see zae-limiter status --name {stack.name}"
                )

    async def resources(self, stack_id: str) -> list[Resource]:
        """What a stack consists of."""
        return [
            Resource(one["LogicalResourceId"], one["ResourceType"], one["PhysicalResourceId"])
            async for page in self._cloud.pages("cloudformation", "ListStackResources", StackName=stack_id)
            for one in page["StackResourceSummaries"]
            if one.get("PhysicalResourceId")
        ]

    async def template(self, stack_id: str) -> str | Mapping[str, Any]:
        """The template that a stack was last deployed with; one in JSON comes as what it stands for."""
        body: str | Mapping[str, Any] = (await self._ask("GetTemplate", StackName=stack_id))["TemplateBody"]
        return body

    async def _news(self, stack_id: str) -> list[StackEvent]:
        """Events that were not returned before, the oldest first. CloudFormation lists the newest first."""
        news: list[StackEvent] = []
        async for page in self._cloud.pages("cloudformation", "DescribeStackEvents", StackName=stack_id):
            events = [StackEvent.of(one) for one in page["StackEvents"]]
            fresh = [event for event in events if event.event_id not in self._seen]
            news += fresh
            if len(fresh) < len(events):
                break
        self._seen |= {event.event_id for event in news}
        return news[::-1]
