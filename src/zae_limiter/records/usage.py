"""What was used, window by window: reading the snapshots that the aggregator writes.

A snapshot is chosen by where its window starts. By entity the rows are filtered in the table; by
resource an index leads to them, one kind of window after another.

A snapshot is an entity's own view: a parent's holds what its children passed on. A resource as a whole is
what was asked for, every request once, so ``own`` takes what came from children out of their parent's view.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from itertools import groupby
from typing import NamedTuple, TypeAlias

from ..exceptions import ValidationError
from ..models import UsageSnapshot, UsageSummary, UsageWindow
from ..naming import validate_entity_id, validate_resource
from ..repository_protocol import AtLeast, AtMost, Condition, Equal
from ..schema import usage_of_entity, usage_of_resource
from .items import usage_snapshot_of, window_of
from .scope import PAGE_MAX, Scope, check_page_size, cursor_text, paged, readable

EARLIEST, LATEST = 0, 32_503_680_000
"""1970 and 3000 in epoch seconds: nothing was counted before, nor will be after."""
FILTERED_QUERIES_MAX = 100
"""How often the store is asked for one page of an entity's usage, most of which may not be wanted."""

Snapshots: TypeAlias = tuple[list[UsageSnapshot], str | None]
"""A page of snapshots, and the key of the next one if there is one."""


class Range(NamedTuple):
    """The windows that are asked for: of which kinds, and starting when, in epoch seconds."""

    windows: tuple[UsageWindow, ...]
    first: int
    last: int

    @property
    def conditions(self) -> tuple[Condition, ...]:
        kind = (Equal("window", self.windows[0].value),) if len(self.windows) == 1 else ()
        return (*kind, AtLeast("window_start", _text(self.first)), AtMost("window_start", _text(self.last)))

    def keys(self, window: UsageWindow) -> tuple[str, str]:
        """The keys of the first and the last window of one kind."""
        key, start, end = window_of(window, self.first * 1000)
        if start < _text(self.first):  # it began before, so the next one is the first
            key = window_of(window, _epoch("start_time", end) * 1000)[0]
        return key, window_of(window, self.last * 1000)[0]


async def get_usage_snapshots(
    scope: Scope,
    entity_id: str | None = None,
    resource: str | None = None,
    window_type: UsageWindow | str | None = None,
    start_time: datetime | str | None = None,
    end_time: datetime | str | None = None,
    limit: int = 100,
    next_key: str | None = None,
) -> tuple[list[UsageSnapshot], str | None]:
    """Snapshots of an entity, of a resource or of both, and the key of the next page if there is one.

    The last page is the one without a key; a page may be short, or empty, and have one.
    ``start_time`` and ``end_time`` choose windows that start within them, both included.
    """
    chosen = _range(window_type, start_time, end_time)
    check_page_size(limit)
    if resource is not None:
        validate_resource(resource)
    if entity_id is not None:
        query = usage_of_entity(scope.namespace_id, validate_entity_id(entity_id), resource)
        query = paged(query._replace(when=chosen.conditions), limit, next_key)
        rows, after = await scope.first_rows(query, FILTERED_QUERIES_MAX)
        return readable(usage_snapshot_of, (row.item for row in rows)), cursor_text(after, query)
    if resource is None:
        raise ValidationError("entity_id", None, "name an entity, a resource, or both")
    return await _of_resource(scope, resource, chosen, limit, next_key)


async def get_usage_summary(
    scope: Scope,
    entity_id: str | None = None,
    resource: str | None = None,
    window_type: UsageWindow | str | None = None,
    start_time: datetime | str | None = None,
    end_time: datetime | str | None = None,
) -> UsageSummary:
    """Totals and averages over snapshots of one kind of window, so that nothing counts twice.

    Without a ``window_type`` that is the shortest kind of which there are any. Without an ``entity_id``
    every request counts once: what was charged to a parent too counts for the one who asked.
    """
    for kind in _kinds(window_type):
        count, events, total, starts = 0, 0, Counter[str](), set[str]()
        page = partial(get_usage_snapshots, scope, entity_id, resource, kind, start_time, end_time, PAGE_MAX)
        async for window in _windows(page):
            starts.add(window[0].window_start)
            for snapshot in window if entity_id is not None else own(window):
                if entity_id is None and not any(snapshot.counters.values()):
                    continue  # all that it was charged with others asked for
                count, events = count + 1, events + snapshot.total_events
                total.update(snapshot.counters)
        if count:
            average = {name: amount / count for name, amount in total.items()}
            return UsageSummary(count, dict(total), average, events, min(starts), max(starts))
    return UsageSummary(0, {}, {})


async def _windows(page: Callable[[str | None], Awaitable[Snapshots]]) -> AsyncIterator[list[UsageSnapshot]]:
    """Snapshots that stand one after another and are of the same window, of all pages."""
    together: list[UsageSnapshot] = []
    snapshots, next_key = await page(None)
    while True:
        for snapshot in snapshots:
            if together and together[0].window_start != snapshot.window_start:
                yield together
                together = []
            together.append(snapshot)
        if next_key is None:
            break
        snapshots, next_key = await page(next_key)
    if together:
        yield together


async def _of_resource(
    scope: Scope, resource: str, chosen: Range, limit: int, next_key: str | None
) -> Snapshots:
    """Windows of one kind after another; the key of a page says which kind it goes on with."""
    at, cursor = 0, None
    if next_key is not None:
        kind, _, cursor = next_key.partition(":") if isinstance(next_key, str) else ("", "", "")
        if kind not in chosen.windows:
            raise ValidationError("next_key", next_key, "pass on what the previous page returned")
        at = chosen.windows.index(UsageWindow(kind))
    snapshots: list[UsageSnapshot] = []
    for window in chosen.windows[at:]:
        if len(snapshots) == limit:
            return snapshots, f"{window}:"
        query = usage_of_resource(scope.namespace_id, resource, window, *chosen.keys(window))
        rows, after = await scope.first_rows(paged(query, limit - len(snapshots), cursor or None))
        items = await scope.get_all([row.key for row in rows])
        snapshots += readable(usage_snapshot_of, items.values())
        if after is not None:
            return snapshots, f"{window}:{cursor_text(after, query)}"
        cursor = None
    return snapshots, None


def _kinds(window_type: UsageWindow | str | None) -> tuple[UsageWindow, ...]:
    return tuple(UsageWindow) if window_type is None else (UsageWindow.of(window_type),)


def _range(
    window_type: UsageWindow | str | None, start_time: datetime | str | None, end_time: datetime | str | None
) -> Range:
    windows = _kinds(window_type)
    first = EARLIEST if start_time is None else _epoch("start_time", start_time)
    last = LATEST if end_time is None else _epoch("end_time", end_time, round_up=False)
    if start_time is not None and end_time is not None and last < first:
        raise ValidationError("end_time", end_time, f"it is before start_time, {start_time}")
    return Range(windows, first, last)


def _epoch(field: str, time: datetime | str, *, round_up: bool = True) -> int:
    """An instant in whole seconds; one without a zone is in UTC, as all of ours are."""
    moment = time
    if isinstance(moment, str):
        try:
            moment = datetime.fromisoformat(moment)
        except ValueError:
            raise ValidationError(field, time, "write it as 2024-01-01T14:00:00Z or 2024-01-01") from None
    if not isinstance(moment, datetime):
        raise ValidationError(field, time, "pass a datetime, or a text such as 2024-01-01")
    moment = moment.replace(tzinfo=moment.tzinfo or UTC)
    whole = (math.ceil if round_up else math.floor)(moment.timestamp())
    return max(EARLIEST, min(whole, LATEST))


def _text(epoch: int) -> str:
    return f"{datetime.fromtimestamp(epoch, UTC):%Y-%m-%dT%H:%M:%SZ}"


def own(snapshots: Iterable[UsageSnapshot]) -> Iterator[UsageSnapshot]:
    """The snapshots of a resource, window by window, each with what its entity asked for itself.

    Together they count every request once. What a child asked for is its own, whether or not its parent's
    snapshot is there. An entity passes on all that it was charged with, so a family may have any depth.
    """
    for _, together in groupby(snapshots, key=lambda one: (one.window_type, one.window_start, one.resource)):
        yield from _own_of_window(list(together))


def _own_of_window(snapshots: Sequence[UsageSnapshot]) -> Iterator[UsageSnapshot]:
    below: dict[str, Counter[str]] = {one.entity_id: Counter() for one in snapshots}
    """What those below passed on to an entity."""
    for one in snapshots:
        for above_id, amounts in one.passed_on.items():
            if above_id in below and above_id != one.entity_id:
                below[above_id].update(amounts)
    for one in snapshots:
        less = below[one.entity_id]
        counters = {name: _without(amount, less[name]) for name, amount in one.counters.items()}
        yield replace(one, counters=counters, passed_on={})


def _without(amount: int, part: int) -> int:
    """An amount without a part of it, which cannot be more than there is."""
    return amount - min(part, max(amount, 0))
