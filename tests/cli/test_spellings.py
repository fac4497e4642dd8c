"""Commands as people wrote them for earlier versions: understood, or refused with what there is instead.

``established.txt`` lists what there was.
"""

import subprocess
from pathlib import Path
from typing import NamedTuple

import click
import pytest
from click.testing import Result

from tests.cli.conftest import Run
from tests.cli.test_commands import data_of, done
from zae_limiter.builder import RepositoryOptions
from zae_limiter.cli.app import program
from zae_limiter.cli.spellings import (
    GONE,
    GONE_COMMANDS,
    MOVED,
    NEEDLESS,
    RENAMED,
    Former,
    GoneCommand,
)

TABLE = Path(__file__).parent / "established.txt"

ELSEWHERE = {"store", "stack", "timeout_ms", "session", "config", "world", "stack_options", "remembered_max"}
"""What a builder is told that is no option of a deployment: its name, its whole, and objects of Python."""


class Line(NamedTuple):
    since: str
    command: str
    option: str

    @property
    def names(self) -> list[str]:
        """Every way to write the option."""
        words = self.option.replace(",", " ").replace(" / ", " ").split()
        return [word for word in words if word.startswith("-")]

    @property
    def takes_value(self) -> bool:
        return not self.option.split()[-1].startswith("-")


def established() -> list[Line]:
    rows = [line for line in TABLE.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    return [Line(*(cell.strip() for cell in row.split("|", 2))) for row in rows]


def found(path: str) -> click.Command:
    """The command of these words, or the gone one on the way to it."""
    command: click.Command = program
    for word in path.strip("-").split():
        if isinstance(command, click.Group):
            command = command.commands[word]
    return command


def option_of(command: click.Command, name: str) -> click.Option | None:
    for option in command.params:
        if isinstance(option, click.Option) and name in (*option.opts, *option.secondary_opts):
            return option
    return None


@pytest.mark.parametrize("line", established(), ids=lambda line: f"{line.command} {line.option}")
def test_what_was_written_is_understood_or_refused_with_a_way_out(run: Run, line: Line) -> None:
    """No option of an earlier version is met with a mere "no such option"."""
    command = found(line.command)
    if isinstance(command, GoneCommand):
        refused(run(*line.command.split(), *line.names[:1]))
        return
    if not line.names:
        wanted = [word for word in line.option.split() if word.isupper() or "..." in word]
        assert len([one for one in command.params if isinstance(one, click.Argument)]) >= len(wanted)
        return
    for name in line.names:
        option = option_of(command, name)
        assert option is not None, f"{line.command} {name} is not known"
        assert option.is_flag != line.takes_value, "it takes a value where it took one"
        if isinstance(option, Former) and option.is_refused:
            refused(run(*line.command.split(), name, *["x"] * line.takes_value))


def refused(result: Result) -> None:
    assert (result.exit_code, result.stdout) == (2, "")
    assert " is gone: " in result.stderr or "\nhint: zae-limiter " in result.stderr


def test_no_spelling_is_kept_that_nobody_wrote() -> None:
    """Every former option is in the table, or is an option of the builder."""
    known = {(line.command, name) for line in established() for name in line.names}
    kept = {
        (path, old.split()[0]) for table in (RENAMED, NEEDLESS, GONE) for path in table for old in table[path]
    }
    assert kept - known == {("deploy", "--config-cache-ttl"), ("deploy", "--bucket-ttl-multiplier")}
    commands = {line.command for line in established()} | {"loadtest"}
    assert GONE_COMMANDS.keys() | MOVED.keys() <= commands


@pytest.mark.parametrize(
    ("words", "now"),
    [
        ("entity disable key-1", "disable --entity key-1 --reason …"),
        ("entity disable key-1 --resource gpt-4", "disable --entity key-1 --resource gpt-4 --reason …"),
        ("entity disable key-1 --reason unpaid", "disable --entity key-1 --reason unpaid"),
        ("resource disable gpt-4 -N acme", "disable --resource gpt-4 -N acme --reason …"),
        ("entity disable", "disable --entity ID --reason …"),
        ("entity disable --resource gpt-4 key-1", "disable --entity ID --reason …"),
        ("entity bypass key-1", "bypass --entity key-1"),
        ("entity enable key-1", "enable --entity key-1 --overrule"),
        ("resource clear-disabled gpt-4", "enable --resource gpt-4"),
    ],
)
def test_a_verb_of_switches_leads_to_the_one_that_there_is(run: Run, words: str, now: str) -> None:
    """What was given is written where it belongs; nothing is done."""
    result = run(*words.split())
    old, new = " ".join(words.split()[:2]), now.split(maxsplit=1)[0]
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == f"error: `{old}` is now `{new}`\nhint: zae-limiter {now}\n"


def test_every_option_of_the_builder_is_one_of_deploy() -> None:
    """What can be said in Python can be said to ``deploy``, or it is told where it is said."""
    said = {name for name in vars(RepositoryOptions) if not name.startswith("_")} - {"settings", "deployment"}
    names = {"tags": "--tag", "role_principals": "--role-principal"}
    flags = {names.get(one, f"--{one.replace('_', '-')}") for one in said - ELSEWHERE}
    assert {flag for flag in flags if option_of(found("deploy"), flag) is None} == set()


def test_a_former_name_does_what_the_new_one_does(run: Run) -> None:
    """The value arrives, and standard error says how it is written now."""
    done(run, "entity", "create", "x")
    done(run, "entity", "delete", "x", "--yes")
    result = run("audit", "list", "-e", "x", "-l", "1", "--json")
    assert (result.exit_code, result.stderr) == (0, "note: -l is now --limit\n")
    assert result.stdout.count("event_id") == 1
    assert len(data_of(run, "audit", "list", "-e", "x")) == 2


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("--iam",), {"create_iam": True}),
        (("--no-iam",), {"create_iam": False}),
        (("--no-create-iam-roles",), {"create_iam_roles": False}),
        (("--snapshot-windows", "hourly, monthly"), {"snapshot_windows": ("hourly", "monthly")}),
        (("--snapshot-windows", "daily", "--snapshot-windows", "daily"), {"snapshot_windows": ("daily",)}),
        (("-t", "a=b", "--tag", "c=d"), {"tags": {"a": "b", "c": "d"}}),
        (("--audit-retention-days", "5"), {"audit_retention_days": 5}),
        (("--no-provisioner",), {}),
        (("--on-unavailable", "allow", "--auto-update"), {"on_unavailable": "allow", "auto_update": True}),
    ],
    ids=lambda words: " ".join(words) if isinstance(words, tuple) else None,
)
def test_deploy_understands(words: tuple[str, ...], expected: dict[str, object]) -> None:
    """The options of a deployment, as they were written and as they are."""
    words = "--name", "limits", *words
    context = found("deploy").make_context("deploy", list(words), **program.context_settings)
    assert {name: context.params[name] for name in expected} == expected


def test_bad_windows_are_named(run: Run) -> None:
    """A list with a word that is no window changes nothing."""
    result = run("deploy", "--name", "limits", "--snapshot-windows", "hourly,weekly")
    assert result.exit_code == 2
    assert "'weekly'" in result.stderr


def test_old_spellings_are_not_shown(run: Run) -> None:
    """Help and completion know only what is written now."""
    for path in (*RENAMED, *GONE):
        shown = run(*path.split(), "--help").stdout
        for option in found(path).params:
            if isinstance(option, Former):
                assert f"{option.old} " not in shown.replace(",", " ")
    assert "loadtest" not in run("--help").stdout


def test_output_is_a_file_where_a_file_is_written(run: Run, tmp_path: Path) -> None:
    """``-o FILE`` and ``--output FILE`` write it; a form is not taken for a file."""
    for option in ("-o", "--output"):
        assert run("cfn-template", option, "stack.yaml", "--force").exit_code == 0
    assert (tmp_path / "stack.yaml").read_text() == run("cfn-template").stdout
    result = run("cfn-template", "--output", "json")
    assert result.exit_code == 2
    assert "pass --json, or write --output ./json" in result.stderr
    assert not (tmp_path / "json").exists()
    assert run("cfn-template", "--output", "-").stdout == run("cfn-template").stdout


FILES = {
    "cfn-template -o": "stack.yaml",
    "lambda-export -o": "package.zip",
    "limits export -f": "limits.yaml",
    "limits cfn-template -f manifest.yaml -o": "template.yaml",
    "limits cfn-template -f manifest.yaml --package": "limits.zip",
}


@pytest.mark.usefixtures("limiter")
@pytest.mark.parametrize("command", FILES)
def test_a_file_is_never_overwritten_silently(run: Run, tmp_path: Path, command: str) -> None:
    """One rule for all commands: it asks, and ``--force`` saves the question."""
    file = tmp_path / FILES[command]
    (tmp_path / "manifest.yaml").write_text("{}\n")
    file.write_text("mine")
    words = (*command.split(), file.name)
    for answer in ("", "n\n"):
        result = run(*words, answer=answer)
        assert (result.exit_code, file.read_text()) == (1, "mine")
        assert f"Overwrite '{file.name}'?" in result.stderr
    assert "--force" in run(*words).stderr
    assert run(*words, answer="y\n").exit_code == 0
    assert file.read_bytes() != b"mine"
    file.write_text("mine")
    assert run(*words, "--force").exit_code == 0
    assert file.read_bytes() != b"mine"


def test_a_package_is_written_where_it_always_was(run: Run, tmp_path: Path) -> None:
    """``lambda-export`` alone writes ``lambda.zip``."""
    assert run("lambda-export").exit_code == 0
    assert (tmp_path / "lambda.zip").read_bytes()[:2] == b"PK"
    assert run("lambda-export").exit_code == 1
    assert run("lambda-export", "-f").exit_code == 0


def test_the_docs_name_every_old_spelling() -> None:
    """Whoever looks for what became of an option finds it."""
    page = (Path(__file__).parents[2] / "docs" / "cli.md").read_text(encoding="utf-8")
    for path, options in RENAMED.items():
        for old, new in options.items():
            assert f"| `{path}` | `{old}` | `{new}` |" in page
    for table in (NEEDLESS, GONE):
        for options in table.values():
            assert [old for old in options if old.split()[0] not in page] == []
    assert [path for path in (*GONE_COMMANDS, *MOVED) if path.split()[-1] not in page] == []


def test_variables_for_every_shell(run: Run) -> None:
    """An AWS on a port that is named need not be one that was started here."""
    words = ("local", "env", "--port", "4567", "--name", "mine")
    posix = run(*words).stdout
    assert "export AWS_ENDPOINT_URL=http://127.0.0.1:4567\n" in posix
    assert run(*words, "-f", "direnv").stdout == posix
    assert "$env:AWS_ENDPOINT_URL = 'http://127.0.0.1:4567'\n" in run(*words, "--format", "powershell").stdout
    assert data_of(run, *words)["ZAE_LIMITER_STORE"].startswith("dynamodb://mine?")


def test_an_entity_moves(run: Run) -> None:
    """To another parent, to none, and in and out of its parent's limits."""
    for name in ("a", "b", "child"):
        done(run, "entity", "create", name)
    assert done(run, "entity", "set-parent", "child", "--parent", "b") == (
        "entity 'child' now belongs to 'b'\n"
    )
    assert "its parent too" in done(run, "entity", "set-cascade", "child", "on")
    shown = data_of(run, "entity", "show", "child")
    assert (shown["parent_id"], shown["cascade"]) == ("b", True)
    assert "itself alone" in done(run, "entity", "set-cascade", "child", "off")
    assert "belongs to nobody" in done(run, "entity", "set-parent", "child", "--none")
    assert data_of(run, "entity", "show", "child")["parent_id"] is None
    assert run("entity", "set-parent", "child").exit_code == 2
    assert run("entity", "set-parent", "nobody", "--none").exit_code == 4


@pytest.mark.usefixtures("limiter")
def test_a_plan_can_be_counted_only(run: Run, tmp_path: Path) -> None:
    """``--quiet`` leaves out what changes in which way."""
    (tmp_path / "limits.yaml").write_text("system: {limits: {rpm: {capacity: 60}}}\n")
    for verb, said in (
        ("plan", "planned: 1 to create"),
        ("diff", "1 level differs"),
        ("apply", "applied: 1"),
    ):
        result = run("limits", verb, "-q")
        assert (result.exit_code, result.stdout) == (0, "")
        assert result.stderr.startswith(said)


WALK = """
from importlib.metadata import entry_points
import click
(script,) = entry_points(group="console_scripts", name="zae-limiter")
def walk(command, path):
    for one in command.get_params(click.Context(command)):
        if one.param_type_name == "option" and not one.hidden and "--help" not in one.opts:
            print(path or "-", *sorted((*one.opts, *one.secondary_opts)), sep="\\t")
    for name, one in getattr(command, "commands", {}).items():
        walk(one, f"{path} {name}".strip())
walk(script.load(), "")
"""


@pytest.mark.parametrize("release", ["0.10", "0.17"])
def test_the_table_is_what_the_older_releases_say(release: str) -> None:
    """The releases themselves, each in its own environment, have these options and no others."""
    python = Path(__file__).parents[2] / ".engines" / f"older-{release}" / "bin" / "python"
    assert python.exists(), "the older releases are not installed; run: make engines"
    said = subprocess.run([python, "-I", "-c", WALK], capture_output=True, text=True, check=True).stdout
    table = {
        "\t".join([line.command, *sorted(line.names)])
        for line in established()
        if line.names and (line.since == "0.10" or release == "0.17")
    }
    assert table == set(said.splitlines())


HABITS = """
system set-defaults -l tpm:10000 -l rpm:100 --on-unavailable allow
resource set-defaults gpt-4 -l tpm:50000 -l rpm:500/min:1000
resource list
resource get-defaults gpt-4
entity create org-1 --display-name Acme
entity create user-1 --parent org-1 --no-cascade
entity set-cascade user-1 on
entity set-parent user-1 --none
entity set-limits user-1 -r gpt-4 -l tph:50000/hour
entity get-limits user-1 --resource gpt-4
entity list --with-custom-limits gpt-4 --limit 10
entity list-resources
audit list -e user-1 -l 10
namespace register tenant-a tenant-b
namespace list
entity create key-1 -N tenant-a
limits plan -f limits.yaml -q
limits apply --file limits.yaml --quiet
limits diff -f limits.yaml
limits cfn-template -n limits -f limits.yaml
usage list -e user-1 -w hourly -l 5
usage list -r gpt-4 -p
usage summary --entity-id user-1 --start 2024-01-01T00:00:00Z --end 2024-01-31T23:59:59Z
cfn-template --output template.yaml
lambda-export --output lambda.zip
lambda-export --info
lambda-export -o lambda.zip -f
local env -f direnv --port 4566
namespace delete tenant-b -y
namespace orphans
entity delete-limits user-1 -r gpt-4 -y
resource delete-defaults gpt-4 --yes
system get-defaults
system delete-defaults --yes
check
status
version
"""


def test_a_day_of_old_habits(run: Run, tmp_path: Path) -> None:
    """Commands as they were written for earlier versions do their work, one after the other."""
    (tmp_path / "limits.yaml").write_text(
        "namespace: default\n"
        "system: {on_unavailable: block, limits: {rpm: {capacity: 100}, tpm: {capacity: 10000}}}\n"
        "resources: {gpt-4: {limits: {tpm: {capacity: 50000, refill_amount: 50000, refill_period: 60}}}}\n"
    )
    for words in HABITS.strip().splitlines():
        result = run(*words.split())
        assert result.exit_code == 0, f"{words}: {result.stderr}"
        assert "error" not in result.stderr
