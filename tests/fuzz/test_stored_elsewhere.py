"""The same damage in a SQLite file, down to the letters of it, and in a DynamoDB table."""

import json
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st

from tests.dynamodb.tables import driver, make_table, open_table
from tests.fuzz.damage import (
    Damage,
    check_tenants,
    damages,
    is_neighbour,
    of_namespace,
    use_buckets,
    use_everything,
)
from tests.fuzz.figures import cases
from tests.fuzz.files import in_file, overwrite, stored
from tests.fuzz.tenants import ABROAD, HOME, Contents, Tenants, template
from zae_limiter.backends.dynamodb.expressions import decode_key, encode, encode_key
from zae_limiter.repository_protocol import BATCH_KEYS_MAX, Item, Key
from zae_limiter.runtime.colour import run_sync
from zae_limiter.testing import ManualClock

seeds = st.integers(0, 2**32 - 1)


# SQLite.


def _twice(body: str) -> str:
    """Every attribute two times, which JSON allows: the last one counts."""
    return body if body == "{}" else f"{body[:-1]},{body[1:]}"


WAYS_TO_WRITE: dict[str, Any] = {
    "as we do": lambda item: json.dumps(item, separators=(",", ":")),
    "with spaces": json.dumps,
    "in lines": lambda item: json.dumps(item, indent=2),
    "sorted": lambda item: json.dumps(item, sort_keys=True, separators=(",", ":")),
    "escaped": lambda item: json.dumps(item, separators=(",", ":")).replace("_tk", "_t\\u006b"),
    "twice": lambda item: _twice(json.dumps(item, separators=(",", ":"))),
    "twice with spaces": lambda item: _twice(json.dumps(item)),
    "after spaces": lambda item: "  \n" + json.dumps(item),
}
ways = st.sampled_from(sorted(WAYS_TO_WRITE))


@cases("stored records", 40, first=damages(), then=damages(), way=ways, seed=seeds)
def test_damage_in_a_file(furnished: Path, first: Damage, then: Damage, way: str, seed: int) -> None:
    """Damage before a process looks, and once more while it works."""
    with in_file(furnished) as (stage, path):
        abroad = of_namespace(stored(path), stage.ids[ABROAD])
        overwrite(path, first.key, WAYS_TO_WRITE[way](first.item))
        use_buckets(stage)
        overwrite(path, then.key, WAYS_TO_WRITE[way](then.item))
        use_buckets(stage)
        use_everything(stage, random.Random(seed))
        assert of_namespace(stored(path), stage.ids[ABROAD]) == abroad
        check_tenants(stage, stage.ids)


letters = st.one_of(
    st.sampled_from(
        ["", " ", "null", "[]", "5", '"text"', "{", '{"a":', "{}{}", "not JSON", "\0", "NaN", '{"a":NaN}']
    ),
    st.sampled_from(
        ['{"rf":1' + "0" * 5_000 + "}", '{"a":' * 5_000, "[" * 100_000, '{"a":"\\ud800"}', '{"":1}']
    ),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
)


@cases("stored records", 25, body=letters, data=st.data(), seed=seeds)
def test_letters_that_are_no_record(furnished: Path, body: str, data: Any, seed: int) -> None:
    """A record of which nothing can be read is one that says nothing; limits are not lifted by that."""
    with in_file(furnished) as (stage, path):
        key = data.draw(st.sampled_from(sorted(key for key in template().contents if not is_neighbour(key))))
        use_buckets(stage)
        overwrite(path, key, body)
        use_buckets(stage)
        use_everything(stage, random.Random(seed))
        check_tenants(stage, stage.ids)


@pytest.mark.parametrize("way", sorted(WAYS_TO_WRITE))
def test_every_way_to_write_a_bucket_is_understood(furnished: Path, way: str) -> None:
    """Whoever wrote the bucket last, what is taken from it is gone."""
    with in_file(furnished) as (stage, path):
        key = Key(f"{stage.ids[HOME]}/BUCKET#user-2#gpt-4#0", "#STATE")
        for left in (58, 57, 56):
            with stage.limiter.acquire("user-2", "gpt-4", {"rpm": 1}):
                pass
            body = json.loads(stored(path)[key])
            assert body["b_rpm_tk"] == left * 1000
            overwrite(path, key, WAYS_TO_WRITE[way](body))
        assert stage.limiter.available("user-2", "gpt-4")["rpm"] == 56


# DynamoDB.


@pytest.fixture(scope="module")
def table() -> str:
    return make_table()


foreign = st.sampled_from(
    [
        {"B": b"\x00\xff"},
        {"SS": ["a", "b"]},
        {"NS": ["1", "2.5"]},
        {"BS": [b"x"]},
        {"NULL": True},
        {"L": []},
        {"M": {}},
    ]
)
"""What only DynamoDB can hold."""


@cases("stored records", 4, first=damages(), then=damages(), odd=foreign, seed=seeds)
def test_damage_in_a_table(table: str, first: Damage, then: Damage, odd: dict[str, Any], seed: int) -> None:
    """Types that only DynamoDB has are among what strangers leave."""
    rng, known = random.Random(seed), template()
    ids = {name: f"{namespace_id}-{rng.getrandbits(64):x}" for name, namespace_id in known.ids.items()}
    moved = renamed(known.contents, {known.ids[name]: ids[name] for name in ids})
    put_all(table, moved)
    clock = ManualClock(known.now_ms)
    stage = Tenants("sync", open_table(True, table, clock.world), clock.world, ids)
    abroad = of_table(table, moved, ids[ABROAD])
    for damage, raw in ((first, {}), (then, {rng.choice(sorted(then.item) or ["odd"]): odd})):
        changed = renamed(dict([damage]), {known.ids[name]: ids[name] for name in ids})
        put_all(table, changed, raw)
        use_buckets(stage)
    use_everything(stage, rng)
    assert of_table(table, moved, ids[ABROAD]) == abroad
    check_tenants(stage, ids)
    run_sync(stage.backend.close())


def renamed(contents: Contents, ids: Mapping[str, str]) -> dict[Key, Item]:
    """The same records under other ids of namespaces, so that examples do not meet in one table."""

    def rename(value: Any) -> Any:
        for old, new in ids.items() if isinstance(value, str) else ():
            value = value.replace(old, new)
        return value

    return {
        Key(*map(rename, key)): {name: rename(value) for name, value in item.items()}
        for key, item in contents.items()
    }


def put_all(table: str, contents: Contents, raw: Mapping[str, Any] | None = None) -> None:
    """Write records past all of us; what DynamoDB would not take for an index is left out."""
    puts = []
    for key, item in contents.items():
        attributes = {name: encode(value) for name, value in item.items()} | dict(raw or {})
        kept = {name: value for name, value in attributes.items() if _fits(name, value)}
        puts.append({"PutRequest": {"Item": encode_key(key) | kept}})
    for at in range(0, len(puts), 25):
        driver().batch_write_item(RequestItems={table: puts[at : at + 25]})


def _fits(name: str, value: Any) -> bool:
    if name[:3] != "GSI" or name[4:] not in ("PK", "SK"):
        return bool(name)
    return 0 < len(value.get("S", "").encode()) <= 1024


def of_table(table: str, contents: Contents, namespace_id: str) -> dict[Key, Any]:
    """What a table holds of one namespace under the keys that it had."""
    keys = [encode_key(key) for key in contents if key.partition.startswith(f"{namespace_id}/")]
    assert len(keys) <= BATCH_KEYS_MAX
    wanted = {table: {"Keys": keys, "ConsistentRead": True}}
    found = driver().batch_get_item(RequestItems=wanted)["Responses"][table]
    return {decode_key(attributes): attributes for attributes in found}
