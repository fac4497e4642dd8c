"""``zae-limiter watch``: on a terminal of its own, into a pipe, and once."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pytest
from rich.cells import cell_len

from tests.cli.conftest import STORE, Run
from tests.cli.terminal import Terminal
from tests.patience import PATIENCE_SECONDS, wait_until
from zae_limiter import Limit, SyncRateLimiter
from zae_limiter.cli.errors import INTERRUPTED
from zae_limiter.cli.watch import TERMINATED, _sentence, _told_refusal
from zae_limiter.cli.watch_data import Changes, Pace, Sight, WatchReader, moved_milli
from zae_limiter.records.buckets_now import SeenLevel
from zae_limiter.records.reports import ProcessReport, Refusal, write_report
from zae_limiter.runtime.colour import run_sync
from zae_limiter.telemetry.sharing import QUIET_MS
from zae_limiter.testing import ManualClock

RPM, TPM = Limit.per_minute("rpm", 60), Limit.per_minute("tpm", 10_000)
OWN_SCREEN, LEFT_SCREEN, SHOWN_CURSOR = "\x1b[?1049h", "\x1b[?1049l", "\x1b[?25h"


def report(limiter: SyncRateLimiter, *refusals: Refusal, seconds: int = 0, counted: int = 0) -> None:
    """What a process tells of itself that has admitted so many."""
    scope = limiter.repository._async._scope
    now_ms = scope.world.now_ms()
    numbers = now_ms - 60_000, now_ms + seconds * 1000, counted, counted // 10, 0, 0
    told = ProcessReport("web-1", "one", *numbers, refusals)
    assert run_sync(write_report(scope, 0, told, is_new=counted == 0))


def refused(limiter: SyncRateLimiter, entity_id: str = "bot", count: int = 12) -> Refusal:
    now_ms = limiter.repository._async._scope.world.now_ms()
    return Refusal(now_ms, entity_id, "gpt-4", ("rpm",), {"rpm": 1}, 1_200, count)


@pytest.fixture
def used(limiter: SyncRateLimiter) -> SyncRateLimiter:
    """A store in which a family is at work, and somebody in debt."""
    limiter.set_resource_defaults("gpt-4", [RPM, TPM])
    limiter.create_entity("acme")
    limiter.create_entity("acme/東京", parent_id="acme", cascade=True)
    for entity_id, amounts in (("acme/東京", {"rpm": 50}), ("bot", {"rpm": 2, "tpm": 1})):
        with limiter.acquire(entity_id, "gpt-4", amounts):
            pass
    with limiter.acquire("owing", "gpt-4", {"tpm": 1}) as lease:
        lease.adjust(tpm=2_000_000)
    return limiter


def opened(directory: Path, *words: str, columns: int = 80, rows: int = 24, **variables: str) -> Terminal:
    """``watch`` on a terminal."""
    words = ("watch", "--store", STORE, "--interval", "0.2", *words)
    return Terminal(*words, columns=columns, rows=rows, directory=directory, **variables)


def test_a_terminal_sees_levels_move_and_refusals_appear(used: SyncRateLimiter, tmp_path: Path) -> None:
    """Without any other command: a level fills by itself, falls when tokens are taken, a refusal is told."""
    used.set_limits("steady", [Limit.per_month("quota", 60)], "gpt-4")
    with used.acquire("steady", "gpt-4", {"quota": 1}):
        pass
    with opened(tmp_path) as terminal:
        terminal.until(lambda screen: re.search("steady .* 59 of 60", screen), "no bucket was shown")
        left = {int(one) for one in re.findall(r"acme .*?(\d+) of 60", terminal.screen())}
        later = terminal.until(
            lambda screen: {int(one) for one in re.findall(r"acme .*?(\d+) of 60", screen)} - left,
            "the level of a limit that fills did not move",
        )
        assert OWN_SCREEN in terminal.text
        assert "5 buckets, 1 refuses" in later
        with used.acquire("steady", "gpt-4", {"quota": 50}):
            pass
        terminal.until(lambda screen: re.search("steady .*  9 of 60", screen), "what was taken was not seen")
        assert "refused" not in terminal.screen()
        report(used, refused(used))
        screen = terminal.until(lambda screen: "×12" in screen, "the refusal did not appear")
        assert re.search(r"\d\d:\d\d:\d\d  bot  gpt-4  rpm, wait 1.2 s  ×12", screen)
        terminal.press("q")
        assert terminal.ended() == 0
        assert terminal.text.rindex(LEFT_SCREEN) > terminal.text.rindex("bot")


@pytest.mark.parametrize("how", ["ctrl-c", "terminate"])
def test_the_screen_is_given_back(used: SyncRateLimiter, tmp_path: Path, how: str) -> None:  # noqa: ARG001
    """However it is ended: the cursor is there again, and what stood there before; the exit code says why."""
    with opened(tmp_path) as terminal:
        terminal.until(lambda screen: "bot" in screen, "no bucket was shown")
        if how == "ctrl-c":
            terminal.press("\x03")
        else:
            terminal.process.send_signal(signal.SIGTERM)
        assert terminal.ended() == (INTERRUPTED if how == "ctrl-c" else TERMINATED)
        after = terminal.text[terminal.text.rindex(LEFT_SCREEN) :]
        assert terminal.text.rindex(SHOWN_CURSOR) > terminal.text.rindex("\x1b[?25l")
        assert ("interrupted" in after) == (how == "ctrl-c")
        assert "Traceback" not in terminal.text


def test_a_window_that_changes_its_size(used: SyncRateLimiter, tmp_path: Path) -> None:
    """The next frame has the new size: no line is wider, none is lost below, at 40 columns too."""
    report(used, refused(used), refused(used, "owing", 3))
    with opened(tmp_path, columns=120, rows=30) as terminal:
        terminal.until(lambda screen: "again in" in screen and "×12" in screen, "it is not drawn wide")
        for columns, rows in ((40, 24), (30, 8), (100, 20)):
            terminal.resize(columns, rows)
            terminal.process.send_signal(signal.SIGWINCH)

            def fits(screen: str, columns: int = columns, rows: int = rows) -> bool:
                lines = screen.split("\n")
                title = lines[0]
                return cell_len(title) == columns and len(lines) <= rows

            screen = terminal.until(fits, f"no frame of {columns} columns")
            assert max(map(cell_len, screen.split("\n"))) <= columns
            assert "owing" in screen
        terminal.press("\x03")
        terminal.ended()


def test_a_store_that_goes_away(used: SyncRateLimiter, tmp_path: Path) -> None:
    """It is told, what was seen stays, and a store that comes back is looked at."""
    with opened(tmp_path, columns=100) as terminal:
        terminal.until(lambda screen: "owing" in screen, "no bucket was shown")
        used.close()
        kept = {file: file.read_bytes() for file in tmp_path.glob("limits.db*")}
        for file in sorted(kept):  # the store first: without its log it would be an older one
            file.unlink()
        gone = terminal.until(lambda screen: "does not exist" in " ".join(screen.split()), "nobody was told")
        assert "owing" in gone
        for file, content in kept.items():
            file.write_bytes(content)
        terminal.until(lambda screen: "this is from" not in screen and "owing" in screen, "it is not back")
        terminal.press("\x03")
        assert terminal.ended() == INTERRUPTED


@pytest.mark.parametrize(
    ("variables", "is_coloured"), [({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)]
)
def test_colours(
    used: SyncRateLimiter,  # noqa: ARG001
    tmp_path: Path,
    variables: dict[str, str],
    is_coloured: bool,
) -> None:
    """``NO_COLOR`` leaves a screen without colours, and a terminal that can do nothing gets plain lines."""
    with Terminal(
        "watch", "--store", STORE, columns=80, rows=24, directory=tmp_path, **variables
    ) as terminal:
        wait_until(lambda: "owing" in (terminal.read(), terminal.text)[1], "nothing was shown")
        terminal.press("\x03")
        terminal.ended()
        shown, _, _ = terminal.text.partition("\x1b[31m\x1b[1merror")  # which is not its own
        colours = re.search(r"\x1b\[[0-9;]*3[0-7]m", shown)
        assert (colours is not None) == is_coloured
        if variables.get("TERM") == "dumb":
            assert "\x1b" not in shown
            assert "owing gpt-4 tpm refuses: -" in shown


def lines_of(stream: IO[str]) -> Iterator[str]:
    for line in stream:
        yield line.rstrip("\n")


@pytest.mark.parametrize("form", ["--json", "--output table"])
def test_a_pipe_gets_a_line_for_each_change(used: SyncRateLimiter, tmp_path: Path, form: str) -> None:
    """What is near a limit at the start, then what changes, in words or as JSON; each is told once."""
    words = [sys.executable, "-m", "zae_limiter.cli", "watch", "--store", STORE, "--interval", "0.1"]
    process = subprocess.Popen(
        [*words, *form.split()],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONIOENCODING": "utf-8", "PYTHONUNBUFFERED": "1"},
    )
    assert process.stdout is not None
    try:
        lines = lines_of(process.stdout)
        told: list[str] = []

        def until(word: str) -> str:
            for line in lines:
                told.append(line)
                if word in line:
                    return line
            raise AssertionError(f"{word} was never told: {told}")

        until("owing")
        with used.acquire("bot", "gpt-4", {"tpm": 9_000}):
            pass
        near = until("bot")
        report(used, refused(used))
        refusal = until("refus" if form == "--json" else "refused by")
        if form == "--json":
            event = json.loads(near)
            assert (event["event"], event["entity"], event["limit"]) == ("level", "bot", "tpm")
            assert (event["state"], event["capacity"]) == ("near", 10_000)
            while json.loads(refusal)["event"] != "refusal":
                refusal = until('"refusal"')
            assert json.loads(refusal)["limits"] == ["rpm"]
        else:
            assert re.fullmatch(r"\d\d:\d\d:\d\d bot gpt-4 tpm is nearly used up: \d+ of 10000 left", near)
            assert re.fullmatch(r"\d\d:\d\d:\d\d bot gpt-4 refused by rpm, wait 1.2 s, 12 times", refusal)
        assert sum("owing" in line for line in told) == 1
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE_SECONDS) == INTERRUPTED
    finally:
        process.kill()
        process.wait(PATIENCE_SECONDS)
        process.stdout.close()
        if process.stderr is not None:
            process.stderr.close()


@pytest.mark.parametrize("width", [24, 40, 80, 120])
def test_once(run: Run, used: SyncRateLimiter, monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    """One frame for scripts, without colour, at any width."""
    report(used, refused(used))
    monkeypatch.setenv("COLUMNS", str(width))
    result = run("watch", "--once")
    assert (result.exit_code, result.stderr) == (0, "")
    assert "\x1b" not in result.stdout
    assert max(map(cell_len, result.stdout.splitlines())) <= width
    assert "owing" in result.stdout
    assert "4 buckets" in result.stdout


def test_once_as_data(run: Run, used: SyncRateLimiter) -> None:
    """Everything that is shown, in the order in which it is shown."""
    before = json.loads(run("watch", "--once", "--json").stdout)
    assert (before["refusals"], before["pace"]) == (None, None)  # nobody tells
    report(used, refused(used))
    data = json.loads(run("watch", "--once", "--json").stdout)
    assert (data["buckets"][0]["entity"], data["buckets"][0]["resource"]) == ("owing", "gpt-4")
    assert {one["entity"] for one in data["buckets"]} == {"owing", "acme", "acme/東京", "bot"}
    (rpm, tpm) = data["buckets"][0]["levels"]
    assert (rpm["state"], tpm["state"], tpm["refuses"]) == ("free", "refuses", True)
    assert tpm["available"] < -1_900_000
    assert [one["entity"] for one in data["refusals"]] == ["bot"]
    by_name = json.loads(run("watch", "--once", "--json", "--sort", "entity", "--limit", "3").stdout)
    assert [one["entity"] for one in by_name["buckets"]] == sorted(
        one["entity"] for one in by_name["buckets"]
    )
    assert len(by_name["buckets"]) == 3


def test_a_family(run: Run, used: SyncRateLimiter) -> None:
    """All limits of an entity, below those above it and before its children; refusals of these only."""
    report(used, refused(used), refused(used, "acme"))
    shown = run("watch", "acme", "--once").stdout.splitlines()
    rows = [line for line in shown if " of " in line]
    assert [line.split()[0] for line in rows[::2]] == ["acme", "acme/東京"]
    assert rows[2].startswith("  acme/東京")
    assert [re.findall("rpm|tpm", line) for line in rows] == [["rpm"], ["tpm"], ["rpm"], ["tpm"]]
    told = "\n".join(shown[shown.index("refused lately") :])
    assert "acme" in told
    assert "bot" not in told
    child = json.loads(run("watch", "acme/東京", "--once", "--json").stdout)
    assert [(one["entity"], one["depth"]) for one in child["buckets"]] == [("acme", 0), ("acme/東京", 1)]
    assert "no buckets yet" in run("watch", "nobody", "--once").stdout
    assert "no buckets yet" in run("watch", "acme", "-r", "embeddings", "--once").stdout


def test_a_store_that_was_never_there(run: Run) -> None:
    """It is an error like for any command that reads, and nothing is made."""
    result = run("watch", "--once")
    assert result.exit_code == 4
    assert "does not exist" in result.stderr


def test_soft_limits_do_not_refuse(run: Run, limiter: SyncRateLimiter) -> None:
    """One that is exceeded is told as soft, and whoever has other limits left is not said to be refused."""
    limiter.set_system_defaults([RPM, Limit.per_minute("tpm", 10).softly()])
    with limiter.acquire("a", "gpt-4", {"rpm": 1, "tpm": 100}):
        pass
    (bucket,) = json.loads(run("watch", "--once", "--json").stdout)["buckets"]
    assert [one["refuses"] for one in bucket["levels"]] == [False, False]
    assert "0 refuse" in run("watch", "--once").stdout
    assert "tpm (soft)" in run("watch", "a", "--once").stdout


def test_looks_tell_how_fast_it_goes() -> None:
    """By what each process counted between two reports; one that is silent stands still."""
    clock = ManualClock()
    with SyncRateLimiter.open("memory://", world=clock.world) as limiter:
        reader = WatchReader(limiter.repository._async._scope, None, None, 10)

        def look() -> Pace | None:
            return run_sync(reader.look()).pace

        assert look() is None
        report(limiter)
        assert look() is None
        clock.advance(2)
        report(limiter, counted=100)
        assert look() == Pace(50.0, 5.0)
        clock.advance(QUIET_MS / 1000 + 1)  # it is about to tell again
        assert look() == Pace(50.0, 5.0)
        clock.advance(10)
        assert look() == Pace(0.0, 0.0)


def test_changes_are_told_once() -> None:
    """A refusal that goes on is told again when it was repeated, a level when it stands differently."""
    changes = Changes()
    one = Refusal(1_000, "a", "gpt-4", ("rpm",), {"rpm": 1}, None, 1, "web-1")
    sight = Sight(1_000, (), 0, True, (one,), None)
    assert [change.event for change in changes.since(sight)] == ["refusal"]
    assert list(changes.since(sight)) == []
    assert [
        change.at_ms
        for change in changes.since(
            sight._replace(refusals=(Refusal(1_500, "a", "gpt-4", ("rpm",), {"rpm": 1}, None, 3, "web-1"),))
        )
    ] == [1_500]


def test_a_wait_for_a_seat_and_a_switch_are_told_as_they_are() -> None:
    """A seat comes back at that instant at the latest; who is switched off hears why, and of no wait."""
    seat = Refusal(1_000, "a", "gpt-4", ("parallel",), {"parallel": 1}, 300_000, 2, "web-1", is_latest=True)
    off = Refusal(1_000, "b", "gpt-4", (), {"rpm": 1}, None, 1, "web-1", reason="unpaid")
    told = [(line.why, line.wait) for line in map(_told_refusal, (seat, off))]
    assert told == [("parallel", "at most 5 min"), ("off: unpaid", "")]
    sight = Sight(1_000, (), 0, True, (off, seat), None)
    assert [_sentence(one) for one in Changes().since(sight)] == [
        "00:00:01 a gpt-4 refused by parallel, wait at most 5 min, 2 times",
        "00:00:01 b gpt-4 refused, it is off: unpaid",
    ]


def test_a_level_moves_as_its_limit_refills() -> None:
    """Bit by bit, to the capacity and no further; what comes back as a whole stands still."""
    level = SeenLevel(RPM, 60, 30_000, 1.0, 30_000, refuses=False)
    assert [moved_milli(level, ms) for ms in (0, 500, 10_000, 90_000)] == [30_000, 30_500, 40_000, 60_000]
    assert moved_milli(SeenLevel(RPM, 60, 30_000, 0.0, None, refuses=False), 90_000) == 30_000
