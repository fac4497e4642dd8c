"""Whose stack it is, what becomes of a table, deletion, and the code of the function, on a scripted AWS."""

import pytest

from tests.infra.scripted_aws import (
    DENIED,
    NO_STACK,
    STACK_ID,
    Reply,
    ScriptedAws,
    change_set,
    ending,
    event,
    events,
    failed_change_set,
    recorded,
    stacks,
)
from zae_limiter import StackManager
from zae_limiter.backends.dynamodb.transport import ServiceError
from zae_limiter.exceptions import (
    IncompatibleSchemaError,
    InfrastructureNotFoundError,
    InvalidNameError,
    StackAlreadyExistsError,
    StackOperationError,
    ValidationError,
    VersionMismatchError,
)
from zae_limiter.infra import stack_manager
from zae_limiter.infra.lambda_builder import code_sha256
from zae_limiter.models import StackOptions

TABLE = {"Table": {"TableArn": "arn:aws:dynamodb:eu-west-1:123456789012:table/limits"}}
PACKAGE = b"the code of this version"
CURRENT = code_sha256(PACKAGE)
OUR_TAG = {"Key": "ManagedBy", "Value": "zae-limiter"}
OUR_TABLE: dict[str, Reply] = {"DescribeTable": TABLE, "ListTagsOfResource": {"Tags": [OUR_TAG]}}
ALREADY = ServiceError("AlreadyExistsException", "Stack [limits] already exists")


@pytest.fixture(autouse=True)
def _package(monkeypatch: pytest.MonkeyPatch) -> None:
    """Packing the real code takes longer than all the rest."""
    monkeypatch.setattr(stack_manager, "build", lambda: PACKAGE)


# Ours or not.


@pytest.mark.parametrize(
    ("there", "said"),
    [
        (stacks("CREATE_COMPLETE"), "update it: zae-limiter deploy --name limits"),
        (stacks("CREATE_COMPLETE", ours=False), "not one of zae-limiter's; choose another name"),
        (stacks("ROLLBACK_COMPLETE"), "delete it first: zae-limiter delete --name limits"),
        (stacks("CREATE_IN_PROGRESS"), "wait for that to end"),
    ],
)
def test_what_is_there_is_not_created(there: Reply, said: str) -> None:
    """Whether it was seen before or is only seen by CloudFormation."""
    seen = ScriptedAws(DescribeStacks=there)
    unseen = ScriptedAws(DescribeStacks=[NO_STACK, there], CreateStack=ALREADY)
    for aws in (seen, unseen):
        with pytest.raises(StackAlreadyExistsError, match=said):
            aws.manager.create()
        assert set(aws.changes) <= {"CreateStack"}


@pytest.mark.parametrize("verb", ["update", "deploy", "ensure", "delete", "update_lambda", "losses"])
def test_a_stack_of_somebody_else_is_never_touched(verb: str) -> None:
    """Nothing is sent that changes anything."""
    aws = ScriptedAws(DescribeStacks=stacks("CREATE_COMPLETE", ours=False))
    with pytest.raises(StackOperationError, match="no tag ManagedBy=zae-limiter"):
        getattr(aws.manager, verb)()
    assert aws.changes == []


@pytest.mark.parametrize("verb", ["update", "delete", "update_lambda", "losses"])
def test_a_typo_makes_nothing_and_is_pointed_out(verb: str) -> None:
    """Names that are deployed and look alike are offered; stacks of others are not."""

    def answer(request: dict[str, str]) -> dict[str, object]:
        if "StackName" in request:
            raise NO_STACK
        like = [stacks("CREATE_COMPLETE", StackName=name)["Stacks"][0] for name in ("limit", "unlike")]
        return {"Stacks": [*like, stacks("CREATE_COMPLETE", ours=False)["Stacks"][0]]}

    aws = ScriptedAws(DescribeStacks=answer)
    with pytest.raises(
        InfrastructureNotFoundError, match=r"'limits' does not exist .*; did you mean 'limit'\?"
    ):
        getattr(aws.manager, verb)()
    assert aws.changes == []


def test_whoever_may_not_list_stacks_gets_no_hint() -> None:
    """But still the news that there is no such stack."""
    aws = ScriptedAws(DescribeStacks=[NO_STACK, DENIED])
    with pytest.raises(InfrastructureNotFoundError, match=r"in this region and account$"):
        aws.manager.delete()


@pytest.mark.parametrize(
    ("status", "said"),
    [
        ("ROLLBACK_COMPLETE", "delete it first"),
        ("ROLLBACK_FAILED", "delete it first"),
        ("CREATE_FAILED", "delete it first"),
        ("REVIEW_IN_PROGRESS", "delete it first"),
        ("UPDATE_ROLLBACK_FAILED", "aws cloudformation continue-update-rollback --stack-name limits"),
        ("DELETE_FAILED", "delete it again"),
        ("UPDATE_IN_PROGRESS", "zae-limiter status --name limits"),
    ],
)
def test_a_stack_that_cannot_be_updated_says_the_way_out(status: str, said: str) -> None:
    """And stays as it is."""
    aws = ScriptedAws(DescribeStacks=stacks(status))
    with pytest.raises(StackOperationError, match=f"stack 'limits' is {status}; .*{said}"):
        aws.manager.deploy()
    assert aws.changes == []


@pytest.mark.parametrize("name", ["my_stack", "1st", "a" * 56, "", "a#b"])
def test_a_name_is_checked_first(name: str) -> None:
    """No request is ever made for a name that cannot be."""
    with pytest.raises(InvalidNameError):
        StackManager(name, "eu-west-1")


@pytest.mark.parametrize("verb", ["create", "update", "deploy", "ensure"])
def test_a_bad_option_changes_nothing(verb: str) -> None:
    """It is told by its own name before anything is sent."""
    aws = ScriptedAws(DescribeStacks=NO_STACK)
    with pytest.raises(ValidationError, match="lambda_memory"):
        getattr(aws.manager, verb)(StackOptions(lambda_memory=5))
    assert aws.changes == []


# The table.


def test_a_table_of_somebody_else_is_refused() -> None:
    """Before CloudFormation finds out half-way, and with both ways out."""
    aws = ScriptedAws(DescribeStacks=NO_STACK, DescribeTable=TABLE, ListTagsOfResource={"Tags": []})
    with pytest.raises(StackAlreadyExistsError, match=r"choose another name, or .*tag-resource"):
        aws.manager.deploy()
    assert aws.changes == []


def test_a_table_that_was_left_is_taken_over() -> None:
    """By a change set that spells its name out, because only so CloudFormation recognises it."""
    aws = ScriptedAws(
        **OUR_TABLE,
        DescribeStacks=[NO_STACK, NO_STACK, stacks("REVIEW_IN_PROGRESS"), stacks("CREATE_COMPLETE")],
        DescribeChangeSet=change_set(("Import", "Table", False)),
        DescribeStackEvents=[events(), events(), events(ending(1, "CREATE_COMPLETE"))],
    )
    assert aws.manager.deploy().is_new
    (request,) = aws.requests("CreateChangeSet")
    assert (request["ChangeSetType"], request["ImportExistingResources"]) == ("CREATE", True)
    assert "TableName: limits\n" in request["TemplateBody"]
    assert aws.changes == ["CreateChangeSet", "ExecuteChangeSet", "UpdateFunctionCode", "PutItem"]


def test_a_table_that_cannot_be_taken_over_leaves_no_trace() -> None:
    """Not even the name of the stack, which CloudFormation would keep for review."""
    aws = ScriptedAws(
        **OUR_TABLE, DescribeStacks=NO_STACK, DescribeChangeSet=failed_change_set("it is in stack another")
    )
    with pytest.raises(StackOperationError, match="it is in stack another"):
        aws.manager.create()
    assert aws.changes == ["CreateChangeSet", "DeleteChangeSet", "DeleteStack"]


def test_a_table_of_another_schema_is_not_taken_over() -> None:
    """Its records would be read wrongly; that is told before anything is made."""
    aws = ScriptedAws(**OUR_TABLE, DescribeStacks=NO_STACK, GetItem=recorded(None, schema="0.9.0"))
    with pytest.raises(IncompatibleSchemaError, match="zae-limiter upgrade"):
        aws.manager.deploy()
    assert aws.changes == []


def test_a_new_function_gets_code_whatever_the_table_remembers() -> None:
    """The stack of before may have been a newer client's; its function is gone."""
    created = ScriptedAws(
        **OUR_TABLE,
        GetItem=recorded("99.0.0"),
        DescribeStacks=[NO_STACK, NO_STACK, stacks("CREATE_COMPLETE")],
        DescribeChangeSet=change_set(("Import", "Table", False)),
        DescribeStackEvents=[events(), events(ending(1, "CREATE_COMPLETE"))],
    )
    assert created.manager.deploy().code_updated
    added = {"Action": "Add", "LogicalResourceId": "F", "ResourceType": "AWS::Lambda::Function"}
    enabled = ScriptedAws(
        GetItem=recorded("99.0.0"),
        DescribeStacks=stacks("UPDATE_COMPLETE"),
        DescribeChangeSet={**change_set(), "Changes": [{"ResourceChange": added}]},
        DescribeStackEvents=[events(), events(ending(1, "UPDATE_COMPLETE"))],
    )
    assert enabled.manager.update(StackOptions(enable_aggregator=True)).code_updated


def newer(status: str, **more: object) -> dict[str, object]:
    """A stack that a newer version has deployed."""
    described = stacks(status, **more)
    for tag in described["Stacks"][0]["Tags"]:
        if tag["Key"] == "zae-limiter:version":
            tag["Value"] = "99.0.0"
    return described


def test_a_newer_stack_is_not_taken_back() -> None:
    """An older template does not know what it would remove."""
    aws = ScriptedAws(DescribeStacks=newer("UPDATE_COMPLETE"))
    with pytest.raises(VersionMismatchError, match=r"deployed by zae-limiter 99.0.0.*newer version"):
        aws.manager.deploy(StackOptions(lambda_memory=512))
    assert aws.changes == []


def test_a_program_of_an_older_version_uses_a_newer_stack_as_it_is(caplog: pytest.LogCaptureFixture) -> None:
    """While a fleet is renewed both versions start, and only the newer one may change the stack."""
    aws = ScriptedAws(DescribeStacks=newer("UPDATE_COMPLETE", **parameter("256")))
    assert aws.manager.ensure(StackOptions(lambda_memory=512)).changes == ()
    assert aws.changes == []
    assert "left to zae-limiter 99.0.0" in caplog.text


# Programs that start.


def parameter(value: str) -> dict[str, object]:
    return {"Parameters": [{"ParameterKey": "LambdaMemory", "ParameterValue": value}]}


def test_ensuring_what_is_there_looks_once() -> None:
    """A program can afford it whenever it starts."""
    aws = ScriptedAws(DescribeStacks=stacks("UPDATE_COMPLETE", **parameter("512")))
    done = aws.manager.ensure(StackOptions(lambda_memory=512))
    assert (done.is_new, done.changes) == (False, ())
    assert aws.operations == ["DescribeStacks"]


def test_ensuring_something_else_updates() -> None:
    """What is asked for is what is deployed then."""
    aws = ScriptedAws(
        DescribeStacks=stacks("UPDATE_COMPLETE", **parameter("256")),
        DescribeChangeSet=change_set(("Modify", "Function", False)),
        DescribeStackEvents=[events(), events(ending(1, "UPDATE_COMPLETE"))],
    )
    assert aws.manager.ensure(StackOptions(lambda_memory=512)).changes
    assert "ExecuteChangeSet" in aws.changes


def test_ensuring_waits_for_whoever_was_faster() -> None:
    """Two processes that start together deploy one stack."""
    aws = ScriptedAws(
        CreateStack=ALREADY,
        DescribeStacks=[
            NO_STACK,
            NO_STACK,
            stacks("CREATE_IN_PROGRESS"),
            stacks("CREATE_IN_PROGRESS"),
            stacks("CREATE_IN_PROGRESS"),
            stacks("CREATE_COMPLETE"),
        ],
        DescribeStackEvents=[events(), events(ending(1, "CREATE_COMPLETE"))],
    )
    assert not aws.manager.ensure().is_new
    assert aws.changes == ["CreateStack"]
    assert aws.clock.slept_ms


def test_ensuring_does_not_hide_what_failed() -> None:
    """A stack that somebody else could not make is no stack."""
    aws = ScriptedAws(DescribeStacks=stacks("ROLLBACK_COMPLETE"))
    with pytest.raises(StackOperationError, match="delete it first"):
        aws.manager.ensure()


# Deletion.


@pytest.mark.parametrize(
    ("protection", "way"),
    [
        (
            {"Parameters": [{"ParameterKey": "EnableDeletionProtection", "ParameterValue": "true"}]},
            "zae-limiter deploy --name limits --no-deletion-protection",
        ),
        ({"EnableTerminationProtection": True}, "aws cloudformation update-termination-protection"),
    ],
)
def test_a_protected_stack_is_not_deleted(protection: dict[str, object], way: str) -> None:
    """The message says how to lift the protection."""
    aws = ScriptedAws(DescribeStacks=stacks("CREATE_COMPLETE", **protection))
    for verb in ("delete", "losses"):
        with pytest.raises(StackOperationError, match=f"protected from deletion; lift that first: {way}"):
            getattr(aws.manager, verb)()
    assert aws.changes == []


def test_a_busy_stack_is_not_deleted() -> None:
    """What is under way comes first."""
    aws = ScriptedAws(DescribeStacks=stacks("UPDATE_IN_PROGRESS"))
    with pytest.raises(StackOperationError, match="wait for that to end"):
        aws.manager.delete()
    assert aws.changes == []


def test_a_deletion_tells_what_it_left() -> None:
    """As CloudFormation did it, not as somebody expected."""
    aws = ScriptedAws(
        DescribeStacks=[stacks("CREATE_COMPLETE"), stacks("DELETE_IN_PROGRESS"), stacks("DELETE_COMPLETE")],
        DescribeStackEvents=[
            events(ending(1, "CREATE_COMPLETE")),
            events(event(2, "Table", "DELETE_SKIPPED")),
            events(ending(4, "DELETE_COMPLETE"), event(3, "Role", "DELETE_COMPLETE")),
        ],
    )
    assert [(one.resource, one.physical_id) for one in aws.manager.delete()] == [("Table", "table")]
    (request,) = aws.requests("DeleteStack")
    assert request["StackName"] == STACK_ID, "the name may be another stack's by then"


def test_a_stack_that_is_forgotten_is_deleted() -> None:
    """CloudFormation does not keep them for ever, not even by their ids."""
    aws = ScriptedAws(DescribeStacks=[stacks("CREATE_COMPLETE"), NO_STACK])
    assert aws.manager.delete() == []


def test_a_deletion_that_fails_tells_why() -> None:
    """And how to go on."""
    aws = ScriptedAws(
        DescribeStacks=[stacks("CREATE_COMPLETE"), stacks("DELETE_FAILED")],
        DescribeStackEvents=[
            events(),
            events(ending(2, "DELETE_FAILED"), event(1, "Role", "DELETE_FAILED", "it is in use")),
        ],
    )
    with pytest.raises(
        StackOperationError, match="it is in use; remove what is in the way and delete it again"
    ):
        aws.manager.delete()


def test_nobody_has_to_wait_for_a_deletion() -> None:
    """It is only asked for."""
    aws = ScriptedAws(DescribeStacks=stacks("CREATE_COMPLETE"))
    assert aws.manager.delete(wait=False) == []
    assert aws.operations.count("DescribeStacks") == 1
