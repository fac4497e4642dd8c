"""``zae-limiter demo``: a short run to watch, on a store of its own that is removed afterwards.

The lines appear while things happen. What happens, and whether it is as it should be, is the
business of ``story``.
"""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import quote

import click
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from ..sync import SyncRateLimiter
from ..world import World
from .chart import Ink, diverging
from .errors import Failure
from .output import Output, console, grid, ink
from .session import with_output
from .story import ACTS, TOKENS, Act, Event, Sample, Stage, Step, Untrue

CHART_WIDTH = 50
TEXT_WIDTH = 80
OPENING = "A fresh SQLite file in a temporary directory, and four short acts in real time."


@click.command()
@with_output
def demo(output: Output) -> None:
    """Watch the limiter work on a fresh embedded store.

    Takes some seconds. Every line that it prints is checked while it runs.
    """
    world = World()
    with tempfile.TemporaryDirectory(prefix="zae-limiter-demo-") as directory:
        url = f"sqlite:///{quote(directory)}/demo.db"
        with SyncRateLimiter.open(url, namespace="demo", world=world) as limiter:
            stage = Stage(limiter, world, time.sleep)
            try:
                if output.is_json:
                    report(stage, output)
                else:
                    perform(stage, console())
            except Untrue as error:
                raise Failure(
                    f"the limiter did not do what the demo says: {error}",
                    "a machine that stands still for a second can do that; run it again",
                ) from error


def report(stage: Stage, output: Output) -> None:
    """The whole story as data."""
    steps: list[dict[str, Any]] = []
    samples: list[dict[str, Any]] = []
    for act in ACTS:
        for event in act.play(stage):
            (samples if isinstance(event, Sample) else steps).append({"act": act.title, **event._asdict()})
    output.show({"steps": steps, "samples": samples, "checks": stage.checks}, Text)


def perform(stage: Stage, out: Console) -> None:
    """Show one act after the other."""
    width = min(out.width, TEXT_WIDTH)
    out.print(OPENING, width=width)
    for act in ACTS:
        out.print(Text(f"\n{act.title}", style="bold"))
        out.print(f"{act.says}\n", width=width)
        play(act, stage, out)
    out.print(f"\n{stage.checks} claims were checked while this ran, and all of them held.")


def play(act: Act, stage: Stage, out: Console) -> None:
    """Show an act while it happens, or its last scene where nobody watches."""
    if out.is_terminal:
        with Live(console=out, auto_refresh=False, vertical_overflow="visible") as live:
            for scene in scenes(act, stage, ink(out)):
                live.update(scene, refresh=True)
    else:
        *_, last = scenes(act, stage, ink(out))
        out.print(last)


def scenes(act: Act, stage: Stage, drawn: Ink) -> Iterator[RenderableType]:
    """What is to be seen after each event of an act."""
    seen: list[Event] = []
    for event in act.play(stage):
        seen.append(event)
        steps = [one for one in seen if isinstance(one, Step)]
        samples = [one for one in seen if isinstance(one, Sample)]
        yield Group(_table(steps), *([Text(), *_chart(samples, drawn)] if samples else []))


def _table(steps: Sequence[Step]) -> RenderableType:
    table = grid(
        ["step", "asked", "answer", "wait", "left"],
        [(s.step, _amounts(s.asked), s.answer, wait_text(s.wait_seconds), _amounts(s.left)) for s in steps],
        numbers=("wait",),
    )
    for column, width in zip(table.columns, (14, 19, 8, 8, 19), strict=True):
        column.min_width = width  # so that the columns stand still while lines are added
    return table


def _chart(samples: Sequence[Sample], drawn: Ink) -> Iterator[Text]:
    """One bar for each sample; a debt goes to the left."""
    yield Text("tokens over time", style="bold")
    top = TOKENS.capacity / 2
    for at_ms, left in samples:
        bar = diverging(left, -top * 1.5, top, CHART_WIDTH, drawn)
        yield Text(f"{at_ms / 1000:6.1f} s {left:6} ") + Text(bar, style="red" if left < 0 else "green")


def _amounts(amounts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {amount}" for name, amount in amounts.items())


def wait_text(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    return "never" if math.isinf(seconds) else f"{seconds:.3f} s"
