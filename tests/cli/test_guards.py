"""What keeps commands from taking a table out from under a stack."""

import json

import pytest

from tests.cli.conftest import Run
from tests.dynamodb.tables import driver, make_table
from tests.engines import dynamodb_local
from tests.infra.scripted_aws import DENIED, NO_ANSWER, NO_STACK, ScriptedAws
from tests.migrations.old_store import assert_same, batch_fill, old_rows
from tests.migrations.older import composite_table
from tests.older.releases import recorded, rows_of
from zae_limiter.backends.dynamodb.table import create_table_request
from zae_limiter.backends.dynamodb.transport import ServiceError
from zae_limiter.infra import stack_manager

EXPIRED = ServiceError("ExpiredToken", "The security token included in the request is expired")
THROTTLED = ServiceError("Throttling", "Rate exceeded")
SILENCE = [DENIED, EXPIRED, THROTTLED, NO_ANSWER]
"""Why nobody knows whether there is a stack."""


def scripted(monkeypatch: pytest.MonkeyPatch, **answers: Exception) -> ScriptedAws:
    """What answers wherever a command asks about stacks; the table itself is real."""
    aws = ScriptedAws(**answers)
    monkeypatch.setattr(stack_manager, "open_cloud", lambda **_: aws)
    return aws


def url(table: str) -> str:
    return dynamodb_local.url(table, timeout_ms=60_000)


@pytest.mark.parametrize("answer", SILENCE)
def test_a_table_is_kept_while_its_stack_is_unknown(
    run: Run, monkeypatch: pytest.MonkeyPatch, answer: Exception
) -> None:
    """Nobody may say that there is none without having been told so."""
    table, aws = make_table(), scripted(monkeypatch, DescribeStacks=answer)
    result = run("table", "delete", "--yes", "--store", url(table))
    assert (result.exit_code, result.stdout) == (3, "")
    said = f"error: nothing was changed, because nobody knows whether table '{table}' has a stack: "
    assert result.stderr.startswith(f"{said}CloudFormation DescribeStacks ")
    assert ("allow the caller cloudformation:DescribeStacks" in result.stderr) is (answer is DENIED)
    assert driver().describe_table(TableName=table)
    assert aws.operations == ["DescribeStacks", "close"]


@pytest.mark.parametrize("words", [(), ("--dry-run",)])
def test_no_record_is_moved_under_an_unknown_function(
    run: Run, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    """An older function may be running, and would count what is moved."""
    scripted(monkeypatch, DescribeStacks=DENIED)
    table = make_table()
    batch_fill(table, recorded("0.17"))
    result = run("upgrade", "--yes", "--store", url(table), *words)
    assert (result.exit_code, result.stdout) == (3, "")
    assert "allow the caller cloudformation:DescribeStacks" in result.stderr
    assert rows_of(table) == recorded("0.17")


def test_a_table_without_a_stack_is_deleted(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """CloudFormation was asked and knows of none."""
    table, aws = make_table(), scripted(monkeypatch, DescribeStacks=NO_STACK)
    result = run("table", "delete", "--yes", "--store", url(table))
    assert result.exit_code == 0, result.stderr
    assert aws.requests("DescribeStacks") == [{"StackName": table}]
    assert table not in driver().list_tables()["TableNames"]


def test_a_table_that_no_stack_can_be_called_like_is_upgraded(run: Run) -> None:
    """It has none, so nobody is asked about a function."""
    driver().create_table(**create_table_request("my_table.v1"))
    old = composite_table(5)
    batch_fill("my_table.v1", old.items)
    done = run("upgrade", "--yes", "--store", url("my_table.v1"), "--output", "json")
    assert done.exit_code == 0, done.stderr
    assert json.loads(done.stdout)["lambda_updated"] is None
    rows = rows_of("my_table.v1")
    assert old_rows(rows) == set()
    assert_same(rows, old.truth)


@pytest.mark.parametrize("name", ["my_table.v2", "1st", "a" * 60, "a" * 200])
def test_a_table_may_be_called_what_no_stack_can_be(run: Run, name: str) -> None:
    """Then it has none: it is looked at and deleted like any other."""
    driver().create_table(**create_table_request(name))
    store = url(name)
    assert run("upgrade", "--yes", "--store", store).exit_code == 0
    for words in (["status"], ["check"], ["version"], ["table", "delete", "--yes"]):
        result = run(*words, "--store", store)
        assert result.exit_code == 0, result.stderr
    assert name not in driver().list_tables()["TableNames"]


def test_the_function_of_what_has_no_stack(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is none to update, and it is not even asked for."""
    aws = scripted(monkeypatch, DescribeStacks=DENIED)
    result = run("upgrade", "--lambda-only", "--store", "dynamodb://my_table?region=eu-west-1")
    assert (result.exit_code, "stack 'my_table' does not exist" in result.stderr) == (4, True)
    assert not any(aws.requests("DescribeStacks"))  # but for those that may have been meant
