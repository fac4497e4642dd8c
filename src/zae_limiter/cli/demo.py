"""``zae-limiter demo``: a short run to watch, on a store of its own that is removed afterwards.

The lines appear while things happen. What happens, and whether it is as it should be, is the
business of ``story``.
"""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import quote

import click
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from ..runtime.world import World
from ..sync import SyncRateLimiter
from ..visualization.bars import Ink, bar, diverging
from .errors import Failure
from .nouns import option, verb
from .output import Output, console, grid, ink
from .serve import PORTS
from .session import with_output
from .story import ACTS, TOKENS, Act, Balance, Demonstration, Event, Miscounted, Step, Untrue, Used, usage

CHART_WIDTH, CHART_WIDTH_MIN = 50, 8
BESIDE_BARS = 28
TEXT_WIDTH = 80
OPENING = "A fresh SQLite file in a temporary directory, and four short acts in real time."
USAGE_TITLE = "What was used"
USAGE_SAYS = (
    "The store remembers all that, and the aggregator counted it, net of what was given back. "
    "What carol and dave use counts for their team too."
)

NEXT = (
    "The same live, on a page in the browser: make demo-ui in a checkout, or zae-limiter demo --ui where "
    'this package was installed by pip install ".[cli,server]"'
)

Count = Callable[[], object]
"""Has the aggregator count what happened so far."""


@verb("demo")
@option("--ui", "Serve the page, with tenants in real time, until Ctrl-C.", is_flag=True)
@option("--port", "Serve it on this port; 0 takes a free one.", type=PORTS, default=0, metavar="N")
@option("--no-open", "Do not open a browser.", is_flag=True)
@option("--seconds", "End the page by itself after so long.", type=click.FloatRange(0.1), metavar="N")
@with_output
def demo(output: Output, ui: bool, port: int, no_open: bool, seconds: float | None) -> None:
    """Watch the limiter work on a fresh embedded store.

    Takes some seconds. Every line that it prints is checked while it runs. It ends with a chart of what
    was used. With --ui it shows the page instead, and tenants of a gateway who keep it busy.
    """
    if ui:
        from .showcase import ShowcaseOptions, showcase

        showcase(output, ShowcaseOptions(port=port, opens=not no_open, seconds=seconds))
        return
    if port or no_open or seconds is not None:
        raise click.UsageError("--port, --no-open and --seconds go with --ui")
    from zae_limiter_aggregator.runner import aggregate

    world = World()
    with tempfile.TemporaryDirectory(prefix="zae-limiter-demo-") as directory:
        url = f"sqlite:///{quote(directory)}/demo.db"
        with SyncRateLimiter.open(url, namespace="demo", world=world) as limiter:
            shown = Demonstration(limiter, world, time.sleep)
            show = _report if output.is_json else _perform
            try:
                show(shown, lambda: aggregate(url, until_idle=True), output)
            except Miscounted as error:
                raise Failure(f"the aggregator did not count what the demo used: {error}") from error
            except Untrue as error:
                hint = "a machine that stands still for a second can do that; run it again"
                raise Failure(f"the limiter did not do what the demo says: {error}", hint) from error


def _report(shown: Demonstration, count: Count, output: Output) -> None:
    """The whole story as data."""
    steps: list[dict[str, Any]] = []
    samples: list[dict[str, Any]] = []
    for act in ACTS:
        for event in act.play(shown):
            (samples if isinstance(event, Balance) else steps).append({"act": act.title, **event._asdict()})
    count()
    used = [one._asdict() for one in usage(shown)]
    output.json({"steps": steps, "samples": samples, "usage": used, "checks": shown.checks})


def _perform(shown: Demonstration, count: Count, _: Output) -> None:
    """Show one act after the other, and then what all of them used."""
    out = console()

    def announce(title: str, says: str) -> None:
        out.print(Text(f"\n{title}", style="bold"))
        out.print(f"{says}\n", width=min(out.width, TEXT_WIDTH))

    out.print(OPENING, width=min(out.width, TEXT_WIDTH))
    for act in ACTS:
        announce(act.title, act.says)
        scenes = _scenes(act, shown, ink(out), chart_width(out))
        if out.is_terminal:
            with Live(console=out, auto_refresh=False, vertical_overflow="visible") as live:
                for scene in scenes:
                    live.update(scene, refresh=True)
        else:  # nobody watches
            out.print(list(scenes)[-1])
    count()
    announce(USAGE_TITLE, USAGE_SAYS)
    out.print(usage_chart(usage(shown), ink(out), chart_width(out)))
    out.print(f"\n{shown.checks} claims were checked while this ran, and all of them held.")
    out.print(f"\n{NEXT}", width=min(out.width, TEXT_WIDTH))


def chart_width(out: Console) -> int:
    """How long bars are: as long as there is room beside what they are about."""
    return max(CHART_WIDTH_MIN, min(CHART_WIDTH, out.width - BESIDE_BARS))


def _scenes(act: Act, shown: Demonstration, drawn: Ink, width: int) -> Iterator[RenderableType]:
    """What is to be seen after each event of an act: a table, and from a balance on a chart."""
    seen: list[Event] = []
    for event in act.play(shown):
        seen.append(event)
        steps = [one for one in seen if isinstance(one, Step)]
        balances = [one for one in seen if isinstance(one, Balance)]
        yield Group(_table(steps), *([Text(), *_chart(balances, drawn, width)] if balances else []))


def _table(steps: Sequence[Step]) -> RenderableType:
    rows = [(s.step, _amounts(s.asked), s.answer, wait_text(s.wait_seconds), _amounts(s.left)) for s in steps]
    table = grid(["step", "asked", "answer", "wait", "left"], rows, numbers=("wait",))
    for column, width in zip(table.columns, (14, 19, 8, 8, 19), strict=True):
        column.min_width = width  # so that the columns stand still while lines are added
    return table


def _chart(balances: Sequence[Balance], drawn: Ink, width: int) -> Iterator[Text]:
    """The balance of tokens over time; debt goes to the left."""
    yield Text("tokens over time", style="bold")
    top = TOKENS.capacity / 2
    for at_ms, left in balances:
        bar = diverging(left, -top * 1.5, top, width, drawn)
        yield Text(f"{at_ms / 1000:6.1f} s {left:6} ") + Text(bar, style="red" if left < 0 else "green")


def usage_chart(used: Sequence[Used], drawn: Ink, width: int = CHART_WIDTH) -> RenderableType:
    """One bar for each limit of an entity; the longest bar of each limit is its largest use."""
    tops = {one.limit: max(other.used for other in used if other.limit == one.limit) for one in used}
    rows = [(*one, bar(one.used, tops[one.limit], width, drawn)) for one in used]
    return grid(["limit", "entity", "used", ""], rows, numbers=("used",))


def _amounts(amounts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {amount}" for name, amount in amounts.items())


def wait_text(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    return "never" if math.isinf(seconds) else f"{seconds:.3f} s"
