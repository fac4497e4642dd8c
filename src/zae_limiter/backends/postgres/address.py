"""Where a store is: the server, the schema and how to use them, out of a URL.

``postgresql://user:password@host:5432/database?schema=zae_limiter``. Options of libpq are passed on by a
list; any other is refused, lest a misspelt one be ignored. The address is shown without user and password.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from psycopg.conninfo import make_conninfo

from ...exceptions import USER_CUT, ValidationError, is_user_cut, without_secrets
from ...models import check_count
from .layout import SCHEMA, check_schema

TIMEOUT_MS, TIMEOUT_MS_MAX = 2_000, 600_000
POOL, POOL_MAX = 4, 200
OWN = frozenset({"schema", "timeout_ms", "pool", "listen"})
PASSED_ON = frozenset(
    {
        "host",
        "hostaddr",
        "port",
        "dbname",
        "user",
        "passfile",
        "service",
        "application_name",
        "channel_binding",
        "client_encoding",
        "gssencmode",
        "gsslib",
        "keepalives",
        "keepalives_idle",
        "keepalives_interval",
        "keepalives_count",
        "krbsrvname",
        "load_balance_hosts",
        "options",
        "require_auth",
        "sslcert",
        "sslcertmode",
        "sslcrl",
        "sslcrldir",
        "sslkey",
        "sslmode",
        "sslnegotiation",
        "sslrootcert",
        "sslsni",
        "ssl_min_protocol_version",
        "ssl_max_protocol_version",
        "target_session_attrs",
        "tcp_user_timeout",
    }
)
HINT = (
    "use postgresql://USER:PASSWORD@HOST:5432/DATABASE?schema=…&timeout_ms=…&pool=…&listen=… "
    "and options of libpq such as sslmode"
)
NAME = "zae-limiter"


@dataclass(frozen=True)
class Address:
    """A store on a PostgreSQL server. ``conninfo`` has secrets in it and is never shown."""

    schema: str
    conninfo: str
    place: str
    """What is shown of it: hosts, database and schema."""
    timeout_ms: int = TIMEOUT_MS
    pool: int = POOL
    listen: str | None = None
    """Where changes are heard; nothing if nobody listens."""

    def __repr__(self) -> str:
        return f"Address({self.place})"


def parse_url(url: str, timeout_ms: int | None = None) -> Address:
    """The store of a URL, checked."""
    parts = urlsplit(url)
    shown = without_secrets(url)
    if parts.fragment or is_user_cut(parts, OWN | PASSED_ON):
        raise ValidationError("store", shown, f"{USER_CUT}; {HINT}")
    options = dict(given := parse_qsl(parts.query, keep_blank_values=True))
    if len(options) < len(given):
        raise ValidationError("store", shown, "an option is given twice")
    if "password" in options:
        raise ValidationError("store", shown, "write the password before the host, or use passfile")
    if unknown := sorted(options.keys() - OWN - PASSED_ON):
        raise ValidationError("store", shown, f"unknown option {', '.join(unknown)}; {HINT}")
    if empty := sorted(name for name, value in options.items() if not value):
        raise ValidationError(empty[0], "", "give it a value or leave it out")
    numbers: dict[str, int] = {}
    for name, value_max in (("timeout_ms", TIMEOUT_MS_MAX), ("pool", POOL_MAX)):
        if name in options:
            numbers[name] = check_count(name, _whole(options.pop(name)), value_max)
    if timeout_ms is not None:
        numbers["timeout_ms"] = check_count("timeout_ms", timeout_ms, TIMEOUT_MS_MAX)
    schema = check_schema(options.pop("schema", SCHEMA))
    listen = options.pop("listen", "on")
    server = _server_of(parts, shown) | options
    conninfo = _conninfo(server, shown)
    where = f"{server.get('host', 'localhost')}/{server.get('dbname', '')}"
    place = f"schema {schema!r} of {where!r}"
    return Address(schema, conninfo, place, listen=_listening(listen, server, shown), **numbers)


def _server_of(parts: Any, shown: str) -> dict[str, str]:
    """The part of a URL before its options, as libpq calls it; several hosts are separated by commas."""
    user, _, hosts = parts.netloc.rpartition("@")
    name, _, password = user.partition(":")
    found = {"user": unquote(name), "password": unquote(password), "dbname": unquote(parts.path[1:])}
    names, ports = [], []
    for host in hosts.split(",") if hosts else ():
        if host.startswith("["):
            inside, _, behind = host[1:].partition("]")
            one, port = inside, behind.removeprefix(":")
        else:
            one, _, port = host.partition(":")
        if port and not (port.isascii() and port.isdigit() and 0 < int(port) < 65_536):
            raise ValidationError("store", shown, "the port is no number of one")
        names.append(unquote(one))
        ports.append(port or "5432")
    if names:
        found |= {"host": ",".join(names), "port": ",".join(ports)}
    return {option: value for option, value in found.items() if value}


def _listening(listen: str, server: dict[str, str], shown: str) -> str | None:
    """How to reach whoever tells of changes: the same server, another host and port, or nobody."""
    if listen == "off":
        return None
    if listen == "on":
        return _conninfo(server, shown)
    host, _, port = listen.rpartition(":")
    if not host or not (port.isascii() and port.isdigit()):
        raise ValidationError("listen", listen, "it is on, off, or HOST:PORT of a server that is no pooler")
    return _conninfo(server | {"host": host, "port": port}, shown)


def _conninfo(server: dict[str, str], shown: str) -> str:
    try:
        return make_conninfo("", **({"application_name": NAME} | server | {"client_encoding": "UTF8"}))
    except Exception as error:  # whatever libpq has against an option, with or without the value in it
        raise ValidationError("store", shown, f"libpq refuses an option of it; {HINT}") from error


def _whole(text: str) -> Any:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else text
