"""Usage as series: what was used in which window, and the line of what a limit lets through."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.records.store import count_usage
from tests.server.looker import asking, mismatches
from tests.stores import STORES, url_of
from zae_limiter import Limit, UsageSnapshot, UsageWindow
from zae_limiter.records.items import USAGE_PASSED, usage_row
from zae_limiter.repository_protocol import Update
from zae_limiter.server import usage_view
from zae_limiter.server import view_shapes as shapes

HOUR_MS = 3_600_000


@pytest.fixture(params=list(STORES))
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return url_of(request.param, tmp_path)


def values(told: Any) -> dict[tuple[str | None, str, str], list[int]]:
    return {(one["entity"], one["resource"], one["limit"]): one["values"] for one in told["series"]}


async def test_usage_of_an_entity_is_drawn_with_its_limit(store: str) -> None:
    """A value for each window, nothing where nothing was used, and what the limit lets through in one."""
    async with asking(store) as found:
        repository, now_ms = found.limiter.repository, found.limiter.repository._world.now_ms()
        await repository.set_resource_defaults(
            "gpt-4", [Limit.per_minute("rpm", 10), Limit.per_month("usd", 99_500_000, unit="usd_micro")]
        )
        start_ms = now_ms // HOUR_MS * HOUR_MS - 2 * HOUR_MS
        await count_usage(repository, "key-1", "gpt-4", "hourly", start_ms, rpm=7, usd=1_500_000)
        await count_usage(repository, "key-1", "gpt-4", "hourly", start_ms + 2 * HOUR_MS, rpm=2)
        told = await found.view("usage", entity="key-1", resource="gpt-4", start_ms=start_ms)
    assert mismatches(told, shapes.UsageShape) == []
    assert told["times"] == [start_ms, start_ms + HOUR_MS, start_ms + 2 * HOUR_MS]
    assert values(told) == {
        ("key-1", "gpt-4", "rpm"): [7, 0, 2],
        ("key-1", "gpt-4", "usd"): [1_500_000, 0, 0],
    }
    rpm, usd = told["limits"]
    assert (rpm["total_shown"], rpm["per_window"], usd["total_shown"], usd["per_window"]) == (
        "9",
        600,
        "$1.50",
        None,
    )
    assert (told["step_ms"], told["is_all"]) == (HOUR_MS, True)


async def test_money_of_a_resource_is_told_as_money(store: str) -> None:
    """Also where only entities have a limit that counts it; to the cent, as nobody settles by a sum."""
    async with asking(store) as found:
        repository, now_ms = found.limiter.repository, found.limiter.repository._world.now_ms()
        await repository.set_resource_defaults("gpt-4", [Limit.per_minute("rpm", 10)])
        budget = Limit.per_month("usd", 99_500_000, unit="usd_micro")
        await repository.set_limits("key-1", [Limit.per_minute("rpm", 20), budget], "gpt-4")
        await count_usage(repository, "key-1", "gpt-4", "hourly", now_ms, rpm=7, usd=3_178_092_963)
        told = await found.view("usage", resource="gpt-4", start_ms=now_ms)
    assert [(one["name"], one["unit"], one["total_shown"]) for one in told["limits"]] == [
        ("rpm", None, "7"),
        ("usd", "usd_micro", "$3,178.09"),
    ]


async def test_usage_of_a_resource_counts_every_request_once(store: str) -> None:
    """All together, and those who used most by themselves."""
    async with asking(store) as found:
        repository, now_ms = found.limiter.repository, found.limiter.repository._world.now_ms()
        for number in range(usage_view.ENTITIES_MAX + 2):
            for _ in range(number + 1):
                await count_usage(repository, f"key-{number}", "gpt-4", "daily", now_ms, rpm=10)
        told = await found.view("usage", resource="gpt-4", window="daily", start_ms=now_ms)
    assert values(told)[None, "gpt-4", "rpm"] == [550]
    assert values(told)["key-9", "gpt-4", "rpm"] == [100]
    assert len(told["entities"]) == usage_view.ENTITIES_MAX
    assert "key-0" not in told["entities"]
    assert told["limits"][0]["total"] == 550


async def test_what_was_charged_to_a_parent_too_counts_for_its_child(store: str) -> None:
    """Of a resource each request once; in the parent's own view it has what came from below."""
    async with asking(store) as found:
        repository, now_ms = found.limiter.repository, found.limiter.repository._world.now_ms()
        for entity_id in ("key-1", "team"):
            await count_usage(repository, entity_id, "gpt-4", "daily", now_ms, rpm=10)
        key, _ = usage_row(repository.namespace_id, "key-1", "gpt-4", UsageWindow.DAILY, now_ms)
        await repository.write_each([Update(key, set={USAGE_PASSED: {"team": {"rpm": 10_000}}})])
        together = await found.view("usage", resource="gpt-4", window="daily", start_ms=now_ms)
        team = await found.view("usage", entity="team", window="daily", start_ms=now_ms)
    assert values(together)[None, "gpt-4", "rpm"] == [10]
    assert values(team) == {("team", "gpt-4", "rpm"): [10]}


def test_who_used_most_is_shown_by_share_of_a_limit() -> None:
    """Neither the number of changes counts, nor how large the numbers of a limit are."""
    when, until = "2024-01-01T14:00:00Z", "2024-01-01T15:00:00Z"
    snapshots = [
        UsageSnapshot(f"busy-{number}", "gpt-4", UsageWindow.HOURLY, when, until, {"rpm": 1, "tpm": 900}, 99)
        for number in range(usage_view.ENTITIES_MAX)
    ]
    snapshots.append(UsageSnapshot("batch", "gpt-4", UsageWindow.HOURLY, when, until, {"rpm": 40}, 1))
    snapshots.append(UsageSnapshot("parent", "gpt-4", UsageWindow.HOURLY, when, until, {"rpm": 0}, 999))
    shown = {whose for whose, _, _ in usage_view.totals_of(snapshots, None) if whose is not None}
    assert "batch" in shown
    assert "parent" not in shown


async def test_what_waits_to_be_counted_is_told(tmp_path: Path) -> None:
    """Where the store keeps a log of what was used."""
    async with asking(url_of("sqlite", tmp_path)) as found:
        assert (await found.view("usage", entity="key-1"))["pending"] is False
        await found.limiter.set_system_defaults([Limit.per_minute("rpm", 10)])
        async with found.limiter.acquire("key-1", "gpt-4", {"rpm": 1}):
            pass
        assert (await found.view("usage", entity="key-1"))["pending"] is True


async def test_more_than_is_read_is_told_to_be_not_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A chart of a part says so."""
    monkeypatch.setattr(usage_view, "PAGE", 2)
    monkeypatch.setattr(usage_view, "SNAPSHOTS_MAX", 4)
    async with asking(url_of("memory", tmp_path)) as found:
        repository, now_ms = found.limiter.repository, found.limiter.repository._world.now_ms()
        for number in range(5):
            await count_usage(repository, f"key-{number}", "gpt-4", "daily", now_ms, rpm=10)
        told = await found.view("usage", resource="gpt-4", window="daily")
        assert (told["is_all"], told["limits"][0]["total"]) == (False, 40)


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ({}, "entity"),
        ({"entity": "a", "window": "weekly"}, "window"),
        ({"entity": "a", "start_ms": "-1"}, "start_ms"),
        ({"entity": "a", "start_ms": "9" * 17}, "start_ms"),
        ({"entity": "a", "start_ms": "2000", "end_ms": "1000"}, "end_ms"),
        ({"entity": "a", "start_ms": "0", "window": "hourly"}, "start_ms"),
    ],
)
async def test_what_is_asked_wrong_is_told_by_its_field(
    tmp_path: Path, query: dict[str, Any], field: str
) -> None:
    """More windows than anybody draws are refused as well."""
    async with asking(url_of("memory", tmp_path)) as found:
        answer = await found.asked("usage", **query)
    assert (answer.status_code, answer.json()["field"]) == (400, field)
