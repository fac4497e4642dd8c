"""What CloudFormation tells, read and judged: pure functions against tables and the template itself."""

from datetime import datetime, timedelta, timezone

import pytest
import yaml

from tests.infra.scripted_aws import NAME, stacks
from zae_limiter.infra.stack import (
    DEPLOYED,
    NEVER_MADE,
    Stack,
    StackEvent,
    changes_of,
    failed_reasons,
    missing_stack,
)
from zae_limiter.infra.stack_request import NAME_OF_THE_TABLE, StackRequest
from zae_limiter.infra.template import parameter_names, retained_in, template_text
from zae_limiter.models import StackOptions, VersionRecord


class Reader(yaml.SafeLoader):
    """Reads CloudFormation's short forms as nothing in particular."""


Reader.add_multi_constructor("!", lambda *_: None)
TEMPLATE = yaml.load(template_text(), Reader)


def test_the_parameters_of_the_template_are_found_without_reading_yaml() -> None:
    """Not every installation can, so its text is searched; it says the same."""
    assert parameter_names(template_text()) == set(TEMPLATE["Parameters"])
    assert parameter_names("Resources:\n  Table:\n") == set()
    body = "Parameters:\n  A:\n    Type: String\n  # a comment\n\n  B:\n    Type: String\n\nResources: {}\n"
    assert parameter_names(body) == {"A", "B"}


def test_what_the_template_retains_is_found_without_reading_yaml() -> None:
    """In text and in JSON, and as the template means it."""
    retained = {
        name for name, one in TEMPLATE["Resources"].items() if "Retain" in one.get("DeletionPolicy", "")
    }
    assert retained == {"Table", "ArchiveBucket"}
    assert retained_in(template_text()) == retained
    assert retained_in(TEMPLATE) == retained
    assert retained_in(template_text(retain=False)) == set()
    noted = "Resources:\n  A:\n  # a note\n\n    DeletionPolicy: Retain\n  B:\n    Type: T\n"
    assert retained_in(noted) == {"A"}


def test_a_table_is_taken_over_by_its_name_only() -> None:
    """The rest of the template stays as it is."""
    request = StackRequest(NAME, StackOptions())
    body = request.adoption()["TemplateBody"]
    assert yaml.load(body, Reader)["Resources"]["Table"]["Properties"]["TableName"] == NAME
    assert body.replace(f"TableName: {NAME}", NAME_OF_THE_TABLE) == request.template


def test_parameters_that_are_not_said_are_left_alone() -> None:
    """In a new stack they have their defaults, in one that is there their values."""
    request = StackRequest(NAME, StackOptions(lambda_memory=512))
    said = {"ParameterKey": "LambdaMemory", "ParameterValue": "512"}
    assert request.creation()["Parameters"] == [said]
    deployed = {"LambdaMemory": "256", "LambdaTimeout": "9", "NoLongerKnown": "3"}
    assert request.change(Stack(NAME, "id", "CREATE_COMPLETE", parameters=deployed))["Parameters"] == [
        said,
        {"ParameterKey": "LambdaTimeout", "UsePreviousValue": True},
    ]


def test_times_are_told_in_utc() -> None:
    """Drivers give them in the zone of the machine."""
    noon = datetime(2026, 6, 1, 14, 0, 0, 5_000, timezone(timedelta(hours=2)))
    found = Stack.of(stacks("CREATE_COMPLETE", CreationTime=noon)["Stacks"][0])
    assert (found.created, found.updated) == ("2026-06-01T12:00:00.005Z", None)


@pytest.mark.parametrize(
    ("status", "is_busy"),
    [
        ("CREATE_IN_PROGRESS", True),
        ("UPDATE_COMPLETE_CLEANUP_IN_PROGRESS", True),
        ("UPDATE_ROLLBACK_IN_PROGRESS", True),
        ("REVIEW_IN_PROGRESS", False),
        ("CREATE_COMPLETE", False),
        ("DELETE_FAILED", False),
    ],
)
def test_what_ends_by_itself_is_busy(status: str, is_busy: bool) -> None:
    """A stack under review waits for somebody, for ever if need be."""
    assert Stack(NAME, "id", status).is_busy is is_busy


@pytest.mark.parametrize("status", sorted(NEVER_MADE))
def test_what_was_never_made_has_to_be_deleted(status: str) -> None:
    """The way out of each of these is the same."""
    assert Stack(NAME, "id", status).way_out.endswith("delete it first: zae-limiter delete --name limits")
    assert status not in DEPLOYED


def failed(reason: str, resource: str = "Table") -> StackEvent:
    return StackEvent("1", "", resource, "AWS::Test", "CREATE_FAILED", reason)


@pytest.mark.parametrize(
    "reason",
    [
        "Resource creation cancelled",
        "Resource creation Cancelled",
        "Resource update cancelled",
        "Resource deletion cancelled",
    ],
)
def test_a_resource_that_was_given_up_is_no_cause(reason: str) -> None:
    """CloudFormation says so in several ways."""
    causes = failed_reasons([failed("no room"), failed(reason, "Role")])
    assert causes == ["Table (AWS::Test) no room"]


def test_a_cause_that_mentions_a_cancellation_is_one() -> None:
    """Only the whole sentence counts."""
    assert len(failed_reasons([failed("cancelled by the provider: no room"), failed("x", "Role")])) == 2


def test_a_failure_without_a_reason_is_told_by_its_status() -> None:
    """Anything is better than an empty message."""
    assert failed_reasons([failed("")]) == ["Table (AWS::Test) CREATE_FAILED"]


def test_a_replacement_that_depends_is_none() -> None:
    """CloudFormation says "Conditional" where it cannot know."""
    change = {
        "Action": "Modify",
        "LogicalResourceId": "Table",
        "ResourceType": "T",
        "Replacement": "Conditional",
    }
    (found,) = changes_of({"Changes": [{"ResourceChange": change}, {"Type": "Hook"}]})
    assert not found.replaces


def test_likely_names_are_offered() -> None:
    """At most three, and none that is unlike."""
    names = ["limits-prod", "limits-test", "limits-dev", "limits-old", "zebra"]
    assert str(missing_stack("limits-prd", names)).count("limits-") == 4
    assert str(missing_stack("quite-another", names)).endswith("in this region and account")


def test_versions_in_a_list_are_those_of_the_table() -> None:
    """Tags are as old as the last deployment."""
    stack = Stack.of(stacks("CREATE_COMPLETE")["Stacks"][0])
    record = VersionRecord("1.2.0", "9.9.9")
    assert stack.info("eu-west-1", record).lambda_version == "9.9.9"
    assert stack.info("eu-west-1", record).schema_version == "1.2.0"
    assert stack.info(None).lambda_version == stack.tags["zae-limiter:lambda-version"]
    assert stack.info(None).schema_version == stack.tags["zae-limiter:schema-version"]
