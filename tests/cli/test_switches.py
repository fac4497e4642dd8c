"""``disable``, ``enable`` and ``bypass``: what they store and refuse, and what ``explain`` makes of it."""

import pytest

from tests.cli.conftest import Run
from tests.cli.test_commands import data_of, done
from zae_limiter import LimiterConfig, SyncRateLimiter

OFF = ("--reason", "maintenance")


@pytest.mark.parametrize(
    ("options", "level", "told"),
    [
        (("--yes",), ("system",), "everything"),
        (("--resource", "gpt-4"), ("resource", "gpt-4"), "resource 'gpt-4'"),
        (("--entity", "alice"), ("entity", "alice"), "'alice'"),
        (("-e", "alice", "-r", "gpt-4"), ("entity", "alice", "gpt-4"), "'alice' on 'gpt-4'"),
    ],
)
def test_a_switch_of_every_level(
    run: Run, limiter: SyncRateLimiter, options: tuple[str, ...], level: tuple[str, ...], told: str
) -> None:
    """It is thrown where the options say, by whom they say, and undone by the same ones."""
    place = tuple(one for one in options if one != "--yes")
    result = run("disable", *options, *OFF, "--principal", "ops")
    assert (result.exit_code, result.stderr.splitlines()[-1]) == (0, f"disabled {told}: maintenance")
    assert limiter.get_config(*level) == LimiterConfig(config_version=1, disabled="maintenance")
    assert run("bypass", *options).stderr.endswith(f"{told} goes past its limits, counted\n")
    assert run("bypass", *options, "--uncounted").exit_code == 0
    found = limiter.get_config(*level)
    assert found is not None
    assert found.bypass == "uncounted"
    assert run("enable", *place).stderr.endswith(f"enabled {told}\n")
    assert limiter.get_config(*level) is None
    assert run("enable", *place).stderr.endswith(f"{told} has no switch\n")
    data = data_of(run, "enable", "--overrule", *place)
    assert (data["disabled"], data["bypass"]) == (False, None)


def test_everything_is_asked_about_first(run: Run, limiter: SyncRateLimiter) -> None:
    """Whoever forgets the resource does not switch off the rest."""
    assert run("disable", *OFF).exit_code == 1
    assert run("bypass").exit_code == 1
    assert run("disable", "--resource", "gpt-4").exit_code == 2
    assert limiter.get_config("system") is None


def test_explain_says_who_switched_it_off_and_how_to_undo_it(run: Run) -> None:
    """By the level that decides, with its reason; an enable that changes little says so."""
    done(run, "system", "set-defaults", "-l", "rpm:9")
    done(run, "disable", "-r", "gpt-4", *OFF)
    told = run("explain", "alice", "gpt-4")
    assert "the resource's" in told.stdout
    assert "off: maintenance" in told.stdout
    assert told.stderr.splitlines()[0] == (
        "an acquire is refused, because it is disabled (the resource's): maintenance; "
        "undo that with: zae-limiter enable --resource gpt-4"
    )
    assert "still disabled" in run("enable", "-e", "alice", "-r", "gpt-4").stderr
    done(run, "disable", "-e", "alice", "--reason", "unpaid")
    assert run("explain", "alice", "gpt-4").stderr.splitlines()[0] == (
        "an acquire is refused, because 'alice' is disabled (the entity's own for all): unpaid; "
        "undo that with: zae-limiter enable --entity alice"
    )
    done(run, "bypass", "-e", "alice")
    assert run("explain", "alice", "gpt-4").stderr.splitlines()[0] == (
        "the limits of 'alice' refuse nothing, because it is bypassed, counted (the entity's own for all)"
    )
    assert data_of(run, "explain", "alice", "gpt-4")["buckets"][0]["switch"] == {
        "level": "entity_default",
        "disabled": None,
        "bypass": "counted",
    }


def test_a_name_that_nobody_knows_is_remarked(run: Run) -> None:
    """It may be mistyped; the switch is thrown all the same, and a name that is known is not remarked."""
    done(run, "resource", "set-defaults", "gpt-4", "-l", "rpm:9")
    done(run, "entity", "create", "alice")
    assert run("disable", "-e", "alice", "-r", "gpt-4", *OFF).stderr.count("\n") == 1
    for words in (("disable", *OFF), ("bypass",)):
        told = run(*words, "-e", f"no-{words[0]}", "-r", f"no-{words[0]}")
        assert told.exit_code == 0
        assert told.stderr.splitlines()[:2] == [
            f"entity 'no-{words[0]}' has no record, no limits and no buckets yet",
            f"resource 'no-{words[0]}' has no limits of its own; see: zae-limiter resource list",
        ]


def test_who_is_not_told_of_changes_follows_later(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a store that tells nobody, the switch of a resource is seen when caches expire."""
    done(run, "resource", "set-defaults", "gpt-4", "-l", "rpm:9")
    assert "follow" not in run("disable", "-r", "gpt-4", *OFF).stderr
    monkeypatch.setattr("zae_limiter.records.connection.Connection.tells_changes", False)
    later = "other processes follow within 60 s, or their own config_cache_ttl"
    assert run("disable", "-r", "gpt-4", *OFF).stderr.splitlines()[-1] == later
    assert "follow" not in run("disable", "-e", "alice", *OFF).stderr


def test_an_entity_shows_its_switch(run: Run) -> None:
    done(run, "entity", "create", "alice")
    assert "switch" not in run("entity", "show", "alice").stdout
    done(run, "disable", "-e", "alice", *OFF)
    assert "off: maintenance" in run("entity", "show", "alice").stdout
    assert data_of(run, "entity", "show", "alice")["disabled"] == "maintenance"


def test_a_switch_is_no_limit(run: Run) -> None:
    """A resource that has nothing else is not listed among those with limits."""
    done(run, "resource", "set-defaults", "gpt-4", "-l", "rpm:9")
    run("disable", "-r", "gpt-5", *OFF)
    assert data_of(run, "resource", "list") == ["gpt-4"]


def test_all_switches_at_one_look(run: Run) -> None:
    """Where each is, what it says, and by whom; also beside the entities that are listed."""
    assert run("switches").exit_code != 0  # there is no store yet
    for name in ("alice", "bob"):
        done(run, "entity", "create", name)
    assert "switch" not in run("entity", "list").stdout
    assert data_of(run, "switches") == {"switches": [], "cursor": None}
    done(run, "disable", "--entity", "alice", "--resource", "gpt-4", *OFF, "--principal", "ops")
    done(run, "bypass", "--entity", "alice")
    done(run, "disable", "--yes", "--reason", "closed")
    rows = [" ".join(row.split()) for row in run("switches").stdout.splitlines()][2:]
    assert [row.split(" 20")[0] for row in rows] == [
        "everything off: closed",
        "'alice' bypass counted",
        "'alice' on 'gpt-4' off: maintenance",
    ]
    assert rows[2].endswith(" ops")
    data = data_of(run, "switches", "--limit=1")
    assert (data["switches"][0]["level"], data["switches"][0]["disabled"]) == ("system", "closed")
    then = data_of(run, "switches", f"--cursor={data['cursor']}")
    assert [one["entity_id"] for one in then["switches"]] == ["alice", "alice"]
    table = [" ".join(row.split()) for row in run("entity", "list").stdout.splitlines()]
    assert table[0].endswith(" switch")
    assert "bypass counted; on gpt-4: off: maintenance" in " ".join(table)
    assert table[-1].startswith("bob ")
    assert table[-1].endswith(" -")
    assert [one["level"] for one in data_of(run, "entity", "list")["switches"]] == [
        "entity_default",
        "entity",
    ]
