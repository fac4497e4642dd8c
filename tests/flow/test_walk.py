"""How far one walks to acquire: every function of our own that a warm acquire enters (``make walk``)."""

from collections import Counter
from pathlib import Path

import pytest

from tests.stores import url_of
from tests.walk import STORES, WAYS

CALLS_MAX = {
    ("memory", "async"): 15,
    ("memory", "sync"): 20,
    ("SQLite", "async"): 25,
    ("SQLite", "sync"): 30,
    ("DynamoDB", "async"): 65,
    ("DynamoDB", "sync"): 65,
    ("Redis", "async"): 115,
    ("Redis", "sync"): 110,
    ("PostgreSQL", "async"): 135,
    ("PostgreSQL", "sync"): 120,
}
ONCE = (
    "engine/acquire.py: acquire",
    "engine/plan.py: Plan.stands",
    "engine/bucket_view.py: has_terms",
    "engine/posting.py: believed",
    "engine/door.py: write_each",
)
"""Where each decision is made, by a write: whose bucket, as planned or not, cut off or not, and the write."""


@pytest.mark.parametrize(("store", "way"), CALLS_MAX)
def test_an_acquire_is_a_short_walk(store: str, way: str, tmp_path: Path) -> None:
    names = WAYS[way](url_of(STORES[store], tmp_path))
    assert len(names) <= CALLS_MAX[store, way], "\n".join(names)
    assert names.count("engine/acquire.py: acquire") == 1
    if store in ("DynamoDB", "Redis", "PostgreSQL"):
        entered = Counter(names)
        assert {name: entered[name] for name in ONCE} == dict.fromkeys(ONCE, 1)
