"""Whose request it is: from a header, from a claim that was verified, or from the client's address.

Nothing here authenticates anybody. An address behind proxies is read from the right: only what a trusted
proxy has written is believed, and what it cannot say is charged to the proxy. What cannot be the id of an
entity as it is, such as a long token, is one by its hash: it is limited in any case.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from itertools import islice
from typing import Any, TypeAlias

from ..exceptions import ValidationError
from ..models.checks import check_count
from ..naming import validate_entity_id
from .answers import RequestRefused
from .request import RequestFacts

Identity: TypeAlias = Callable[[Any], "str | Awaitable[str | None] | None"]
"""From a request to the id of an entity; ``None`` if it is nobody's."""

Address: TypeAlias = IPv4Address | IPv6Address
Network: TypeAlias = IPv4Network | IPv6Network

UNKNOWN = "unknown"
"""Who comes without an address, as through a Unix socket that is not trusted, or with what is none, which a
server may have believed a client: all of them together."""

UNIX = "unix"
"""Among trusted networks: whatever comes without an address comes from a proxy."""

_HOPS_MAX = 64
"""How far a list of proxies is walked."""

# An element of ``Forwarded`` with its letters in reverse order: the quote that opens a text stands after "=",
# those within it after a backslash. Nothing here goes back, so a header is read in one pass.
_ELEMENT_REVERSED = re.compile(r'(?:[^",]++|"(?:[^"]++|"(?=\\))*+"(?==))*+')
_PAIR = re.compile(r'([^=;"]*+)(?:=\s*+([^";]++|"(?:[^"\\]++|\\.)*+"\s*+|))?+(?:;|\Z)', re.DOTALL)


def hashed_id(secret: str) -> str:
    """The id of an entity that is known by a secret: it tells nobody what the secret is.

    >>> hashed_id("sk-1")
    'sha256:0f2c10bf3d128c719c6bfa4ecbae94b7fceebaea6e4438fef38a90e5acc326f3'
    """
    return f"sha256:{hashlib.sha256(secret.encode('utf-8', 'surrogatepass')).hexdigest()}"


def entity_of(value: str) -> str:
    """A text as the id of an entity: itself if it can be one, otherwise its hash."""
    try:
        return validate_entity_id(value)
    except ValidationError:
        return hashed_id(value)


class Identified:
    """Finds whose request it is; ``None`` if it says nothing.

    ``challenge`` tells how to say it, and ``missing`` what was not said.
    """

    __slots__ = ("_anonymous", "_find", "challenge", "missing")

    def __init__(
        self, find: Callable[[RequestFacts], str | None], challenge: str, missing: str, anonymous: str | None
    ) -> None:
        self.challenge: str = challenge
        self.missing: str = missing
        self._find = find
        self._anonymous = None if anonymous is None else validate_entity_id(anonymous)

    def __call__(self, request: RequestFacts) -> str | None:
        return self._find(request) or self._anonymous


def api_key(header: str = "x-api-key", *, anonymous: str | None = None, hashed: bool = False) -> Identified:
    """Whoever sends a key in a header. With ``hashed`` the store never sees the key: ``hashed_id``.

    Who sends none is ``anonymous``, or is refused with 401 if nobody is named.
    """
    name, named = header.lower(), hashed_id if hashed else entity_of

    def find(request: RequestFacts) -> str | None:
        key = _single(request, name)
        return named(key) if key else None

    return Identified(find, f'ApiKey realm="api", header="{name}"', f"no key was sent in {name}", anonymous)


def bearer(*, anonymous: str | None = None, hashed: bool = False) -> Identified:
    """Whoever sends a bearer token in ``Authorization``; all else is as for ``api_key``."""
    named = hashed_id if hashed else entity_of

    def find(request: RequestFacts) -> str | None:
        scheme, _, token = _single(request, "authorization").partition(" ")
        token = token.strip()
        return named(token) if token and scheme.lower() == "bearer" else None

    return Identified(find, "Bearer", "no bearer token was sent in authorization", anonymous)


def claim(name: str, *, state: str = "claims", anonymous: str | None = None) -> Identified:
    """Whom a verified token names: ``claim("sub")`` is ``request.state.claims["sub"]``.

    Your authentication puts the claims there, in front of this; an object with attributes will do as well.
    """

    def find(request: RequestFacts) -> str | None:
        claims = request.state.get(state)
        found = claims.get(name) if isinstance(claims, Mapping) else getattr(claims, name, None)
        return None if found is None or found == "" else entity_of(str(found))

    return Identified(find, "Bearer", "nobody has signed in", anonymous)


def client_address(
    *, trusted: Iterable[str] = (), header: str = "x-forwarded-for", v4_prefix: int = 32, v6_prefix: int = 64
) -> Callable[[RequestFacts], str]:
    """Where the request comes from: an address, or its network where one client has many.

    - ``trusted``: networks of your own proxies, such as ``["10.0.0.0/8"]``, and ``"unix"`` for a socket.
    - ``header``: what they write: ``x-forwarded-for``, ``forwarded``, or one with a single address.
    - ``v4_prefix``, ``v6_prefix``: how much of an address tells clients apart.
    """
    networks, is_unix_trusted = _networks(trusted)
    check_count("v4_prefix", v4_prefix, 32)
    check_count("v6_prefix", v6_prefix, 128)
    name = header.lower()
    hops_of = _forwarded if name == "forwarded" else _listed_hops

    def is_trusted(address: Address | None) -> bool:
        return is_unix_trusted if address is None else any(address in network for network in networks)

    def found(peer: str | None, sent: tuple[str, ...]) -> str:
        address = None if peer is None else _address(peer)
        if peer is not None and address is None:
            return UNKNOWN  # whatever it says of proxies, or else each made-up name would be somebody new
        if sent and is_trusted(address):
            for hop in islice(hops_of(sent), _HOPS_MAX):
                seen = _address(hop)
                if seen is None:  # the proxy to the right of it could not say: it answers for that
                    break
                address = seen
                if not is_trusted(seen):
                    break
        return UNKNOWN if address is None else _grouped(address, v4_prefix, v6_prefix)

    remembered = lru_cache(4096)(found)

    def identify(request: RequestFacts) -> str:
        sent = tuple(request.headers.all(name)) if networks or is_unix_trusted else ()
        # What somebody makes long is not remembered for him.
        peer = request.client_host or None
        return (remembered if sum(map(len, (peer or "", *sent))) <= 256 else found)(peer, sent)

    return identify


MAKERS: tuple[object, ...] = api_key, bearer, claim, client_address
"""What is called to have an identity, and is none itself."""


def _single(request: RequestFacts, name: str) -> str:
    """The one value of a header; who sends several means to be taken for somebody else."""
    values = set(request.headers.all(name))
    if len(values) > 1:
        raise RequestRefused(400, f"{name} was sent more than once")
    return values.pop().strip() if values else ""


def _networks(trusted: Iterable[str]) -> tuple[list[Network], bool]:
    hint = "pass a list of networks, such as ['10.0.0.0/8', '::1'], or 'unix'"
    if isinstance(trusted, str):
        raise ValidationError("trusted", trusted, hint)
    networks, is_unix_trusted = list[Network](), False
    for one in trusted:
        if one == UNIX:
            is_unix_trusted = True
            continue
        try:
            networks.append(ip_network(one))
        except ValueError as error:
            raise ValidationError("trusted", one, f"{error}; {hint}") from error
    return networks, is_unix_trusted


def _listed_hops(sent: tuple[str, ...]) -> Iterator[str]:
    return reversed(",".join(sent).split(","))


def _forwarded(sent: tuple[str, ...]) -> Iterator[str]:
    """What ``for=`` says in each element of RFC 7239, the last first; nothing where one does not say it.

    It is read from the right, where our own proxies have written: no quote that a client leaves open reaches
    what stands after it.
    """
    for line in reversed(sent):
        turned, at = line[::-1], 0
        while at <= len(turned):
            found = _ELEMENT_REVERSED.match(turned, at)
            assert found is not None, "it may be empty"
            if turned[found.end() : found.end() + 1] not in ("", ","):  # a quote that nobody opened
                yield ""
                return
            yield _said_for(found.group()[::-1])
            at = found.end() + 1


def _said_for(element: str) -> str:
    said, at = "", 0
    while at < len(element):
        pair = _PAIR.match(element, at)
        if pair is None:
            return ""
        if pair[1].strip().lower() == "for":
            said = (pair[2] or "").strip()
        at = pair.end()
    return re.sub(r"\\(.)", r"\1", said[1:-1]) if said.startswith('"') else said


def _address(text: str) -> Address | None:
    """An address, with or without a port; nothing if it is none."""
    text = text.strip()
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    try:
        address = ip_address(text.partition("%")[0])
    except ValueError:
        return None
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return address


def _grouped(address: Address, v4_prefix: int, v6_prefix: int) -> str:
    is_v4 = isinstance(address, IPv4Address)
    prefix = v4_prefix if is_v4 else v6_prefix
    if prefix == (32 if is_v4 else 128):
        return str(address)
    return str(ip_network((address, prefix), strict=False))
