"""Usage on the command line: rows, totals and charts of what an aggregator counted."""

import json
from typing import Any

import pytest

from tests.cli.conftest import Run
from tests.records.store import count_usage
from zae_limiter import Limit, SyncRateLimiter
from zae_limiter.cli import usage as usage_module
from zae_limiter.cli.usage import moment
from zae_limiter.runtime.colour import run_sync

HOUR = 3_600_000
START = 1_704_067_200_000
"""The first of January 2024."""


def used(limiter: SyncRateLimiter, entity_id: str, resource: str, hour: int, **amounts: int) -> None:
    """Count usage in its hour and in its day."""
    for window in ("hourly", "daily"):
        at_ms = START + hour * HOUR
        run_sync(count_usage(limiter.repository._async, entity_id, resource, window, at_ms, **amounts))


@pytest.fixture
def usage(limiter: SyncRateLimiter) -> None:
    for hour in range(30):
        used(limiter, "user-1", "gpt-4", hour, rpm=hour + 1, tpm=1000 * hour + 1)
    used(limiter, "user-1", "gpt-3", 2, rpm=5)
    used(limiter, "user-2", "gpt-4", 2, rpm=7)


def json_of(run: Run, *words: str) -> Any:
    result = run("usage", words[0], "--output", "json", *words[1:])
    assert (result.exit_code, result.stderr) == (0, "")
    return json.loads(result.stdout)


@pytest.mark.usefixtures("usage")
def test_snapshots_are_listed(run: Run) -> None:
    """By entity, by resource, by both; of one kind of window; within a time; page after page."""
    of_both = json_of(
        run, "list", "-e", "user-1", "-r", "gpt-4", "--window", "hourly", "--end", "2024-01-01T01:00Z"
    )
    assert of_both == {
        "snapshots": [
            {
                "entity_id": "user-1",
                "resource": "gpt-4",
                "window_type": "hourly",
                "window_start": f"2024-01-01T0{hour}:00:00Z",
                "window_end": f"2024-01-01T0{hour + 1}:00:00Z",
                "counters": {"rpm": hour + 1, "tpm": 1000 * hour + 1},
                "total_events": 1,
                "passed_on": {},
            }
            for hour in (0, 1)
        ],
        "cursor": None,
    }
    days = json_of(run, "list", "--resource", "gpt-4", "-w", "daily")["snapshots"]
    assert [(day["entity_id"], day["window_start"][:10]) for day in days] == [
        ("user-1", "2024-01-01"),
        ("user-2", "2024-01-01"),
        ("user-1", "2024-01-02"),
    ]
    first = json_of(run, "list", "--entity", "user-1", "--limit", "20")
    second = json_of(run, "list", "--entity-id", "user-1", "--limit", "20", "--cursor", first["cursor"])
    assert (len(first["snapshots"]), len(second["snapshots"]), second["cursor"]) == (20, 14, None)
    both = [
        (one["resource"], one["window_type"], one["window_start"])
        for one in first["snapshots"] + second["snapshots"]
    ]
    assert len(set(both)) == 34


@pytest.mark.usefixtures("usage")
def test_rows_have_one_order(run: Run) -> None:
    """Hours, then days, then by time, whichever way they are asked for."""
    orders = [
        [(one["window_type"], one["window_start"]) for one in json_of(run, "list", *words)["snapshots"]]
        for words in (("-e", "user-2"), ("-r", "gpt-4", "--start", "2024-01-01T02:00Z"), ("-e", "user-1"))
    ]
    assert orders[0] == [("hourly", "2024-01-01T02:00:00Z"), ("daily", "2024-01-01T00:00:00Z")]
    for order in orders:
        assert order == sorted(order, key=lambda one: (one[0] != "hourly", one[1]))
        assert {kind for kind, _ in order} == {"hourly", "daily"}


@pytest.mark.usefixtures("usage")
def test_snapshots_as_a_table(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """A column for each limit; where a limit was not used there is a dash."""
    monkeypatch.setenv("COLUMNS", "120")
    table = run("usage", "list", "-e", "user-1", "-w", "daily")
    assert table.exit_code == 0
    head, _, *rows = table.stdout.splitlines()
    assert head.split() == ["start", "window", "entity", "resource", "rpm", "tpm"]
    assert rows[0].split() == ["2024-01-01T00:00:00Z", "daily", "user-1", "gpt-3", "5", "-"]
    assert rows[1].split()[4:] == ["300", "276024"]
    more = run("usage", "list", "-e", "user-1", "--limit", "3")
    assert more.stderr.startswith("there are more: --cursor ")


@pytest.mark.usefixtures("usage")
def test_a_summary(run: Run) -> None:
    """Totals and averages over windows of one kind."""
    summary = json_of(run, "summary", "-e", "user-1", "-r", "gpt-4")
    assert summary == {
        "snapshot_count": 30,
        "total": {"rpm": 465, "tpm": 435_030},
        "average": {"rpm": 15.5, "tpm": 14_501.0},
        "total_events": 30,
        "min_window_start": "2024-01-01T00:00:00Z",
        "max_window_start": "2024-01-02T05:00:00Z",
    }
    assert json_of(run, "summary", "-r", "gpt-4", "--window", "daily")["total"]["rpm"] == 472
    shown = run("usage", "summary", "-e", "user-1", "-r", "gpt-4").stdout
    assert "average per window\n" in shown
    assert "average per resource and window\n" in run("usage", "summary", "-e", "user-1").stdout
    assert "average per entity and window\n" in run("usage", "summary", "-r", "gpt-4").stdout
    assert shown.splitlines()[-2].split() == ["rpm", "465", "15.5"]
    assert shown.splitlines()[-1].split() == ["tpm", "435,030", "14,501.0"]


@pytest.mark.usefixtures("usage")
def test_a_chart(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """A panel for each limit, as wide as the terminal, of the shortest kind of window there is."""
    chart = run("usage", "list", "-r", "gpt-4", "--plot")
    assert (chart.exit_code, chart.stderr) == (0, "")
    assert max(map(len, chart.stdout.splitlines())) <= 80
    assert chart.stdout.startswith(
        "usage of 'gpt-4', 2 entities together\n\nrpm: 472 used, at most 30 in one"
    )
    assert "tpm: 435,030 used, at most 29,001 in one hour" in chart.stdout
    assert chart.stdout.endswith("each bar is one hour; from 2024-01-01 00:00 to 2024-01-02 06:00 UTC\n")
    assert "\x1b" not in chart.stdout
    monkeypatch.setenv("COLUMNS", "30")
    narrow = run("usage", "list", "-r", "gpt-4", "--plot", "--fold", "max")
    assert "each bar is the busiest of 2" in narrow.stdout
    assert max(map(len, narrow.stdout.splitlines())) <= 30
    monkeypatch.setenv("COLUMNS", "80")
    daily = run("usage", "list", "-e", "user-1", "--plot", "-w", "daily", "--start", "2024-01-02")
    assert "rpm: 165 used" in daily.stdout
    both = run("usage", "list", "-e", "user-1", "--plot", "-w", "daily").stdout
    assert both.startswith("usage by 'user-1', 2 resources together\n")
    assert run("usage", "list", "-e", "user-2", "-r", "gpt-4", "--plot").stdout.startswith(
        "usage by 'user-2' of 'gpt-4'\n"
    )


@pytest.mark.usefixtures("usage")
def test_charts_have_colours_where_they_are_wanted(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a terminal, and nowhere else."""
    words = ("usage", "list", "-r", "gpt-4", "--plot")
    assert "\x1b" not in run(*words).stdout
    monkeypatch.delenv("NO_COLOR")
    assert "\x1b" not in run(*words).stdout
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    assert "\x1b[36m█" in run(*words).stdout
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[36m" not in run(*words).stdout


@pytest.mark.usefixtures("usage")
def test_a_chart_of_very_much(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is made of so many snapshots at most, and says so; all pages count."""
    monkeypatch.setattr(usage_module, "PAGE", 7)
    assert "rpm: 472 used" in run("usage", "list", "-r", "gpt-4", "--plot").stdout
    cut = run("usage", "list", "-r", "gpt-4", "--plot", "--limit", "10")
    assert cut.stderr == "only the first 10 snapshots are drawn; narrow it down\n"
    assert "from 2024-01-01 00:00 to 2024-01-01 09:00 UTC" in cut.stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("list", "-e", "nobody"), "no usage by 'nobody' was counted"),
        (("list", "-r", "gpt-4", "-w", "daily"), "no daily usage of 'gpt-4' was counted"),
        (("list", "-e", "a", "-r", "b", "--plot"), "no usage by 'a' of 'b' was counted"),
        (("summary", "-e", "a", "--start", "7d"), "no usage by 'a' in that time was counted"),
    ],
)
@pytest.mark.usefixtures("limiter")
def test_nothing_is_told_in_a_sentence(run: Run, words: tuple[str, ...], said: str) -> None:
    """On standard error; there is no data, and that is no failure."""
    result = run("usage", *words)
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr == f"{said}, and nothing waits to be counted\n"


def test_what_was_used_is_counted_when_the_hint_is_followed(run: Run, limiter: SyncRateLimiter) -> None:
    """From the first acquire on; no hint leads in a circle."""
    for _ in range(5):
        with limiter.acquire("key-1", "gpt-4", {"rpm": 2}, [Limit.per_minute("rpm", 60)]):
            pass
    hint = run("usage", "list", "-r", "gpt-4").stderr
    assert hint == (
        "no usage of 'gpt-4' was counted yet; `zae-limiter aggregate --once` counts what was used\n"
    )
    assert run("aggregate", "--once").exit_code == 0
    assert json_of(run, "summary", "-r", "gpt-4")["total"] == {"rpm": 10}
    monthly = run("usage", "list", "-r", "gpt-4", "-w", "monthly").stderr
    assert "`zae-limiter aggregate --window monthly` counts such windows from then on" in monthly
    run("aggregate", "--once", "--window", "monthly")
    with limiter.acquire("key-1", "gpt-4", {"rpm": 1}, [Limit.per_minute("rpm", 60)]):
        pass
    run("aggregate", "--once", "--window", "monthly")
    assert json_of(run, "summary", "-r", "gpt-4", "-w", "monthly")["total"] == {"rpm": 1}


@pytest.mark.parametrize("words", [("list",), ("list", "--plot"), ("summary",)])
def test_numbers_that_are_old_are_told(run: Run, limiter: SyncRateLimiter, words: tuple[str, ...]) -> None:
    """Beside them, as long as something waits; never among data for programs."""

    def use() -> None:
        with limiter.acquire("key-1", "gpt-4", {"rpm": 2}, [Limit.per_minute("rpm", 60)]):
            pass

    use()
    run("aggregate", "--once")
    assert run("usage", *words, "-r", "gpt-4").stderr == ""
    use()
    for _ in range(2):  # looking counts nothing
        old = run("usage", *words, "-r", "gpt-4")
        assert old.stdout
        assert old.stderr == (
            "some of what was used in this store is not counted yet; "
            "`zae-limiter aggregate --once` counts it\n"
        )
    assert json_of(run, "summary", "-r", "gpt-4")["total"] == {"rpm": 2}
    run("aggregate", "--once")
    assert run("usage", *words, "-r", "gpt-4").stderr == ""
    assert json_of(run, "summary", "-r", "gpt-4")["total"] == {"rpm": 4}


@pytest.mark.usefixtures("limiter")
def test_nothing_as_json(run: Run) -> None:
    """No sentence, but data that says so."""
    assert json_of(run, "list", "-e", "nobody") == {"snapshots": [], "cursor": None}
    assert json_of(run, "summary", "-e", "nobody")["snapshot_count"] == 0


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("0h", "2024-01-02T00:00:00.000Z"),
        ("36h", "2023-12-31T12:00:00.000Z"),
        ("1d", "2024-01-01T00:00:00.000Z"),
        ("1w", "2023-12-26T00:00:00.000Z"),
        ("999999w", "1970-01-01T00:00:00.000Z"),
        ("2024-01-01", "2024-01-01"),
        ("7 days", "7 days"),
        (None, None),
    ],
)
def test_times_ago(text: str | None, told: str | None) -> None:
    """Hours, days and weeks; everything else is for the store to judge."""
    assert moment(text, START + 24 * HOUR) == told


def test_money_is_shown_as_money(run: Run, limiter: SyncRateLimiter) -> None:
    """In rows, totals and charts; programs get whole numbers and the unit."""
    usd = Limit.per_month("usd", 20_000_000, unit="usd_micro")
    limiter.set_resource_defaults("gpt-4", [usd, Limit.per_minute("rpm", 10)])
    for hour in range(3):
        used(limiter, "alice", "gpt-4", hour, usd=4_115_000, rpm=1_000)
    assert "$4.115" in run("usage", "list", "-e", "alice", "-w", "hourly").stdout
    for words in (("-e", "alice"), ("-r", "gpt-4"), ("-e", "alice", "-r", "gpt-4")):
        shown = [" ".join(row.split()) for row in run("usage", "summary", *words).stdout.splitlines()]
        assert shown[-2:] == ["rpm 3,000 1,000.0", "usd $12.35 $4.12"]
        summary = json_of(run, "summary", *words)
        assert (summary["total"]["usd"], summary["units"]) == (12_345_000, {"usd": "usd_micro"})
    (row, *_) = json_of(run, "list", "-r", "gpt-4")["snapshots"]
    assert (row["counters"]["usd"], row["units"]) == (4_115_000, {"usd": "usd_micro"})
    chart = run("usage", "list", "-e", "alice", "-r", "gpt-4", "--plot").stdout
    assert "usd: $12.35 used, at most $4.12 in one hour" in chart
    assert "$5┤" in chart
    assert "$0└" in chart
    assert " 1k┤" in chart
    assert "usd lets" not in chart  # a month's budget may be spent in an hour
    run_sync(count_usage(limiter.repository._async, "alice", "gpt-4", "monthly", START, usd=12_345_000))
    monthly = run("usage", "list", "-e", "alice", "-r", "gpt-4", "--plot", "-w", "monthly").stdout
    assert "usd lets $20.00 through in one month" in monthly


def test_sums_of_two_currencies_are_plain(run: Run, limiter: SyncRateLimiter) -> None:
    """A total is money only where all whom it is of count the same; each row is in its own."""
    for resource, unit in (("gpt-4", "usd_micro"), ("mistral", "eur_micro")):
        limiter.set_resource_defaults(resource, [Limit.per_month("cost", 20_000_000, unit=unit)])
        used(limiter, "alice", resource, 1, cost=2_500_000)
    rows = run("usage", "list", "-e", "alice", "-w", "hourly").stdout
    assert "$2.50" in rows
    assert "€2.50" in rows
    assert "5,000,000" in run("usage", "summary", "-e", "alice").stdout
    assert "units" not in json_of(run, "summary", "-e", "alice")
    assert "cost: 5,000,000 used" in run("usage", "list", "-e", "alice", "--plot").stdout
