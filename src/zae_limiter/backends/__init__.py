"""Stores, opened by URL. Each driver is imported when its scheme is first asked for.

    memory://                      a dictionary of this opening alone
    memory://name                  a dictionary shared inside the process
    sqlite:///limits.db            an embedded file, relative path; ?timeout_ms=2000
    sqlite:////var/lib/limits.db   the same, absolute path
    redis://host:6379/0            a Redis or Valkey server; needs the extra redis
    redis+sentinel://h1,h2/name    the one that sentinels name; redis+cluster://h1,h2 a cluster
    postgresql://user@host/db      a PostgreSQL database; needs the extra postgres
    dynamodb://table               a DynamoDB table; needs the extra dynamodb

Other packages add a scheme with an entry point in the group ``zae_limiter.backends``: its name is
the scheme, its value a callable ``(url, *, sync, world, timeout_ms) -> Backend``. A store that has a clock
tells its time with each reply, by ``world.observe``.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

from ..exceptions import InfrastructureError, ValidationError
from ..repository_protocol import Backend
from ..runtime.world import World

if TYPE_CHECKING:
    from pathlib import Path

ENTRY_POINTS = "zae_limiter.backends"
URL_LENGTH_MAX = 2048

REDIS = [f"{name}{way}" for name in ("redis", "valkey") for way in ("", "s", "+sentinel", "+cluster")]
DRIVERS = {
    "memory": "zae_limiter.backends.memory",
    "sqlite": "zae_limiter.backends.sqlite",
    "dynamodb": "zae_limiter.backends.dynamodb",
    **dict.fromkeys(REDIS, "zae_limiter.backends.redis"),
    **dict.fromkeys(("postgresql", "postgres"), "zae_limiter.backends.postgres"),
}
EXTRAS = {
    "dynamodb": "dynamodb",
    **dict.fromkeys(REDIS, "redis"),
    "postgresql": "postgres",
    "postgres": "postgres",
}
MEMBERS = ("capabilities", "colour", "setup", "batch_get", "write_each", "transact_write", "query", "close")
"""What every store has; the rest of the waist is for those who can."""

EMBEDDED = {"memory", "sqlite"}  # stores of this machine, whose time is the machine's


def open_backend(
    url: str, *, sync: bool, world: World, timeout_ms: int | None = None, **client: Any
) -> Backend:
    """The store behind a URL, for one colour. No file or table is touched before its ``setup``.

    ``timeout_ms`` wins over the URL's own; without either each store has its default. ``client`` is what
    only the client of one store understands: ``session`` and ``config`` of botocore for DynamoDB.
    """
    scheme = _scheme(url)
    if client and scheme != "dynamodb":
        raise ValidationError("store", url, f"{' and '.join(client)} can only be given for dynamodb://")
    if scheme == "sqlite" and _is_default(url):
        _make_state_directory()
    if scheme not in DRIVERS:
        return _open_installed(scheme, url, sync=sync, world=world, timeout_ms=timeout_ms)
    try:
        driver: Callable[..., Backend] = import_module(DRIVERS[scheme]).open_backend
        return driver(url, sync=sync, world=world, timeout_ms=timeout_ms, **client)
    except ImportError as error:
        if (error.name or "").partition(".")[0] == __name__.partition(".")[0]:
            raise
        raise InfrastructureError(_missing_driver(scheme, error)) from error


def store_world(url: str, world: World) -> World:
    """The world to open a store with and to use it in: one that is elsewhere has a clock of its own."""
    return world if _scheme(url) in EMBEDDED else world.for_store()


def default_url() -> str:
    """The embedded file that is used when nothing else is configured.

    It is ``zae-limiter/limits.db`` in ``$XDG_STATE_HOME``, or in ``~/.local/state`` without that
    variable. Opening it creates the directory.
    """
    return f"sqlite:///{quote(str(_state_directory() / 'limits.db'))}"


def _state_directory() -> Path:
    from pathlib import Path

    # The specification of the variable says that a relative path is to be ignored.
    state = Path(os.environ.get("XDG_STATE_HOME", ""))
    if not state.is_absolute():
        try:
            state = Path.home() / ".local" / "state"
        except RuntimeError as error:
            raise InfrastructureError(
                "there is no home directory to keep limits in; set XDG_STATE_HOME or name a store URL"
            ) from error
    return state / "zae-limiter"


def _is_default(url: str) -> bool:
    try:
        return url == default_url()
    except InfrastructureError:
        return False


def _make_state_directory() -> None:
    directory = _state_directory()
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise InfrastructureError(
            f"cannot create {str(directory)!r}: {error.strerror}; set XDG_STATE_HOME or name a store URL"
        ) from error


def _scheme(url: str) -> str:
    if not isinstance(url, str):
        raise ValidationError("store", url, "pass a URL such as 'sqlite:///limits.db'")
    if len(url) > URL_LENGTH_MAX:
        raise ValidationError("store", url, f"it is longer than {URL_LENGTH_MAX} characters")
    if not url.isprintable() or url != url.strip():
        # The parser of URLs would drop such characters without a word.
        raise ValidationError("store", url, "it has spaces around it or unprintable characters in it")
    try:
        scheme = urlsplit(url).scheme
    except ValueError as error:
        raise ValidationError("store", url, f"it is not a URL: {error}") from error
    if not scheme or not url[len(scheme) :].startswith("://"):
        raise ValidationError(
            "store", url, "it is not a URL; memory is memory://, a file is sqlite:///limits.db"
        )
    return scheme


def _open_installed(scheme: str, url: str, **given: Any) -> Backend:
    """What another package offers for a scheme that is none of ours."""
    from importlib.metadata import entry_points  # half as much again to load as all else that a store needs

    installed = entry_points(group=ENTRY_POINTS)
    for found in installed.select(name=scheme):
        origin = found.dist.name if found.dist is not None else found.value
        try:
            backend: Backend = found.load()(url, **given)
        except (ImportError, AttributeError, TypeError) as error:
            told = f"the store {scheme}:// cannot be opened: {error}; it is offered by {origin!r}"
            raise InfrastructureError(told) from error
        if lacking := [name for name in MEMBERS if not hasattr(backend, name)]:
            told = f"{origin!r} offers a {type(backend).__name__} for {scheme}://"
            raise InfrastructureError(f"{told}, which is no store: it lacks {', '.join(lacking)}")
        for verb in ("swap", "changes", "news"):  # which a store of another package need not know of
            if not hasattr(backend, verb):
                setattr(backend, verb, None)
        return backend
    known = ", ".join(f"{name}://" for name in sorted({*DRIVERS, *installed.names}))
    way_out = f"a package adds one by an entry point in the group {ENTRY_POINTS}"
    raise ValidationError("store", f"{scheme}://", f"the scheme is unknown; there are {known}; {way_out}")


def _missing_driver(scheme: str, error: ImportError) -> str:
    if error.name is None and EXTRAS.get(scheme) == "postgres":  # it is there, and lacks its library
        first = str(error).partition("\n")[0]
        return f"the driver of {scheme}:// cannot be loaded: {first}; install psycopg[binary], or libpq"
    what = f"the store {scheme}:// needs {error.name or 'a module'}, which is not installed"
    if scheme in EXTRAS:
        return f"{what}; install this package with its extra: {EXTRAS[scheme]}"
    return f"{what}: {error}"
