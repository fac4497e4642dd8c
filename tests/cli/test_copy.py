"""`zae-limiter copy`: what it prints, when it refuses, and how it ends."""

import json
from pathlib import Path

import pytest

from tests.cli.conftest import STORE, Run
from tests.dynamodb.tables import make_table
from tests.engines import dynamodb_local
from zae_limiter import Limit, SyncRateLimiter

TARGET = "sqlite:///moved.db"


@pytest.fixture
def furnished(limiter: SyncRateLimiter) -> SyncRateLimiter:
    limiter.repository.set_resource_defaults("gpt-4", [Limit.per_minute("rpm", 60)])
    limiter.repository.create_entity("alice")
    with limiter.acquire("alice", "gpt-4", {"rpm": 10}):
        pass
    return limiter


def test_a_copy(run: Run, furnished: SyncRateLimiter) -> None:
    """It is verified, opened, and goes on with the balance; a second one finds nothing to do."""
    done = run("copy", STORE, TARGET)
    assert done.exit_code == 0, done.stderr
    assert "open" in done.stdout
    assert "copying default: 5 rows" in done.stderr
    assert "is not switched off in the source" in done.stderr
    assert "aggregate --once --store sqlite:///limits.db" in done.stderr
    with SyncRateLimiter.open(TARGET) as moved:
        assert moved.available("alice", "gpt-4") == furnished.available("alice", "gpt-4")
    again = json.loads(run("copy", STORE, TARGET, "--json").stdout)["namespaces"]
    assert [(one["written"], one["changed"], one["different"]) for one in again] == [(0, 0, 0)]


@pytest.mark.usefixtures("furnished")
def test_a_dry_run_makes_nothing(run: Run) -> None:
    """It counts what would go, by kind."""
    planned = run("copy", STORE, TARGET, "--dry-run", "--json")
    assert planned.exit_code == 0, planned.stderr
    (space,) = json.loads(planned.stdout)["namespaces"]
    assert (space["items"], space["target"]) == (5, "nothing")
    assert space["kinds"] == {"audit": 2, "bucket": 1, "config": 1, "entity": 1}
    assert not Path("moved.db").exists()


def test_the_recipe(run: Run, furnished: SyncRateLimiter) -> None:
    """In advance, off, again, on: nothing is lost, and the target is closed until then."""
    assert run("copy", STORE, TARGET, "--in-advance").exit_code == 0
    assert run("entity", "list", "--store", TARGET, "-N", "default").exit_code == 4
    orphans = run("namespace", "orphans", "--store", TARGET)
    assert "copying" in orphans.stdout
    with furnished.acquire("alice", "gpt-4", {"rpm": 5}):
        pass
    assert run("disable", "--reason", "we move", "--yes").exit_code == 0
    last = run("copy", STORE, TARGET)
    assert last.exit_code == 0, last.stderr
    assert "is not switched off" not in last.stderr
    assert run("enable", "--store", TARGET).exit_code == 0
    with SyncRateLimiter.open(TARGET) as moved:
        (state,) = moved.repository.get_buckets("alice")
        assert state.total_consumed_milli == 15_000
        with moved.acquire("alice", "gpt-4", {"rpm": 1}):
            pass


def test_verify(run: Run, furnished: SyncRateLimiter) -> None:
    """Differences are told by their keys, nothing is changed, and the exit code says so."""
    assert run("copy", STORE, TARGET, "--verify").exit_code == 4
    assert run("copy", STORE, TARGET).exit_code == 0
    assert run("copy", STORE, TARGET, "--verify").exit_code == 0
    furnished.repository.create_entity("bob")
    with SyncRateLimiter.open(TARGET) as moved:
        moved.repository.create_entity("carol")
    found = run("copy", STORE, TARGET, "--verify")
    assert found.exit_code == 5
    assert "ENTITY#bob #META is missing" in found.stdout
    assert "ENTITY#carol #META is not in the source" in found.stdout
    refused = run("copy", STORE, TARGET)
    assert refused.exit_code == 5
    assert "--overwrite makes it what the source has" in refused.stderr
    assert run("copy", STORE, TARGET, "--overwrite", answer="n\n").exit_code == 1
    assert run("copy", STORE, TARGET, "--overwrite", "--yes").exit_code == 0
    assert run("copy", STORE, TARGET, "--verify").exit_code == 0


@pytest.mark.usefixtures("furnished")
def test_some_namespaces_and_another_name(run: Run) -> None:
    """Those that are named, each by itself; one of them may be called otherwise in the target."""
    assert run("namespace", "register", "tenant", "other").exit_code == 0
    assert run("copy", STORE, TARGET, "-N", "tenant", "-N", "other").exit_code == 0
    assert run("copy", STORE, TARGET, "-N", "default", "--as", "moved").exit_code == 0
    listed = json.loads(run("namespace", "list", "--store", TARGET, "--json").stdout)
    assert [one["namespace_name"] for one in listed] == ["moved", "other", "tenant"]


@pytest.mark.usefixtures("furnished")
def test_to_a_table(run: Run) -> None:
    """The empty namespace that came with the table gives way; a table that is missing is named."""
    missing = run("copy", STORE, dynamodb_local.url("missing"))
    assert missing.exit_code == 4
    assert "zae-limiter" in missing.stderr
    url = dynamodb_local.url(make_table(), timeout_ms=60_000)
    assert run("namespace", "register", "default", "--store", url).exit_code == 0
    done = run("copy", STORE, url)
    assert done.exit_code == 0, done.stderr
    back = run("copy", url, TARGET)
    assert back.exit_code == 0, back.stderr


@pytest.mark.usefixtures("furnished")
@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ((STORE, STORE), 2, "the same store"),
        ((STORE, "sqlite:///./limits.db"), 2, "the same store"),
        (("sqlite:///nowhere.db", TARGET), 4, "does not exist"),
        ((STORE, "memory://"), 1, "memory:// ends with this command"),
        (("memory://x", TARGET), 1, "ends with this command"),
        ((STORE, TARGET, "-N", "nobody"), 4, "'nobody' does not exist in sqlite:///limits.db"),
        ((STORE, TARGET, "-N", "a/b"), 2, "a/b"),
        ((STORE, TARGET, "--as", "other"), 2, "--as renames one namespace"),
        ((STORE, TARGET, "--verify", "--overwrite"), 2, "--verify changes nothing"),
        ((STORE, "what"), 2, "it is not a URL"),
        ((STORE,), 2, "TARGET"),
    ],
)
def test_bad_input(run: Run, words: tuple[str, ...], code: int, said: str) -> None:
    """Each is refused with a reason, and no file is made."""
    result = run("copy", *words)
    assert (result.exit_code, said in result.stderr) == (code, True), result.stderr
    assert not Path("moved.db").exists()
