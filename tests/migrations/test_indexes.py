"""Tables that were made with fewer indexes get the missing ones before anything is moved."""

import asyncio
from typing import Any

import pytest

from tests.dynamodb.scripted import Script
from tests.dynamodb.tables import driver, make_table, open_table, opened
from tests.migrations.old_store import OldStore
from tests.migrations.older import NOW_MS, single_table
from zae_limiter import IncompatibleSchemaError, InfrastructureNotFoundError
from zae_limiter.backends.dynamodb.table import create_table_request, problems
from zae_limiter.backends.dynamodb.transport import ServiceError
from zae_limiter.operate.migrations.indexes import add_missing_indexes, missing_indexes
from zae_limiter.runtime.colour import run_sync
from zae_limiter.testing import ManualClock

pytestmark = pytest.mark.usefixtures("engine_that_builds")


def older_table(*indexes: str, **changes: Any) -> str:
    """A table as older versions made it: only these indexes, and everything projected into them."""
    request = create_table_request("x")
    kept = [one for one in request["GlobalSecondaryIndexes"] if one["IndexName"] in indexes]
    names = ["PK", "SK", *(f"{index}{part}" for index in indexes for part in ("PK", "SK"))]
    return make_table(
        GlobalSecondaryIndexes=[{**one, "Projection": {"ProjectionType": "ALL"}, **changes} for one in kept],
        AttributeDefinitions=[{"AttributeName": name, "AttributeType": "S"} for name in names],
        **changes and {"BillingMode": "PROVISIONED", **changes},
    )


def description(table: str) -> dict[str, Any]:
    found: dict[str, Any] = driver().describe_table(TableName=table)["Table"]
    return found


@pytest.mark.parametrize("sync", [True, False])
def test_missing_indexes_are_added_one_after_another(sync: bool) -> None:
    """Each is waited for and told; those that are there stay as they are."""
    table = older_table("GSI1", "GSI2")
    told: list[tuple[str, str]] = []

    async def add() -> None:
        async with opened(sync, table) as backend:
            with pytest.raises(IncompatibleSchemaError, match=f"zae-limiter upgrade --name {table}"):
                await backend.setup()
            assert await missing_indexes(backend) == ["GSI3", "GSI4"]
            assert await add_missing_indexes(backend, lambda *what: told.append(what)) == ["GSI3", "GSI4"]
            await backend.setup()
            assert await add_missing_indexes(backend, lambda *what: told.append(what)) == []

    run_sync(add()) if sync else asyncio.run(add())
    assert problems(description(table)) == []
    assert [what for what in dict.fromkeys(told) if what[1] in ("asked for", "ready")] == [
        ("GSI3", "asked for"),
        ("GSI3", "ready"),
        ("GSI4", "asked for"),
        ("GSI4", "ready"),
    ]
    projections = {
        index["IndexName"]: index["Projection"]["ProjectionType"]
        for index in description(table)["GlobalSecondaryIndexes"]
    }
    assert projections == {"GSI1": "ALL", "GSI2": "ALL", "GSI3": "KEYS_ONLY", "GSI4": "KEYS_ONLY"}


def test_an_index_of_a_table_with_bought_throughput_gets_as_much() -> None:
    """DynamoDB refuses one without."""
    table = older_table(
        "GSI1", "GSI2", "GSI3", ProvisionedThroughput={"ReadCapacityUnits": 7, "WriteCapacityUnits": 9}
    )

    async def add() -> None:
        async with opened(True, table) as backend:
            await add_missing_indexes(backend, lambda *_: None)

    run_sync(add())
    (added,) = (i for i in description(table)["GlobalSecondaryIndexes"] if i["IndexName"] == "GSI4")
    assert added["ProvisionedThroughput"]["WriteCapacityUnits"] == 9


def test_two_that_add_the_same_index() -> None:
    """Whoever comes second waits for the first."""
    table = older_table("GSI1", "GSI2", "GSI3")

    async def add() -> None:
        async with opened(False, table) as one, opened(False, table) as other:
            await asyncio.gather(*(add_missing_indexes(backend, lambda *_: None) for backend in (one, other)))

    asyncio.run(add())
    assert problems(description(table)) == []


def test_a_table_that_cannot_be_helped() -> None:
    """Keys cannot be changed, and a table that is not there is not made."""
    request = create_table_request("x")
    schema = [{"AttributeName": "SK", "KeyType": "HASH"}, {"AttributeName": "PK", "KeyType": "RANGE"}]
    wrong = make_table(
        KeySchema=schema,
        GlobalSecondaryIndexes=request["GlobalSecondaryIndexes"][:1],
        AttributeDefinitions=request["AttributeDefinitions"][:4],
    )

    async def look(table: str) -> None:
        async with opened(True, table) as backend:
            await missing_indexes(backend)

    with pytest.raises(IncompatibleSchemaError, match="cannot be upgraded: the table is not keyed by"):
        run_sync(look(wrong))
    with pytest.raises(InfrastructureNotFoundError, match="does not exist"):
        run_sync(look("no-such-table"))
    assert "no-such-table" not in driver().list_tables()["TableNames"]


def test_a_table_that_refuses_says_so() -> None:
    """A refusal that comes again is not about being busy."""
    there = {"TableStatus": "ACTIVE", "KeySchema": create_table_request("x")["KeySchema"]}
    there |= {"AttributeDefinitions": create_table_request("x")["AttributeDefinitions"]}
    refused = ServiceError("ValidationException", "too many indexes")
    script = Script({"Table": there}, {"Table": there}, refused, {"Table": there}, refused)
    with pytest.raises(IncompatibleSchemaError, match=r"does not take index GSI1: .*too many indexes"):
        run_sync(add_missing_indexes(script.backend(), lambda *_: None))
    assert script.operations == [
        "DescribeTable",
        "DescribeTable",
        "UpdateTable",
        "DescribeTable",
        "UpdateTable",
    ]


def test_an_index_that_is_being_built_is_waited_for() -> None:
    """An upgrade that was interrupted does not ask for it twice."""
    keys = {name: create_table_request("x")[name] for name in ("KeySchema", "AttributeDefinitions")}
    indexes = create_table_request("x")["GlobalSecondaryIndexes"]

    def table(status: str) -> dict[str, Any]:
        built = [{**index, "IndexStatus": "ACTIVE"} for index in indexes[:3]]
        last = {**indexes[3], "IndexStatus": status}
        return {"Table": {**keys, "TableStatus": "UPDATING", "GlobalSecondaryIndexes": [*built, last]}}

    script = Script(*[table("CREATING")] * 4, table("ACTIVE"))
    told: list[tuple[str, str]] = []
    assert run_sync(add_missing_indexes(script.backend(), lambda *what: told.append(what))) == ["GSI4"]
    assert set(script.operations) == {"DescribeTable"}
    assert told[-1] == ("GSI4", "ready")


def test_records_are_moved_after_that() -> None:
    """From a table of the first shape to one that answers questions through all indexes."""
    table, old = older_table("GSI1", "GSI2"), single_table(20)
    clock = ManualClock(NOW_MS)
    stage = OldStore("dynamodb", lambda: open_table(True, table, clock.world), clock)
    stage.fill(old)
    run_sync(add_missing_indexes(stage.backend, lambda *_: None))  # type: ignore[arg-type]
    stage.migrate()
    entities, _ = run_sync(stage.repository().list_entities())
    assert {entity.entity_id for entity in entities} == old.truth.entities.keys()
    run_sync(stage.backend.close())
