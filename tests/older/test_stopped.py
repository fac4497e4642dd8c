"""``zae-limiter upgrade`` on DynamoDB Local: killed, asleep, several at once; the table is that of one run.

What older releases left is upgraded by real processes. One that fell asleep is as good as dead to the
others; when it wakes up it goes on with what it read long ago.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.dynamodb.tables import make_table, open_table
from tests.engines import dynamodb_local
from tests.migrations.old_store import OldStore, assert_same, batch_fill, old_rows
from tests.migrations.older import NOW_MS, SHAPES
from tests.older.releases import RECORDINGS, ROOT, VERSIONS, recorded, rows_of
from tests.older.test_recorded import Rows, clock
from tests.records.store import take
from zae_limiter.repository_protocol import TRANSACT_WRITES_MAX
from zae_limiter.runtime.colour import run_sync
from zae_limiter.testing import ManualClock

EACH_RECORD = bool(os.environ.get("UPGRADE_EACH_RECORD"))
"""Whether each record goes on its own, which makes many writes to stop at."""

TOGETHER_MAX = 1 if EACH_RECORD else TRANSACT_WRITES_MAX
STEP = 1 if EACH_RECORD else 6
RACES = 20 if EACH_RECORD else 2
REQUESTS_MAX = 1_000
NEVER = 0
KILLED = str(-signal.SIGKILL)


DEMANDS: dict[str, list[tuple[str, str, dict[str, int]]]] = {
    **{one: [("hot", "gpt-4", {"rpd": 5}), ("user-2", "gpt-4", {"rpd": 1})] for one in VERSIONS},
    "0.17-kinds": [("hot", "any", {"msgs": 5}), ("kid", "soft", {"rpd": 9}), ("vip", "cal", {"day": 99})],
    "0.17-schedules": [("hot", "late", {"late": 5}), ("kid", "late", {"late": 9})],
}
"""What a client takes when a table is upgraded: of a bucket that had shards, and of a family."""


class Upgrades:
    """Tables that a release left, and the processes that upgrade them."""

    def __init__(self, rows: Rows, still: ManualClock, program: "subprocess.Popen[str]", of: str) -> None:
        self._rows, self._still, self._program = rows, still, program
        self._demands = DEMANDS[of]

    def table(self) -> str:
        table = make_table()
        batch_fill(table, self._rows)
        return table

    def ask(self, *words: object) -> str:
        """How the processes ended that do a task."""
        assert self._program.stdin is not None
        assert self._program.stdout is not None
        print(*words, file=self._program.stdin, flush=True)
        return self._program.stdout.readline().strip()

    def one(self, table: str, how: str = "SIGKILL", what: str = "write", at: int = NEVER) -> str:
        return self.ask("one", dynamodb_local.url(table), how, what, at)

    def race(self, table: str, seed: int) -> str:
        return self.ask("race", dynamodb_local.url(table), seed, seed + 1, seed + 2)

    def undisturbed(self) -> Rows:
        table = self.table()
        assert self.one(table) == "0"
        return rows_of(table)

    def use(self, table: str) -> None:
        """A client of this version takes something, of a bucket that had shards and of a family."""
        stage = OldStore("dynamodb", lambda: open_table(True, table, self._still.world), self._still)
        limiter = stage.limiter()
        for entity, resource, amounts in self._demands:
            run_sync(take(limiter, entity, resource, **amounts))
        run_sync(limiter.close())


@contextmanager
def upgrades(rows: Rows, still: ManualClock, path: Path, of: str) -> Iterator[Upgrades]:
    now_ms = still.world.now_ms()
    command = [sys.executable, "-m", "tests.older.upgrades", str(now_ms), str(TOGETHER_MAX)]
    with (
        (path / "told.txt").open("w") as told,
        subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=told, text=True
        ) as program,
    ):
        yield Upgrades(rows, still, program, of)


@pytest.fixture(params=RECORDINGS)
def they(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Upgrades]:
    """Upgrades of what a release left, a second after it was last used."""
    rows = recorded(request.param)
    with upgrades(rows, clock(rows), tmp_path, request.param) as they:
        yield they


def test_killed_in_front_of_every_write(they: Upgrades) -> None:
    """The next one ends in the table of one that nobody killed: every token, and all use once."""
    expected = they.undisturbed()
    for at in range(1, REQUESTS_MAX):
        table = they.table()
        if they.one(table, "SIGKILL", "write", at) != KILLED:
            break
        assert rows_of(table) != expected, at
        assert they.one(table) == "0", at
        assert rows_of(table) == expected, at
    assert at > (40 if EACH_RECORD else 10)


def test_asleep_while_another_one_does_everything(they: Upgrades) -> None:
    """And clients take tokens: whoever wakes up, with what it has read, changes nothing any more."""
    expected = they.undisturbed()
    for at in range(1, REQUESTS_MAX, STEP):
        table = they.table()
        if they.one(table, "SIGSTOP", "request", at) != "asleep":
            break
        assert they.one(table) == "0", at
        assert rows_of(table) == expected, at
        they.use(table)
        used = rows_of(table)
        assert they.ask("wake") == "0", at
        assert rows_of(table) == used, at
    assert at > (55 if EACH_RECORD else 20)


def test_several_at_once(they: Upgrades) -> None:
    """Each with a pace of its own: they share the work, and all of them succeed."""
    expected = they.undisturbed()
    for seed in range(0, RACES * 3, 3):
        table = they.table()
        assert they.race(table, seed) == "0 0 0", seed
        assert rows_of(table) == expected, seed


@pytest.mark.parametrize("shape", SHAPES)
def test_several_at_once_where_keys_had_no_namespace(shape: str, tmp_path: Path) -> None:
    """The same for the first tables: what was there is there once, and all of it in one namespace."""
    older = SHAPES[shape](20)
    with upgrades(older.items, ManualClock(NOW_MS), tmp_path, RECORDINGS[0]) as they:
        for seed in range(0, RACES * 3, 3):
            table = they.table()
            assert they.race(table, seed) == "0 0 0", seed
            rows = rows_of(table)
            assert old_rows(rows) == set()
            assert_same(rows, older.truth)
