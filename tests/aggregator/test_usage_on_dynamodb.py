"""Usage on the real stream of DynamoDB Local: it adds up to the client's own books, whatever is delivered."""

import asyncio
import random
from typing import Any

from tests.aggregator.known_usage import ALL_WINDOWS, batches, booked, days_of_work, usage_rows
from tests.dynamodb.tables import make_table
from tests.engines import dynamodb_local
from zae_limiter.backends.dynamodb import open_backend
from zae_limiter.backends.memory import MemoryBackend
from zae_limiter.repository_protocol import Backend
from zae_limiter.runtime.colour import run_sync
from zae_limiter.runtime.world import World
from zae_limiter_aggregator import AggregatorSettings, Tally, process_stream_records

ENTITIES = [f"user-{n}" for n in range(50)]
HOURS = [0, 1, 2, 25, 26, 27, 47, 70]
SETTINGS = AggregatorSettings(ALL_WINDOWS, tend_buckets=False)


def deliver(backend: Backend, parts: Any) -> Tally:
    total = Tally()
    for part in parts:
        total.add(run_sync(process_stream_records(part, backend, World(), SETTINGS)))
    assert total.failed == {}
    return total


def test_usage_equals_the_books_of_the_client() -> None:
    """10,000 acquires, adjusts and refunds of 50 entities in three days: exact per limit, hour, day, month.

    Then the whole stream comes again, twice over, in a random order and cut anew: no row changes. And
    where it comes like that from the beginning, it makes the same rows, byte for byte.
    """
    table, rng = make_table(with_stream=True), random.Random(1)
    client, stream, namespace_id = asyncio.run(days_of_work(table, ENTITIES, HOURS, 18))
    operations = client.operations
    assert sum(operations.values()) - operations["refusal"] >= 10_000
    assert min(operations["acquire"], operations["adjust"], operations["refund"]) > 500

    backend = open_backend(dynamodb_local.url(table, timeout_ms=20_000), sync=True)
    deliver(backend, batches(stream.records, rng, 1000))
    rows = usage_rows(backend, namespace_id, ENTITIES)
    assert booked(rows) == client.books

    again = stream.records * 2
    rng.shuffle(again)
    assert deliver(backend, batches(again, rng, 1000)).rows_written == 0
    assert usage_rows(backend, namespace_id, ENTITIES) == rows
    run_sync(backend.close())

    elsewhere = MemoryBackend()
    deliver(elsewhere, batches(again, rng))
    assert usage_rows(elsewhere, namespace_id, ENTITIES) == rows
