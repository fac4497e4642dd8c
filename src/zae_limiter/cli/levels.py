"""How stored limits are shown, at whatever level they are stored."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table

from ..models import Limit, LimiterConfig
from .errors import NOT_FOUND, Failure
from .grammar import limit_text
from .output import Output, grid, plain, record


def limits_table(limits: Sequence[Limit]) -> Table:
    return grid(
        ["limit", "capacity", "refill", "every", "as an option"],
        [
            (
                one.name,
                one.capacity,
                one.refill_amount,
                f"{one.refill_period_seconds} s",
                f"-l {limit_text(one)}",
            )
            for one in limits
        ],
        numbers=("capacity", "refill", "every"),
    )


def show_limits(output: Output, limits: Sequence[Limit], whose: str, setting: str) -> None:
    """Limits of one level; where there are none, that and the command that sets some."""
    if limits or output.is_json:
        output.show(limits, lambda: limits_table(limits))
    else:
        output.note(nothing_set(whose, setting))


def nothing_set(whose: str, setting: str) -> str:
    return f"{whose} has no limits; set some: zae-limiter {setting} -l rpm:60"


def must_be_stored(found: LimiterConfig | bool | None, otherwise: str) -> None:
    """What is to be deleted must be there; whoever deletes nothing is told so."""
    if not found:
        raise Failure(f"{otherwise}, so nothing was deleted", code=NOT_FOUND)


def config_table(config: LimiterConfig | None) -> RenderableType:
    """One level as a whole: its settings and its limits."""
    settings = {name: value for name, value in config_data(config).items() if name != "limits"}
    return Group(
        record({name: value for name, value in settings.items() if value is not None}),
        limits_table(config.limits if config else ()),
    )


def config_data(config: LimiterConfig | None) -> dict[str, Any]:
    """One level as JSON; a level that says nothing has no limits and nulls."""
    data: dict[str, Any] = plain(config or LimiterConfig())
    return data
