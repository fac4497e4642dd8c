"""What a server must be like, as far as it lets us look: recent enough, and never forgetting what it was
given.
"""

from __future__ import annotations

import logging
import re
from typing import TYPE_CHECKING

from ...exceptions import RateLimiterUnavailable

if TYPE_CHECKING:
    from .backend import RedisBackend

VERSION_MIN = (6, 2)
_log = logging.getLogger("zae_limiter")


async def check_server(backend: RedisBackend) -> None:
    """Refuse a server that is too old; warn of one that drops items when its memory is full."""
    where = f"Redis {backend.carrier.servers}"
    try:
        await backend.ask_one("", b"L")  # that we may do what we do, and what time it is there
    except RateLimiterUnavailable as failure:
        if "no answer" not in str(failure) or backend.carrier.options.tls:
            raise
        raise RateLimiterUnavailable(f"{failure}; if it speaks TLS, use rediss://") from failure
    try:
        said = await backend.say("INFO")
    except RateLimiterUnavailable as failure:
        if failure.misconfigured != "permission":
            raise
        _log.warning(
            "%s does not let this user look at INFO: whether it evicts could not be checked; "
            "set maxmemory-policy noeviction, or items may be lost and limits with them",
            where,
        )
        return
    facts = facts_of(said)
    version = tuple(map(int, re.findall(r"\d+", facts.get("redis_version", "0"))[:2]))
    if version < VERSION_MIN and "valkey_version" not in facts:
        raise RateLimiterUnavailable(
            f"{where} has version {facts.get('redis_version')!r}; it must be 6.2 or later, or Valkey",
            misconfigured="server",
        )
    policy = facts.get("maxmemory_policy", "noeviction")
    if facts.get("maxmemory", "0") != "0" and policy.startswith("allkeys"):
        _log.warning(
            "%s evicts keys when its memory is full (maxmemory-policy %s): a bucket that is evicted is full "
            "again, and limits, entities and usage are lost; set maxmemory-policy noeviction",
            where,
            policy,
        )


def facts_of(said: object) -> dict[str, str]:
    """What ``INFO`` says, line by line."""
    text = said.decode("utf-8", "replace") if isinstance(said, bytes) else ""
    lines = (line.partition(":") for line in text.splitlines())
    return {name: value for name, colon, value in lines if colon}
