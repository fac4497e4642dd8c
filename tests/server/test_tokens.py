"""Tokens: made by chance, kept as hashes, read from a file that has none of them."""

from __future__ import annotations

import pytest

from zae_limiter.exceptions import ValidationError
from zae_limiter.runtime.world import World
from zae_limiter.server.tokens import TOKENS_MAX, new_secret, read_tokens, token_of


def test_a_line_reads_back_and_has_no_token() -> None:
    secret = new_secret(World())
    made = token_of("gateway", ["read", "decide"], secret)
    assert secret not in made.line
    assert len(secret) == 68
    assert new_secret(World()) != secret
    assert read_tokens(f"# ours\n\n{made.line}  # the gateway's\n") == (made,)


@pytest.mark.parametrize(
    "text",
    [
        "gateway decide",
        "gateway decide sha256:abc",
        f"gateway everything sha256:{'0' * 64}",
        f"gate:way decide sha256:{'0' * 64}",
        f"a decide sha256:{'0' * 64}\na read sha256:{'1' * 64}",
        f"a , sha256:{'0' * 64}",
    ],
)
def test_lines_that_cannot_be(text: str) -> None:
    with pytest.raises(ValidationError):
        read_tokens(text)


def test_a_token_in_the_place_of_its_hash_is_not_shown() -> None:
    secret = new_secret(World())
    with pytest.raises(ValidationError) as wrong:
        read_tokens(f"gateway decide {secret}")
    assert secret not in str(wrong.value)


def test_there_are_not_too_many() -> None:
    lines = [token_of(f"t{n}", ["read"], str(n)).line for n in range(TOKENS_MAX + 1)]
    assert len(read_tokens("\n".join(lines[:-1]))) == TOKENS_MAX
    with pytest.raises(ValidationError):
        read_tokens("\n".join(lines))
