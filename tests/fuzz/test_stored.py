"""Records that somebody else wrote or damaged: nothing breaks but what they are about, and never badly.

After any damage to any record every method is called. Each works or raises an error of ours, the tenant
next door is untouched to the last byte, and an entity that nothing happened to finds everything as it was,
in lists too.
"""

import random
from typing import Any

import pytest
from hypothesis import strategies as st

from tests.fuzz.damage import (
    check_tenants,
    damages,
    of_namespace,
    unlikely,
    use_buckets,
    use_everything,
)
from tests.fuzz.figures import cases
from tests.fuzz.tenants import ABROAD, LIMITS, RESOURCES, RPM, contents, in_memory
from tests.odd_stores import HotMemory
from zae_limiter.backends.memory import MemoryBackend

seeds = st.integers(0, 2**32 - 1)
colours = st.sampled_from(["async", "sync"])
wrongs = st.lists(damages(unlikely), min_size=1, max_size=3)


@pytest.mark.parametrize("kind", [MemoryBackend, HotMemory])
@cases("stored records", 70, first=wrongs, then=wrongs, seed=seeds)
def test_damage_in_memory(kind: type[MemoryBackend], first: Any, then: Any, seed: int) -> None:
    """Damage before a process looks, and once more while it works."""
    stage, backend = in_memory("sync", kind)
    abroad = of_namespace(contents(backend), stage.ids[ABROAD])
    for key, item in first:
        backend._shelf.items[key] = item
    use_buckets(stage)
    for key, item in then:
        backend._shelf.items[key] = item
    use_buckets(stage)
    use_everything(stage, random.Random(seed))
    assert of_namespace(contents(backend), stage.ids[ABROAD]) == abroad
    check_tenants(stage, stage.ids)


@pytest.mark.parametrize("kind", [MemoryBackend, HotMemory])
@cases("stored records", 60, wrong=wrongs)
def test_what_is_made_again_works_again(kind: type[MemoryBackend], wrong: Any) -> None:
    """Whatever was damaged of limits, entities and buckets, setting, deleting and creating puts it right."""
    stage, backend = in_memory("sync", kind)
    items = backend._shelf.items
    for key, item in wrong:
        # A count of children that is too high cannot be told from a right one, and a bucket that is missing
        # in the index of its entity is not found when that is deleted: it goes on with what it says.
        found = {name: items[key][name] for name in ("GSI3PK", "GSI3SK") if name in items.get(key, {})}
        if key.partition != "_/SYSTEM#":
            items[key] = {name: value for name, value in item.items() if name != "children"} | found
    repository = stage.repository
    repository.set_system_defaults(LIMITS)
    repository.set_resource_defaults("gpt-4", LIMITS)
    repository.create_entity("boss")
    for entity_id in ("user-1", "user-2"):
        repository.delete_entity(entity_id)
        repository.create_entity(entity_id, parent_id="boss", cascade=True)
        repository.set_limits(entity_id, [RPM], "other")
        for resource in RESOURCES:
            with stage.limiter.acquire(entity_id, resource, {"rpm": 1}):
                pass
    for resource in RESOURCES:
        assert stage.limiter.available("boss", resource)["rpm"] == 58
