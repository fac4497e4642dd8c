"""How a server may be started: secure unless somebody says otherwise, and what is wrong names its way out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from zae_limiter.exceptions import ValidationError
from zae_limiter.server import ServerConfig, TokenScope
from zae_limiter.server.config import is_loopback
from zae_limiter.server.tokens import token_of

TOKENS = (token_of("a", ["decide"], "x"),)
TLS = {"tls_cert": Path("c"), "tls_key": Path("k")}

WRONG: list[tuple[dict[str, Any], str]] = [
    ({"host": "0.0.0.0"}, "no token is known"),
    ({"host": "0.0.0.0", "tokens": TOKENS}, "plain text"),
    ({"host": "::", **TLS}, "no token is known"),
    ({"host": "limits.example"}, "use an address"),
    ({"grpc": "0.0.0.0:8401"}, "no token is known"),
    ({"grpc": "8401"}, "host:port"),
    ({"tls_cert": Path("c")}, "together"),
    ({"tokens": TOKENS, "insecure_no_tokens": True}, "leave one of the two out"),
    ({"tokens": TOKENS + TOKENS}, "its own name"),
    ({"store": "memory://", "workers": 2}, "lives in one process"),
    ({"workers": 0}, "workers"),
    ({"port": 65_536}, "port"),
    ({"lease_seconds": 7200.0}, "lease_seconds_max"),
    ({"lease_seconds": float("nan")}, "lease_seconds"),
    ({"wait_seconds_max": 30.0}, "request_seconds_max"),
    ({"body_bytes_max": 1}, "body_bytes_max"),
    ({"ui": 1}, "ui"),
]


@pytest.mark.parametrize(("said", "told"), WRONG, ids=[told for _, told in WRONG])
def test_what_is_refused(said: dict[str, Any], told: str) -> None:
    with pytest.raises(ValidationError, match=told):
        ServerConfig(**said)


@pytest.mark.parametrize(
    "said",
    [
        {},
        {"host": "::1"},
        {"host": "0.0.0.0", "tokens": TOKENS, **TLS},
        {"host": "0.0.0.0", "insecure_no_tokens": True, "insecure_no_tls": True},
    ],
)
def test_what_is_not(said: dict[str, Any]) -> None:
    assert ServerConfig(**said)


def test_a_token_is_made_where_none_is_known() -> None:
    """It is good for what the server grants, and shown once; keys and URLs are in no text."""
    config, secret = ServerConfig(store="postgresql://u:secret@h/d").with_made_token()
    assert secret is not None
    assert config.tokens[0].scopes == {TokenScope.DECIDE, TokenScope.READ}
    assert secret not in repr(config)
    assert "secret@" not in repr(config)
    assert config.session_key.hex() not in repr(config)
    assert ServerConfig(tokens=TOKENS).with_made_token()[1] is None
    assert ServerConfig().session_key != ServerConfig().session_key


def test_what_is_of_this_machine() -> None:
    assert is_loopback("host", "127.8.8.8")
    assert not is_loopback("host", "0.0.0.0")
