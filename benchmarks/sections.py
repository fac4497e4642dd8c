"""Parts of the page about single processes: a lone acquire, a start, a crowd, memory. Pure."""

from __future__ import annotations

from .cases import ASYNCIO_START, BARE, BARE_START, COLD, DYNAMODB, PARTS, TLS
from .crowd import crowd_table
from .figures import compact, figure
from .summary import (
    Result,
    cold_bill,
    cold_median,
    late_growth,
    lone_against_bare,
    lone_rounds,
    remembered_kib,
    starting_least,
)
from .tabular import ranged, table


def sittings_table(result: Result) -> str:
    """When each part was measured, and what else the machine had to do."""
    rows = []
    for part, title in PARTS.items():
        for sitting in result["sittings"]:
            if part in sitting["parts"]:
                seconds, before = sitting["parts"][part], sitting.get("before", {}).get(part, {})
                took = "–" if seconds is None else f"{seconds:,} s"
                load, others = before.get("load", sitting["machine"]["load"]), before.get("cores")
                shown = [f"{load}", "–" if others is None else f"{others}", took]
                rows.append([f"{title} (`{part}`)", sitting["taken"], sitting["mode"], *shown])
    return table(["part", "taken on", "run", "load before", "cores that others kept busy", "took"], rows)


def lone_table(result: Result) -> str:
    rows = []
    for kind in ("", TLS):
        for step in (BARE, "sync", "async"):
            rounds, against = lone_rounds(result, step + kind), lone_against_bare(result, step + kind)
            if rounds and against is not None:
                shown = ["1×"] if step == BARE else [f"{ranged(against)}×"]
                rows.append([step + kind, ranged(figure(rounds)), *shown])
    return table(["a lone acquire", "CPU, µs", "bare requests"], rows)


def crowd_section(result: Result) -> str:
    return crowd_table(result["crowd"]) if result.get("crowd") else ""


def cold_table(result: Result) -> str:
    rows = []
    for name, samples in result.get("cold", {}).items():
        cells = []
        for unit in ("_ms", "_cpu_ms"):
            imported, opened = (cold_median(result, name, what + unit) for what in ("import", "open"))
            total = imported + opened if imported is not None and opened is not None else None
            cells += ["–" if value is None else compact(value) for value in (imported, opened, total)]
        rows.append([f"{name} ({len(samples)} times)", *cells])
    times = ["import, ms", "open, ms", "both, ms"]
    return table(["library", *times, *(it.replace(", ", ", CPU ") for it in times)], rows)


def bills_table(result: Result) -> str:
    rows = [
        [name, *(compact(cold_bill(result, name, what) or 0) for what in ("calls", "rcu", "wcu"))]
        for name in COLD.contestants
        if cold_bill(result, name, "calls") is not None
    ]
    return table(["a fresh process, up to its first lease", "requests", "RCU", "WCU"], rows) if rows else ""


def starting_table(result: Result) -> str:
    rows = []
    bare, asyncio = (starting_least(result, name) for name in (BARE_START, ASYNCIO_START))
    for program in result.get("starting", {}):
        spent = starting_least(result, program)
        if spent is not None and bare is not None and asyncio is not None:
            least, most = spent.low, spent.high
            cells = [compact(value) for value in (least, most, least / bare.low, least / asyncio.low)]
            rows.append([f"`{program}`", *cells])
    header = ["program", "least CPU, ms", "most, ms", "× a bare interpreter", "× `import asyncio`"]
    return table(header, rows) if rows else ""


def cold_section(result: Result) -> str:
    cold = cold_table(result) if result.get("cold") else ""
    return "\n".join(part for part in (starting_table(result), cold, bills_table(result)) if part)


def idle_section(result: Result) -> str:
    growth = late_growth(result)
    if growth is None:
        return ""
    samples = result["idle"]["memory"]
    start = samples[0]["rss_bytes"]
    rows = [[f"{it['entities']:,}", compact((it["rss_bytes"] - start) / 2**20)] for it in samples[1:]]
    lines = [f"Over the last quarter the process grew by {growth * 100:.1f} %."]
    for where, store in (("memory", "a memory store"), (DYNAMODB, "DynamoDB")):
        remembered = remembered_kib(result, where)
        if remembered is not None:
            lines.append(f"What is remembered of one takes {remembered:.1f} KB over {store}.")
    return table(["entities met", "growth, MiB"], rows) + "\n" + " ".join(lines) + "\n"
