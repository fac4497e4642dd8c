"""The demo: as a process in real time, and its story on a clock that can be set.

On such a clock the story is exact, and a limiter that does not keep its word can be put on stage.
"""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
from click.testing import CliRunner

from zae_limiter import Limit, RateLimitExceeded, SyncRateLimiter
from zae_limiter.cli import demo as demo_module
from zae_limiter.cli.app import program
from zae_limiter.cli.demo import wait_text
from zae_limiter.cli.story import ACTS, Sample, Stage, Step, Untrue
from zae_limiter.testing import ManualClock

SECONDS_MAX = 15
ESCAPE = "\x1b"

STORY = [
    ("request 1", "admitted"),
    ("request 2", "admitted"),
    ("request 3", "admitted"),
    ("request 4", "admitted"),
    ("request 5", "admitted"),
    ("request 6", "refused"),
    ("half-way", "not yet"),
    ("after the wait", "admitted"),
    ("large", "admitted"),
    ("large again", "refused"),
    ("half-way", "not yet"),
    ("after the wait", "admitted"),
    ("too large", "refused"),
    ("carol", "admitted"),
    ("dave", "refused"),
    ("half-way", "not yet"),
    ("after the wait", "admitted"),
    ("estimate", "admitted"),
    ("real cost", "adjusted"),
    ("next", "refused"),
    ("after the wait", "admitted"),
]


def demo(directory: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run the demo as its own process."""
    environment = {k: v for k, v in os.environ.items() if k not in {"COLUMNS", "FORCE_COLOR", "NO_COLOR"}}
    environment |= {"TMPDIR": str(directory), "PYTHONIOENCODING": "utf-8", **variables}
    return subprocess.run(
        [sys.executable, "-m", "zae_limiter.cli", "demo", *words],
        env=environment,
        capture_output=True,
        encoding="utf-8",
        timeout=60,
        check=False,
    )


def test_the_demo_in_real_time(tmp_path: Path) -> None:
    """Exit code 0, the whole story, a chart with a debt, no colour, and nothing left behind."""
    started = time.monotonic()
    result = demo(tmp_path)
    assert time.monotonic() - started < SECONDS_MAX
    assert (result.returncode, result.stderr) == (0, "")
    assert ESCAPE not in result.stdout
    for act in ACTS:
        assert act.title in result.stdout
    lines = [re.split(r"\s{2,}", line.strip()) for line in result.stdout.splitlines()]
    told = [(line[0], line[2]) for line in lines if len(line) == 5 and line[0] != "step"]
    assert told == STORY
    assert "│█" in result.stdout
    assert "█│" in result.stdout
    assert "all of them held" in result.stdout
    assert list(tmp_path.iterdir()) == []


def test_the_demo_without_colour_in_ascii(tmp_path: Path) -> None:
    """``NO_COLOR``, an encoding without blocks, and a narrow window: still readable."""
    result = demo(tmp_path, NO_COLOR="1", PYTHONIOENCODING="ascii", COLUMNS="80")
    assert result.returncode == 0
    assert result.stdout.isascii()
    assert ESCAPE not in result.stdout
    assert max(len(line) for line in result.stdout.splitlines()) <= 80
    assert "#|" in result.stdout


def test_the_demo_as_data(tmp_path: Path) -> None:
    """The same steps and samples as JSON; a wait without end is null."""
    data = json.loads(demo(tmp_path, "--output", "json").stdout)
    assert [(one["step"], one["answer"]) for one in data["steps"]] == STORY
    never = next(one for one in data["steps"] if one["step"] == "too large")
    assert never["wait_seconds"] is None
    assert data["samples"][0]["left"] < 0 < data["samples"][-1]["left"]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def stage(clock: ManualClock) -> Iterator[Stage]:
    with SyncRateLimiter.open("memory://", world=clock.world) as limiter:
        yield Stage(limiter, clock.world, clock.advance)


def test_the_story_on_a_clock_is_exact(stage: Stage, clock: ManualClock) -> None:
    """When no time passes between the lines, every wait and every balance is known."""
    started_ms = clock.now_ms
    events = [event for act in ACTS for event in act.play(stage)]
    steps = [one for one in events if isinstance(one, Step)]
    assert [(one.step, one.answer) for one in steps] == STORY
    waits = [wait_text(one.wait_seconds) for one in steps if one.wait_seconds is not None]
    assert waits == ["1.000 s", "0.500 s", "1.000 s", "0.500 s", "never", "1.000 s", "0.500 s", "1.402 s"]
    assert [dict(one.left) for one in steps[4:8]] == [
        {"calls": 0, "tokens": 500},
        {"calls": 0, "tokens": 500},
        {"calls": 0, "tokens": 750},
        {"calls": 0, "tokens": 900},
    ]
    samples = [one for one in events if isinstance(one, Sample)]
    assert samples[0] == Sample(0, -700)
    assert samples[1] == Sample(200, -600)
    assert clock.now_ms - started_ms < 8000
    assert stage.checks > 20


def test_a_slow_machine_is_no_lie(stage: Stage, clock: ManualClock) -> None:
    """Whatever time passes between calls, as long as it is not a second, every check holds."""

    def sleep_badly(seconds: float) -> None:
        clock.advance(seconds + 0.05)

    now_ms = clock.world.now_ms

    def slow_clock() -> int:
        clock.advance(0.007)
        return now_ms()

    slow = Stage(
        stage.limiter, type(stage.world)(slow_clock, stage.world.ticks_ms, stage.world.random), sleep_badly
    )
    steps = [event for act in ACTS for event in act.play(slow) if isinstance(event, Step)]
    assert [(one.step, one.answer) for one in steps] == STORY


class Liar:
    """A limiter that is put on stage with one method replaced."""

    def __init__(self, limiter: SyncRateLimiter, name: str, method: Callable[..., object]) -> None:
        self._limiter, self._name, self._method = limiter, name, method

    def __getattr__(self, name: str) -> object:
        return self._method if name == self._name else getattr(self._limiter, name)


def test_a_wait_that_is_too_short_is_caught(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """One millisecond is enough."""
    true = RateLimitExceeded.retry_after_seconds.fget
    assert true is not None
    short = property(lambda self: true(self) - 0.001)
    monkeypatch.setattr(RateLimitExceeded, "retry_after_seconds", short)
    with pytest.raises(Untrue, match="does not move away"):
        list(ACTS[0].play(stage))

    def soon(*arguments: object) -> float:
        return stage.limiter.time_until_available(*arguments) - 0.001  # type: ignore[arg-type]

    lying = Stage(Liar(stage.limiter, "time_until_available", soon), stage.world, stage.sleep)  # type: ignore[arg-type]
    with pytest.raises(Untrue, match="exactly the wait that was stated"):
        list(ACTS[1].play(lying))


def test_a_wait_that_is_too_long_is_caught(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """The look half-way sees that it could pass earlier."""
    true = RateLimitExceeded.retry_after_seconds.fget
    assert true is not None
    monkeypatch.setattr(RateLimitExceeded, "retry_after_seconds", property(lambda self: true(self) + 0.001))
    with pytest.raises(Untrue, match="not admitted before the wait is over"):
        list(ACTS[0].play(stage))


def test_a_limiter_that_admits_too_much_is_caught(stage: Stage) -> None:
    """A burst larger than the capacity, a parent that does not refuse, a debt that is forgiven."""
    generous = [Limit("calls", 50, 1, 1), Limit("tokens", 50_000, 1, 1)]

    def acquire(entity_id: str, resource: str, consume: Mapping[str, int]) -> object:
        return stage.limiter.acquire(entity_id, resource, consume, generous)

    for act in ACTS:
        lying = Stage(Liar(stage.limiter, "acquire", acquire), stage.world, stage.sleep)  # type: ignore[arg-type]
        with pytest.raises(Untrue):
            list(act.play(lying))


def test_a_limiter_that_refuses_what_fits_is_caught(stage: Stage) -> None:
    """A burst smaller than the capacity."""
    stingy = [Limit("calls", 3, 1, 1), Limit("tokens", 1000, 500, 1)]

    def acquire(entity_id: str, resource: str, consume: Mapping[str, int]) -> object:
        return stage.limiter.acquire(entity_id, resource, consume, stingy)

    lying = Stage(Liar(stage.limiter, "acquire", acquire), stage.world, stage.sleep)  # type: ignore[arg-type]
    with pytest.raises(Untrue, match="a burst gets the capacity"):
        list(ACTS[0].play(lying))


def test_a_failed_demo_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Exit code 1 and the claim that did not hold."""

    def broken(stage: Stage) -> Iterator[Step]:
        yield Step("first", {"calls": 1}, "admitted", None, {"calls": 0})
        stage.require(False, "the sky is green")

    monkeypatch.setattr(demo_module, "ACTS", (ACTS[0]._replace(play=broken),))
    result = CliRunner().invoke(program, ["demo"])
    assert result.exit_code == 1
    assert "error: the limiter did not do what the demo says" in result.stderr
    assert "the sky is green" in result.stderr
