"""Rows that another tenant planted into an index: passed over, and no call does much for them."""

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from tests.fuzz.tenants import ABROAD, HOME, Tenants, contents
from tests.tenants.places import of_tenant
from tests.tenants.test_names import recorded
from zae_limiter import DamagedRecordError, EntityError, SyncRepository
from zae_limiter.models import UsageWindow
from zae_limiter.records import scope
from zae_limiter.records.usage import FILTERED_QUERIES_MAX
from zae_limiter.repository_protocol import PAGE_ROWS_MAX, Page, Query
from zae_limiter.schema import (
    bucket_key,
    entity_key,
    gsi1_pk_parent,
    gsi2_pk_resource,
    gsi3_pk_entities,
    gsi3_pk_entity,
    gsi3_pk_entity_config,
)
from zae_limiter.testing import RecordingBackend
from zae_limiter.testing.stores import Wrapper

PLANTED = 5_000
QUERIES_MAX = 10
"""What one page may cost."""


class Planted(NamedTuple):
    """A list, and where rows of others stand before ours in its index."""

    index: str
    partition: Callable[[str], str]
    before: str
    """What a planted row's place begins with; it sorts before those of ours."""
    call: Callable[[SyncRepository, str | None], Any]
    """Ask for the list, or for the page of a cursor."""


PAGED = {
    "list_entities": Planted("GSI3", gsi3_pk_entities, "!", lambda r, at: r.list_entities(100, at)),
    "list_entities_with_custom_limits": Planted(
        "GSI3",
        lambda ns: gsi3_pk_entity_config(ns, "other"),
        "!",
        lambda r, at: r.list_entities_with_custom_limits("other", 100, at),
    ),
    "get_usage_snapshots": Planted(
        "GSI2",
        lambda ns: gsi2_pk_resource(ns, "gpt-4"),
        "USAGE#hourly#2000-",
        lambda r, at: r.get_usage_snapshots(resource="gpt-4", next_key=at),
    ),
}

RESOURCE = (lambda ns: gsi2_pk_resource(ns, "gpt-4"), "BUCKET#!")
NAMESPACE = (lambda ns: ns, "{ns}/RESOURCE#!")

WHOLE = {
    "get_children": Planted(
        "GSI1",
        lambda ns: gsi1_pk_parent(ns, "org-1"),
        "CHILD#!",
        lambda r, _: r.get_children("org-1"),
    ),
    "get_buckets": Planted(
        "GSI3",
        lambda ns: gsi3_pk_entity(ns, "user-1"),
        "BUCKET#!",
        lambda r, _: r.get_buckets("user-1"),
    ),
    "get_resource_buckets": Planted("GSI2", *RESOURCE, lambda r, _: r.get_resource_buckets("gpt-4")),
    "get_resource_capacity": Planted("GSI2", *RESOURCE, lambda r, _: r.get_resource_capacity("gpt-4", "rpm")),
    "list_resources_with_defaults": Planted(
        "GSI4", *NAMESPACE, lambda r, _: r.list_resources_with_defaults()
    ),
    "list_resources_with_entity_configs": Planted(
        "GSI4", *NAMESPACE, lambda r, _: r.list_resources_with_entity_configs()
    ),
    "get_usage_summary": Planted(
        "GSI2",
        lambda ns: gsi2_pk_resource(ns, "gpt-4"),
        "USAGE#hourly#2000-",
        lambda r, _: r.get_usage_summary(resource="gpt-4", window_type=UsageWindow.HOURLY),
    ),
}


def plant(stage: Tenants, backend: Any, where: Planted, count: int = PLANTED) -> None:
    """Rows of one tenant with index entries of another; the library would refuse to write them."""
    home, abroad = stage.ids[HOME], stage.ids[ABROAD]
    for number in range(count):
        key = bucket_key(abroad, f"planted-{number}", "x")
        backend._shelf.items[key] = {
            f"{where.index}PK": where.partition(home),
            f"{where.index}SK": f"{where.before.format(ns=home)}{number:06}",
        }


def queries(recorder: RecordingBackend) -> int:
    return recorder.verbs["query"]


@pytest.mark.parametrize("name", PAGED)
def test_a_page_costs_a_bounded_number_of_queries(name: str) -> None:
    """It may be empty, and says where to go on; whoever goes on comes to the same rows."""
    stage, recorder, backend = recorded()
    where = PAGED[name]
    before, after = where.call(stage.repository, None)
    assert before
    assert after is None
    plant(stage, backend, where)
    found: list[Any] = []
    cursor, pages = None, 0
    while pages == 0 or cursor is not None:
        recorder.forget()
        page, cursor = where.call(stage.repository, cursor)
        # A resource's usage is three lists in one, of which a page ends with the first that has more.
        assert queries(recorder) <= QUERIES_MAX + len(UsageWindow)
        found += page
        pages += 1
    assert found == before
    assert pages >= PLANTED // (QUERIES_MAX * 100)


@pytest.mark.parametrize("name", WHOLE)
def test_a_whole_list_takes_others_rows_by_the_thousand(name: str) -> None:
    """It says the same as without them."""
    stage, recorder, backend = recorded()
    where = WHOLE[name]
    before = where.call(stage.repository, None)
    assert before
    plant(stage, backend, where)
    recorder.forget()
    assert where.call(stage.repository, None) == before
    assert queries(recorder) <= PLANTED // PAGE_ROWS_MAX + 2


@pytest.mark.parametrize("name", [name for name in WHOLE if name != "get_usage_summary"])
def test_a_whole_list_gives_up_in_the_end(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With an error that names the index; nobody reads for ever."""
    monkeypatch.setattr(scope, "FOREIGN_ROWS_MAX", 2_500)
    stage, recorder, backend = recorded()
    where = WHOLE[name]
    plant(stage, backend, where)
    recorder.forget()
    with pytest.raises(DamagedRecordError, match=f"index {where.index} .*more than 2500 entries"):
        where.call(stage.repository, None)
    assert queries(recorder) == 3


def test_what_deletes_passes_them_over_too() -> None:
    """An entity with children keeps them, one without is deleted, and a purge takes what is its own."""
    stage, recorder, backend = recorded()
    home, abroad = stage.ids[HOME], stage.ids[ABROAD]
    parent = WHOLE["get_children"]
    plant(stage, backend, parent, 2_000)
    key = entity_key(home, "org-1")
    backend._shelf.items[key] = {**backend._shelf.items[key], "children": 0}
    with pytest.raises(EntityError, match="it has children"):
        stage.repository.delete_entity("org-1")
    for child in stage.repository.get_children("org-1"):
        stage.repository.delete_entity(child.entity_id)
    stage.repository.delete_entity("org-1")
    plant(stage, backend, WHOLE["list_resources_with_defaults"])
    theirs = of_tenant(contents(backend), abroad)
    stage.repository.delete_namespace(HOME)
    recorder.forget()
    stage.repository.purge_namespace(home)
    assert queries(recorder) <= 3 * (PLANTED // PAGE_ROWS_MAX + 2)
    assert of_tenant(contents(backend), home) == {}
    assert of_tenant(contents(backend), abroad) == theirs


class Evaluating(Wrapper):
    """A store that counts rows before it filters them, as DynamoDB does."""

    async def query(self, query: Query) -> Page:
        page = await super().query(query._replace(when=()))
        rows = tuple(row for row in page.rows if all(one.holds(row.item) for one in query.when))
        return page._replace(rows=rows)


def test_usage_that_is_not_wanted_is_not_read_for_ever() -> None:
    """A page of an entity's usage ends after some queries as well, and can be gone on from."""
    stage, recorder, backend = recorded()
    recorder.inner = Evaluating(backend)
    mine = f"{stage.ids[HOME]}/ENTITY#user-1"
    key = next(key for key in contents(backend) if key.partition == mine and "#USAGE#" in key.sort)
    old = {**backend._shelf.items[key], "window_start": "1999-01-01T00:00:00Z"}
    for number in range(1_000):
        backend._shelf.items[key._replace(sort=f"#USAGE#aaa#{number:06}")] = old
    found: list[Any] = []
    cursor, pages = None, 0
    while pages == 0 or cursor is not None:
        recorder.forget()
        page, cursor = stage.repository.get_usage_snapshots(
            "user-1", start_time="2000-01-01", limit=1, next_key=cursor
        )
        assert queries(recorder) <= FILTERED_QUERIES_MAX
        found, pages = found + page, pages + 1
    assert found
    assert pages >= 1_000 // FILTERED_QUERIES_MAX
