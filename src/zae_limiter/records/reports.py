"""What processes tell each other of late: how much each has admitted and refused, and whom.

Each process has one row, which it writes over now and then, so that a page or a terminal elsewhere sees
refusals that are only known where they happened. There are ``PLACES`` rows at most, all in one partition: one
query reads them. A process takes a place that is free, or whose row has been silent for ``SILENT_MS``; where
there is none it is not heard. A row is bounded in size, and goes by its ``ttl``.

Rows are news, not books: nothing is decided by them, and nobody waits for them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ..repository_protocol import Absent, Condition, Equal, Item, Key, Update, Value
from ..schema import is_number, number, pinned, starting, text, within_namespace
from .scope import Scope

PLACES = 64
"""How many processes of a namespace are heard at once."""

REFUSALS_MAX = 20
REFUSALS_BYTES_MAX = 8_192
"""How long the refusals of a row are as text; the oldest stay behind."""

SILENT_MS = 300_000
"""After how long a place may be taken by another process, and is not shown any more."""

TTL_SECONDS = 600

NAME_LETTERS_MAX = 64

COUNTERS = ("admitted", "refused", "degraded", "unavailable")


@dataclass(frozen=True, slots=True)
class Refusal:
    """Somebody was refused, once or several times within a second."""

    at_ms: int
    """When, the last time."""
    entity_id: str
    resource: str
    limits: tuple[str, ...]
    """The names of those that refused."""
    requested: Mapping[str, int]
    """What was asked for, the last time."""
    retry_after_ms: int | None
    """How long to wait, as of ``at_ms``; ``None`` if waiting does not help."""
    count: int = 1
    process: str = ""
    """Who refused, if another process told it."""
    is_latest: bool = False
    """Whether the wait is the longest that it can be: a seat may be free at any time before."""
    reason: str = ""
    """Why it is off, if no limit refused but a switch."""


@dataclass(frozen=True, slots=True)
class ProcessReport:
    """What a process has told of itself, the last time that it had something to tell."""

    name: str
    """Such as ``host-4711``."""
    process_id: str
    """One that no other process has, nor the next one of the same name."""
    started_ms: int
    seen_ms: int
    """When it last told anything: a process in which nothing happens tells nothing."""
    admitted: int
    """How many acquires it has admitted since it was started; the next numbers likewise."""
    refused: int
    degraded: int
    unavailable: int
    refusals: tuple[Refusal, ...] = field(default=())
    """The newest that it knows of, the newest first."""


def report_key(namespace_id: str, place: int) -> Key:
    """Where a process tells of itself."""
    return Key(f"{namespace_id}/REPORT#", f"#REPORT#{place:02}")


async def get_reports(scope: Scope) -> list[ProcessReport]:
    """What processes that share their telemetry have told lately, whoever told last first.

    One query, whatever their number. A process that has been silent for five minutes is left out.
    """
    partition = report_key(scope.namespace_id, 0).partition
    rows, _ = await scope.first_rows(starting(partition, "#REPORT#")._replace(rows_max=PLACES))
    since_ms = scope.world.now_ms() - SILENT_MS
    found = [_report_of(row.item) for row in rows]
    heard = [report for report in found if report is not None and report.seen_ms >= since_ms]
    return sorted(heard, key=lambda report: report.seen_ms, reverse=True)


async def write_report(scope: Scope, place: int, report: ProcessReport, *, is_new: bool) -> bool:
    """Tell it; false, and nothing written, if the place is somebody else's.

    ``is_new`` says that it is not known to be one's own. It reads nothing: whoever may acquire may tell.
    """
    key, item = report_key(scope.namespace_id, place), report_item(scope.namespace_id, place, report)
    when: tuple[Condition, ...] = (Absent(),) if is_new else (Equal("of", report.process_id),)
    (outcome,) = await scope.must_write([Update(key, set=item, when=when)])
    if outcome.applied or not is_new or outcome.item is None:
        return outcome.applied
    is_own = text(outcome.item, "of") == report.process_id  # the reply to it was lost
    if not is_own and number(outcome.item, "seen_ms") > report.seen_ms - SILENT_MS:
        return False
    when = pinned(outcome.item, "seen_ms")  # unless it speaks up just now, or somebody else takes its place
    (outcome,) = await scope.must_write([Update(key, set=item, when=when)])
    return outcome.applied


def report_item(namespace_id: str, place: int, report: ProcessReport) -> dict[str, Value]:
    """A report as it is stored."""
    return {
        "of": report.process_id,
        "name": report.name[:NAME_LETTERS_MAX],
        "started_ms": report.started_ms,
        "seen_ms": report.seen_ms,
        **{name: getattr(report, name) for name in COUNTERS},
        "refusals": _refusals_text(report.refusals),
        "ttl": report.seen_ms // 1000 + TTL_SECONDS,
        **within_namespace(namespace_id, report_key(namespace_id, place)),
    }


def _refusals_text(refusals: Sequence[Refusal]) -> str:
    """The newest refusals, as many as there is room for."""
    told: list[str] = []
    left = REFUSALS_BYTES_MAX
    for one in refusals[:REFUSALS_MAX]:
        said = [one.at_ms, one.entity_id, one.resource, [*one.limits], dict(one.requested)]
        said += [one.retry_after_ms, one.count, one.is_latest, one.reason]
        row = json.dumps(said, separators=(",", ":"))  # all of it ASCII
        left -= len(row) + 1
        if left < 1:
            break
        told.append(row)
    return f"[{','.join(told)}]"


def _report_of(item: Item) -> ProcessReport | None:
    """A row that somebody of us can have written."""
    name, process_id = text(item, "name"), text(item, "of")
    found = [item.get(what) for what in ("started_ms", "seen_ms", *COUNTERS)]
    numbers = [one for one in found if is_number(one)]
    if name is None or process_id is None or len(numbers) < len(found):
        return None
    label = name[:NAME_LETTERS_MAX]
    started_ms, seen_ms, *counts = numbers
    refusals = _refusals_of(text(item, "refusals"), label)
    counters = dict(zip(COUNTERS, counts, strict=True))
    return ProcessReport(label, process_id, started_ms, seen_ms, **counters, refusals=refusals)


def _refusals_of(said: str | None, process: str) -> tuple[Refusal, ...]:
    try:
        rows = json.loads(said or "[]")
    except ValueError:
        return ()
    found = (_refusal_of(row, process) for row in rows[:REFUSALS_MAX]) if isinstance(rows, list) else ()
    return tuple(one for one in found if one is not None)


def _refusal_of(row: object, process: str) -> Refusal | None:
    match [*row, False, ""][:9] if isinstance(row, list) else row:  # older processes leave out the last two
        case [
            int(at_ms),
            str(entity_id),
            str(resource),
            list(limits),
            dict(requested),
            int() | None as after,
            int(count),
            bool(is_latest),
            str(reason),
        ]:
            names = tuple(name for name in limits if isinstance(name, str))
            amounts = {name: amount for name, amount in requested.items() if isinstance(amount, int)}
            more = after, count, process, is_latest, reason
            return Refusal(at_ms, entity_id, resource, names, amounts, *more)
    return None
