"""What people write who know other programs, and what they are led to."""

from shlex import split

import pytest

from tests.cli.conftest import Run
from tests.cli.test_commands import data_of, done
from tests.cli.test_guards import scripted
from tests.infra.scripted_aws import NO_STACK
from zae_limiter.backends.dynamodb.transport import ServiceError

LED = {
    "audit list -e $SYSTEM": "error: changes of the defaults of the system are listed by --system",
    "audit list -e $RESOURCE:gpt-4": (
        "error: changes of the defaults of a resource are listed by --resource gpt-4"
    ),
    "entity list -o json": "hint: did you mean: --json",
    "limits apply --dry-run": "hint: what it would change: zae-limiter limits plan",
    "entity creat": "hint: did you mean: zae-limiter entity create",
    "namespace create acme": "hint: did you mean: zae-limiter namespace register",
    "entity xyzzy": "hint: zae-limiter entity --help",
}


@pytest.mark.parametrize("words", LED)
def test_hints_lead_to_what_is_there(run: Run, words: str) -> None:
    """Not to what is gone, and not to nothing."""
    result = run(*split(words))
    assert (result.exit_code, result.stdout) == (2, "")
    assert LED[words] in result.stderr.splitlines()


def test_limits_for_one_resource_are_not_denied(run: Run) -> None:
    """Whoever asks for those for all is told which there are."""
    for name in ("gpt-4", "a b"):
        done(run, "entity", "set-limits", "u", "-r", name, "-l", "rpm:60")
    result = run("entity", "get-limits", "u")
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr == (
        "'u' itself has no limits for all resources; it has some for: a b (-r 'a b'), gpt-4 (-r gpt-4)\n"
    )
    assert data_of(run, "entity", "get-limits", "u") == []
    for name in ("gpt-4", "a b"):
        done(run, "entity", "delete-limits", "u", "-r", name, "--yes")
    assert run("entity", "get-limits", "u").stderr.startswith("'u' itself has no limits; set some: ")


def test_who_writes_where_nobody_said_is_told_where(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once, on standard error; whoever named a store, or only looks, knows or does not care."""
    assert "store: " not in done(run, "entity", "create", "u")
    monkeypatch.delenv("ZAE_LIMITER_STORE")
    made = done(run, "entity", "create", "u").splitlines()
    assert made[0].startswith("store: sqlite:///")
    assert made[0].endswith("/state/zae-limiter/limits.db")
    assert made[1:] == ["created entity 'u'"]
    assert run("entity", "show", "u").stderr == ""
    assert "store: " not in done(run, "entity", "create", "v", "--store", "sqlite:///limits.db")


def test_a_stack_that_is_missing_can_be_deployed(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where none of a like name is there."""
    no_table = ServiceError("ResourceNotFoundException", "Requested resource not found")
    scripted(monkeypatch, DescribeStacks=NO_STACK, DescribeTable=no_table)
    result = run("status", "--name", "limits", "--region", "eu-west-1")
    assert (result.exit_code, result.stdout) == (4, "")
    assert result.stderr == (
        "error: stack 'limits' does not exist in this region and account\n"
        "hint: zae-limiter deploy --name limits\n"
    )
