"""One tenant spoils its own records; everybody else's usage is exact and on time, and all of it is told."""

import json
import logging
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from click.testing import CliRunner

from tests.aggregator.images import NOW, Step, bucket, history, record, records_of
from tests.aggregator.known_usage import Stream, usage_rows
from tests.aggregator.poison import Strict, full_of_gaps, heavy_row, many_limits, plant
from tests.dynamodb.tables import make_table
from tests.engines import dynamodb_local
from tests.odd_stores import HotMemory
from zae_limiter.backends import open_backend as open_store
from zae_limiter.backends.dynamodb import open_backend
from zae_limiter.backends.dynamodb.transport import CANCELLED, NoReply, ServiceError, failure
from zae_limiter.backends.memory import MemoryBackend
from zae_limiter.cli.aggregate import TOLD_MAX, summary
from zae_limiter.cli.app import program
from zae_limiter.exceptions import RateLimiterUnavailable, ValidationError
from zae_limiter.models import LIMITS_MAX, UsageWindow
from zae_limiter.records.items import usage_row, window_of
from zae_limiter.repository_protocol import Backend, Item, Key, Outcome, Put, Update, Write
from zae_limiter.runtime.colour import run_sync
from zae_limiter.runtime.world import World
from zae_limiter.schema import bucket_key, usage_key
from zae_limiter.testing import ManualClock
from zae_limiter.testing.stores import Wrapper
from zae_limiter_aggregator import AggregatorSettings, Tally, process_stream_records
from zae_limiter_aggregator import handler as lambda_function
from zae_limiter_aggregator.processor import ROWS_AT_ONCE, TENDING_MS_MAX
from zae_limiter_aggregator.usage import SEEN

EVIL, GOOD = "evil", "good"
HUGE = 409_540
"""As much as fits beside the longest key: one counter more is too much."""

GAPS = 3_950


def usage_place(at_ms: int, window: UsageWindow, entity_id: str = "user-1") -> Key:
    return usage_key(EVIL, entity_id, "gpt-4", window_of(window, at_ms)[0])


def planted(backend: Backend, at_ms: int, kind: str) -> None:
    """Before anybody counts, the tenant writes rows of its own where its usage will be counted."""
    for window in (UsageWindow.HOURLY, UsageWindow.DAILY):
        for hours in (0, 1):  # the hour may turn while the test runs
            key = usage_place(at_ms + hours * 3_600_000, window)
            if kind == "400 KB row":
                row = heavy_row(HUGE, **{SEEN: "0@1:0-1"})
            elif kind == "gaps":
                row = heavy_row(HUGE, **{SEEN: full_of_gaps(GAPS, HUGE - 1_000)})
            else:
                return
            assert run_sync(plant(backend, key, row))


def spoiled(backend: Backend, kind: str) -> None:
    """Writes of the tenant to its bucket: two that count, or two that are no writes of ours."""
    key = bucket_key(EVIL, "user-1", "gpt-4")
    for turn in (1, 2):
        image: Item = bucket({"tpm": turn}, turn)
        if kind == "320 limits":
            image = many_limits(320, turn, turn)
        elif kind == "400 KB bucket":
            image = {**many_limits(20, turn, turn), "ballast": "x" * 390_000}
        assert run_sync(plant(backend, key, image))


def served(backend: Backend, at: int) -> None:
    """Somebody else's writes."""
    for turn in (1, 2):
        key = bucket_key(GOOD, f"user-{at}", "gpt-4")
        assert run_sync(plant(backend, key, bucket({"tpm": 5 * turn}, turn)))


def used(backend: Backend, namespace_id: str, entities: int) -> list[Any]:
    """What was counted for each entity, by kind of window."""
    found = []
    for at in range(entities):
        rows = usage_rows(backend, namespace_id, [f"user-{at}"]).values()
        for window in ("hourly", "daily"):
            found.append(sum(int(str(row["tpm"])) for row in rows if row["window"] == window))
    return found


KINDS = ("320 limits", "400 KB row", "gaps", "400 KB bucket")


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, Backend]]:
    """A table with a stream, beside which the function is deployed."""
    name = make_table(with_stream=True)
    monkeypatch.setenv("TABLE_NAME", name)
    monkeypatch.setenv("AWS_REGION", "eu-west-1")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-west-1")
    monkeypatch.setenv("AWS_ENDPOINT_URL_DYNAMODB", dynamodb_local.endpoint())
    lambda_function.service.cache_clear()
    backend = open_backend(dynamodb_local.url(name, timeout_ms=60_000), sync=True)
    yield name, backend
    run_sync(backend.close())
    run_sync(lambda_function.service().backend.close())
    lambda_function.service.cache_clear()


@pytest.mark.parametrize("kind", KINDS)
def test_the_function_serves_the_others(table: tuple[str, Backend], kind: str) -> None:
    """Real records of a real stream; nothing is asked for again, and the rest counts in the same batch."""
    name, backend = table
    world = World()
    planted(backend, world.now_ms(), kind)
    served(backend, 0)
    spoiled(backend, kind)
    served(backend, 1)
    stream = Stream(name)
    stream.drain(world.now_ms())
    for _ in range(2):  # delivered twice
        answer = lambda_function.handler({"Records": stream.records}, None)
        assert answer["batchItemFailures"] == []
        assert (answer["passed_over"] > 0) == (kind != "400 KB bucket")
        assert used(backend, GOOD, 2) == [10, 10, 10, 10]


@pytest.mark.parametrize("kind", KINDS)
def test_the_program_serves_the_others(table: tuple[str, Backend], kind: str) -> None:
    """It ends by itself, has counted everybody else, and says what it passed over."""
    name, backend = table
    planted(backend, World().now_ms(), kind)
    served(backend, 0)
    spoiled(backend, kind)
    served(backend, 1)
    url = dynamodb_local.url(name, timeout_ms=60_000)
    result = CliRunner().invoke(program, ["aggregate", "--store", url, "--once", "--output", "json"])
    assert result.exit_code == 0, result.output
    counts = json.loads(result.stdout)
    assert used(backend, GOOD, 2) == [10, 10, 10, 10]
    assert (counts["passed_over"] > 0) == (kind != "400 KB bucket")
    if counts["passed_over"]:
        assert "passed over: " in result.stderr
        assert EVIL in result.stderr


def test_the_summary_names_what_was_lost() -> None:
    """And says nothing of it if there is nothing."""
    assert "passed" not in summary(Tally(records=5).counts())
    lost = summary(Tally(passed_over=3, left_out=1_000, closed=2).counts())
    assert lost.endswith("events archived, 3 passed over, 1,000 amounts left out, 2 gaps closed")


def test_the_program_tells_some_of_many_complaints(tmp_path: Any) -> None:
    """A tenant that writes nonsense all day fills no screen."""
    url = f"sqlite:///{tmp_path}/limits.db"
    backend = open_store(url, sync=True, world=World())
    run_sync(backend.setup())
    assert CliRunner().invoke(program, ["aggregate", "--store", url, "--once"]).exit_code == 0
    for turn in range(TOLD_MAX + 5):
        run_sync(plant(backend, bucket_key(EVIL, f"user-{turn}", "gpt-4"), many_limits(40, 1, 1)))
    run_sync(backend.close())
    result = CliRunner().invoke(program, ["aggregate", "--store", url, "--once"])
    assert result.stderr.count("passed over: ") == TOLD_MAX
    assert result.stderr.endswith("further ones are only counted\n")
    assert f"{TOLD_MAX + 5} passed over" in result.stdout


# What can never succeed.


@pytest.mark.parametrize(
    ("error", "impossible"),
    [
        (ServiceError("ValidationException", "Item size to update has exceeded the maximum"), True),
        (ServiceError("ItemCollectionSizeLimitExceededException", "too large"), True),
        (ServiceError(CANCELLED, "no", {"CancellationReasons": [{"Code": "ValidationError"}]}), True),
        (
            ServiceError(
                CANCELLED,
                "no",
                {"CancellationReasons": [{"Code": "ValidationError"}, {"Code": "TransactionConflict"}]},
            ),
            False,
        ),
        (ServiceError("ThrottlingException", "slow down"), False),
        (ServiceError("AccessDeniedException", "no"), False),
        (ServiceError("ResourceNotFoundException", "no table"), False),
        (NoReply("lost", ambiguous=True), False),
    ],
    ids=str,
)
def test_what_can_never_succeed(error: Any, impossible: bool) -> None:
    """Only what the store refuses for what it says; an answer that was lost before may hide an arrival."""
    assert failure(error, "UpdateItem", "t", ambiguous=False).impossible is impossible
    assert failure(error, "UpdateItem", "t", ambiguous=True).impossible is False
    assert RateLimiterUnavailable("").impossible is False


class Picky(Wrapper):
    """A store that will never take some rows: it answers so, or breaks on the way."""

    def __init__(self, inner: Backend, raises: bool) -> None:
        super().__init__(inner)
        self.raises, self.asked = raises, 0

    async def write_each(self, writes: Sequence[Write]) -> list[Outcome]:
        self.asked += 1
        if self.raises and any(write.key.partition.startswith(EVIL) for write in writes):
            raise ValidationError("number", 10**40, "a store keeps at most 38 digits")
        return [
            Outcome(False, None, failure=RateLimiterUnavailable("too large", impossible=True))
            if write.key.partition.startswith(EVIL)
            else (await self.inner.write_each([write]))[0]
            for write in writes
        ]


def of_evil(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    for one in records:
        one["dynamodb"]["Keys"]["PK"]["S"] = one["dynamodb"]["Keys"]["PK"]["S"].replace("ns/", f"{EVIL}/")
    return records


@pytest.mark.parametrize("raises", [False, True])
def test_what_can_never_be_written_is_passed_over(raises: bool, caplog: pytest.LogCaptureFixture) -> None:
    """It is tried once, told with its place, and not delivered again; the others are written."""
    store = MemoryBackend()
    picky = Picky(store, raises)
    records = [*of_evil(records_of(history([Step(3, NOW)]))), *records_of(history([Step(4, NOW)]))]
    settings = AggregatorSettings(tend_buckets=False)
    tally = run_sync(process_stream_records(records, picky, World(), settings))
    assert tally == Tally(2, 2, rows_written=2, passed_over=2)
    assert [row["tpm"] for row in usage_rows(store, "ns", ["user-1"]).values()] == [4, 4]
    told = [one for one in caplog.records if one.message == "passed over"]
    assert len(told) == 2
    assert all("can never be written" in one.reason and EVIL in one.reason for one in told)  # type: ignore[attr-defined]
    assert picky.asked == (5 if raises else 1)


@pytest.mark.parametrize(("count", "is_counted"), [(LIMITS_MAX, True), (LIMITS_MAX + 1, False)])
def test_a_bucket_with_more_limits_than_there_can_be_is_not_counted(count: int, is_counted: bool) -> None:
    """Nobody configured them, and nobody looks after it either."""
    store = HotMemory(ManualClock(NOW).world)
    image = {**many_limits(count, 1), "b_limit-0_tk": 0}
    key = bucket_key(EVIL, "user-1", "gpt-4")
    run_sync(store.write_each([Put(key, image)]))
    tally = run_sync(
        process_stream_records(
            [record(key, None, image, 7)], store, ManualClock(NOW + 90_000).world, AggregatorSettings()
        )
    )
    assert (tally.passed_over, tally.rows_written) == ((0, 2) if is_counted else (1, 0))
    assert tally.refills_written == is_counted
    assert tally.failed == {}


def test_rows_are_read_some_at_a_time() -> None:
    """However large a tenant made them, an answer holds them; each group is one read."""
    store = MemoryBackend()
    reads = []

    class Watched(Wrapper):
        async def batch_get(self, keys: Sequence[Key]) -> Any:
            reads.append(len(keys))
            return await super().batch_get(keys)

    images = [(bucket_key("ns", f"user-{n}", "gpt-4"), bucket({"tpm": 1}, 1)) for n in range(30)]
    records = [record(key, None, image, n + 1) for n, (key, image) in enumerate(images)]
    tally = run_sync(
        process_stream_records(records, Watched(store), World(), AggregatorSettings(tend_buckets=False))
    )
    assert (tally.failed, tally.rows_written) == ({}, 60)
    assert reads == [ROWS_AT_ONCE, ROWS_AT_ONCE, 60 - 2 * ROWS_AT_ONCE]


def test_a_group_that_fails_does_not_fail_the_next() -> None:
    """Only the records of its rows are given back."""
    store = MemoryBackend()

    class Shaky(Wrapper):
        async def batch_get(self, keys: Sequence[Key]) -> Any:
            if any(key.partition.startswith(EVIL) for key in keys):
                raise RateLimiterUnavailable("throttled until its deadline")
            return await super().batch_get(keys)

    images = [
        (bucket_key(EVIL if n < 13 else GOOD, f"user-{n}", "gpt-4"), bucket({"tpm": 1}, 1)) for n in range(40)
    ]
    records = [record(key, None, image, n + 1) for n, (key, image) in enumerate(images)]
    tally = run_sync(
        process_stream_records(records, Shaky(store), World(), AggregatorSettings(tend_buckets=False))
    )
    assert {str(n + 1) for n in range(13)} <= set(tally.failed)
    assert not set(tally.failed) & {str(n + 1) for n in range(2 * ROWS_AT_ONCE, 40)}
    assert tally.rows_written > 0


def test_slow_buckets_do_not_keep_the_stream_waiting(caplog: pytest.LogCaptureFixture) -> None:
    """Looking after buckets is worth some seconds of a batch; the next one looks again."""
    clock = ManualClock(NOW)
    store = HotMemory(clock.world)
    asked = []

    class Slow(Wrapper):
        async def transact_write(self, writes: Sequence[Write]) -> Any:
            asked.append(writes)
            clock.advance(TENDING_MS_MAX / 4000)
            raise RateLimiterUnavailable("throttled until its deadline")

    records = []
    for n in range(10):
        key, image = bucket_key(EVIL, f"user-{n}", "gpt-4"), {**bucket({"tpm": 1}, 900), "b_wcu_tk": -(10**9)}
        run_sync(store.write_each([Put(key, image)]))
        records.append(record(key, None, image, n + 1))
    with caplog.at_level(logging.WARNING):
        tally = run_sync(process_stream_records(records, Slow(store), clock.world, AggregatorSettings()))
    assert (tally.failed, tally.rows_written, tally.troubles) == ({}, 20, 4)
    assert len(asked) == 4


def test_a_full_row_is_told(caplog: pytest.LogCaptureFixture) -> None:
    """With its place and what it gave up, in the log and in the tally; and it fits where items are small."""
    store = Strict(HotMemory(ManualClock(NOW).world))
    total = Tally()
    for turn in range(60):
        records = []
        for n in range(32):
            image = {"born": NOW + turn, "b_wcu_tc": 1000 * (10**23 + n * 3 + 2), "b_wcu_tk": 0}
            image |= {
                f"b_limit-{turn}-{n % 4}-{'x' * 40}_{part}": 1000 for part in ("tk", "cp", "ra", "rp", "tc")
            }
            old = {"born": NOW + turn, "b_wcu_tc": 1000 * (10**23 + n * 3 + 1)}
            records.append(record(bucket_key(EVIL, "u", "r", n % 3), old, image, turn * 100 + n + 1))
        total.add(
            run_sync(process_stream_records(records, store, World(), AggregatorSettings(tend_buckets=False)))
        )
    assert (total.failed, total.passed_over, store.refused) == ({}, 0, 0)
    assert total.left_out > 0
    assert total.closed > 0
    full = [one for one in caplog.records if one.message == "usage row is full"]
    assert sum(one.closed for one in full) == total.closed  # type: ignore[attr-defined]
    assert full[0].row[0] == f"{EVIL}/ENTITY#u"  # type: ignore[attr-defined]


def test_the_engine_minds_as_the_strict_store_does() -> None:
    """What this file takes for impossible is refused by DynamoDB's own engine, and told as such."""
    table = make_table()
    backend = open_backend(dynamodb_local.url(table, timeout_ms=60_000), sync=True)
    key, _ = usage_row(EVIL, "user-1", "gpt-4", UsageWindow.HOURLY, NOW)
    wide = Update(key, set={f"limit-{n}": n for n in range(320)})
    run_sync(plant(backend, key, heavy_row(HUGE)))
    heavy = Update(key, set={"more": "x" * 5_000})
    for write in (wide, heavy):
        (outcome,) = run_sync(backend.write_each([write]))
        assert outcome.failure is not None
        assert outcome.failure.impossible
        strict = Strict(MemoryBackend())
        run_sync(strict.inner.write_each([Put(key, heavy_row(HUGE))]))
        (outcome,) = run_sync(strict.write_each([write]))
        assert outcome.failure is not None
        assert outcome.failure.impossible
    run_sync(backend.close())
