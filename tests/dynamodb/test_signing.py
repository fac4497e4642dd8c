"""Our signatures against botocore's own signer, on thousands of random requests."""

import random
import string
from datetime import UTC, datetime
from typing import Any
from unittest import mock

import botocore.auth
import botocore.awsrequest
import botocore.credentials
import pytest
from botocore.credentials import ReadOnlyCredentials

from zae_limiter.backends.dynamodb.http.signing import Signer

REQUESTS = 5_000
OPERATIONS = ("UpdateItem", "PutItem", "DeleteItem", "BatchGetItem", "Query", "TransactWriteItems")
PRINTABLE = "".join(chr(code) for code in range(0x21, 0x7F))


def text(dice: random.Random, alphabet: str, longest: int) -> str:
    return "".join(dice.choices(alphabet, k=dice.randint(1, longest)))


def body_of(dice: random.Random) -> bytes:
    """Any text: the signer must not care what it signs."""
    kind = dice.randrange(4)
    if kind == 0:
        return b""
    if kind == 1:
        return "".join(chr(dice.choice((9, 10, 65, 0xE9, 0x4E2D, 0x1F600))) for _ in range(40)).encode()
    return dice.randbytes(dice.randrange(2_000)) if kind == 2 else b'{"TableName":"t"}'


def parsed(request: bytes) -> tuple[str, dict[str, str], bytes]:
    head, _, body = request.partition(b"\r\n\r\n")
    first, *lines = head.decode("ascii").split("\r\n")
    fields = dict(line.split(": ", 1) for line in lines)
    assert len(fields) == len(lines)
    return first, fields, body


def theirs(credentials: Any, region: str, url: str, fields: dict[str, str], body: bytes, at: datetime) -> str:
    """What botocore puts into the header of the same request."""
    signer = botocore.auth.SigV4Auth(botocore.credentials.Credentials(*credentials), "dynamodb", region)
    unsigned = {n: v for n, v in fields.items() if n not in ("authorization", "content-length", "x-amz-date")}
    del unsigned["accept-encoding"]  # botocore's HTTP client adds it behind the signer
    unsigned.pop("x-amz-security-token", None)
    del unsigned["host"]
    request = botocore.awsrequest.AWSRequest("POST", url, unsigned, body)
    with mock.patch.object(botocore.auth, "get_current_datetime", return_value=at):
        signer.add_auth(request)
    assert request.headers["X-Amz-Date"] == fields["x-amz-date"]
    assert request.headers.get("X-Amz-Security-Token") == fields.get("x-amz-security-token")
    return str(request.headers["Authorization"])


def test_signatures_are_those_of_botocore() -> None:
    """Random keys, tokens, regions, hosts, operations, bodies and dates; signers are used more than once."""
    dice = random.Random(4)
    checked = 0
    while checked < REQUESTS:
        credentials = ReadOnlyCredentials(
            text(dice, PRINTABLE, 128),
            text(dice, PRINTABLE + "éß中😀 ", 60),
            text(dice, PRINTABLE, 900) if dice.random() < 0.6 else None,
        )
        region = text(dice, string.ascii_lowercase + string.digits + "-", 20)
        secure, port = dice.random() < 0.5, dice.choice((None, 80, 443, dice.randint(1, 65_535)))
        name = dice.choice((f"dynamodb.{region}.amazonaws.com", "127.0.0.1", "[::1]", "localhost"))
        usual = port is None or port == (443 if secure else 80)
        host = name if usual else f"{name}:{port}"
        url = f"http{'s' if secure else ''}://{name}{f':{port}' if port else ''}/"
        agent = text(dice, PRINTABLE + " ", 80)
        signer = Signer(credentials, region, host, agent)
        at_s = dice.randrange(4_000_000_000)
        for _ in range(dice.randint(1, 20)):
            at_s += dice.choice((0, 0, 1, 59, 86_399, 86_400))
            body, operation = body_of(dice), dice.choice(OPERATIONS)
            first, fields, sent = parsed(signer.request(operation, body, at_s))
            assert (first, sent) == ("POST / HTTP/1.1", body)
            assert fields["x-amz-target"] == f"DynamoDB_20120810.{operation}"
            assert (fields["host"], fields["content-length"]) == (host, str(len(body)))
            at = datetime.fromtimestamp(at_s, UTC)
            assert fields["authorization"] == theirs(credentials, region, url, fields, body, at)
            checked += 1


def test_a_change_of_anything_changes_the_signature() -> None:
    """Nothing of what is kept between requests is kept too long."""
    base = Signer(ReadOnlyCredentials("a", "s", "t"), "eu-west-1", "host", "agent")
    others = [
        Signer(ReadOnlyCredentials("a", "x", "t"), "eu-west-1", "host", "agent").request("Query", b"{}", 7),
        Signer(ReadOnlyCredentials("a", "s", "x"), "eu-west-1", "host", "agent").request("Query", b"{}", 7),
        Signer(ReadOnlyCredentials("a", "s", "t"), "eu-west-2", "host", "agent").request("Query", b"{}", 7),
        Signer(ReadOnlyCredentials("a", "s", "t"), "eu-west-1", "tsoh", "agent").request("Query", b"{}", 7),
        base.request("Query", b"{ }", 7),
        base.request("PutItem", b"{}", 7),
        base.request("Query", b"{}", 8),
        base.request("Query", b"{}", 7 + 86_400),
    ]
    signatures = [
        request.partition(b"Signature=")[2][:64] for request in (base.request("Query", b"{}", 7), *others)
    ]
    assert len(set(signatures)) == 9


BAD = [(place, bad) for place in ("access_key", "token") for bad in ("two\r\nlines", "a b", "tab\t", "é")]


@pytest.mark.parametrize(("place", "bad"), [*BAD, ("access_key", "")])
def test_what_no_header_can_carry_is_refused_and_not_shown(place: str, bad: str) -> None:
    """A token that was copied with a line break would otherwise write headers of its own."""
    credentials = ReadOnlyCredentials("key", "secret", "token")._replace(**{place: bad})
    with pytest.raises(ValueError, match="no header can carry") as raised:
        Signer(credentials, "eu-west-1", "host", "agent")
    assert not bad.strip() or bad not in str(raised.value)


def test_an_empty_token_is_none() -> None:
    """So botocore has it, where a variable is set to nothing."""
    signers = [Signer(ReadOnlyCredentials("a", "s", token), "eu-west-1", "host", "x") for token in ("", None)]
    assert signers[0].request("Query", b"{}", 7) == signers[1].request("Query", b"{}", 7)
