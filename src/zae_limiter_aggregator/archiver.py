"""Audit events that expired, kept for good: one gzip file of JSON lines for each batch.

    audit/year=2026/month=01/day=31/audit-{request_id}-{ts}.jsonl.gz

A line is the stored event without its index entries, and the id of its namespace. Items are not
interpreted, so whatever was removed is archived. Where the files go is a ``put`` of three lines.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Protocol

from zae_limiter.schema import INDEXES

from .changes import Expired

_INDEX_ENTRIES = frozenset(f"{index}{part}" for index in INDEXES for part in ("PK", "SK"))


class Archive(Protocol):
    def put(self, name: str, content: bytes) -> None:
        """Keep a file, or raise."""


class S3Archive:
    """A bucket; its client is made when there is something to keep."""

    def __init__(self, bucket: str, client: Any = None) -> None:
        self.bucket = bucket
        self._client = client

    def put(self, name: str, content: bytes) -> None:
        if self._client is None:
            import botocore.session

            self._client = botocore.session.Session().create_client("s3")
        self._client.put_object(Bucket=self.bucket, Key=name, Body=content, ContentType="application/gzip")


def object_name(request_id: str, at_ms: int) -> str:
    """Where the events of one batch go, by the time at which the first of them was removed."""
    at = datetime.fromtimestamp(at_ms // 1000, UTC)
    return f"audit/{at:year=%Y/month=%m/day=%d}/audit-{request_id}-{at:%Y%m%dT%H%M%SZ}.jsonl.gz"


def pack(events: Sequence[Expired]) -> bytes:
    """Events as a compressed file; the same events make the same bytes."""
    lines = []
    for event in events:
        kept = {name: value for name, value in event.item.items() if name not in _INDEX_ENTRIES}
        kept["namespace_id"] = event.key.partition.partition("/")[0]
        # What JSON has no word for was written by a stranger, and is kept as Python shows it.
        lines.append(json.dumps(kept, sort_keys=True, separators=(",", ":"), default=repr) + "\n")
    return gzip.compress("".join(lines).encode(), mtime=0)


def archive_events(archive: Archive, events: Sequence[Expired], request_id: str) -> str | None:
    """Keep the events of one batch; the name of their file, if there were any."""
    unique = list({event.key: event for event in events}.values())  # one may have been delivered twice
    if not unique:
        return None
    name = object_name(request_id, unique[0].at_ms)
    archive.put(name, pack(unique))
    return name
