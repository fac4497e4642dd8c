"""How a server is started: one frozen value, checked when it is made, the same in every worker.

Secure by default: it listens on loopback only. An address that others reach needs tokens and TLS, or says
in so many words that it goes without. What is wrong is told with the option of the command that mends it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from ipaddress import ip_address
from pathlib import Path
from typing import TypeAlias

from ..exceptions import ValidationError
from ..models.checks import check_count, check_flag
from ..naming import validate_namespace
from ..runtime.world import World
from ..settings import DEFAULT_NAMESPACE
from .tokens import TOKENS_MAX, Token, TokenScope, new_secret, token_of

PORT = 8400
WORKERS_MAX = 64
LEASE_SECONDS_MAX = 86_400
REQUEST_SECONDS_MAX = 600
CONCURRENT_MAX = 65_536
BODY_BYTES_MAX = 2**20
HEADER_BYTES_MAX = 2**16
READS_PER_SECOND_MAX = 100_000


Started: TypeAlias = Callable[[int | None], None]
"""Is told once that requests can come, and at which port Envoy is answered where it is not the one named."""


def _session_key() -> bytes:
    return World().random.getrandbits(256).to_bytes(32)


@dataclass(frozen=True, kw_only=True)
class ServerConfig:
    """What a server is told when it starts."""

    store: str | None = field(default=None, repr=False)  # it may have a password in it
    """The URL of the store; without one, whatever the environment says."""
    namespace: str = DEFAULT_NAMESPACE
    host: str = "127.0.0.1"
    port: int = PORT
    """0 takes a free one."""
    workers: int = 1
    tls_cert: Path | None = None
    tls_key: Path | None = None
    tokens: tuple[Token, ...] = ()
    insecure_no_tokens: bool = False
    """Anybody who reaches the server may ask: something in front of it checks who it is."""
    insecure_no_tls: bool = False
    """Others reach it without TLS: something in front of it speaks that."""
    ui: bool = False
    """Whether the page and its data are served."""
    changes: bool = False
    """Whether anybody may change limits here, however good the token."""
    metrics: bool = True
    metrics_open: bool = False
    """Whether /metrics is answered without a token."""
    grpc: str | None = None
    """Where Envoy asks, as ``host:port``; nowhere without it."""
    grpc_rules: Path | None = None
    """A file that says whom descriptors of Envoy are charged to; without it there is a default."""
    lease_seconds: float = 60.0
    """When a lease expires that does not say so itself."""
    lease_seconds_max: float = 3600.0
    wait_seconds_max: float = 20.0
    """How long a request may wait for its turn."""
    request_seconds_max: float = 30.0
    """After how long a request without an answer is given up."""
    shutdown_seconds: float = 15.0
    """How long requests under way may take once the server is told to end."""
    concurrent_max: int = 1000
    """How many requests a worker has under way; more are answered with 503."""
    body_bytes_max: int = 65_536
    header_bytes_max: int = 16_384
    reads_per_second: int | None = None
    """How many records the page may have read in a second, in each worker, to see who is near a limit while
    somebody looks. Without it 10,000, and 50 on DynamoDB, where each costs a read unit."""
    session_key: bytes = field(default_factory=_session_key, repr=False)
    """What cookies of the page are signed with: all workers have the same, and the next start another."""

    def __post_init__(self) -> None:
        validate_namespace(self.namespace)
        check_count("port", self.port, 65_535, 0)
        check_count("workers", self.workers, WORKERS_MAX)
        check_count("concurrent_max", self.concurrent_max, CONCURRENT_MAX)
        check_count("body_bytes_max", self.body_bytes_max, BODY_BYTES_MAX, 1024)
        check_count("header_bytes_max", self.header_bytes_max, HEADER_BYTES_MAX, 1024)
        if self.reads_per_second is not None:
            check_count("reads_per_second", self.reads_per_second, READS_PER_SECOND_MAX, 10)
        for name in ("insecure_no_tokens", "insecure_no_tls", "ui", "changes", "metrics", "metrics_open"):
            check_flag(name, getattr(self, name))
        for name, most in _SECONDS.items():
            _check_seconds(name, getattr(self, name), most)
        if self.lease_seconds > self.lease_seconds_max:
            raise ValidationError("lease_seconds", self.lease_seconds, "it is more than lease_seconds_max")
        if self.wait_seconds_max >= self.request_seconds_max:
            more = "let it be less than request_seconds_max, or whoever waits is given up"
            raise ValidationError("wait_seconds_max", self.wait_seconds_max, more)
        if len(self.tokens) > TOKENS_MAX:
            raise ValidationError("tokens", len(self.tokens), f"use at most {TOKENS_MAX}")
        if len({token.name for token in self.tokens}) != len(self.tokens):
            raise ValidationError("tokens", [token.name for token in self.tokens], "give each its own name")
        if self.insecure_no_tokens and self.tokens:
            raise ValidationError("insecure_no_tokens", True, "there are tokens; leave one of the two out")
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ValidationError("tls_cert", self.tls_cert, "give the certificate and its key together")
        if self.workers > 1 and (self.store or "").startswith("memory:"):
            raise ValidationError("store", self.store, "it lives in one process; use --workers 1, or a file")
        self._check_reach("host", self.host, way_out_of_tls="--tls-cert and --tls-key")
        if self.grpc is not None:
            host, port = address_of("grpc", self.grpc)
            check_count("port of grpc", port, 65_535, 0)
            self._check_reach("grpc", host, way_out_of_tls="--tls-cert and --tls-key")

    def _check_reach(self, name: str, host: str, *, way_out_of_tls: str) -> None:
        """Nobody else is to reach what has no tokens or no TLS unless that was said."""
        if is_loopback(name, host):
            return
        if not self.tokens and not self.insecure_no_tokens:
            way_out = (
                "make a token (zae-limiter serve token) and pass --tokens FILE; or, if something in front"
            )
            raise ValidationError(
                name,
                host,
                f"others reach it, and no token is known; {way_out} checks who asks, --insecure-no-tokens",
            )
        if self.tls_cert is None and not self.insecure_no_tls:
            raise ValidationError(
                name,
                host,
                f"others reach it, and tokens would travel as plain text; pass {way_out_of_tls}; or, "
                "if something in front speaks TLS, --insecure-no-tls",
            )

    @property
    def is_tls(self) -> bool:
        return self.tls_cert is not None

    @property
    def allowed(self) -> frozenset[TokenScope]:
        """The scopes that this server grants at all."""
        return frozenset(scope for scope in TokenScope if self.changes or scope is not TokenScope.CHANGE)

    def with_made_token(self, world: World | None = None) -> tuple[ServerConfig, str | None]:
        """The same with a token that is good for all it grants, and that token, if it would have none."""
        if self.tokens or self.insecure_no_tokens:
            return self, None
        secret = new_secret(world or World())
        return replace(self, tokens=(token_of("made-at-start", self.allowed, secret),)), secret


_SECONDS = {
    "lease_seconds": LEASE_SECONDS_MAX,
    "lease_seconds_max": LEASE_SECONDS_MAX,
    "wait_seconds_max": REQUEST_SECONDS_MAX,
    "request_seconds_max": REQUEST_SECONDS_MAX,
    "shutdown_seconds": REQUEST_SECONDS_MAX,
}


def _check_seconds(name: str, value: float, most: float) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= most:
        raise ValidationError(name, value, f"use seconds, more than 0 and at most {most}")
    assert math.isfinite(value), "it is at most so much"


def address_of(name: str, text: str) -> tuple[str, int]:
    """The two parts of ``host:port``."""
    host, colon, port = text.rpartition(":")
    if not colon or not host or not (port.isascii() and port.isdecimal()):
        raise ValidationError(name, text, "write host:port, such as 127.0.0.1:8401")
    return host.strip("[]"), int(port)


def is_loopback(name: str, host: str) -> bool:
    """Whether only this machine reaches an address."""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError as error:
        raise ValidationError(name, host, "use an address, such as 127.0.0.1 or ::, or localhost") from error
