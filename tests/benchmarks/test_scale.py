"""The model of much traffic: its arithmetic, and what it predicts beside runs of three sizes."""

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.scale import (
    Constants,
    Prices,
    Traffic,
    acquires_per_write,
    distinct,
    dynamodb,
    made_rows,
    postgres,
    redis,
    shown,
    usage,
)
from benchmarks.scale_runs import (
    CLOCKED,
    HOT_RATES,
    SIZES,
    TASKS,
    USAGE_SIZES,
    Counted,
    expected_hot,
    expected_on_aggregator,
    expected_on_dynamodb,
    expected_on_postgres,
    expected_on_redis,
    hot,
    index_bytes,
    item_bytes,
    on_aggregator,
    on_dynamodb,
    postgres_alone,
    postgres_run,
    redis_alone,
    redis_run,
)
from tests.engines import dynamodb_local

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE = DOCS / "scale.md"
KNOWN, PRICES, ASKED = Constants(), Prices(), Traffic()


@pytest.fixture(scope="module")
def redis_port() -> Iterator[int]:
    with redis_alone() as port:
        yield port


@pytest.fixture(scope="module")
def postgres_port() -> Iterator[int]:
    with postgres_alone() as port:
        yield port


def is_near(counted: Counted, predicted: Counted, part: float) -> None:
    """Whatever was counted is as predicted, but for a part; what a clock says is not looked at."""
    assert counted.keys() == predicted.keys()
    for what in counted.keys() - CLOCKED:
        assert counted[what] == pytest.approx(predicted[what], rel=part), what


def travelled_together(counted: Counted, predicted: Counted, part: float) -> None:
    """Those who come late go by themselves, on the other way; what is kept is near in any case."""
    together = {
        what: least for what, least in predicted.items() if what.startswith(("requests", "transactions"))
    }
    for what, least in together.items():
        assert least * (1 - part) <= counted[what] <= least * TASKS, what
    is_near({**counted, **together}, predicted, part)


@pytest.mark.parametrize("entities", SIZES)
def test_dynamodb_is_as_predicted(entities: int) -> None:
    """What makes buckets to the last request and unit; bytes but for the digits of numbers.

    Of what uses them two may share a write, if a task was so late that another met it.
    """
    counted = asyncio.run(on_dynamodb(dynamodb_local.endpoint(), entities))
    predicted = expected_on_dynamodb(entities, KNOWN)
    is_near(counted, predicted, 0.02)
    exact = [what for what in counted if what.endswith("to make")]
    assert {what: counted[what] for what in exact} == {what: predicted[what] for what in exact}


@pytest.mark.parametrize("entities", USAGE_SIZES)
def test_what_usage_costs_is_as_predicted(entities: int) -> None:
    """How many buckets are in a batch is up to dice; what they cost then is exact, and so is a new row."""
    counted = asyncio.run(on_aggregator(dynamodb_local.endpoint(), entities))
    predicted = expected_on_aggregator(entities, KNOWN)
    is_near(counted, predicted, 0.03)
    each = {what: value / counted["buckets of a batch"] for what, value in counted.items() if "CU" in what}
    exact = {what: predicted[what] / predicted["buckets of a batch"] for what in each}
    is_near(each, exact, 1e-9)


@pytest.mark.parametrize("average", HOT_RATES)
def test_a_hot_bucket_is_as_predicted(average: float) -> None:
    """Dice say who arrives meanwhile; 100 writes are near to what the formula says of endless ones."""
    is_near(asyncio.run(hot(dynamodb_local.endpoint(), average)), expected_hot(average), 0.12)


@pytest.mark.parametrize("entities", SIZES)
def test_redis_is_as_predicted(redis_port: int, entities: int) -> None:
    """Its memory comes in steps, so a few buckets are up to a quarter off."""
    travelled_together(redis_run(redis_port, entities), expected_on_redis(entities, KNOWN), 0.25)


@pytest.mark.parametrize("entities", SIZES)
def test_postgres_is_as_predicted(postgres_port: int, entities: int) -> None:
    """Its tables come in pages."""
    travelled_together(postgres_run(postgres_port, entities), expected_on_postgres(entities, KNOWN), 0.25)


def test_a_group_is_what_arrives_in_one_write() -> None:
    """Next to nobody: a write each. Many: all that arrive while one is in flight."""
    assert acquires_per_write(1e-9, 1) == pytest.approx(1)
    assert acquires_per_write(1, 1) == pytest.approx(1.3679, abs=1e-4)
    assert acquires_per_write(200_000, 0.005) == pytest.approx(1_000)


def test_different_buckets_of_a_batch() -> None:
    """Of few records nearly all are of different buckets; of very many, all buckets are there."""
    assert distinct(10, 1e6) == pytest.approx(10, rel=1e-4)
    assert distinct(1e6, 100) == pytest.approx(100)
    assert distinct(5, 1) == 1


def test_much_traffic_on_dynamodb() -> None:
    """A unit for each acquire, a partition for each thousand, and the money of both."""
    found = dynamodb(replace(ASKED, is_counted=False, made_per_day=0), KNOWN, PRICES)
    assert found.wcu == pytest.approx(1e6, rel=1e-6)
    assert (found.partitions, found.usage_wcu, found.aggregator_month) == (1_000, 0, 0)
    assert found.on_demand_month == pytest.approx(0.625 * 730 * 3600 + 10.91 * 0.25, rel=1e-4)
    assert found.provisioned_month == pytest.approx(1e6 * 0.00065 * 730 / KNOWN.busy, rel=1e-3)


def test_new_rows_of_usage() -> None:
    """Who is always busy has one more each hour and each day; who is rarely seen makes both each time."""
    assert made_rows(1.0) == pytest.approx(1 / 3600 + 1 / 86_400)
    assert made_rows(1e-9) == pytest.approx(2e-9, rel=1e-4)
    rare = replace(ASKED, acquires_per_s=1, made_per_day=0)
    found = dynamodb(rare, KNOWN, PRICES)
    assert found.usage_wcu / found.wcu == pytest.approx(6, rel=0.01)


def test_what_makes_it_more() -> None:
    """Settling is a write more, counting up to two, a parent as many as its processes cannot share."""
    plain = dynamodb(replace(ASKED, made_per_day=0), KNOWN, PRICES)
    assert dynamodb(replace(ASKED, made_per_day=0, settled=1), KNOWN, PRICES).wcu == pytest.approx(
        2 * plain.wcu
    )
    assert plain.wcu < plain.usage_wcu <= 2 * plain.wcu
    assert plain.partitions == pytest.approx((plain.wcu + plain.usage_wcu) / 1_000, abs=1)
    assert plain.aggregator_busy == pytest.approx(0.44, abs=0.01)
    full = usage(ASKED, KNOWN, PRICES, plain.writes_per_s, partitions=1_000)
    assert (full.batch_s, full.busy > 1) == (pytest.approx(0.5, rel=0.01), True)
    one = dynamodb(replace(ASKED, parents=1), KNOWN, PRICES)
    assert one.parent_writes_per_s == pytest.approx(200_000, rel=0.01)
    assert one.shards > KNOWN.shards_max
    many = dynamodb(replace(ASKED, parents=10_000), KNOWN, PRICES)
    assert (many.shards, many.parent_writes_per_s) == (1, pytest.approx(100, rel=0.01))


def test_large_items_cost_more() -> None:
    """Beyond a kilobyte each write is two units."""
    large = dynamodb(replace(ASKED, made_per_day=0), replace(KNOWN, bucket_bytes=1_100), PRICES)
    assert large.wcu == pytest.approx(2e6, rel=1e-6)


def test_much_traffic_on_servers() -> None:
    """Nodes by their processors, the log by what an acquire writes, freezing by transactions."""
    assert redis(ASKED, KNOWN).nodes == -(-ASKED.acquires_per_s * KNOWN.redis_cpu_us / 1e6 // KNOWN.busy)
    assert postgres(ASKED, KNOWN).log_bytes_per_s == pytest.approx(1e6 * KNOWN.postgres_log_bytes)
    assert postgres(ASKED, KNOWN).freeze_hours == pytest.approx(200e6 / 1e5 / 3600)
    assert redis(replace(ASKED, entities=5), KNOWN).bytes == 5 * (KNOWN.redis_bytes + KNOWN.redis_mark_bytes)


def test_the_size_of_an_item() -> None:
    """Names and texts by their bytes, numbers by two digits a byte and one; and each index entry on top."""
    item = {"PK": {"S": "äb"}, "SK": {"S": "c"}, "n": {"N": "-12000"}, "b": {"BOOL": True}}
    assert item_bytes(item) == (2 + 3) + (2 + 1) + (1 + 3) + (1 + 1)
    assert index_bytes(item) == 0
    placed = item | {"GSI2PK": {"S": "x"}, "GSI2SK": {"S": "y"}}
    assert index_bytes(placed) == 8 + 7 + 7 + 100


def test_the_page_shows_what_the_model_says() -> None:
    """Who changes a constant or a price and forgets the page is told."""
    page = PAGE.read_text(encoding="utf-8")
    for part in shown(ASKED, KNOWN, PRICES).split("\n\n"):
        assert part.strip() in page


def test_pages_say_the_same_of_a_bucket_on_redis() -> None:
    """Its memory, and that of its mark, stand on two pages; and so do the bytes of a warm acquire."""
    pages = [PAGE.read_text(encoding="utf-8"), (DOCS / "redis.md").read_text(encoding="utf-8")]
    for size in (KNOWN.redis_bytes, KNOWN.redis_mark_bytes):
        assert [f"{size / 1000:.1f} KB" in page for page in pages] == [True, True]
    warm = next(line for line in pages[1].splitlines() if line.startswith("| acquire, warm |"))
    sent, received = (int(cell.replace(",", "")) for cell in warm.split("|")[-3:-1])
    assert sent + received == KNOWN.redis_wire_bytes
