"""Every command on an embedded store: what it changes, what it prints, how it ends."""

import json
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import click
import pytest

from tests.cli.conftest import Run
from zae_limiter import BucketState, Limit, SyncRateLimiter, cli
from zae_limiter.cli.app import program
from zae_limiter.cli.commands import ABOUT, PLACES
from zae_limiter.cli.entity import bucket_levels
from zae_limiter.repository_protocol import Put
from zae_limiter.runtime.colour import run_sync
from zae_limiter.schema import bucket_entries, bucket_key

RPM = {"name": "rpm", "capacity": 60, "refill_amount": 60, "refill_period_seconds": 60}
TPM = {"name": "tpm", "capacity": 5000, "refill_amount": 1000, "refill_period_seconds": 1}


def data_of(run: Run, *words: str) -> Any:
    """What a command prints as JSON, and nothing beside it."""
    result = run(*words[:2], "--output", "json", *words[2:])
    assert (result.exit_code, result.stderr) == (0, "")
    return json.loads(result.stdout)


def done(run: Run, *words: str) -> str:
    """What a command that changes something says; it prints no data."""
    result = run(*words)
    assert (result.exit_code, result.stdout) == (0, "")
    return result.stderr


def test_a_session_with_entities(run: Run) -> None:
    """Create, show, list, delete; the audit trail has it all."""
    assert done(run, "entity", "create", "team", "--display-name", "The team") == "created entity 'team'\n"
    words = ("--parent", "team", "--cascade", "--metadata", '{"plan": "free"}', "--principal", "ops")
    made = data_of(run, "entity", "create", "user-1", *words)
    shown = data_of(run, "entity", "show", "user-1")
    assert shown.pop("ancestors") == ["team"]
    assert (shown.pop("disabled"), shown.pop("bypass")) == (None, None)
    assert made == shown
    assert {**shown, "created_at": "?"} == {
        "entity_id": "user-1",
        "name": None,
        "parent_id": "team",
        "cascade": True,
        "metadata": {"plan": "free"},
        "created_at": "?",
        "version": 1,
    }
    table = run("entity", "show", "team").stdout
    assert "The team" in table
    listed = data_of(run, "entity", "list")
    assert [one["entity_id"] for one in listed["entities"]] == ["team", "user-1"]
    children = data_of(run, "entity", "list", "--parent", "team")
    assert [one["entity_id"] for one in children["entities"]] == ["user-1"]
    assert done(run, "entity", "delete", "user-1", "--yes") == "deleted entity 'user-1'\n"
    assert data_of(run, "entity", "delete", "team", "-y") == {"deleted": "team"}
    assert data_of(run, "entity", "list") == {"entities": [], "switches": [], "cursor": None}
    events = data_of(run, "audit", "list", "--entity-id", "user-1")
    assert [(e["action"], e["principal"]) for e in events] == [
        ("entity_deleted", None),
        ("entity_created", "ops"),
    ]
    older = data_of(run, "audit", "list", "-e", "user-1", "--start-event-id", events[0]["event_id"])
    assert older == events[1:]
    assert "entity_deleted" in run("audit", "list", "-e", "user-1", "--limit", "1").stdout


def test_a_list_of_entities_comes_in_pages(run: Run) -> None:
    """The cursor of a page leads to the next one."""
    for name in ("a", "b", "c"):
        done(run, "entity", "create", name)
    first = data_of(run, "entity", "list", "--limit", "2")
    second = data_of(run, "entity", "list", "--limit", "2", "--cursor", first["cursor"])
    assert [one["entity_id"] for page in (first, second) for one in page["entities"]] == ["a", "b", "c"]
    assert second["cursor"] is None
    shown = run("entity", "list", "--limit", "2")
    assert shown.stderr == f"there are more: --cursor {first['cursor']}\n"


def test_a_session_with_limits_of_an_entity(run: Run) -> None:
    """Set, get, find, delete, for one resource and for all."""
    said = done(
        run, "entity", "set-limits", "user-1", "-r", "gpt-4", "-l", "rpm:60", "-l", "tpm:1000/sec:5000"
    )
    assert said == "set the limits of 'user-1' on 'gpt-4': rpm:60/min, tpm:1000/sec:5000\n"
    assert data_of(run, "entity", "get-limits", "user-1", "--resource", "gpt-4") == [RPM, TPM]
    assert data_of(run, "entity", "get-limits", "user-1") == []
    assert data_of(run, "entity", "set-limits", "user-1", "--limit", "rpm:60") == [RPM]
    assert data_of(run, "entity", "list-resources") == ["_default_", "gpt-4"]
    found = data_of(run, "entity", "list", "--with-custom-limits", "gpt-4")
    assert [one["entity_id"] for one in found["entities"]] == ["user-1"]
    assert "-l tpm:1000/sec:5000" in run("entity", "get-limits", "user-1", "-r", "gpt-4").stdout
    assert done(run, "entity", "delete-limits", "user-1", "-r", "gpt-4", "--yes")
    assert data_of(run, "entity", "get-limits", "user-1", "-r", "gpt-4") == []
    assert data_of(run, "entity", "list-resources") == ["_default_"]
    assert "_default_" in run("entity", "list-resources").stdout


def test_a_session_with_defaults(run: Run) -> None:
    """Those of resources and those of the system, with their policy, and their audit."""
    assert done(run, "resource", "set-defaults", "gpt-4", "-l", "rpm:60", "--principal", "ops")
    assert data_of(run, "resource", "get-defaults", "gpt-4") == [RPM]
    assert data_of(run, "resource", "list") == ["gpt-4"]
    assert "gpt-4" in run("resource", "list").stdout
    assert "rpm" in run("resource", "get-defaults", "gpt-4").stdout
    assert data_of(run, "resource", "delete-defaults", "gpt-4", "--yes") == {"deleted": "gpt-4"}
    assert data_of(run, "resource", "list") == []
    events = data_of(run, "audit", "list", "--resource", "gpt-4")
    assert [(e["action"], e["principal"]) for e in events] == [
        ("limits_deleted", None),
        ("limits_set", "ops"),
    ]

    nothing = dict.fromkeys(("auto_update", "strict_version", "disabled", "bypass", "cascade"))
    assert done(run, "system", "set-defaults", "-l", "rpm:60", "--on-unavailable", "allow")
    stored = data_of(run, "system", "get-defaults")
    assert stored.pop("config_version") > 0
    assert stored == {"limits": [RPM], "on_unavailable": "allow", **nothing}
    table = run("system", "get-defaults").stdout
    assert "allow" in table
    assert "rpm" in table
    assert data_of(run, "system", "delete-defaults", "--yes") == {"deleted": "system"}
    gone = data_of(run, "system", "get-defaults")
    assert gone == {"limits": [], "on_unavailable": None, **nothing, "config_version": 0}
    assert run("system", "get-defaults").exit_code == 0
    assert len(data_of(run, "audit", "list", "--system")) == 2


def test_a_session_with_config(run: Run) -> None:
    """Each level as a whole; what ``get`` writes, ``set`` reads; a policy stays until it is replaced."""
    slow = [{"name": "slow", "capacity": 5, "refill_amount": 1, "refill_period_seconds": 30}]
    text = json.dumps(slow)
    assert done(run, "config", "set", "--level", "system", "--limits", text, "--on-unavailable", "allow")
    data_of(run, "config", "set", "--level", "system", "--limits", json.dumps([RPM]))
    system = data_of(run, "config", "get", "--level", "system")
    assert (system["limits"], system["on_unavailable"]) == ([RPM], "allow")

    at = ("--level", "resource", "--resource", "gpt-4")
    assert data_of(run, "config", "set", *at, "--limits", text)["limits"] == slow
    assert data_of(run, "resource", "get-defaults", "gpt-4") == slow
    at = ("--level", "entity", "--identifier", "user-1", "--resource", "gpt-4")
    assert done(run, "config", "set", *at, "--limits", text) == (
        "set the entity level of 'user-1' for 'gpt-4': slow:1/30s:5\n"
    )
    assert data_of(run, "config", "get", *at)["limits"] == slow
    assert "slow" in run("config", "get", *at).stdout


def test_a_session_with_namespaces(run: Run) -> None:
    """Register, work in, delete, recover, purge; even the default one can go."""
    made = data_of(run, "namespace", "register", "acme", "globex")
    assert [(one["namespace_name"], one["status"]) for one in made] == [
        ("acme", "active"),
        ("globex", "active"),
    ]
    assert data_of(run, "namespace", "register", "acme") == made[:1]
    assert data_of(run, "namespace", "list") == made
    assert data_of(run, "namespace", "show", "acme") == made[0]
    assert "active" in run("namespace", "show", "acme").stdout

    done(run, "entity", "create", "user-1", "--namespace", "acme")
    assert run("entity", "show", "user-1", "-N", "acme").exit_code == 0
    assert run("entity", "show", "user-1", "-N", "globex").exit_code == 4
    assert run("entity", "show", "user-1").exit_code == 4

    acme = made[0]["namespace_id"]
    assert acme in done(run, "namespace", "delete", "acme", "--yes")
    assert [one["namespace_id"] for one in data_of(run, "namespace", "orphans")] == [acme]
    assert data_of(run, "namespace", "recover", "--", acme)["status"] == "active"
    assert run("entity", "show", "user-1", "-N", "acme").exit_code == 0
    assert data_of(run, "namespace", "delete", "acme", "-y")["status"] == "deleted"
    assert "deleted" in run("namespace", "orphans").stdout
    purged = data_of(run, "namespace", "purge", "--yes", "--", acme)
    assert purged["namespace_id"] == acme
    assert purged["items"] > 0
    assert data_of(run, "namespace", "orphans") == []

    done(run, "entity", "create", "user-1")
    default = data_of(run, "namespace", "show", "default")["namespace_id"]
    done(run, "namespace", "delete", "default", "--yes")
    assert [one["namespace_name"] for one in data_of(run, "namespace", "list")] == ["globex"]
    assert run("namespace", "recover", "--", default).exit_code == 0
    assert data_of(run, "namespace", "show", "default")["namespace_id"] == default


def test_buckets_are_shown_as_bars(run: Run, limiter: SyncRateLimiter) -> None:
    """Every resource the entity used, what is left, and when it will be full again."""
    assert data_of(run, "entity", "buckets", "user-1") == []
    assert run("entity", "buckets", "user-1").stderr == "'user-1' has no buckets yet\n"
    limits = [Limit("day", 100, 100, 86400), Limit("debt", 10, 10, 86400)]
    for resource in ("gpt-4", "gpt-3"):
        with limiter.acquire("user-1", resource, {"day": 50, "debt": 1}, limits) as lease:
            lease.adjust(debt=11)
    rows = data_of(run, "entity", "buckets", "user-1")
    assert [(row["resource"], row["limit"], row["available"], row["capacity"]) for row in rows] == [
        ("gpt-3", "day", 50, 100),
        ("gpt-3", "debt", -2, 10),
        ("gpt-4", "day", 50, 100),
        ("gpt-4", "debt", -2, 10),
    ]
    assert rows[0]["total_consumed"] == 50
    assert rows[0]["full_in_seconds"] == pytest.approx(43200, abs=60)
    assert data_of(run, "entity", "buckets", "user-1", "--resource", "gpt-4") == [
        {**row, "full_in_seconds": pytest.approx(row["full_in_seconds"], abs=60)} for row in rows[2:]
    ]
    day, debt = run("entity", "buckets", "user-1", "-r", "gpt-4").stdout.splitlines()[2:]
    assert f"    │{'█' * 10}{'░' * 10} " in day
    assert f"████│{'░' * 20} " in debt


SHARD = ("user-1", "gpt-4")


def test_the_shards_of_a_bucket_are_added_up() -> None:
    """What users see is one bucket; it is full when its last shard is."""
    shards = [
        BucketState("a", "gpt-4", "rpm", tokens, 0, 30_000, 30_000, 60_000, spent)
        for tokens, spent in ((10_500, 19_500), (-5_500, 35_500))
    ]
    assert bucket_levels(shards, now_ms=0) == [
        {
            "resource": "gpt-4",
            "limit": "rpm",
            "shards": 2,
            "available": 5,
            "capacity": 60,
            "full_in_seconds": 71.0,
            "total_consumed": 55,
        }
    ]
    apart = bucket_levels([replace(one, shard_id=n) for n, one in enumerate(shards)], 0, by_shard=True)
    assert [(row["shard"], row["available"], row["capacity"]) for row in apart] == [(0, 10, 30), (1, -6, 30)]
    assert bucket_levels(shards[:1], 0)[0]["shards"] == 1


def test_the_shards_of_a_bucket_are_shown(run: Run, limiter: SyncRateLimiter) -> None:
    """How many there are, and each by itself if that is asked for."""
    limits = [Limit("day", 100, 100, 86400)]
    with limiter.acquire("user-1", "gpt-4", {"day": 50}, limits):
        pass
    repository = limiter.repository
    (image,) = run_sync(
        repository._async._backend.batch_get([bucket_key(repository.namespace_id, *SHARD, 0)])
    )
    entries = bucket_entries(repository.namespace_id, *SHARD, 1)
    other = {**(image or {}), **entries, "b_day_tk": -10_000}
    repository.write_each([Put(bucket_key(repository.namespace_id, *SHARD, 1), other)])
    both = run("entity", "buckets", "user-1").stdout.splitlines()
    assert both[0].split() == ["resource", "limit", "shards", "level", "available", "capacity", "full", "in"]
    assert both[2].split()[2:3] + both[2].split()[4:6] == ["2", "40", "200"]
    apart = run("entity", "buckets", "user-1", "--shards").stdout.splitlines()
    assert apart[0].split()[2] == "shard"
    # The bars are as long as the terminal allows.
    assert [line.split()[2:4] for line in apart[2:]] == [
        ["0", "│" + "█" * 8 + "▌" + "░" * 8],
        ["1", "█│" + "░" * 17],
    ]


def test_version_needs_no_store(run: Run, tmp_path: Path) -> None:
    """It says what is installed and touches nothing."""
    assert set(data_of(run, "version")) == {"client", "schema", "python"}
    assert "1.0.0" in run("version").stdout
    assert not (tmp_path / "limits.db").exists()


def test_the_store_is_chosen_like_in_the_library(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The option, then the environment, then a file of the user's own."""
    done(run, "entity", "create", "a", "--store", "sqlite:///other.db")
    assert run("entity", "show", "a").exit_code == 4
    assert (tmp_path / "other.db").exists()
    monkeypatch.delenv("ZAE_LIMITER_STORE")
    done(run, "entity", "create", "b")
    assert (tmp_path / "state" / "zae-limiter" / "limits.db").exists()


def test_a_namespace_that_was_named_is_not_made(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """A typo makes nothing, neither in the option nor in the environment."""
    data_of(run, "namespace", "register", "acme")
    assert run("entity", "create", "a", "-N", "typo").exit_code == 4
    monkeypatch.setenv("ZAEL_NAMESPACE", "typo")
    assert run("entity", "create", "a").exit_code == 4
    assert [one["namespace_name"] for one in data_of(run, "namespace", "list")] == ["acme"]


@pytest.mark.parametrize(
    "words",
    [
        ("entity", "delete", "user-1"),
        ("entity", "delete-limits", "user-1"),
        ("resource", "delete-defaults", "gpt-4"),
        ("system", "delete-defaults"),
        ("namespace", "delete", "default"),
    ],
)
def test_destruction_is_confirmed(run: Run, words: tuple[str, ...]) -> None:
    """No, silence and anything but yes change nothing; yes does."""
    done(run, "entity", "create", "user-1")
    done(run, "entity", "set-limits", "user-1", "-l", "rpm:60")
    done(run, "resource", "set-defaults", "gpt-4", "-l", "rpm:60")
    done(run, "system", "set-defaults", "-l", "rpm:60")

    def state() -> list[str]:
        return [
            run("namespace", "list").stdout,
            run("entity", "list").stdout,
            run("entity", "get-limits", "user-1").stdout,
            run("resource", "list").stdout,
            run("system", "get-defaults").stdout,
        ]

    before = state()
    for answer in ("n\n", "\n", ""):
        result = run(*words, answer=answer)
        assert (result.exit_code, result.stdout.strip()) == (1, "")
        assert "nothing was changed" in result.stderr
    assert state() == before
    assert run(*words, answer="y\n").exit_code == 0
    assert state() != before


def test_purging_is_confirmed(run: Run) -> None:
    """The data of a namespace is still there after a no."""
    (made,) = data_of(run, "namespace", "register", "acme")
    done(run, "namespace", "delete", "acme", "--yes")
    assert run("namespace", "purge", "--", made["namespace_id"], answer="n\n").exit_code == 1
    assert len(data_of(run, "namespace", "orphans")) == 1


def test_names_from_the_store_cannot_steer_the_terminal(run: Run) -> None:
    """Control characters are shown, markup is taken literally, JSON keeps the text as it is."""
    name = "[red]x\x1b[2J\nnext"
    done(run, "entity", "create", "a", "--display-name", name)
    shown = run("entity", "list").stdout
    assert "\x1b" not in shown
    assert "[red]x\\x1b[2J" in shown.replace("\n", "")
    assert data_of(run, "entity", "show", "a")["name"] == name


def test_a_table_fits_its_width(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Long values are folded, never cut off."""
    done(run, "entity", "create", "a" * 200)
    monkeypatch.setenv("COLUMNS", "60")
    shown = run("entity", "list").stdout
    assert max(len(line) for line in shown.splitlines()) <= 60
    assert shown.count("a") >= 200


@pytest.mark.parametrize("name", PLACES)
def test_the_list_of_commands_says_what_they_say(name: str) -> None:
    """What help shows of a command without loading it is the first sentence of its own help."""
    command = program.commands[name]
    assert command.name == name
    assert not command.hidden
    assert command.get_short_help_str(limit=1000) == ABOUT[name]


def test_no_command_is_left_out_of_the_list() -> None:
    """A module of the command line that makes a command of the program has a place in the table."""
    made = {
        one
        for path in Path(cli.__file__).parent.glob("*.py")
        if path.stem not in {"__main__", "app"}
        for one in vars(import_module(f"zae_limiter.cli.{path.stem}")).values()
        if isinstance(one, click.Command)
    }
    inner = {one for group in made if isinstance(group, click.Group) for one in group.commands.values()}
    assert {one.name for one in made - inner} == {*PLACES}
