"""The table as DynamoDB has to make it, and whether a table that is there will do. Pure.

All indexes are ``KEYS_ONLY``: a change of tokens then touches no index and costs one write unit, not
two. An older table whose indexes project more still works, it only costs more.
"""

from __future__ import annotations

from typing import Any

from .expressions import PARTITION, SORT, Payload

INDEXES = ("GSI1", "GSI2", "GSI3", "GSI4")
TTL_ATTRIBUTE = "ttl"


def create_table_request(table: str) -> Payload:
    prefixes = ("", *INDEXES)
    names = [f"{prefix}{part}" for prefix in prefixes for part in (PARTITION, SORT)]
    return {
        "TableName": table,
        "BillingMode": "PAY_PER_REQUEST",
        "AttributeDefinitions": [{"AttributeName": name, "AttributeType": "S"} for name in names],
        "KeySchema": _key_schema(""),
        "GlobalSecondaryIndexes": [_index(index) for index in INDEXES],
        # The aggregator needs both images to tell what changed.
        "StreamSpecification": {"StreamEnabled": True, "StreamViewType": "NEW_AND_OLD_IMAGES"},
    }


def add_index_request(table: str, index: str, description: dict[str, Any]) -> Payload:
    """Give a table that is there one more index; with throughput like the table's if that is bought."""
    made = _index(index)
    if description.get("BillingModeSummary", {}).get("BillingMode", "PROVISIONED") == "PROVISIONED":
        bought = description.get("ProvisionedThroughput", {})
        units = {name: bought.get(name, 0) for name in ("ReadCapacityUnits", "WriteCapacityUnits")}
        if all(units.values()):
            made["ProvisionedThroughput"] = units
    names = [f"{index}{part}" for part in (PARTITION, SORT)]
    return {
        "TableName": table,
        "AttributeDefinitions": [{"AttributeName": name, "AttributeType": "S"} for name in names],
        "GlobalSecondaryIndexUpdates": [{"Create": made}],
    }


def time_to_live_request(table: str) -> Payload:
    specification = {"Enabled": True, "AttributeName": TTL_ATTRIBUTE}
    return {"TableName": table, "TimeToLiveSpecification": specification}


def described(reply: Payload) -> dict[str, Any]:
    """The table in an answer, in which all that anybody asks for can be read."""
    table: dict[str, Any] = reply["Table"]
    problems(table)
    indexes = table.get("GlobalSecondaryIndexes") or ()
    texts = [table["TableStatus"], *(index.get("IndexStatus", "") for index in indexes)]
    if not all(isinstance(text, str) for text in texts):
        raise TypeError("a status is no text")
    add_index_request("", "", table)
    return table


def problems(description: dict[str, Any]) -> list[str]:
    """What keeps a table from being used, in the words of an error message."""
    found = []
    types = {a["AttributeName"]: a["AttributeType"] for a in description.get("AttributeDefinitions", ())}
    indexes = {index["IndexName"]: index for index in description.get("GlobalSecondaryIndexes") or ()}
    for prefix in ("", *INDEXES):
        what = f"index {prefix}" if prefix else "the table"
        holder = indexes.get(prefix) if prefix else description
        if holder is None:
            found.append(f"{what} is missing")
        elif _sorted(holder.get("KeySchema", ())) != _sorted(_key_schema(prefix)):
            found.append(f"{what} is not keyed by {prefix}{PARTITION} and {prefix}{SORT}")
        elif any(types.get(f"{prefix}{part}") != "S" for part in (PARTITION, SORT)):
            found.append(f"the keys of {what} are not text")
    return found


def _index(name: str) -> dict[str, Any]:
    return {
        "IndexName": name,
        "KeySchema": _key_schema(name),
        "Projection": {"ProjectionType": "KEYS_ONLY"},
    }


def _key_schema(prefix: str) -> list[dict[str, str]]:
    return [
        {"AttributeName": f"{prefix}{PARTITION}", "KeyType": "HASH"},
        {"AttributeName": f"{prefix}{SORT}", "KeyType": "RANGE"},
    ]


def _sorted(schema: Any) -> list[tuple[str, str]]:
    return sorted((part["KeyType"], part["AttributeName"]) for part in schema)
