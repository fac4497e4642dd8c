"""A DynamoDB stream as a source: its shards in the order of their generations, with notes in the table.

A stream splits its shards every few hours. The changes of an item stay in order only if a parent is read
to its end before its children. How far each was read is noted in the table behind every batch that
mattered; a note is itself a record of the stream, so nothing is noted for records that did not.
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass
from typing import Any, Final

from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from zae_limiter.backends.dynamodb import parse_url
from zae_limiter.backends.dynamodb.boto import Access
from zae_limiter.exceptions import InfrastructureNotFoundError, RateLimiterUnavailable
from zae_limiter.repository_protocol import Backend, Update, Value
from zae_limiter.runtime.world import World
from zae_limiter.schema import checkpoint_key, iso_time, text

from .archiver import Archive
from .changes import sequence_of
from .processor import BATCH_RECORDS_MAX, AggregatorSettings, Tally, process_stream_records

logger: Final = logging.getLogger("zae_limiter_aggregator")

REFRESH_MS = 10_000  # how often the list of a stream's shards is read again; they live for about four hours
CHECKPOINT_EVERY_RECORDS = 10_000  # how many records that did not matter are worth a note
CHECKPOINT_SECONDS = 3 * 86_400  # how long a note is kept; a stream keeps its records for a day


@dataclass
class StreamShard:
    """One shard of a stream, and how far it was read."""

    shard_id: str
    parent_id: str | None
    position: str | None = None
    noted: str | None = None
    done: bool = False
    iterator: str | None = None
    unnoted: int = 0


class StreamSource:
    """The stream of a DynamoDB table, shard by shard, children after their parents.

    ``client`` is botocore's for DynamoDB Streams; closing the source closes it.
    """

    def __init__(
        self,
        backend: Backend,
        client: Any,
        stream_arn: str,
        world: World,
        settings: AggregatorSettings,
        archive: Archive | None = None,
    ) -> None:
        self._backend, self._client, self._arn = backend, client, stream_arn
        self._world, self._settings, self._archive = world, settings, archive
        self._shards: dict[str, StreamShard] = {}
        self._refresh_at_ms = -math.inf

    async def step(self) -> Tally:
        total = Tally()
        while True:
            if self._world.ticks_ms() >= self._refresh_at_ms:
                await self._refresh()
            waiting = {name: shard for name, shard in self._shards.items() if not shard.done}
            # The parent of a shard holds what happened before to the same items.
            due = [shard for shard in waiting.values() if shard.parent_id not in waiting]
            for shard in due:
                total.add(await self._read(shard))
            # Behind a shard that ended without records, its children may have some.
            if total.records or not any(shard.done for shard in due):
                return total

    async def close(self) -> None:
        """Note where the reading ended, also of records that were not worth a note."""
        try:
            for shard in self._shards.values():
                if shard.position != shard.noted:
                    await self._note(shard)
        finally:
            self._client.close()

    async def _read(self, shard: StreamShard) -> Tally:
        reply = self._records(shard)
        records, request_id = reply["Records"], self._world.new_ulid()
        tally = await process_stream_records(
            records, self._backend, self._world, self._settings, self._archive, request_id
        )
        done = [sequence_of(record) for record in records]
        if (again_from := tally.again_from) is not None:
            done = [sequence for sequence in done if sequence and int(sequence) < again_from]
            shard.iterator = None  # the next one stands behind what is done with
        else:
            shard.iterator = reply.get("NextShardIterator")
            shard.done = shard.iterator is None
        if done:
            shard.position = done[-1]
            shard.unnoted += len(done)
        mattered = done and (tally.changes or tally.archived)
        if mattered or shard.done or shard.unnoted >= CHECKPOINT_EVERY_RECORDS:
            await self._note(shard)
        if shard.done:
            self._refresh_at_ms = -math.inf
        return tally

    def _records(self, shard: StreamShard) -> dict[str, Any]:
        """The next records of a shard; an iterator that is too old is replaced.

        Where records are gone, which a stream keeps for a day, reading goes on with the oldest there are.
        """
        for _ in range(2):
            try:
                if shard.iterator is None:
                    where = {"ShardIteratorType": "TRIM_HORIZON"}
                    if shard.position is not None:
                        where = {
                            "ShardIteratorType": "AFTER_SEQUENCE_NUMBER",
                            "SequenceNumber": shard.position,
                        }
                    place = {"StreamArn": self._arn, "ShardId": shard.shard_id, **where}
                    shard.iterator = str(self._ask("get_shard_iterator", **place)["ShardIterator"])
                return self._ask("get_records", ShardIterator=shard.iterator, Limit=BATCH_RECORDS_MAX)
            except RateLimiterUnavailable as error:
                code = getattr(error.__cause__, "response", {}).get("Error", {}).get("Code")
                if code not in ("ExpiredIteratorException", "TrimmedDataAccessException"):
                    raise
                if code == "TrimmedDataAccessException":
                    lost = {"shard": shard.shard_id, "after": shard.position}
                    logger.error("stream records were lost", extra=lost)
                    shard.position = None
                shard.iterator = None
        raise RateLimiterUnavailable(f"stream shard {shard.shard_id!r} cannot be read")

    def _ask(self, operation: str, **arguments: Any) -> dict[str, Any]:
        try:
            reply: dict[str, Any] = getattr(self._client, operation)(**arguments)
        except (BotoCoreError, ClientError) as error:
            raise RateLimiterUnavailable(f"DynamoDB Streams {operation} failed: {error}") from error
        return reply

    async def _refresh(self) -> None:
        """Read the list of shards, and the notes of those that are new to this process."""
        self._refresh_at_ms = self._world.ticks_ms() + REFRESH_MS
        described: list[dict[str, Any]] = []
        after: dict[str, str] = {}
        while True:
            reply = self._ask("describe_stream", StreamArn=self._arn, **after)["StreamDescription"]
            described += reply["Shards"]
            if not (last := reply.get("LastEvaluatedShardId")):
                break
            after = {"ExclusiveStartShardId": last}
        parents = {shard["ShardId"]: shard.get("ParentShardId") for shard in described}
        self._shards = {name: shard for name, shard in self._shards.items() if name in parents}
        new = [name for name in parents if name not in self._shards]
        notes = await self._backend.batch_get([checkpoint_key(name) for name in new]) if new else []
        for name, note in zip(new, notes, strict=True):
            position, done = text(note or {}, "position"), (note or {}).get("done") is True
            self._shards[name] = StreamShard(name, parents[name], position, position, done)

    async def _note(self, shard: StreamShard) -> None:
        now_ms = self._world.now_ms()
        ttl = now_ms // 1000 + CHECKPOINT_SECONDS
        noted: dict[str, Value] = {
            "position": shard.position,
            "done": shard.done,
            "updated_at": iso_time(now_ms),
        }
        write = Update(checkpoint_key(shard.shard_id), set={**noted, "ttl": ttl})
        (outcome,) = await self._backend.write_each([write])
        if outcome.failure is not None:  # some records will be read twice, no more
            logger.warning("no checkpoint", extra={"shard": shard.shard_id, "reason": str(outcome.failure)})
            return
        shard.noted, shard.unnoted = shard.position, 0


def stream_of(url: str) -> tuple[Any, str]:
    """A client for the stream of a table, and the stream's name."""
    table, options = parse_url(url)
    access = Access(**options)
    session = access.botocore_session()
    reading = Config(retries={"mode": "standard", "total_max_attempts": 5})  # reads may be repeated
    place = {"region_name": access.region, "endpoint_url": access.endpoint_url, "config": reading}
    tables = session.create_client("dynamodb", **place)
    try:
        stream_arn = tables.describe_table(TableName=table)["Table"].get("LatestStreamArn")
    finally:
        tables.close()
    if stream_arn is None:
        raise InfrastructureNotFoundError(
            f"table {table!r} has no stream; switch one on with NEW_AND_OLD_IMAGES, "
            f"or deploy the table with: zae-limiter deploy --name {table}"
        )
    return session.create_client("dynamodbstreams", **place), str(stream_arn)
