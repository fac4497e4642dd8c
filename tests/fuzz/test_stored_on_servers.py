"""The same damage on PostgreSQL and Redis, by whoever has the right to write there past all of us."""

import json
import random
from collections.abc import Iterator
from typing import Any

import pytest
import redis
from hypothesis import strategies as st

from tests.engines import redis_server
from tests.fuzz.damage import Damage, check_tenants, damages, use_buckets, use_everything
from tests.fuzz.figures import cases
from tests.fuzz.tenants import ABROAD, Tenants, template
from tests.postgres.schemas import lent_schema, open_schema, owner
from zae_limiter.backends.postgres.encoding import key_of as sql_key_of
from zae_limiter.backends.postgres.encoding import values_of
from zae_limiter.backends.redis import open_backend as open_redis
from zae_limiter.backends.redis.encoding import VERSION, item_key, tag_of, text, value_of
from zae_limiter.repository_protocol import Backend, Key, Put
from zae_limiter.runtime.colour import run_sync
from zae_limiter.testing import ManualClock

seeds = st.integers(0, 2**32 - 1)


def furnished(backend: Backend, clock: ManualClock) -> Tenants:
    """The furnished store, with all that a server keeps beside items."""
    known = template()
    run_sync(backend.setup())
    run_sync(backend.write_each([Put(key, item) for key, item in known.contents.items()]))
    return Tenants("sync", backend, clock.world, known.ids)


def abroad() -> list[Key]:
    """Where the tenant next door has its records."""
    known = template()
    return [key for key in known.contents if key.partition.startswith(f"{known.ids[ABROAD]}/")]


# PostgreSQL.

foreign_json = st.sampled_from([None, 1.5, 1e300, [], [None], {}, {"a": 1}, {"": 5}, {"": "{"}, "\1", "\1\1"])
"""What nobody of us writes into a body: an empty name says that a text of JSON follows."""


@cases("stored records", 12, first=damages(), then=damages(), odd=foreign_json, seed=seeds)
def test_damage_in_a_schema(first: Damage, then: Damage, odd: Any, seed: int) -> None:
    """Bodies in our own form, and in forms that are JSON and not ours."""
    rng, clock, schema = random.Random(seed), ManualClock(template().now_ms), lent_schema()
    stage = furnished(open_schema(True, schema, clock.world), clock)

    def damage(key: Key, body: dict[str, Any]) -> None:
        statement = f"UPDATE {schema}.items SET body = %s::jsonb WHERE pk = %s AND sk = %s"
        owner().execute(statement.encode(), (json.dumps(body), *sql_key_of(key)))

    def next_door() -> dict[Key, Any]:
        rows = owner().execute(f"SELECT pk, sk, body FROM {schema}.items".encode()).fetchall()
        found = {Key(pk, sk): body for pk, sk, body in rows}
        return {key: found.get(key) for key in abroad()}

    before = next_door()
    damage(first.key, values_of(first.item))
    use_buckets(stage)
    damage(then.key, values_of(then.item) | {rng.choice(sorted(then.item) or ["odd"]): odd})
    use_buckets(stage)
    use_everything(stage, rng)
    assert next_door() == before
    check_tenants(stage, stage.ids)
    run_sync(stage.backend.close())


# Redis.

foreign_bytes = st.sampled_from([b"", b"x", b"?1", b"1.5", b"-", b"1e9", b"s\xff", b"j{", b"j", b"t1", b"\0"])
"""What nobody of us writes into a field: a letter that tells no type, no text, no number."""
VERSIONED = {VERSION: b"of nobody"}
"""Without it a hash is none of ours."""


@pytest.fixture(scope="module")
def server() -> Iterator[Any]:
    with redis.Redis(redis_server.HOST, redis_server.SERVER.port()) as client:
        yield client


@cases("stored records", 12, first=damages(), then=damages(), odd=foreign_bytes, seed=seeds)
def test_damage_in_hashes(server: Any, first: Damage, then: Damage, odd: bytes, seed: int) -> None:
    """Fields in our own form, and such that nobody of us wrote; the indexes know nothing of either."""
    rng, clock, prefix = random.Random(seed), ManualClock(template().now_ms), redis_server.fresh_prefix()
    backend = open_redis(redis_server.url(prefix, timeout_ms=2_000), sync=True, world=clock.world)
    stage = furnished(backend, clock)

    def place(key: Key) -> bytes:
        return item_key(tag_of(backend.carrier.options.root, key.partition.partition("/")[0]), key)

    def damage(key: Key, fields: dict[bytes, bytes]) -> None:
        assert server.delete(place(key)) == 1
        if fields:
            server.hset(place(key), mapping=fields | (VERSIONED if rng.random() < 0.8 else {}))

    def encoded(contents: dict[str, Any]) -> dict[bytes, bytes]:
        return {text(name): value_of(value) for name, value in contents.items()}

    before = {key: server.hgetall(place(key)) for key in abroad()}
    damage(first.key, encoded(first.item))
    use_buckets(stage)
    damage(then.key, encoded(then.item) | {text(rng.choice(sorted(then.item) or ["odd"])): odd})
    use_buckets(stage)
    use_everything(stage, rng)
    assert {key: server.hgetall(place(key)) for key in abroad()} == before
    check_tenants(stage, stage.ids)
    run_sync(backend.close())
