"""What a limiter does, for those who look: numbers, refusals of late, events, metrics, spans and logs.

``Telemetry(limiter)`` begins to count, ``close()`` ends it; a limiter without one runs not one step for it.

- ``telemetry.recent``: a list of ``Refusal`` (at_ms, entity_id, resource, limits, requested, retry_after_ms,
  count, process) of this process, at most 200, the newest first; repeats within a second are one entry.
- ``telemetry.counters``: ``Counters`` of this process (admitted, refused, degraded, unavailable, disabled,
  denied, bypassed, failed, refunds_lost, seats_lost, soft_exceeded, leases_open, waiting).
- ``telemetry.share()``: from now on other processes see both, within two seconds, on every store. They read
  it by ``await repository.get_reports()``: a list of ``ProcessReport`` (name, process_id, started_ms,
  seen_ms, admitted, refused, degraded, unavailable, refusals) of at most 64 processes, whoever told last
  first; the refusals are ``Refusal`` values with ``process`` set, at most 20 each.

No name of an entity is in a number or a label; whatever programs send as names, series are bounded.
"""

from ..records.reports import ProcessReport, Refusal
from .attached import Telemetry
from .counters import Counters
from .events import EventKind, TelemetryEvent
from .logs import JsonFormatter

__all__ = [
    "Counters",
    "EventKind",
    "JsonFormatter",
    "ProcessReport",
    "Refusal",
    "Telemetry",
    "TelemetryEvent",
]
