"""What becomes of an item on its way: pure, and the same in both directions."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.copying.conftest import Fresh
from tests.copying.furnished import LIMITS, RESOURCE, opened
from tests.copying.test_copy import copied, take
from zae_limiter import Limit, RateLimiter, RateLimitExceeded
from zae_limiter.engine.account import Account, Meter, Terms
from zae_limiter.engine.bucket_writes import write_for
from zae_limiter.engine.law import balance
from zae_limiter.engine.posting import Posting
from zae_limiter.engine.split import doubled, split
from zae_limiter.operate.copying.carrying import Route, carried, found, landed, whole
from zae_limiter.repository_protocol import Item, Key, Put, apply
from zae_limiter.schema import bucket_key, limit_attributes, stored_rate, usage_key
from zae_limiter.testing import ManualClock

NOW_MS = 1_700_000_000_000
ROUTES = [Route(a, b) for a in (False, True) for b in (False, True)]
KEY = bucket_key("ns", "key", RESOURCE)
values = st.none() | st.integers() | st.text() | st.booleans()
bodies = st.dictionaries(
    st.sampled_from(
        ["rf", "cv", "ttl", "moved", "born", "sampled", "buried", "b_wcu_tk", "b_wcu_tc", "b_rpm_tk", "_seen"]
    ),
    values.filter(lambda value: value is not None),
)
keys = st.sampled_from([KEY, usage_key("ns", "key", RESOURCE, "2024-01"), Key("ns/SYSTEM#", "#CONFIG")])


@given(key=keys, item=bodies, route=st.sampled_from(ROUTES), now_ms=st.integers(1, 2**50))
def test_what_landed_is_found_again(key: Key, item: dict[str, Any], route: Route, now_ms: int) -> None:
    """Whatever an item says; else a copy would never be verified."""
    if route.needs_gauge:  # a store without hot partitions has no gauge
        item = {name: value for name, value in item.items() if "wcu" not in name and name != "born"}
        item.pop("sampled", None)
    become = carried(key, item, route)
    assert become is not None
    assert found(key, landed(key, become, route, now_ms), route) == become
    assert carried(key, landed(key, become, route, now_ms), Route(route.to_hot, route.to_hot)) is not None


def test_a_row_of_usage_forgets_places_in_a_log() -> None:
    """Those of lives of buckets are the same everywhere, so they stay."""
    key = usage_key("ns", "key", RESOURCE, "2024-01")
    row = {"rpm": 7, "_seen": "-1@0:0-9;0@-1:0-57;0@1700000000000:0-3,5-6;1@-1:0-2"}
    assert carried(key, row, ROUTES[0]) == {"rpm": 7, "_seen": "-1@0:0-9;0@1700000000000:0-3,5-6"}
    assert carried(key, {"rpm": 7, "_seen": "0@-1:0-57"}, ROUTES[0]) == {"rpm": 7}


def account() -> Account:
    terms = Terms.of([Limit.per_minute("rpm", 60), Limit.per_minute("tpm", 10_001)], 0, 7)
    return Account(KEY, "ns", "key", RESOURCE, terms, meter=Meter.COUNT)


def shards(takes: list[int], doublings: int) -> list[Item]:
    """A bucket from which was taken, split so many times."""
    write = write_for(account(), Posting(need={"rpm": 1000, "tpm": takes[0]}), None, NOW_MS)
    assert isinstance(write, Put)
    images: list[Item] = [write.item]
    for turn in range(doublings):
        target = doubled(images[0])
        assert target is not None
        others: list[Item] = []
        for shard_id, image in enumerate(images):
            kept, made = split(account(), shard_id, image, target, NOW_MS + turn * 700)
            outcome = apply(kept, image)
            assert outcome.applied
            images[shard_id] = outcome.item  # type: ignore[call-overload]
            others.append(made.item)
        images += others
    for place, taken in enumerate(takes[1:]):
        at = place % len(images)
        if "b_tpm_tk" not in images[at]:  # which holds no part of it, lest parts be too small for requests
            continue
        images[at] = {**images[at], "b_tpm_tk": images[at]["b_tpm_tk"] - taken}  # type: ignore[operator]
    return images


@given(st.lists(st.integers(0, 9_000_000), min_size=1, max_size=9), st.integers(1, 3))
def test_shards_come_together(takes: list[int], doublings: int) -> None:
    """The whole holds what its shards hold at the latest origin, and has the numbers from before."""
    images = shards(takes, doublings)
    one = whole(images)
    at_ms = max(image["rf"] for image in images)  # type: ignore[type-var]
    for name in ("rpm", "tpm"):
        tk = limit_attributes(name).tk
        held = 0
        for image in images:
            rate = stored_rate(image, name)
            if rate is not None:
                held += balance(rate, image[tk], image["rf"], at_ms)  # type: ignore[arg-type]
        assert one[tk] == held
        assert stored_rate(one, name) == account().terms.rates[name]
    assert one["shard_count"] == 1
    become = carried(KEY, images[0], Route(True, False), images[1:])
    assert become is not None
    assert not any("wcu" in name or name.endswith(("_sc", "_mx")) for name in become)
    assert isinstance(become["ttl"], int)
    assert carried(bucket_key("ns", "key", RESOURCE, 1), images[1], Route(True, False)) is None
    assert carried(bucket_key("ns", "key", RESOURCE, 1), images[1], Route(True, True)) == images[1]


async def test_a_spread_bucket_leaves_dynamodb_whole(fresh: Fresh, clock: ManualClock) -> None:
    """All that its shards held is admitted elsewhere, and no more; to another table they go as they are."""
    source, target, twin = fresh("dynamodb"), fresh("sqlite"), fresh("dynamodb")
    limiter = RateLimiter(await opened(source.backend, clock.world))
    await limiter.repository.set_resource_defaults(RESOURCE, LIMITS)
    await take(limiter, "key", RESOURCE, {"rpm": 10, "tpm": 4_000})
    key = bucket_key(limiter.repository.namespace_id, "key", RESOURCE)
    (image,) = await source.backend.batch_get([key])
    assert image is not None
    halves = split(_of(limiter, key), 0, image, doubled(image) or {}, clock.now_ms)
    assert (await source.backend.transact_write(halves))[0].applied
    assert (await copied(source, target)).is_open
    moved = RateLimiter(await opened(target.backend, clock.world))
    assert await moved.available("key", RESOURCE) == {"rpm": 90, "tpm": 6_000}
    await take(moved, "key", RESOURCE, {"rpm": 90, "tpm": 6_000})
    with pytest.raises(RateLimitExceeded):
        await take(moved, "key", RESOURCE, {"rpm": 1})
    assert (await copied(source, twin)).is_open
    spread = RateLimiter(await opened(twin.backend, clock.world))
    assert await spread.available("key", RESOURCE) == {"rpm": 90, "tpm": 6_000}


def _of(limiter: RateLimiter, key: Key) -> Account:
    terms = Terms.of(LIMITS)
    return Account(key, limiter.repository.namespace_id, "key", RESOURCE, terms, meter=Meter.COUNT)
