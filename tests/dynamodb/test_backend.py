"""The verbs on the engine, beyond what every store must do: images, transactions, limits of DynamoDB."""

import pytest

from tests.dynamodb.scripted import Script
from tests.dynamodb.tables import driver, make_table, opened
from tests.stores import drive
from zae_limiter.backends.dynamodb.transport import ServiceError
from zae_limiter.exceptions import RateLimiterUnavailable
from zae_limiter.repository_protocol import (
    Absent,
    AtLeast,
    Check,
    Cursor,
    Delete,
    Equal,
    Exists,
    Key,
    Outcome,
    Put,
    Query,
    Row,
    Update,
    Write,
)
from zae_limiter.runtime.colour import run_sync

A, B, C, D = (Key(name, "s") for name in "abcd")
BOTH = pytest.mark.parametrize("sync", [False, True], ids=["async", "sync"])
WAYS = pytest.mark.parametrize(
    ("sync", "transport"),
    [(False, "lean"), (True, "lean"), (False, "boto"), (True, "boto")],
    ids=["async", "sync", "async-boto", "sync-boto"],
)


@WAYS
def test_every_write_brings_its_image(sync: bool, transport: str) -> None:
    """An applied write has the new image, a refused one the old image, without a read."""

    async def scenario() -> None:
        async with opened(sync, transport=transport) as store:
            first = await store.write_each([Update(A, {"n": 5}, {"x": "y"}), Put(B, {"n": 1, "gone": None})])
            assert first == [Outcome(True, {"n": 5, "x": "y"}), Outcome(True, {"n": 1})]
            second = await store.write_each(
                [
                    Update(A, {"n": -5}, when=(AtLeast("n", 6),)),
                    Put(B, {}, (Absent(),)),
                    Delete(B, (Equal("n", 2),)),
                    Update(C, {"n": 1}, when=(Exists(),)),
                ]
            )
            assert second == [
                Outcome(False, {"n": 5, "x": "y"}, held=False),
                Outcome(False, {"n": 1}, held=False),
                Outcome(False, {"n": 1}, held=False),
                Outcome(False, None, held=False),
            ]
            assert await store.write_each([Delete(B)]) == [Outcome(True, None)]
            assert await store.batch_get([A, B, A]) == [{"n": 5, "x": "y"}, None, {"n": 5, "x": "y"}]

    drive(sync, scenario())


@WAYS
def test_a_refused_transaction_says_whose_fault_it_was(sync: bool, transport: str) -> None:
    """``held`` and the old image come from the reason of each write; nothing is changed."""

    async def scenario() -> None:
        async with opened(sync, transport=transport) as store:
            await store.write_each([Put(A, {"n": 1}), Put(B, {"n": 2})])
            outcomes = await store.transact_write(
                [
                    Update(A, {"n": 1}, when=(AtLeast("n", 5),)),
                    Update(B, {"n": 1}),
                    Delete(C, (Exists(),)),
                    Check(D, (Absent(),)),
                ]
            )
            assert outcomes == [
                Outcome(False, {"n": 1}, held=False),
                Outcome(False, None, held=True),
                Outcome(False, None, held=False),
                Outcome(False, None, held=True),
            ]
            assert await store.batch_get([A, B, C]) == [{"n": 1}, {"n": 2}, None]

    drive(sync, scenario())


@BOTH
def test_an_applied_transaction_knows_the_images_it_sent(sync: bool) -> None:
    """DynamoDB returns none, so only those of a ``Put`` are known."""

    async def scenario() -> None:
        async with opened(sync) as store:
            outcomes = await store.transact_write(
                [Put(A, {"n": 1, "x": None}), Update(B, {"n": 3}), Delete(C), Check(D)]
            )
            assert outcomes == [
                Outcome(True, {"n": 1}),
                Outcome(True, None),
                Outcome(True, None),
                Outcome(True, None),
            ]
            assert await store.batch_get([A, B, C, D]) == [{"n": 1}, {"n": 3}, None, None]

    drive(sync, scenario())


@WAYS
def test_adding_to_text_is_refused_with_the_image(sync: bool, transport: str) -> None:
    """DynamoDB calls it invalid and shows no image, alone and in a transaction."""

    async def scenario() -> None:
        async with opened(sync, transport=transport) as store:
            await store.write_each([Put(A, {"x": "text", "b": True})])
            for attribute in ("x", "b"):
                alone = await store.write_each([Update(A, {attribute: 1})])
                assert alone == [Outcome(False, {"x": "text", "b": True}, held=False)]
            together = await store.transact_write([Update(B, {"n": 1}), Update(A, {"x": 1})])
            assert [outcome.applied for outcome in together] == [False, False]
            assert [outcome.held for outcome in together] == [True, False]
            assert together[1].item == {"x": "text", "b": True}
            assert await store.batch_get([B]) == [None]

    drive(sync, scenario())


@BOTH
def test_a_single_write_is_no_transaction(sync: bool) -> None:
    """One write costs half as much on its own, and brings its image."""

    async def scenario() -> None:
        async with opened(sync) as store:
            assert await store.transact_write([Update(A, {"n": 1})]) == [Outcome(True, {"n": 1})]
            assert await store.transact_write([Check(A, (Exists(),))]) == [Outcome(True, {"n": 1})]
            assert await store.transact_write([Check(A, (Absent(),))]) == [
                Outcome(False, {"n": 1}, held=False)
            ]
            assert await store.transact_write([]) == await store.write_each([]) == []

    drive(sync, scenario())


@BOTH
def test_null_of_older_tables_equals_none(sync: bool) -> None:
    """The first clients wrote ``parent_id: NULL`` where later ones write nothing."""

    async def scenario() -> None:
        table = make_table()
        key = {"PK": {"S": A.partition}, "SK": {"S": A.sort}}
        driver().put_item(TableName=table, Item=key | {"parent_id": {"NULL": True}})
        async with opened(sync, table) as store:
            (outcome,) = await store.write_each([Update(A, {"n": 1}, when=(Equal("parent_id", None),))])
            assert outcome == Outcome(True, {"n": 1})

    drive(sync, scenario())


@BOTH
def test_numbers_are_exact_to_38_digits(sync: bool) -> None:
    """Neither adding nor comparing goes through a float."""
    large = 10**38 - 3

    async def scenario() -> None:
        async with opened(sync) as store:
            await store.write_each([Put(A, {"n": large})])
            assert await store.write_each([Update(A, {"n": 1}, when=(AtLeast("n", large),))]) == [
                Outcome(True, {"n": large + 1})
            ]
            (refused,) = await store.write_each([Update(A, {"n": 1}, when=(AtLeast("n", large + 2),))])
            assert not refused.applied

    drive(sync, scenario())


@BOTH
def test_more_keys_than_one_request_holds(sync: bool) -> None:
    """250 keys are three reads, in the order of the question."""

    async def scenario() -> None:
        async with opened(sync) as store:
            await store.write_each([Put(Key(f"k{n}", "s"), {"n": n}) for n in range(0, 250, 50)])
            found = await store.batch_get([Key(f"k{n}", "s") for n in range(250)])
            assert {n: item for n, item in enumerate(found) if item is not None} == {
                n: {"n": n} for n in range(0, 250, 50)
            }
            assert await store.batch_get([]) == []

    drive(sync, scenario())


@WAYS
@pytest.mark.parametrize("backwards", [False, True])
def test_pages_of_table_and_index_meet_without_gap(sync: bool, transport: str, backwards: bool) -> None:
    """Walking by cursor sees each row once, in order, filtered or not."""

    async def scenario() -> None:
        async with opened(sync, transport=transport) as store:
            keys = [Key("p", f"{n:02}") for n in range(7)]
            await store.write_each(
                [Put(key, {"n": n, "GSI1PK": "g", "GSI1SK": f"{9 - n}"}) for n, key in enumerate(keys)]
            )
            ordered = keys[::-1] if backwards else keys

            async def walk(query: Query) -> list[Row]:
                rows: list[Row] = []
                after: Cursor | None = None
                while True:
                    page = await store.query(query._replace(after=after, rows_max=2, backwards=backwards))
                    assert len(page.rows) <= 2
                    rows += page.rows
                    after = page.after
                    if after is None:
                        return rows

            assert [row.key for row in await walk(Query("p"))] == ordered
            assert [row.key for row in await walk(Query("p", "02", "04"))] == ordered[2:5]
            rows = await walk(Query("p", when=(AtLeast("n", 5),)))
            assert sorted(row.item["n"] for row in rows) == [5, 6]
            assert await walk(Query("g", index="GSI1")) == [Row(key, {}) for key in ordered[::-1]]
            assert await walk(Query("p", "9", "1")) == []

    drive(sync, scenario())


def test_keys_that_dynamodb_leaves_out_are_asked_for_again() -> None:
    """A large read may come back in parts."""
    item = {"PK": {"S": "a"}, "SK": {"S": "s"}, "n": {"N": "1"}}
    left = {"table": {"Keys": [{"PK": {"S": "b"}, "SK": {"S": "s"}}], "ConsistentRead": True}}
    wire = Script(
        {"Responses": {"table": [item]}, "UnprocessedKeys": left},
        {"Responses": {"table": [item | {"PK": {"S": "b"}}]}, "UnprocessedKeys": {}},
    )
    assert run_sync(wire.backend().batch_get([A, B, C])) == [{"n": 1}, {"n": 1}, None]
    assert wire.sent[1][1] == {"RequestItems": left}
    assert len(wire.clock.slept_ms) == 1


def test_keys_that_never_come_are_a_failure_at_the_deadline() -> None:
    """Asking again ends with the call's deadline, or after a number of attempts."""
    left = {"table": {"Keys": [{"PK": {"S": "a"}, "SK": {"S": "s"}}]}}
    wire = Script({"Responses": {}, "UnprocessedKeys": left})
    with pytest.raises(RateLimiterUnavailable, match="left keys out"):
        run_sync(wire.backend(timeout_ms=500).batch_get([A]))
    assert len(wire.sent) > 2
    assert wire.clock.now_ms <= 500


@pytest.mark.parametrize("write", [Update(A, {"n": 1}), Put(A, {"n": 1}), Delete(A)])
def test_a_request_that_is_simply_invalid_is_no_refusal(write: Write) -> None:
    """Only what the image explains is a refusal; anything else is said in DynamoDB's words."""
    wire = Script(ServiceError("ValidationException", "item too large"), {"Responses": {"table": []}})
    (outcome,) = run_sync(wire.backend().write_each([write]))
    assert outcome.failure is not None
    assert not outcome.failure.ambiguous
    assert "ValidationException: item too large" in str(outcome.failure)


def test_a_cancelled_transaction_may_name_an_invalid_addition() -> None:
    """The service names it as the reason of one write, where DynamoDB Local refuses the whole."""
    reasons = [{"Code": "None"}, {"Code": "ValidationError", "Message": "incorrect operand type"}]
    wire = Script(
        ServiceError("TransactionCanceledException", "cancelled", {"CancellationReasons": reasons}),
        {"Responses": {"table": [{"PK": {"S": "b"}, "SK": {"S": "s"}, "n": {"S": "text"}}]}},
    )
    outcomes = run_sync(wire.backend().transact_write([Update(A, {"n": 1}), Update(B, {"n": 1})]))
    assert outcomes == [Outcome(False, None, held=True), Outcome(False, {"n": "text"}, held=False)]
