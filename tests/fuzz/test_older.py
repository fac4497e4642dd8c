"""Tables of older versions with anything in them: whatever is damaged, the rest is upgraded.

The oldest records have no namespace and come in two shapes. A record of them that makes no sense is reported
and stays, and nobody but its owner notices.
"""

from typing import Any

import pytest
from hypothesis import strategies as st

from tests.fuzz.damage import values
from tests.fuzz.figures import cases
from tests.fuzz.outcomes import outcome
from tests.migrations.old_store import OldStore, balances, said_by
from tests.migrations.older import NOW_MS, SHAPES, Truth
from zae_limiter import ZAELimiterError
from zae_limiter.backends.memory import MemoryBackend
from zae_limiter.repository_protocol import Item, Key
from zae_limiter.runtime.colour import run_sync
from zae_limiter.schema import older_version_key
from zae_limiter.testing import ManualClock

NAMES = ("data", "entity_id", "parent_id", "limits", "rf", "total_events", "moved_to", "counted", "b_rpm_tk")
KEYS = [
    *(Key(partition, "#META") for partition in ("ENTITY#", "ENTITY#a#b", "ENTITY#../x", "#", "x", "ENTITY")),
    *(
        Key("ENTITY#new", f"#{rest}")
        for rest in ("BUCKET#", "BUCKET##", "BUCKET#r#l", "CONFIG#r", "LIMIT#r#l")
    ),
    *(Key("RESOURCE#r", "#LIMIT#r#l"), Key("SYSTEM#", "#LIMIT#r#l"), Key("AUDIT#new", "#AUDIT#")),
    *(Key("ENTITY#new", "#USAGE#r#2024-01-01"), Key("ENTITY#new", "#USAGE#r#x"), Key("SYSTEM#", "#CONFIG")),
]
"""Where nothing was, and somebody wrote something that looks like a record."""


@st.composite
def wrong_items(draw: st.DrawFn, items: dict[Key, Item]) -> dict[Key, Item]:
    """Some records of a table with something wrong about them, and some that were never written by us."""
    wrong: dict[Key, Item] = {}
    for key in draw(st.lists(st.sampled_from(sorted(items)), min_size=1, max_size=3)):
        item: dict[str, Any] = dict(items[key])
        for name in draw(st.lists(st.sampled_from([*item, *item, *NAMES]), min_size=1, max_size=4)):
            if draw(st.booleans()):
                item.pop(name, None)
            else:
                item[name] = draw(values)
        wrong[key] = item
    for key in draw(st.lists(st.sampled_from(KEYS), max_size=2)):
        wrong[key] = draw(st.dictionaries(st.sampled_from([*NAMES, "name", "ttl"]), values, max_size=4))
    return wrong


def owner_of(key: Key) -> str:
    """Whose record it is; empty for defaults."""
    kind, _, rest = key.partition.partition("#")
    return rest.partition("#")[0] if kind.endswith(("ENTITY", "AUDIT", "BUCKET")) else ""


def of_owners(truth: Truth, owners: set[str]) -> list[Any]:
    """What is said about some entities."""
    buckets = {place: limits for place, limits in truth.buckets.items() if place[0] in owners}
    return [
        {name: entity for name, entity in truth.entities.items() if name in owners},
        {place: config for place, config in truth.configs.items() if place[0] in owners},
        {place: usage for place, usage in truth.usage.items() if place[0] in owners},
        {place: event for place, event in truth.audit.items() if place[0] in owners},
        balances(Truth(buckets=buckets), NOW_MS),
    ]


@pytest.mark.parametrize("shape", sorted(SHAPES))
@cases("older tables", 60, data=st.data(), seed=st.integers(0, 5))
def test_damage_in_an_older_table(shape: str, data: Any, seed: int) -> None:
    """All that belongs to others arrives as it was, and a second run finds nothing more to do for them."""
    table = SHAPES[shape](6, seed)
    clock = ManualClock(NOW_MS)
    stage = OldStore("memory", lambda: MemoryBackend(clock.world), clock)
    stage.fill(table)
    wrong = data.draw(wrong_items(table.items))
    stage.backend._shelf.items.update(wrong)  # type: ignore[attr-defined]
    well = set(table.truth.entities) - {owner_of(key) for key in wrong}
    for _ in range(2):
        result = outcome(lambda: run_sync(stage.migration().run()))
        if isinstance(result, ZAELimiterError):
            assert older_version_key() in wrong, "nothing else is in the way"
            return
        arrived = {key: item for key, item in stage.rows().items() if owner_of(key) in well}
        assert of_owners(said_by(arrived), well) == of_owners(table.truth, well)
