"""The demo: as a process in real time, and its story on a clock that can be set.

On such a clock the story is exact, and a limiter that does not keep its word can be put on stage.
"""

import io
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
from click.testing import CliRunner
from rich.console import Console

from tests.patience import PATIENCE_SECONDS
from zae_limiter import Limit, RateLimitExceeded, SyncRateLimiter
from zae_limiter.backends import open_backend
from zae_limiter.cli import demo as demo_module
from zae_limiter.cli.app import program
from zae_limiter.cli.demo import NEXT, USAGE_TITLE, chart_width, usage_chart, wait_text
from zae_limiter.cli.output import console
from zae_limiter.cli.story import ACTS, Balance, Demonstration, Miscounted, Step, Untrue, Used, usage
from zae_limiter.runtime.colour import run_sync
from zae_limiter.testing import ManualClock
from zae_limiter.visualization.bars import ASCII
from zae_limiter_aggregator import AggregatorSettings
from zae_limiter_aggregator.runner import follow, source_of

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

USED = [
    Used("calls", "alice", 6),
    Used("calls", "bob", 2),
    Used("calls", "carol", 5),
    Used("calls", "dave", 2),
    Used("calls", "team", 7),
    Used("tokens", "alice", 600),
    Used("tokens", "bob", 1500),
    Used("tokens", "erin", 1701),
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
        timeout=PATIENCE_SECONDS,
        check=False,
    )


def test_the_demo_in_real_time(tmp_path: Path) -> None:
    """Exit code 0, the whole story, a chart with a debt, what was used, no colour, nothing left behind."""
    result = demo(tmp_path)
    assert (result.returncode, result.stderr) == (0, "")
    assert ESCAPE not in result.stdout
    for act in ACTS:
        assert act.title in result.stdout
    lines = [re.split(r"\s{2,}", line.strip()) for line in result.stdout.splitlines()]
    told = [(line[0], line[2]) for line in lines if len(line) == 5 and line[0] != "step"]
    assert told == STORY
    bars = [line for line in lines[lines.index([USAGE_TITLE]) :] if len(line) == 4]
    assert [tuple(line[:3]) for line in bars] == [(limit, who, str(used)) for limit, who, used in USED]
    assert {len(line[3]) for line in bars if line[1] in {"team", "erin"}} == {demo_module.CHART_WIDTH}
    assert "│█" in result.stdout
    assert "█│" in result.stdout
    assert "all of them held" in result.stdout
    assert " ".join(result.stdout.split()).endswith(NEXT)
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
    """The same steps, samples and usage as JSON; a wait without end is null."""
    data = json.loads(demo(tmp_path, "--output", "json").stdout)
    assert [(one["step"], one["answer"]) for one in data["steps"]] == STORY
    never = next(one for one in data["steps"] if one["step"] == "too large")
    assert never["wait_seconds"] is None
    assert data["samples"][0]["left"] < 0 < data["samples"][-1]["left"]
    assert data["usage"] == [one._asdict() for one in USED]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def stage(clock: ManualClock) -> Iterator[Demonstration]:
    with SyncRateLimiter.open("memory://", world=clock.world) as limiter:
        yield Demonstration(limiter, clock.world, clock.advance)


def test_the_story_on_a_clock_is_exact(stage: Demonstration, clock: ManualClock) -> None:
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
    samples = [one for one in events if isinstance(one, Balance)]
    assert samples[0] == Balance(0, -700)
    assert samples[1] == Balance(200, -600)
    assert clock.now_ms - started_ms < 8000
    assert stage.checks > 20


def test_a_slow_machine_is_no_lie(stage: Demonstration, clock: ManualClock) -> None:
    """Whatever time passes between calls, as long as it is not a second, every check holds."""

    def sleep_badly(seconds: float) -> None:
        clock.advance(seconds + 0.05)

    now_ms = clock.world.now_ms

    def slow_clock() -> int:
        clock.advance(0.007)
        return now_ms()

    slow = Demonstration(
        stage.limiter, type(stage.world)(slow_clock, stage.world.ticks_ms, stage.world.random), sleep_badly
    )
    steps = [event for act in ACTS for event in act.play(slow) if isinstance(event, Step)]
    assert [(one.step, one.answer) for one in steps] == STORY


@pytest.fixture
def count(tmp_path: Path, clock: ManualClock) -> Iterator[Callable[[], None]]:
    """Have the aggregator count what happens in the store ``memory://{tmp_path.name}``."""
    url = f"memory://{tmp_path.name}"
    backend = open_backend(url, sync=True, world=clock.world)
    run_sync(backend.setup())

    def count() -> None:
        source = source_of(backend, url, clock.world, AggregatorSettings())
        follow(source, until_idle=True, stop=threading.Event(), tell=lambda *_: None)

    yield count
    run_sync(backend.close())


@pytest.fixture
def followed(tmp_path: Path, clock: ManualClock, count: Callable[[], None]) -> Iterator[Demonstration]:  # noqa: ARG001 - it starts the log
    with SyncRateLimiter.open(f"memory://{tmp_path.name}", world=clock.world) as limiter:
        yield Demonstration(limiter, clock.world, clock.advance)


@pytest.mark.parametrize("second_of_the_hour", [0, 3597])
def test_usage_is_what_the_acts_took(
    followed: Demonstration, clock: ManualClock, count: Callable[[], None], second_of_the_hour: int
) -> None:
    """Adjustments count, what a refusal gave back does not; also when an hour ends in between."""
    clock.advance(3600 - clock.now_ms / 1000 % 3600 + second_of_the_hour)
    for act in ACTS:
        list(act.play(followed))
    count()
    checks = followed.checks
    assert usage(followed) == USED
    assert followed.checks == checks + len(USED)
    hours, _ = followed.limiter.get_usage_snapshots(resource="chat", window_type="hourly")
    assert len({one.window_start for one in hours}) == (2 if second_of_the_hour else 1)


def test_usage_that_was_not_counted_is_caught(followed: Demonstration, count: Callable[[], None]) -> None:
    """One token is enough, and so is an entity that nobody knows of."""
    list(ACTS[0].play(followed))
    with pytest.raises(Miscounted, match="alice used 6 calls, 0 were counted; alice used 600 tokens, 0 were"):
        usage(followed)
    count()
    assert usage(followed) == [Used("calls", "alice", 6), Used("tokens", "alice", 600)]
    followed.used["tokens", "alice"] += 1
    with pytest.raises(Miscounted, match=r"^alice used 601 tokens, 600 were counted$"):
        usage(followed)
    del followed.used["tokens", "alice"]
    with pytest.raises(Miscounted, match=r"^alice used 0 tokens, 600 were counted$"):
        usage(followed)


def test_the_chart_of_usage(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Each limit has a scale of its own, and whatever was used has a bar."""
    monkeypatch.setenv("COLUMNS", "80")
    console().print(usage_chart(USED[3:], ASCII))
    _, _, *rows = (line.split() for line in capsys.readouterr().out.splitlines())
    assert [tuple(row) for row in rows] == [
        ("calls", "dave", "2", "#" * 14),
        ("calls", "team", "7", "#" * 50),
        ("tokens", "alice", "600", "#" * 17),
        ("tokens", "bob", "1500", "#" * 44),
        ("tokens", "erin", "1701", "#" * 50),
    ]


class Liar:
    """A limiter that is put on stage with one method replaced."""

    def __init__(self, limiter: SyncRateLimiter, name: str, method: Callable[..., object]) -> None:
        self._limiter, self._name, self._method = limiter, name, method

    def __getattr__(self, name: str) -> object:
        return self._method if name == self._name else getattr(self._limiter, name)


def test_a_wait_that_is_too_short_is_caught(stage: Demonstration, monkeypatch: pytest.MonkeyPatch) -> None:
    """One millisecond is enough."""
    true = RateLimitExceeded.retry_after_seconds.fget
    assert true is not None
    short = property(lambda self: true(self) - 0.001)
    monkeypatch.setattr(RateLimitExceeded, "retry_after_seconds", short)
    with pytest.raises(Untrue, match="does not move away"):
        list(ACTS[0].play(stage))

    def soon(*arguments: object) -> float:
        return stage.limiter.time_until_available(*arguments) - 0.001  # type: ignore[arg-type]

    lying = Demonstration(Liar(stage.limiter, "time_until_available", soon), stage.world, stage.sleep)  # type: ignore[arg-type]
    with pytest.raises(Untrue, match="exactly the wait that was stated"):
        list(ACTS[1].play(lying))


def test_a_wait_that_is_too_long_is_caught(stage: Demonstration, monkeypatch: pytest.MonkeyPatch) -> None:
    """The look half-way sees that it could pass earlier."""
    true = RateLimitExceeded.retry_after_seconds.fget
    assert true is not None
    monkeypatch.setattr(RateLimitExceeded, "retry_after_seconds", property(lambda self: true(self) + 0.001))
    with pytest.raises(Untrue, match="not admitted before the wait is over"):
        list(ACTS[0].play(stage))


def test_a_limiter_that_admits_too_much_is_caught(stage: Demonstration) -> None:
    """A burst larger than the capacity, a parent that does not refuse, a debt that is forgiven."""
    generous = [Limit("calls", 50, 1, 1), Limit("tokens", 50_000, 1, 1)]

    def acquire(entity_id: str, resource: str, consume: Mapping[str, int]) -> object:
        # For an entity of no family: a parent goes by its own limits whatever a caller brings along.
        return stage.limiter.acquire(f"{entity_id}-unbound", resource, consume, generous)

    for act in ACTS:
        lying = Demonstration(Liar(stage.limiter, "acquire", acquire), stage.world, stage.sleep)  # type: ignore[arg-type]
        with pytest.raises(Untrue):
            list(act.play(lying))


def test_a_limiter_that_refuses_what_fits_is_caught(stage: Demonstration) -> None:
    """A burst smaller than the capacity."""
    stingy = [Limit("calls", 3, 1, 1), Limit("tokens", 1000, 500, 1)]

    def acquire(entity_id: str, resource: str, consume: Mapping[str, int]) -> object:
        return stage.limiter.acquire(entity_id, resource, consume, stingy)

    lying = Demonstration(Liar(stage.limiter, "acquire", acquire), stage.world, stage.sleep)  # type: ignore[arg-type]
    with pytest.raises(Untrue, match="a burst gets the capacity"):
        list(ACTS[0].play(lying))


def test_a_failed_demo_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Exit code 1 and the claim that did not hold."""

    def broken(stage: Demonstration) -> Iterator[Step]:
        yield Step("first", {"calls": 1}, "admitted", None, {"calls": 0})
        stage.require(False, "the sky is green")

    monkeypatch.setattr(demo_module, "ACTS", (ACTS[0]._replace(play=broken),))
    result = CliRunner().invoke(program, ["demo"])
    assert result.exit_code == 1
    assert "error: the limiter did not do what the demo says" in result.stderr
    assert "the sky is green" in result.stderr


@pytest.mark.parametrize("form", ["table", "json"])
def test_a_demo_that_was_miscounted_says_so(monkeypatch: pytest.MonkeyPatch, form: str) -> None:
    """Exit code 1 and what was used, what was counted."""

    def wasteful(stage: Demonstration) -> Iterator[Step]:
        yield Step("first", {"calls": 1}, "admitted", None, {"calls": 0})
        stage.note("alice", {"calls": 1})

    monkeypatch.setattr(demo_module, "ACTS", (ACTS[0]._replace(play=wasteful),))
    result = CliRunner().invoke(program, ["demo", "--output", form])
    assert result.exit_code == 1
    assert result.stderr == (
        "error: the aggregator did not count what the demo used: alice used 1 calls, 0 were counted\n"
    )


@pytest.mark.parametrize("width", [40, 80, 120])
def test_the_charts_fit(width: int) -> None:
    """Bars are as long as there is room for them, and no row is torn apart."""
    out = Console(file=io.StringIO(), width=width)
    out.print(usage_chart(USED, ASCII, chart_width(out)))
    lines = out.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert len(lines) == len(USED) + 2
    assert max(map(len, lines)) <= width
    assert lines[-1].count("#") == chart_width(out)
