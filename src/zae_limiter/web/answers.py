"""What a client is told: headers of whoever was admitted, and the whole answer to whoever was not.

What one tenant may know is decided here and nowhere else. By default that is its own limits and how they
stand; of a parent's that refused, the name and the wait. No answer has the id of an entity, a key, a parent
or a namespace. All of it is pure: a lease or an error in, text out.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from http import HTTPStatus
from typing import Any, Final, NamedTuple, Protocol

from ..exceptions import (
    PermissionDenied,
    RateLimiterUnavailable,
    RateLimitExceeded,
    SwitchedOff,
    ValidationError,
)
from ..models import Limit, LimitKind, LimitStatus
from ..models.checks import Choice
from ..models.refusing import retry_headers
from .drafts import (
    DRAFTS,
    LEGACY,
    SEAT_SECONDS_MAX,
    UNITS,
    Draft,
    Header,
    Status,
    left_of,
    reading_of,
    whole_seconds,
)
from .structured import listed, text_of

PROBLEM_TYPES = "https://iana.org/assignments/http-problem-types#"
QUOTA_EXCEEDED = f"{PROBLEM_TYPES}quota-exceeded"
REDUCED_CAPACITY = f"{PROBLEM_TYPES}temporary-reduced-capacity"

STORE_SECONDS = 1
"""When to ask again while the store does not answer."""

LIMITS_SPELT_MAX = 1024

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

    def _standings(self, *, is_public: bool = False) -> Sequence[Status]: ...


class RequestRefused(Exception):
    """A request that is answered with a status of 4xx before anything is charged.

    A callable of a rule may raise it: ``raise RequestRefused(402, "pay first")``. The detail is shown to
    whoever asked.
    """

    def __init__(self, status: int, detail: str, headers: Iterable[Header] = ()) -> None:
        if status not in _REFUSING:
            raise ValidationError("status", status, "use one of 4xx that HTTP knows, such as 402")
        self.status = status
        self.detail = detail
        self.headers: Final = tuple(headers)
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
        for name, unit in (units or {}).items():
            text_of(unit, f"unit of {name!r}")
        self.draft = draft
        self.legacy: Final = tuple(legacy)
        self.problem_base = problem_base
        self.expose: Final = Expose.chosen("expose", expose)
        self.units: Final = {**UNITS, **(units or {})}
        self._spelling = None if draft is None else DRAFTS[draft]
        self._styles = [LEGACY[one] for one in self.legacy]
        self._spelt: dict[int, tuple[Limit, str, str]] = {}
        """Limits, by their identity, and how their names and policies are written."""

    def __repr__(self) -> str:
        return f"Answers({self.draft!r}, {self.legacy!r}, expose={self.expose.value!r})"

    def of_lease(self, lease: Told) -> list[Header]:
        """The headers of an answer to somebody who was admitted; none for a lease that is degraded."""
        if self.expose is Expose.NOTHING:
            return []
        return self.headers(lease._standings(is_public=self.expose is Expose.OWN))

    def headers(self, statuses: Sequence[Status]) -> list[Header]:
        """Headers that tell these statuses. A soft limit refuses nobody, and nobody is told of it."""
        told = _tightest(statuses)
        if not told:
            return []
        headers: list[Header] = []
        if (spelling := self._spelling) is not None:
            policies, values = [], []
            for status in told:
                known = self._spelt.get(id(status.limit)) or self._spell(spelling, status.limit)
                policies.append(known[2])
                values.append(spelling.values_item(known[1], status))
            headers += (spelling.policy, listed(policies)), (spelling.values, listed(values))
        if self._styles:
            readings = [reading_of(status, self.units) for status in told]
            for style in self._styles:
                headers += style(readings)
        return headers

    def _spell(self, spelling: Draft, limit: Limit) -> tuple[Limit, str, str]:
        """What stays the same as long as a limit does; it is kept with the limit, so that no other is it."""
        if len(self._spelt) >= LIMITS_SPELT_MAX:
            self._spelt.clear()
        known = limit, text_of(limit.name), spelling.policy_item(limit, self.units)
        self._spelt[id(limit)] = known
        return known

    def refusal(self, error: Exception, own: Collection[str] = ()) -> HttpAnswer:
        """The whole answer to somebody who was refused; anything else than a refusal is raised again.

        ``own`` are the entities that a request was charged to. What refused another one, such as a provider's
        account that the application uses, is told without its limits and its reason.
        """
        if own and (asked := getattr(error, "entity_id", None)) is not None and asked not in own:
            return self._elsewhere(error)
        if isinstance(error, RateLimitExceeded):
            return self._exceeded(error)
        if isinstance(error, RateLimiterUnavailable):
            return self._unavailable(error)
        if isinstance(error, SwitchedOff):
            told = error.public_dict()
            status = 403 if isinstance(error, PermissionDenied) else 503
            return self.problem(status, self._type(told["error"]), told["message"], [_NO_RETRY])
        if isinstance(error, RequestRefused):
            return self.problem(error.status, "about:blank", error.detail, error.headers)
        raise error

    def _exceeded(self, error: RateLimitExceeded) -> HttpAnswer:
        wait = retry_seconds(error.violations)
        never = math.isinf(wait)
        headers = retry_headers(wait)
        names = [] if self.expose is Expose.NOTHING else list(dict.fromkeys(_names(error.violations)))
        if self.expose is not Expose.NOTHING:
            family = self.expose is Expose.FAMILY
            headers += self.headers(error.statuses if family else error.public_statuses)
        detail = f"not enough is left of {', '.join(names)}" if names else "not enough is left"
        detail += "; so much is never there" if never else f"; retry after {whole_seconds(wait)} s"
        more = {"violated-policies": names} if names else {}
        return self.problem(429, QUOTA_EXCEEDED, detail, headers, more)

    def _elsewhere(self, error: Exception) -> HttpAnswer:
        """Somebody else was refused, of whom nothing is told but the wait."""
        wait = retry_seconds(error.violations) if isinstance(error, RateLimitExceeded) else math.inf
        headers = [_NO_RETRY] if math.isinf(wait) else retry_headers(wait)
        return self.problem(503, REDUCED_CAPACITY, "what the request needs is used up just now", headers)

    def _unavailable(self, error: RateLimiterUnavailable) -> HttpAnswer:
        is_lasting = error.misconfigured or error.impossible  # which waiting does not mend
        headers = [_NO_RETRY if is_lasting else ("Retry-After", str(STORE_SECONDS))]
        detail = "whether the request is within its limits cannot be said just now"
        return self.problem(503, REDUCED_CAPACITY, detail, headers)

    def _type(self, error: str) -> str:
        return "about:blank" if self.problem_base is None else self.problem_base + error.replace("_", "-")

    def problem(
        self,
        status: int,
        kind: str,
        detail: str,
        headers: Iterable[Header] = (),
        more: Mapping[str, Any] | None = None,
    ) -> HttpAnswer:
        """A problem document of this type; ``detail`` is shown to whoever asked."""
        title = _TITLES.get(kind) or HTTPStatus(status).phrase
        told = {"type": kind, "title": title, "status": status, "detail": detail, **(more or {})}
        told["error"] = {"message": detail, "type": _ERRORS.get(status, "invalid_request_error")}
        body = json.dumps(told).encode()
        about = ("Content-Type", "application/problem+json"), ("Content-Length", str(len(body)))
        return HttpAnswer(status, (*about, ("Cache-Control", "no-store"), *headers), body)


_NO_RETRY = "x-should-retry", "false"

_ERRORS = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}
"""What the clients of language models call it; they show the message of a member ``error`` and no other."""

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


def _tightest(statuses: Sequence[Status]) -> Sequence[Status]:
    """Each limit once, where it has the least left, and none that is soft."""
    found: dict[str, Status] = {}
    for status in statuses:
        if status.limit.soft:
            continue
        name = status.limit_name
        if name not in found or left_of(status) < left_of(found[name]):
            found[name] = status
    return tuple(found.values())
