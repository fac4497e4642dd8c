"""The judges of a storm can say no: books that disagree, laws that are broken, families that fell out."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.breaking.books import KILLED, Book, Ledger, read_books
from tests.breaking.contested_buckets import OWN, SHARED
from tests.breaking.final_checks import family_complaints, law_complaints
from tests.breaking.gauges import Ceiling, Flat

NOW_MS = 1_800_000_000_000
NUMBERS = ("tk", "cp", "ra", "rp", "tc")


def test_what_a_killed_client_leaves_is_open(tmp_path: Path) -> None:
    """An operation without an end may have cost anything; a line that was cut short counts as not written."""
    book = Book(tmp_path / "book")
    done = book.intend(["a", "p"], {"rpm": 3})
    book.intend(["a"], {"rpm": 5})
    book.settle(done, "admitted", {"rpm": 2}, {"rpm": 2})
    book.close()
    with (tmp_path / "book").open("ab") as file:
        file.write(json.dumps({"n": 2, "how": "admitted"}).encode())
    ledger = read_books([tmp_path / "book"])
    assert (ledger.low["a", "rpm"], ledger.high["a", "rpm"]) == (2, 7)
    assert (ledger.low["p", "rpm"], ledger.high["p", "rpm"]) == (2, 2)
    assert (ledger.how, ledger.uncertain) == ({"admitted": 1, KILLED: 1}, 1)


@pytest.mark.parametrize(("stored", "wrong"), [(1_999, 1), (2_000, 0), (7_000, 0), (7_001, 1)])
def test_a_store_outside_the_band(stored: int, wrong: int) -> None:
    """One millitoken too much or too little is seen, and so is a bucket that nobody knows of."""
    ledger = Ledger()
    ledger.enter(["a"], {"rpm": 2}, {"rpm": 7})
    assert len(ledger.complaints({("a", "rpm"): stored})) == wrong
    assert len(ledger.complaints({("a", "rpm"): 2_000, ("b", "rpm"): 1})) == 1


@pytest.mark.parametrize(("parent", "wrong"), [(8_999, 1), (9_000, 0), (11_000, 0), (11_001, 1)])
def test_a_family_that_fell_out(parent: int, wrong: int) -> None:
    """A parent may differ from its children by what is open, and no more."""
    ledger = Ledger()
    ledger.enter(["child-0"], {"rpm": 10}, {"rpm": 11})
    used = {("child-0", "rpm"): 10_000, ("parent-0", "rpm"): parent}
    assert len(family_complaints(ledger, used)) == wrong


def bucket(entity_id: str = "own-1", seconds: int = 10, **numbers: int) -> dict[str, Any]:
    """A bucket that came to be some seconds ago, full, and from which nothing was taken."""
    item: dict[str, Any] = {"entity_id": entity_id, "rf": NOW_MS - seconds * 1000}
    for limit in SHARED if entity_id.startswith("hot") else OWN:
        values = (limit.capacity_milli, limit.capacity_milli, limit.refill_amount_milli, 1000, 0)
        item |= {f"b_{limit.name}_{at}": value for at, value in zip(NUMBERS, values, strict=True)}
    return item | numbers


@pytest.mark.parametrize(
    ("numbers", "wrong"),
    [
        ({}, 0),
        ({"b_rpm_tk": 50_000, "b_rpm_tc": 10_000}, 0),
        ({"b_rpm_tk": 60_001}, 1),  # a token from nowhere
        ({"b_rpm_tk": -240_001}, 1),  # more is gone than was used or could overflow
        ({"b_rpm_tk": -240_000, "b_rpm_tc": 0}, 0),  # all that accrued has overflown
        ({"b_rpm_cp": 59_999}, 1),
        ({"b_tpm_ra": 1}, 1),
        ({"b_rpm_tk": 61_000, "b_rpm_tc": -1_000}, 1),  # more was given back than taken
    ],
)
def test_a_broken_law(numbers: dict[str, int], wrong: int) -> None:
    """Tokens that were made, lost, or taken from the shares are seen."""
    assert len(law_complaints({"own-1": [bucket(**numbers)]}, NOW_MS)) == wrong


def test_shares_that_do_not_add_up() -> None:
    """Of several shards the whole counts."""
    halves = {"b_rpm_cp": 75_000, "b_rpm_ra": 30_000, "b_tpm_cp": 4_000_000, "b_tpm_ra": 1_000_000}
    halves |= {"b_rpm_tk": 75_000, "b_tpm_tk": 4_000_000}
    assert law_complaints({"hot-0": [bucket("hot-0", **halves)] * 2}, NOW_MS) == []
    assert len(law_complaints({"hot-0": [bucket("hot-0", **halves)] * 3}, NOW_MS)) == 4


@pytest.mark.parametrize(
    ("values", "wrong"),
    [
        ([10, 20, 30, 40, 50, 50, 50, 50, 50, 50], 0),  # it grew while it warmed up
        ([50, 50, 50, 50, 50, 90, 50, 50, 50, 50], 0),  # once
        ([50, 50, 50, 50, 50, 53, 56, 59, 62, 65], 1),  # and on and on
    ],
)
def test_growth(values: list[int], wrong: int) -> None:
    """A steady growth after the warm-up is a leak."""
    assert len(Flat("memory", 9).complaints([{"memory": value} for value in values])) == wrong


def test_a_ceiling() -> None:
    """It holds from the beginning."""
    assert Ceiling("plans", 3).complaints([{"plans": 3}, {"plans": 0}]) == []
    assert len(Ceiling("plans", 3).complaints([{"plans": 4}, {"plans": 0}])) == 1
