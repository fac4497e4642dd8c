"""What Envoy is told, in the published messages: codes, how limits stand, headers for the client.

The headers are those of ``zae_limiter.web``, and no answer has the id of an entity. Of a parent's limit that
refused only the wait is told. No quota is granted in advance: it could not be kept exactly.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from envoy.config.core.v3.base_pb2 import HeaderValue
from envoy.service.ratelimit.v3.rls_pb2 import RateLimitResponse

from ...exceptions import RateLimitExceeded
from ...models import Limit, LimitKind, LimitStatus
from ...models.accruals import period_and_zone
from ...web.answers import Answers, retry_seconds
from ...web.drafts import Status, left_of, share_of, whole_seconds
from .asking import UNIT_PERIODS, UNIT_SECONDS, AskedHits
from .deciding import Own, Verdict

OK: int = RateLimitResponse.OK
OVER_LIMIT: int = RateLimitResponse.OVER_LIMIT
UINT32_MAX = 2**32 - 1
SECONDS_MAX = 315_576_000_000
"""The longest ``Duration`` that there is."""

CLOSED_RETRY = "Retry-After", "31536000"

_NOT_TOLD = frozenset({"content-type", "content-length", "cache-control"})
"""Headers about a body, which Envoy makes itself."""

_UNITS: Mapping[int, int] = {seconds: unit for unit, seconds in UNIT_SECONDS.items()}


def response_to(asked: Sequence[AskedHits | None], verdict: Verdict, answers: Answers) -> Any:
    """The whole answer; a descriptor that no rule is for is OK and has no limit."""
    response = RateLimitResponse(overall_code=OVER_LIMIT if verdict.over else OK)
    for at, one in enumerate(asked):
        status = response.statuses.add(code=OVER_LIMIT if at in verdict.over else OK)
        if one is not None:
            _tell(status, one, verdict, is_over=at in verdict.over)
    for name, value in _headers(asked, verdict, answers):
        response.response_headers_to_add.append(HeaderValue(key=name, value=value))
    return response


def _headers(
    asked: Sequence[AskedHits | None], verdict: Verdict, answers: Answers
) -> Iterable[tuple[str, str]]:
    places = dict.fromkeys(one.place for one in asked if one is not None)
    headers = list(answers.headers([status for place in places for status in verdict.own.get(place, ())]))
    if verdict.refusal is not None:  # which may be told less of
        refused = answers.refusal(verdict.refusal).headers
        told = {name.lower() for name, _ in headers} | _NOT_TOLD
        headers += [(name, value) for name, value in refused if name.lower() not in told]
    elif verdict.over:
        headers.append(CLOSED_RETRY)
    return headers


def _tell(told: Any, one: AskedHits, verdict: Verdict, *, is_over: bool) -> None:
    """How the limit stands that binds a descriptor: one that refused, else the one with the least left."""
    if one.unit is not None:
        told.current_limit.unit = one.unit
        return
    own = _asked_of(verdict.own, one)
    if is_over:
        own = [status for status in own if isinstance(status, LimitStatus) and status.exceeded]
        if not own:  # a parent's limit, or a switch
            if isinstance(verdict.refusal, RateLimitExceeded):
                _set_seconds(told, retry_seconds(verdict.refusal.violations))
            return
    if not own:
        return
    status = min(own, key=lambda it: (left_of(it) / it.limit.capacity, -it.reset_after_seconds))
    limit = status.limit
    told.current_limit.requests_per_unit = min(limit.refill_amount, UINT32_MAX)
    told.current_limit.unit = unit_of_window(limit)
    told.current_limit.name = limit.name
    told.limit_remaining = min(share_of(status)[0], UINT32_MAX)
    _set_seconds(told, status.reset_after_seconds)


def _asked_of(own: Own, one: AskedHits) -> list[Status]:
    """The limits that a descriptor asked for; none that is soft, for it refuses nobody."""
    return [s for s in own.get(one.place, ()) if s.limit_name in one.amounts and not s.limit.soft]


def _set_seconds(told: Any, seconds: float) -> None:
    if not math.isinf(seconds):
        told.duration_until_reset.seconds = min(whole_seconds(seconds), SECONDS_MAX)


def unit_of_window(limit: Limit) -> int:
    """The unit in which a limit lets its refill through; 0 if it is none that Envoy has a name for."""
    if limit.accrual is not None and limit.kind is LimitKind.QUOTA:
        return UNIT_PERIODS.get(period_and_zone(limit.accrual)[0], 0)
    return _UNITS.get(limit.refill_period_seconds, 0)
