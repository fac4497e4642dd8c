"""``zae-limiter local``: an AWS or a server of your own machine, to develop and try things on."""

from __future__ import annotations

import shlex
import time
from pathlib import Path

import click
from click.exceptions import Exit

from ..naming import validate_stack_name
from ..operate.local.engines import DynamoDBLocal, Engine, Ministack, endpoint_on, environment
from ..operate.local.servers import ENGINES
from ..operate.local.service import LocalAws, Running, last_lines
from .errors import ERROR, NOT_FOUND, Failure
from .nouns import Noun, option
from .output import Output, record
from .session import confirmed, make_sure, with_output
from .text import printable


def _posix(name: str, value: str) -> str:
    return f"export {name}={shlex.quote(value)}"


def _powershell(name: str, value: str) -> str:
    quoted = value.replace("'", "''")
    return f"$env:{name} = '{quoted}'"


SHELLS = {"eval": _posix, "direnv": _posix, "powershell": _powershell}
"""How each of them sets a variable."""
PORT, TIMEOUT = click.IntRange(1, 65_535), click.IntRange(1, 600)


local: Noun = Noun("local", help="An AWS, Redis or PostgreSQL of your own, for development.")


@local.verb("up")
@option(
    "--engine",
    "ministack has stacks and functions too; dynamodb-local is Amazon's own and needs Java; redis and"
    " postgres are programs of the system.  [default: ministack]",
    type=click.Choice(list(ENGINES)),
)
@option(
    "--port",
    "Where it listens.  [default: 4566, 8000 for dynamodb-local, 6380 for redis, 5433 for postgres]",
    type=PORT,
    metavar="N",
)
@option("--timeout", "Wait so long until it answers.", type=TIMEOUT, default=60, metavar="SECONDS")
@option("--name -n table", "Say how to use this table.", metavar="TABLE")
@confirmed
@with_output
def up(
    output: Output, engine: str | None, port: int | None, timeout: int, table: str | None, yes: bool
) -> None:
    """Start a local AWS or server, unless one is running, and wait until it answers.

    It goes on when this command ends. What is in an AWS is kept in memory, and goes when it is ended; redis
    and postgres keep it in your state directory.
    """
    if table is not None:
        validate_stack_name(table)
    service = LocalAws()
    before = service.running()
    chosen = ENGINES[engine or (before.engine if before else "ministack")]
    if table is not None and not isinstance(chosen, Ministack | DynamoDBLocal):
        raise click.UsageError(f"--name names a table of DynamoDB, and {chosen.name} has none")
    running = service.up(chosen, lambda: _program(chosen, output, yes), port, timeout)
    started = running != before
    said = "is running" if started else "was running already"
    use = f'eval "$(zae-limiter local env{"" if table is None else f" --name {table}"})"'
    if chosen.has_tables and not chosen.has_stacks:
        use += " && zae-limiter table create"
    told = f"{running.engine} {said} at {running.endpoint_url}; use it with: {use}"
    output.done(_data(running) | {"started": started}, told)


@local.verb("down", with_output)
def down(output: Output) -> None:
    """End it; what is in a local AWS goes with it."""
    ended = LocalAws().down()
    engine = ended and ended.engine
    output.done({"ended": engine}, "nothing was running" if engine is None else f"ended {engine}")


@local.verb("status", with_output)
def status(output: Output) -> None:
    """Show what is running here. The exit code is 0 if it answers, and 4 if nothing runs."""
    running = LocalAws().running()
    data = {"running": False} if running is None else _data(running)
    output.show(data, lambda: record(data))
    if running is None or not running.is_healthy:
        raise Exit(NOT_FOUND if running is None else ERROR)


@local.verb("logs")
@option("--follow -f", "Go on as it grows.", is_flag=True)
@option("--lines -n", "The last so many.", type=click.IntRange(0, 100_000), default=100)
@with_output
def logs(output: Output, follow: bool, lines: int) -> None:
    """Show what it said, also after it has ended."""
    if follow and output.is_json:
        raise click.UsageError("--follow never ends, so it cannot be JSON")
    service = LocalAws()
    log = service.log()
    if log is None:
        raise Failure("nothing was ever started here", "zae-limiter local up", NOT_FOUND)
    found = last_lines(log, lines)
    if output.json({"log": str(log), "lines": found}):
        return
    for line in found:
        click.echo(printable(line))
    if follow:
        _follow(service, log)


@local.verb("env")
@option("--name -n --table table", "The table of the store.", default="limits")
@option(
    "--format -f shell",
    "For whom: eval and direnv are shells'.",
    type=click.Choice(list(SHELLS)),
    default="eval",
)
@option("--port", "An AWS that listens there, whoever started it.", type=PORT, metavar="N")
@with_output
def env(output: Output, table: str, shell: str, port: int | None) -> None:
    """Print variables that lead programs to what runs here.

    \b
    eval "$(zae-limiter local env)"                     sets them in a shell
    zae-limiter local env --format direnv > .envrc      has direnv set them
    zae-limiter local env -f powershell | iex           sets them in PowerShell
    """
    validate_stack_name(table)
    if port is None:
        running = LocalAws().must_run()
        variables = ENGINES[running.engine].environment(running.port, table)
    else:
        variables = environment(endpoint_on(port), table)
    if not output.json(variables):
        for name, value in variables.items():
            click.echo(SHELLS[shell](name, value))


def _program(engine: Engine, output: Output, yes: bool) -> Path:
    """Where the engine is; it is installed if it is nowhere and nobody objects."""
    if (found := engine.find()) is not None:
        return found
    steps = engine.plan()
    output.note(f"{engine.name} is not installed; this would:")
    for step in steps:
        output.note(f"  {step}")
    make_sure(yes, "Install it?")
    engine.install(output.note)
    found = engine.find()
    if found is None:
        raise Failure(f"{engine.name} was installed but is not there", "; ".join(steps))
    return found


def _data(running: Running) -> dict[str, object]:
    return {
        "running": True,
        "healthy": running.is_healthy,
        "engine": running.engine,
        "pid": running.pid,
        "endpoint_url": running.endpoint_url,
        "log": running.log,
    }


def _follow(service: LocalAws, log: Path) -> None:
    """Print what is added to a log until the engine ends."""
    with log.open(encoding="utf-8", errors="replace") as file:
        file.seek(0, 2)
        is_last = False
        while True:
            if line := file.readline():
                click.echo(printable(line), nl=False)
            elif is_last:
                return
            else:
                # Once more after the end, for what was written just before it.
                is_last = service.running() is None
                time.sleep(0.2)
