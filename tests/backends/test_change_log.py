"""The change log of an embedded store: what was used by the hour, as a log of all writes would say."""

from __future__ import annotations

import contextlib
import sqlite3
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.stores import STORES
from zae_limiter.backends.change_log import MARKS_MAX, ChangeLog, LogEntry, log_of
from zae_limiter.backends.memory import MemoryBackend
from zae_limiter.backends.redis import RedisBackend
from zae_limiter.backends.redis.encoding import item_key
from zae_limiter.backends.redis.resp import command
from zae_limiter.backends.shelf import Mark
from zae_limiter.backends.sqlite import SqliteBackend
from zae_limiter.backends.sqlite.file import TRIM_EVERY
from zae_limiter.backends.sqlite.statements import MARKS_AT_ONCE
from zae_limiter.repository_protocol import Backend, Delete, Item, Key, Put, Update
from zae_limiter.runtime.colour import run_sync
from zae_limiter.runtime.world import World
from zae_limiter.schema import bucket_key, limit_attributes
from zae_limiter.testing import ManualClock
from zae_limiter_aggregator.changes import Change, numbered
from zae_limiter_aggregator.usage import extract_deltas

A, B = (bucket_key("ns", entity_id, "api") for entity_id in "ab")
HOUR = 3600


def bucket(used: int = 0, *names: str, **more: Any) -> dict[str, Any]:
    """An image of a bucket that used so much of each limit."""
    image: dict[str, Any] = {"rf": 0, "cascade": False, **more}
    for name in names or ("rpm",):
        image |= dict(zip(limit_attributes(name), (0, 9_000, 9_000, 60_000, used * 1000), strict=True))
    return image


class Stage:
    """A store whose hours pass when the test says so, and how it sees them."""

    def __init__(self, backend: Backend, clock: ManualClock, path: Path | None) -> None:
        self.backend, self.clock, self.path = backend, clock, path
        self.log: ChangeLog = log_of(backend)
        self.hours = 0

    def write(self, *writes: Any) -> list[Item | None]:
        return [outcome.item for outcome in run_sync(self.backend.write_each(writes))]

    def pass_hours(self, hours: int = 1) -> None:
        self.clock.advance(hours * HOUR)
        self.hours += hours

    def read(self) -> list[LogEntry]:
        found: list[LogEntry] = []
        while entries := self.log.read(3):
            self.log.trim(entries[-1].position)
            found += entries
        return found

    def used(self) -> Counter[tuple[Key, str, int]]:
        return +self.used_exactly()

    def used_exactly(self) -> Counter[tuple[Key, str, int]]:
        """What the log says by bucket, limit and hour, counted from now backwards."""
        counted: Counter[tuple[Key, str, int]] = Counter()
        for entry in self.read():
            ago = (self.clock.now_ms // (HOUR * 1000)) - entry.at_ms // (HOUR * 1000)
            change = Change(entry.key, entry.old, entry.new, entry.at_ms, numbered(entry.position))
            for name, milli in extract_deltas(change).items():
                counted[entry.key, name, ago] += milli // 1000
        return counted


@contextlib.contextmanager
def stage(kind: str, path: Path) -> Iterator[Stage]:
    clock = ManualClock(1_700_000_100_000)
    if kind == "memory":
        yield Stage(MemoryBackend(clock.world), clock, None)
        return
    if kind == "postgres":
        with postgres_stage(clock) as on_server:
            yield on_server
        return
    if kind == "redis":
        store = STORES["redis"](path, clock.world)(sync=True)
        run_sync(store.setup())
        yield (staged := Stage(store, clock, None))
        staged.log.close()
        run_sync(store.close())
        return
    file = path / "limits.db"
    backend = SqliteBackend(file, sync=True, timeout_ms=10_000, world=clock.world)
    run_sync(backend.setup())
    it = Stage(backend, clock, file)
    yield it
    it.log.close()
    run_sync(backend.close())


@contextlib.contextmanager
def postgres_stage(clock: ManualClock) -> Iterator[Stage]:
    from tests.postgres.schemas import lent_schema, open_schema

    backend = open_schema(True, lent_schema(), clock.world)
    run_sync(backend.setup())
    it = Stage(backend, clock, None)
    yield it
    it.log.close()
    run_sync(backend.close())


@pytest.fixture(params=["memory", "sqlite", "postgres", "redis"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Stage]:
    with stage(request.param, tmp_path) as it:
        yield it


def swapped(store: Stage, key: Key, used: int) -> None:
    """One write as a warm acquire makes it."""
    (image,) = run_sync(store.backend.batch_get([key]))
    assert image is not None
    swap = store.backend.swap
    if swap is None or swap(key, image, {"b_rpm_tc": used * 1000}) is None:
        store.write(Update(key, set={"b_rpm_tc": used * 1000}))


@pytest.mark.parametrize("of_machine", [False, True])
def test_a_mark_has_the_time_of_the_world(tmp_path: Path, of_machine: bool) -> None:
    """Of a file too, whose triggers know the machine's by themselves."""
    clock = ManualClock()
    world = World() if of_machine else clock.world
    backend = SqliteBackend(tmp_path / "limits.db", sync=True, timeout_ms=10_000, world=world)
    run_sync(backend.setup())
    log, since_ms = log_of(backend), world.now_ms()
    run_sync(backend.write_each([Put(A, bucket())]))
    clock.advance(2 * HOUR)
    run_sync(backend.write_each([Update(A, set={"b_rpm_tc": 1000})]))
    times = [entry.at_ms - since_ms for entry in log.read(9)]
    log.close()
    run_sync(backend.close())
    assert times == pytest.approx(
        [0, 0 if of_machine else 2 * HOUR * 1000], abs=2 if not of_machine else 60_000
    )


def test_hours_are_told_apart(store: Stage) -> None:
    """Nobody reads for a day; then everything is there, in the hour in which it was used."""
    store.write(Put(A, bucket(1)))
    for used in (2, 3):
        swapped(store, A, used)
    store.pass_hours(2)
    swapped(store, A, 10)
    store.write(Put(B, bucket(5)))
    store.pass_hours(22)
    swapped(store, A, 11)
    assert store.used() == {
        (A, "rpm", 24): 3,
        (A, "rpm", 22): 7,
        (B, "rpm", 22): 5,
        (A, "rpm", 0): 1,
    }
    assert store.used() == {}
    swapped(store, A, 15)
    assert store.used() == {(A, "rpm", 0): 4}


def test_other_lifetimes_are_told_apart_too(store: Stage) -> None:
    """They are written by another statement than numbers, with a say in what a trigger may replace."""
    for used in (1, 2):
        store.write(Put(A, bucket(used, ttl=10**10 + used)))
    store.pass_hours()
    for used in (4, 7):
        store.write(Put(A, bucket(used, ttl=10**10 + used)))
    assert store.used() == {(A, "rpm", 1): 2, (A, "rpm", 0): 5}


def test_what_expires_was_used(store: Stage) -> None:
    """A bucket goes when it would be full; what it counted is still told."""
    store.write(Put(A, bucket(1, ttl=store.clock.world.now_ms() // 1000 + 60)))
    swapped(store, A, 7)
    store.clock.advance(120)
    run_sync(store.backend.setup())  # sweeps
    assert run_sync(store.backend.batch_get([A])) == [None]
    store.write(Put(A, bucket(2)))
    assert store.used() == {(A, "rpm", 0): 9}


def test_what_is_deleted_was_not(store: Stage) -> None:
    """Whoever deletes an entity takes its usage along; the mark that is left in its place is no use."""
    store.write(Put(A, bucket(7)), Put(B, bucket(7)))
    store.write(Delete(A), Put(B, {"status": "deleted", "cv": 3, "ttl": 9}))
    assert store.used() == {}
    store.write(Put(A, bucket(2)), Put(B, bucket(3)))
    assert store.used() == {(A, "rpm", 0): 2, (B, "rpm", 0): 3}


def test_what_is_deleted_was_not_even_if_somebody_began_to_read(store: Stage) -> None:
    """An entry that is not trimmed was not counted."""
    store.write(Put(A, bucket(7)), Put(B, bucket(3)))
    assert len(store.log.read(10)) == 2
    store.write(Delete(A))
    assert store.used() == {(B, "rpm", 0): 3}


def test_looking_takes_nothing(store: Stage) -> None:
    """Something waits as long as there is something to read, and no longer."""
    assert not store.log.waits()
    store.write(Put(A, bucket(1, ttl=store.clock.world.now_ms() // 1000 + 60)))
    assert store.log.waits()
    assert store.log.waits()
    store.write(Put(B, bucket(1)), Delete(B))
    (entry,) = store.log.read(10)
    assert store.log.waits()
    store.log.trim(entry.position)
    assert not store.log.waits()
    store.clock.advance(120)
    run_sync(store.backend.setup())  # sweeps, which marks the bucket
    assert (marks_of(store), store.log.waits(), store.log.read(10)) == (1, False, [])


def test_nothing_is_read_only_when_nothing_is_there(store: Stage) -> None:
    """Marks that tell of no use, of which there may be many, are passed over at once."""
    fill(store, 3 * MARKS_AT_ONCE)
    store.write(Put(A, bucket(1)))
    assert store.log.waits()
    assert [entry.key for entry in store.log.read(10)] == [A]


def test_a_limit_that_goes_and_comes_back(store: Stage) -> None:
    """It starts at nothing, so two images of one hour are not enough."""
    store.write(Put(A, bucket(50, "rpm", "tpm")))
    store.write(Put(A, bucket(52, "rpm")))
    store.write(Put(A, bucket(53, "rpm") | {"b_tpm_tc": 4_000} | bucket(4, "tpm") | bucket(53, "rpm")))
    assert store.used() == {(A, "rpm", 0): 53, (A, "tpm", 0): 54}


def test_a_bucket_that_came_from_elsewhere(store: Stage) -> None:
    """What it used there was counted there; what it uses here is counted here."""
    store.write(Put(A, bucket(90, moved=1)))
    swapped(store, A, 95)
    assert store.used() == {(A, "rpm", 0): 5}


def test_a_reader_who_dies_finds_the_same_again(store: Stage) -> None:
    """Entries stand until they are trimmed, whatever is used meanwhile."""
    store.write(Put(A, bucket(1)))
    swapped(store, A, 5)
    first = store.log.read(10)
    swapped(store, A, 9)
    assert store.log.read(10) == first
    store.log.trim(first[-1].position)
    (rest,) = store.log.read(10)
    assert (rest.position > first[-1].position, rest.new["b_rpm_tc"]) == (True, 9_000)


def on_postgres(store: Stage, statement: str, *given: Any) -> Any:
    from tests.postgres.schemas import owner

    schema = store.backend.address.schema  # type: ignore[attr-defined]
    return owner().execute(statement.replace("@", f"{schema}."), given)


def fill(store: Stage, marks: int) -> None:
    """The marks of other buckets, which were deleted since by somebody who knows of no log."""
    if store.backend.capabilities.name == "postgresql":
        numbers = (
            "SELECT 'ns/BUCKET#other-' || lpad(n::text, 5, '0') || '#api#0', 0 FROM generate_series(0, %s) n"
        )
        on_postgres(store, f"INSERT INTO @diary (pk, at_ms) {numbers}", marks - 1)
        return
    if isinstance(store.backend, RedisBackend):
        fill_redis(store.backend, marks)
        return
    if store.path is None:
        for n in range(marks):
            store.backend._shelf.mark(other(n), Mark(bucket(1), 0))  # type: ignore[attr-defined]
        return
    with contextlib.closing(sqlite3.connect(store.path)) as file, file:
        marked = ((other(n).partition,) for n in range(marks))
        file.executemany("INSERT INTO diary (pk, at_ms) VALUES (?, 0)", marked)


def fill_redis(backend: RedisBackend, marks: int) -> None:
    """The same, as its script keeps them: an image of a version is packed as a list of two texts."""
    tag, packed = backend.tag("ns"), b"\x93\xa10\xc2\x92\xa2\0v\xa11"
    words: list[tuple[bytes | str, ...]] = []
    for n in range(marks):
        rest = item_key(tag, other(n)).removeprefix(tag)
        words += [("SET", tag + b"m" + rest, packed), ("ZADD", tag + b"o", "NX", str(2 * 10**15 + n), rest)]
    words.append(("HINCRBY", tag + b"c", "marks", str(marks)))
    for first in range(0, len(words), 1000):
        sent = b"".join(command(*one) for one in words[first : first + 1000])
        connection = run_sync(backend.carrier.servers.locate(backend.carrier.network, tag, 0))
        pool = backend.carrier._pool(connection)
        taken = run_sync(pool.take(backend.carrier.deadline()))
        run_sync(taken.exchange(sent, len(words[first : first + 1000]), backend.carrier.deadline()))
        pool.give(taken, backend.carrier.world.ticks_ms())
    if marks > MARKS_MAX:  # whose next mark drops what is too much
        run_sync(backend.write_each([Put(other(marks), bucket(1, moved=1))]))


def other(n: int) -> Key:
    return bucket_key("ns", f"other-{n:05}", "api")


def marks_of(store: Stage) -> int:
    if store.backend.capabilities.name == "postgresql":
        return int(on_postgres(store, "SELECT count(*) FROM @diary").fetchone()[0])
    if isinstance(store.backend, RedisBackend):
        return int(run_sync(store.backend.say("HGET", store.backend.tag("ns") + b"c", "marks")) or 0)  # type: ignore[call-overload]
    if store.path is None:
        return sum(map(len, store.backend._shelf.marks.values()))  # type: ignore[attr-defined]
    with contextlib.closing(sqlite3.connect(store.path)) as file:
        ((length,),) = file.execute("SELECT count(*) FROM diary").fetchall()
    return int(length)


embedded = pytest.mark.parametrize("store", ["memory", "sqlite"], indirect=True)
"""Stores that trim a log with the write that makes it too long; others do when they tidy up."""


@embedded
def test_an_unread_log_has_an_end(store: Stage) -> None:
    """The newest marks are kept for a reader who may still come; who lost all of his is marked again."""
    store.write(Put(A, bucket(1)))
    swapped(store, A, 2)
    fill(store, MARKS_MAX + TRIM_EVERY)
    assert MARKS_MAX <= marks_of(store) < MARKS_MAX + TRIM_EVERY
    for used in (3, 9):
        swapped(store, A, used)
    assert store.used() == {(A, "rpm", 0): 7}


def test_only_marks_that_nobody_has_read_take_room(tmp_path: Path) -> None:
    """However many were made in all."""
    with stage("sqlite", tmp_path) as store:
        store.write(Put(A, bucket(1)))
        for _ in range(3):
            fill(store, MARKS_MAX // 2)
            with contextlib.closing(sqlite3.connect(tmp_path / "limits.db")) as file, file:
                file.execute("DELETE FROM diary WHERE pk != ?", A[:1])
        assert store.used() == {(A, "rpm", 0): 1}


@embedded
def test_a_full_log_still_marks_whom_it_has_known_longest(store: Stage) -> None:
    """His older marks go to make room, not the one that he gets."""
    store.write(Put(A, bucket(1, ttl=store.clock.world.now_ms() // 1000 + 60)))
    store.clock.advance(120)
    run_sync(store.backend.setup())  # sweeps
    fill(store, MARKS_MAX - 2)
    store.write(Put(A, bucket(5)))
    assert marks_of(store) <= MARKS_MAX + 1
    assert store.used()[A, "rpm", 0] >= 5


def test_the_oldest_marks_are_worked_out_first(tmp_path: Path) -> None:
    """Whoever is marked again and again does not keep others waiting, whatever they are called."""
    last = bucket_key("ns", "zoe", "api")
    with stage("sqlite", tmp_path) as store:
        store.write(Put(last, bucket(1)))
        store.write(*(Put(other(n), bucket(1)) for n in range(MARKS_AT_ONCE + 1)))
        assert last in {entry.key for entry in store.log.read(1000)}


def test_a_log_that_was_kept_otherwise_goes_on_as_now(tmp_path: Path) -> None:
    """A trigger of another version is replaced, and what was marked stays."""
    with stage("sqlite", tmp_path) as store:
        store.write(Put(A, bucket(3)))
        assert store.path is not None
        with contextlib.closing(sqlite3.connect(store.path)) as file, file:
            file.execute("DROP TRIGGER changes_update")
            file.execute("CREATE TRIGGER changes_update AFTER UPDATE ON items BEGIN SELECT 1; END")
    with stage("sqlite", tmp_path) as store:
        store.pass_hours()
        swapped(store, A, 5)
        assert store.used() == {(A, "rpm", 1): 3, (A, "rpm", 0): 2}


def test_a_file_of_an_older_version_gets_its_log(tmp_path: Path) -> None:
    """When it is opened; what stood in a log of all writes is read first."""
    with stage("sqlite", tmp_path) as store:
        store.write(Put(A, bucket(1)))
        assert store.path is not None
        with contextlib.closing(sqlite3.connect(store.path)) as file, file:
            for name in ("changes_insert", "changes_update", "diary_trim"):
                file.execute(f"DROP TRIGGER {name}")
            for name in ("diary", "marked"):
                file.execute(f"DROP TABLE {name}")
            file.execute(
                "INSERT INTO changes (pk, sk, new, at_ms) SELECT pk, sk, body, ? FROM items WHERE pk = ?",
                (store.clock.now_ms, A.partition),
            )
    with stage("sqlite", tmp_path) as store:
        swapped(store, A, 8)
        assert store.used() == {(A, "rpm", 0): 8}


acts = st.lists(
    st.one_of(
        st.tuples(st.just("use"), st.sampled_from([A, B]), st.integers(-3, 9)),
        st.tuples(st.just("swap"), st.sampled_from([A, B]), st.integers(0, 9)),
        st.tuples(st.just("family"), st.sampled_from([A, B]), st.sampled_from([None, "p", "q"])),
        st.tuples(st.just("limits"), st.sampled_from([A, B]), st.sampled_from([("rpm",), ("rpm", "tpm")])),
        st.tuples(st.just("hours"), st.just(A), st.integers(1, 3)),
        st.tuples(st.just("read"), st.just(A), st.just(0)),
    ),
    max_size=25,
)


@given(acts=acts)
@settings(max_examples=60, deadline=None)
@pytest.mark.parametrize("kind", ["memory", "sqlite", "postgres", "redis"])
def test_marks_say_what_a_log_of_all_writes_would(
    kind: str, acts: list[Any], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Whatever is written when: by bucket, limit and hour, read now and then or only at the end."""
    said: Counter[tuple[Key, str, int]] = Counter()
    logged: Counter[tuple[Key, str, int]] = Counter()
    with stage(kind, tmp_path_factory.mktemp("log")) as store:
        known: dict[Key, Item] = {}

        def write(key: Key, new: dict[str, Any]) -> None:
            change = Change(key, known.get(key), new, 0, numbered(1))
            for name, milli in extract_deltas(change).items():
                logged[key, name, store.hours] += milli // 1000
            known[key] = new

        def told() -> None:
            for (key, name, ago), amount in store.used_exactly().items():
                said[key, name, store.hours - ago] += amount

        for act, key, what in acts:
            now = dict(known.get(key, bucket()))
            if act == "hours":
                store.pass_hours(what)
            elif act == "read":
                told()
            elif act == "swap" and key in known:
                used = int(now["b_rpm_tc"]) // 1000 + what
                write(key, now | {"b_rpm_tc": used * 1000})
                swapped(store, key, used)
            else:
                if act == "use":
                    now["b_rpm_tc"] += what * 1000
                elif act == "family":
                    now["parent_id"] = what
                    now = {name: value for name, value in now.items() if value is not None}
                elif act == "limits":
                    kept = {name: value for name, value in now.items() if name[:2] != "b_"}
                    old = {name: value for name, value in now.items() if name[:2] == "b_"}
                    fresh = bucket(0, *what)
                    now = kept | {n: old.get(n, v) for n, v in fresh.items() if n[:2] == "b_"}
                write(key, now)
                store.write(Put(key, now))
        told()
    assert +said == +logged
    assert -said == -logged
