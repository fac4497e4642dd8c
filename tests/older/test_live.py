"""Tables that older releases fill while the test runs: what they read, this version reads when upgraded."""

import json
from typing import Any

import pytest
from click.testing import CliRunner

from tests.dynamodb.tables import open_table
from tests.engines import dynamodb_local
from tests.older import fill
from tests.older.releases import VERSIONS, ask, rows_of
from zae_limiter import IncompatibleSchemaError, Limit, LimiterConfig, SyncRateLimiter, SyncRepository
from zae_limiter.cli.app import program
from zae_limiter.operate.migrations import Migration
from zae_limiter.runtime.colour import run_sync
from zae_limiter.runtime.world import World
from zae_limiter.schema import version_key

REFUSED = {
    "half a token": "in the window '* 9 * * *' it can hold 2.5",
    "scheduled quota": "it is a quota with a schedule",
    "two resets": "it is reset by more than one rule",
}
FENCE = ("schema_version", "client_min_version")
SERVED = ("another parent", "schedule", "lifted", "enabled", "cascade policy", "cascade of a resource")


def upgrade(table: str, *words: str) -> Any:
    store = dynamodb_local.url(table)
    return CliRunner().invoke(program, ["upgrade", "--store", store, "--output", "json", *words])


def begin(table: str) -> None:
    """The first write of an upgrade, after which somebody stops it."""
    backend = open_table(True, table, World())
    run_sync(Migration(backend)._begin())
    run_sync(backend.close())


def ours(table: str) -> Any:
    seen = fill.Table(dynamodb_local.endpoint(), table)
    said = fill.read(seen)
    seen.close()
    return json.loads(json.dumps(said, default=str))


@pytest.mark.parametrize("version", VERSIONS)
def test_every_read_is_the_same_after_an_upgrade(version: str) -> None:
    """Entities, families, levels, lists, debts, shards, namespaces, usage, audit; older clients are out."""
    table = dynamodb_local.fresh_table()
    theirs = ask(version, table, "fill")
    before = rows_of(table)
    planned = upgrade(table, "--dry-run")
    assert planned.exit_code == 0, planned.stderr
    plan = json.loads(planned.stdout)
    assert plan["schema"] == {"from": "0.9.0" if version == "0.10" else "0.10.0", "to": "1.0.0"}
    assert plan["records"]["entities"]["to_move"] == 8
    with pytest.raises(IncompatibleSchemaError, match="zae-limiter upgrade"):
        SyncRepository.open(store=dynamodb_local.url(table))
    assert rows_of(table) == before  # a plan changes nothing
    begin(table)
    assert ask(version, table, "open") == "IncompatibleSchemaError"
    with pytest.raises(IncompatibleSchemaError, match="are being moved"):
        SyncRepository.open(store=dynamodb_local.url(table))
    fence = rows_of(table)[version_key()]
    done = upgrade(table, "--yes")
    assert done.exit_code == 0, done.stderr
    assert json.loads(done.stdout)["late"] == 0
    found = ours(table)
    if version == "0.10":  # which adds copies of a shard that nobody has used to what there is
        for said in (theirs, found):
            capacity = said["default"]["capacity"]["gpt-4"]
            assert capacity.pop(0)[0] == "hot"
    assert found == theirs
    record = rows_of(table)[version_key()]
    assert {name: record[name] for name in FENCE} == {name: fence[name] for name in FENCE}
    assert json.loads(upgrade(table).stdout)["changed"] is False
    exported = CliRunner().invoke(program, ["limits", "export", "--store", dynamodb_local.url(table)])
    for name in ("user-0", "user-1", "user-2", "lonely", "img/xl"):
        assert name in exported.stdout
    planned = CliRunner().invoke(
        program, ["limits", "plan", "--store", dynamodb_local.url(table), "-f", "-"], input=exported.stdout
    )
    assert planned.exit_code in (0, 2), planned.stderr


def test_what_cannot_be_served_is_refused_before_anything_is_written() -> None:
    """Each kind by its name; the table stays as it was, and the older release goes on with it."""
    table = dynamodb_local.fresh_table()
    ask("0.17", table, "features", *REFUSED)
    before = rows_of(table)
    spaces = {
        str(item["namespace_id"]): str(item["namespace_name"])
        for key, item in before.items()
        if key.sort.startswith("#NSID#")
    }
    for words in (["--yes"], ["--dry-run"]):
        result = upgrade(table, *words)
        assert result.exit_code == 1
        assert "in the way, and nothing was changed" in result.stderr
    told: dict[str, list[str]] = {}
    for record in json.loads(result.stdout)["in_the_way"]:
        told.setdefault(spaces[record["pk"].partition("/")[0]], []).append(record["reason"])
    assert set(told) == {fill.space(feature) for feature in REFUSED}
    for feature, reason in REFUSED.items():
        assert any(reason in one for one in told[fill.space(feature)]), feature
    assert rows_of(table) == before
    said = ask("0.17", table, "works", *REFUSED)
    assert said == dict.fromkeys(REFUSED, "admitted")


def test_what_other_features_left_is_served() -> None:
    """A parent that was changed, and switches that nobody has thrown any more."""
    table = dynamodb_local.fresh_table()
    ask("0.17", table, "features", *SERVED)
    result = upgrade(table, "--yes")
    assert result.exit_code == 0, result.stderr
    with SyncRepository.open("another-parent", store=dynamodb_local.url(table)) as repository:
        assert [child.entity_id for child in repository.get_children("org")] == ["who"]
        latest, *_ = repository.get_audit_events("who")
        assert latest.action == "entity_parent_changed"
        (limit,) = repository.namespace("schedule").get_limits("who", resource="gpt-4")
        assert limit == Limit.per_day("rpd", 10).during("* 9 * * *", 5)
        for name in ("lifted", "enabled"):
            limiter = SyncRateLimiter(repository=repository.namespace(name))
            assert limiter.available("who", "gpt-4") == {"rpd": 9}
        assert repository.namespace("lifted").get_config("entity", "who") is None
        assert repository.namespace("enabled").get_config("entity", "who") == LimiterConfig(
            disabled=False, config_version=1
        )
