"""``zae-limiter upgrade`` of a table that an older release left, and what this version does not know."""

import asyncio
import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tests.migrations.old_store import fill
from tests.older.releases import recorded
from zae_limiter import (
    DamagedRecordError,
    Limit,
    RateLimiter,
    Repository,
    SyncRateLimiter,
    SyncRepository,
)
from zae_limiter.backends.sqlite import SqliteBackend
from zae_limiter.cli.app import program
from zae_limiter.cli.progress import Bar
from zae_limiter.operate.migrations import PassProgress
from zae_limiter.repository_protocol import Item, Key, Update
from zae_limiter.runtime.colour import run_sync
from zae_limiter.runtime.world import World
from zae_limiter.schema import audit_key, entity_config_key, resource_config_key, system_config_key


def stored(path: Path, rows: dict[Key, Item]) -> str:
    """A file that holds what an older release left in a table."""
    backend = SqliteBackend(path / "limits.db", sync=True, timeout_ms=10_000, world=World())
    run_sync(backend.setup())
    fill(backend, rows)
    run_sync(backend.close())
    return f"sqlite:///{path}/limits.db"


def run(store: str, *words: str) -> Result:
    return CliRunner().invoke(program, ["upgrade", "--store", store, *words], env={"COLUMNS": "120"})


def test_a_plan_says_what_will_be_done(tmp_path: Path) -> None:
    """In words, kind by kind, without a line of zeros."""
    result = run(stored(tmp_path, recorded("0.17")), "--dry-run")
    assert result.exit_code == 0
    lines = [line.split() for line in result.stdout.splitlines()]
    assert ["entities", "8", "0"] in lines
    assert ["manifest", "1", "0"] in lines
    assert "audit" not in [line[0] for line in lines if line]
    assert "schema 0.10.0 would become 1.0.0" in result.stdout
    assert "3 shards would come back to their buckets" in result.stdout
    assert "records would be rewritten where they are" in result.stdout
    assert "stop those that are running" in result.stdout


def test_success_says_which_schema(tmp_path: Path) -> None:
    """And how many records went where; each pass tells how many rows it read, and how fast."""
    store = stored(tmp_path, recorded("0.10"))
    result = run(store, "--yes")
    assert result.exit_code == 0, result.stderr
    assert "the store has schema 1.0.0 now; it was 0.9.0" in result.stdout
    assert ["buckets", "12", "0"] in [line.split() for line in result.stdout.splitlines()]
    assert "cleaning up: " in result.stderr
    assert run(store).stdout == "nothing to do: the store has schema 1.0.0\n"


def test_progress_has_a_rate_and_an_end(capsys: pytest.CaptureFixture[str]) -> None:
    """Off a terminal a line for each tenth, and one when it is over."""
    ticks = iter(range(0, 10_000_000, 500))
    bar = Bar(lambda: float(next(ticks)))
    for done in range(0, 1000, 50):
        bar.show(PassProgress("buckets", done, 1000))
    bar.show(PassProgress("buckets", 1000, 1000, is_over=True))
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 10
    assert lines[0].startswith("buckets: 100 of 1,000 rows, ")
    assert lines[0].endswith(" rows/s")
    assert lines[-1].startswith("buckets: 1,000 rows, ")


def test_records_in_the_way_are_named(tmp_path: Path) -> None:
    """On the error stream for people, as data for programs; nothing is asked and nothing is changed."""
    rows = recorded("0.17")
    key = next(key for key in rows if key.sort == "#CONFIG#_default_")
    strange = {**rows[key], "disabled": "maybe", "moon": "full"}
    store = stored(tmp_path, rows | {key: strange})
    result = run(store, "--yes")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "1 record is in the way, and nothing was changed" in result.stderr
    reason = "it is disabled; nobody knows what 'moon' says"
    assert f"{key.partition} #CONFIG#_default_: " in result.stderr
    result = run(store, "--dry-run", "--output", "json")
    (told,) = json.loads(result.stdout)["in_the_way"]
    assert sorted(told["reason"].split("; ")) == sorted(reason.split("; "))
    assert result.exit_code == 1


SETTINGS = {
    "disabled": (True, "it is disabled"),
    "l_rpm_sched": ("1s500", "limit 'rpm' has a schedule"),
    "l_rpm_soft": (True, "limit 'rpm' is soft"),
    "moon": ("full", "nobody knows what 'moon' says"),
}


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("level", ["entity", "entity default", "resource", "system"])
@pytest.mark.parametrize("store", ["memory", "sqlite"])
def test_what_a_level_says_is_never_left_out(store: str, level: str, setting: str, tmp_path: Path) -> None:
    """Whoever is disabled by another version is not admitted by this one, whatever ``allow`` says."""
    url = "memory://" if store == "memory" else f"sqlite:///{tmp_path}/limits.db"
    value, reason = SETTINGS[setting]
    with SyncRepository.open(store=url, config_cache_ttl=0) as repository:
        repository.create_entity("user-1")
        limits = [Limit.per_minute("rpm", 10)]
        repository.set_system_defaults(limits, on_unavailable="allow")
        repository.set_resource_defaults("gpt-4", limits)
        repository.set_limits("user-1", limits)
        repository.set_limits("user-1", limits, resource="gpt-4")
        space = repository.namespace_id
        key = {
            "entity": entity_config_key(space, "user-1", "gpt-4"),
            "entity default": entity_config_key(space, "user-1", "_default_"),
            "resource": resource_config_key(space, "gpt-4"),
            "system": system_config_key(space),
        }[level]
        run_sync(repository._async._backend.write_each([Update(key, set={setting: value})]))
        limiter = SyncRateLimiter(repository=repository)
        with pytest.raises(DamagedRecordError, match=reason), limiter.acquire("user-1", "gpt-4", {"rpm": 1}):
            pass
        if level == "entity" and setting != "moon":
            with pytest.raises(DamagedRecordError, match=reason):  # it would lift what the other version set
                repository.set_limits("user-1", limits, resource="gpt-4")
            repository.delete_limits("user-1", resource="gpt-4")
            with limiter.acquire("user-1", "gpt-4", {"rpm": 1}):
                pass


def test_async_twins_leave_nothing_out_either() -> None:
    """The same for whoever awaits."""

    async def scenario() -> None:
        repository = await Repository.open(store="memory://", config_cache_ttl=0)
        await repository.set_resource_defaults("gpt-4", [Limit.per_minute("rpm", 10)])
        key = resource_config_key(repository.namespace_id, "gpt-4")
        await repository._backend.write_each([Update(key, set={"disabled": True})])
        limiter = RateLimiter(repository=repository)
        with pytest.raises(DamagedRecordError, match="it is disabled"):
            async with limiter.acquire("user-1", "gpt-4", {"rpm": 1}):
                pass
        await repository.close()

    asyncio.run(scenario())


def test_events_of_unknown_kinds_are_shown() -> None:
    """By the word that was written."""
    with SyncRepository.open(store="memory://") as repository:
        repository.create_entity("user-1")
        (event,) = repository.get_audit_events("user-1")
        key = audit_key(repository.namespace_id, "user-1", event.event_id)
        run_sync(repository._async._backend.write_each([Update(key, set={"action": "entity_renamed"})]))
        (event,) = repository.get_audit_events("user-1")
        assert event.action == "entity_renamed"
