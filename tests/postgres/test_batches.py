"""One call with many groups: what becomes of each is what became of them one after the other."""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.conformance.test_state_machine import attributes, integers, updates, whens
from tests.engines import postgres
from tests.postgres.schemas import lent_schema, make_schema, owner
from zae_limiter.backends.change_log import HOUR_MS
from zae_limiter.backends.postgres import PostgresBackend, open_backend
from zae_limiter.backends.postgres.encoding import batch_of, group_of, item_from, outcomes_of
from zae_limiter.backends.postgres.layout import create_sql
from zae_limiter.repository_protocol import (
    Absent,
    AtLeast,
    Check,
    Delete,
    Item,
    Key,
    Outcome,
    Put,
    Update,
    Write,
    apply_all,
)
from zae_limiter.runtime.colour import run_sync
from zae_limiter.runtime.world import World
from zae_limiter.schema import sk_state

STATE = sk_state()
KEYS = [Key(partition, sort) for partition in ("p", "q", "r") for sort in (STATE, "record")]
FAMILY = {"cascade": True, "parent_id": "anna", "status": "deleted"}

keys = st.sampled_from(KEYS)
families = st.fixed_dictionaries(
    {}, optional={name: st.sampled_from((v, None)) for name, v in FAMILY.items()}
)
writes: st.SearchStrategy[Write] = st.one_of(
    st.builds(lambda key, update: update._replace(key=key), keys, updates),
    st.builds(lambda key, amount: Update(key, {"n": amount}), keys, integers),
    st.builds(
        lambda key, amount: Update(key, {"n": -amount}, {"m": 1}, (AtLeast("n", amount),)), keys, integers
    ),
    st.builds(lambda key, said: Update(key, {"n": 1}, said), keys, families),
    st.builds(lambda key, image, said: Put(key, {**image, **said}), keys, attributes, families),
    st.builds(lambda key: Put(key, {"n": 5, "m": 0}, (Absent(),)), keys),
    st.builds(Delete, keys, whens),
    st.builds(Check, keys, whens),
)
groups = st.lists(writes, min_size=1, max_size=3, unique_by=lambda write: write.key)
batches = st.lists(st.tuples(st.integers(0, 2), st.lists(groups, min_size=1, max_size=8)), max_size=5)


class Books:
    """A store, and what its buckets left in the change log, oldest first."""

    def __init__(self) -> None:
        self.schema = lent_schema()
        self.backend: PostgresBackend = open_backend(
            postgres.url(self.schema, timeout_ms=60_000, listen="off"), sync=True, world=World()
        )

    def begin(self) -> None:
        for table in ("items", "diary", "changes"):
            owner().execute(f"DELETE FROM {self.schema}.{table}")

    def write(self, groups: Sequence[Sequence[Write]], at_ms: int) -> list[list[Outcome]]:
        """One call, at a time."""
        calls = self.backend.calls
        batch = batch_of([group_of(group) for group in groups], at_ms, 60_000)
        said, odd = run_sync(calls.ask("write", lambda _: batch, calls.deadline(), repeatable=False))
        return [outcomes_of(group, one, odd) for group, one in zip(groups, said, strict=True)]

    def marks(self) -> dict[str, list[Any]]:
        """Marks of each bucket, in their order."""
        found: dict[str, list[Any]] = {}
        for pk, *mark in owner().execute(
            f"SELECT pk, image, at_ms, gone FROM {self.schema}.diary ORDER BY position"
        ):
            found.setdefault(pk, []).append(mark)
        return found

    def rows(self) -> list[Any]:
        """Items as they stand in the table, with the hour in which they were marked."""
        return owner().execute(f"SELECT pk, sk, body, hour FROM {self.schema}.items ORDER BY 1, 2").fetchall()


def test_a_batch_is_its_groups_one_after_the_other() -> None:
    """Outcomes are those of ``apply``; items, hours and marks are those of a call for each group."""
    together, apart = Books(), Books()

    @settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(batches)
    def agree(asked: list[tuple[int, list[list[Write]]]]) -> None:
        model: dict[Key, Item] = {}
        for books in (together, apart):
            books.begin()
        for hour, batch in asked:
            at_ms = (400_000 + hour) * HOUR_MS + 5
            expected = []
            for group in batch:
                outcomes = apply_all(group, [model.get(write.key) for write in group])
                expected.append(outcomes)
                for write, outcome in zip(group, outcomes, strict=True):
                    if outcome.applied and outcome.item is None:
                        model.pop(write.key, None)
                    elif outcome.applied:
                        model[write.key] = outcome.item  # type: ignore[assignment]
            assert together.write(batch, at_ms) == expected
            assert [answer for group in batch for answer in apart.write([group], at_ms)] == expected
        assert {Key(pk, sk): item_from(body) for pk, sk, body, _ in together.rows()} == model
        assert together.rows() == apart.rows()
        assert together.marks() == apart.marks()

    agree()
    for books in (together, apart):
        run_sync(books.backend.close())


def test_a_table_that_nobody_has_counted_is_entered_by_its_index() -> None:
    """A plan that was made for an empty table is kept by its connection, however large that grows."""
    schema = make_schema()
    puts = [group_of([Put(Key(f"p{n}", STATE), {"n": 1})]) for n in range(100)]
    updates = [group_of([Update(Key(f"p{n}", STATE), {"n": 1})]) for n in range(100)]

    def scans() -> list[Any]:
        counted = (
            "SELECT coalesce(sum(seq_scan), 0), coalesce(sum(idx_scan), 0) FROM pg_stat_xact_user_tables"
        )
        return owner().execute(f"{counted} WHERE schemaname = %s AND relname = 'items'", [schema]).fetchall()

    with owner().transaction():
        ((in_a_row, by_index),) = scans()
        for groups in (puts, *[updates] * 9):
            batch = batch_of(groups, HOUR_MS, 60_000).decode()
            owner().execute(f"SELECT {schema}.write(%s)", [batch])
        ((in_a_row_now, by_index_now),) = scans()
    assert in_a_row_now == in_a_row
    assert by_index_now - by_index >= 10 * 100 + 9 * 100
    owner().execute(f"DROP SCHEMA {schema} CASCADE")


@pytest.mark.parametrize("unlogged", [False, True])
def test_a_table_that_was_small_when_it_was_counted_is_not_read_whole(unlogged: bool) -> None:
    """A plan that was made by the counts of a table with one row reads one row of a table with thousands."""
    schema = postgres.fresh_schema()
    owner().execute(create_sql(schema, unlogged=unlogged))

    def write(pk: str, *, is_new: bool = False) -> None:
        key = Key(pk, STATE)
        asked: Write = Put(key, {"n": 9}) if is_new else Update(key, {"n": -1}, {"at": 5}, (AtLeast("n", 1),))
        owner().execute(
            f"SELECT {schema}.write(%s)", [batch_of([group_of([asked])], HOUR_MS, 60_000).decode()]
        )

    def rows_read() -> int:
        counted = "SELECT sum(coalesce(seq_tup_read, 0) + coalesce(idx_tup_fetch, 0))::integer"
        here = f"{counted} FROM pg_stat_xact_user_tables WHERE schemaname = %s"
        ((rows,),) = owner().execute(here, [schema]).fetchall()
        return int(rows)

    write("first", is_new=True)
    owner().execute(f"ANALYZE {schema}.items")
    for _ in range(8):  # from the sixth time on a connection keeps the plan that suits all
        write("first")
    owner().execute(
        f"INSERT INTO {schema}.items (pk, sk, body, hour) SELECT 'p' || i, %s, %s, 1"
        " FROM generate_series(1, 3000) AS i",
        [STATE, '{"n": 9, "at": 1}'],
    )
    with owner().transaction():
        before = rows_read()
        write("p7")
        assert rows_read() - before < 20
    owner().execute(f"DROP SCHEMA {schema} CASCADE")
