"""What operators do to a bucket from the command line, and what they are told of it."""

import math
import threading
from contextlib import suppress

import pytest

from tests.cli.conftest import Run
from tests.cli.test_commands import data_of, done
from tests.patience import wait_until
from zae_limiter import ClosedError, SyncRateLimiter

WHERE = ("key-1", "gpt-4")


@pytest.fixture
def overdrawn(run: Run, limiter: SyncRateLimiter) -> SyncRateLimiter:
    """A store with somebody who has used more than it had."""
    done(run, "resource", "set-defaults", "gpt-4", "-l", "rpm:10/day")
    with limiter.acquire("key-1", "gpt-4", {"rpm": 10}) as lease:
        lease.adjust(rpm=5)
    return limiter


@pytest.mark.usefixtures("overdrawn")
def test_a_session_of_an_operator(run: Run) -> None:
    """Each command says what it did, or that there was nothing to do, and the trail has what was done."""
    key = "'key-1' on 'gpt-4'"
    assert done(run, "entity", "top-up", *WHERE, "-l", "rpm:3") == f"topped up {key}: rpm from -5 to -2\n"
    assert (
        done(run, "entity", "forgive", *WHERE, "--principal", "ann") == f"forgave {key}: rpm from -2 to 0\n"
    )
    assert done(run, "entity", "forgive", *WHERE) == f"{key} has nothing to forgive\n"
    over = f"topped up {key}: rpm from 0 to 10, no room for 1490\n"
    assert done(run, "entity", "top-up", *WHERE, "-l", "rpm:1.5k") == over
    assert done(run, "entity", "reset", *WHERE, "-l", "rpm") == f"{key} is full\n"
    assert done(run, "entity", "reset", "nobody", "gpt-4") == (
        "entity 'nobody' has no record, no limits and no buckets yet\n"
        "'nobody' on 'gpt-4' is full: it was never used\n"
    )
    assert "resource 'gpt4' has no limits of its own" in done(run, "entity", "forgive", "key-1", "gpt4")
    events = data_of(run, "audit", "list", "--entity-id", "key-1")
    assert [event["action"] for event in events] == [
        "bucket_topped_up",
        "bucket_forgiven",
        "bucket_topped_up",
    ]
    assert events[1]["principal"] == "ann"
    assert "bucket_forgiven" in run("audit", "list", "--entity-id", "key-1").stdout


def test_beside_somebody_who_waits(run: Run, limiter: SyncRateLimiter) -> None:
    """A top-up says what is in its way; what a reset ends is told, and who waits with it."""
    done(run, "resource", "set-defaults", "gpt-4", "-l", "rpm:10/day")
    with limiter.acquire("key-1", "gpt-4", {"rpm": 10}):
        pass

    def wait() -> None:
        with suppress(ClosedError), limiter.acquire("key-1", "gpt-4", {"rpm": 10}, wait=math.inf):
            pass

    waiter = threading.Thread(target=wait)
    waiter.start()
    wait_until(lambda: limiter.available("key-1", "gpt-4")["rpm"] < 0)
    topped = done(run, "entity", "top-up", *WHERE, "-l", "rpm:3")
    assert topped.startswith(
        "topped up 'key-1' on 'gpt-4': rpm from -10 to -10, no room for 3; somebody waits "
    )
    assert topped.endswith("after it; entity reset and entity forgive end what was booked\n")
    full = done(run, "entity", "reset", *WHERE)
    assert full.startswith(
        "reset 'key-1' on 'gpt-4': rpm from -10 to 10, of that 10 was booked; somebody waits "
    )
    assert full.endswith(" at the latest: whoever is still there begins when it was told to\n")
    limiter.close()
    waiter.join()


@pytest.mark.usefixtures("overdrawn")
def test_a_key_counts_once(run: Run) -> None:
    """And belongs to what it was used for."""
    words = ("entity", "top-up", *WHERE, "-l", "rpm:3", "--key", "order-7")
    first = data_of(run, *words)
    assert first == data_of(run, *words)
    assert (first["before"], first["given"], first["after"], first["over"]) == (
        {"rpm": -5},
        {"rpm": 3},
        {"rpm": -2},
        {},
    )
    refused = run("entity", "reset", *WHERE, "--key", "order-7")
    assert refused.exit_code == 2
    assert "it was used for top_up" in refused.stderr


@pytest.mark.usefixtures("overdrawn")
def test_an_entity_is_moved_by_key(run: Run) -> None:
    """Sent again it is answered as before, though somebody has moved it since."""
    for name in ("key-1", "team", "club"):
        done(run, "entity", "create", name)
    words = ("entity", "set-parent", "key-1", "--parent", "team", "--cascade", "--key", "move-1")
    moved = data_of(run, *words)
    assert (moved["parent_id"], moved["cascade"]) == ("team", True)
    done(run, "entity", "set-parent", "key-1", "--parent", "club", "--no-cascade")
    assert data_of(run, *words) == moved
    shown = data_of(run, "entity", "show", "key-1")
    assert (shown["parent_id"], shown["cascade"]) == ("club", False)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("top-up", *WHERE), "missing option '--limit' / '-l'"),
        (("top-up", *WHERE, "-l", "rpm"), "invalid amount 'rpm': write NAME:AMOUNT, such as tpm:500"),
        (("top-up", *WHERE, "-l", "rpm:x"), "'x' is no whole number; write it as 60"),
        (("top-up", *WHERE, "-l", "rpm:1", "-l", "rpm:2"), "--limit rpm was given twice; add them up"),
        (("top-up", *WHERE, "-l", "rpx:1"), "'key-1' has rpm on 'gpt-4'; name one of these"),
        (("reset", "key-1"), "missing argument 'RESOURCE'"),
        (("reset", *WHERE, "-l", "rpx"), "invalid limit 'rpx'"),
        (("forgive", *WHERE, "--key", "a#b"), "invalid key 'a#b'"),
    ],
)
@pytest.mark.usefixtures("overdrawn")
def test_bad_words_are_refused(run: Run, words: tuple[str, ...], told: str) -> None:
    result = run("entity", *words)
    assert (result.exit_code, result.stdout) == (2, "")
    assert told in result.stderr


def test_a_missing_store_is_not_made(run: Run) -> None:
    assert run("entity", "reset", *WHERE).exit_code == 4


@pytest.mark.usefixtures("overdrawn")
def test_earlier_spellings_are_understood(run: Run) -> None:
    """They did the same, and say how it is written now."""
    old = ("key-1", "-r", "gpt-4", "--add", "rpm:1", "--idempotency-key", "k-1")
    said = done(run, "entity", "top-up", *old)
    assert said.splitlines() == [
        "note: -r is now RESOURCE",
        "note: --add is now --limit",
        "note: --idempotency-key is now --key",
        "topped up 'key-1' on 'gpt-4': rpm from -5 to -4",
    ]
    said = done(run, "entity", "reset", "key-1", "--resource", "gpt-4", "-l", "rpm")
    assert "rpm from -4 to 10" in said


@pytest.fixture
def budget(run: Run, limiter: SyncRateLimiter) -> SyncRateLimiter:
    """Somebody who has spent more than a budget, next to a limit that counts no money."""
    done(run, "resource", "set-defaults", "gpt-4", "-l", "usd:100USD/month", "-l", "rpm:10/day")
    with limiter.acquire("key-1", "gpt-4", {"usd": 100_000_000, "rpm": 1}) as lease:
        lease.adjust(usd=1_250_000)
    return limiter


@pytest.mark.usefixtures("budget")
def test_money_is_given_and_told_as_money(run: Run) -> None:
    """By every verb; programs read whole millionths."""
    key = "'key-1' on 'gpt-4'"
    words = ("entity", "top-up", *WHERE, "-l")
    assert done(run, *words, "usd:0.25USD") == f"topped up {key}: usd from -$1.25 to -$1.00\n"
    assert done(run, "entity", "forgive", *WHERE) == f"forgave {key}: usd from -$1.00 to $0.00\n"
    assert data_of(run, *words, "usd:25USD")["given"] == {"usd": 25_000_000}
    over = f"topped up {key}: usd from $25.00 to $100.00, no room for $925.00\n"
    assert done(run, *words, "usd:1000USD") == over
    assert done(run, "entity", "reset", *WHERE) == f"reset {key}: rpm from 9 to 10\n"


@pytest.mark.parametrize(
    ("amount", "told"),
    [
        (
            "usd:25",
            "invalid amount 'usd:25': limit 'usd' counts USD (usd_micro); write usd:25USD, "
            "or usd:0.000025USD if millionths were meant",
        ),
        ("usd:25_000_000", "or usd:25.00USD if millionths were meant"),
        ("usd:5EUR", "invalid amount 'usd:5EUR': limit 'usd' counts USD (usd_micro), not EUR"),
        ("rpm:5USD", "invalid amount 'rpm:5USD': limit 'rpm' has no unit of money; write a whole number"),
        ("usd:25.50", "money as 25.50USD"),
    ],
)
def test_money_and_numbers_are_not_mistaken(
    run: Run, budget: SyncRateLimiter, amount: str, told: str
) -> None:
    """Nobody gives millionths who meant money, nor one currency for another; nothing is given."""
    result = run("entity", "top-up", *WHERE, "-l", "rpm:1", "-l", amount)
    if amount.startswith("rpm"):
        result = run("entity", "top-up", *WHERE, "-l", amount)
    assert (result.exit_code, result.stdout) == (2, "")
    assert told in result.stderr
    assert budget.available("key-1", "gpt-4") == {"usd": -1_250_000, "rpm": 9}


def test_help_shows_how_money_is_given(run: Run) -> None:
    assert "usd:25USD" in run("entity", "top-up", "--help").stdout
