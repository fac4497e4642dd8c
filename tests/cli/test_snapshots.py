"""The help of every command and typical errors, byte for byte.

``UPDATE_SNAPSHOTS=1 pytest tests/cli/test_snapshots.py`` writes the files anew; read the difference
before you commit it.
"""

import os
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
    "limit-grammar": "entity set-limits user-1 -l rpm",
    "limit-unit": "entity set-limits user-1 -l rpm:60/week",
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
    "store-and-name": "entity list --store memory:// --name table",
    "region-alone": "entity list --store memory:// --region eu-west-1",
    "endpoint-alone": "entity list --store memory:// --endpoint-url http://localhost",
    "bad-store": "entity list --store limits.db",
    "unknown-store": "entity list --store mysql://x",
    "store-directory": "entity list --store sqlite:///nowhere/limits.db",
    "store-no-database": "entity list --store sqlite:///text.db",
    "bad-stack-name": "entity list --name my_table",
    "unconfirmed": "entity delete taken-child",
}


def commands(command: click.Command = program, *words: str) -> Iterator[tuple[str, ...]]:
    """The words that lead to each command and group."""
    yield words
    if isinstance(command, click.Group):
        for name, one in sorted(command.commands.items()):
            yield from commands(one, *words, name)


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
    """Help goes to standard output and is what it was."""
    result = run(*words, "--help")
    assert (result.exit_code, result.stderr) == (0, "")
    assert run(*words, "-h").stdout == result.stdout
    compare(file_name(words), result.stdout)


@pytest.mark.parametrize("name", ERRORS)
def test_error(run: Run, name: str, tmp_path: Path) -> None:
    """An error says what is wrong, on standard error, and which way leads out."""
    (tmp_path / "text.db").write_text("This is a plain text and no database at all.\n" * 20)
    assert run("entity", "create", "taken").exit_code == 0
    assert run("entity", "create", "taken-child", "--parent", "taken").exit_code == 0
    result = run(*ERRORS[name].split())
    assert result.exit_code in {1, 2, 4}
    assert result.stdout == ""
    said = result.stderr.replace(str(tmp_path), "DIRECTORY")
    compare(f"error-{name}.txt", f"$ zae-limiter {ERRORS[name]}\n{said}exit code {result.exit_code}\n")


def test_no_snapshot_is_left_over() -> None:
    """A file that nothing is compared with is removed."""
    expected = {file_name(words) for words in commands()} | {f"error-{name}.txt" for name in ERRORS}
    assert {file.name for file in SNAPSHOTS.iterdir()} == expected


def test_every_command_that_reads_or_writes_data_can_say_it_in_json() -> None:
    """There is no command without --output, and none but those without a store lack --store."""
    for words in commands():
        command: click.Command = program
        for word in words:
            assert isinstance(command, click.Group)
            command = command.commands[word]
        if not isinstance(command, click.Group):
            options = {option for parameter in command.params for option in parameter.opts}
            assert "--output" in options
            assert ("--store" in options) == (words not in {("demo",), ("version",)})
