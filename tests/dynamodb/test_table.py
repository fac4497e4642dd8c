"""The table: what is made, what is accepted, and what is said of one that will not do."""

from typing import Any

import pytest

from tests.dynamodb.scripted import Script
from tests.dynamodb.tables import driver, make_table, opened
from tests.engines import dynamodb_local
from tests.engines.proxy import Answer, DropReply, Proxy
from tests.stores import drive
from zae_limiter.backends.dynamodb.table import create_table_request, problems
from zae_limiter.backends.dynamodb.transport import NoReply, ServiceError
from zae_limiter.exceptions import (
    IncompatibleSchemaError,
    InfrastructureError,
    InfrastructureNotFoundError,
    RateLimiterUnavailable,
)
from zae_limiter.repository_protocol import Key, Put
from zae_limiter.runtime.colour import run_sync

BOTH = pytest.mark.parametrize("sync", [False, True], ids=["async", "sync"])
NOT_FOUND = ServiceError("ResourceNotFoundException", "no such table")


def described(status: str = "ACTIVE") -> dict[str, Any]:
    return {"Table": create_table_request("table") | {"TableStatus": status}}


@BOTH
def test_the_table_is_made_as_documented(sync: bool) -> None:
    """On demand, four key-only indexes, TTL on ``ttl``, a stream of both images; making it again is fine."""

    async def scenario() -> None:
        async with opened(sync, dynamodb_local.fresh_table()) as store:
            await store.create_table()
            await store.create_table()
            await store.setup()
            name = store.table_name
        found = driver().describe_table(TableName=name)["Table"]
        assert found["BillingModeSummary"]["BillingMode"] == "PAY_PER_REQUEST"
        assert found["StreamSpecification"]["StreamViewType"] == "NEW_AND_OLD_IMAGES"
        keys = {
            index["IndexName"]: (
                [part["AttributeName"] for part in index["KeySchema"]],
                index["Projection"]["ProjectionType"],
            )
            for index in [*found["GlobalSecondaryIndexes"]]
        }
        assert keys == {f"GSI{n}": ([f"GSI{n}PK", f"GSI{n}SK"], "KEYS_ONLY") for n in (1, 2, 3, 4)}
        assert [part["AttributeName"] for part in found["KeySchema"]] == ["PK", "SK"]
        ttl = driver().describe_time_to_live(TableName=name)["TimeToLiveDescription"]
        assert ttl == {"TimeToLiveStatus": "ENABLED", "AttributeName": "ttl"}

    drive(sync, scenario())


@BOTH
def test_a_deleted_table_is_gone(sync: bool) -> None:
    """Deleting waits, and deleting what is not there is fine."""

    async def scenario() -> None:
        async with opened(sync) as store:
            await store.delete_table()
            await store.delete_table()
            with pytest.raises(
                InfrastructureNotFoundError, match=f"zae-limiter deploy --name {store.table_name}"
            ):
                await store.setup()

    drive(sync, scenario())


@BOTH
def test_opening_makes_nothing(sync: bool) -> None:
    """A missing table stays missing, however often it is opened."""

    async def scenario() -> None:
        async with opened(sync, dynamodb_local.fresh_table()) as store:
            for _ in range(2):
                with pytest.raises(InfrastructureNotFoundError):
                    await store.setup()
            assert store.table_name not in driver().list_tables()["TableNames"]

    drive(sync, scenario())


def without(index: str) -> dict[str, Any]:
    request = create_table_request("unused")
    kept = [one for one in request["GlobalSecondaryIndexes"] if one["IndexName"] != index]
    used = [one for one in request["AttributeDefinitions"] if not one["AttributeName"].startswith(index)]
    return {"GlobalSecondaryIndexes": kept, "AttributeDefinitions": used}


def test_a_table_without_an_index_is_named_as_such() -> None:
    """The engine's own description of an older table is understood."""
    table = make_table(**without("GSI4"))

    async def scenario() -> None:
        async with opened(True, table) as store:
            with pytest.raises(IncompatibleSchemaError, match="index GSI4 is missing") as raised:
                await store.setup()
            assert table in str(raised.value)

    drive(True, scenario())


def test_a_table_with_other_keys_is_named_as_such() -> None:
    """Somebody else's table is not written to."""
    key = [{"AttributeName": "PK", "KeyType": "HASH"}]
    definitions = [{"AttributeName": "PK", "AttributeType": "S"}]
    table = dynamodb_local.fresh_table()
    driver().create_table(
        TableName=table, BillingMode="PAY_PER_REQUEST", KeySchema=key, AttributeDefinitions=definitions
    )

    async def scenario() -> None:
        async with opened(True, table) as store:
            with pytest.raises(IncompatibleSchemaError, match="the table is not keyed by PK and SK"):
                await store.setup()

    drive(True, scenario())


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"GlobalSecondaryIndexes": None}, ["index GSI1 is missing", "index GSI4 is missing"]),
        ({"KeySchema": []}, ["the table is not keyed by PK and SK"]),
        ({"AttributeDefinitions": []}, ["the keys of the table are not text", "the keys of index GSI1"]),
    ],
)
def test_every_problem_is_found(change: dict[str, Any], said: list[str]) -> None:
    """All at once, so that nobody mends a table in four rounds."""
    found = "; ".join(problems(create_table_request("t") | change))
    assert all(one in found for one in said)


def test_a_wider_index_is_accepted() -> None:
    """It costs more, but it works."""
    request = create_table_request("t")
    for index in request["GlobalSecondaryIndexes"]:
        index["Projection"] = {"ProjectionType": "ALL"}
    assert problems(request) == []


def test_a_table_that_is_being_made_is_waited_for() -> None:
    """Opening right after a deployment works."""
    wire = Script(described("CREATING"), described("CREATING"), described("CREATING"), described())
    run_sync(wire.backend().setup())
    assert wire.operations == ["DescribeTable"] * 4


def test_a_table_that_never_gets_ready_is_given_up() -> None:
    """Waiting has an end of its own, far beyond that of a call."""
    wire = Script(described("CREATING"))
    with pytest.raises(RateLimiterUnavailable, match="not usable after"):
        run_sync(wire.backend().setup())
    assert 5_000 < wire.clock.now_ms <= 180_000


def test_a_table_that_is_being_deleted_counts_as_missing() -> None:
    """It will not take another write."""
    with pytest.raises(InfrastructureNotFoundError):
        run_sync(Script(described("DELETING")).backend().setup())


def test_a_caller_that_may_not_describe_the_table_may_use_it() -> None:
    """A policy for acquiring only needs no permission to look at the table."""
    wire = Script(ServiceError("AccessDeniedException", "no dynamodb:DescribeTable"))
    run_sync(wire.backend().setup())
    assert wire.operations == ["DescribeTable"]


@BOTH
def test_a_lost_reply_does_not_stop_the_making(sync: bool) -> None:
    """Whether the table is on its way is found out by looking."""

    async def scenario() -> None:
        with Proxy(dynamodb_local.endpoint()).running() as proxy:
            proxy.fault("CreateTable", DropReply())
            proxy.fault("UpdateTimeToLive", DropReply())
            async with opened(sync, dynamodb_local.fresh_table(), proxy.url) as store:
                await store.create_table()
                assert (await store.write_each([Put(Key("a", "s"), {})]))[0].applied

    drive(sync, scenario())


def test_a_refused_creation_is_said() -> None:
    """A caller without the permission is told which one it lacks."""
    wire = Script(ServiceError("AccessDeniedException", "no"))
    with pytest.raises(RateLimiterUnavailable, match="dynamodb:CreateTable"):
        run_sync(wire.backend().create_table())


def test_a_table_without_ttl_is_said() -> None:
    """Buckets would then stay for ever, which is worth knowing."""
    wire = Script({}, described(), ServiceError("ValidationException", "TTL is being changed"))
    with pytest.raises(InfrastructureError, match="without a TTL"):
        run_sync(wire.backend().create_table())


def test_deleting_waits_until_the_table_is_gone() -> None:
    """Also when the reply to the deletion is lost."""
    lost = NoReply("reset", ambiguous=True)
    wire = Script(lost, ServiceError("ResourceInUseException", "deleting"), described("DELETING"), NOT_FOUND)
    run_sync(wire.backend().delete_table())
    assert wire.operations == ["DeleteTable", "DeleteTable", "DescribeTable", "DescribeTable"]


def test_a_refused_deletion_is_said() -> None:
    """Deletion protection, for one."""
    with Proxy(dynamodb_local.endpoint()).running() as proxy:
        proxy.fault("DeleteTable", Answer(400, "ValidationException", "deletion protection is on"))

        async def scenario() -> None:
            async with opened(True, endpoint_url=proxy.url) as store:
                with pytest.raises(RateLimiterUnavailable, match="deletion protection is on"):
                    await store.delete_table()

        drive(True, scenario())
