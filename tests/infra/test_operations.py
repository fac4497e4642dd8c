"""How an operation is begun, followed and told of: events, failures, deadlines, on a scripted AWS."""

import pytest

from tests.infra.scripted_aws import (
    DENIED,
    NAME,
    NO_ANSWER,
    NO_STACK,
    ScriptedAws,
    change_set,
    ending,
    event,
    events,
    failed_change_set,
    stacks,
)
from zae_limiter.exceptions import InfrastructureError, StackOperationError, ValidationError
from zae_limiter.infra import stack_manager
from zae_limiter.infra.stack import StackEvent
from zae_limiter.models import StackOptions

UNCHANGED = failed_change_set("No updates are to be performed.")
CREATED = events(ending(3, "CREATE_COMPLETE"), event(2, "Table", "CREATE_COMPLETE"))


@pytest.fixture(autouse=True)
def _package(monkeypatch: pytest.MonkeyPatch) -> None:
    """Packing the real code takes longer than all the rest."""
    monkeypatch.setattr(stack_manager, "build", lambda: b"the code of this version")


def test_a_creation_is_asked_for_with_everything_it_needs() -> None:
    """The template, our tags, what was said and nothing else, the right to name roles, and a token."""
    aws = ScriptedAws(DescribeStacks=[NO_STACK, stacks("CREATE_COMPLETE")], DescribeStackEvents=CREATED)
    done = aws.manager.create(StackOptions(lambda_memory=512, tags={"team": "a"}))
    (request,) = aws.requests("CreateStack")
    assert request["StackName"] == NAME
    assert request["Capabilities"] == ["CAPABILITY_NAMED_IAM"]
    assert request["Parameters"] == [{"ParameterKey": "LambdaMemory", "ParameterValue": "512"}]
    assert "AWS::DynamoDB::Table" in request["TemplateBody"]
    assert {"Key": "ManagedBy", "Value": "zae-limiter"} in request["Tags"]
    assert {"Key": "team", "Value": "a"} in request["Tags"]
    assert len(request["ClientRequestToken"]) == 26
    assert (done.is_new, done.is_finished, done.code_updated) == (True, True, True)
    assert aws.changes == ["CreateStack", "UpdateFunctionCode", "PutItem"]


def test_progress_is_told_once_and_in_order() -> None:
    """CloudFormation lists the newest first, in pages, and repeats itself on every look."""
    first = events(event(2, "Table", "CREATE_IN_PROGRESS"), event(1, NAME, "CREATE_IN_PROGRESS"))
    newest = events(ending(5, "CREATE_COMPLETE"), event(4, "Role", "CREATE_COMPLETE"), more="older")
    older = events(
        event(3, "Table", "CREATE_COMPLETE"), event(2, "Table", "CREATE_IN_PROGRESS"), more="oldest"
    )
    aws = ScriptedAws(
        DescribeStacks=[
            NO_STACK,
            stacks("CREATE_IN_PROGRESS"),
            stacks("CREATE_IN_PROGRESS"),
            stacks("CREATE_COMPLETE"),
        ],
        DescribeStackEvents=[first, first, newest, older],
    )
    told: list[StackEvent] = []
    aws.manager.create(progress=told.append)
    assert [one.event_id for one in told] == ["1", "2", "3", "4", "5"]
    assert [request.get("NextToken") for request in aws.requests("DescribeStackEvents")] == [
        None,
        None,
        None,
        "older",
    ]


def test_events_of_earlier_operations_are_not_told() -> None:
    """An update begins behind what has happened so far."""
    before, after = event(1, "Table", "CREATE_COMPLETE"), event(2, "Table", "UPDATE_COMPLETE")
    aws = ScriptedAws(
        DescribeStacks=stacks("UPDATE_COMPLETE"),
        DescribeChangeSet=change_set(("Modify", "Table", False)),
        DescribeStackEvents=[events(before), events(ending(3, "UPDATE_COMPLETE"), after, before)],
    )
    told: list[StackEvent] = []
    aws.manager.update(progress=told.append)
    assert [one.event_id for one in told] == ["2", "3"]


def test_the_status_of_before_is_not_taken_for_the_end() -> None:
    """For a moment a stack still shows how its previous operation ended."""
    aws = ScriptedAws(
        DescribeStacks=[
            stacks("UPDATE_COMPLETE"),
            stacks("UPDATE_COMPLETE"),
            stacks("UPDATE_IN_PROGRESS"),
            stacks("UPDATE_ROLLBACK_COMPLETE"),
        ],
        DescribeChangeSet=change_set(("Modify", "Table", False)),
        DescribeStackEvents=[
            events(ending(1, "UPDATE_COMPLETE")),
            events(ending(1, "UPDATE_COMPLETE")),
            events(event(2, "Table", "UPDATE_FAILED", "no"), ending(1, "UPDATE_COMPLETE")),
            events(ending(3, "UPDATE_ROLLBACK_COMPLETE"), event(2, "Table", "UPDATE_FAILED", "no")),
        ],
    )
    with pytest.raises(StackOperationError, match="UPDATE_ROLLBACK_COMPLETE"):
        aws.manager.update()


def test_a_failure_tells_its_first_cause_first() -> None:
    """Resources that were given up because of another one are no causes."""
    aws = ScriptedAws(
        DescribeStacks=[NO_STACK, stacks("ROLLBACK_COMPLETE")],
        DescribeStackEvents=events(
            ending(6, "ROLLBACK_COMPLETE"),
            event(5, "Role", "CREATE_FAILED", "the boundary does not exist"),
            event(4, "Function", "CREATE_FAILED", "Resource creation cancelled"),
            event(3, "Table", "CREATE_FAILED", "limits already exists"),
            event(2, "Table", "CREATE_IN_PROGRESS"),
        ),
    )
    with pytest.raises(StackOperationError) as raised:
        aws.manager.create()
    assert raised.value.reasons == (
        "Table (AWS::Test::Table) limits already exists",
        "Role (AWS::Test::Role) the boundary does not exist",
    )
    assert str(raised.value) == (
        "stack 'limits' ended as ROLLBACK_COMPLETE: Table (AWS::Test::Table) limits already exists; then "
        "Role (AWS::Test::Role) the boundary does not exist; it was never made and cannot be updated; "
        "delete it first: zae-limiter delete --name limits"
    )
    assert aws.changes == ["CreateStack"], "no code is uploaded"


def test_a_failure_without_events_tells_what_the_stack_says() -> None:
    """Its own reason, or that there is none."""
    for reason, said in (("quota exceeded", "quota exceeded"), ("", "CloudFormation gives no reason")):
        aws = ScriptedAws(
            DescribeStacks=[NO_STACK, stacks("ROLLBACK_COMPLETE", StackStatusReason=reason)],
            DescribeStackEvents=events(ending(1, "ROLLBACK_COMPLETE")),
        )
        with pytest.raises(StackOperationError, match=said):
            aws.manager.create()


def test_a_cancelled_resource_is_told_if_there_is_nothing_else() -> None:
    """Better a poor reason than none."""
    aws = ScriptedAws(
        DescribeStacks=[NO_STACK, stacks("ROLLBACK_COMPLETE")],
        DescribeStackEvents=events(
            ending(2, "ROLLBACK_COMPLETE"), event(1, "Table", "CREATE_FAILED", "Resource creation cancelled")
        ),
    )
    with pytest.raises(StackOperationError, match=r"Table \(AWS::Test::Table\) Resource creation cancelled"):
        aws.manager.create()


def test_a_timeout_is_exact() -> None:
    """Waiting ends at the second that was said, with one last look, and nothing is undone."""
    aws = ScriptedAws(DescribeStacks=[NO_STACK, stacks("CREATE_IN_PROGRESS")])
    with pytest.raises(StackOperationError, match="still CREATE_IN_PROGRESS after 30 seconds") as raised:
        aws.manager.create(timeout_seconds=30)
    assert aws.clock.now_ms == pytest.approx(30_000)
    assert "zae-limiter status --name limits" in str(raised.value)
    assert aws.changes == ["CreateStack"]
    assert aws.operations[-2] == "DescribeStacks"


def test_looks_become_rarer_and_never_rare() -> None:
    """A short operation is noticed at once, a long one is not asked after all the time."""
    aws = ScriptedAws(DescribeStacks=[NO_STACK, stacks("CREATE_IN_PROGRESS")])
    with pytest.raises(StackOperationError):
        aws.manager.create(timeout_seconds=600)
    assert aws.clock.slept_ms[0] == pytest.approx(100)
    assert max(aws.clock.slept_ms) == pytest.approx(5_000)
    assert len(aws.clock.slept_ms) < 150


@pytest.mark.parametrize("seconds", [0, -1, 86_401, float("nan"), True])
def test_a_bad_timeout_changes_nothing(seconds: float) -> None:
    """It is told before anything is sent."""
    aws = ScriptedAws(DescribeStacks=NO_STACK)
    with pytest.raises(ValidationError, match="timeout_seconds"):
        aws.manager.deploy(timeout_seconds=seconds)
    assert aws.changes == []


def test_waiting_survives_a_network_that_does_not() -> None:
    """The operation goes on meanwhile, and the next look tells."""
    aws = ScriptedAws(
        DescribeStacks=[
            NO_STACK,
            NO_ANSWER,
            stacks("CREATE_IN_PROGRESS"),
            NO_ANSWER,
            stacks("CREATE_COMPLETE"),
        ],
        DescribeStackEvents=[NO_ANSWER, CREATED],
    )
    assert aws.manager.create().is_finished


def test_waiting_ends_where_looking_is_forbidden() -> None:
    """No answer will ever come, so nobody waits for it."""
    aws = ScriptedAws(DescribeStacks=[NO_STACK, stacks("CREATE_IN_PROGRESS")], DescribeStackEvents=DENIED)
    with pytest.raises(StackOperationError, match="allow the caller cloudformation:DescribeStackEvents"):
        aws.manager.create()
    assert aws.clock.now_ms == 0


def test_nobody_has_to_wait() -> None:
    """Then the code is not uploaded, and the deployment says that it is not finished."""
    aws = ScriptedAws(DescribeStacks=NO_STACK)
    done = aws.manager.create(wait=False)
    assert (done.is_new, done.is_finished, done.code_updated) == (True, False, False)
    assert aws.changes == ["CreateStack"]


@pytest.mark.parametrize(
    "reason",
    [
        "The submitted information didn't contain changes. Submit different information.",
        "No updates are to be performed.",
    ],
)
def test_nothing_to_change_is_success(reason: str) -> None:
    """The empty change set is removed; the code is looked after all the same."""
    aws = ScriptedAws(DescribeStacks=stacks("UPDATE_COMPLETE"), DescribeChangeSet=failed_change_set(reason))
    done = aws.manager.update()
    assert (done.is_new, done.changes, done.code_updated) == (False, (), True)
    assert aws.changes == ["CreateChangeSet", "DeleteChangeSet", "UpdateFunctionCode", "PutItem"]


def test_an_impossible_change_is_told_and_left_nowhere() -> None:
    """The reason is CloudFormation's."""
    aws = ScriptedAws(
        DescribeStacks=stacks("UPDATE_COMPLETE"), DescribeChangeSet=failed_change_set("Template error: x")
    )
    with pytest.raises(StackOperationError, match="Template error: x") as raised:
        aws.manager.update()
    assert raised.value.reasons == ("Template error: x",)
    assert aws.changes == ["CreateChangeSet", "DeleteChangeSet"]


def test_a_change_set_that_is_never_ready_is_given_up() -> None:
    """In the time that was given for the whole."""
    aws = ScriptedAws(
        DescribeStacks=stacks("UPDATE_COMPLETE"), DescribeChangeSet={"Status": "CREATE_IN_PROGRESS"}
    )
    with pytest.raises(StackOperationError, match="within 10 seconds; nothing was changed"):
        aws.manager.update(timeout_seconds=10)
    assert aws.changes == ["CreateChangeSet", "DeleteChangeSet"]
    assert aws.clock.now_ms == pytest.approx(10_000)


def test_what_changes_is_shown_before_it_is_done() -> None:
    """All pages of it; whoever does not approve changes nothing."""
    aws = ScriptedAws(
        DescribeStacks=stacks("UPDATE_COMPLETE"),
        DescribeChangeSet=[
            change_set(("Modify", "Table", False), more="x"),
            change_set(("Remove", "Role", True)),
        ],
    )
    shown: list[str] = []

    def refuse(changes: object) -> bool:
        shown.extend(map(str, changes))  # type: ignore[call-overload]
        return False

    with pytest.raises(StackOperationError, match="nobody approved its changes"):
        aws.manager.update(approve=refuse)
    assert shown == ["modify Table (AWS::Test::Table)", "remove Role (AWS::Test::Role, replaced)"]
    assert aws.changes == ["CreateChangeSet", "DeleteChangeSet"]


def test_an_update_leaves_what_it_does_not_mention() -> None:
    """Parameters keep their values unless the template has them no more, and tags stay."""
    deployed = {"LambdaMemory": "512", "LambdaTimeout": "30", "FromAnOlderTemplate": "x"}
    before = stacks("UPDATE_COMPLETE")["Stacks"][0]
    before["Parameters"] = [{"ParameterKey": k, "ParameterValue": v} for k, v in deployed.items()]
    before["Tags"] += [{"Key": "team", "Value": "a"}, {"Key": "zae-limiter:old", "Value": "x"}]
    aws = ScriptedAws(DescribeStacks={"Stacks": [before]}, DescribeChangeSet=UNCHANGED)
    aws.manager.update(StackOptions(lambda_memory=1024))
    (request,) = aws.requests("CreateChangeSet")
    assert request["ChangeSetType"] == "UPDATE"
    assert request["Parameters"] == [
        {"ParameterKey": "LambdaMemory", "ParameterValue": "1024"},
        {"ParameterKey": "LambdaTimeout", "UsePreviousValue": True},
    ]
    tags = {tag["Key"]: tag["Value"] for tag in request["Tags"]}
    assert (tags["team"], "zae-limiter:old" in tags) == ("a", False)


def test_tags_that_are_said_replace_those_that_were() -> None:
    """So that one can be removed."""
    before = stacks("UPDATE_COMPLETE")["Stacks"][0]
    before["Tags"] += [{"Key": "team", "Value": "a"}]
    aws = ScriptedAws(DescribeStacks={"Stacks": [before]}, DescribeChangeSet=UNCHANGED)
    aws.manager.update(StackOptions(tags={"cost": "b"}))
    keys = {tag["Key"] for tag in aws.requests("CreateChangeSet")[0]["Tags"]}
    assert "cost" in keys
    assert "team" not in keys


@pytest.mark.parametrize(
    ("answer", "kind"), [(DENIED, StackOperationError), (NO_ANSWER, InfrastructureError)]
)
def test_what_aws_refuses_is_told_as_it_is(answer: Exception, kind: type[Exception]) -> None:
    """A refusal names the permission, silence the operation."""
    aws = ScriptedAws(DescribeStacks=answer)
    with pytest.raises(kind, match="CloudFormation DescribeStacks"):
        aws.manager.deploy()
    assert aws.changes == []
