"""Tokens: who has one, what it is good for, and what it hashes to.

A token is 256 bits of chance, so its SHA-256 is as hard to guess as the token, and only that is kept. A file
of tokens has a line for each, and may be read by whoever reads it: there is no token in it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass

from ..exceptions import ValidationError
from ..models.checks import Choice
from ..runtime.world import World

TOKENS_MAX = 256
"""How many a server knows: what is sent is compared with all of them."""

TOKEN_PREFIX = "zae_"
"""It tells people, and scanners of leaks, what such a text is."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", re.ASCII)
_HASH = re.compile(r"sha256:([0-9a-f]{64})", re.ASCII)


class TokenScope(Choice):
    """What a token is good for."""

    DECIDE = "decide"
    """Ask for decisions and leases."""
    READ = "read"
    """Look at entities, limits, levels, usage and counters."""
    CHANGE = "change"
    """Change limits and switches, top up, reset."""


@dataclass(frozen=True)
class Token:
    """A token as the server knows it: who has it, what it is good for, and what it hashes to."""

    name: str
    scopes: frozenset[TokenScope]
    sha256: str

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not _NAME.fullmatch(self.name):
            raise ValidationError("name of a token", self.name, "use letters, digits, '.', '_' and '-'")
        if not self.scopes:
            raise ValidationError("scopes", "", f"use {', '.join(TokenScope)}, with commas")
        if not isinstance(self.sha256, str) or not re.fullmatch("[0-9a-f]{64}", self.sha256):
            # Somebody may have written the token itself, which is not shown.
            raise ValidationError(
                "hash of a token", "…", "take the line that `zae-limiter serve token` prints"
            )

    @property
    def line(self) -> str:
        """What a file of tokens says of it."""
        return f"{self.name} {','.join(sorted(self.scopes))} sha256:{self.sha256}"


def new_secret(world: World) -> str:
    """A token that nobody can guess."""
    return f"{TOKEN_PREFIX}{world.random.getrandbits(256):064x}"


def token_of(name: str, scopes: Iterable[str], secret: str) -> Token:
    """What the server is told of a token."""
    chosen = frozenset(TokenScope.chosen("scope", one) for one in scopes)
    return Token(name, chosen, hashlib.sha256(secret.encode()).hexdigest())


def read_tokens(text: str, where: str = "tokens") -> tuple[Token, ...]:
    """The tokens of a file, a line each: name, scopes with commas, hash. ``#`` begins a remark."""
    tokens: dict[str, Token] = {}
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        found = _HASH.fullmatch(words[-1]) if len(words) == 3 else None
        if found is None:
            way_out = "write: name scope,scope sha256:…, as `zae-limiter serve token` prints it"
            raise ValidationError(where, f"line {number}", way_out)
        token = Token(
            words[0], frozenset(TokenScope.chosen("scope", one) for one in words[1].split(",")), found[1]
        )
        if token.name in tokens:
            raise ValidationError(where, token.name, f"line {number} has the name of an earlier token")
        tokens[token.name] = token
    if len(tokens) > TOKENS_MAX:
        raise ValidationError(where, len(tokens), f"use at most {TOKENS_MAX} tokens")
    return tuple(tokens.values())
