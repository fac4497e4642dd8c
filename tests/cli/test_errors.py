"""How failures end: exit codes, streams, colour, and what is missing."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tests.cli.conftest import Run
from zae_limiter import exceptions
from zae_limiter.backends import sqlite
from zae_limiter.backends.sqlite import SqliteBackend
from zae_limiter.cli.app import program
from zae_limiter.cli.errors import failure_of

SQLITE, DYNAMODB = "sqlite:///limits.db", "dynamodb://limits"


@pytest.mark.parametrize(
    ("error", "store", "code"),
    [
        (exceptions.EntityNotFoundError("a"), SQLITE, 4),
        (exceptions.NamespaceNotFoundError("no"), DYNAMODB, 4),
        (exceptions.InfrastructureNotFoundError("no table"), DYNAMODB, 4),
        (exceptions.RateLimiterUnavailable("no answer"), DYNAMODB, 3),
        (exceptions.InfrastructureError("denied"), DYNAMODB, 3),
        (exceptions.StackOperationError("failed"), "", 3),
        (exceptions.StackAlreadyExistsError("there"), "", 3),
        (exceptions.RateLimiterUnavailable("locked"), SQLITE, 1),
        (exceptions.InfrastructureError("read-only"), SQLITE, 1),
        (exceptions.NamespaceStateError("active"), DYNAMODB, 1),
        (exceptions.EntityExistsError("a"), SQLITE, 1),
        (exceptions.EntityError("a"), SQLITE, 1),
        (exceptions.IncompatibleSchemaError("newer"), SQLITE, 1),
        (exceptions.InvalidNameError("resource", "#", "no"), SQLITE, 2),
        (exceptions.ValidationError("store", "x", "no"), "", 2),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else str(value),
)
def test_exit_codes(error: exceptions.ZAELimiterError, store: str, code: int) -> None:
    """1 is an error, 2 wrong usage, 3 AWS, 4 not found; the message is the exception's own."""
    failure = failure_of(error, store)
    assert (failure.code, failure.message) == (code, str(error))


def test_a_hint_can_be_pasted_into_a_shell() -> None:
    """Names are quoted where that is needed."""
    assert failure_of(exceptions.EntityExistsError("a b"), "").hint == "zae-limiter entity show 'a b'"


def test_a_table_out_of_reach_is_an_error_of_aws(run: Run) -> None:
    """The exit code is 3, and nothing is created anywhere."""
    url = "dynamodb://limits?region=us-east-1&endpoint_url=http://127.0.0.1:9&timeout_ms=300"
    result = run("entity", "list", "--store", url)
    assert (result.exit_code, result.stdout) == (3, "")
    assert result.stderr.startswith("error: DynamoDB ")


def test_errors_are_coloured_on_request_only(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a terminal there is no escape code, whatever the environment says."""
    monkeypatch.delenv("NO_COLOR")
    run("entity", "create", "somebody")
    assert run("entity", "show", "nobody").stderr.startswith("error: entity 'nobody' does not exist\n")


def test_a_message_cannot_steer_a_terminal(run: Run) -> None:  # noqa: ARG001 - it prepares the directory
    """What was written on the command line is repeated as text, also where escape codes are obeyed."""
    result = CliRunner().invoke(program, ["entity", "list", "a\x1b[2J\tb"], color=True)
    assert result.exit_code == 2
    assert r"a\x1b[2J\tb" in result.stderr


@pytest.mark.parametrize("package", ["click", "rich"])
def test_a_missing_package_is_named(package: str) -> None:
    """Without its extra the program says how to install it."""
    script = (
        f"import sys; sys.modules[{package!r}] = None; sys.argv[1:] = ['status']\n"
        "from zae_limiter.cli import main; main()"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout) == (1, "")
    error, hint = result.stderr.splitlines()
    assert error.startswith(f"error: the command line needs {package}")
    assert hint == "hint: install this package with its extra: cli"


def test_a_missing_driver_is_named() -> None:
    """A store whose extra is not installed is no traceback, also for the aggregator."""
    script = (
        "import sys; sys.modules['botocore'] = sys.modules['aiobotocore'] = None; "
        "sys.argv = ['zae-limiter', 'aggregate', '--store', 'dynamodb://limits', '--once']; "
        "from zae_limiter.cli import main; main()"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr.startswith("error: the store dynamodb:// needs botocore")
    assert "install this package with its extra: dynamodb" in result.stderr


def test_help_needs_no_driver() -> None:
    """It is quick, because neither a driver nor the aggregator is imported for it."""
    script = (
        "import sys; sys.argv = ['zae-limiter', '--help']\n"
        "from zae_limiter.cli import main\n"
        "try: main()\n"
        "finally: print(*sorted({'botocore', 'aiobotocore', 'zae_limiter_aggregator'} & set(sys.modules)),"
        " file=sys.stderr)"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr) == (0, "\n")
    assert "aggregate" in result.stdout


def test_another_missing_module_is_not_blamed_on_the_extra() -> None:
    """A broken installation keeps its traceback."""
    script = (
        "import sys; sys.modules['zae_limiter.cli.story'] = None; sys.argv[1:] = ['demo']\n"
        "from zae_limiter.cli import main; main()"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert "Traceback" in result.stderr
    assert "hint" not in result.stderr


def test_a_reader_that_goes_away_is_no_traceback() -> None:
    """`zae-limiter … | head` ends quietly."""
    command = f"{sys.executable} -m zae_limiter.cli --help | true"
    result = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False)
    assert "Traceback" not in result.stderr


def test_an_archive_needs_a_table(run: Run) -> None:
    """An embedded store has nothing to archive, and says so instead of ignoring the option."""
    result = run("aggregate", "--once", "--archive-bucket", "bucket")
    assert result.exit_code == 2
    assert "--archive-bucket goes with a DynamoDB table" in result.stderr


LIMITS = '[{"name": "rpm", "capacity": 60, "refill_amount": 60, "refill_period_seconds": 60}]'


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        ("config set resource gpt", "--level resource --identifier gpt"),
        ("config set --level resource gpt", "--identifier gpt"),
        ("config set entity user-1 gpt", "--level entity --identifier user-1 --resource gpt"),
        ("config set system", "--level system"),
    ],
)
def test_words_in_place_of_options(run: Run, words: str, meant: str) -> None:
    """Each is offered with an option of its own, and what is offered works."""
    refused = run(*words.split(), "--limits", LIMITS)
    assert (refused.exit_code, f"hint: did you mean: {meant}\n" in refused.stderr) == (2, True)
    given = words.split()[2:4] if "--level" in words else []
    assert run("config", "set", *given, *meant.split(), "--limits", LIMITS).exit_code == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("status limits more", "did you mean: --name limits\n"),
        ("status --name limits more", "zae-limiter status --help\n"),
        ("status sqlite:///limits.db", "did you mean: --store sqlite:///limits.db\n"),
    ],
)
def test_a_word_too_many(run: Run, words: str, said: str) -> None:
    """An option that has its value is not offered once more."""
    result = run(*words.split())
    assert (result.exit_code, result.stderr.endswith(f"hint: {said}")) == (2, True), result.stderr


@pytest.mark.parametrize("words", ["entity list", "limits plan -f limits.yaml", "upgrade", "status"])
def test_whatever_is_opened_is_closed(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, words: str
) -> None:
    """Also what was opened for nothing but the name of its file."""
    (tmp_path / "limits.yaml").write_text("system: {limits: {rpm: {capacity: 60}}}\n")
    assert run("entity", "create", "user-1").exit_code == 0
    opened: list[SqliteBackend] = []
    closed: list[SqliteBackend] = []
    open_backend, close = sqlite.open_backend, SqliteBackend.close

    def opening(*args: Any, **options: Any) -> SqliteBackend:
        opened.append(open_backend(*args, **options))
        return opened[-1]

    async def closing(backend: SqliteBackend) -> None:
        closed.append(backend)
        await close(backend)

    monkeypatch.setattr(sqlite, "open_backend", opening)
    monkeypatch.setattr(SqliteBackend, "close", closing)
    assert run(*words.split()).exit_code == 0
    assert opened == closed
    assert len(opened) <= 2
