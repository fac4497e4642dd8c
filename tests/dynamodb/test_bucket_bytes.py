"""How many bytes each kind of limit adds to a bucket, as the engine has it, against ``docs/costs.md``."""

import re
from typing import Any

import pytest

from tests.dynamodb.tables import driver, make_table
from tests.dynamodb.test_operation_costs import DOCS, RESOURCE, Client, clock_of
from zae_limiter import Limit

NAME = "limit-01"
RATE = Limit.per_minute(NAME, 10_000_000)
PHASED = RATE.during("* 9-16 * * mon-fri", 600_000, tz="Europe/Berlin")
SEATS = Limit.concurrent(NAME, 100, hold="80s")
ABOUT = 3
"""A number has a byte for two of its digits, so how many it has depends on what there is."""


class Scales:
    """Buckets on a table, weighed by how much more fits into them before a write costs another unit."""

    def __init__(self) -> None:
        self.table = make_table()
        self.clock = clock_of(self.table)
        self.client = Client(self.table, self.clock)
        self.weighed = 0

    def bytes_with(self, *limits: Limit, held: int = 0, bypassed: bool = False) -> int:
        """What a bucket weighs that has a rate and these limits beside it, in use for a while."""
        self.weighed += 1
        entity_id = f"project-{self.weighed:05}"
        asked = [Limit.per_minute("limit-00", 10_000_000), *limits]
        needs = {limit.name: 1 if limit.accrual == "concurrent" else 1_234 for limit in asked}
        if bypassed:
            self.client.repository.bypass(entity_id=entity_id)
        leases = []
        for _ in range(3):
            self.client.limiter.acquire(entity_id, RESOURCE, needs, asked).open().commit()
        for _ in range(held):
            leases.append(self.client.limiter.acquire(entity_id, RESOURCE, needs, asked).open())
            self.clock.advance(10)
        found = driver().scan(TableName=self.table, ConsistentRead=True)["Items"]
        (item,) = (one for one in found if f"/BUCKET#{entity_id}#" in one["PK"]["S"])
        for lease in leases:
            lease.commit()
        return self._weight({name: value for name, value in item.items() if not name.startswith("GSI")})

    def _weight(self, item: dict[str, Any]) -> int:
        fits, too_much = 0, 1_024
        while too_much - fits > 1:
            more = (fits + too_much) // 2
            fits, too_much = (more, too_much) if self._units(item, more) == 1 else (fits, more)
        return 1_024 - fits

    def _units(self, item: dict[str, Any], more: int) -> int:
        """What a write of it costs with so many bytes more, each under a key of its own that is as long."""
        key = {"SK": {"S": f"{more:06}"}, "more": {"S": "x" * more}}
        reply = driver().put_item(TableName=self.table, Item=item | key, ReturnConsumedCapacity="TOTAL")
        return round(reply["ConsumedCapacity"]["CapacityUnits"])


@pytest.fixture(scope="module")
def scales() -> Scales:
    return Scales()


@pytest.fixture(scope="module")
def without(scales: Scales) -> int:
    return scales.bytes_with()


def said(sentence: str) -> list[int]:
    """The numbers that the page names in a sentence, in the places of ``N``."""
    words = r"\s+".join(sentence.split()).replace("N", r"(\d+)")
    (found,) = re.findall(words, DOCS.read_text(encoding="utf-8"))
    return [int(number) for number in ([found] if isinstance(found, str) else found)]


@pytest.mark.parametrize(
    ("limit", "sentence"),
    [
        (RATE, "A limit has about N bytes there, soft or hard"),
        (Limit.per_month(NAME, 10_000_000, tz="Europe/Berlin"), "a quota in `Europe/Berlin` N,"),
        (Limit.session(NAME, 10_000_000, "5h"), "a session window N,"),
    ],
    ids=["rate", "quota", "session"],
)
def test_what_a_limit_weighs(scales: Scales, without: int, limit: Limit, sentence: str) -> None:
    """A bucket with one more limit of its kind, and without it."""
    (figure,) = said(sentence)
    assert abs(scales.bytes_with(limit) - without - figure) <= ABOUT


def test_soft_limits_and_switches_weigh_nothing(scales: Scales, without: int) -> None:
    """A soft limit is as heavy as a hard one, and what is past its limits as what is not."""
    hard = scales.bytes_with(RATE)
    assert abs(scales.bytes_with(RATE.softly()) - hard) <= 1
    assert abs(scales.bytes_with(bypassed=True) - without) <= ABOUT


def test_what_a_schedule_weighs(scales: Scales) -> None:
    """One window, and another."""
    sentence = "of one window adds about N bytes to its limit, each further one about N, and `ph` N"
    window, further, phase = said(sentence)
    one = scales.bytes_with(PHASED)
    assert abs(one - scales.bytes_with(RATE) - window - phase) <= ABOUT
    assert abs(scales.bytes_with(PHASED.during("0-30 18 * * *", 600_000)) - one - further) <= ABOUT


def test_what_seats_weigh(scales: Scales, without: int) -> None:
    """A limit of concurrency, and each instant until which some are held."""
    limit, instant = said("adds about N bytes, and N for each of up to ten instants")
    one, two, four = (scales.bytes_with(SEATS, held=held) for held in (1, 2, 4))
    assert abs(one - without - limit - instant) <= ABOUT
    assert abs((four - two) / 2 - instant) <= 1
