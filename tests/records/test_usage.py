"""Usage: windows that never collide, snapshots by entity and by resource, time ranges, summaries."""

from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from tests.records.store import Store, count_usage
from zae_limiter import UsageSnapshot, UsageSummary, UsageWindow, ValidationError
from zae_limiter.records.items import window_of

HOUR_MS, DAY_MS = 3_600_000, 86_400_000
MONDAY_MS = 1_704_067_200_000  # 2024-01-01T00:00:00Z


def at(text: str) -> int:
    return int(datetime.fromisoformat(text).timestamp() * 1000)


@pytest.mark.parametrize(
    ("window", "instant", "key", "start", "end"),
    [
        ("hourly", "2024-01-01T14:59:59.999+00:00", "2024-01-01T14:00:00Z", "2024-01-01T14", "2024-01-01T15"),
        ("hourly", "2024-12-31T23:00:00+00:00", "2024-12-31T23:00:00Z", "2024-12-31T23", "2025-01-01T00"),
        ("daily", "2024-02-29T12:00:00+00:00", "2024-02-29", "2024-02-29T00", "2024-03-01T00"),
        ("monthly", "2024-01-31T23:59:59+00:00", "2024-01", "2024-01-01T00", "2024-02-01T00"),
        ("monthly", "2024-02-10T00:00:00+00:00", "2024-02", "2024-02-01T00", "2024-03-01T00"),
        ("monthly", "2023-12-01T00:00:00+00:00", "2023-12", "2023-12-01T00", "2024-01-01T00"),
    ],
)
def test_windows(window: str, instant: str, key: str, start: str, end: str) -> None:
    """The key, the start and the end of the window in which an instant lies."""
    assert window_of(UsageWindow(window), at(instant)) == (key, f"{start}:00:00Z", f"{end}:00:00Z")


def test_windows_of_different_length_have_different_keys() -> None:
    """At midnight of the first all three begin, and none takes another's row."""
    assert len({window_of(window, MONDAY_MS)[0] for window in UsageWindow}) == 3


async def some_days(store: Store) -> Any:
    """Two entities, two resources, hourly and daily rows over three days, one month."""
    repository = await store.repository()
    for entity_id in ("key-1", "key-2"):
        for resource in ("gpt-4", "gpt-4/mini"):
            for hour in range(0, 72, 12):
                await count_usage(
                    repository, entity_id, resource, "hourly", MONDAY_MS + hour * HOUR_MS, rpm=hour, tpm=1
                )
            for day in range(3):
                await count_usage(repository, entity_id, resource, "daily", MONDAY_MS + day * DAY_MS, rpm=day)
            await count_usage(repository, entity_id, resource, "monthly", MONDAY_MS, rpm=9)
    return repository


async def test_a_snapshot_is_read_back(store: Store) -> None:
    """Counters add up, events are counted, the window is told with both ends."""
    repository = await store.repository()
    for _ in range(3):
        await count_usage(
            repository, "key-1", "gpt-4", "hourly", MONDAY_MS + 14 * HOUR_MS + 5, tpm=500, rpm=1
        )
    assert await repository.get_usage_snapshots("key-1") == (
        [
            UsageSnapshot(
                "key-1",
                "gpt-4",
                UsageWindow.HOURLY,
                "2024-01-01T14:00:00Z",
                "2024-01-01T15:00:00Z",
                {"tpm": 1500, "rpm": 3},
                3,
            )
        ],
        None,
    )


@pytest.mark.parametrize("by", ["entity", "both", "resource"])
@pytest.mark.parametrize(
    ("window", "start", "end", "expected"),
    [
        ("hourly", None, None, ["01T00", "01T12", "02T00", "02T12", "03T00", "03T12"]),
        ("daily", None, None, ["01T00", "02T00", "03T00"]),
        (UsageWindow.MONTHLY, None, None, ["01T00"]),
        ("hourly", "2024-01-01T12:00:00Z", "2024-01-02T12:00:00Z", ["01T12", "02T00", "02T12"]),
        ("hourly", "2024-01-01T12:00:01Z", "2024-01-02T11:59:59Z", ["02T00"]),
        ("hourly", "2024-01-01T12:00:00.500Z", "2024-01-02T12:00:00.500Z", ["02T00", "02T12"]),
        ("hourly", "2024-01-02", None, ["02T00", "02T12", "03T00", "03T12"]),
        ("hourly", None, datetime(2024, 1, 1, 14, tzinfo=timezone(timedelta(hours=2))), ["01T00", "01T12"]),
        ("daily", "2024-01-01T06:00:00Z", "2024-01-02T06:00:00Z", ["02T00"]),
        ("monthly", "2024-01-01", "2024-01-01", ["01T00"]),
        ("monthly", "2024-01-02", "2025-01-01", []),
        ("hourly", datetime(2030, 1, 1, tzinfo=UTC), None, []),
        ("hourly", None, "1999-01-01", []),
    ],
)
async def test_windows_are_chosen_by_kind_and_time(
    store: Store, by: str, window: Any, start: Any, end: Any, expected: list[str]
) -> None:
    """Those that start within the range, both ends included, whichever way they are looked up."""
    repository = await some_days(store)
    entity_id = None if by == "resource" else "key-1"
    resource = None if by == "entity" else "gpt-4"
    found, next_key = await repository.get_usage_snapshots(entity_id, resource, window, start, end)
    assert next_key is None
    mine = [s for s in found if (s.entity_id, s.resource) == ("key-1", "gpt-4")]
    assert [s.window_start[8:13] for s in mine] == expected
    assert {s.window_type for s in found} <= {UsageWindow.of(window)}
    assert len(found) == len(mine) * (1 if by == "both" else 2)


async def test_a_resource_is_not_found_under_anothers_name(store: Store) -> None:
    """``gpt-4`` is not a prefix of ``gpt-4/mini``, nor ``key-1`` of ``key-11``."""
    repository = await some_days(store)
    await count_usage(repository, "key-11", "gpt-4", "hourly", MONDAY_MS, rpm=1)
    found, _ = await repository.get_usage_snapshots("key-1", "gpt-4")
    assert {(s.entity_id, s.resource) for s in found} == {("key-1", "gpt-4")}
    assert len(found) == 10
    found, _ = await repository.get_usage_snapshots(resource="gpt-4")
    assert {s.entity_id for s in found} == {"key-1", "key-2", "key-11"}


@pytest.mark.parametrize("by", ["entity", "both", "resource"])
@pytest.mark.parametrize("window", [None, "hourly"])
@pytest.mark.parametrize("limit", [1, 3, 6, 7, 100])
async def test_pages_add_up(store: Store, by: str, window: str | None, limit: int) -> None:
    """No page is larger than asked for, nothing is shown twice or left out."""
    repository = await some_days(store)
    entity_id = None if by == "resource" else "key-1"
    resource = None if by == "entity" else "gpt-4"
    whole, _ = await repository.get_usage_snapshots(entity_id, resource, window, limit=1000)
    assert len(whole) == (6 if window else 10) * (1 if by == "both" else 2)
    found, next_key = [], None
    for _ in range(100):
        page, next_key = await repository.get_usage_snapshots(
            entity_id, resource, window, limit=limit, next_key=next_key
        )
        assert len(page) <= limit
        found += page
        if next_key is None:
            break
    assert found == whole


async def test_the_range_is_filtered_in_the_store(store: Store) -> None:
    """Rows outside the range are not carried over: one call each, by keys or by conditions."""
    await some_days(store)
    repository, calls = await store.recorded()
    await repository.get_usage_snapshots("key-1", "gpt-4", "hourly", "2024-01-02", "2024-01-02")
    assert [verb for verb, _ in calls.calls] == ["query"]
    calls.forget()
    found, _ = await repository.get_usage_snapshots(None, "gpt-4", "hourly", "2024-01-02", "2024-01-02")
    assert [(verb, len(given)) for verb, given in calls.calls] == [("query", 1), ("batch_get", len(found))]
    assert len(found) == 2


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "name an entity, a resource, or both"),
        ({"entity_id": "a#b"}, "entity_id"),
        ({"resource": "a#b"}, "resource"),
        ({"entity_id": "a", "window_type": "weekly"}, "use 'hourly', 'daily' or 'monthly'"),
        ({"entity_id": "a", "start_time": "yesterday"}, "write it as 2024-01-01T14:00:00Z"),
        ({"entity_id": "a", "end_time": 5}, "pass a datetime"),
        ({"entity_id": "a", "start_time": "2024-01-02", "end_time": "2024-01-01"}, "before start_time"),
        ({"entity_id": "a", "limit": 0}, "limit"),
        ({"resource": "a", "limit": 1001}, "limit"),
        ({"entity_id": "a", "next_key": "zz"}, "previous page"),
        ({"resource": "a", "next_key": "zz"}, "previous page"),
        ({"resource": "a", "next_key": "hourly:zz"}, "previous page"),
        ({"resource": "a", "window_type": "daily", "next_key": "hourly:"}, "previous page"),
    ],
    ids=str,
)
async def test_questions_are_checked(store: Store, given: dict[str, Any], said: str) -> None:
    """Before anything is asked of the store."""
    repository, calls = await store.recorded()
    with pytest.raises(ValidationError, match=said):
        await repository.get_usage_snapshots(**given)
    assert calls.round_trips == 0


async def test_a_summary_counts_nothing_twice(store: Store) -> None:
    """Of the shortest windows there are, unless others are asked for."""
    repository = await some_days(store)
    summary = await repository.get_usage_summary("key-1", "gpt-4")
    assert summary == UsageSummary(
        6,
        {"rpm": 180, "tpm": 6},
        {"rpm": 30.0, "tpm": 1.0},
        6,
        "2024-01-01T00:00:00Z",
        "2024-01-03T12:00:00Z",
    )
    daily = await repository.get_usage_summary(resource="gpt-4", window_type="daily", start_time="2024-01-02")
    assert (daily.snapshot_count, daily.total, daily.average) == (4, {"rpm": 6}, {"rpm": 1.5})
    assert await repository.get_usage_summary("nobody") == UsageSummary(0, {}, {})
    await count_usage(repository, "old", "gpt-4", "monthly", MONDAY_MS, rpm=7)
    assert (await repository.get_usage_summary("old")).total == {"rpm": 7}


async def test_hours_add_up_to_a_month_of_a_zone(store: Store) -> None:
    """March in Berlin has 743 hours, of which the first is in February by UTC; none beside them counts."""
    repository, berlin = await store.repository(), ZoneInfo("Europe/Berlin")
    begins, ends = datetime(2026, 3, 1, tzinfo=berlin), datetime(2026, 4, 1, tzinfo=berlin)
    hours = range(int(begins.timestamp()) - 3600, int(ends.timestamp()) + 3600, 3600)
    for at in hours:
        await count_usage(repository, "key-1", "gpt-4", "hourly", at * 1000, rpm=1)
    last = ends - timedelta(seconds=1)
    month = await repository.get_usage_summary("key-1", "gpt-4", "hourly", begins, last)
    assert (month.total, len(hours)) == ({"rpm": 743}, 745)
    assert month.min_window_start == "2026-02-28T23:00:00Z"


async def test_a_summary_goes_over_pages(store: Store) -> None:
    """More than a page of snapshots is summed."""
    repository = await store.repository()
    for hour in range(1010):
        await count_usage(repository, "key-1", "gpt-4", "hourly", MONDAY_MS + hour * HOUR_MS, rpm=2)
    assert (await repository.get_usage_summary("key-1")).total == {"rpm": 2020}
    assert (await repository.get_usage_summary(resource="gpt-4")).snapshot_count == 1010
