"""Whole tables: everything arrives, once, however often the migration is interrupted or run."""

import random

import pytest

from tests.migrations.old_store import OldStore, assert_same, fill, old_rows
from tests.migrations.older import NOW_MS, RESOURCES, SHAPES, Truth
from zae_limiter import Limit, Repository
from zae_limiter.backends.memory import MemoryBackend
from zae_limiter.operate.migrations import Kind, Migration, PassProgress
from zae_limiter.operate.migrations import MigrationStage as Step
from zae_limiter.operate.migrations.scanning import PAGE_ROWS
from zae_limiter.repository_protocol import Item, Key
from zae_limiter.runtime.colour import run_sync
from zae_limiter.testing import RecordingBackend

ENTITIES = 400
"""More than three pages of records, in either shape."""


@pytest.mark.parametrize("shape", SHAPES)
def test_everything_arrives(stage: OldStore, shape: str) -> None:
    """Entities, limits, balances at several instants, usage, audit events and counts; nothing is left."""
    table = SHAPES[shape](ENTITIES)
    assert len(table.items) > 3 * PAGE_ROWS
    stage.fill(table)
    report = stage.migrate()
    rows = stage.rows()
    assert old_rows(rows) == set()
    assert_same(rows, table.truth)
    assert (report.late, len(report.findings), report.superseded.total()) == (0, 0, 0)
    assert report.moved.total() == report.deleted == len(table.items) - 1
    assert_answers(stage, table.truth)


def assert_answers(stage: OldStore, truth: Truth) -> None:
    """What a client asks through the indexes is answered as if it had always been there."""
    repository = stage.repository()
    for name in random.Random(1).sample(sorted(truth.entities), 15):
        entity = run_sync(repository.get_entity(name))
        assert entity == truth.entities[name]
        for resource in RESOURCES:
            limits, _, source = run_sync(repository.resolve_limits(name, resource))
            levels = [(name, resource), (name, "_default_"), ("", resource), ("", "")]
            said = [truth.configs[level].limits for level in levels if level in truth.configs]
            assert (limits or []) == list(next(iter(said), ())), source
        buckets = {(state.resource, state.limit_name) for state in run_sync(repository.get_buckets(name))}
        assert buckets == {
            (r, n) for (who, r), limits in truth.buckets.items() if who == name for n in limits
        }
        events = [event.timestamp for event in run_sync(repository.get_audit_events(name))]
        assert events == sorted((at for who, at in truth.audit if who == name), reverse=True)
        snapshots, _ = run_sync(repository.get_usage_snapshots(name))
        assert len(snapshots) == sum(who == name for who, *_ in truth.usage)
    for parent in ("company", "team-0"):
        children = {child.entity_id for child in run_sync(repository.get_children(parent))}
        assert children == {e.entity_id for e in truth.entities.values() if e.parent_id == parent}
    owners = {owner for owner, resource in truth.configs if owner and resource == "gpt-4"}
    found, _ = run_sync(repository.list_entities_with_custom_limits("gpt-4", limit=1000))
    assert set(found) == owners
    entities, _ = run_sync(repository.list_entities(limit=1000))
    assert {entity.entity_id for entity in entities} == truth.entities.keys()
    daily, _ = run_sync(repository.get_usage_snapshots(resource="gpt-4", window_type="daily", limit=1000))
    assert len(daily) == sum(r == "gpt-4" and w == "daily" for _, r, w, _ in truth.usage)


def test_new_records_are_like_those_that_clients_write(in_memory: OldStore) -> None:
    """Attribute for attribute, so that nothing treats them differently."""
    items: dict[Key, Item] = {
        Key("ENTITY#a", "#META"): {"entity_id": "a", "name": "A", "created_at": "x"},
        Key("ENTITY#b", "#META"): {"parent_id": "a", "metadata": {"k": 1}, "created_at": "x"},
        Key("ENTITY#b", "#CONFIG#gpt-4"): {"l_rpm_cp": 5, "l_rpm_ra": 5, "l_rpm_rp": 60},
        Key("RESOURCE#gpt-4", "#CONFIG"): {"l_rpm_cp": 5, "l_rpm_ra": 5, "l_rpm_rp": 60},
        Key("SYSTEM#", "#CONFIG"): {"l_rpm_cp": 5, "l_rpm_ra": 5, "l_rpm_rp": 60},
        Key("ENTITY#b", "#BUCKET#gpt-4"): {"rf": NOW_MS}
        | {"b_rpm_tk": 4_000, "b_rpm_cp": 5_000, "b_rpm_ra": 5_000, "b_rpm_rp": 60_000, "b_rpm_tc": 1_000},
    }
    fill(in_memory.backend, items)
    in_memory.migrate()
    namespace_id = in_memory.repository().namespace_id

    async def use(repository: Repository) -> None:
        limits = [Limit.per_minute("rpm", 5)]
        await repository.create_entity("a", "A")
        await repository.create_entity("b", parent_id="a", metadata={"k": 1})
        await repository.set_limits("b", limits, "gpt-4")
        await repository.set_resource_defaults("gpt-4", limits)
        await repository.set_system_defaults(limits)
        assert await repository.speculative_consume("b", "gpt-4", {"rpm": 1})

    backend = MemoryBackend(in_memory.clock.world)
    repository = run_sync(Repository.over(backend, world=in_memory.clock.world))
    run_sync(use(repository))
    expected = {
        _in_namespace(key, repository.namespace_id, namespace_id): item
        for key, item in backend.snapshot().items()
        if "#AUDIT" not in key.sort and not key.partition.startswith("_/")
    }
    rows = in_memory.rows()
    for key, item in expected.items():
        ours = {name: value for name, value in rows[key].items() if name not in ("moved", "cv", "created_at")}
        assert ours == {
            name: value.replace(repository.namespace_id, namespace_id) if isinstance(value, str) else value
            for name, value in item.items()
            if name not in ("born", "cv", "created_at")
        }


def _in_namespace(key: Key, one: str, other: str) -> Key:
    return Key(key.partition.replace(one, other), key.sort)


# Looking first.


def test_a_survey_counts_and_writes_nothing(embedded: OldStore) -> None:
    """By kind; and what is not ours, by name."""
    table = SHAPES["single"](50)
    foreign = {Key("CUSTOMER#1", "#META"): {"x": 1}, Key("ENTITY#a#b", "#META"): {"y": 2}}
    fill(embedded.backend, {**table.items, **foreign})
    before = embedded.rows()
    recording = RecordingBackend(embedded.backend)
    seen: list[PassProgress] = []
    migration = Migration(recording, embedded.clock.world, scan=embedded.scan, tell=seen.append)
    survey = run_sync(migration.survey())
    assert recording.writes == 0
    assert embedded.rows() == before
    assert survey.unmoved[Kind.ENTITY] == len(table.truth.entities)
    assert survey.unmoved[Kind.BUCKET] == sum(map(len, table.truth.buckets.values()))
    assert survey.unmoved[Kind.USAGE] == len(table.truth.usage)
    assert {finding.key for finding in survey.findings.told} == foreign.keys()
    assert (survey.rows, survey.moved.total()) == (len(before), 0)
    assert seen[-1] == PassProgress("looking", survey.rows, survey.rows, is_over=True)


def test_progress_is_told_and_never_beyond_the_end(in_memory: OldStore) -> None:
    """For each pass, in rows of the table."""
    in_memory.fill(SHAPES["composite"](100))
    seen: list[PassProgress] = []
    migration = in_memory.migration(tell=seen.append)
    run_sync(migration.survey())
    run_sync(migration.run())
    assert list(dict.fromkeys(one.what for one in seen)) == [
        "looking",
        "limits and entities",
        "buckets",
        "usage and audit",
        "cleaning up",
    ]
    assert all(0 <= one.done <= one.total for one in seen)


def test_what_is_not_ours_is_reported_and_stays(embedded: OldStore) -> None:
    """Items of others, records that cannot be used, and the reason for each."""
    foreign: dict[Key, Item] = {
        Key("CUSTOMER#1", "#META"): {"name": "somebody else's"},
        Key("ENTITY#a", "#BUCKET#gpt-4"): {"rf": NOW_MS, "b_xpm_tk": 1},
        Key("ENTITY#a", "#CONFIG#gpt-4"): {"l_rpm_cp": -1, "l_rpm_ra": 1, "l_rpm_rp": 1},
        Key("AUDIT#a", "#AUDIT#1"): {"timestamp": "2024-01-01", "action": "danced"},
    }
    table = SHAPES["composite"](20)
    fill(embedded.backend, {**table.items, **foreign})
    report = embedded.migrate()
    rows = embedded.rows()
    assert {key: rows[key] for key in old_rows(rows)} == foreign
    assert {finding.key for finding in report.findings.told} == foreign.keys()
    assert all(finding.reason for finding in report.findings.told)
    assert_same({key: item for key, item in rows.items() if key not in foreign}, table.truth)
    assert run_sync(embedded.migration().state()).stage is Step.DONE


def test_old_records_can_be_kept(embedded: OldStore) -> None:
    """They say where they went; a later run moves nothing twice, and may delete them."""
    table = SHAPES["single"](40)
    embedded.fill(table)
    report = embedded.migrate(keep_old=True)
    rows = embedded.rows()
    assert (report.deleted, len(old_rows(rows))) == (0, len(table.items) - 1)
    assert_same(rows, table.truth)
    assert run_sync(embedded.migration().state()).is_settled(keep_old=True)
    assert not run_sync(embedded.migration().state()).is_settled(keep_old=False)
    assert embedded.migrate(keep_old=True).moved.total() == 0
    assert embedded.rows() == rows
    assert embedded.migrate().deleted == len(table.items) - 1
    assert run_sync(embedded.migration().state()).is_settled(keep_old=False)
    assert old_rows(embedded.rows()) == set()
