"""A manifest as text that ``grammar`` reads back as the same manifest. Pure.

Everything is written out, the defaults too, so that a file keeps its meaning. Names that other readers
of YAML would take for numbers, dates or truth values are quoted.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from ...models import Limit, LimiterConfig
from ...models.accruals import LASTING, period_and_zone
from ...models.durations import written
from .model import Manifest, settings_of

_SAFE = re.compile(r"[A-Za-z_][A-Za-z0-9_./\-]*(?::[A-Za-z0-9_./\-]+)*")
_WORDS = frozenset({"y", "n", "yes", "no", "on", "off", "true", "false", "null"})
"""What YAML takes for something else than text, in any case of letters."""


def to_data(manifest: Manifest) -> dict[str, Any]:
    """A manifest as plain dictionaries, general levels first, names by the alphabet."""
    data: dict[str, Any] = {} if manifest.namespace is None else {"namespace": manifest.namespace}
    for address in sorted(manifest.levels, key=lambda address: address.order):
        level = _level_data(manifest.levels[address])
        if address.level == "system":
            data["system"] = level
        elif address.level == "resource":
            data.setdefault("resources", {})[address.resource] = level
        else:
            of_entity = data.setdefault("entities", {}).setdefault(address.entity_id, {"resources": {}})
            of_entity["resources"][address.resource] = level
    return data


def to_yaml(manifest: Manifest) -> str:
    """A manifest as a file for people; each limit is one line."""
    data = to_data(manifest)
    return "".join(f"{line}\n" for line in _lines(data)) if data else "{}\n"


def to_json(manifest: Manifest, *, ascii_only: bool = False) -> str:
    return json.dumps(to_data(manifest), indent=2, ensure_ascii=ascii_only)


def level_lines(config: LimiterConfig) -> list[str]:
    """What one level says, a line for each setting and for each limit."""
    settings = [f"{name}: {_word(value)}" for name, value in settings_of(config).items()]
    return settings + [f"{quoted(limit.name)}: {_flow(_limit_data(limit))}" for limit in config.limits]


def quoted(name: str) -> str:
    """A name as every reader of YAML takes it for a text.

    >>> quoted("gpt-4"), quoted("on"), quoted("007")
    ('gpt-4', '"on"', '"007"')
    """
    if _SAFE.fullmatch(name) and name.lower() not in _WORDS:
        return name
    # Readers of YAML do not put the two halves together by which JSON escapes what is beyond 16 bits.
    return json.dumps(name, ensure_ascii=False)


def _word(value: str | bool) -> str:
    return quoted(value) if isinstance(value, str) else str(value).lower()


def _level_data(config: LimiterConfig) -> dict[str, Any]:
    by_name = sorted(config.limits, key=lambda limit: limit.name)
    limits = {"limits": {limit.name: _limit_data(limit) for limit in by_name}} if config.limits else {}
    return {**settings_of(config), **limits}


def _limit_data(limit: Limit) -> dict[str, Any]:
    soft = {"soft": True} if limit.soft else {}
    data: dict[str, Any] = {"capacity": limit.capacity, "refill_amount": limit.refill_amount}
    if limit.accrual in LASTING:
        data = {"capacity": limit.capacity, LASTING[limit.accrual]: written(limit.refill_period_seconds)}
    elif limit.accrual is None:
        data["refill_period"] = limit.refill_period_seconds
    else:
        data["period"], data["tz"] = period_and_zone(limit.accrual)
    unit = {} if limit.unit is None else {"unit": limit.unit}
    schedule = {} if limit.schedule is None else {"schedule": limit.schedule}
    return {**data, **unit, **soft, **schedule}


def _lines(data: Mapping[str, Any], indent: str = "") -> Iterator[str]:
    for name, value in data.items():
        if not isinstance(value, dict):
            yield f"{indent}{quoted(name)}: {_word(value)}"
        elif "capacity" in value and not isinstance(value["capacity"], dict):
            yield f"{indent}{quoted(name)}: {_flow(value)}"
        else:
            yield f"{indent}{quoted(name)}:"
            yield from _lines(value, f"{indent}  ")


def _flow(said: Mapping[str, Any]) -> str:
    texts = {n: _word(value) if isinstance(value, str | bool) else value for n, value in said.items()}
    return f"{{{', '.join(f'{name}: {value}' for name, value in texts.items())}}}"
