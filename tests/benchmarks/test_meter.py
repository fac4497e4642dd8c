"""What a request costs on AWS, from what the engine says about it."""

from typing import Any

import pytest

from benchmarks.meter import bill

BATCH = {"RequestItems": {"table": {"Keys": [{"PK": {"S": name}} for name in "abc"]}}}
STRONG = {"RequestItems": {"table": BATCH["RequestItems"]["table"] | {"ConsistentRead": True}}}
FOUND_ONE = {"ConsumedCapacity": [{"CapacityUnits": 0.5}], "Responses": {"table": [{"PK": {"S": "a"}}]}}
UNREAD = FOUND_ONE | {"UnprocessedKeys": {"table": {"Keys": [{"PK": {"S": "b"}}]}}}
REFUSED = {"__type": "com.amazonaws.dynamodb.v20120810#ConditionalCheckFailedException"}
CANCELLED = {"__type": "com.amazonaws.dynamodb.v20120810#TransactionCanceledException"}
THROTTLED = {"__type": "com.amazonaws.dynamodb.v20120810#ProvisionedThroughputExceededException"}


@pytest.mark.parametrize(
    ("operation", "request_body", "status", "reply", "units"),
    [
        ("UpdateItem", {}, 200, {"ConsumedCapacity": {"CapacityUnits": 2.0}}, (0.0, 2.0)),
        ("GetItem", {}, 200, {"ConsumedCapacity": {"CapacityUnits": 0.5}}, (0.5, 0.0)),
        ("TransactWriteItems", {}, 200, {"ConsumedCapacity": [{"CapacityUnits": 4.0}]}, (0.0, 4.0)),
        ("BatchGetItem", BATCH, 200, FOUND_ONE, (1.5, 0.0)),
        ("BatchGetItem", STRONG, 200, FOUND_ONE, (2.5, 0.0)),
        ("BatchGetItem", BATCH, 200, UNREAD, (1.0, 0.0)),
        ("UpdateItem", {}, 400, REFUSED, (0.0, 1.0)),
        ("TransactWriteItems", {"TransactItems": [{}, {}, {}]}, 400, CANCELLED, (0.0, 6.0)),
        ("UpdateItem", {}, 400, THROTTLED, (0.0, 0.0)),
    ],
)
def test_what_aws_bills(
    operation: str,
    request_body: dict[str, Any],
    status: int,
    reply: dict[str, Any],
    units: tuple[float, float],
) -> None:
    """Read units and write units, with what the engine leaves out."""
    assert bill(operation, request_body, status, reply) == units
