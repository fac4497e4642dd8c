"""What a request asks for, from its JSON: every field is checked, and none that is unknown is passed over.

A mistake is told as the field that it is in. Limits are written as in a file of limits.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection, Mapping
from typing import Any

from starlette.requests import Request

from ..exceptions import ValidationError
from ..models import TOKENS_MAX, Limit, OnUnavailable, check_count
from ..models.checks import Choice, check_flag
from ..models.demand import DEMANDS_MAX, Demand
from ..operate.manifest import ManifestError
from ..operate.manifest.grammar import parse_json as parse_manifest
from ..records.leases import OnExpiry
from ..web.answers import RequestRefused
from .config import ServerConfig
from .leases import AskedLease

KEY_LETTERS_MAX = 255

_KEY = re.compile(r"[!-~](?:[ -~]*[!-~])?")

_ONE = ("entity", "resource", "consume", "limits")
ACQUIRE_FIELDS = (*_ONE, *("demands", "lease", "lease_seconds", "on_expiry", "on_unavailable", "wait"))


def key_of(values: Collection[str]) -> str | None:
    """The header ``Idempotency-Key``; in quotes, as its draft has it, or without."""
    if not values:
        return None
    if len(values) > 1:
        raise RequestRefused(400, "a request has one Idempotency-Key")
    (value,) = values
    if len(value) > 1 and value[0] == value[-1] == '"':
        value = value[1:-1]
    if len(value) > KEY_LETTERS_MAX or not _KEY.fullmatch(value):
        told = f"use 1 to {KEY_LETTERS_MAX} letters, digits or signs of ASCII"
        raise ValidationError("Idempotency-Key", value[:KEY_LETTERS_MAX], told)
    return value


def fields_of(body: Any, known: Collection[str]) -> dict[str, Any]:
    """The members of a JSON object, all of which are known; one that is null is not there."""
    if not isinstance(body, dict):
        raise ValidationError("body", body, "send a JSON object")
    for name in body:
        if name not in known:
            raise ValidationError(name, body[name], f"there is no such field; use {', '.join(known)}")
    return {name: value for name, value in body.items() if value is not None}


def asked_lease(body: Any, owner: str, key: str | None, config: ServerConfig) -> AskedLease:
    """What ``POST /v1/acquire`` asks for."""
    said = fields_of(body, ACQUIRE_FIELDS)
    is_lease = check_flag("lease", said.get("lease", True))
    if not is_lease:
        for name in ("lease_seconds", "on_expiry"):
            if name in said:
                raise ValidationError(name, said[name], "a plain decision does not expire; leave it out")
    wait = seconds("wait", said["wait"], config.wait_seconds_max, least=0) if "wait" in said else None
    held = said.get("lease_seconds", config.lease_seconds)
    policy = said.get("on_unavailable")
    return AskedLease(
        demands=_demands(said),
        owner=owner,
        key=key,
        is_lease=is_lease,
        lease_seconds=seconds("lease_seconds", held, config.lease_seconds_max),
        on_expiry=chosen(OnExpiry, "on_expiry", said.get("on_expiry", OnExpiry.SETTLE.value)),
        on_unavailable=None if policy is None else OnUnavailable.of(policy),
        wait=wait or None,
    )


def _demands(said: Mapping[str, Any]) -> tuple[Demand, ...]:
    if "demands" not in said:
        return (demand_of(said),)
    for name in _ONE:
        if name in said:
            raise ValidationError(name, said[name], "each of the demands says its own; leave one of them out")
    listed = said["demands"]
    if not isinstance(listed, list) or not 0 < len(listed) <= DEMANDS_MAX:
        raise ValidationError("demands", listed, f"send a list of 1 to {DEMANDS_MAX} demands")
    return tuple(demand_of(fields_of(one, _ONE)) for one in listed)


def demand_of(said: Mapping[str, Any]) -> Demand:
    """Who asks for how much of what."""
    for name in ("entity", "resource", "consume"):
        if name not in said:
            raise ValidationError(name, None, "it is missing")
    for name in ("entity", "resource"):
        if not isinstance(said[name], str):
            raise ValidationError(name, said[name], "send a string")
    limits = limits_of(said["limits"]) if "limits" in said else None
    return Demand(said["entity"], said["resource"], amounts_of("consume", said["consume"]), limits)


def amounts_of(field: str, value: Any) -> dict[str, int]:
    """Amounts by limit; a number with a fraction of nothing is none for JSON, so it is refused."""
    if not isinstance(value, dict):
        raise ValidationError(field, value, 'send amounts by limit, such as {"rpm": 1}')
    for name, amount in value.items():
        if type(amount) is not int:
            raise ValidationError(f"{field}.{name}", amount, "send a whole number")
        check_count(f"{field}.{name}", amount, TOKENS_MAX, 0)
    return dict(value)


def limits_of(value: Any) -> list[Limit]:
    """Limits as a file of limits has them: ``{"rpm": {"capacity": 60}}``."""
    if not isinstance(value, dict) or not value:
        raise ValidationError("limits", value, 'send limits by name, such as {"rpm": {"capacity": 60}}')
    try:
        manifest = parse_manifest(json.dumps({"system": {"limits": value}}), "limits")
    except ManifestError as error:
        mistake = error.problems[0]
        found: Any = value
        for name in mistake.path[2:]:
            found = found.get(name) if isinstance(found, dict) else found
        raise ValidationError(".".join(mistake.path[1:]) or "limits", found, mistake.message) from error
    (level,) = manifest.levels.values()
    return list(level.limits)


def seconds(field: str, value: Any, most: float, least: float = 0.001) -> float:
    """A number of seconds."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not math.isfinite(value) or not least <= value <= most:
        raise ValidationError(field, value, f"send seconds, from {least:g} to {most:g}")
    return float(value)


def chosen(choice: type[Choice], field: str, value: Any) -> Any:
    """One of some words."""
    return choice.chosen(field, value)


def needs_of(request: Request) -> dict[str, int]:
    """Amounts in a query, such as ``need=rpm:1``."""
    needs: dict[str, int] = {}
    for said in request.query_params.getlist("need"):
        name, colon, amount = said.rpartition(":")
        if not colon or not amount.isascii() or not amount.isdecimal() or len(amount) > 15:
            raise ValidationError("need", said, "write limit:amount, such as rpm:1")
        needs[name] = needs.get(name, 0) + int(amount)
    return amounts_of("need", needs)


def one_of(request: Request, name: str) -> str:
    """What a query says once."""
    values = request.query_params.getlist(name)
    if len(values) != 1:
        raise ValidationError(name, values or None, "say it once" if values else f"name it: ?{name}=…")
    return values[0]
