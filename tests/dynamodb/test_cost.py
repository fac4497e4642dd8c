"""What a write costs, as the engine itself counts it, with every index included."""

from typing import Any

import pytest

from tests.dynamodb.tables import make_table, session
from tests.engines import dynamodb_local
from zae_limiter.backends.dynamodb import DynamoDBBackend
from zae_limiter.backends.dynamodb.boto import Access, BotocoreTransport
from zae_limiter.backends.dynamodb.expressions import Payload, Request, fields_of
from zae_limiter.backends.dynamodb.retries import Calls
from zae_limiter.repository_protocol import Absent, AtLeast, AtMost, Equal, Exists, Item, Key, Put, Update
from zae_limiter.runtime.colour import run_sync
from zae_limiter.runtime.world import World

KEY = Key("ns/BUCKET#user-1#gpt-4#0", "#STATE")


class Metered(BotocoreTransport):
    """A transport that asks for the bill of each write."""

    def __init__(self, access: Access) -> None:
        super().__init__(access)
        self.bills: list[dict[str, Any]] = []

    async def call(self, operation: str, payload: Request, timeout_ms: float) -> Payload:
        reply = await super().call(
            operation, fields_of(payload) | {"ReturnConsumedCapacity": "INDEXES"}, timeout_ms
        )
        self.bills.append(reply["ConsumedCapacity"])
        return reply


def bucket(limits: int) -> Item:
    """A bucket as the limiter stores it, with its place in three indexes."""
    numbers = {
        f"b_limit{n}_{part}": value
        for n in range(limits)
        for part, value in {
            "tk": 10_000_000,
            "cp": 10_000_000,
            "ra": 10_000_000,
            "rp": 60_000,
            "tc": 0,
        }.items()
    }
    return {
        "entity_id": "user-1",
        "resource": "gpt-4",
        "shard_count": 1,
        "cascade": False,
        "rf": 1704067200000,
        "config_version": 3,
        "ttl": 1804067200,
        "GSI2PK": "ns/RESOURCE#gpt-4",
        "GSI2SK": "BUCKET#user-1#0",
        "GSI3PK": "ns/ENTITY#user-1",
        "GSI3SK": "BUCKET#gpt-4#0",
        "GSI4PK": "ns",
        "GSI4SK": KEY.partition,
        **numbers,
    }


def spend(limits: int) -> Update:
    """A warm acquire: every limit between its floor and its ceiling, origin and version pinned."""
    names = [f"b_limit{n}" for n in range(limits)]
    add = {f"{name}_{part}": sign * 1000 for name in names for part, sign in (("tk", -1), ("tc", 1))}
    bounds = [AtLeast(f"{name}_tk", 1000) for name in names] + [AtMost(f"{name}_tk", 10**9) for name in names]
    pins = (Exists(), Equal("rf", 1704067200000), Equal("config_version", 3))
    return Update(KEY, add, when=(*pins, *bounds))


@pytest.mark.parametrize("limits", [1, 2, 3, 8])
def test_a_warm_spend_costs_one_write_unit(limits: int) -> None:
    """The token change touches the item alone; no index is written."""

    async def scenario() -> None:
        access = Access("eu-west-1", dynamodb_local.endpoint(), session=session(True))
        wire = Metered(access)
        store = DynamoDBBackend(Calls(make_table(), wire, World(), 10_000))
        assert (await store.write_each([Put(KEY, bucket(limits), (Absent(),))]))[0].applied
        assert (await store.write_each([spend(limits)]))[0].applied
        creation, warm = wire.bills
        # Creating it is one unit for the item and one for each of its three places.
        assert creation["CapacityUnits"] == 4.0
        assert warm["CapacityUnits"] == 1.0
        assert warm["Table"]["CapacityUnits"] == 1.0
        assert "GlobalSecondaryIndexes" not in warm
        await store.close()

    run_sync(scenario())
