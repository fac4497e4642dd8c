"""What a tenant can write into its own records to spoil usage, and a store that minds like DynamoDB."""

from collections.abc import Sequence
from typing import Any

from tests.aggregator.images import NOW
from zae_limiter.backends.dynamodb.expressions import write_request
from zae_limiter.backends.dynamodb.transport import ServiceError, failure
from zae_limiter.repository_protocol import Item, Key, Outcome, Put, Write, apply
from zae_limiter.testing.stores import Wrapper

ITEM_BYTES_MAX = 409_600
EXPRESSION_BYTES_MAX = 4_096
OPERATORS_MAX = 300
PARTS = ("tk", "cp", "ra", "rp", "tc")


def size_of(value: Any) -> int:
    """How many bytes DynamoDB counts for a value, about."""
    if isinstance(value, str):
        return len(value.encode(errors="replace"))
    if isinstance(value, bytes):
        return len(value)
    if isinstance(value, dict):
        return 3 + sum(1 + size_of(name) + size_of(inner) for name, inner in value.items())
    if isinstance(value, list | tuple):
        return 3 + sum(1 + size_of(inner) for inner in value)
    if isinstance(value, int) and abs(value) < 10**38:
        return 1 if isinstance(value, bool) else len(str(value).strip("-").rstrip("0")) // 2 + 2
    return 21


def many_limits(count: int, writes: int, tokens: int = 1) -> dict[str, Any]:
    """A bucket with so many limits, each of them used by the last write."""
    limits = {
        f"b_limit-{n}_{part}": 1000 * tokens if part == "tc" else 1000 for n in range(count) for part in PARTS
    }
    gauge = {f"b_wcu_{part}": 1000 * writes if part == "tc" else 1000 for part in PARTS}
    return {"rf": NOW, "born": NOW, "cv": 1, "shard_count": 1, **limits, **gauge}


def full_of_gaps(gaps: int, room: int) -> str:
    """The text of a row that waits for so many changes, as long as it may be."""
    digits = min(room // gaps // 2 - 1, 4_000)
    runs, shards = [], []
    for n in range(gaps):
        runs.append(f"{10 ** (digits - 1) + 2 * n}-{10 ** (digits - 1) + 2 * n + 1}")
        if len(runs) == 990 or n == gaps - 1:
            shards.append(f"{len(shards) + 1}@{NOW}:" + ",".join(runs))
            runs = []
    return ";".join(shards)


def heavy_row(size: int, **more: Any) -> dict[str, Any]:
    """A usage row whose attributes have so many bytes."""
    row = {"window": "hourly", **more}
    return {**row, "ballast": "x" * (size - size_of(row) - len("ballast"))}


class Strict(Wrapper):
    """A store that takes no item and no expression that DynamoDB would not take."""

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self.refused = 0

    async def write_each(self, writes: Sequence[Write]) -> list[Outcome]:
        return [await self._tried(write) for write in writes]

    async def transact_write(self, writes: Sequence[Write]) -> list[Outcome]:
        for write in writes:
            if problem := await self._problem(write):
                raise problem
        return await super().transact_write(writes)

    async def _tried(self, write: Write) -> Outcome:
        if problem := await self._problem(write):
            return Outcome(False, None, failure=problem)
        return (await super().write_each([write]))[0]

    async def _problem(self, write: Write) -> Any:
        _, request = write_request("table", write)
        expressions = [text for name, text in request.items() if name.endswith("Expression")]
        image = apply(write, (await self.inner.batch_get([write.key]))[0])
        if any(len(text) > EXPRESSION_BYTES_MAX for text in expressions):
            reason = "Invalid UpdateExpression: Expression size has exceeded the maximum allowed size;"
        elif sum(text.count("=") + text.count(" AND ") for text in expressions) > OPERATORS_MAX:
            reason = "Invalid UpdateExpression: The expression contains too many operators;"
        elif image.applied and image.item is not None and size_of(dict(image.item)) > ITEM_BYTES_MAX:
            reason = "Item size to update has exceeded the maximum allowed size"
        else:
            return None
        self.refused += 1
        return failure(ServiceError("ValidationException", reason), "UpdateItem", "table", ambiguous=False)


async def plant(store: Any, key: Key, item: Item) -> bool:
    """Let a tenant write a record of its own, if the store takes it."""
    try:
        (outcome,) = await store.write_each([Put(key, item)])
    except ValueError:  # what no store takes
        return False
    applied: bool = outcome.applied
    return applied
