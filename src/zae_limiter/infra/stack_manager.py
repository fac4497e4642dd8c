"""Deploys, updates and deletes the stack around a table, and keeps the code of its function current.

Whatever is asked for is checked before anything is sent. A stack or table of the same name that is not
ours is never touched. An update goes through a change set, so what it would do is known before it is
done, and finding nothing to do is success. What failed is told with the reasons of the resources, the
first cause first, and with the way out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, Self

from ..backends.dynamodb import parse_url
from ..exceptions import (
    InfrastructureError,
    InfrastructureNotFoundError,
    StackAlreadyExistsError,
    StackOperationError,
    ValidationError,
    VersionMismatchError,
)
from ..models import StackOptions, VersionRecord
from ..naming import validate_stack_name
from ..runtime.colour import blocking
from ..runtime.logs import logger
from ..runtime.world import World
from ..version import client_version
from . import template
from .cloud import Cloud, Patience, open_cloud
from .discovery import deployed_stacks
from .function import check_schema, code_is_due, function_config, switch, upload
from .health import HealthReport, examine
from .lambda_builder import build, code_sha256
from .older_stack import fitted, is_older, loses_table
from .operations import ChangeSet, Operations, Progress
from .stack import DELETED, MANAGED_BY, OURS, Stack, StackChange, StackEvent, missing_stack
from .stack_request import StackRequest
from .version_record import read_version, write_lambda_version

__all__ = ["Deployment", "StackChange", "StackEvent", "StackManager", "SyncStackManager"]


TIMEOUT_SECONDS = 1_800.0
TIMEOUT_SECONDS_MAX = 86_400.0

Approve = Callable[[Sequence[StackChange]], bool]
"""Is asked before an update is carried out."""


class Deployment(NamedTuple):
    """What became of a deployment."""

    stack: Stack
    is_new: bool = False
    changes: tuple[StackChange, ...] = ()
    code_updated: bool = False
    is_finished: bool = True
    """False if nobody waited: the function then has no code until the deployment is repeated."""


class Losses(NamedTuple):
    """What a deletion would do: how many resources go, and which stay."""

    gone: int
    kept: tuple[str, ...]


class StackManager:
    """The stack of one name in one account and region.

    ``session`` is a boto3 or botocore session, ``config`` a botocore ``Config``; ``cloud`` stands for
    region, endpoint, session and config together.
    """

    _checked = staticmethod(validate_stack_name)

    def __init__(
        self,
        name: str,
        region: str | None = None,
        endpoint_url: str | None = None,
        *,
        session: Any = None,
        config: Any = None,
        world: World | None = None,
        cloud: Cloud | None = None,
    ) -> None:
        self._name = self._checked(name)
        self._world = world or World()
        self._cloud = cloud or open_cloud(
            sync=False, region=region, endpoint_url=endpoint_url, session=session, config=config
        )
        self._operations = Operations(name, self._cloud, self._world)

    @property
    def name(self) -> str:
        """The name of the stack, which is that of its table."""
        return self._name

    @property
    def region(self) -> str | None:
        """The region that it is deployed in."""
        return self._cloud.region

    async def describe(self) -> Stack | None:
        """The stack as it is now, whoever made it; ``None`` if there is none."""
        return await self._operations.look(self.name)

    async def ours(self) -> Stack:
        """The stack as it is now, which must be there and one of ours."""
        stack = await self.describe()
        if stack is None:
            raise await self._missing()
        stack.check_ours()
        return stack

    async def create(
        self,
        options: StackOptions | None = None,
        *,
        wait: bool = True,
        timeout_seconds: float = TIMEOUT_SECONDS,
        progress: Progress | None = None,
    ) -> Deployment:
        """Deploy a stack that is not there yet, and upload the code of its function.

        A table that an earlier stack of ours left behind becomes part of the new one, with its data.
        """
        request, patience = StackRequest(self.name, options), self._patience(timeout_seconds)
        if (there := await self.describe()) is not None:
            raise there.exists()
        if await self._table_was_left():
            stack_id: str | None = await self._adopt(request, patience)
        else:
            stack_id = await self._operations.create(request.creation())
        if stack_id is None:  # somebody was faster
            there = await self.describe() or Stack(self.name, "", "CREATE_IN_PROGRESS")
            raise there.exists()
        stack = Stack(self.name, stack_id, "CREATE_IN_PROGRESS")
        return await self._complete(Deployment(stack, is_new=True), wait, patience, progress)

    async def update(
        self,
        options: StackOptions | None = None,
        *,
        wait: bool = True,
        timeout_seconds: float = TIMEOUT_SECONDS,
        progress: Progress | None = None,
        approve: Approve | None = None,
    ) -> Deployment:
        """Bring the stack up to date with the options and with this version; what is not said stays."""
        request, patience = StackRequest(self.name, options), self._patience(timeout_seconds)
        stack = await self.ours()
        stack.check_deployed()
        if stack.is_newer:
            raise VersionMismatchError(
                f"stack {self.name!r} was deployed by zae-limiter {stack.version}, and this is "
                f"{client_version()}: install the newer version",
                client_version=client_version(),
                schema_version=stack.tags.get(f"{OURS}:schema-version"),
            )
        if is_older(stack):  # its function could not read the table, nor the other one
            check_schema(await read_version(self._cloud, self.name))
        proposed = await self._propose(request, stack, patience)
        if proposed is None:
            return Deployment(stack, code_updated=await self.update_lambda())
        lost = [change for change in proposed.changes if is_older(stack) and loses_table(change)]
        if lost or (approve is not None and not approve(proposed.changes)):
            await self._operations.discard(proposed.change_set_id)
            why = f"it would {lost[0]}" if lost else "nobody approved its changes"
            raise StackOperationError(f"stack {self.name!r} was left as it is: {why}")
        await self._operations.execute(proposed)
        return await self._complete(Deployment(stack, changes=proposed.changes), wait, patience, progress)

    async def preview(self, options: StackOptions | None = None) -> tuple[StackChange, ...]:
        """What an update would do to the stack. Nothing is done."""
        request, patience = StackRequest(self.name, options), self._patience(TIMEOUT_SECONDS)
        proposed = await self._propose(request, await self.ours(), patience)
        if proposed is None:
            return ()
        await self._operations.discard(proposed.change_set_id)
        return proposed.changes

    async def _propose(self, request: StackRequest, stack: Stack, patience: Patience) -> ChangeSet | None:
        if is_older(stack):
            reply = await self._cloud.ask("dynamodb", "DescribeTable", TableName=self.name)
            deployed = await self._operations.template(stack.stack_id)
            request.template = fitted(request.template, reply["Table"], deployed)
        return await self._operations.propose(request.change(stack), patience)

    async def switch_aggregator(self, on: bool) -> None:
        """Let the function be told of changes to the table, or of none for now, and wait until that is so."""
        function = template.names(self.name).function
        await switch(self._cloud, function, on, self._patience(TIMEOUT_SECONDS))

    async def deploy(
        self,
        options: StackOptions | None = None,
        *,
        wait: bool = True,
        timeout_seconds: float = TIMEOUT_SECONDS,
        progress: Progress | None = None,
        approve: Approve | None = None,
    ) -> Deployment:
        """Create the stack, or update the one that is there."""
        StackRequest(self.name, options)  # whatever is wrong with them is told before anything is asked
        if await self.describe() is None:
            return await self.create(options, wait=wait, timeout_seconds=timeout_seconds, progress=progress)
        return await self.update(
            options, wait=wait, timeout_seconds=timeout_seconds, progress=progress, approve=approve
        )

    async def ensure(
        self, options: StackOptions | None = None, *, timeout_seconds: float = TIMEOUT_SECONDS
    ) -> Deployment:
        """Create the stack if it is missing, and update it only if an option says something else.

        A program may do this whenever it starts, in many processes at once: usually it looks once. What
        a newer version of the template would change is left to ``deploy``.
        """
        request, patience = StackRequest(self.name, options), self._patience(timeout_seconds)
        stack = await self.describe()
        if stack is None:
            try:
                return await self.create(options, timeout_seconds=timeout_seconds)
            except StackAlreadyExistsError:
                stack = await self.describe()  # another process may have been faster
                if stack is None:
                    raise
        stack.check_ours()
        if stack.is_busy:
            stack, _ = await self._operations.follow(stack, patience)
        stack.check_deployed()
        if request.is_met_by(stack):
            return Deployment(stack)
        if stack.is_newer:
            logger.warning("stack %r is left to zae-limiter %s, which deployed it", self.name, stack.version)
            return Deployment(stack)
        return await self.update(options, timeout_seconds=timeout_seconds)

    async def losses(self) -> Losses:
        """What a deletion would take and what it would leave; an error if it would be refused."""
        stack = await self.ours()
        stack.check_deletable()
        resources = await self._operations.resources(stack.stack_id)
        retained = template.retained_in(await self._operations.template(stack.stack_id))
        kept = [one for one in resources if one.logical_id in retained]
        return Losses(len(resources) - len(kept), tuple(str(one) for one in kept))

    async def delete(
        self, *, wait: bool = True, timeout_seconds: float = TIMEOUT_SECONDS, progress: Progress | None = None
    ) -> list[StackEvent]:
        """Delete the stack. What its template retains, table and archive, stays with all its data.

        Returns what was left, as far as the deletion was waited for.
        """
        patience = self._patience(timeout_seconds)
        stack = await self.ours()
        stack.check_deletable()
        await self._operations.delete(stack.stack_id)
        if not wait:
            return []
        stack, events = await self._operations.follow(stack, patience, progress)
        if stack.status != DELETED:
            raise stack.failed(events)
        return [event for event in events if event.status == "DELETE_SKIPPED"]

    async def version_record(self) -> VersionRecord | None:
        """What the table says about versions; ``None`` if it says nothing."""
        try:
            return await read_version(self._cloud, self.name)
        except InfrastructureNotFoundError as error:
            raise await self._missing() from error

    async def report(self) -> HealthReport:
        """How the table and everything around it are doing."""
        found = await examine(self._cloud, self.name, self._world)
        if found is None:
            raise await self._missing()
        return found

    async def update_lambda(self, force: bool = False) -> bool:
        """Give the function the code of this version, unless it is newer; true if anything was done.

        ``force`` replaces newer code too, and code that is the same. A stack without an aggregator has
        nothing to update. A table of another schema is an error: nothing is uploaded.
        """
        await self.ours()
        record = await read_version(self._cloud, self.name)
        check_schema(record)
        function = await function_config(self._cloud, template.names(self.name).function)
        if function is None:
            return False
        package = build()
        is_current = function["CodeSha256"] == code_sha256(package)
        if not force and not code_is_due(record, is_current=is_current):
            return False
        if force or not is_current:
            await upload(self._cloud, function["FunctionName"], package, self._patience(TIMEOUT_SECONDS))
        await write_lambda_version(self._cloud, self.name, record, self._world)
        return True

    async def auto_update(self) -> bool:
        """``update_lambda`` for a program that starts: only if the table says that the function is older.

        A program that may not do that goes on with what is deployed, and the log tells.
        """
        try:
            record = await read_version(self._cloud, self.name)
            if not code_is_due(record, is_current=True) or await self.describe() is None:
                return False
            return await self.update_lambda()
        except InfrastructureError as error:
            logger.warning("the aggregator of %r was not updated: %s", self.name, error)
            return False

    async def close(self) -> None:
        """Let go of the connections."""
        await self._cloud.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _patience(self, seconds: float) -> Patience:
        if isinstance(seconds, bool) or not 0 < seconds <= TIMEOUT_SECONDS_MAX:
            reason = f"use seconds, more than 0 and at most {TIMEOUT_SECONDS_MAX:g}"
            raise ValidationError("timeout_seconds", seconds, reason)
        return Patience(self._cloud, self._world, seconds)

    async def _complete(
        self, begun: Deployment, wait: bool, patience: Patience, progress: Progress | None
    ) -> Deployment:
        if not wait:
            return begun._replace(is_finished=False)
        stack, events = await self._operations.follow(begun.stack, patience, progress)
        if stack.status not in {"CREATE_COMPLETE", "UPDATE_COMPLETE"}:
            raise stack.failed(events)
        # A function that was just made has no code yet, whatever the table remembers of an earlier one.
        is_made = begun.is_new or any(change.makes("AWS::Lambda::Function") for change in begun.changes)
        return begun._replace(stack=stack, code_updated=await self.update_lambda(force=is_made))

    async def _adopt(self, request: StackRequest, patience: Patience) -> str:
        """Begin a stack around the table that is there."""
        try:
            proposed = await self._operations.propose(request.adoption(), patience)
            assert proposed is not None, "a new stack has something to do"
        except StackOperationError:
            # Else its name would stay behind as a stack under review.
            await self._operations.delete(self.name)
            raise
        await self._operations.execute(proposed)
        return proposed.stack_id

    async def _table_was_left(self) -> bool:
        """Whether a table of this name is left from a stack of ours; somebody else's is an error."""
        found = await self._cloud.find("dynamodb", "DescribeTable", TableName=self.name)
        if found is None:
            return False
        arn = found["Table"]["TableArn"]
        tags = await self._cloud.ask("dynamodb", "ListTagsOfResource", ResourceArn=arn)
        if {"Key": MANAGED_BY, "Value": OURS} in tags.get("Tags", []):
            check_schema(await read_version(self._cloud, self.name))
            return True
        raise StackAlreadyExistsError(
            f"table {self.name!r} exists, and no stack of {OURS} made it; choose another name, or give the "
            f"table to the stack: aws dynamodb tag-resource --tags Key={MANAGED_BY},Value={OURS} "
            f"--resource-arn {arn}",
            stack_name=self.name,
        )

    async def _missing(self) -> InfrastructureNotFoundError:
        """With a hint at others of a similar name; whoever may not list stacks gets none."""
        try:
            names = [stack.name for stack in await deployed_stacks(self._cloud)]
        except InfrastructureError:
            names = []
        return missing_stack(self.name, names)


class _OfTable(StackManager):
    """The manager of a table that may be called what no stack can be; then it finds none."""

    @staticmethod
    def _checked(name: str) -> str:
        return name


def manager_of(url: str, *, sync: bool, world: World, **client: Any) -> StackManager:
    """The manager of the stack around the table of a URL; ``client`` is a session and a config."""
    table, options = parse_url(url)
    access = {name: options.get(name) for name in ("region", "endpoint_url")}
    return _OfTable(table, world=world, cloud=open_cloud(sync=sync, **access, **client))


class SyncStackManager:
    """The sync twin of ``StackManager``."""

    def __init__(
        self,
        name: str,
        region: str | None = None,
        endpoint_url: str | None = None,
        *,
        session: Any = None,
        config: Any = None,
        world: World | None = None,
        cloud: Cloud | None = None,
    ) -> None:
        cloud = cloud or open_cloud(
            sync=True, region=region, endpoint_url=endpoint_url, session=session, config=config
        )
        self._async = StackManager(name, world=world, cloud=cloud)

    @property
    def name(self) -> str:
        """See ``StackManager.name``."""
        return self._async.name

    @property
    def region(self) -> str | None:
        """See ``StackManager.region``."""
        return self._async.region

    describe: Final = blocking(StackManager.describe)
    ours: Final = blocking(StackManager.ours)
    create: Final = blocking(StackManager.create)
    update: Final = blocking(StackManager.update)
    preview: Final = blocking(StackManager.preview)
    switch_aggregator: Final = blocking(StackManager.switch_aggregator)
    deploy: Final = blocking(StackManager.deploy)
    ensure: Final = blocking(StackManager.ensure)
    losses: Final = blocking(StackManager.losses)
    delete: Final = blocking(StackManager.delete)
    version_record: Final = blocking(StackManager.version_record)
    report: Final = blocking(StackManager.report)
    auto_update: Final = blocking(StackManager.auto_update)
    update_lambda: Final = blocking(StackManager.update_lambda)
    close: Final = blocking(StackManager.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
