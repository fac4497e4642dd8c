"""What a provider tells of its limits in the headers of an answer. Pure.

Every provider writes it otherwise: OpenAI ``x-ratelimit-remaining-requests`` with resets such as ``6m0s``,
Anthropic ``anthropic-ratelimit-requests-remaining`` with resets as dates, others the fields of an IETF draft
or of its predecessors. All of it becomes the same few numbers. What cannot be read is not told, nothing
raises, and a number below zero, which Azure sends, means that nobody knows.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import NamedTuple

FIELDS_MAX = 16
"""How many limits an answer tells of at most; more are passed over."""

VALUE_CHARACTERS_MAX = 4_096
"""How much of a header is read."""

SECONDS_MAX = 366 * 86_400.0
NUMBER_MAX = 10**12

_OPENAI = re.compile(r"x-ratelimit-(limit|remaining|reset)-([a-z][a-z0-9_-]{0,40})")
_ANTHROPIC = re.compile(r"anthropic-ratelimit-([a-z][a-z0-9_-]{0,40})-(limit|remaining|reset)")
_PLAIN = re.compile(r"(?:x-)?ratelimit-(limit|remaining|reset)")
_DURATION = re.compile(
    r"(?:([0-9]{1,6}(?:\.[0-9]+)?)d)?(?:([0-9]{1,6}(?:\.[0-9]+)?)h)?(?:([0-9]{1,6}(?:\.[0-9]+)?)m(?!s))?"
    r"(?:([0-9]{1,9}(?:\.[0-9]+)?)s)?(?:([0-9]{1,9}(?:\.[0-9]+)?)ms)?"
)
_UNITS = (86_400.0, 3_600.0, 60.0, 1.0, 0.001)
_NUMBER = re.compile(r"[0-9]{1,15}(?:\.[0-9]{1,9})?")
# What was read once is not read another way: a field of a few bytes could keep us busy for ever.
_MEMBER = re.compile(r'"([^"\\]{1,64}+)"((?:\s*+;\s*+[a-z][a-z0-9_-]*+(?:=[^;,]*+)?+)*+)\s*+(?:,|$)')
_PARAMETER = re.compile(r";\s*+([a-z][a-z0-9_-]*+)=([0-9]{1,15}+)(?=\s*+(?:;|$))")
_POLICY = re.compile(r"(?:^|,)\s*+([0-9]{1,15}+)\s*+;\s*+w=([0-9]{1,15}+)(?=\s*+(?:[;,]|$))")
_MINUTE = 60.0
_PERIODS = {"second": 1.0, "minute": _MINUTE, "hour": 3_600.0, "day": 86_400.0}
"""What the name of a limit may end with, where its header says so."""

_EPOCH_SECONDS, _EPOCH_MS = 1_000_000_000.0, 100_000_000_000.0
"""A reset above these is an instant and not a duration, in seconds or in milliseconds."""

REQUESTS = "requests"
"""What a header counts that does not say what it counts."""


class ToldLimit(NamedTuple):
    """What an answer says of one limit; ``None`` for what it does not say."""

    name: str
    limit: int | None = None
    remaining: int | None = None
    reset_seconds: float | None = None
    """Until all of it is there again."""
    window_seconds: int | None = None
    """In which time the limit is allowed, if the answer says so or such headers are known for it."""
    is_window_least: bool = False
    """Whether it may be longer: what OpenAI tells of a minute, others tell of a day in the same words."""


class ProviderAnswer(NamedTuple):
    """What an answer says: whether the provider refused, for how long, and of which limits it tells."""

    refused: bool
    retry_after_seconds: float | None
    told: tuple[ToldLimit, ...]


def read_answer(status: int, headers: Iterable[tuple[str, str]], now_ms: int) -> ProviderAnswer:
    """Read the status and the headers of an answer; names of headers may be in any case.

    >>> read_answer(429, [("Retry-After", "2"), ("x-ratelimit-limit-requests", "60")], 0).told[0].limit
    60
    """
    fields: dict[str, str] = {}
    for name, value in headers:
        fields.setdefault(name.lower(), value[:VALUE_CHARACTERS_MAX].strip())
    wait = _retry_after(fields, now_ms)
    refused = status == 429 or (status in (503, 529) and wait is not None)
    return ProviderAnswer(refused, wait, tuple(_told(fields, now_ms))[:FIELDS_MAX])


def _retry_after(fields: Mapping[str, str], now_ms: int) -> float | None:
    exact = _seconds(fields.get("retry-after-ms", ""), 0.001)
    if exact is not None:
        return exact
    said = fields.get("retry-after", "")
    wait = _seconds(said)
    return _until_date(said, now_ms) if wait is None and said else wait


def _told(fields: Mapping[str, str], now_ms: int) -> Iterator[ToldLimit]:
    found: dict[str, dict[str, float]] = {}
    for name, part, number in _members(fields):
        found.setdefault(name, {}).setdefault(part, number)
    for field, value in fields.items():
        what = _what(field)
        if what is None:
            continue
        name, part, windows = what
        numbers = found.get(name, {})
        read = _reset(value, now_ms) if part == "reset" else _whole(value)
        if read is None or part in numbers or len(found) > FIELDS_MAX:
            continue
        found.setdefault(name, numbers)[part] = read
        if part == "limit":  # a window belongs to the limit that it was told with
            numbers.pop("window", None)
            numbers |= windows or _policy_window(fields, read)
    for name, numbers in found.items():
        limit, remaining = numbers.get("limit"), numbers.get("remaining")
        window = numbers.get("window", numbers.get("window_least"))
        yield ToldLimit(
            name,
            None if limit is None else int(limit),
            None if remaining is None else int(remaining),
            numbers.get("reset"),
            int(window) if limit is not None and window else None,
            limit is not None and "window" not in numbers and "window_least" in numbers,
        )


def _what(field: str) -> tuple[str, str, dict[str, float]] | None:
    """Which limit a header is about, what it says of it, and which window such a header is known for."""
    if (match := _OPENAI.fullmatch(field)) is not None:
        period = _PERIODS.get(match[2].rpartition("-")[2])
        return match[2], match[1], {"window_least": _MINUTE} if period is None else {"window": period}
    if (match := _ANTHROPIC.fullmatch(field)) is not None:
        return match[1], match[2], {"window": _MINUTE}
    match = _PLAIN.fullmatch(field)
    return None if match is None else (REQUESTS, match[1], {})


def _policy_window(fields: Mapping[str, str], limit: float) -> dict[str, float]:
    """The window that older drafts say behind the number, or with the same number in a field of its own."""
    for field in ("ratelimit-limit", "ratelimit-policy"):
        for policy in _POLICY.finditer(fields.get(field, "")):
            if float(policy[1]) == limit and float(policy[2]):
                return {"window": min(float(policy[2]), SECONDS_MAX)}
    return {}


def _members(fields: Mapping[str, str]) -> Iterator[tuple[str, str, float]]:
    """What the fields of the IETF draft say: policies with ``q`` and ``w``, then ``r`` and ``t`` of each."""
    for field, parts in (
        ("ratelimit-policy", {"q": "limit", "w": "window"}),
        ("ratelimit", {"r": "remaining", "t": "reset"}),
    ):
        for member in list(_MEMBER.finditer(fields.get(field, "")))[:FIELDS_MAX]:
            for parameter in _PARAMETER.finditer(member[2]):
                if (part := parts.get(parameter[1])) is not None:
                    most = SECONDS_MAX if part in ("reset", "window") else NUMBER_MAX
                    yield member[1], part, min(float(parameter[2]), most)


def _whole(value: str) -> float | None:
    first = re.split("[,;]", value, maxsplit=1)[0].strip()  # older drafts have the policy behind the number
    return min(float(int(first)), NUMBER_MAX) if first.isdecimal() and len(first) < 16 else None


def _reset(value: str, now_ms: int) -> float | None:
    seconds = _seconds(value)
    if seconds is not None:
        at_epoch = float(value) if _NUMBER.fullmatch(value) else 0.0
        at_epoch /= 1000 if at_epoch > _EPOCH_MS else 1
        since_now = max(0.0, min(at_epoch - now_ms / 1000, SECONDS_MAX))
        return since_now if at_epoch > _EPOCH_SECONDS else seconds
    match = _DURATION.fullmatch(value)
    if match is not None and any(match.groups()):
        parts = zip(match.groups(), _UNITS, strict=True)
        return min(sum(float(part) * unit for part, unit in parts if part is not None), SECONDS_MAX)
    return _until_date(value, now_ms)


def _seconds(value: str, unit: float = 1.0) -> float | None:
    if not _NUMBER.fullmatch(value):
        return None
    return min(float(value) * unit, SECONDS_MAX)


def _until_date(value: str, now_ms: int) -> float | None:
    """How long it is until an instant that is written as in mail, or as in RFC 3339."""
    at: datetime | None = None
    try:
        at = datetime.fromisoformat(value) if value[:4].isdecimal() else parsedate_to_datetime(value)
        at = at.replace(tzinfo=at.tzinfo or UTC)
        seconds = at.timestamp() - now_ms / 1000
    except (ValueError, TypeError, OverflowError, IndexError):
        return None
    return None if math.isnan(seconds) else max(0.0, min(seconds, SECONDS_MAX))
