"""Telling pages of help and typical errors, byte for byte.

``UPDATE_SNAPSHOTS=1 pytest tests/cli/test_snapshots.py`` writes the files anew; read the difference
before you commit it.
"""

import gc
import os
import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from tests.cli.conftest import Run
from zae_limiter.cli.app import program

SNAPSHOTS = Path(__file__).parent / "snapshots"
UPDATE = bool(os.environ.get("UPDATE_SNAPSHOTS"))

ERRORS = {
    "no-command": "entity",
    "unknown-command": "entity creat",
    "unknown-option": "entity list --frobnicate",
    "missing-argument": "entity create",
    "missing-limit": "entity set-limits user-1",
    "stray-limit": "resource set-defaults gpt-4 rpm:60",
    "stray-limits": "entity set-limits user-1 gpt-4 rpm:60/min tpm:10k",
    "stray-parent": "entity create user-1 team",
    "stray-file": "limits plan limits.yaml",
    "stray-entity": "usage list user-1",
    "stray-name": "deploy limits",
    "stray-nothing": "explain user-1 gpt-4 rpm",
    "option-first": "--store sqlite:///limits.db entity list",
    "option-second": "entity --json list",
    "limit-grammar": "entity set-limits user-1 -l rpm",
    "limit-unit": "entity set-limits user-1 -l rpm:60/fortnight",
    "limit-twice": "entity set-limits user-1 -l rpm:60 -l rpm:70",
    "bad-entity-id": "entity show user#1",
    "bad-resource": "resource get-defaults gpt#4",
    "bad-namespace": "entity list -N _",
    "bad-page": "entity list --limit 0",
    "bad-cursor": "entity list --cursor zz",
    "bad-output": "entity list --output yaml",
    "bad-metadata": "entity create user-1 --metadata [1]",
    "broken-metadata": "entity create user-1 --metadata {",
    "bad-principal": "entity create user-1 --principal a#b",
    "cascade-without-parent": "entity create user-1 --cascade",
    "missing-parent": "entity create user-1 --parent nobody",
    "entity-exists": "entity create taken",
    "entity-not-found": "entity show nobody",
    "entity-with-children": "entity delete taken --yes",
    "delete-nothing": "entity delete nobody --yes",
    "list-contradiction": "entity list --parent a --with-custom-limits b",
    "namespace-not-found": "namespace show acme",
    "namespace-named": "entity list -N acme",
    "namespace-id-unknown": "namespace recover no-such-id",
    "namespace-purge-unknown": "namespace purge no-such-id --yes",
    "config-not-found": "config get --level entity --identifier user-1 --resource gpt-4",
    "config-level": "config get --level galaxy",
    "config-no-identifier": "config get --level entity",
    "config-no-resource": "config get --level resource",
    "config-system-extra": "config get --level system --resource gpt-4",
    "config-json": "config set --level system --limits {}",
    "audit-nothing": "audit list",
    "audit-two": "audit list --system --resource gpt-4",
    "limits-no-file": "limits plan -f nowhere.yaml",
    "limits-directory": "limits plan -f .",
    "limits-mistakes": "limits apply -f wrong.yaml --yes",
    "limits-namespace": "limits plan -f acme.yaml",
    "limits-contradiction": "limits diff -f acme.yaml -N globex",
    "limits-unconfirmed": "limits apply -f empty.yaml",
    "limits-unwritable": "limits export -f nowhere/limits.yaml",
    "limits-principal": "limits apply -f limits.yaml --principal a#b",
    "limits-template-unwritable": "limits cfn-template -f limits.yaml -o nowhere/t.yaml",
    "limits-template-mistakes": "limits cfn-template -f wrong.yaml",
    "usage-nobody": "usage list",
    "usage-summary-nobody": "usage summary",
    "usage-window": "usage list -e user-1 --window weekly",
    "usage-time": "usage list -e user-1 --start yesterday",
    "usage-backwards": "usage summary -e user-1 --start 2024-01-02 --end 2024-01-01",
    "usage-cursor": "usage list -e user-1 --cursor zz",
    "usage-entity": "usage list -e user#1",
    "usage-plot-json": "usage list -e user-1 --plot --output json",
    "usage-plot-cursor": "usage list -e user-1 --plot --cursor zz",
    "deploy-nameless": "deploy",
    "deploy-bad-name": "deploy --name my_stack",
    "deploy-bad-option": "deploy --name limits --lambda-memory 5",
    "deploy-bad-tag": "deploy --name limits --tag team",
    "deploy-bad-namespace": "deploy --name limits -N _",
    "deploy-contradiction": "deploy --name limits --no-iam",
    "deploy-timeout": "deploy --name limits --timeout 0",
    "deploy-no-region": "deploy --name limits",
    "delete-nameless": "delete",
    "list-no-region": "list",
    "status-no-file": "status --store sqlite:///nowhere.db",
    "check-no-file": "check --store sqlite:///nowhere.db",
    "version-no-file": "version --store sqlite:///nowhere.db",
    "template-unwritable": "cfn-template -o nowhere/template.yaml",
    "package-unwritable": "lambda-export -o nowhere/package.zip",
    "completion-shell": "completion tcsh",
    "upgrade-no-file": "upgrade --store sqlite:///nowhere.db",
    "upgrade-namespace": "upgrade --namespace acme",
    "upgrade-lambda-file": "upgrade --lambda-only",
    "local-not-running": "local env",
    "local-bad-table": "local env --table my_table",
    "local-no-log": "local logs",
    "local-logs-json": "local logs --follow --output json",
    "local-engine": "local up --engine localhost",
    "local-port": "local up --port 0",
    "store-and-name": "entity list --store memory:// --name table",
    "region-alone": "entity list --store memory:// --region eu-west-1",
    "endpoint-alone": "entity list --store memory:// --endpoint-url http://localhost",
    "bad-store": "entity list --store limits.db",
    "unknown-store": "entity list --store mysql://x",
    "store-directory": "entity list --store sqlite:///nowhere/limits.db",
    "store-no-directory": "entity create user-1 --store sqlite:///nowhere/limits.db",
    "name-no-region": "entity list --name limits",
    "store-no-database": "entity list --store sqlite:///text.db",
    "bad-stack-name": "entity list --name my_table",
    "unconfirmed": "entity delete taken-child",
}

HELP = {
    "": "the program itself",
    "entity": "a group",
    "entity create": "--name is the table here too, and the entity's name is --display-name",
    "entity set-limits": "how limits are written",
    "deploy": "options of a stack, none with a default of its own",
    "limits cfn-template": "--output is a file, and --json the only way to JSON",
    "local env": "lines of a shell stay as they are",
    "serve": "a command that has commands of its own",
    "upgrade": "all that is promised about records",
    "usage list": "two ways to spell an option, and a default that depends on another",
}
"""Of which commands help is compared, and what there is to see."""

WITHOUT_STORE = {
    "copy",
    "cfn-template",
    "completion",
    "delete",
    "demo",
    "deploy",
    "lambda-export",
    "limits cfn-template",
    "list",
    "local down",
    "local env",
    "local logs",
    "serve token",
    "local status",
    "local up",
    "metrics alerts",
    "metrics dashboard",
    "metrics list",
}

MANIFESTS = {
    "limits.yaml": "resources: {gpt-4: {limits: {rpm: {capacity: 60}}}}\n",
    "wrong.yaml": "resources:\n  gpt-4:\n    limit: {rpm: {capacity: 60}}\nsytem: {}\n",
    "acme.yaml": "namespace: acme\n",
    "empty.yaml": "{}\n",
}


def commands(command: click.Command = program, *words: str) -> Iterator[tuple[str, ...]]:
    """The words that lead to each command and group."""
    yield words
    if isinstance(command, click.Group):
        for name, one in sorted(command.commands.items()):
            if not one.hidden:
                yield from commands(one, *words, name)


def command_of(words: tuple[str, ...]) -> click.Command:
    command: click.Command = program
    for word in words:
        assert isinstance(command, click.Group)
        command = command.commands[word]
    return command


def file_name(words: tuple[str, ...]) -> str:
    return f"help-{'-'.join(words) or 'zae-limiter'}.txt"


def compare(name: str, text: str) -> None:
    file = SNAPSHOTS / name
    if UPDATE:
        file.write_bytes(text.encode())
    assert file.exists(), "UPDATE_SNAPSHOTS=1 makes a new snapshot"
    assert text == file.read_bytes().decode()


@pytest.mark.parametrize("words", list(commands()), ids=" ".join)
def test_help(run: Run, words: tuple[str, ...]) -> None:
    """Help goes to standard output, begins with a sentence, and says something of every option."""
    gc.collect()  # what other tests have left behind would say so in the middle of this one
    result = run(*words, "--help")
    assert (result.exit_code, result.stderr) == (0, "")
    again = run(*words, "-h")
    assert (again.exit_code, again.stderr, again.stdout) == (0, "", result.stdout)
    usage, _, sentence, *_ = result.stdout.splitlines()
    assert usage.startswith(f"Usage: {' '.join(('zae-limiter', *words))} ")
    assert re.match(r"  [A-Z][a-z]* ", sentence)
    options = [one for one in command_of(words).params if isinstance(one, click.Option) and not one.hidden]
    assert all(option.help for option in options)
    if " ".join(words) in HELP:
        compare(file_name(words), result.stdout)


@pytest.mark.parametrize("name", ERRORS)
def test_error(run: Run, name: str, tmp_path: Path) -> None:
    """An error says what is wrong, on standard error, and which way leads out."""
    (tmp_path / "text.db").write_text("This is a plain text and no database at all.\n" * 20)
    for file, text in MANIFESTS.items():
        (tmp_path / file).write_text(text)
    assert run("limits", "apply", "-f", "limits.yaml").exit_code == 0
    assert run("entity", "create", "taken").exit_code == 0
    assert run("entity", "create", "taken-child", "--parent", "taken").exit_code == 0
    result = run(*ERRORS[name].split())
    assert result.exit_code in {1, 2, 3, 4}
    assert result.stdout == ""
    said = result.stderr.replace(str(tmp_path), "DIRECTORY")
    compare(f"error-{name}.txt", f"$ zae-limiter {ERRORS[name]}\n{said}exit code {result.exit_code}\n")


def test_no_snapshot_is_left_over() -> None:
    """A file that nothing is compared with is removed."""
    expected = {file_name(tuple(path.split())) for path in HELP} | {f"error-{name}.txt" for name in ERRORS}
    assert {file.name for file in SNAPSHOTS.iterdir()} == expected


def test_every_command_that_reads_or_writes_data_can_say_it_in_json() -> None:
    """There is no command without --json, and none but those without a store lack --store."""
    for words in commands():
        command = command_of(words)
        if not isinstance(command, click.Group):
            options = {option for parameter in command.params for option in parameter.opts}
            assert {"--json", "--output"} <= options
            assert ("--store" in options) == (" ".join(words) not in WITHOUT_STORE)
