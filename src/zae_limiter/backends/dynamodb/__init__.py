"""The store on DynamoDB, opened by URL: ``dynamodb://table?region=eu-west-1``.

Reading order: ``expressions`` and ``table`` (requests as data), ``transport`` (what carries a request,
and how that fails), ``retries`` (what may be sent again), ``backend`` (the verbs). ``http`` sends requests
by our own hand; ``boto`` and ``aioboto`` send them through a driver, for who asks for it with
``transport=boto`` or for what only a driver does. Each is imported when it is needed.
"""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlsplit

from ...exceptions import ValidationError
from ...models import check_count
from ...runtime.world import World
from .backend import DynamoDBBackend
from .retries import Calls
from .transport import UNTOLD, Dates, Transport

if TYPE_CHECKING:
    from .boto import Access

__all__ = ["DynamoDBBackend", "open_backend"]

TIMEOUT_MS_MAX = 60_000
POOL_MAX = 1_000
OPTIONS = frozenset({"region", "endpoint_url", "timeout_ms", "pool", "transport"})
TRANSPORTS = ("lean", "boto")
TABLE_NAME = re.compile(r"[A-Za-z0-9_.-]{3,255}")
HINT = "use dynamodb://TABLE?region=…&endpoint_url=…&timeout_ms=…&pool=…&transport=…"


def open_backend(
    url: str,
    *,
    sync: bool = False,
    world: World | None = None,
    timeout_ms: int | None = None,
    session: Any = None,
    config: Any = None,
) -> DynamoDBBackend:
    """Open a table without touching it; ``setup`` does that.

    ``timeout_ms`` is for a whole call of the store, its repetitions included, and wins over the URL's.
    ``session`` may be a boto3 or botocore session and ``config`` a botocore ``Config``; retries stay
    switched off whatever they say.
    """
    table_name, options = parse_url(url)
    if timeout_ms is not None:
        options["timeout_ms"] = check_count("timeout_ms", timeout_ms, TIMEOUT_MS_MAX)
    open_ = open_driver if options.pop("transport", None) == "boto" else open_transport
    from .boto import Access

    access, world = Access(session=session, config=config, **options), world or World()
    transport = open_(access, sync=sync, dates=Dates(world))
    return DynamoDBBackend(Calls(table_name, transport, world, access.timeout_ms))


def open_transport(access: Access, *, sync: bool, dates: Dates = UNTOLD) -> Transport:
    """Our own way to DynamoDB; it turns to the driver by itself for what it cannot do."""
    from .http.transport import HttpTransport

    driver = partial(open_driver, access, sync=sync, dates=dates)
    if sync:
        from .http.blocking import BlockingNetwork

        return HttpTransport(access, BlockingNetwork(World().ticks_ms), driver, dates)
    from .http.loop import LoopNetwork

    return HttpTransport(access, LoopNetwork(World().ticks_ms), driver, dates)


def open_driver(access: Access, *, sync: bool, dates: Dates = UNTOLD) -> Transport:
    """The way through botocore or aiobotocore."""
    if sync:
        from .boto import BotocoreTransport

        return BotocoreTransport(access, dates)
    from .aioboto import AiobotocoreTransport

    return AiobotocoreTransport(access, dates)


def parse_url(url: str) -> tuple[str, dict[str, Any]]:
    """The table of a URL and its options, checked."""
    parts = urlsplit(url)
    if parts.scheme != "dynamodb" or parts.path not in ("", "/") or parts.fragment:
        raise ValidationError("store", url, HINT)
    if not TABLE_NAME.fullmatch(parts.netloc):
        reason = "a table's name has 3 to 255 letters, digits, '_', '-' or '.'"
        raise ValidationError("table", parts.netloc.rpartition("@")[2], f"{reason}; {HINT}")
    given = parse_qsl(parts.query, keep_blank_values=True)
    options: dict[str, Any] = dict(given)
    if len(options) < len(given):
        raise ValidationError("store", url, "an option is given twice")
    if unknown := sorted(options.keys() - OPTIONS):
        raise ValidationError("store", url, f"unknown option {', '.join(unknown)}; {HINT}")
    for name, value_max in (("timeout_ms", TIMEOUT_MS_MAX), ("pool", POOL_MAX)):
        if name in options:
            options[name] = check_count(name, _whole(options[name]), value_max)
    for name in ("region", "endpoint_url"):
        if options.get(name) == "":
            raise ValidationError(name, "", "give it a value or leave it out")
    check_endpoint(options.get("endpoint_url"))
    if options.get("transport", "lean") not in TRANSPORTS:
        raise ValidationError("transport", options["transport"], f"choose one of {', '.join(TRANSPORTS)}")
    return parts.netloc, options


def check_endpoint(url: str | None) -> None:
    if "@" in (url or "").partition("//")[2].partition("/")[0]:
        raise ValidationError("endpoint_url", url, "leave out user and password; they are not used")


def _whole(text: str) -> Any:
    """The number a text stands for, or the text itself, which the check then shows."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else text
