"""``explain``: which limit wins at which level and why, as a table and as JSON."""

import re

import pytest
from click.testing import Result

from tests.cli.conftest import Run
from tests.cli.test_commands import RPM, data_of, done
from zae_limiter import Limit, SyncRateLimiter

FIELDS = [
    "entity alice",
    "resource gpt-4",
    "parent team",
    "charged alice and team",
    "on unavailable allow (the system's)",
]


def lines_of(result: Result) -> list[str]:
    """What was shown, line by line, with one space between words."""
    return [" ".join(line.split()) for line in result.stdout.splitlines()]


def stage(run: Run) -> None:
    done(run, "entity", "create", "team")
    done(run, "entity", "create", "alice", "--parent", "team", "--cascade")
    done(run, "resource", "set-defaults", "gpt-4", "-l", "rpm:60")
    done(run, "system", "set-defaults", "-l", "rpm:9", "--on-unavailable", "allow")
    done(run, "entity", "set-limits", "team", "-l", "rpm:5/day:100")


def test_the_table_says_who_wins_and_what_binds(run: Run, limiter: SyncRateLimiter) -> None:
    """Every level of every bucket that is charged, and what is left in each."""
    stage(run)
    with limiter.acquire("alice", "gpt-4", {"rpm": 3}):
        pass
    result = run("explain", "alice", "gpt-4")
    assert result.exit_code == 0
    lines = lines_of(result)
    assert lines[:5] == FIELDS
    assert "the resource's rpm:60/min - wins" in lines
    assert "the system's rpm:9/min allow overruled" in lines
    assert "the entity's own for all rpm:5/day:100 - wins" in lines
    assert lines[-2:] == ["rpm alice 60/min 57 binds", "rpm team 5/day:100 97"]
    assert result.stderr == (
        "if these limits are changed (the resource's), 'alice' goes by the new ones at the next acquire\n"
        "if these limits are changed (the entity's own for all), "
        "'team' goes by the new ones at the next acquire\n"
    )


def test_the_table_says_which_window_counts(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of windows that hold in turn it is one of them; of one on leap days it is none, unless this is one."""
    monkeypatch.setenv("COLUMNS", "200")
    done(run, "resource", "set-defaults", "gpt-4", "-l", "rpm:60;600(1-59 * * * *);600(0 * * * *)")
    assert re.search(
        r" 600/min\((1-59|0) \* \* \* \*\) until \S+Z$", lines_of(run("explain", "a", "gpt-4"))[-1]
    )
    done(run, "resource", "set-defaults", "gpt-4", "-l", "rpm:60;60:61(0 0 29 2 *)")
    assert re.search(r" 60/min(:61\(0 0 29 2 \*\))? until \S+Z$", lines_of(run("explain", "a", "gpt-4"))[-1])


def test_the_table_keeps_the_order_of_the_chain(run: Run) -> None:
    """Whoever asks comes first, then whoever is above it, whatever they are called."""
    stage(run)
    done(run, "entity", "create", "zoe", "--parent", "team", "--cascade")
    lines = lines_of(run("explain", "zoe", "gpt-4"))
    assert lines[-2:] == ["rpm zoe 60/min 60 binds", "rpm team 5/day:100 100"]


def test_as_json(run: Run) -> None:
    """The same as data, and nothing beside it."""
    stage(run)
    data = data_of(run, "explain", "alice", "gpt-4")
    assert (data["binding"], data["parent_id"], data["cascade"]) == ({"rpm": "alice"}, "team", True)
    assert (data["on_unavailable"], data["on_unavailable_source"]) == ("allow", "system")
    alice, team = data["buckets"]
    assert [one["source"] for one in alice["levels"] if one["wins"]] == ["resource"]
    assert alice["levels"][2]["limits"] == [RPM]
    assert (team["entity_id"], team["available"]) == ("team", {"rpm": 100})


def test_why_nothing_applies(run: Run) -> None:
    """No limits are told with the commands that set some; a parent without a say is named."""
    done(run, "entity", "create", "team")
    done(run, "entity", "create", "alice", "--parent", "team")
    result = run("explain", "alice", "gpt-4")
    assert result.exit_code == 0
    assert "no level has limits for 'alice' on 'gpt-4', so an acquire fails" in result.stderr
    assert "its parent 'team' do not apply, because it does not cascade" in result.stderr


def test_the_whole_family_is_told(run: Run) -> None:
    """Who is charged, and why nobody above the last one is."""
    stage(run)
    done(run, "entity", "create", "org")
    done(run, "entity", "set-parent", "team", "--parent", "org")
    told = run("explain", "alice", "gpt-4")
    assert "charged alice and team" in lines_of(told)
    why = "the limits of 'team''s parent 'org' do not apply, because 'team' does not cascade"
    assert f"{why}\n" in told.stderr
    done(run, "entity", "set-cascade", "team", "on")
    told = run("explain", "alice", "gpt-4")
    assert "charged alice, team and org" in lines_of(told)
    assert "do not apply" not in told.stderr
    done(run, "resource", "set-cascade", "gpt-4", "off")
    done(run, "entity", "set-cascade", "alice", "on", "-r", "gpt-4")
    told = run("explain", "alice", "gpt-4")
    assert "charged alice and team" in lines_of(told)
    assert f"{why} on 'gpt-4' (level: the resource's)\n" in told.stderr
    assert "the entity's own for it - - yes has none" in lines_of(told)
    assert "the resource's rpm:60/min - no wins" in lines_of(told)
    alice, team = data_of(run, "explain", "alice", "gpt-4")["buckets"]
    assert (alice["cascade"], alice["cascade_source"]) == (True, "entity")
    assert (team["parent_id"], team["cascade"], team["cascade_source"]) == ("org", False, "resource")


def test_a_policy_is_taken_back(run: Run) -> None:
    """Then the entity's own setting decides again; what was never said cannot be taken back."""
    stage(run)
    done(run, "resource", "set-cascade", "gpt-4", "off")
    assert len(data_of(run, "explain", "alice", "gpt-4")["buckets"]) == 1
    done(run, "resource", "clear-cascade", "gpt-4")
    assert len(data_of(run, "explain", "alice", "gpt-4")["buckets"]) == 2
    assert "nothing is stored of how 'gpt-4' cascades" in run("resource", "clear-cascade", "gpt-4").stderr
    done(run, "entity", "set-cascade", "alice", "off", "-r", "gpt-4")
    assert len(data_of(run, "explain", "alice", "gpt-4")["buckets"]) == 1
    done(run, "entity", "clear-cascade", "alice", "-r", "gpt-4")
    assert len(data_of(run, "explain", "alice", "gpt-4")["buckets"]) == 2
    assert "'alice' on '_default_'" in run("entity", "clear-cascade", "alice").stderr


def test_an_entity_shows_who_is_above_it(run: Run) -> None:
    """From its parent to the top."""
    stage(run)
    done(run, "entity", "create", "org")
    done(run, "entity", "set-parent", "team", "--parent", "org")
    assert "ancestors team, org" in lines_of(run("entity", "show", "alice"))
    assert data_of(run, "entity", "show", "alice")["ancestors"] == ["team", "org"]
    assert data_of(run, "entity", "show", "org")["ancestors"] == []


def test_debt_binds(run: Run, limiter: SyncRateLimiter) -> None:
    """What is owed is less than anything that is there."""
    stage(run)
    with limiter.acquire("team", "gpt-4", {"rpm": 1}, [Limit("rpm", 100, 5, 86400)]) as lease:
        lease.adjust(rpm=200)
    assert data_of(run, "explain", "alice", "gpt-4")["binding"] == {"rpm": "team"}


def test_a_resource_that_nobody_knows_is_told(run: Run) -> None:
    """Whatever it is called the system's limits apply, so a typo would go unseen."""
    stage(run)
    result = run("explain", "alice", "gpt-44")
    assert result.stderr.endswith("resource 'gpt-44' has no limits of its own; these have: gpt-4\n")
    assert "no limits of its own" not in run("explain", "alice", "gpt-4").stderr
    done(run, "entity", "set-limits", "alice", "-r", "gpt-44", "-l", "rpm:7")
    assert "no limits of its own" not in run("explain", "alice", "gpt-44").stderr


def test_what_programs_with_limits_of_their_own_have_left(run: Run, limiter: SyncRateLimiter) -> None:
    """Nothing is stored, and yet there is a bucket."""
    with limiter.acquire("alice", "gpt-4", {"rpm": 3}, [Limit("rpm", 60, 1, 86400)]):
        pass
    said = run("explain", "alice", "gpt-4").stderr
    assert "with limits= have left in the bucket of 'alice': 57 rpm\n" in said
    assert data_of(run, "explain", "alice", "gpt-4")["buckets"][0]["available"] == {"rpm": 57}


def test_seats_that_are_held(run: Run, limiter: SyncRateLimiter) -> None:
    """Of a limit of concurrency it is told how many are at work, here and beside the buckets."""
    done(run, "resource", "set-defaults", "gpt-4", "-l", "parallel:3/concurrent(5m)", "-l", "rpm:60")
    lease = limiter.acquire("alice", "gpt-4", {"parallel": 2}).open()
    shown = run("explain", "alice", "gpt-4").stdout
    assert "3/concurrent(5m)" in shown
    assert "binds, 2 of 3 held" in shown
    assert data_of(run, "explain", "alice", "gpt-4")["buckets"][0]["available"]["parallel"] == 1
    rows = {row["limit"]: row for row in data_of(run, "entity", "buckets", "alice")}
    assert (rows["parallel"]["held"], "held" in rows["rpm"]) == (2, False)
    table = run("entity", "buckets", "alice").stdout
    assert "held" in table
    lease.commit()
    assert data_of(run, "entity", "buckets", "alice")[0]["held"] == 0


def test_a_stranger_sees_why_a_key_is_refused(run: Run, limiter: SyncRateLimiter) -> None:
    """The limit that refuses is marked, and the first sentence says why and until when."""
    stage(run)
    with limiter.acquire("team", "gpt-4", {"rpm": 100}):
        pass
    result = run("explain", "alice", "gpt-4")
    assert lines_of(result)[-2:] == ["rpm alice 60/min 60", "rpm team 5/day:100 0 refuses"]
    first = result.stderr.splitlines()[0]
    assert first.startswith(
        "an acquire is refused: 'rpm' of 'team' refuses: nothing of 100 is left; there is"
    )
    (refusal,) = data_of(run, "explain", "alice", "gpt-4")["buckets"][1]["refusing"]
    assert refusal["message"].startswith("'rpm' of 'team' refuses: nothing of 100 is left")
    assert 17_000 < refusal["retry_after_seconds"] <= 17_280
    assert refusal["until_ms"] - refusal["checked_at_ms"] == round(refusal["retry_after_seconds"] * 1000)
