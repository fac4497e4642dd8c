"""Small things that people stumble over, as users of other command lines expect them."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from shlex import quote, split

import click
import pytest

from tests.cli.conftest import STORE, Run
from tests.cli.test_commands import data_of, done
from zae_limiter import InvalidNameError, Limit, SyncRateLimiter
from zae_limiter.cli.app import program
from zae_limiter.cli.nouns import Verb
from zae_limiter.cli.spellings import GoneCommand
from zae_limiter.infra.stack_manager import StackManager
from zae_limiter.version import client_version


def shell(command: str, directory: Path) -> subprocess.CompletedProcess[str]:
    """Run a line of shell in which ``zae`` is the program."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("ZAE", "AWS_"))}
    script = f'zae() {{ "{sys.executable}" -m zae_limiter.cli "$@"; }}; {command}'
    return subprocess.run(
        ["sh", "-c", script],
        cwd=directory,
        env=clean | {"ZAE_LIMITER_STORE": STORE},
        capture_output=True,
        text=True,
        check=False,
    )


NOT_THERE = {
    "entity delete nobody": "entity 'nobody' does not exist",
    "entity delete-limits nobody": "'nobody' has no limits of its own on '_default_', so nothing was deleted",
    "entity delete-limits a -r gpt-4": "'a' has no limits of its own on 'gpt-4', so nothing was deleted",
    "resource delete-defaults gpt-4": "resource 'gpt-4' has no default limits, so nothing was deleted",
    "system delete-defaults": "the system has no default limits, so nothing was deleted",
    "namespace delete acme": "namespace 'acme' does not exist",
    "namespace purge nonesuch": "no deleted namespace has the id 'nonesuch'",
}


@pytest.mark.parametrize("words", NOT_THERE)
@pytest.mark.parametrize("yes", [True, False])
def test_deleting_what_is_not_there_says_so(run: Run, words: str, yes: bool) -> None:
    """The exit code is 4, nobody is asked, and nothing claims to be deleted."""
    done(run, "entity", "create", "user-1")
    result = run(*words.split(), *["--yes"] * yes, answer="y\n")
    assert (result.exit_code, result.stdout) == (4, "")
    assert result.stderr.splitlines()[0] == f"error: {NOT_THERE[words]}"
    assert not data_of(run, "audit", "list", "--system")


def test_deleting_twice_says_so(run: Run) -> None:
    """What was there the first time is not there the second time."""
    done(run, "system", "set-defaults", "-l", "rpm:60")
    assert run("system", "delete-defaults", "--yes").exit_code == 0
    assert run("system", "delete-defaults", "--yes").exit_code == 4


@pytest.mark.parametrize(
    "command", ["zae --help", "zae entity list", "zae entity list --json", "zae version"]
)
def test_a_full_disk_is_no_traceback(tmp_path: Path, command: str) -> None:
    """Output that cannot be written is an error like any other."""
    shell("zae entity create a", tmp_path)
    result = shell(f"{command} > /dev/full", tmp_path)
    assert (result.returncode, result.stderr) == (
        1,
        "error: cannot write the output: No space left on device\n",
    )


def test_a_missing_choice_is_told_in_one_line(run: Run) -> None:
    """With what there is to choose from."""
    result = run("completion")
    assert result.exit_code == 2
    assert result.stderr.splitlines()[0].endswith("Choose from: bash, fish, zsh")


@pytest.mark.parametrize("word", ["aggregate --once", "status", "deploy"])
def test_a_missing_driver_is_no_error_of_aws(word: str) -> None:
    """It is this machine's, and the message says what to install."""
    script = (
        "import sys; sys.modules['botocore'] = sys.modules['aiobotocore'] = None; "
        f"sys.argv = ['zae-limiter', *'{word}'.split(), '--name', 'limits', '--region', 'eu-west-1']; "
        "from zae_limiter.cli import main; main()"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout) == (1, "")
    assert "install this package with its extra: dynamodb" in result.stderr


def test_an_interruption_ends_with_130(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a shell says of a program that Ctrl-C has ended."""

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    done(run, "entity", "create", "user-1")
    monkeypatch.setattr("zae_limiter.sync.SyncRepository.get_entity", interrupted)
    result = run("entity", "show", "user-1")
    assert (result.exit_code, result.stderr.strip()) == (130, "error: interrupted")


def test_a_signal_ends_with_130(tmp_path: Path) -> None:
    """The same at a question, of a process of its own; nothing was changed."""
    shell("zae entity create a", tmp_path)
    heed = (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"  # ignored in the background
    )
    begin = "from zae_limiter.cli import main; main()"
    process = subprocess.Popen(
        [sys.executable, "-c", f"{heed}; {begin}", "entity", "delete", "a", "--store", STORE],
        cwd=tmp_path,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stderr is not None
    while (byte := process.stderr.read(1)) != b"]":  # it asks: [y/N]
        assert byte, "it ended without a question"
    while process.poll() is None:  # a signal in the moment before Python begins to read waits for the next
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(5)
    _, said = process.communicate()
    assert (process.returncode, b"error: interrupted\n" in said) == (130, True)
    assert shell("zae entity show a", tmp_path).returncode == 0


def test_the_version_is_an_option(run: Run) -> None:
    """On standard output, with the name of the program."""
    result = run("--version")
    assert (result.exit_code, result.stdout, result.stderr) == (0, f"zae-limiter {client_version()}\n", "")


READING = (
    "aggregate",
    "aggregate --once",
    "audit list --system",
    "config get --level system",
    "entity buckets a",
    "entity delete a --yes",
    "entity delete-limits a --yes",
    "entity get-limits a",
    "entity list",
    "entity list-resources",
    "entity show a",
    "limits diff",
    "limits export",
    "limits plan",
    "namespace list",
    "namespace delete acme --yes",
    "namespace orphans",
    "namespace purge id --yes",
    "namespace recover id",
    "namespace show default",
    "resource delete-defaults gpt-4 --yes",
    "resource get-defaults gpt-4",
    "resource list",
    "system delete-defaults --yes",
    "system get-defaults",
    "usage list -e a",
    "usage summary -e a",
    "entity list -N acme",
    "entity create a -N acme",
    "limits plan -N acme",
)


@pytest.mark.parametrize("words", READING)
def test_reading_makes_no_file(run: Run, tmp_path: Path, words: str) -> None:
    """A mistyped path is told, and stays what it was; what would be made can be planned."""
    (tmp_path / "limits.yaml").write_text("namespace: default\n")
    if "acme" in words.rpartition(" ")[2]:
        (tmp_path / "limits.yaml").write_text("{}\n")
    result = run(*words.split(), "--store", "sqlite:///typo.db")
    planned = words in {"limits plan", "limits diff"}
    assert (result.exit_code, result.stdout) == (0 if planned else 4, "")
    assert "does not exist" in result.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["limits.yaml"]


def test_the_default_namespace_always_exists(run: Run, tmp_path: Path) -> None:
    """Also on a fresh file, and also if it is named: by a manifest, an option or the environment."""
    (tmp_path / "limits.yaml").write_text("namespace: default\nsystem: {limits: {rpm: {capacity: 60}}}\n")
    assert run("limits", "plan").stderr.endswith(
        "planned: 1 to create, 0 to update, 0 to delete, 0 unchanged\n"
    )
    assert run("limits", "apply").exit_code == 0
    assert data_of(run, "system", "get-defaults")["limits"][0]["capacity"] == 60
    assert run("entity", "create", "a", "-N", "default", "--store", "sqlite:///other.db").exit_code == 0
    assert run("entity", "list", "-N", "", "--store", "sqlite:///other.db").exit_code == 2


@pytest.mark.parametrize(
    "words",
    [
        "entity create a",
        "system set-defaults -l rpm:60",
        "namespace register acme",
        "limits apply -f limits.yaml",
    ],
)
def test_a_store_that_commands_have_made_is_green(run: Run, tmp_path: Path, words: str) -> None:
    """Whoever makes it writes down which version it is of."""
    (tmp_path / "limits.yaml").write_text("system: {limits: {rpm: {capacity: 60}}}\n")
    assert run(*words.split()).exit_code == 0
    assert data_of(run, "status")["health"] == "green"


def test_a_purge_is_asked_about_by_name(run: Run) -> None:
    """An id says nothing to whoever has to agree."""
    (made,) = data_of(run, "namespace", "register", "acme")
    in_use = run("namespace", "purge", "--", made["namespace_id"])
    assert (in_use.exit_code, "'acme' is in use" in in_use.stderr) == (1, True)
    done(run, "namespace", "delete", "acme", "--yes")
    asked = run("namespace", "purge", "--", made["namespace_id"], answer="n\n")
    assert f"Delete all data of namespace 'acme' ({made['namespace_id']}) for good?" in asked.stderr
    purged = run("namespace", "purge", "--yes", "--", made["namespace_id"])
    assert "purged namespace 'acme'" in purged.stderr


@pytest.mark.parametrize("text", ["3x", "yesterday", "36"])
def test_a_time_that_cannot_be_read_names_those_that_can(
    run: Run, limiter: SyncRateLimiter, text: str
) -> None:
    """Instants, and how long ago it was."""
    assert limiter
    for option in ("--start", "--end"):
        result = run("usage", "list", "-e", "a", option, text)
        assert result.exit_code == 2
        assert repr(text) in result.stderr
        assert "36h" in result.stderr
        assert "7d" in result.stderr


def test_help_of_the_sync_twins_speaks_sync() -> None:
    """Whoever asks Python for help on a sync method is not told to await it."""
    from zae_limiter import SyncLease, SyncRepository

    assert "with limiter.acquire(" in (SyncRateLimiter.acquire.__doc__ or "")
    for twin in (SyncRateLimiter, SyncRepository, SyncLease):
        for name, method in vars(twin).items():
            said = getattr(method, "__doc__", None) or ""
            assert "async with" not in said, name
            assert "await " not in said, name


def test_every_group_says_what_to_do_without_a_command() -> None:
    """None of them is silent, but for the one that does something itself."""
    silent = [
        name
        for name, command in program.commands.items()
        if isinstance(command, click.Group) and not command.no_args_is_help
    ]
    assert silent == ["serve"]
    assert program.commands["serve"].invoke_without_command  # type: ignore[attr-defined]


def test_a_failure_prints_no_half_of_a_document(run: Run) -> None:
    """With --json as without it, what went wrong is told on standard error alone."""
    done(run, "entity", "create", "user-1")
    result = run("entity", "show", "nobody", "--json")
    assert (result.exit_code, result.stdout) == (4, "")


def test_nobody_can_be_told(tmp_path: Path) -> None:
    """Where not even standard error can be written to, the exit code remains."""
    assert shell("zae entity list > /dev/full 2> /dev/full", tmp_path).returncode == 4


@pytest.mark.parametrize("used", [True, False])
def test_what_was_never_created_can_be_deleted(run: Run, limiter: SyncRateLimiter, used: bool) -> None:
    """Limits and buckets gather under ids that nobody has recorded; they go with one command."""
    if used:
        with limiter.acquire("ann+x@y.com", "gpt-4", {"rpm": 1}, [Limit.per_day("rpm", 60)]):
            pass
    else:
        done(run, "entity", "set-limits", "ann+x@y.com", "-l", "rpm:60")
    assert run("entity", "delete", "ann+x@y.com", answer="n\n").exit_code == 1
    assert run("entity", "delete", "ann+x@y.com", "--yes").exit_code == 0
    assert data_of(run, "entity", "buckets", "ann+x@y.com") == []
    assert data_of(run, "entity", "get-limits", "ann+x@y.com") == []
    assert run("entity", "delete", "ann+x@y.com", "--yes").exit_code == 4


@pytest.mark.parametrize("name", ["Ann", "Ann Smith"])
def test_the_name_of_an_entity_is_not_that_of_a_table(run: Run, name: str) -> None:
    """``--name`` is the stack, as in every command; whoever meant the entity's name is told its option."""
    result = run("entity", "create", "user-1", "--name", name)
    assert result.exit_code == (3 if name == "Ann" else 2)
    assert result.stderr.splitlines()[1].startswith(
        f"hint: --name is the DynamoDB table; the entity's name is --display-name {quote(name)}"
    )
    assert "--display-name" not in run("entity", "list", "--name", name).stderr


WARNING = (
    "warning: memory:// ends with this command, so nothing of this stays; "
    "a file does: --store sqlite:///limits.db"
)


@pytest.mark.parametrize(
    "words",
    [
        "entity create a",
        "entity set-limits a -l rpm:60 --json",
        "system set-defaults -l rpm:60",
        "config set --level resource --resource gpt-4 --limits [{0}]",
        "aggregate --once",
        "limits apply",
        "namespace register acme",
    ],
)
def test_who_sets_something_in_memory_is_warned(run: Run, tmp_path: Path, words: str) -> None:
    """What outlives no command is told, once and on standard error; reading is not commented on."""
    (tmp_path / "limits.yaml").write_text("system: {limits: {rpm: {capacity: 60}}}\n")
    limit = json.dumps(Limit.per_minute("rpm", 60).to_dict()).replace(" ", "")
    said = [word.replace("{0}", limit) for word in words.split()]
    done(run, "entity", "create", "user-1")
    result = run(*said, "--store", "memory://")
    assert (result.exit_code, result.stderr.splitlines().count(WARNING)) == (0, 1)
    assert WARNING not in run(*said).stderr
    for reading in ("entity list", "status", "version", "limits plan"):
        assert WARNING not in run(*reading.split(), "--store", "memory://").stderr


NONE = {
    "entity get-limits a": "'a' itself has no limits; set some: zae-limiter entity set-limits a -l rpm:60",
    "entity get-limits a -r x": (
        "'a' itself on 'x' has no limits; set some: zae-limiter entity set-limits a -r x -l rpm:60"
    ),
    "resource get-defaults x": (
        "resource 'x' has no limits; set some: zae-limiter resource set-defaults x -l rpm:60"
    ),
    "system get-defaults": "the system has no limits; set some: zae-limiter system set-defaults -l rpm:60",
}


@pytest.mark.parametrize("words", NONE)
def test_no_limits_are_told_with_the_command_that_sets_some(run: Run, words: str) -> None:
    """An empty table says nothing; JSON says it by itself."""
    done(run, "entity", "create", "user-1")
    result = run(*words.split())
    assert (result.exit_code, result.stderr) == (0, f"{NONE[words]}\n")
    assert run(*words.split(), "--json").stderr == ""
    done(run, *NONE[words].partition("zae-limiter ")[2].split())
    assert run(*words.split()).stderr == ""


def test_one_is_singular(run: Run) -> None:
    """Of levels, and of whatever `aggregate` counts."""
    done(run, "system", "set-defaults", "-l", "rpm:60")
    assert run("limits", "export", "-f", "limits.yaml").stderr == "wrote 1 level to 'limits.yaml'\n"
    assert run("limits", "plan").stderr == "nothing to change; 1 level is as the file says\n"
    assert run("limits", "diff").stderr == "nothing differs; 1 level is as the file says\n"
    with SyncRateLimiter.open(STORE) as limiter, limiter.acquire("a", "gpt-4", {"rpm": 1}):
        pass
    assert run("aggregate", "--once").stdout.startswith(
        "1 record, 1 change of buckets, 2 rows written, 0 refills"
    )


def test_a_store_that_any_client_may_use_says_so(run: Run) -> None:
    """No version is called 0.0.0."""
    done(run, "entity", "create", "user-1")
    for words in ("check", "version --store sqlite:///limits.db"):
        assert "needs client any" in " ".join(run(*words.split()).stdout.split())


def test_the_package_is_the_command_too(tmp_path: Path) -> None:
    """As ``python -m`` of other packages with a command of their name."""
    result = subprocess.run(
        [sys.executable, "-m", "zae_limiter", "--version"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (result.returncode, result.stdout) == (0, f"zae-limiter {client_version()}\n")


def test_an_interruption_while_the_command_is_imported_is_no_traceback() -> None:
    script = (
        "import sys\n"
        "class Interrupted:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name == 'zae_limiter.cli.app': raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Interrupted())\n"
        "from zae_limiter.cli import main; main()"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr) == (130, "")


@pytest.mark.parametrize(
    "words", ["deploy", "deploy --no-aggregator", "delete --yes", "status", "table create"]
)
def test_a_stack_that_no_table_can_be_called_after_sends_nothing(
    run: Run, monkeypatch: pytest.MonkeyPatch, words: str
) -> None:
    """A table has at least three letters, and a stack that exists by then is too late to say so."""

    def sent(*_: object, **__: object) -> None:
        raise AssertionError

    monkeypatch.setattr("zae_limiter.infra.stack_manager.open_cloud", sent)
    result = run(*words.split(), "--name", "ab", "--region", "eu-west-1")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("error: invalid stack name 'ab': it has 2 characters; at least 3")
    with pytest.raises(InvalidNameError, match="at least 3 are needed"):
        StackManager("ab", "eu-west-1")


def test_aggregate_is_for_all_namespaces(run: Run) -> None:
    """One that is named would be passed over in silence, whether it is there or not."""
    done(run, "entity", "create", "user-1")
    result = run("aggregate", "--once", "-N", "nosuch")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "it counts all namespaces" in result.stderr


TWICE = {
    "limits apply -f one.yaml -f two.yaml": "--file",
    "entity set-limits u -l rpm:60 -r a --resource b": "--resource",
    "entity list --store memory:// --store memory://": "--store",
    "audit list -e a -e b": "--entity-id",
    "deploy --name abc --name abd": "--name",
    "aggregate --once --retention-days 1 --retention-days=2": "--retention-days",
    "config get --level system --level resource": "--level",
}


@pytest.mark.parametrize("words", TWICE)
def test_an_option_of_one_value_is_given_once(run: Run, tmp_path: Path, words: str) -> None:
    """The first one would be passed over; switches and options that gather may be repeated."""
    result = run(*words.split())
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith(f"error: {TWICE[words]} was given twice; it takes one value\nhint: ")
    assert not list(tmp_path.iterdir())
    done(run, "entity", "set-limits", "u", "-l", "rpm:60", "-l", "tpm:60", "-r", "a")
    assert run("entity", "list", "--json", "--json").exit_code == 0


def test_every_command_looks_at_that() -> None:
    def commands(group: click.Group) -> Iterator[click.Command]:
        for command in group.commands.values():
            if isinstance(command, click.Group):
                yield from commands(command)
            elif not isinstance(command, GoneCommand):
                yield command

    assert all(isinstance(command, Verb) for command in commands(program))


LED = {
    "config get resource /v1/chat": "hint: did you mean: --level resource --identifier /v1/chat",
    "config get foo": "error: missing option '--level'. Choose from: system, resource, entity",
    "config get --level resource --identifier x": (
        "hint: zae-limiter config set --level resource --identifier x --limits …"
    ),
    "config get --level entity --identifier 'a b' -r x": (
        "hint: zae-limiter config set --level entity --identifier 'a b' --resource x --limits …"
    ),
    "entity list --with-custom-limits --store sqlite:///c.db": (
        "error: --with-custom-limits needs a value, and --store is an option"
    ),
}


@pytest.mark.parametrize("words", LED)
def test_hints_lead_somewhere(run: Run, words: str) -> None:
    """What they say can be typed."""
    done(run, "entity", "create", "user-1")
    result = run(*split(words))
    assert (result.exit_code in {2, 4}, result.stdout) == (True, "")
    assert LED[words] in result.stderr.splitlines()
