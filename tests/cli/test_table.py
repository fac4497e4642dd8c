"""A DynamoDB by itself: a table is made, used, looked at and deleted, and nothing is told in riddles."""

import json
from collections.abc import Callable, Iterator

import botocore.session
import pytest
from click.testing import Result

from tests.cli.conftest import Run
from tests.engines import dynamodb_local, emulator
from tests.infra.emulated import deployed
from zae_limiter import StackOptions

Ask = Callable[..., Result]
REGION = "us-east-1"


@pytest.fixture
def ask(run: Run, monkeypatch: pytest.MonkeyPatch) -> Ask:
    """Run a command on the engine, told of it as ``local env`` tells."""
    monkeypatch.delenv("ZAE_LIMITER_STORE")
    monkeypatch.setenv("AWS_ENDPOINT_URL", dynamodb_local.endpoint())
    monkeypatch.setenv("AWS_DEFAULT_REGION", REGION)
    return run


@pytest.fixture
def name() -> str:
    return emulator.fresh_name()


@pytest.fixture
def foreign(name: str) -> Iterator[str]:
    """A table of somebody else's."""
    client = botocore.session.Session().create_client(
        "dynamodb", region_name=REGION, endpoint_url=dynamodb_local.endpoint()
    )
    client.create_table(
        TableName=name,
        KeySchema=[{"AttributeName": "id", "KeyType": "HASH"}],
        AttributeDefinitions=[{"AttributeName": "id", "AttributeType": "S"}],
        BillingMode="PAY_PER_REQUEST",
    )
    yield name
    client.delete_table(TableName=name)
    client.close()


def test_a_table_from_nothing_to_nothing(ask: Ask, name: str) -> None:
    """Make it, use it, look at it, delete it; each step says what it did."""
    store = f"dynamodb://{name}?timeout_ms=60000"
    made = ask("table", "create", "--store", store, "-N", "acme")
    assert (made.exit_code, made.stdout, made.stderr) == (0, "", f"created table '{name}'\n")
    again = ask("table", "create", "--store", store, "--json")
    assert json.loads(again.stdout) == {"table": name, "created": False, "namespace": "default"}
    assert ask("system", "set-defaults", "-l", "rpm:60", "--store", store, "-N", "acme").exit_code == 0
    status = json.loads(ask("status", "--name", name, "--json").stdout)
    assert status["health"] == "green", status
    refused = ask("table", "delete", "--store", store, answer="n\n")
    assert refused.exit_code == 1
    assert f"Delete table '{name}' with all namespaces and all data in it?" in refused.stderr
    assert ask("namespace", "list", "--store", store).exit_code == 0
    gone = ask("table", "delete", "--store", store, "--yes")
    assert (gone.exit_code, gone.stderr) == (0, f"deleted table '{name}'\n")
    twice = ask("table", "delete", "--store", store, "--yes")
    assert (twice.exit_code, "so nothing was deleted" in twice.stderr) == (4, True)


@pytest.mark.parametrize("words", ["entity list", "entity create a", "aggregate --once", "upgrade"])
def test_a_missing_table_is_told_with_what_makes_it(ask: Ask, name: str, words: str) -> None:
    """By every command that needs it; the exit code is 4."""
    result = ask(*words.split(), "--store", f"dynamodb://{name}?timeout_ms=60000")
    assert (result.exit_code, result.stdout) == (4, "")
    assert f"table '{name}' does not exist" in result.stderr
    if words != "upgrade":
        assert f"zae-limiter table create --name {name}" in result.stderr


@pytest.mark.parametrize("words", ["check", "status", "version"])
def test_looking_at_what_is_missing(ask: Ask, name: str, words: str) -> None:
    """There is neither table nor stack, and that is all there is to say."""
    result = ask(words, "--name", name)
    assert (result.exit_code, result.stdout) == (4, "")
    assert result.stderr.startswith(f"error: stack '{name}' does not exist")


@pytest.mark.parametrize("words", ["deploy --name {}", "delete --yes --name {}", "list"])
def test_stacks_need_more_than_a_dynamodb(ask: Ask, name: str, words: str) -> None:
    """What answers is no CloudFormation: that is said, with the command for a table alone."""
    result = ask(*words.format(name).split())
    assert (result.exit_code, result.stdout) == (3, "")
    assert "CloudFormation DescribeStacks is not offered at this endpoint" in result.stderr
    assert "zae-limiter table create" in result.stderr
    assert "XML" not in result.stderr


@pytest.mark.parametrize(
    "words", ["entity list", "entity create a", "check", "version", "upgrade", "table create", "table delete"]
)
def test_a_foreign_table_is_called_one(ask: Ask, foreign: str, words: str) -> None:
    """No command shows what DynamoDB says of keys that do not fit, and none writes anything."""
    result = ask(*words.split(), "--store", f"dynamodb://{foreign}?timeout_ms=60000")
    assert (result.exit_code, result.stdout) == (1, "")
    assert f"error: table '{foreign}' " in result.stderr
    assert "not keyed by PK and SK" in result.stderr
    assert "ValidationException" not in result.stderr


def test_the_status_of_a_foreign_table(ask: Ask, foreign: str) -> None:
    """It is red, and says why."""
    result = ask("status", "--name", foreign)
    assert result.exit_code == 1
    assert "not keyed by PK and SK" in " ".join(result.stdout.split())
    assert "ValidationException" not in result.stdout


@pytest.mark.parametrize("words", ["table create", "table delete --yes"])
def test_other_stores_have_no_table(run: Run, words: str) -> None:
    """They make what they need by themselves."""
    result = run(*words.split())
    assert result.exit_code == 2
    assert "has no table; name one of DynamoDB's with --name" in result.stderr


def test_the_table_of_a_stack_stays(run: Run) -> None:
    """It is not taken out from under its aggregator."""
    with deployed(StackOptions(enable_aggregator=False)) as stack:
        query = f"timeout_ms=60000&region={emulator.REGION}&endpoint_url={emulator.endpoint()}"
        result = run("table", "delete", "--yes", "--store", f"dynamodb://{stack}?{query}")
        assert result.exit_code == 1
        assert f"hint: zae-limiter delete --name {stack} deletes the stack" in result.stderr
        assert stack in emulator.client("dynamodb").list_tables()["TableNames"]
