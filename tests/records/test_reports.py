"""Reports of processes: one row each, bounded in number and size, read by one query, and never in the way."""

import json
from dataclasses import replace

import pytest

from tests.records.store import Store, everything
from zae_limiter import Repository
from zae_limiter.records import reports as records
from zae_limiter.records.reports import (
    REFUSALS_BYTES_MAX,
    REFUSALS_MAX,
    SILENT_MS,
    ProcessReport,
    Refusal,
    report_key,
    write_report,
)
from zae_limiter.repository_protocol import Update


def report_of(store: Store, process_id: str = "one", **changes: object) -> ProcessReport:
    now_ms = store.clock.now_ms
    told = ProcessReport(f"host-{process_id}", process_id, now_ms, now_ms, 3, 2, 1, 0)
    return replace(told, **changes)  # type: ignore[arg-type]


def refusal(number: int = 0, entity_id: str = "key-1") -> Refusal:
    return Refusal(1_000 - number, entity_id, "gpt-4", ("rpm", "tpm"), {"rpm": 1, "tpm": 7}, 1_500, 4)


async def test_what_is_told_is_read(store: Store) -> None:
    """Another process reads every field, and who told it; a wait that never ends too."""
    here, there = await store.repository(), await store.repository()
    never = replace(refusal(1, "ключ/|'\"<b>"), retry_after_ms=None)
    told = report_of(store, refusals=(refusal(), never))
    assert await write_report(here._scope, 7, told, is_new=True)
    (heard,) = await there.get_reports()
    named = tuple(replace(one, process="host-one") for one in told.refusals)
    assert heard == replace(told, refusals=named)


async def test_a_process_has_one_row(store: Store) -> None:
    """What it tells next replaces what it told, and a stranger cannot write there."""
    repository = await store.repository()
    scope = repository._scope
    assert await write_report(scope, 7, report_of(store), is_new=True)
    assert await write_report(scope, 7, report_of(store, admitted=9), is_new=False)
    assert not await write_report(scope, 7, report_of(store, "two"), is_new=True)
    assert not await write_report(scope, 7, report_of(store, "two"), is_new=False)
    assert [(one.process_id, one.admitted) for one in await repository.get_reports()] == [("one", 9)]


async def test_the_place_of_a_silent_process_is_free(store: Store) -> None:
    """It is not shown any more, another one takes its place, and it finds its place taken when it is back."""
    repository = await store.repository()
    scope = repository._scope
    assert await write_report(scope, 7, report_of(store), is_new=True)
    store.clock.advance(SILENT_MS / 1000 + 1)
    assert await repository.get_reports() == []
    assert await write_report(scope, 7, report_of(store, "two"), is_new=True)
    assert not await write_report(scope, 7, report_of(store), is_new=False)
    assert [one.process_id for one in await repository.get_reports()] == ["two"]


async def test_one_read_and_whoever_told_last_first(store: Store) -> None:
    """However many there are."""
    repository, recording = await store.recorded()
    for place in range(records.PLACES):
        told = report_of(store, str(place), seen_ms=store.clock.now_ms - place % 7)
        assert await write_report(repository._scope, place, told, is_new=True)
    recording.forget()
    heard = await repository.get_reports()
    assert [verb for verb, _ in recording.calls] == ["query"]
    assert len(heard) == records.PLACES
    seen = [one.seen_ms for one in heard]
    assert seen == sorted(seen, reverse=True)


@pytest.mark.parametrize(("letters", "kept"), [(1, REFUSALS_MAX), (250, None)])
async def test_a_row_is_bounded(letters: int, kept: int | None, store: Store) -> None:
    """The newest refusals are kept, as many as there is room for."""
    repository = await store.repository()
    many = tuple(refusal(number, "é" * letters) for number in range(500))
    assert await write_report(repository._scope, 0, report_of(store, refusals=many), is_new=True)
    (row,) = await rows(repository)
    assert len(str(row["refusals"])) <= REFUSALS_BYTES_MAX
    (heard,) = await repository.get_reports()
    assert [one.at_ms for one in heard.refusals] == [one.at_ms for one in many[: len(heard.refusals)]]
    assert len(heard.refusals) == kept if kept else 1 < len(heard.refusals) < REFUSALS_MAX


async def test_what_a_process_of_another_version_tells(store: Store) -> None:
    """Older ones leave out why, and if a wait is the latest; newer ones may say more than is understood."""
    repository = await store.repository()
    assert await write_report(repository._scope, 1, report_of(store), is_new=True)
    older = [1_000, "key-1", "gpt-4", ["rpm", "tpm"], {"rpm": 1, "tpm": 7}, 1_500, 4]
    said = json.dumps([older, [*older, True, "why"], [*older, True, "why", {"and": "more"}]])
    await repository.write_each([Update(report_key(repository.namespace_id, 1), set={"refusals": said})])
    (heard,) = await repository.get_reports()
    told = replace(refusal(), process="host-one")
    assert heard.refusals == (told, *[replace(told, is_latest=True, reason="why")] * 2)


async def rows(repository: Repository) -> list[dict[str, object]]:
    found = await everything(repository)
    return [dict(item) for key, item in found.items() if "/REPORT#" in key.partition]


@pytest.mark.parametrize(
    "damage",
    [
        {"refusals": "no json"},
        {"refusals": "{}"},
        {"refusals": json.dumps([[1], "x", [1, "e", "r", [], {}, 1, 1, 1], None])},
        {"refusals": None},
        {"admitted": "3"},
        {"name": None},
        {"of": 7},
    ],
)
async def test_a_strangers_row_does_no_harm(damage: dict[str, object], store: Store) -> None:
    """What cannot be right is left out, and the others are read."""
    repository = await store.repository()
    scope = repository._scope
    assert await write_report(scope, 1, report_of(store), is_new=True)
    assert await write_report(scope, 2, report_of(store, "two"), is_new=True)
    await repository.write_each([Update(report_key(repository.namespace_id, 1), set=damage)])  # type: ignore[arg-type]
    heard = {one.process_id: one.refusals for one in await repository.get_reports()}
    assert heard.pop("two") == ()
    assert set(heard.values()) <= {()}


async def test_a_namespace_takes_its_reports_along(store: Store) -> None:
    """Purging it leaves none, and one namespace does not see another's."""
    repository = await store.repository("tenant")
    await write_report(repository._scope, 1, report_of(store), is_new=True)
    other = await store.repository()
    assert await other.get_reports() == []
    assert len(await rows(repository)) == 1
    await other.delete_namespace("tenant")
    await other.purge_namespace(repository.namespace_id)
    assert await rows(repository) == []
