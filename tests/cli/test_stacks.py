"""Commands about stacks, on the emulator: what they do, what they say, and what they refuse."""

import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import fields
from io import StringIO
from pathlib import Path

import click
import pytest
import yaml
from click.testing import Result
from rich.console import Console

from tests.cli.conftest import STORE, Run
from tests.engines import emulator
from tests.infra.emulated import deployed, place, sync_manager
from tests.infra.scripted_aws import NO_STACK, ScriptedAws
from zae_limiter import StackOptions, SyncRateLimiter, SyncRepository
from zae_limiter.cli import deploy
from zae_limiter.cli.deploy import OPTIONS
from zae_limiter.cli.progress import Board
from zae_limiter.infra.lambda_builder import build
from zae_limiter.infra.stack import StackEvent
from zae_limiter.infra.template import template_text
from zae_limiter.version import client_version

SMALL = StackOptions(enable_aggregator=False)
Ask = Callable[..., Result]


@pytest.fixture
def ask(run: Run) -> Ask:
    """Run a command about a stack of the emulator."""
    where = [f"--region={emulator.REGION}", f"--endpoint-url={emulator.endpoint()}"]
    return lambda *words, answer="": run(*words, *where, answer=answer)


@pytest.fixture
def stack() -> Iterator[str]:
    """A small stack of the test's own."""
    with deployed(SMALL) as name:
        yield name


def test_deploying_twice_changes_nothing(ask: Ask) -> None:
    """The first time everything is made, the second time everything is there."""
    name = emulator.fresh_name()
    first = ask("deploy", "--name", name, "--no-aggregator", "-N", "team-a")
    assert (first.exit_code, first.stdout) == (0, "")
    assert "create complete  Table (AWS::DynamoDB::Table)\n" in first.stderr
    assert (
        f"deployed stack '{name}' in {emulator.REGION}; see zae-limiter status --name {name}" in first.stderr
    )
    again = ask("deploy", "--name", name)
    assert (again.exit_code, again.stdout) == (0, "")
    assert again.stderr == f"stack '{name}' in {emulator.REGION} is up to date\n"
    with SyncRepository.connect("team-a", stack=name, **place()) as repository:
        assert repository.get_version_record() is not None
    assert ask("delete", "--name", name, "--yes").exit_code == 0


def test_a_deployment_as_json(ask: Ask, stack: str) -> None:
    """Data on standard output, everything else beside it."""
    result = ask("deploy", "--name", stack, "--tag", "team=a", "--output", "json")
    data = json.loads(result.stdout)
    assert (data["stack_name"], data["stack_status"]) == (stack, "UPDATE_COMPLETE")
    assert (data["is_new"], data["is_finished"], data["code_updated"]) == (False, True, False)
    assert {
        "action": "Modify",
        "resource": "Table",
        "kind": "AWS::DynamoDB::Table",
        "replaces": False,
    } in data["changes"]
    assert "modify Table (AWS::DynamoDB::Table)\n" in result.stderr


def test_a_stack_may_be_named_by_the_environment(
    ask: Ask, stack: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As for all other commands."""
    monkeypatch.setenv("ZAEL_STACK", stack)
    assert ask("deploy").exit_code == 0
    monkeypatch.delenv("ZAE_LIMITER_STORE")
    assert ask("check").exit_code == 0


def test_whoever_replaces_something_is_asked(ask: Ask, stack: str) -> None:
    """An update that would destroy is shown, and changes nothing unless somebody agrees."""
    words = ("deploy", "--name", stack, "--policy-name-format", "team-{}")
    for answer, said in (("n\n", "nothing was changed"), ("", "nobody answered, so nothing was changed")):
        result = ask(*words, answer=answer)
        assert result.exit_code == 1
        assert "AcquirePolicy" in result.stderr
        assert "would be lost or made anew. Go ahead? [y/N]" in result.stderr
        assert f"error: {said}\n" in result.stderr
    with sync_manager(stack) as manager:
        assert manager.ours().parameters["PolicyNamePrefix"] == ""
        assert ask(*words, "--yes").exit_code == 0
        assert manager.ours().parameters["PolicyNamePrefix"] == "team-"


def test_nobody_has_to_wait(ask: Ask) -> None:
    """The command says what is left to do, and the same command does it."""
    name = emulator.fresh_name()
    begun = ask("deploy", "--name", name, "--no-wait")
    assert begun.exit_code == 0
    assert (
        "its function gets its code when this command is repeated: zae-limiter deploy --name" in begun.stderr
    )
    with sync_manager(name) as manager:
        manager.ensure()  # waits for it
        ended = ask("deploy", "--name", name)
        assert ended.exit_code == 0
        assert f"updated stack '{name}'" in ended.stderr
        assert ask("delete", "--name", name, "--yes", "--no-wait").stderr == f"deleting stack '{name}'\n"


@pytest.mark.parametrize("words", ["status", "check", "version", "delete --yes"])
def test_a_typo_makes_nothing(ask: Ask, stack: str, words: str) -> None:
    """It is not found, and the name that was meant is offered."""
    result = ask(*words.split(), "--name", f"{stack}x")
    assert (result.exit_code, result.stdout) == (4, "")
    assert result.stderr == (
        f"error: stack '{stack}x' does not exist in this region and account\nhint: did you mean '{stack}'?\n"
    )
    assert f"{stack}x" not in emulator.client("dynamodb").list_tables()["TableNames"]


def test_a_stack_of_somebody_else_is_refused(ask: Ask) -> None:
    """Neither deployed over nor deleted."""
    name, cloudformation = emulator.fresh_name(), emulator.client("cloudformation")
    cloudformation.create_stack(StackName=name, TemplateBody="Resources: {Q: {Type: AWS::SQS::Queue}}")
    cloudformation.get_waiter("stack_create_complete").wait(StackName=name, WaiterConfig={"Delay": 1})
    for words in (("deploy",), ("delete", "--yes")):
        result = ask(*words, "--name", name)
        assert (result.exit_code, result.stdout) == (3, "")
        assert "is not one of zae-limiter's: it has no tag ManagedBy=zae-limiter" in result.stderr
    assert ask("list", "--output", "json").stdout == "[]\n" or name not in ask("list").stdout
    cloudformation.delete_stack(StackName=name)


def test_a_deletion_is_asked_about_by_name(ask: Ask, stack: str) -> None:
    """With what goes and what stays; whoever says no keeps everything."""
    result = ask("delete", "--name", stack, answer="n\n")
    assert result.exit_code == 1
    assert f"Delete stack '{stack}' in {emulator.REGION}, with 6 of its resources?" in result.stderr
    assert f"What stays, with its data: table '{stack}'. [y/N]: n\n" in result.stderr
    with sync_manager(stack) as manager:
        assert manager.describe() is not None
    gone = ask("delete", "--name", stack, "--output", "json", answer="y\n")
    assert json.loads(gone.stdout) == {
        "stack_name": stack,
        "is_finished": True,
        "kept": [{"kind": "AWS::DynamoDB::Table", "name": stack}],
    }


def test_a_protected_stack_is_not_deleted(ask: Ask, stack: str) -> None:
    """Not even by --yes, and nobody is asked in vain; the command in the message lifts the protection."""
    assert ask("deploy", "--name", stack, "--enable-deletion-protection").exit_code == 0
    for words in (("--yes",), ()):
        result = ask("delete", "--name", stack, *words)
        assert result.exit_code == 3
        assert result.stderr.endswith(f"zae-limiter deploy --name {stack} --no-deletion-protection\n")
    assert ask("deploy", "--name", stack, "--no-deletion-protection").exit_code == 0
    assert ask("delete", "--name", stack, "--yes").exit_code == 0


def test_an_interruption_says_that_cloudformation_goes_on(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """And how to look after it."""

    def interrupted(*_: object) -> dict[str, object]:
        raise KeyboardInterrupt

    aws = ScriptedAws(DescribeStacks=[NO_STACK, NO_STACK, interrupted])
    monkeypatch.setattr(deploy.StackSession, "manager", aws.manager)
    result = run("deploy", "--name", "limits", "--region", "eu-west-1")
    assert result.exit_code == 130
    assert result.stderr == (
        "error: interrupted; CloudFormation goes on with what it has begun\n"
        "hint: zae-limiter status --name limits --region eu-west-1\n"
    )


def test_status_of_a_stack(ask: Ask) -> None:
    """A line for each part; red is an exit code of 1."""
    with deployed() as name:
        well = ask("status", "--name", name)
        assert well.exit_code == 0
        assert "mapping        green    Enabled" in well.stdout
        data = json.loads(ask("status", "--name", name, "--output", "json").stdout)
        assert (data["available"], data["stack_status"], data["namespace"]) == (
            True,
            "CREATE_COMPLETE",
            "default",
        )
        assert data["latency_ms"] > 0
        assert data["lambda_version"] == data["client_version"]
        assert {check["part"] for check in data["checks"]} >= {"stack", "table", "function", "alarms"}
        emulator.client("lambda").delete_function(FunctionName=f"{name}-aggregator")
        ill = ask("status", "--name", name)
        assert ill.exit_code == 1
        assert "function       red      it does not exist" in ill.stdout


def test_the_list_shows_what_is_deployed(ask: Ask, stack: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each with its versions."""
    monkeypatch.setenv("COLUMNS", "200")  # other tests' stacks may have long names
    shown = ask("list").stdout.splitlines()
    assert shown[0].split() == ["stack", "status", "version", "lambda", "schema", "changed"]
    assert [stack, "CREATE_COMPLETE", client_version()] in [line.split()[:3] for line in shown]
    (mine,) = [
        one for one in json.loads(ask("list", "--output", "json").stdout) if one["stack_name"] == stack
    ]
    assert (mine["stack_status"], mine["region"]) == ("CREATE_COMPLETE", emulator.REGION)


@pytest.mark.parametrize("record", [{"schema_version": "9.0.0"}, {"client_min_version": "9.0.0"}])
def test_a_store_that_does_not_fit(run: Run, limiter: SyncRateLimiter, record: dict[str, str]) -> None:
    """Checking says why and exits with 1, and so does the status; both only look."""
    assert run("check").exit_code == 0
    limiter.repository.set_version_record(**record)
    checked = run("check", "--output", "json")
    assert checked.exit_code == 1
    verdict = json.loads(checked.stdout)
    assert (verdict["is_compatible"], verdict["stored"]["updated_by"]) == (False, None)
    assert verdict["message"].endswith("install a newer zae-limiter")
    assert "newer zae-limiter" in run("check").stdout
    status = run("status")
    assert status.exit_code == 1
    assert "versions   red" in status.stdout


def test_embedded_stores_have_a_status(run: Run, limiter: SyncRateLimiter) -> None:
    """It answers, and its versions fit; there is nothing around it."""
    assert limiter.repository.store == STORE
    data = json.loads(run("status", "--output", "json").stdout)
    assert (data["health"], data["available"], data["stack_status"]) == ("green", True, None)
    assert [check["part"] for check in data["checks"]] == ["store", "versions"]
    assert run("status", "--store", "memory://").exit_code == 0


def test_looking_makes_no_file(run: Run, tmp_path: Path) -> None:
    """A typo in a path is not found."""
    for words in ("status", "check", "version"):
        assert run(words, "--store", "sqlite:///typo.db").exit_code == 4
    assert list(tmp_path.glob("**/*.db*")) == []


def test_versions_of_a_store(run: Run, limiter: SyncRateLimiter) -> None:
    """Only if it is named: without that nothing is opened."""
    assert "stored" not in run("version").stdout
    limiter.repository.set_version_record(lambda_version="0.0.9", updated_by="me")
    assert "stored lambda  0.0.9" in run("version", "--store", STORE).stdout
    data = json.loads(run("version", "--store", STORE, "--output", "json").stdout)
    assert data["stored"]["updated_by"] == "me"
    assert "stored  nothing" in run("version", "--store", "memory://").stdout


def test_the_template_is_printed_or_written(run: Run, tmp_path: Path) -> None:
    """As it is deployed."""
    assert run("cfn-template").stdout == template_text()
    assert json.loads(run("cfn-template", "--json").stdout) == {"template": template_text()}
    written = run("cfn-template", "-o", "template.yaml")
    assert (written.stdout, written.stderr) == ("", "wrote 'template.yaml'\n")
    assert (tmp_path / "template.yaml").read_text() == template_text()


def test_the_package_is_written(run: Run, tmp_path: Path) -> None:
    """As it is uploaded; asking for information writes nothing."""
    about = json.loads(run("lambda-export", "--info", "--json").stdout)
    assert (about["file"], list(tmp_path.glob("*.zip"))) == (None, [])
    assert run("lambda-export").exit_code == 0
    assert run("lambda-export", "-o", "mine.zip", "--json").exit_code == 0
    for name in ("lambda.zip", "mine.zip"):
        assert (tmp_path / name).stat().st_size == about["bytes"]
        with zipfile.ZipFile(tmp_path / name) as package:
            assert len(package.namelist()) == about["files"]
    assert (tmp_path / "mine.zip").read_bytes() == build()


@pytest.mark.parametrize("shell", ["bash", "fish", "zsh"])
def test_a_shell_can_complete(run: Run, shell: str) -> None:
    """The script asks the program, and the program knows its commands and options."""
    script = run("completion", shell)
    assert (script.exit_code, script.stderr) == (0, "")
    assert "_ZAE_LIMITER_COMPLETE" in script.stdout
    assert json.loads(run("completion", shell, "--output", "json").stdout)["shell"] == shell
    environment = {
        "_ZAE_LIMITER_COMPLETE": f"{shell}_complete",
        "COMP_WORDS": "zae-limiter dep",
        "COMP_CWORD": "1",
    }
    if shell == "fish":
        environment["COMP_CWORD"] = "dep"
    answer = subprocess.run(
        [sys.executable, "-m", "zae_limiter.cli"],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "deploy" in answer.stdout


class Reader(yaml.SafeLoader):
    """Reads CloudFormation's short forms as nothing in particular."""


Reader.add_multi_constructor("!", lambda *_: None)


def test_every_option_of_a_stack_is_a_flag() -> None:
    """What can be said in Python can be said on the command line."""
    flags = {decorate(lambda: None).__click_params__[0].name for decorate in OPTIONS}
    assert {field.name for field in fields(StackOptions)} - flags == set()


def test_the_help_tells_the_defaults_of_the_template() -> None:
    """So that nobody has to read it."""
    parameters = yaml.load(template_text(), Reader)["Parameters"]
    for decorate in OPTIONS:
        (option,) = decorate(lambda: None).__click_params__
        assert isinstance(option, click.Option)
        said = (option.help or "").partition("[default: ")[2].rstrip("]")
        parameter = "".join(word.title() for word in str(option.name).split("_"))
        default = str(parameters.get(parameter, {}).get("Default", ""))
        if option.is_bool_flag:
            assert said == ({"true": option.opts[0][2:].partition("-")[0], "false": "no"}[default]), (
                option.name
            )
        elif said and parameter in parameters:
            assert said.replace(", ", ",") == default, option.name


def test_a_terminal_sees_a_table_that_moves() -> None:
    """Each resource once, as it is by then; and in the end it is wiped away."""
    screen = StringIO()
    console = Console(file=screen, force_terminal=True, width=100)
    with Board(console) as board:
        assert screen.getvalue() == "", "nothing is drawn before there is something"
        for status in ("CREATE_IN_PROGRESS", "CREATE_COMPLETE"):
            board.show(StackEvent("1", "", "Table", "AWS::DynamoDB::Table", status))
        board.show(StackEvent("2", "", "Role", "AWS::IAM::Role", "CREATE_FAILED", "no"))
        board.show(StackEvent("3", "", "limits", "AWS::CloudFormation::Stack", "CREATE_IN_PROGRESS"))
        assert board.table().row_count == 2
    drawn = screen.getvalue()
    assert "create complete" in drawn
    assert "create failed" in drawn


def test_a_deployment_remembers_what_is_not_the_stacks(ask: Ask, stack: str) -> None:
    """The policy for outages and automatic updates are stored at the system's level; limits stay."""
    words = ("--on-unavailable", "allow", "--auto-update", "--audit-retention-days", "7")
    result = ask("deploy", "--name", stack, *words)
    assert result.exit_code == 0
    assert "audit_retention_days=7" in result.stderr
    with SyncRepository.connect(stack=stack, **place()) as repository:
        stored = repository.get_config("system")
        assert stored is not None
        assert (stored.on_unavailable, stored.auto_update) == ("allow", True)
        assert ask("deploy", "--name", stack).exit_code == 0
        assert repository.get_config("system") == stored
