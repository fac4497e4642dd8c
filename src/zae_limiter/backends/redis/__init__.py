"""The store on Redis or Valkey, opened by URL. It needs no driver: it speaks the protocol itself.

Reading order: ``script.lua`` (what the server does), ``encoding`` and ``requests`` (what is asked, as
data), ``resp`` (the protocol), ``loop`` and ``blocking`` (connections), ``servers`` (whom to ask),
``carrier`` (what may be sent again), ``backend`` (the verbs).
"""

from __future__ import annotations

import re
import ssl
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit

from ...exceptions import USER_CUT, ValidationError, is_user_cut, without_secrets
from ...models import check_count
from ...runtime.world import World
from .address import Login, RedisAddress
from .backend import RedisBackend
from .carrier import Carrier, RedisOptions
from .servers import Cluster, OneServer, Sentinels, Servers

__all__ = ["RedisBackend", "open_backend"]

PORT, SENTINEL_PORT = 6379, 26379
TIMEOUT_MS_MAX = 60_000
LOG_TIMEOUT_MS = 5_000
POOL_MAX = 1_000
REPLICAS_MAX = 100
HOSTS_MAX = 32
PREFIX = re.compile(r"[A-Za-z0-9_.:-]{1,100}")
NUMBERS = {"timeout_ms": TIMEOUT_MS_MAX, "pool": POOL_MAX, "wait_replicas": REPLICAS_MAX}
TLS = ("tls", "tls_ca", "tls_cert", "tls_key")
OPTIONS = ("prefix", *NUMBERS, *TLS)


class Opened(NamedTuple):
    """A URL, read."""

    way: str
    hosts: tuple[tuple[str, int], ...]
    login: Login
    service: str
    options: dict[str, Any]


def open_backend(
    url: str, *, sync: bool = False, world: World | None = None, timeout_ms: int | None = None
) -> RedisBackend:
    """Open a store without touching it; ``setup`` does that. ``timeout_ms`` wins over the URL's."""
    opened = parse_url(url)
    given = opened.options
    if timeout_ms is not None:
        given["timeout_ms"] = check_count("timeout_ms", timeout_ms, TIMEOUT_MS_MAX)
    numbers = {name: given[name] for name in NUMBERS if name in given}
    tls = _tls(given, url)
    root = f"{{{given.get('prefix', 'zae-limiter')}:"
    options = RedisOptions(root=root, tls=tls is not None, **numbers)
    return _over(_servers(opened, tls), options, world or World(), sync=sync)


def reopened(backend: RedisBackend) -> RedisBackend:
    """The same store once more, blocking, and with time enough to read."""
    carrier = backend.carrier
    options = carrier.options._replace(timeout_ms=max(carrier.options.timeout_ms, LOG_TIMEOUT_MS))
    return _over(carrier.servers, options, carrier.world, sync=True)


def _over(servers: Servers, options: RedisOptions, world: World, *, sync: bool) -> RedisBackend:
    if sync:
        from .blocking import ThreadsToRedis

        return RedisBackend(Carrier(ThreadsToRedis(world.ticks_ms), servers, options, world))
    from .loop import LoopToRedis

    return RedisBackend(Carrier(LoopToRedis(world.ticks_ms), servers, options, world))


def _servers(opened: Opened, tls: ssl.SSLContext | None) -> Servers:
    hosts = [RedisAddress(host, port, tls) for host, port in opened.hosts]
    if opened.way == "sentinel":
        return Sentinels(hosts, opened.service, opened.login)
    return Cluster(hosts, opened.login) if opened.way == "cluster" else OneServer(hosts[0], opened.login)


def _tls(given: dict[str, Any], url: str) -> ssl.SSLContext | None:
    files = [name for name in TLS if name in given and name != "tls"]
    if not given.get("tls"):
        if files:  # or passwords would travel in the clear, and its author would not know
            way_out = f"{', '.join(files)} is only for TLS: use rediss://, or tls=true"
            raise ValidationError("store", without_secrets(url), way_out)
        return None
    if "tls_key" in given and "tls_cert" not in given:
        raise ValidationError("tls_key", given["tls_key"], "give tls_cert, its certificate, as well")
    blamed = "tls_ca"
    try:
        context = ssl.create_default_context(cafile=given.get("tls_ca"))
        if "tls_cert" in given:
            blamed = "tls_cert"
            with open(given["tls_cert"], "rb"):
                blamed = "tls_key" if "tls_key" in given else "tls_cert"
            context.load_cert_chain(given["tls_cert"], given.get("tls_key"), _no_password)
    except OSError as error:  # which SSLError is too
        raise ValidationError(blamed, given.get(blamed), f"cannot use it: {error}") from error
    return context


def _no_password() -> str:
    """OpenSSL would ask at the terminal."""
    return ""


def parse_url(url: str) -> Opened:
    """A URL's parts, checked; what is wrong is told without user and password."""
    shown, parts = without_secrets(url), urlsplit(url)
    name, _, way = parts.scheme.partition("+")
    if parts.fragment or is_user_cut(parts, OPTIONS):
        raise ValidationError("store", shown, USER_CUT)
    user, _, hosts = parts.netloc.rpartition("@")
    username, _, password = user.partition(":")
    if username and not password:
        raise ValidationError("store", shown, "there is a user but no password: redis://user:password@host")
    path = [unquote(part) for part in parts.path.split("/")[1:] if part]
    service = path.pop(0) if way == "sentinel" and path else ""
    if way == "sentinel" and not service:
        raise ValidationError("store", shown, "name the service: redis+sentinel://host1,host2/service")
    if len(path) > 1 or (way == "cluster" and path):
        raise ValidationError("store", shown, "the path is the number of a database, which a cluster has not")
    if path and not (path[0].isascii() and path[0].isdigit() and len(path[0]) < 6):
        raise ValidationError("store", shown, "its path is not the number of a database")
    login = Login(unquote(username), unquote(password), int(path[0]) if path else 0)
    options = _options(parts.query, shown)
    if name.endswith("s") and name != "redis":
        options["tls"] = True
    return Opened(way, _hosts(hosts, way, shown), login, service, options)


def _hosts(text: str, way: str, shown: str) -> tuple[tuple[str, int], ...]:
    found = []
    for one in text.split(","):
        match = re.fullmatch(r"(\[[0-9A-Fa-f:.%]+\]|[^:\[\]/?#\s]+)(?::(\d{1,5}))?", one)
        port = int(match[2] or (SENTINEL_PORT if way == "sentinel" else PORT)) if match else 0
        if match is None or not 0 < port < 65_536:
            raise ValidationError(
                "store",
                shown,
                "it names something that is not a host, or host:port; use redis://localhost:6379/0",
            )
        found.append((match[1].strip("[]"), port))
    if len(found) > (HOSTS_MAX if way else 1):
        way_out = (
            "use redis+sentinel:// or redis+cluster:// for several hosts" if not way else "fewer will do"
        )
        raise ValidationError("store", shown, f"it names {len(found)} hosts; {way_out}")
    return tuple(found)


def _options(query: str, shown: str) -> dict[str, Any]:
    given = parse_qsl(query, keep_blank_values=True)
    options: dict[str, Any] = dict(given)
    if len(options) < len(given):
        raise ValidationError("store", shown, "an option is given twice")
    if unknown := sorted(options.keys() - {*OPTIONS}):
        raise ValidationError(
            "store", shown, f"unknown option {', '.join(unknown)}; there are {', '.join(OPTIONS)}"
        )
    for name, most in NUMBERS.items():
        if name in options:
            text = options[name]
            is_whole = text.isascii() and text.isdigit() and len(text) < 20
            least = 0 if name == "wait_replicas" else 1
            if is_whole and int(text) == least == 0:
                options[name] = 0
            else:
                options[name] = check_count(name, int(text) if is_whole else text, most)
    if not PREFIX.fullmatch(options.get("prefix", "zae-limiter")):
        raise ValidationError(
            "prefix", options["prefix"], "it has up to 100 letters, digits, '_', '.', ':' or '-'"
        )
    if (tls := options.pop("tls", None)) is not None:
        if tls not in ("true", "false"):
            raise ValidationError("tls", tls, "choose true or false")
        options["tls"] = tls == "true"
    return options
