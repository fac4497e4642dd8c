"""What usage costs on DynamoDB, as the engine itself counts it."""

from typing import Any

import pytest

from tests.aggregator.images import NOW, Step, history, records_of
from tests.dynamodb.tables import make_table, session
from tests.engines import dynamodb_local
from zae_limiter.backends.dynamodb import DynamoDBBackend
from zae_limiter.backends.dynamodb.boto import Access, BotocoreTransport
from zae_limiter.backends.dynamodb.expressions import Payload, Request, fields_of
from zae_limiter.backends.dynamodb.retries import Calls
from zae_limiter.models import UsageWindow
from zae_limiter.runtime.colour import run_sync
from zae_limiter.runtime.world import World
from zae_limiter_aggregator import AggregatorSettings, process_stream_records


class Metered(BotocoreTransport):
    """A transport that asks for the bill of each call."""

    def __init__(self) -> None:
        super().__init__(Access("eu-west-1", dynamodb_local.endpoint(), session=session(True)))
        self.written, self.read, self.calls = 0.0, 0.0, 0

    async def call(self, operation: str, payload: Request, timeout_ms: float) -> Payload:
        reply = await super().call(
            operation, fields_of(payload) | {"ReturnConsumedCapacity": "INDEXES"}, timeout_ms
        )
        bill: Any = reply["ConsumedCapacity"]
        self.calls += 1
        if operation == "BatchGetItem":
            self.read += sum(part["CapacityUnits"] for part in bill)
        else:
            self.written += bill["CapacityUnits"]
        return reply


@pytest.mark.parametrize(
    ("windows", "first", "next_"),
    [
        # A new row is written to the table and to two indexes; after that it costs one unit.
        ((UsageWindow.HOURLY, UsageWindow.DAILY), 6.0, 2.0),
        (tuple(UsageWindow), 9.0, 3.0),
    ],
)
def test_a_thousand_acquires_in_batches_of_a_hundred(
    windows: tuple[UsageWindow, ...], first: float, next_: float
) -> None:
    """One unit for each row and batch: at most three in a hundred records."""
    wire = Metered()
    backend = DynamoDBBackend(Calls(make_table(with_stream=True), wire, World(), 20_000))
    records = records_of(history([Step(3, NOW + second * 1000) for second in range(1000)]))
    bills = []
    for at in range(0, 1000, 100):
        before = wire.written
        settings = AggregatorSettings(windows)
        tally = run_sync(process_stream_records(records[at : at + 100], backend, World(), settings))
        assert (tally.failed, tally.rows_written) == ({}, len(windows))
        bills.append(wire.written - before)
    assert bills == [first] + [next_] * 9
    assert next_ <= 3
    # One read for all rows of a batch and one write for each; a strong read of a small row is one unit.
    assert wire.calls == 10 * (1 + len(windows))
    assert wire.read <= 10 * len(windows)
    before = wire.written
    run_sync(process_stream_records(records, backend, World(), AggregatorSettings(windows)))
    assert wire.written == before, "a replay writes nothing"
    run_sync(backend.close())
