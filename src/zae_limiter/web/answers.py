"""What a client is told: headers of whoever was admitted, and the whole answer to whoever was not.

What one tenant may know is decided here and nowhere else. By default that is its own limits and how they
stand; of a parent's that refused, the name and the wait. No answer has the id of an entity, a key, a parent
or a namespace. All of it is pure: a lease or an error in, text out.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from http import HTTPStatus
from typing import Any, NamedTuple, Protocol

from ..exceptions import (
    PermissionDenied,
    RateLimiterUnavailable,
    RateLimitExceeded,
    SwitchedOff,
    ValidationError,
)
from ..models import Limit, LimitKind, LimitStatus
from ..models.checks import Choice
from ..models.leases import LeaseStatus
from .drafts import DRAFTS, LEGACY, UNITS, Header, LimitReading, Status, reading_of, whole_seconds
from .structured import listed

PROBLEM_TYPES = "https://iana.org/assignments/http-problem-types#"
QUOTA_EXCEEDED = f"{PROBLEM_TYPES}quota-exceeded"
REDUCED_CAPACITY = f"{PROBLEM_TYPES}temporary-reduced-capacity"

POINTLESS_SECONDS = 120
"""Clients that read ``x-should-retry`` give up on longer waits in any case."""

NEVER_SECONDS = 365 * 24 * 3600
"""What ``Retry-After`` says of a request that can never pass: HTTP has no word for never."""

SEAT_SECONDS_MAX = 1
"""Nobody knows when work ends, so who is refused a seat asks again soon."""

STORE_SECONDS = 1
"""When to ask again while the store does not answer."""

POLICIES_MAX = 1024

_REFUSING = frozenset(int(status) for status in HTTPStatus if 400 <= status < 500)


class Expose(Choice):
    """Whose limits an answer may tell."""

    NOTHING = "nothing"
    """Nobody's: a refusal has its wait and no more."""
    OWN = "own"
    """Those of whoever asked."""
    FAMILY = "family"
    """Of every limit the one that has the least left, a parent's too; nobody is named."""


class HttpAnswer(NamedTuple):
    """A whole response."""

    status: int
    headers: tuple[Header, ...]
    body: bytes


class Told(Protocol):
    """A lease of either colour, as far as it tells how its buckets stood."""

    @property
    def statuses(self) -> Sequence[LeaseStatus]: ...

    @property
    def public_statuses(self) -> Sequence[LeaseStatus]: ...


class RequestRefused(Exception):
    """A request that is answered with a status of 4xx before anything is charged.

    A callable of a rule may raise it: ``raise RequestRefused(402, "pay first")``. The detail is shown to
    whoever asked.
    """

    def __init__(self, status: int, detail: str, headers: Iterable[Header] = ()) -> None:
        if status not in _REFUSING:
            raise ValidationError("status", status, "use one of 4xx that HTTP knows, such as 402")
        self.status, self.detail, self.headers = status, detail, tuple(headers)
        super().__init__(f"{status}: {detail}")


class Answers:
    """Which headers are sent, and what is in a refusal.

    - ``draft``: of the IETF's headers, ``"draft-11"``, ``"pr-166"``, or ``None`` for none of them.
    - ``legacy``: older styles as well: ``"triple"``, ``"x-ratelimit"``, ``"openai"``, ``"anthropic"``.
    - ``problem_base``: where problem types of your own are explained, for what has no registered type.
    - ``expose``: whose limits may be told: ``"own"``, ``"family"`` or ``"nothing"``.
    - ``units``: what limits count, by name, such as ``{"pages": "pages"}``.
    """

    def __init__(
        self,
        draft: str | None = "draft-11",
        legacy: Sequence[str] = (),
        *,
        problem_base: str | None = None,
        expose: Expose | str = Expose.OWN,
        units: Mapping[str, str] | None = None,
    ) -> None:
        if draft is not None and draft not in DRAFTS:
            raise ValidationError("draft", draft, f"use {', '.join(map(repr, DRAFTS))} or None")
        if isinstance(legacy, str) or (unknown := [one for one in legacy if one not in LEGACY]):
            wrong = legacy if isinstance(legacy, str) else unknown[0]
            raise ValidationError("legacy", wrong, f"use a list of {', '.join(map(repr, LEGACY))}")
        self.draft, self.legacy, self.problem_base = draft, tuple(legacy), problem_base
        self.expose, self.units = Expose.chosen("expose", expose), {**UNITS, **(units or {})}
        self._spelling = None if draft is None else DRAFTS[draft]
        self._styles = [LEGACY[one] for one in self.legacy]
        self._policies: dict[tuple[Limit, ...], str] = {}

    def __repr__(self) -> str:
        return f"Answers({self.draft!r}, {self.legacy!r}, expose={self.expose.value!r})"

    def of_lease(self, lease: Told) -> list[Header]:
        """The headers of an answer to somebody who was admitted; none for a lease that is degraded."""
        if self.expose is Expose.NOTHING:
            return []
        return self.headers(lease.statuses if self.expose is Expose.FAMILY else lease.public_statuses)

    def headers(self, statuses: Sequence[Status]) -> list[Header]:
        """Headers that tell these statuses. A soft limit refuses nobody, and nobody is told of it."""
        told = _tightest(statuses)
        if not told:
            return []
        readings = [reading_of(status, self.units) for status in told]
        headers: list[Header] = []
        if (spelling := self._spelling) is not None:
            headers.append((spelling.policy, self._policy(told, readings)))
            headers.append((spelling.values, spelling.values_of(readings)))
        for style in self._styles:
            headers += style(readings)
        return headers

    def _policy(self, told: Sequence[Status], readings: Sequence[LimitReading]) -> str:
        """The field that stays the same as long as the limits do."""
        key = tuple(status.limit for status in told)
        text = self._policies.get(key)
        if text is None:
            assert self._spelling is not None
            text = listed(map(self._spelling.policy_item, readings))
            if len(self._policies) >= POLICIES_MAX:
                self._policies.clear()
            self._policies[key] = text
        return text

    def refusal(self, error: Exception) -> HttpAnswer:
        """The whole answer to somebody who was refused; anything else than a refusal is raised again."""
        if isinstance(error, RateLimitExceeded):
            return self._exceeded(error)
        if isinstance(error, RateLimiterUnavailable):
            return self._unavailable(error)
        if isinstance(error, SwitchedOff):
            told = error.public_dict()
            status = 403 if isinstance(error, PermissionDenied) else 503
            headers = [("x-should-retry", "false")]
            return self._problem(status, self._type(told["error"]), told["message"], headers)
        if isinstance(error, RequestRefused):
            return self._problem(error.status, "about:blank", error.detail, error.headers)
        raise error

    def _exceeded(self, error: RateLimitExceeded) -> HttpAnswer:
        wait = retry_seconds(error.violations)
        never = math.isinf(wait)
        headers = [("Retry-After", str(NEVER_SECONDS if never else whole_seconds(wait)))]
        if not never:
            headers.append(("retry-after-ms", str(math.ceil(round(wait * 1000, 3)))))
        if wait > POINTLESS_SECONDS:
            headers.append(("x-should-retry", "false"))
        names = [] if self.expose is Expose.NOTHING else list(dict.fromkeys(_names(error.violations)))
        if self.expose is not Expose.NOTHING:
            family = self.expose is Expose.FAMILY
            headers += self.headers(error.statuses if family else error.public_statuses)
        detail = f"not enough is left of {', '.join(names)}" if names else "not enough is left"
        detail += "; so much is never there" if never else f"; retry after {whole_seconds(wait)} s"
        more = {"violated-policies": names} if names else {}
        return self._problem(429, QUOTA_EXCEEDED, detail, headers, more)

    def _unavailable(self, error: RateLimiterUnavailable) -> HttpAnswer:
        headers = [("Retry-After", str(STORE_SECONDS))]
        if error.misconfigured or error.impossible:  # which waiting does not mend
            headers.append(("x-should-retry", "false"))
        detail = "whether the request is within its limits cannot be said just now"
        return self._problem(503, REDUCED_CAPACITY, detail, headers)

    def _type(self, error: str) -> str:
        return "about:blank" if self.problem_base is None else self.problem_base + error.replace("_", "-")

    def _problem(
        self,
        status: int,
        kind: str,
        detail: str,
        headers: Iterable[Header] = (),
        more: Mapping[str, Any] | None = None,
    ) -> HttpAnswer:
        title = _TITLES.get(kind) or HTTPStatus(status).phrase
        told = {"type": kind, "title": title, "status": status, "detail": detail, **(more or {})}
        body = json.dumps(told).encode()
        about = ("Content-Type", "application/problem+json"), ("Content-Length", str(len(body)))
        return HttpAnswer(status, (*about, ("Cache-Control", "no-store"), *headers), body)


_TITLES = {
    QUOTA_EXCEEDED: "Request cannot be satisfied as assigned quota has been exceeded",
    REDUCED_CAPACITY: "Request cannot be satisfied due to temporary server capacity constraints",
}


def retry_seconds(violations: Iterable[LimitStatus]) -> float:
    """After how long it is worth asking again; ``inf`` if it never is."""
    return max(_retry_seconds(status) for status in violations)


def _retry_seconds(status: LimitStatus) -> float:
    wait = status.retry_after_seconds
    if status.kind is LimitKind.CONCURRENT and not math.isinf(wait):
        return min(wait, SEAT_SECONDS_MAX)
    return wait


def _names(statuses: Iterable[LimitStatus]) -> Iterable[str]:
    return (status.limit_name for status in statuses)


def _left(status: Status) -> int:
    return status.remaining if isinstance(status, LeaseStatus) else status.available


def _tightest(statuses: Sequence[Status]) -> Sequence[Status]:
    """Each limit once, where it has the least left, and none that is soft."""
    found: dict[str, Status] = {}
    for status in statuses:
        if status.limit.soft:
            continue
        name = status.limit_name
        if name not in found or _left(status) < _left(found[name]):
            found[name] = status
    return tuple(found.values())
