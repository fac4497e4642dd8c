"""A span for each acquire, for whoever asks: from asking for tokens to holding them, or not.

A span has the resource, what was asked for and how it ended; the entity only if that is asked for as well,
since a trace may be kept where ids of customers must not be.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ..exceptions import RateLimiterUnavailable, RateLimitExceeded, SwitchedOff


class Spans:
    """Makes them by a tracer of OpenTelemetry."""

    def __init__(self, tracer: Any, *, with_entities: bool = False) -> None:
        self._tracer, self._with_entities = tracer, with_entities

    def begin(self, entity_id: str, resource: str, needs: Mapping[str, int]) -> Any:
        """A span that has begun."""
        said: dict[str, Any] = {"zae_limiter.resource": resource}
        said |= {f"zae_limiter.requested.{name}": need // 1000 for name, need in needs.items()}
        if self._with_entities:
            said["zae_limiter.entity"] = entity_id
        return self._tracer.start_span("zae_limiter.acquire", attributes=said)

    def end(self, span: Any, error: BaseException | None, exceeded: Iterable[str] = ()) -> None:
        """Say how it went, and end it. A refusal is an answer, a store that is down is an error."""
        result = "admitted"
        if isinstance(error, RateLimitExceeded):
            result = "refused"
            span.set_attribute("zae_limiter.limit", error.primary_violation.limit_name)
        elif isinstance(error, SwitchedOff):
            result = error.error
        elif error is not None:
            result = "unavailable" if isinstance(error, RateLimiterUnavailable) else "failed"
            span.set_attribute("error.type", type(error).__name__)
        names = list(exceeded)
        if names:
            span.set_attribute("zae_limiter.exceeded", names)
        span.set_attribute("zae_limiter.result", result)
        span.end()
