"""The code of the function: when it is due, how it gets there, and what is recorded, on a scripted AWS."""

import pytest

from tests.infra.scripted_aws import DENIED, NO_ANSWER, NO_STACK, Reply, ScriptedAws, recorded, stacks
from zae_limiter.backends.dynamodb.transport import ServiceError
from zae_limiter.exceptions import IncompatibleSchemaError, StackOperationError, VersionMismatchError
from zae_limiter.infra import stack_manager
from zae_limiter.infra.function import code_is_due
from zae_limiter.infra.lambda_builder import code_sha256
from zae_limiter.models import VersionRecord
from zae_limiter.version import client_version

PACKAGE = b"the code of this version"
CURRENT = code_sha256(PACKAGE)


@pytest.fixture(autouse=True)
def _package(monkeypatch: pytest.MonkeyPatch) -> None:
    """Packing the real code takes longer than all the rest."""
    monkeypatch.setattr(stack_manager, "build", lambda: PACKAGE)


def function(code: str) -> Reply:
    return {"FunctionName": "limits-aggregator", "CodeSha256": code, "LastUpdateStatus": "Successful"}


@pytest.mark.parametrize(
    ("version", "is_current", "due"),
    [
        (None, False, True),
        (None, True, True),
        ("0.0.9", False, True),
        ("0.0.9", True, True),
        (client_version(), False, True),
        (client_version(), True, False),
        ("99.0.0", False, False),
        ("99.0.0", True, False),
    ],
)
def test_when_code_is_due(version: str | None, is_current: bool, due: bool) -> None:
    """Never in place of something newer; never if nothing would change."""
    assert code_is_due(VersionRecord("1.0.0", version), is_current=is_current) is due
    assert code_is_due(None, is_current=is_current)


@pytest.mark.parametrize(
    ("version", "code", "force", "changes"),
    [
        ("0.0.9", "older", False, ["UpdateFunctionCode", "UpdateItem"]),
        (None, "none", False, ["UpdateFunctionCode", "UpdateItem"]),
        ("0.0.9", CURRENT, False, ["UpdateItem"]),
        (client_version(), CURRENT, False, []),
        (client_version(), CURRENT, True, ["UpdateFunctionCode", "UpdateItem"]),
        ("99.0.0", "newer", False, []),
        ("99.0.0", "newer", True, ["UpdateFunctionCode", "UpdateItem"]),
    ],
)
def test_code_is_uploaded_when_it_is_due(
    version: str | None, code: str, force: bool, changes: list[str]
) -> None:
    """What is there already is not uploaded; the version record is brought up to date all the same."""
    aws = ScriptedAws(
        DescribeStacks=stacks("CREATE_COMPLETE"),
        GetItem=recorded(version),
        GetFunctionConfiguration=function(code),
    )
    assert aws.manager.update_lambda(force=force) is bool(changes)
    assert aws.changes == changes


def test_the_record_keeps_what_is_not_about_the_function() -> None:
    """A migration may be writing the rest of it at the same time."""
    aws = ScriptedAws(DescribeStacks=stacks("CREATE_COMPLETE"), GetItem=recorded("0.0.1", client_min="0.0.5"))
    assert aws.manager.update_lambda()
    (request,) = aws.requests("UpdateItem")
    names = set(request["ExpressionAttributeNames"].values())
    assert names == {"lambda_version", "updated_at"}


def test_a_record_that_appears_meanwhile_is_kept() -> None:
    """Somebody opened the table while the code was uploaded."""
    taken = ServiceError("ConditionalCheckFailedException", "no")
    aws = ScriptedAws(DescribeStacks=stacks("CREATE_COMPLETE"), PutItem=taken)
    assert aws.manager.update_lambda()
    assert aws.changes == ["UpdateFunctionCode", "PutItem", "UpdateItem"]


@pytest.mark.parametrize(
    ("record", "kind"),
    [
        (recorded("0.0.1", schema="99.0.0"), IncompatibleSchemaError),
        (recorded("0.0.1", schema="0.9.0"), IncompatibleSchemaError),
        (recorded("0.0.1", client_min="99.0.0"), VersionMismatchError),
    ],
)
@pytest.mark.parametrize("force", [False, True])
def test_code_for_another_schema_is_not_uploaded(record: Reply, kind: type[Exception], force: bool) -> None:
    """It could not read the table, and force does not change that."""
    aws = ScriptedAws(DescribeStacks=stacks("CREATE_COMPLETE"), GetItem=record)
    with pytest.raises(kind):
        aws.manager.update_lambda(force=force)
    assert aws.changes == []


def test_a_stack_without_a_function_needs_no_code() -> None:
    """There is nothing to do, and nothing is recorded."""
    missing = ServiceError("ResourceNotFoundException", "Function not found")
    aws = ScriptedAws(DescribeStacks=stacks("CREATE_COMPLETE"), GetFunctionConfiguration=missing)
    assert aws.manager.update_lambda(force=True) is False
    assert aws.changes == []


def test_a_busy_function_is_waited_for() -> None:
    """Before and after the upload."""
    busy = ServiceError("ResourceConflictException", "an update is in progress")
    aws = ScriptedAws(
        DescribeStacks=stacks("CREATE_COMPLETE"),
        UpdateFunctionCode=[busy, busy, {}],
        GetFunctionConfiguration=[
            function("older"),
            {"LastUpdateStatus": "InProgress"},
            {"LastUpdateStatus": "Successful"},
        ],
    )
    assert aws.manager.update_lambda()
    assert len(aws.clock.slept_ms) == 3


def test_a_function_that_never_ends_its_update_is_not_recorded() -> None:
    """Neither is one that refuses its code."""
    for config, said in (
        ({"LastUpdateStatus": "InProgress"}, "has not taken its code within 1800 seconds"),
        (
            {"LastUpdateStatus": "Failed", "LastUpdateStatusReason": "bad zip"},
            "did not take its code: bad zip",
        ),
    ):
        aws = ScriptedAws(
            DescribeStacks=stacks("CREATE_COMPLETE"), GetFunctionConfiguration=[function("older"), config]
        )
        with pytest.raises(StackOperationError, match=said):
            aws.manager.update_lambda()
        assert aws.changes == ["UpdateFunctionCode"]


def test_a_function_that_is_always_busy_is_given_up() -> None:
    """In the end somebody has to look."""
    busy = ServiceError("ResourceConflictException", "an update is in progress")
    aws = ScriptedAws(DescribeStacks=stacks("CREATE_COMPLETE"), UpdateFunctionCode=busy)
    with pytest.raises(StackOperationError, match="changed by somebody else: an update is in progress"):
        aws.manager.update_lambda()


@pytest.mark.parametrize(
    ("answers", "result", "changes"),
    [
        ({"GetItem": recorded("0.0.9")}, True, ["UpdateFunctionCode", "UpdateItem"]),
        ({"GetItem": recorded(client_version())}, False, []),
        ({"GetItem": recorded("0.0.9"), "DescribeStacks": NO_STACK}, False, []),
        ({"GetItem": recorded("0.0.9"), "UpdateFunctionCode": DENIED}, False, ["UpdateFunctionCode"]),
        ({"GetItem": NO_ANSWER}, False, []),
    ],
)
def test_a_program_that_starts_updates_what_it_may(
    answers: dict[str, Reply | list[Reply]], result: bool, changes: list[str]
) -> None:
    """And goes on with what is deployed where it may not."""
    aws = ScriptedAws(**{"DescribeStacks": stacks("CREATE_COMPLETE"), **answers})
    assert aws.manager.auto_update() is result
    assert aws.changes == changes


# Whether it is told of changes.

MAPPING = {"EventSourceMappings": [{"UUID": "u", "State": "Enabled"}]}


def test_a_function_is_off_when_that_is_said() -> None:
    """Lambda answers at once and takes its time; until then the function may still be called."""
    aws = ScriptedAws(
        ListEventSourceMappings=MAPPING,
        UpdateEventSourceMapping={"State": "Disabling"},
        GetEventSourceMapping=[{"State": "Disabling"}, {"State": "Disabling"}, {"State": "Disabled"}],
    )
    aws.manager.switch_aggregator(False)
    assert aws.requests("UpdateEventSourceMapping") == [{"UUID": "u", "Enabled": False}]
    assert aws.requests("GetEventSourceMapping") == [{"UUID": "u"}] * 3
    assert len(aws.clock.slept_ms) == 3


def test_a_function_that_is_off_already() -> None:
    """An upgrade that goes on finds it so, and asks for nothing."""
    aws = ScriptedAws(ListEventSourceMappings={"EventSourceMappings": [{"UUID": "u", "State": "Disabled"}]})
    aws.manager.switch_aggregator(False)
    assert aws.operations == ["ListEventSourceMappings"]


def test_a_function_that_is_just_being_changed() -> None:
    """Lambda takes one change at a time: what is under way is waited for."""
    aws = ScriptedAws(
        ListEventSourceMappings={"EventSourceMappings": [{"UUID": "u", "State": "Disabling"}]},
        GetEventSourceMapping=[{"State": "Disabled"}, {"State": "Enabled"}],
        UpdateEventSourceMapping={"State": "Enabling"},
    )
    aws.manager.switch_aggregator(True)
    assert aws.operations == [
        "ListEventSourceMappings",
        "GetEventSourceMapping",
        "UpdateEventSourceMapping",
        "GetEventSourceMapping",
    ]


def test_a_function_that_does_not_go_off() -> None:
    """Nothing is done under it."""
    aws = ScriptedAws(
        ListEventSourceMappings=MAPPING,
        UpdateEventSourceMapping={"State": "Disabling"},
        GetEventSourceMapping={"State": "Disabling"},
    )
    with pytest.raises(
        StackOperationError, match="'limits-aggregator' is still Disabling after 1800 seconds"
    ):
        aws.manager.switch_aggregator(False)
