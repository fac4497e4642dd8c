"""Any sequence of calls gives what a dictionary and ``apply`` give, on every store and colour."""

import itertools
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from tests.conformance.open_store import OpenStore
from zae_limiter.repository_protocol import (
    LAST,
    Absent,
    AtLeast,
    AtMost,
    Check,
    Delete,
    Equal,
    Exists,
    Item,
    Key,
    Put,
    Query,
    Row,
    Update,
    Write,
    apply,
    apply_all,
)

PARTITIONS = ("p", "q", "ü")
SORTS = ("a", "a#1", "a#10", "b", "é", "🙂")
NUMBERS = ("n", "m")
PLACES = ("GSI1PK", "GSI1SK", "GSI4PK", "GSI4SK")

integers = st.integers(-3, 3) | st.integers(-(10**30), 10**30)
scalars = integers | st.booleans() | st.text(max_size=3)
# DynamoDB has no empty names inside a map.
maps = st.dictionaries(st.text(min_size=1, max_size=2), scalars, max_size=2)
values = scalars | st.lists(scalars, max_size=2) | maps
places = st.sampled_from(("i", "j", "k"))
attributes = st.fixed_dictionaries(
    {},
    optional={
        **{name: values | st.none() for name in (*NUMBERS, "s")},
        **{name: places | st.none() for name in PLACES},
    },
)
conditions = st.one_of(
    st.just(Exists()),
    st.just(Absent()),
    st.builds(Equal, st.sampled_from((*NUMBERS, "s")), scalars | st.none()),
    st.builds(AtLeast, st.sampled_from(NUMBERS), integers),
    st.builds(AtMost, st.sampled_from(NUMBERS), integers),
)
whens = st.lists(conditions, max_size=2).map(tuple)
keys = st.builds(Key, st.sampled_from(PARTITIONS), st.sampled_from(SORTS))
# Mostly plain additions: they are what the limiter does, and what conflicts with everything else.
updates = st.builds(
    lambda key, add, set_, when: Update(key, add, {k: v for k, v in set_.items() if k not in add}, when),
    keys,
    st.dictionaries(st.sampled_from(NUMBERS), integers, max_size=2),
    attributes,
    whens,
)
writes = st.one_of(
    updates,
    st.builds(lambda key, amount: Update(key, {"n": amount}), keys, integers),
    st.builds(Put, keys, attributes, whens),
    st.builds(Delete, keys, whens),
    st.builds(Check, keys, whens),
)
ends = st.sampled_from(("", "a", "a#", "a#" + LAST, "b", "j", LAST))

_examples = itertools.count()


class StoreMachine(RuleBasedStateMachine):
    """A store and the dictionary it should be; each example has partitions of its own."""

    def __init__(self, store: OpenStore) -> None:
        super().__init__()
        self.store = store
        self.model: dict[Key, Item] = {}
        self.prefix = ""

    @initialize()
    def begin(self) -> None:
        self.prefix = f"{next(_examples)}/"

    def own(self, write: Write) -> Any:
        """The write, moved into the partitions of this example."""
        key = Key(self.prefix + write.key.partition, write.key.sort)
        for field in ("set", "item"):
            if (image := getattr(write, field, None)) is not None:
                moved = {k: self.prefix + v if k.endswith("PK") and v else v for k, v in image.items()}
                write = write._replace(**{field: moved})  # type: ignore[arg-type]
        return write._replace(key=key)

    def keep(self, write: Write, image: Item | None) -> None:
        if image is None:
            self.model.pop(write.key, None)
        else:
            self.model[write.key] = image

    @rule(wanted=st.lists(writes, min_size=1, max_size=4))
    def write_each(self, wanted: list[Write]) -> None:
        owned = [self.own(write) for write in wanted]
        outcomes = self.store.run(self.store.backend.write_each(owned))
        for outcome, write in zip(outcomes, owned, strict=True):
            expected = apply(write, self.model.get(write.key))
            assert outcome == expected
            if expected.applied:
                self.keep(write, expected.item)

    @rule(wanted=st.lists(writes, min_size=1, max_size=4, unique_by=lambda write: write.key))
    def transact_write(self, wanted: list[Write]) -> None:
        owned = [self.own(write) for write in wanted]
        outcomes = self.store.run(self.store.backend.transact_write(owned))
        expected = apply_all(owned, [self.model.get(write.key) for write in owned])
        assert [(o.applied, o.held) for o in outcomes] == [(e.applied, e.held) for e in expected]
        for write, got, due in zip(owned, outcomes, expected, strict=True):
            assert got.item == due.item or (due.held and got.item is None)
            if due.applied:
                self.keep(write, due.item)

    @rule(wanted=st.lists(keys, max_size=6))
    def batch_get(self, wanted: list[Key]) -> None:
        owned = [Key(self.prefix + key.partition, key.sort) for key in wanted]
        assert self.store.run(self.store.backend.batch_get(owned)) == [self.model.get(key) for key in owned]

    @rule(
        partition=st.sampled_from(PARTITIONS),
        first=ends,
        last=ends,
        when=whens,
        rows_max=st.integers(1, 4),
        backwards=st.booleans(),
    )
    def query_table(self, partition: str, rows_max: int, **asked: Any) -> None:
        query = Query(self.prefix + partition, rows_max=rows_max, **asked)
        expected = [
            Row(key, item)
            for key, item in sorted(self.model.items(), reverse=query.backwards)
            if key.partition == query.partition
            and query.first <= key.sort <= query.last
            and all(condition.holds(item) for condition in query.when)
        ]
        assert self.all_rows(query) == expected

    @rule(
        partition=st.sampled_from(("i", "j")),
        index=st.sampled_from(("GSI1", "GSI4")),
        first=ends,
        rows_max=st.integers(1, 4),
        backwards=st.booleans(),
    )
    def query_index(self, partition: str, index: str, first: str, rows_max: int, backwards: bool) -> None:
        query = Query(self.prefix + partition, first, index=index, rows_max=rows_max, backwards=backwards)
        expected = {
            key: item[f"{index}SK"]
            for key, item in self.model.items()
            if item.get(f"{index}PK") == query.partition and str(item.get(f"{index}SK", "")) >= (first or " ")
        }
        rows = self.all_rows(query)
        assert sorted(row.key for row in rows) == sorted(expected)
        assert [expected[row.key] for row in rows] == sorted(expected.values(), reverse=backwards)  # type: ignore[type-var]
        assert all(row.item == {} for row in rows)

    def all_rows(self, query: Query) -> list[Row]:
        rows: list[Row] = []
        for _ in range(100):
            page = self.store.run(self.store.backend.query(query))
            assert len(page.rows) <= query.rows_max
            rows += page.rows
            if page.after is None:
                return rows
            query = query._replace(after=page.after)
        raise AssertionError("the pages never end")


def test_store_agrees_with_apply(store: OpenStore) -> None:
    """Whatever is asked in whatever order, the answers are those of ``apply`` over a dictionary."""
    run_state_machine_as_test(
        lambda: StoreMachine(store),
        settings=settings(
            max_examples=60,
            stateful_step_count=20,
            # How fast a store or the machine under it is decides nothing here.
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow],
        ),
    )
