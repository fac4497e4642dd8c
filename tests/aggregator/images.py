"""Buckets, their histories and their records, made by hand."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from zae_limiter.backends.dynamodb.expressions import encode, encode_key
from zae_limiter.repository_protocol import Item, Key
from zae_limiter.schema import bucket_key
from zae_limiter_aggregator import Change
from zae_limiter_aggregator.changes import span_of

NOW = 1_700_000_000_000


def bucket(consumed: Mapping[str, int], writes: int, born: int = NOW, **more: Any) -> Item:
    """A bucket that has consumed so many tokens in so many writes."""
    limits = {
        f"b_{name}_{part}": value
        for name, tokens in consumed.items()
        for part, value in {
            "tk": 100_000 - tokens * 1000,
            "cp": 100_000,
            "ra": 1000,
            "rp": 1000,
            "tc": tokens * 1000,
        }.items()
    }
    gauge = {
        "tk": 1_000_000 - writes * 1000,
        "cp": 1_000_000,
        "ra": 1_000_000,
        "rp": 1000,
        "tc": writes * 1000,
    }
    counted = {f"b_wcu_{part}": value for part, value in gauge.items()}
    return {"rf": born, "born": born, "cv": 1, "shard_count": 1, **limits, **counted, **more}


class Step(NamedTuple):
    """One write to a bucket: what it consumed, and when."""

    tokens: int
    at_ms: int


def history(steps: Sequence[Step], shard_id: int = 0, born: int = NOW, name: str = "tpm") -> list[Change]:
    """The changes of one bucket item, from the write that made it."""
    key = bucket_key("ns", "user-1", "gpt-4", shard_id)
    changes: list[Change] = []
    old, total = None, 0
    for version, step in enumerate(steps, 1):
        total += step.tokens
        new = bucket({name: total}, version, born)
        sequence = str(born + shard_id * 1_000_000 + version)
        changes.append(Change(key, old, new, step.at_ms, span_of(old, new, sequence), sequence))
        old = new
    return changes


def record(key: Key, old: Item | None, new: Item | None, sequence: int, at_ms: int = NOW) -> dict[str, Any]:
    """A stream record as Lambda passes it on."""
    content: dict[str, Any] = {
        "Keys": encode_key(key),
        "SequenceNumber": str(sequence),
        "ApproximateCreationDateTime": at_ms / 1000,
        "StreamViewType": "NEW_AND_OLD_IMAGES",
    }
    for name, image in (("OldImage", old), ("NewImage", new)):
        if image is not None:
            content[name] = encode_key(key) | {a: encode(value) for a, value in image.items()}
    event = "INSERT" if old is None else "REMOVE" if new is None else "MODIFY"
    return {"eventID": str(sequence), "eventName": event, "eventSource": "aws:dynamodb", "dynamodb": content}


def expired(record: dict[str, Any]) -> dict[str, Any]:
    """The same record, by the hand of the service that drops what has expired."""
    return record | {"userIdentity": {"type": "Service", "principalId": "dynamodb.amazonaws.com"}}


def records_of(changes: Sequence[Change]) -> list[dict[str, Any]]:
    return [record(c.key, c.old, c.new, int(c.sequence), c.at_ms) for c in changes]
