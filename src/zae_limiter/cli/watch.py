"""``zae-limiter watch``: who is near a limit and who was refused, live in the terminal.

On a terminal a screen of its own is drawn some times a second, and bars move between two looks as the limits
refill. Elsewhere, and on a terminal that can do nothing, what changes is told line by line. A store that
goes away is told of and looked for again; what was seen stays until then.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import click
from rich.console import Console
from rich.live import Live
from rich.text import Text

from ..exceptions import ZAELimiterError, without_secrets
from ..models.accruals import CONCURRENT
from ..models.money import shown_amount
from ..models.refusing import span
from ..records.buckets_now import SeenBucket, SeenLevel
from ..records.reports import Refusal
from ..runtime.colour import run_sync
from ..visualization.screen import Gauge, RefusalLine, Scene, frame
from ..visualization.wording import short
from .ending import raised_on_terminate
from .keys import Keys
from .nouns import option, verb
from .output import ascii_option, console, counted, ink, plain
from .session import Session, with_existing
from .switches import switch_text
from .text import printable
from .watch_data import (
    Changes,
    Happening,
    LevelState,
    Shown,
    Sight,
    WatchReader,
    level_data,
    moved_milli,
    refusal_data,
    state_of,
)

FRAMES_A_SECOND = 8
INTERVAL_SECONDS, INTERVAL_SECONDS_DYNAMODB = 1.0, 5.0
"""How often the store is looked at; on DynamoDB each look costs money."""
TERMINATED = 143
ROUGH_DIGITS = 3
AMOUNT_COLUMNS = 6  # of most amounts, so that columns stand still while numbers change


@verb("watch", click.argument("entity_id", metavar="[ENTITY]", required=False), meant="--resource")
@option("--resource -r", "Only buckets of this resource.")
@option(
    "--interval",
    "Look so often.  [default: 1; on DynamoDB 5]",
    metavar="SECONDS",
    type=click.FloatRange(0.1, 3600),
)
@option("--once", "Show it once, and end.", is_flag=True)
@option("--limit", "Show so many buckets at most.", type=click.IntRange(1, 200), default=50)
@option("--sort", "What comes first.", type=click.Choice(["near", "entity"]), default="near")
@ascii_option
@with_existing
def watch(
    session: Session,
    entity_id: str | None,
    resource: str | None,
    interval: float | None,
    once: bool,
    limit: int,
    sort: str,
) -> None:
    """Watch who is near a limit, and who is refused.

    Of an entity it shows all limits, with those of its parents and its children. Press q or Ctrl-C to end
    it. Where the output is no terminal, a line is printed for everything that changes.
    """
    look = Look(session, entity_id, resource, limit, sort)
    sight = look()
    if once:
        session.output.show(
            _data(sight), lambda: frame(look.scene(sight), console().width, None, ink(console()))
        )
        return
    seconds = interval or (INTERVAL_SECONDS_DYNAMODB if session.is_dynamodb else INTERVAL_SECONDS)
    out = console()
    with raised_on_terminate(SystemExit(TERMINATED)):
        if session.output.is_json or not out.is_terminal or out.is_dumb_terminal:
            _tell(look, sight, seconds)
        else:
            _draw(look, sight, seconds, out)


class Look:
    """Looks at the store of a session, opening it again if it was gone, and makes scenes of what it saw."""

    def __init__(
        self, session: Session, entity_id: str | None, resource: str | None, limit: int, sort: str
    ) -> None:
        self.session = session
        self._sort = sort
        self._asked = entity_id, resource, limit
        self._reader: WatchReader | None = None

    def __call__(self) -> Sight:
        """Look once; raises if the store cannot be looked at."""
        try:
            if self._reader is None:
                scope = self.session.repository._async._scope
                self._reader = WatchReader(scope, *self._asked)
            self.session.must_exist()
            sight = run_sync(self._reader.look())
        except (ZAELimiterError, click.ClickException):
            self._reader = None
            self.session.reopen()
            raise
        if self._sort == "entity" and self._asked[0] is None:
            by_name = sorted(sight.buckets, key=lambda one: (one.bucket.entity_id, one.bucket.resource))
            sight = sight._replace(buckets=tuple(by_name))
        return sight

    def scene(self, sight: Sight, now_ms: int | None = None, trouble: str = "") -> Scene:
        """What a sight shows at an instant, which may be later than the look."""
        now_ms = sight.at_ms if now_ms is None else now_ms
        entity_id, resource, _ = self._asked
        is_family = entity_id is not None
        of = "" if entity_id is None else f"  {printable(entity_id)}"
        of += "" if resource is None else f"  {printable(resource)}"
        store = printable(without_secrets(self.session.url))
        refusals = None if sight.refusals is None else [_told_refusal(one) for one in sight.refusals]
        return Scene(
            f"zae-limiter watch  {store}{of}",
            f"{_clock(now_ms)} UTC",
            _heading(sight, is_family=is_family),
            [gauge for shown in sight.buckets for gauge in _gauges(shown, now_ms, is_family=is_family)],
            refusals,
            trouble,
        )


def _heading(sight: Sight, *, is_family: bool) -> list[str]:
    refusing = sum(
        any(state_of(level) is LevelState.REFUSES for level in one.bucket.levels) for one in sight.buckets
    )
    known = counted(sight.buckets_known, "bucket")
    if not sight.buckets_known:
        known = "no buckets yet"
    elif not sight.is_all and not is_family:
        known = f"{known} so far"
    said = [known, f"{refusing} refuse{'s' if refusing == 1 else ''}"]
    if sight.pace is not None:
        said.append(f"{sight.pace.admitted:.1f} admitted/s")
        said.append(f"{sight.pace.refused:.1f} refused/s")
    return said


def _gauges(shown: Shown, now_ms: int, *, is_family: bool) -> list[Gauge]:
    """The limits of a bucket, or the one that is nearest to empty."""
    bucket, nearest = shown.bucket, shown.bucket.nearest
    levels = bucket.levels if is_family else [nearest] if nearest is not None else []
    return [_gauge(bucket, level, now_ms, shown.depth) for level in levels]


def _gauge(bucket: SeenBucket, level: SeenLevel, now_ms: int, depth: int) -> Gauge:
    passed_ms, limit = now_ms - bucket.at_ms, level.limit
    milli = moved_milli(level, passed_ms)
    refuses = level.refuses and milli < 1000
    ratio = max(-1.0, min(1.0, milli / (level.capacity * 1000))) if level.capacity else 0.0
    if level.held is not None:
        left = f"{level.held:>{AMOUNT_COLUMNS}} of {level.capacity} held"
    else:
        available = short(_rough(milli // 1000), limit.unit)
        left = f"{available:>{AMOUNT_COLUMNS}} of {short(level.capacity, limit.unit)}"
    switch = "" if bucket.switch is None else switch_text(bucket.switch.disabled, bucket.switch.bypass)
    when = printable(switch) if switch else _when(level, milli, refuses, passed_ms)
    name = f"{limit.name} (soft)" if limit.soft else limit.name
    return Gauge(
        printable(bucket.entity_id), printable(bucket.resource), name, ratio, left, when, refuses, depth
    )


def _rough(amount: int) -> int:
    """The first digits of an amount that moves.

    >>> _rough(-1_346), _rough(59)
    (-1340, 59)
    """
    step: int = 10 ** max(0, len(str(abs(amount))) - ROUGH_DIGITS)
    rough: int = abs(amount) // step * step
    return rough if amount >= 0 else -rough


def _when(level: SeenLevel, milli: int, refuses: bool, passed_ms: int) -> str:
    """When a limit that refuses lets somebody through again, or another one is full."""
    if level.limit.accrual == CONCURRENT:
        return "until one ends" if refuses else ""
    if refuses and level.per_second:
        return f"again in {span(max(1, round((1000 - milli) / level.per_second)))}"
    left_ms = 0 if level.full_in_ms is None else level.full_in_ms - passed_ms
    if left_ms <= 0:
        return ""
    whole_ms = -(-left_ms // 1000) * 1000
    return f"{'again' if refuses else 'full'} in {span(whole_ms)}"


def _told_refusal(one: Refusal) -> RefusalLine:
    wait, limits = _wait_text(one.retry_after_ms, is_latest=one.is_latest), ", ".join(one.limits)
    why = printable(f"off: {one.reason}") if one.reason else limits if wait else f"{limits}, never passes"
    return RefusalLine(
        _clock(one.at_ms), printable(one.entity_id), printable(one.resource), why, wait, one.count
    )


def _wait_text(wait_ms: int | None, *, is_latest: bool) -> str:
    """How long to wait, if that helps: until somebody is done a seat is not free, and then it is at once."""
    return "" if wait_ms is None else ("at most " if is_latest else "") + span(max(1, wait_ms))


def _clock(at_ms: int) -> str:
    return f"{datetime.fromtimestamp(at_ms / 1000, UTC):%H:%M:%S}"


def _data(sight: Sight) -> dict[str, Any]:
    """One look as JSON."""
    refused = [
        {"at_ms": one.at_ms, "entity": one.entity_id, "resource": one.resource, **refusal_data(one)}
        for one in sight.refusals or ()
    ]
    return {
        "at_ms": sight.at_ms,
        "buckets_known": sight.buckets_known,
        "is_all": sight.is_all,
        "buckets": [
            {
                "entity": bucket.entity_id,
                "resource": bucket.resource,
                "depth": depth,
                "levels": [{**level_data(one), "state": state_of(one).value} for one in bucket.levels],
            }
            for bucket, depth in sight.buckets
        ],
        "refusals": None if sight.refusals is None else refused,
        "pace": None if sight.pace is None else sight.pace._asdict(),
    }


def _tell(look: Look, sight: Sight, seconds: float) -> None:
    """A line for whatever changes, until somebody ends it."""
    changes, is_json, trouble = Changes(), look.session.output.is_json, ""

    def say(data: dict[str, Any], text: str) -> None:
        click.echo(json.dumps(plain(data)) if is_json else printable(text))

    now_ms = look.session.connection.world.now_ms
    if not is_json:
        click.echo(printable(", ".join(_heading(sight, is_family=False))))
    while True:
        for one in changes.since(sight):
            data = {"event": one.event, "at_ms": one.at_ms, "entity": one.entity, "resource": one.resource}
            say({**data, **one.told}, _sentence(one))
        time.sleep(seconds)
        try:
            sight = look()
        except (ZAELimiterError, click.ClickException) as error:
            said = _message(error)
            if said != trouble:
                say({"event": "trouble", "at_ms": now_ms(), "message": said}, f"{_clock(now_ms())} {said}")
            trouble = said
            continue
        if trouble:
            say({"event": "back", "at_ms": now_ms()}, f"{_clock(now_ms())} the store answers again")
        trouble = ""


def _sentence(change: Happening) -> str:
    """A change as a line for people and for grep."""
    told, whose = change.told, f"{_clock(change.at_ms)} {change.entity} {change.resource}"
    if change.event == "refusal":
        wait = _wait_text(told["retry_after_ms"], is_latest=told["retry_after_is_latest"])
        times = f", {told['count']} times" if told["count"] > 1 else ""
        if told["reason"] is not None:
            return f"{whose} refused, it is off: {told['reason']}{times}"
        wait = f"wait {wait}" if wait else "never passes"
        return f"{whose} refused by {', '.join(told['limits'])}, {wait}{times}"
    unit = told.get("unit")
    left = f"{shown_amount(told['available'], unit)} of {shown_amount(told['capacity'], unit)} left"
    says = {"near": "is nearly used up", "refuses": "refuses", "free": "is free again"}[told["state"]]
    return f"{whose} {told['limit']} {says}: {left}"


def _message(error: Exception) -> str:
    return error.format_message() if isinstance(error, click.ClickException) else str(error)


def _draw(look: Look, sight: Sight, seconds: float, out: Console) -> None:
    """The screen, until somebody ends it: this thread looks, another one draws what was seen last."""
    now_ms = look.session.connection.world.now_ms
    shown, trouble = sight, ""

    def picture() -> Text:
        width, height = out.size
        return frame(look.scene(shown, now_ms(), trouble), width, height, ink(out))

    live = Live(
        console=out, screen=True, get_renderable=picture, refresh_per_second=FRAMES_A_SECOND, transient=True
    )
    with _quiet_log(), Keys() as keys, live:
        while True:
            if "q" in keys.within(seconds):
                return
            try:
                shown, trouble = look(), ""
            except (ZAELimiterError, click.ClickException) as error:
                trouble = f"{printable(_message(error))}; this is from {_clock(shown.at_ms)} UTC"


@contextmanager
def _quiet_log() -> Iterator[None]:
    """Nothing is written across the screen by what nobody handles."""
    logger, quiet = logging.getLogger("zae_limiter"), logging.NullHandler()
    logger.addHandler(quiet)
    try:
        yield
    finally:
        logger.removeHandler(quiet)
