"""What was used, window by window: reading the snapshots that the aggregator writes.

A snapshot is chosen by where its window starts. By entity the rows are filtered in the table; by
resource an index leads to them, one kind of window after another.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime

from ..exceptions import ValidationError
from ..models import UsageSnapshot, UsageSummary, UsageWindow
from ..naming import validate_entity_id, validate_resource
from ..repository_protocol import AtLeast, AtMost, Condition, Equal, Query
from ..schema import usage_of_entity, usage_of_resource
from ..schema_records import usage_snapshot_of, window_of
from .view import PAGE_MAX, View, check_page_size, cursor_text

EARLIEST_MS = 0
LATEST_MS = 253_402_300_799_000  # the last second of the year 9999


@dataclass(frozen=True, slots=True)
class Range:
    """The windows that are asked for: of which kinds, and starting when."""

    windows: tuple[UsageWindow, ...]
    first_ms: int
    last_ms: int

    @property
    def conditions(self) -> tuple[Condition, ...]:
        starts = [window_of(UsageWindow.HOURLY, at_ms)[1] for at_ms in (self.first_ms, self.last_ms)]
        if self.first_ms % 3_600_000:  # an instant within an hour lies behind that hour's start
            starts[0] = f"{_moment(self.first_ms):%Y-%m-%dT%H:%M:%SZ}"
        kind = (Equal("window", self.windows[0].value),) if len(self.windows) == 1 else ()
        return (*kind, AtLeast("window_start", starts[0]), AtMost("window_start", starts[1]))


class UsageRecords(View):
    async def get_usage_snapshots(
        self,
        entity_id: str | None = None,
        resource: str | None = None,
        window_type: UsageWindow | str | None = None,
        start_time: datetime | str | None = None,
        end_time: datetime | str | None = None,
        limit: int = 100,
        next_key: str | None = None,
    ) -> tuple[list[UsageSnapshot], str | None]:
        """Snapshots of an entity, of a resource or of both, and the key of the next page if there is one.

        ``start_time`` and ``end_time`` choose windows that start within them, both included.
        """
        chosen = _range(window_type, start_time, end_time)
        check_page_size(limit)
        if resource is not None:
            validate_resource(resource)
        if entity_id is not None:
            query = usage_of_entity(self._namespace_id, validate_entity_id(entity_id), resource)
            query = self._paged(query._replace(when=chosen.conditions), limit, next_key)
            rows, after = await self._first_rows(query)
            return [usage_snapshot_of(row.item) for row in rows], cursor_text(after)
        if resource is None:
            raise ValidationError("entity_id", None, "name an entity, a resource, or both")
        return await self._of_resource(resource, chosen, limit, next_key)

    async def get_usage_summary(
        self,
        entity_id: str | None = None,
        resource: str | None = None,
        window_type: UsageWindow | str | None = None,
        start_time: datetime | str | None = None,
        end_time: datetime | str | None = None,
    ) -> UsageSummary:
        """Totals and averages over snapshots of one kind of window, so that nothing counts twice.

        Without a ``window_type`` that is the shortest kind of which there are any.
        """
        kinds = tuple(UsageWindow) if window_type is None else (UsageWindow.of(window_type),)
        summary = UsageSummary(0, {}, {})
        for kind in kinds:
            count, events, total, starts = 0, 0, Counter[str](), []
            async for snapshot in self._every(entity_id, resource, kind, start_time, end_time):
                count, events = count + 1, events + snapshot.total_events
                total.update(snapshot.counters)
                starts = [min([*starts[:1], snapshot.window_start]), max([*starts, snapshot.window_start])]
            if count:
                average = {name: amount / count for name, amount in total.items()}
                return UsageSummary(count, dict(total), average, events, starts[0], starts[-1])
        return summary

    async def _every(
        self,
        entity_id: str | None,
        resource: str | None,
        window: UsageWindow,
        start_time: datetime | str | None,
        end_time: datetime | str | None,
    ) -> AsyncIterator[UsageSnapshot]:
        next_key: str | None = None
        while True:
            page, next_key = await self.get_usage_snapshots(
                entity_id, resource, window, start_time, end_time, PAGE_MAX, next_key
            )
            for snapshot in page:
                yield snapshot
            if next_key is None:
                return

    async def _of_resource(
        self, resource: str, chosen: Range, limit: int, next_key: str | None
    ) -> tuple[list[UsageSnapshot], str | None]:
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
            query = self._within(resource, window, chosen)
            rows, after = await self._first_rows(self._paged(query, limit - len(snapshots), cursor or None))
            items = await self._items([row.key for row in rows])
            snapshots += [usage_snapshot_of(item) for item in items]
            if after is not None:
                return snapshots, f"{window}:{cursor_text(after)}"
            cursor = None
        return snapshots, None

    def _within(self, resource: str, window: UsageWindow, chosen: Range) -> Query:
        first_key, first_start, _ = window_of(window, chosen.first_ms)
        if first_start < f"{_moment(chosen.first_ms):%Y-%m-%dT%H:%M:%SZ}":
            first_key += "~"  # the window began before; what follows its key begins later
        return usage_of_resource(
            self._namespace_id, resource, window, first_key, window_of(window, chosen.last_ms)[0]
        )


def _range(
    window_type: UsageWindow | str | None, start_time: datetime | str | None, end_time: datetime | str | None
) -> Range:
    windows = tuple(UsageWindow) if window_type is None else (UsageWindow.of(window_type),)
    first_ms = EARLIEST_MS if start_time is None else _epoch_ms("start_time", start_time)
    last_ms = LATEST_MS if end_time is None else _epoch_ms("end_time", end_time)
    if last_ms < first_ms:
        raise ValidationError("end_time", end_time, f"it is before start_time, {start_time}")
    return Range(windows, first_ms, last_ms)


def _epoch_ms(field: str, time: datetime | str) -> int:
    """An instant, rounded up to a whole second; a text without a zone is in UTC, as all of ours are."""
    moment = time
    if isinstance(moment, str):
        try:
            moment = datetime.fromisoformat(moment)
        except ValueError:
            raise ValidationError(field, time, "write it as 2024-01-01T14:00:00Z or 2024-01-01") from None
        moment = moment.replace(tzinfo=moment.tzinfo or UTC)
    if not isinstance(moment, datetime) or moment.tzinfo is None:
        raise ValidationError(field, time, "pass a datetime with a time zone, or a text such as 2024-01-01")
    return max(EARLIEST_MS, min(-int(-moment.timestamp() // 1) * 1000, LATEST_MS))


def _moment(at_ms: int) -> datetime:
    return datetime.fromtimestamp(at_ms // 1000, UTC)
