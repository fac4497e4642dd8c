"""The command line, given any words on any store: an exit code and ``error:``, never a traceback.

Whatever a name or a record holds, nothing but text reaches the terminal.
"""

import json
import os
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result
from hypothesis import strategies as st

from tests.fuzz.damage import Damage, damages, stored_texts
from tests.fuzz.figures import cases
from tests.fuzz.files import in_file, overwrite, stored
from tests.fuzz.outcomes import patience
from tests.fuzz.tenants import HOME, LOST, template
from tests.fuzz.values import texts
from zae_limiter.cli.app import program
from zae_limiter.repository_protocol import Key

NOT_RUN = {
    "delete": "asks AWS",
    "demo": "takes its time",
    "deploy": "asks AWS",
    "list": "asks AWS",
    "local": "starts engines",
    "serve": "answers until it is told to end",
    "upgrade": "asks AWS",
}
USUAL: dict[str, list[str]] = {
    "cursor": list(template().cursors),
    "display_name": ["Name"],
    "end": ["2030-01-01", "0h"],
    "entity_id": ["user-1", "org-1", "nobody"],
    "file": ["limits.yaml", "-", "out.yaml", "", "x" * 300],
    "fold": ["sum", "max"],
    "identifier": ["user-1", "gpt-4"],
    "level": ["system", "resource", "entity"],
    "limit": ["1", "100"],
    "limits": [
        "rpm:60",
        "tpm:1000/sec:5000",
        '[{"name":"rpm","capacity":1,"refill_amount":1,"refill_period_seconds":1}]',
    ],
    "metadata": ['{"plan": "free"}', "[" * 9_999],
    "name": ["new", HOME],
    "names": ["new", "other"],
    "namespace": [HOME],
    "namespace_id": [template().ids[LOST], template().ids[HOME]],
    "on_unavailable": ["allow", "block"],
    "out": ["out.txt", ""],
    "output": ["json", "table"],
    "package": ["out.zip"],
    "parent_id": ["org-1"],
    "principal": ["admin"],
    "resource": ["gpt-4", "_default_"],
    "shell": ["bash", "zsh"],
    "start": ["7d", "2020-01-01T14:00Z"],
    "start_event_id": [template().event_id],
    "store": ["sqlite:///copy.db"],
    "window": ["hourly", "daily"],
    "windows": ["hourly"],
    "with_custom_limits": ["gpt-4"],
}
"""What one would write. A file is never named otherwise: the tests would make it."""

SAFE_ONLY = {"file", "out", "package", "store", "stack", "endpoint_url", "archive_bucket"}


def commands(group: click.Group, path: tuple[str, ...] = ()) -> dict[tuple[str, ...], click.Command]:
    found: dict[tuple[str, ...], click.Command] = {}
    for name, command in group.commands.items():
        if not path and name in NOT_RUN:
            continue
        if isinstance(command, click.Group):
            found |= commands(command, (*path, name))
        else:
            found[*path, name] = command
    return found


COMMANDS = commands(program)
words = texts.filter(lambda text: "\0" not in text)  # which the system does not let through


@st.composite
def lines(draw: st.DrawFn, hostile: bool = True) -> list[str]:
    """A command line that is right up to a point."""
    path = draw(st.sampled_from(sorted(COMMANDS)))
    line = [*path]
    for parameter in COMMANDS[path].params:
        name = parameter.name or ""
        if not (parameter.required or draw(st.integers(0, 3)) == 0) or name in (
            "help",
            "stack",
            "archive_bucket",
        ):
            continue
        usual = st.sampled_from(USUAL.get(name, ["1"]))
        value = draw(words if hostile and name not in SAFE_ONLY and draw(st.booleans()) else usual)
        if isinstance(parameter, click.Argument):
            line.append(value)
        elif parameter.is_flag:  # type: ignore[attr-defined]
            line.append(parameter.opts[0])
        else:
            line += [parameter.opts[0], value]
    return ended(line)


def ended(line: list[str]) -> list[str]:
    """A command line that comes to an end: these would follow the store for ever."""
    return [*line, "--once"] if line[:1] in (["aggregate"], ["watch"]) else line


jumbles = st.lists(
    st.one_of(st.sampled_from(sorted({word for path in COMMANDS for word in path})), words), max_size=6
).map(ended)


@pytest.fixture(autouse=True)
def _at_home(furnished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside the store, in its first namespace."""
    monkeypatch.chdir(furnished.parent)
    for variable in ("ZAEL_STACK", "FORCE_COLOR", "COLUMNS"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("ZAE_LIMITER_STORE", "sqlite:///copy.db")
    monkeypatch.setenv("ZAEL_NAMESPACE", HOME)
    for variable in ("HOME", "XDG_STATE_HOME"):
        monkeypatch.setenv(variable, os.getcwd())
    Path("limits.yaml").write_text("system: {limits: {rpm: {capacity: 5}}}\n")


def run(line: list[str]) -> Result:
    with patience():
        result = CliRunner(charset="utf-8").invoke(program, line)
    assert isinstance(result.exception, SystemExit | None), repr(result.exception)
    assert result.exit_code in range(6)
    assert "Traceback" not in result.output
    assert not [letter for letter in result.output if not (letter.isprintable() or letter == "\n")]
    if result.exit_code == 1 and line[:1] in (["status"], ["check"]) and result.stdout:
        assert not result.stderr, "what is wrong with a store is what they were asked"
    elif result.exit_code not in (0, 5) and not result.stderr.startswith("Usage:"):
        assert "error: " in result.stderr
    if (
        result.exit_code == 0
        and "json" in line
        and result.stdout
        and "--help" not in line
        and "-h" not in line
    ):
        json.loads(result.stdout)
    return result


def lasting(path: Path) -> dict[Key, str]:
    """What a store holds for ever; the rest has long expired, and goes when the store is next opened."""
    # The count of changes is a bare number.
    return {key: body for key, body in stored(path).items() if '"ttl":' not in body}


@cases("command line", 250, line=lines())
def test_command_lines_that_are_nearly_right(furnished: Path, line: list[str]) -> None:
    """What is refused has changed nothing."""
    with in_file(furnished) as (_, path):
        before = lasting(path)
        if run(line).exit_code in (1, 2, 3, 4):
            assert lasting(path) == before


@cases("command line", 150, line=jumbles)
def test_any_words(furnished: Path, line: list[str]) -> None:
    with in_file(furnished):
        if not NOT_RUN.keys() & {*line[:1]}:
            run(line)


@cases("command line", 100, damage=damages(), other=damages(), line=lines(hostile=False))
def test_command_lines_on_damaged_records(
    furnished: Path,
    damage: Damage,
    other: Damage,
    line: list[str],
) -> None:
    """What strangers wrote is shown as text or left out."""
    with in_file(furnished) as (_, path):
        for key, item in (damage, other):
            overwrite(path, key, json.dumps(item))
        run(line)


@cases("command line", 60, name=stored_texts.filter(lambda text: len(text) < 200), key=stored_texts)
def test_names_cannot_move_the_cursor(furnished: Path, name: str, key: str) -> None:
    """A name with escape sequences in it is shown, not obeyed."""
    with in_file(furnished) as (stage, _):
        stage.repository.create_entity("odd", name, metadata={key: name})
        for form in ("table", "json"):
            assert run(["entity", "show", "odd", "--output", form]).exit_code == 0
            assert run(["entity", "list", "--output", form]).exit_code == 0
