"""Whose request it is."""

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.web.calls import http_scope
from zae_limiter import ValidationError
from zae_limiter.naming import validate_entity_id
from zae_limiter.web import Request, RequestRefused, api_key, bearer, claim, client_address, hashed_id


async def nothing() -> Any:
    raise AssertionError("nobody reads")


def request(
    headers: list[tuple[str, str]] | None = None, client: Any = ("192.0.2.7", 1), **more: Any
) -> Request:
    pairs = [(name.encode(), value.encode("utf-8")) for name, value in headers or []]
    return Request({**http_scope("/"), "headers": pairs, "client": client, **more}, nothing)


def test_an_api_key() -> None:
    """From the header that is named, whatever its case; nobody, or a name for all, without it."""
    who = api_key("X-Key")
    assert who(request([("x-key", " key-1 ")])) == "key-1"
    assert who(request()) is None
    assert "x-key" in who.challenge
    assert api_key(anonymous="guests")(request([("x-api-key", "")])) == "guests"
    assert api_key(hashed=True)(request([("x-api-key", "sk-1")])) == hashed_id("sk-1")
    with pytest.raises(ValidationError):
        api_key(anonymous="$x")


def test_two_keys_are_nobodys() -> None:
    """Who sends two might be admitted by one and charged for the other."""
    with pytest.raises(RequestRefused, match="more than once"):
        api_key()(request([("x-api-key", "a"), ("x-api-key", "b")]))
    assert api_key()(request([("x-api-key", "a"), ("x-api-key", "a")])) == "a"


@pytest.mark.parametrize(
    ("sent", "who"),
    [("Bearer t-1", "t-1"), ("bearer  t-1", "t-1"), ("Basic t-1", None), ("Bearer", None), ("", None)],
)
def test_a_bearer_token(sent: str, who: str | None) -> None:
    """Only of that scheme."""
    assert bearer()(request([("authorization", sent)])) == who


def test_a_claim() -> None:
    """Of a mapping or an object that authentication has put into the state."""

    class User:
        sub = 7

    assert claim("sub")(request(state={"claims": {"sub": "u-1"}})) == "u-1"
    assert claim("sub", state="user")(request(state={"user": User()})) == "7"
    assert claim("sub")(request()) is None
    assert claim("sub", anonymous="guests")(request(state={"claims": {}})) == "guests"


@given(st.text(st.characters(codec="latin-1", exclude_characters="\r\n"), max_size=600))
def test_any_key_is_somebody(key: str) -> None:
    """What cannot be an id is one by its hash, so no key leads around the limits or to an error."""
    found = api_key()(request([("x-api-key", key)]))
    if found is None:
        assert not key.encode().decode("latin-1").strip()
    else:
        assert validate_entity_id(found) == found


PROXIES = ["10.0.0.0/8", "2001:db8:ffff::/48"]


@pytest.mark.parametrize(
    ("peer", "sent", "who"),
    [
        ("192.0.2.7", [], "192.0.2.7"),
        ("192.0.2.7", ["198.51.100.1"], "192.0.2.7"),  # it is no proxy of ours
        ("10.0.0.1", ["198.51.100.1"], "198.51.100.1"),
        ("10.0.0.1", ["6.6.6.6, 198.51.100.1"], "198.51.100.1"),  # what the client wrote itself
        ("10.0.0.1", ["6.6.6.6, 198.51.100.1, 10.9.9.9"], "198.51.100.1"),
        ("10.0.0.1", ["6.6.6.6", "198.51.100.1"], "198.51.100.1"),
        ("10.0.0.1", ["10.2.2.2, 10.3.3.3"], "10.2.2.2"),
        ("10.0.0.1", ["198.51.100.1:4711"], "198.51.100.1"),
        ("10.0.0.1", ["[2001:db8::1]:4711"], "2001:db8::/64"),
        ("10.0.0.1", ["2001:db8:0:7:1::1"], "2001:db8:0:7::/64"),
        ("10.0.0.1", ["::ffff:198.51.100.1"], "198.51.100.1"),
        ("10.0.0.1", ["fe80::1%eth0"], "fe80::/64"),
        ("10.0.0.1", ["6.6.6.6, unknown"], "10.0.0.1"),  # the proxy could not say
        ("10.0.0.1", ["6.6.6.6, , 10.3.3.3"], "10.3.3.3"),
        ("10.0.0.1", [""], "10.0.0.1"),
        ("2001:db8:ffff::1", ["198.51.100.1"], "198.51.100.1"),
        ("::ffff:10.0.0.1", ["198.51.100.1"], "198.51.100.1"),
        ("testclient", ["198.51.100.1"], "unknown"),
    ],
)
def test_an_address_behind_proxies(peer: str, sent: list[str], who: str) -> None:
    """The list is walked from the right, through our own proxies and no further."""
    find = client_address(trusted=PROXIES)
    assert find(request([("x-forwarded-for", one) for one in sent], (peer, 1))) == who


@pytest.mark.parametrize(
    ("sent", "who"),
    [
        (["for=198.51.100.1"], "198.51.100.1"),
        (['for=6.6.6.6, For="198.51.100.1:80";proto=https;by=10.0.0.1'], "198.51.100.1"),
        (['for="[2001:db8::1]:4711"'], "2001:db8::/64"),
        (['by="a,for=6.6.6.6";for=198.51.100.1'], "198.51.100.1"),
        (["for=6.6.6.6, for=_hidden"], "10.0.0.1"),
        (["for=198.51.100.1", "for=10.3.3.3"], "198.51.100.1"),
        (["proto=https"], "10.0.0.1"),
        (['for="6.6.6.6'], "10.0.0.1"),
    ],
)
def test_the_forwarded_header(sent: list[str], who: str) -> None:
    """The same from RFC 7239, with quotes and ports."""
    find = client_address(trusted=PROXIES, header="Forwarded")
    assert find(request([("forwarded", one) for one in sent], ("10.0.0.1", 1))) == who


def test_one_header_is_believed() -> None:
    """A proxy that writes one of the two passes the other on as the client sent it."""
    find = client_address(trusted=PROXIES)
    assert find(request([("forwarded", "for=6.6.6.6")], ("10.0.0.1", 1))) == "10.0.0.1"


def test_a_socket_without_addresses() -> None:
    """Whoever comes through it is one, unless it is a proxy's."""
    sent = [("x-forwarded-for", "6.6.6.6, 198.51.100.1")]
    assert client_address()(request(sent, None)) == "unknown"
    assert client_address(trusted=["unix"])(request(sent, None)) == "198.51.100.1"


def test_what_is_no_address_is_nobody_new() -> None:
    """Servers that believe a client's header say whatever it has made up: all of that is one together."""
    made_up = ("testclient", "a", "999.1.1.1", "x" * 70_000)
    for find in (client_address(), client_address(trusted=["unix"])):
        sent = [("x-forwarded-for", "6.6.6.6")]
        assert {find(request(sent, (host, 1))) for host in made_up} == {"unknown"}
    assert client_address(trusted=["unix"])(request(sent, ("", 1))) == "6.6.6.6"  # as some call a Unix socket


def test_groups_of_addresses() -> None:
    """As large as they are told."""
    assert client_address(v4_prefix=24)(request(client=("192.0.2.7", 1))) == "192.0.2.0/24"
    assert client_address(v6_prefix=128)(request(client=("2001:db8::1", 1))) == "2001:db8::1"


@pytest.mark.parametrize(
    "wrong",
    [{"trusted": "10.0.0.0/8"}, {"trusted": ["10.0.0.1/8"]}, {"trusted": ["proxy"]}, {"v6_prefix": 129}],
)
def test_wrong_networks_are_told(wrong: dict[str, Any]) -> None:
    """When it is made."""
    with pytest.raises(ValidationError):
        client_address(**wrong)


hops = st.sampled_from(
    ["6.6.6.6", "10.1.1.1", "unknown", "", "::1", '"', "for=6.6.6.6", "2001:db8::5", "9" * 90]
)
marks = st.text(st.sampled_from('for=6.;, "\\[]'), max_size=40)
SEEN = {
    "x-forwarded-for": ["198.51.100.1, 10.2.2.2", "198.51.100.1,[::ffff:10.2.2.2]:80"],
    "forwarded": [
        "for=198.51.100.1, for=10.2.2.2",
        'for="198.51.100.1:5000";proto=https',
        'for=198.51.100.1;host="example.com:443",for="10.2.2.2"',
        r'for=198.51.100.1;host="a\"b"',
        r'by="\\";for="198.51.100.1", for="10.2.2.2";host=",for=10.9.9.9;by=\""',
    ],
}
"""What proxies of ours write, each in its own way."""


@given(
    st.lists(hops, max_size=80).map(", ".join) | marks,
    st.sampled_from([(header, seen) for header in SEEN for seen in SEEN[header]]),
    st.sampled_from([None, ",", ", "]),
)
@example('for=6.6.6.6;a="', ("forwarded", 'for="198.51.100.1:5000";proto=https'), None)
@example('for=6.6.6.6;a="', ("forwarded", r'for=198.51.100.1;host="a\"b"'), ", ")
def test_what_a_client_writes_changes_nothing(forged: str, seen: tuple[str, str], joined: str | None) -> None:
    """Whatever stands to the left of what the first proxy of ours has seen, in its line or in another."""
    header, said = seen
    find = client_address(trusted=["10.0.0.0/8"], header=header)
    lines = [forged, said] if joined is None else [f"{forged}{joined}{said}"]
    assert find(request([(header, line) for line in lines], ("10.0.0.1", 1))) == "198.51.100.1"


@pytest.mark.parametrize("piece", ['\\"', '"', '"a"', '="', ";", ",", "for=", 'a="\\"', "\\", " "])
def test_a_long_header_is_read_once(piece: str) -> None:
    """Each character as often as the next: what would be compared with all others would take hours."""
    find = client_address(trusted=["10.0.0.0/8"], header="forwarded")
    long = piece * (1_000_000 // len(piece))
    for line in (long, f'"{long}', f'for="{long}'):
        assert find(request([("forwarded", line)], ("10.0.0.1", 1))) == "10.0.0.1"
        assert find(request([("forwarded", f"{line}, for=7.7.7.7")], ("10.0.0.1", 1))) == "7.7.7.7"


def test_what_was_not_said_is_told() -> None:
    """In words that help whoever wrote the client."""
    told = [one.missing for one in (api_key("X-Key"), bearer(), claim("sub"))]
    assert told == [
        *("no key was sent in x-key", "no bearer token was sent in authorization", "nobody has signed in"),
    ]
