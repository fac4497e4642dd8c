"""``zae-limiter serve``: decisions over HTTP for programs that are not Python, and a page to look at."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from ..exceptions import without_secrets
from ..runtime.world import World
from ..server import envoy
from ..server.config import PORT, ServerConfig
from ..server.tokens import Token, TokenScope, new_secret, read_tokens, token_of
from .nouns import Noun, option, together
from .output import Output
from .session import Session, with_output, with_session

TOKENS_VARIABLE = "ZAE_LIMITER_SERVER_TOKENS"

PORTS = click.IntRange(0, 65_535)
SECONDS = click.FloatRange(0, min_open=True)

_OPTIONS = together(
    option("--host", "Listen on this address.", default="127.0.0.1", metavar="ADDRESS"),
    option("--port", "Listen on this port; 0 takes a free one.", type=PORTS, default=PORT, metavar="N"),
    option("--workers", "So many processes.", type=click.IntRange(1, 64), default=1, metavar="N"),
    option("--tokens tokens_file", f"The tokens that are known; else {TOKENS_VARIABLE}.", metavar="FILE"),
    option("--tls-cert", "The certificate, with its chain.", metavar="FILE"),
    option("--tls-key", "Its key.", metavar="FILE"),
    option("--insecure-no-tokens", "Answer whoever asks.", is_flag=True),
    option("--insecure-no-tls", "Let others reach it without TLS.", is_flag=True),
    option("--ui", "Serve the page, too.", is_flag=True),
    option("--changes", "Let tokens that may change something do so.", is_flag=True),
    option(
        "--reads-per-second",
        "Read so many records for the page, in each worker.",
        type=click.IntRange(10, 100_000),
        metavar="N",
    ),
    option("--grpc", "Answer Envoy there.", metavar="HOST:PORT"),
    option("--grpc-rules", "Whom its descriptors are charged to.", metavar="FILE"),
    option("--metrics/--no-metrics", "Serve /metrics.", default=True),
    option("--metrics-open", "Serve it without a token.", is_flag=True),
    option("--lease-seconds", "When a lease expires that does not say.", type=SECONDS, default=60.0),
    option("--shutdown-seconds", "How long the last requests may take.", type=SECONDS, default=15.0),
)


class ServeNoun(Noun):
    """A command that has commands of its own."""


@click.group("serve", cls=ServeNoun, invoke_without_command=True)
@_OPTIONS
@with_session
def serve(session: Session, **options: Any) -> None:
    """Answer programs of any language over HTTP.

    It listens on this machine only, unless --host says otherwise. Without tokens it makes one when it
    starts, and prints it.
    """
    if click.get_current_context().invoked_subcommand is not None:
        return
    config, secret = config_of(session, options).with_made_token()
    envoy.check(config)
    session.repository.close()  # it can be opened: the workers do so by themselves
    from ..server.run import bound_socket
    from ..server.run import serve as run

    listening = bound_socket(config)
    config = replace(config, port=listening.getsockname()[1])
    run(config, listening, lambda grpc_port: announce(session.output, config, secret, grpc_port))


@serve.verb("token")
@option(
    "--scope scopes",
    "What it is good for. May be repeated.",
    type=click.Choice([scope.value for scope in TokenScope]),
    multiple=True,
    default=("decide",),
)
@click.argument("name", default="token")
@with_output
def token(output: Output, name: str, scopes: tuple[str, ...]) -> None:
    """Make a token NAME: the token for whoever asks, and a line for the file of --tokens."""
    secret = new_secret(World())
    made = token_of(name, scopes, secret)
    if not output.json({"token": secret, "line": made.line}):
        output.note(f"token: {secret}")
        click.echo(made.line)


def config_of(session: Session, options: dict[str, Any]) -> ServerConfig:
    """What the command line and the environment ask for."""
    file, environment = options.pop("tokens_file"), os.environ.get(TOKENS_VARIABLE, "")
    tokens: tuple[Token, ...] = ()
    if file is not None:
        tokens = read_tokens(Path(file).read_text(encoding="utf-8"), "tokens")
    elif environment:
        tokens = read_tokens(environment.replace(";", "\n"), TOKENS_VARIABLE)
    for name in ("tls_cert", "tls_key", "grpc_rules"):
        options[name] = None if options[name] is None else Path(options[name])
    return ServerConfig(store=session.url, namespace=session.namespace_name, tokens=tokens, **options)


def announce(output: Output, config: ServerConfig, secret: str | None, grpc_port: int | None = None) -> None:
    """Say where it is, and with what to ask it."""
    host = f"[{config.host}]" if ":" in config.host else config.host
    where = f"{'https' if config.is_tls else 'http'}://{host}:{config.port}"
    output.note(f"serving {without_secrets(config.store or '')} at {where}; Ctrl-C ends it")
    if config.grpc is not None:
        at, _, port = config.grpc.rpartition(":")
        output.note(f"Envoy asks at {at}:{grpc_port or port}")
    if secret is not None:
        output.note(f"token: {secret}")
        if config.ui:
            output.note(f"page: {where}/ui/#token={secret}")
    elif config.ui:
        output.note(f"page: {where}/ui/")
