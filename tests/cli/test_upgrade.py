"""``zae-limiter upgrade`` from end to end, on files and on DynamoDB Local."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Run
from tests.dynamodb.tables import driver, open_table
from tests.engines import dynamodb_local
from tests.migrations.old_store import OldStore, assert_same, fill, old_rows
from tests.migrations.older import NOW_MS, SHAPES, Table, composite_table, single_table
from tests.migrations.test_indexes import older_table
from tests.patience import PATIENCE_SECONDS
from zae_limiter import (
    IncompatibleSchemaError,
    InfrastructureNotFoundError,
    StackOperationError,
    SyncRepository,
)
from zae_limiter.backends.sqlite import SqliteBackend
from zae_limiter.cli import upgrade as command
from zae_limiter.operate.migrations import Migration
from zae_limiter.operate.migrations import MigrationStage as Step
from zae_limiter.repository_protocol import Delete, Key, Update
from zae_limiter.runtime.colour import run_sync
from zae_limiter.runtime.world import World
from zae_limiter.schema import version_key
from zae_limiter.testing import ManualClock

FOREIGN = Key("CUSTOMER#1", "#PROFILE")


def file_stage(path: Path, table: Table | None = None) -> OldStore:
    """The file that commands use, full of old records."""

    def opened() -> SqliteBackend:
        return SqliteBackend(path / "limits.db", sync=True, timeout_ms=10_000, world=World())

    stage = OldStore("sqlite", opened, ManualClock(NOW_MS))
    run_sync(stage.backend.setup())
    if table is not None:
        stage.fill(table)
    return stage


def said(run: Run, *words: str) -> dict[str, Any]:
    result = run("upgrade", *words, "--output", "json")
    assert result.exit_code == 0, result.stderr
    data: dict[str, Any] = json.loads(result.stdout)
    return data


def test_nothing_to_do_is_success(run: Run, tmp_path: Path) -> None:
    """On a store of this version, and on one that nobody has used yet."""
    assert run("entity", "create", "user-1").exit_code == 0
    result = run("upgrade")
    assert (result.exit_code, result.stdout) == (0, "nothing to do: the store has schema 1.0.0\n")
    assert said(run)["changed"] is False
    before = file_stage(tmp_path).rows()
    assert run("upgrade", "--force").exit_code == 0
    assert file_stage(tmp_path).rows() == before
    assert said(run, "--store", "memory://")["changed"] is False


def test_a_mistyped_name_makes_nothing(run: Run, tmp_path: Path) -> None:
    """Neither a file nor a table."""
    result = run("upgrade", "--yes", "--store", "sqlite:///limts.db")
    assert (result.exit_code, list(tmp_path.glob("*.db"))) == (4, [])
    result = run("upgrade", "--yes", "--store", dynamodb_local.url("no-such-table"))
    assert result.exit_code == 4
    assert "'no-such-table' does not exist" in result.stderr
    assert "no-such-table" not in driver().list_tables()["TableNames"]


@pytest.mark.parametrize("shape", SHAPES)
def test_a_dry_run_writes_nothing(run: Run, tmp_path: Path, shape: str) -> None:
    """It tells what it would do, by kind, and what it would leave alone."""
    table = SHAPES[shape](30)
    stage = file_stage(tmp_path, table)
    fill(stage.backend, {FOREIGN: {"x": 1}})
    before = stage.rows()
    data = said(run, "--dry-run")
    assert stage.rows() == before
    assert data["records"]["entities"] == {"to_move": len(table.truth.entities), "moved": 0}
    assert data["schema"] == {"from": "0.8.0", "to": "1.0.0"}
    assert data["left_alone_records"][0]["pk"] == FOREIGN.partition
    told = run("upgrade", "--dry-run")
    assert ["entities", str(len(table.truth.entities)), "0"] in [
        line.split() for line in told.stdout.splitlines()
    ]
    assert "old records would be deleted" in told.stdout
    assert "CUSTOMER#1 #PROFILE" in told.stdout
    assert stage.rows() == before


def test_nobody_is_asked_in_vain(run: Run, tmp_path: Path) -> None:
    """Whoever says no, or nothing, changes nothing."""
    stage = file_stage(tmp_path, composite_table(10))
    before = stage.rows()
    for answer in ("n\n", ""):
        result = run("upgrade", answer=answer)
        assert result.exit_code == 1
        assert "old records and delete them" in result.stderr
    assert stage.rows() == before
    assert run("upgrade", answer="y\n").exit_code == 0
    assert old_rows(stage.rows()) == set()


@pytest.mark.parametrize("shape", SHAPES)
def test_an_upgraded_file_is_used_at_once(run: Run, tmp_path: Path, shape: str) -> None:
    """What was refused before works after, and a second upgrade has nothing to do."""
    table = SHAPES[shape](60)
    stage = file_stage(tmp_path, table)
    data = said(run, "--yes")
    assert (data["changed"], data["late"], data["lambda_updated"]) == (True, 0, None)
    assert data["records"]["usage"] == {"moved": len(table.truth.usage), "superseded": 0}
    assert_same(stage.rows(), table.truth)
    name = next(name for name in table.truth.entities if name.startswith("user"))
    assert json.loads(run("entity", "show", name, "--output", "json").stdout)["version"] >= 1
    assert said(run)["changed"] is False


def test_old_records_are_kept_on_request(run: Run, tmp_path: Path) -> None:
    """And deleted by a later upgrade that is not asked to keep them."""
    table = single_table(20)
    stage = file_stage(tmp_path, table)
    fill(stage.backend, {FOREIGN: {"x": 1}})
    assert said(run, "--yes", "--keep-old")["deleted"] == 0
    assert len(old_rows(stage.rows())) == len(table.items)
    assert said(run, "--keep-old")["changed"] is False
    assert said(run, "--yes")["deleted"] == len(table.items) - 1
    assert old_rows(stage.rows()) == {FOREIGN}


def test_other_commands_leave_an_older_store_alone(run: Run, tmp_path: Path) -> None:
    """They say what to do, and write nothing; not even the namespace that they would work in."""
    stage = file_stage(tmp_path, composite_table(5))
    before = stage.rows()
    for words in (["entity", "list"], ["entity", "create", "user-1"], ["limits", "export"]):
        result = run(*words)
        assert (result.exit_code, result.stdout) == (1, "")
        assert "zae-limiter upgrade" in result.stderr
    assert stage.rows() == before


def test_a_version_record_that_was_lost_is_written_again(run: Run, tmp_path: Path) -> None:
    """Without it nobody can tell an upgraded table from an old one, so clients ask for an upgrade."""
    stage = file_stage(tmp_path, composite_table(5))
    assert said(run, "--yes")["changed"] is True
    run_sync(stage.backend.write_each([Delete(version_key())]))
    with pytest.raises(IncompatibleSchemaError, match="zae-limiter upgrade"):
        SyncRepository.open(store=f"sqlite:///{tmp_path}/limits.db")
    assert said(run, "--yes")["changed"] is True
    SyncRepository.open(store=f"sqlite:///{tmp_path}/limits.db").close()


def test_older_clients_that_go_on_are_an_error(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The data is printed all the same, and the way out is told."""
    file_stage(tmp_path, composite_table(5))

    async def clean(migration: Migration) -> None:
        migration.report.late = 2

    monkeypatch.setattr(Migration, "clean", clean)
    result = run("upgrade", "--yes", "--output", "json")
    assert (result.exit_code, json.loads(result.stdout)["late"]) == (1, 2)
    assert "stop the older clients" in result.stderr


def test_a_newer_store_is_left_alone(run: Run, tmp_path: Path) -> None:
    """A table is never turned back; a smaller difference is only noted."""
    assert run("entity", "create", "user-1").exit_code == 0
    stage = file_stage(tmp_path)
    for version, code, after in (("0.9.0", 0, "1.0.0"), ("2.0.0", 1, "2.0.0"), ("1.7.0", 0, "1.7.0")):
        run_sync(stage.backend.write_each([Update(version_key(), set={"schema_version": version})]))
        assert run("upgrade", "--yes").exit_code == code
        assert stage.rows()[version_key()]["schema_version"] == after


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("--namespace", "team"), "leave out --namespace"),
        (("--lambda-only",), "needs a DynamoDB table"),
        (("--lambda-only", "--dry-run", "--store", "dynamodb://limits"), "--dry-run"),
    ],
)
def test_contradictions(run: Run, tmp_path: Path, words: tuple[str, ...], reason: str) -> None:
    """Are told before anything is looked at."""
    file_stage(tmp_path)
    result = run("upgrade", *words)
    assert result.exit_code == 2
    assert reason in result.stderr


# The function.


class Manager:
    """Stands for the stack."""

    answer: Any = True

    def __init__(self, url: str, **_: Any) -> None:
        assert url == "dynamodb://limits?region=eu-west-1"

    async def update_lambda(self, force: bool) -> bool:
        if isinstance(self.answer, Exception):
            raise self.answer
        return bool(self.answer or force)

    async def close(self) -> None:
        pass


@pytest.mark.parametrize(
    ("words", "answer", "code", "changed"),
    [
        ((), True, 0, True),
        ((), False, 0, False),
        (("--force",), False, 0, True),
        ((), InfrastructureNotFoundError("stack 'limits' does not exist; deploy it"), 4, None),
        ((), StackOperationError("access denied"), 3, None),
    ],
)
def test_the_function_alone(
    run: Run, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], answer: Any, code: int, changed: Any
) -> None:
    """The table is not even looked at."""
    monkeypatch.setattr("zae_limiter.infra.stack_manager.manager_of", Manager)
    monkeypatch.setattr(Manager, "answer", answer)
    store = ("--name", "limits", "--region", "eu-west-1")
    result = run("upgrade", "--lambda-only", *store, *words, "--output", "json")
    assert result.exit_code == code, result.stderr
    if changed is not None:
        assert json.loads(result.stdout)["lambda_updated"] is changed


# DynamoDB.


def dynamodb_stage(table: str) -> OldStore:
    clock = ManualClock(NOW_MS)
    return OldStore("dynamodb", lambda: open_table(True, table, clock.world), clock)


@pytest.mark.usefixtures("engine_that_builds")
def test_a_table_of_the_first_shape(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Indexes are added, records moved, the function looked for, and clients let in."""
    monkeypatch.setattr(command, "update_function", lambda *_, **__: True)
    name, old = older_table("GSI1", "GSI2"), single_table(15)
    stage, store = dynamodb_stage(name), dynamodb_local.url(name, timeout_ms=30_000)
    stage.fill(old)
    refused = run("entity", "list", "--store", store)
    assert (refused.exit_code, "zae-limiter upgrade" in refused.stderr) == (1, True)
    planned = said(run, "--dry-run", "--store", store)
    assert planned["indexes"] == ["GSI3", "GSI4"]
    assert "GSI3" not in str(driver().describe_table(TableName=name)["Table"]["GlobalSecondaryIndexes"])
    data = said(run, "--yes", "--store", store)
    assert (data["indexes"], data["lambda_updated"]) == (["GSI3", "GSI4"], True)
    assert_same(stage.rows(), old.truth)
    assert run("entity", "list", "--store", store).exit_code == 0
    run_sync(stage.backend.close())


def test_killed_for_good_and_run_again(run: Run) -> None:
    """``kill -9`` in the middle of it: the next run goes on, and nothing is lost or doubled."""
    name, old = older_table("GSI1", "GSI2", "GSI3", "GSI4"), single_table(60)
    stage, store = dynamodb_stage(name), dynamodb_local.url(name, timeout_ms=30_000)
    stage.fill(old)
    process = subprocess.Popen(
        [sys.executable, "-m", "zae_limiter.cli", "upgrade", "--yes", "--store", store],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + PATIENCE_SECONDS
    while "moved_to" not in str(stage.rows().values()) and process.poll() is None:
        assert time.monotonic() < deadline
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert run_sync(Migration(stage.backend).state()).stage in (Step.MOVING, Step.FOLLOWING)
    data = said(run, "--yes", "--store", store)
    assert data["late"] == 0
    rows = stage.rows()
    assert old_rows(rows) == set()
    assert_same(rows, old.truth)
    run_sync(stage.backend.close())


def test_an_unreachable_table_can_be_upgraded_later(run: Run) -> None:
    """The failure says that nothing is lost."""
    store = "dynamodb://limits?region=eu-west-1&endpoint_url=http://127.0.0.1:1"
    result = run("upgrade", "--yes", "--store", store)
    assert result.exit_code == 3
