"""Stacks on the emulator: their whole life, in both colours."""

import pytest

from tests.engines import emulator
from tests.infra.chosen import KEY, PRINCIPALS
from tests.infra.emulated import deployed, manager, place, sync_manager
from tests.stores import drive
from zae_limiter import SyncRepository
from zae_limiter.backends.dynamodb.table import create_table_request
from zae_limiter.exceptions import StackAlreadyExistsError, StackOperationError
from zae_limiter.infra import template
from zae_limiter.models import StackOptions

BOTH = pytest.mark.parametrize("sync", [False, True], ids=["async", "sync"])
OUR_TAG = {"Key": "ManagedBy", "Value": "zae-limiter"}
BROKEN = "\nResources:\n  Broken:\n    Type: AWS::Logs::LogStream\n"
"""A log stream of no log group cannot be made."""


@BOTH
def test_the_life_of_a_stack(sync: bool) -> None:
    """Deployed, found current, updated, deleted, and deployed again around the table that was left."""
    name = emulator.fresh_name()

    async def scenario() -> None:
        async with manager(sync, name) as stack:
            made = await stack.deploy(StackOptions(lambda_memory=128, tags={"team": "a"}))
            assert (made.is_new, made.code_updated, made.stack.status) == (True, True, "CREATE_COMPLETE")
            again = await stack.deploy()
            assert (again.is_new, again.changes, again.code_updated) == (False, (), False)
            assert not await stack.update_lambda()
            changed = await stack.deploy(StackOptions(lambda_memory=256))
            (change,) = changed.changes
            assert str(change) == "modify AggregatorFunction (AWS::Lambda::Function)"
            assert changed.stack.tags["team"] == "a"
            assert not changed.code_updated, "an update of the stack leaves the code alone"
            losses = await stack.losses()
            left = await stack.delete()
            assert f"table {name!r}" in losses.kept
            assert {one.kind for one in left} == {"AWS::DynamoDB::Table", "AWS::S3::Bucket"}
            assert len(losses.kept) == len(left)
            assert await stack.describe() is None
            anew = await stack.deploy(StackOptions(enable_aggregator=False))
            assert anew.is_new
            assert await stack.deploy() == anew._replace(is_new=False)
            await stack.delete()

    drive(sync, scenario())
    emulator.client("dynamodb").delete_table(TableName=name)


def test_a_table_that_was_left_keeps_its_data() -> None:
    """A stack may come and go around it."""
    small = StackOptions(enable_aggregator=False)
    with deployed(small) as name, SyncRepository.open(stack=name, **place()) as repository:
        repository.create_entity("user-1")
        repository.delete_stack()
        repository.create_stack(small)
        assert repository.get_entity("user-1") is not None
        with pytest.raises(StackAlreadyExistsError):
            repository.create_stack()


def test_a_table_can_be_given_to_a_stack() -> None:
    """One that was made by hand stays what it is until somebody does as the message says."""
    name, dynamodb = emulator.fresh_name(), emulator.client("dynamodb")
    arn = dynamodb.create_table(**create_table_request(name))["TableDescription"]["TableArn"]
    with sync_manager(name) as stack:
        with pytest.raises(StackAlreadyExistsError, match=f"--resource-arn {arn}"):
            stack.create()
        assert stack.describe() is None
        dynamodb.tag_resource(ResourceArn=arn, Tags=[OUR_TAG])
        assert stack.create(StackOptions(enable_aggregator=False)).is_new
        stack.delete()


def test_a_failure_is_rolled_back_and_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """The stack has to be deleted before the next try, and nothing else stays behind."""
    name, whole = emulator.fresh_name(), template.template_text()
    with sync_manager(name) as stack:
        with monkeypatch.context() as broken:
            broken.setattr(template, "template_text", lambda: whole.replace("\nResources:\n", BROKEN))
            with pytest.raises(StackOperationError, match=r"Broken .* delete it first") as raised:
                stack.create()
        assert raised.value.reasons[0].startswith("Broken (AWS::Logs::LogStream)")
        assert name not in emulator.client("dynamodb").list_tables()["TableNames"]
        with pytest.raises(StackOperationError, match="ROLLBACK_COMPLETE; it was never made"):
            stack.deploy()
        stack.delete()
        assert stack.deploy(StackOptions(enable_aggregator=False)).is_new
        stack.delete()


def test_a_failed_update_leaves_the_stack_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """It can be used and updated as before."""
    whole = template.template_text()
    with (
        deployed(StackOptions(enable_aggregator=False)) as name,
        sync_manager(name) as stack,
    ):
        with monkeypatch.context() as broken:
            broken.setattr(template, "template_text", lambda: whole.replace("\nResources:\n", BROKEN))
            with pytest.raises(StackOperationError, match=r"UPDATE_ROLLBACK_COMPLETE.* as it was before"):
                stack.update()
        assert stack.deploy().changes == ()


def test_what_guards_a_stack_reaches_it() -> None:
    """Deletion protection, versions of the archive, a key, and who may assume a role."""
    name, guarded = (
        emulator.fresh_name(),
        StackOptions(
            enable_deletion_protection=True,
            kms_key_arn=KEY,
            create_iam_roles=True,
            role_principals=PRINCIPALS,
        ),
    )
    with sync_manager(name) as stack:
        stack.deploy(guarded)
        table = emulator.client("dynamodb").describe_table(TableName=name)["Table"]
        assert table["DeletionProtectionEnabled"] is True
        s3 = emulator.client("s3")
        (archive,) = [b["Name"] for b in s3.list_buckets()["Buckets"] if b["Name"].startswith(name)]
        assert s3.get_bucket_versioning(Bucket=archive)["Status"] == "Enabled"
        queue = emulator.client("sqs").get_queue_url(QueueName=f"{name}-aggregator-dlq")["QueueUrl"]
        told = emulator.client("sqs").get_queue_attributes(QueueUrl=queue, AttributeNames=["KmsMasterKeyId"])
        assert told["Attributes"] == {"KmsMasterKeyId": KEY}
        role = emulator.client("iam").get_role(RoleName=f"{name}-admin")["Role"]
        (trusted,) = role["AssumeRolePolicyDocument"]["Statement"]
        assert trusted["Condition"] == {"ArnLike": {"aws:PrincipalArn": list(PRINCIPALS)}}
        stack.deploy(StackOptions(enable_deletion_protection=False))
        stack.delete()
