"""Records as models and back, and the table of them in the documentation."""

import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.records import catalogue
from tests.records.store import Store, everything
from tests.records.test_namespaces import fill
from zae_limiter import (
    AuditAction,
    AuditEvent,
    Entity,
    Limit,
    LimiterConfig,
    Namespace,
    NamespaceStatus,
    OnUnavailable,
    VersionRecord,
)
from zae_limiter.records.items import (
    audit_event_of,
    audit_item,
    config_item,
    config_of,
    entity_item,
    entity_of,
    namespace_item,
    namespace_of,
    version_item,
    version_of,
)
from zae_limiter.repository_protocol import Item, Key, Put, Value, apply
from zae_limiter.schema import REGISTRY, pk_system, starting

DOCUMENT = Path(__file__).parent.parent.parent / "docs" / "records.md"

texts = st.text(min_size=1, max_size=20)
maybe_text = st.none() | texts
entity_ids = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_.\-:@]{0,20}", fullmatch=True)
limit_names = st.from_regex(r"[A-Za-z][A-Za-z0-9_.\-]{0,20}", fullmatch=True).filter(lambda n: n != "wcu")
plain = st.recursive(
    st.none() | st.booleans() | st.integers() | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
)
metadata = st.dictionaries(texts, plain, max_size=4)
counts = st.integers(1, 10**9)


def stored(item: dict[str, Value]) -> Item:
    """What a store makes of it."""
    kept = apply(Put(Key("p", "s"), item), None).item
    assert kept is not None
    return kept


@given(
    st.builds(
        Entity, entity_ids, maybe_text, st.none() | entity_ids, st.booleans(), metadata, maybe_text, counts
    ).filter(lambda entity: entity.parent_id != entity.entity_id)
)
def test_entities(entity: Entity) -> None:
    """Every field comes back."""
    assert entity_of(stored(entity_item("ns", entity))) == entity


@given(
    st.builds(
        LimiterConfig,
        st.dictionaries(limit_names, st.tuples(counts, counts, st.integers(1, 10**6)), max_size=5).map(
            lambda by_name: tuple(
                Limit(name, *numbers, soft=numbers[0] % 2 == 0) for name, numbers in sorted(by_name.items())
            )
        ),
        st.none() | st.sampled_from(OnUnavailable),
        st.none() | st.booleans(),
        st.none() | st.booleans(),
        counts,
    )
)
def test_configs(config: LimiterConfig) -> None:
    """Every field comes back, ``None`` as nothing said."""
    assert config_of(stored(config_item(config))) == config


@given(
    st.builds(
        AuditEvent,
        texts,
        texts,
        st.sampled_from(AuditAction),
        entity_ids,
        maybe_text,
        maybe_text,
        metadata,
    ),
    st.none() | counts,
)
def test_audit_events(event: AuditEvent, ttl: int | None) -> None:
    """Every field comes back, with a ttl and without."""
    item = stored(audit_item("ns", event, ttl))
    assert audit_event_of(item) == event
    assert item.get("ttl") == ttl


@given(
    st.builds(Namespace, limit_names, limit_names, st.sampled_from(NamespaceStatus), maybe_text, maybe_text)
)
def test_namespaces(namespace: Namespace) -> None:
    """Every field comes back."""
    assert namespace_of(stored(namespace_item(namespace))) == namespace


@given(st.builds(VersionRecord, texts, maybe_text, texts, maybe_text, maybe_text))
def test_version_records(record: VersionRecord) -> None:
    """Every field comes back."""
    assert version_of(stored(version_item(record))) == record


def test_the_documentation_shows_the_records_as_they_are() -> None:
    """Run ``python -m tests.records.catalogue docs/records.md`` when this fails."""
    text = DOCUMENT.read_text(encoding="utf-8")
    assert catalogue.renewed(text) == text


def test_the_command_renews_a_document(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Between the marks only; without a file it prints; without marks it refuses."""
    document = tmp_path / "d.md"
    document.write_text(f"before\n{catalogue.START}\nstale\n{catalogue.END}\nafter\n", encoding="utf-8")
    catalogue.main([str(document)])
    text = document.read_text(encoding="utf-8")
    assert "stale" not in text
    assert text.startswith("before\n")
    assert text.endswith("\nafter\n")
    catalogue.main([])
    assert capsys.readouterr().out.strip() in text
    with pytest.raises(ValueError, match="has no lines"):
        catalogue.renewed("nothing")


def pattern(template: str) -> re.Pattern[str]:
    return re.compile(
        "".join(".+" if part[:1] == "{" else re.escape(part) for part in re.split(r"(\{\w+\})", template))
    )


async def test_the_table_is_true(store: Store) -> None:
    """Every record that a namespace holds is of a kind in the table, and has no other attributes."""
    repository = await store.repository()
    await fill(repository, "x")
    registry: dict[Key, Any] = {}
    for prefix in ("#NAMESPACE#", "#NSID#", "#VERSION"):
        rows = repository._scope.rows(starting(pk_system(REGISTRY), prefix))
        registry |= {row.key: row.item async for row in rows}
    kinds = [
        (
            kind,
            pattern(catalogue._plain(key.partition)),
            pattern(catalogue._plain(key.sort)),
            [pattern(catalogue._plain(name)) for name, value in item.items() if value is not None],
        )
        for kind, key, item in catalogue.samples()
    ]
    met = set()
    for key, item in {**await everything(repository), **registry}.items():
        matching = [k for k in kinds if k[1].fullmatch(key.partition) and k[2].fullmatch(key.sort)]
        assert matching, f"no kind of record has the key {key}"
        kind, _, _, attributes = matching[0]
        met.add(kind)
        for name in item:
            assert any(one.fullmatch(name) for one in attributes), f"{kind} has an attribute {name!r}"
    assert met == {kind for kind, *_ in kinds}
