"""From an exception to ``error: …``, ``hint: …`` and an exit code.

The messages are the exceptions' own. A hint is a command line that is likely to help.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from shlex import quote

import click

from .. import exceptions as known
from ..exceptions import InfrastructureError, InfrastructureNotFoundError, ValidationError, ZAELimiterError
from .text import printable

ERROR, USAGE, AWS, NOT_FOUND, DIFFERENT, INTERRUPTED = 1, 2, 3, 4, 5, 130
"""Exit codes; the last one is what a shell says of a program that Ctrl-C has ended."""


STORE_IN_USE = "zae_limiter.cli.store"
"""Under this name the context of a command remembers the URL that it opened."""


class Failure(click.ClickException):
    """Why a command ended early, and what may help."""

    def __init__(self, message: str, hint: str = "", code: int = ERROR) -> None:
        super().__init__(message)
        self.hint = hint
        self.code = code


def failure_of(error: ZAELimiterError, store: str) -> Failure:
    """What to say about an exception that a command met on a store."""
    message, hint = str(error), _hint(error, store)
    if isinstance(error, known.NamespaceNotFoundError):
        # The way out that it names is a method; here it is a command, which is the hint.
        message = message.partition(";")[0]
    elif isinstance(error, InfrastructureNotFoundError):  # behind what is missing it says what may help
        message, _, hint = message.partition("; ")
    elif isinstance(error, ValidationError) and error.field == "store":
        _, _, hint = error.reason.partition("; ")
        message = message.removesuffix(f"; {hint}")
    return Failure(message, hint, _exit_code(error, store))


def _exit_code(error: ZAELimiterError, store: str) -> int:
    match error:
        case known.EntityNotFoundError() | known.NamespaceNotFoundError() | InfrastructureNotFoundError():
            return NOT_FOUND
        case known.StackOperationError() | known.StackAlreadyExistsError():
            return AWS
        case (
            known.NamespaceStateError() | InfrastructureError(__cause__=ImportError())
        ):  # no driver is installed
            return ERROR
        case InfrastructureError() if store.startswith("dynamodb:"):
            return AWS
        case ValidationError():
            return USAGE
        case _:
            return ERROR


def _hint(error: ZAELimiterError, store: str) -> str:
    match error:
        case known.EntityNotFoundError(detail=""):
            return "zae-limiter entity list"
        case known.EntityNotFoundError():  # a parent that is missing
            return f"zae-limiter entity create {quote(error.entity_id)}"
        case known.EntityExistsError():
            return f"zae-limiter entity show {quote(error.entity_id)}"
        case known.NamespaceStateError(state="", namespace_name=name) if name:  # another one has it
            return f"zae-limiter namespace delete {name}"
        case known.NamespaceNotFoundError() | known.NamespaceStateError():
            return "zae-limiter namespace orphans"
        case InfrastructureError() if "no AWS region" in str(error):
            return f"pass --region eu-west-1{' beside --name' if store.startswith('dynamodb://') else ''}"
        case _:
            return ""


def was_interrupted(abort: click.Abort) -> bool:
    """Whether it was Ctrl-C; else nobody was there to answer a question."""
    return isinstance(abort.__cause__ or abort.__context__, KeyboardInterrupt)


def give_up_output() -> None:
    """Let nothing more be written to standard output, not even when Python ends: it would fail again."""
    with suppress(OSError, ValueError):  # where standard output is no file, nothing is left in it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def tell(error: click.ClickException) -> int:
    """Say on standard error what went wrong, and return the exit code."""
    if not isinstance(error, Failure):
        ctx, message = getattr(error, "ctx", None), error.format_message()
        if ctx is not None and message == ctx.get_help():  # a group without a command
            click.echo(message, err=True)
            return error.exit_code
        # The words are click's, the style is ours.
        message = f"{message[:1].lower()}{message[1:]}".rstrip(".").replace("\n\t", " ")
        error = Failure(message, f"{ctx.command_path} --help" if ctx else "", error.exit_code)
    for label, text, colour in (("error", error.message, "red"), ("hint", error.hint, "cyan")):
        with suppress(OSError):  # whoever cannot be told anything still gets the exit code
            if text:
                line = f"{click.style(label, fg=colour, bold=True)}: {printable(text)}"
                # Where no terminal is, click itself leaves the colour out.
                click.echo(line, err=True, color=False if os.environ.get("NO_COLOR") else None)
    return error.code
