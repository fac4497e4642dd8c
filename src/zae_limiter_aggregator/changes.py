"""From a stream's record to a change of one item, and which records matter at all. Pure.

Delivery is at least once and in no promised order, so a change must say by itself which one it is. A
bucket item counts the writes to it (``b_wcu_tc``), and ``born`` tells the items apart that had the same
key one after another. A change therefore is a *span* of the versions of one life: ``(since, until]``.
A source without such a count, but in order, numbers its changes itself: the span then reaches back to
the beginning, and everything up to it has been seen.

Keys begin with the id of a namespace, so records are told apart by their sort keys alone.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any, NamedTuple

from zae_limiter.backends.dynamodb.expressions import decode_item, decode_key
from zae_limiter.engine.account import WRITE_MILLI
from zae_limiter.engine.shares import SHARDS_MAX
from zae_limiter.exceptions import ValidationError
from zae_limiter.naming import WCU
from zae_limiter.repository_protocol import Item, Key
from zae_limiter.schema import limit_attributes, number, parse_bucket_pk, sk_audit, sk_state

TTL_SERVICE = "dynamodb.amazonaws.com"

FILTERS: tuple[dict[str, Any], ...] = (
    {"eventName": ["INSERT", "MODIFY"], "dynamodb": {"Keys": {"SK": {"S": [sk_state()]}}}},
    {
        "eventName": ["REMOVE"],
        "userIdentity": {"type": ["Service"], "principalId": [TTL_SERVICE]},
        "dynamodb": {"Keys": {"SK": {"S": [{"prefix": sk_audit("")}]}}},
    },
)
"""The patterns of the event source mapping: writes to buckets, and audit events that expired."""

TIME_MS_MAX = 32_503_680_000_000  # the year 3000, as far as usage is counted
_SEQUENCE = re.compile(r"[0-9]{1,60}")

IN_ORDER = -1  # the life of changes that are numbered by their source, which delivers them in order
CLOSED = -2  # stands for the lives that count no more; its versions are the lives themselves


class Span(NamedTuple):
    """The versions of an item that a change is made of: after ``since``, up to ``until``."""

    life: int
    since: int
    until: int


class Change(NamedTuple):
    """One write to one item, as the store saw it."""

    key: Key
    old: Item | None
    new: Item | None
    at_ms: int
    span: Span
    sequence: str = ""  # how the source calls this record when it is to be delivered again


class Expired(NamedTuple):
    """An item that its ``ttl`` removed."""

    key: Key
    item: Item
    at_ms: int
    sequence: str = ""


def numbered(position: int) -> Span:
    """The span of a change from a source that is in order."""
    return Span(IN_ORDER, 0, position)


def change_of(record: Mapping[str, Any]) -> Change | Expired | None:
    """What a DynamoDB stream record tells, as Lambda or ``GetRecords`` gives it; ``None`` if nothing."""
    content = record["dynamodb"]
    key, at_ms = decode_key(content["Keys"]), _time_ms(content["ApproximateCreationDateTime"])
    sequence = str(content["SequenceNumber"])
    if key.sort == sk_state() and "/BUCKET#" in key.partition:
        if parse_bucket_pk(key.partition).shard_id >= SHARDS_MAX:
            raise ValidationError("bucket key", key.partition, f"a bucket has at most {SHARDS_MAX} shards")
        old, new = decode_item(content.get("OldImage")), decode_item(content.get("NewImage"))
        return Change(key, old, new, at_ms, span_of(old, new, sequence), sequence)
    # The images of all other records are not looked at: whatever is in them must not stop the stream.
    if not key.sort.startswith(sk_audit("")) or "NewImage" in content:
        return None
    # Lambda writes the names of an identity small, GetRecords writes them large.
    who = {name.lower(): value for name, value in (record.get("userIdentity") or {}).items()}
    by_ttl = who.get("type") == "Service" and who.get("principalid") == TTL_SERVICE
    gone = decode_item(content.get("OldImage")) if by_ttl else None
    return None if gone is None else Expired(key, gone, at_ms, sequence)


def sequence_of(record: Any) -> str:
    """The name by which a record is reported; empty for one that has none and cannot be told apart."""
    try:
        sequence = str(record["dynamodb"]["SequenceNumber"])
    except Exception:  # it is no record of a stream at all
        return ""
    return sequence if _SEQUENCE.fullmatch(sequence) else ""


def span_of(old: Item | None, new: Item | None, sequence: str) -> Span:
    """Which versions of the item a write made.

    The changes of a writer that does not count have only their place in the stream.
    """
    count = limit_attributes(WCU).tc
    life, since, until = _life_of(new), 0, number(new or {}, count) // WRITE_MILLI
    if old is not None and _life_of(old) == life:
        since = max(0, number(old, count) // WRITE_MILLI)
    return Span(life, since, until) if since < until else numbered(int(sequence))


def _life_of(image: Item | None) -> int:
    """When an item was made; what is below that is used for other things."""
    return max(0, number(image or {}, "born"))


def _time_ms(time: float | datetime) -> int:
    at_ms = round((time.timestamp() if isinstance(time, datetime) else time) * 1000)
    if not 0 <= at_ms <= TIME_MS_MAX:
        raise ValidationError("ApproximateCreationDateTime", time, "it is not between 1970 and 3000")
    return at_ms
