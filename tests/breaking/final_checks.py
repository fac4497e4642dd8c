"""What holds when a storm is over: the clients' books, the families, and the law of every bucket.

Buckets are read past the product, as plain numbers, so that a mistake in reading cannot hide one in writing.
"""

import json
import sqlite3
import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from tests.breaking.books import Ledger
from tests.breaking.contested_buckets import FAMILY, RESOURCE, limits_of
from zae_limiter import RateLimitExceeded, SyncRateLimiter
from zae_limiter.engine.law import Rate, gain

Bucket = Mapping[str, Any]
"""One stored item: a bucket, or one shard of it."""

STATE = "#STATE"
WAIT_SECONDS_MAX = 20
LIMITS = ("rpm", "tpm")


def buckets_of_file(path: Path) -> list[Bucket]:
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        rows = connection.execute("SELECT body FROM items WHERE sk = ?", (STATE,)).fetchall()
    return [json.loads(body) for (body,) in rows]


def buckets_of_table(driver: Any, table: str) -> list[Bucket]:
    def plain(value: dict[str, Any]) -> object:
        ((kind, content),) = value.items()
        return int(content) if kind == "N" else content

    pages = driver.get_paginator("scan").paginate(
        TableName=table,
        ConsistentRead=True,
        FilterExpression="SK = :state",
        ExpressionAttributeValues={":state": {"S": STATE}},
    )
    items = [item for page in pages for item in page["Items"]]
    return [{name: plain(value) for name, value in item.items()} for item in items]


def by_entity(buckets: Sequence[Bucket]) -> dict[str, list[Bucket]]:
    shards: defaultdict[str, list[Bucket]] = defaultdict(list)
    for bucket in buckets:
        shards[bucket["entity_id"]].append(bucket)
    return dict(shards)


def consumed_milli(buckets: Sequence[Bucket]) -> Counter[tuple[str, str]]:
    """The store's books: what each entity has used of each limit, all shards together."""
    used: Counter[tuple[str, str]] = Counter()
    for bucket in buckets:
        for name in LIMITS:
            used[bucket["entity_id"], name] += bucket.get(f"b_{name}_tc", 0)
    return used


def family_complaints(ledger: Ledger, used_milli: Mapping[tuple[str, str], int]) -> list[str]:
    """A parent has used what its children have, but for operations that may be half done."""
    found = []
    for parent_id in sorted(set(FAMILY.values())):
        children = [child_id for child_id, parent in FAMILY.items() if parent == parent_id]
        for name in LIMITS:
            theirs = sum(used_milli.get((child_id, name), 0) for child_id in children)
            open_milli = 1000 * sum(ledger.high[c, name] - ledger.low[c, name] for c in children)
            if abs(used_milli.get((parent_id, name), 0) - theirs) > open_milli:
                found.append(
                    f"{parent_id} has used {used_milli.get((parent_id, name), 0)} of {name}, its children "
                    f"{theirs}; only {open_milli} of that is open"
                )
    return found


def law_complaints(shards: Mapping[str, Sequence[Bucket]], now_ms: int) -> list[str]:
    """No token is made or lost: what is there and what was used is the capacity and what accrued.

    A bucket that was full at times has lost what would have overflown, at most all that accrued. Every
    shard rounds for itself, which is less than a millitoken whenever it is looked at.
    """
    found = []
    for entity_id, parts in shards.items():
        born_ms = min(part.get("born", part["rf"]) for part in parts)
        for limit in limits_of(entity_id):
            whole, names = Rate.of(limit), {a: f"b_{limit.name}_{a}" for a in ("tk", "cp", "ra", "rp", "tc")}
            mine = [part for part in parts if names["cp"] in part]
            capacity = sum(part[names["cp"]] for part in mine)
            refill = sum(part[names["ra"]] for part in mine)
            if (capacity, refill) != (whole.capacity_milli, whole.refill_amount_milli):
                found.append(f"{entity_id}: the shares of {limit.name} are {capacity} and {refill}")
            total = sum(
                part[names["tk"]]
                + gain(Rate(part[names["cp"]], part[names["ra"]], part[names["rp"]]), part["rf"], now_ms)
                + part[names["tc"]]
                for part in mine
            )
            rounding = 2 * len(mine) if len(mine) > 1 else 0
            accrued = gain(whole, born_ms, now_ms)
            if not whole.capacity_milli - rounding <= total <= whole.capacity_milli + accrued + rounding:
                found.append(
                    f"{entity_id}: {total} of {limit.name} was used or is there, "
                    f"from {whole.capacity_milli} and {accrued} that accrued"
                )
            if any(part[names["tc"]] < 0 for part in mine) and len(mine) == 1:
                found.append(f"{entity_id}: more of {limit.name} was given back than ever taken")
    return found


def use_complaints(limiter: SyncRateLimiter, entities: Sequence[str]) -> list[str]:
    """A newcomer can use every bucket, at the latest after the wait that it is told."""
    found = []
    for entity_id in entities:
        deadline = time.monotonic() + WAIT_SECONDS_MAX
        while True:
            try:
                with limiter.acquire(entity_id, RESOURCE, {"rpm": 1, "tpm": 1}):
                    break
            except RateLimitExceeded as refused:
                if time.monotonic() + refused.retry_after_seconds > deadline:
                    found.append(f"{entity_id} is still refused: {refused}")
                    break
                time.sleep(refused.retry_after_seconds)
    return found


def complaints(ledger: Ledger, buckets: Sequence[Bucket]) -> list[str]:
    """Everything that is wrong with a store at rest."""
    used_milli = consumed_milli(buckets)
    found = ledger.complaints(used_milli) + family_complaints(ledger, used_milli)
    return found + law_complaints(by_entity(buckets), time.time_ns() // 1_000_000)
