"""The page, its charts and the table of the comparison, from a stored result. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .cases import (
    CASES,
    CEILING,
    DYNAMODB,
    EMBEDDED,
    GROUPS,
    MEMORY_ASYNC,
    MEMORY_SYNC,
    ON_SERVERS,
    OUR_ENVIRONMENT,
    OURS,
    REFERENCE,
    SERVED,
    SQLITE,
    WEB,
    WORKLOADS,
    Case,
)
from .chart import Bar, Group, chart
from .config_report import config_section
from .explained import EXPLAINED, explanation
from .figures import Measured, compact, ratio, times
from .sections import cold_section, crowd_section, idle_section, lone_table, sittings_table
from .summary import (
    Result,
    added_us,
    compared,
    fastest_token_bucket,
    of_case,
    of_embedded,
    of_server,
    per_acquire,
    unwanted,
)
from .tabular import ranged, table
from .targets import verdicts
from .texts import (
    CEILING_TEXT,
    CHART_TEXTS,
    COLD_TEXT,
    CONFIG_TEXT,
    CROWD_TEXT,
    EMBEDDED_TEXT,
    IDLE_TEXT,
    LONE_TEXT,
    METHOD,
    NUMBERS,
    PREFACE,
    QUICK_TEXT,
    RATIOS,
    SERVED_TEXT,
    SITTINGS_TEXT,
    WEB_TEXT,
)

CHARTS = "benchmarks"
COMPARED_CASES = ("hot-1", "hot-100", "keys-1000", "first", "cascade", "refill", "adjust-10", "sync-8")


def measured_cases(result: Result) -> list[tuple[Case, Measured, Measured]]:
    """The cases that both limiters on DynamoDB have taken part in."""
    found = []
    for case in CASES:
        mine, theirs = of_case(result, case.name, OURS), of_case(result, case.name, REFERENCE)
        if mine is not None and theirs is not None:
            found.append((case, mine, theirs))
    return found


def improvement(value: float | None) -> str:
    """A cost as a part of theirs: ``1/12``, or ``1.5×`` if it is more."""
    if value is None:
        return "–"
    return f"1/{compact(1 / value)}" if 0 < value < 1 else times(value)


def ratio_table(result: Result, wanted: Sequence[str] = ()) -> str:
    """Ours against the reference on DynamoDB, as ratios."""
    rows = []
    for case, mine, theirs in measured_cases(result):
        if wanted and case.name not in wanted:
            continue
        counts = [
            f"{count(result, case, OURS, what)} / {count(result, case, REFERENCE, what)}"
            for what in ("calls", "wcu")
        ]
        rows.append(
            [
                case.title,
                times(compared(mine, theirs, "throughput")),
                improvement(compared(mine, theirs, "p50_us")),
                improvement(compared(mine, theirs, "p99_us")),
                improvement(compared(mine, theirs, "cpu_us")),
                *counts,
            ]
        )
    header = ["on DynamoDB", "throughput", "p50", "p99", "client CPU", "calls", "WCU"]
    return table(header, rows)


def count(result: Result, case: Case, contestant: str, what: str) -> str:
    value = per_acquire(result, case.name, contestant, what)
    return "–" if value is None else f"{value:.2f}".rstrip("0").rstrip(".")


def ceiling_table(result: Result) -> str:
    """Ours beside a client that only sends, on DynamoDB."""
    rows = []
    for case in CASES:
        mine, most = of_case(result, case.name, OURS), of_case(result, case.name, CEILING)
        share = compared(mine, most, "throughput")
        if mine is not None and most is not None and share is not None:
            cells = [ranged(mine.throughput), ranged(most.throughput), f"{share * 100:.0f} %"]
            rows.append([case.title, *cells, compact(mine.cpu_us.median), compact(most.cpu_us.median)])
    header = ["on DynamoDB", "ours, per second", "the engine takes", "share", "our client CPU, µs", "its"]
    return table(header, rows)


def absolute_table(result: Result) -> str:
    rows = []
    for case, *_ in measured_cases(result):
        for contestant in (name for name in case.contestants if name != CEILING):
            figures = of_case(result, case.name, contestant)
            if figures is None:
                continue
            rows.append(
                [
                    case.title,
                    contestant,
                    ranged(figures.throughput),
                    ranged(figures.p50_us, 1000),
                    ranged(figures.p99_us, 1000),
                    ranged(figures.cpu_us),
                    count(result, case, contestant, "rcu"),
                ]
            )
    header = ["case", "limiter", "per second", "p50, ms", "p99, ms", "client CPU, µs", "RCU"]
    return table(header, rows)


def embedded_table(result: Result, group: str) -> str:
    mine = of_embedded(result, group, OURS)
    rows = []
    for peer in EMBEDDED:
        figures = of_embedded(result, group, peer.name) if peer.group == group else None
        if figures is not None:
            rows.append(
                [
                    f"{peer.name}: `{peer.call}`",
                    ranged(figures.throughput),
                    compact(figures.p50_us.median),
                    compact(figures.p99_us.median),
                    ranged(figures.cpu_us),
                    times(compared(mine, figures, "throughput")),
                ]
            )
    header = [GROUPS[group], "per second", "p50, µs", "p99, µs", "CPU, µs", "ours is"]
    return table(header, rows)


def web_table(result: Result) -> str:
    """What a middleware adds to a request, and which part of that ours adds."""
    rows, metrics = [], ("p50_us", "p99_us")
    mine = [added_us(result, OURS, metric) for metric in metrics]
    for peer in EMBEDDED:
        figures = of_embedded(result, WEB, peer.name) if peer.group == WEB else None
        if figures is None:
            continue
        added = [added_us(result, peer.name, metric) or 0.0 for metric in metrics]
        parts = [ratio(own, other) if own and other else None for own, other in zip(mine, added, strict=True)]
        whole = [ranged(figures.p50_us), ranged(figures.p99_us)]
        cells = [*(compact(value) for value in added), " / ".join(times(part) for part in parts)]
        cells = ["–"] * 3 if peer.name.startswith("bare") else cells
        rows.append([f"{peer.name}: `{peer.call}`", *whole, *cells, ranged(figures.cpu_us)])
    added_columns = ["added to p50", "added to p99", "ours adds, of that"]
    return table([GROUPS[WEB], "p50, µs", "p99, µs", *added_columns, "CPU, µs"], rows)


def served_section(result: Result) -> str:
    """A table for each workload of each server."""
    tables = []
    for group, name in SERVED.items():
        for work, about in WORKLOADS.items():
            mine, rows = of_server(result, group, work, OURS), []
            for contestant in ON_SERVERS[group]:
                figures = of_server(result, group, work, contestant)
                if figures is not None:
                    whole = [ranged(figures.throughput), ranged(figures.p50_us), ranged(figures.p99_us)]
                    ours_is = times(compared(mine, figures, "throughput"))
                    busy = compact(figures.throughput.median * figures.cpu_us.median / 1e6)
                    rows.append([contestant, *whole, ranged(figures.cpu_us), busy, ours_is])
            if rows:
                header = [
                    f"{name}: {about.title}",
                    "per second",
                    "p50, µs",
                    "p99, µs",
                    "client CPU, µs",
                    "cores",
                ]
                tables.append(table([*header, "ours is"], rows))
    return "\n".join(tables)


def targets_table(result: Result) -> str:
    rows = [[v.target.what, v.target.bound, v.reached, v.spread, v.word] for v in verdicts(result)]
    return table(["target", "wanted", "reached", "over the rounds", ""], rows)


def missed(result: Result) -> str:
    """What is known of the targets that this result misses."""
    names = [v.target.what for v in verdicts(result) if v.word == "missed" and v.target.what in EXPLAINED]
    lines = "".join(f"- *{name}*: {explanation(name, result)}\n" for name in names)
    return f"\nWhy some are missed, as far as it was measured:\n\n{lines}" if lines else ""


def grouped_chart(result: Result, title: str, metric: str, unit: float, suffix: str) -> str:
    """A pair of bars for each case: ours, and the reference's."""
    groups = [
        Group(
            case.title,
            tuple(
                Bar(
                    figures.figure(metric).median / unit,
                    f"{compact(figures.figure(metric).median / unit)} {suffix}",
                    is_ours,
                )
                for figures, is_ours in ((mine, True), (theirs, False))
            ),
        )
        for case, mine, theirs in measured_cases(result)
    ]
    return chart(title, f"blue: this, grey: {REFERENCE}; DynamoDB Local, logarithmic", groups)


def embedded_chart(result: Result) -> str:
    groups = []
    for group in (MEMORY_SYNC, MEMORY_ASYNC, SQLITE):
        for peer in EMBEDDED:
            figures = of_embedded(result, group, peer.name) if peer.group == group else None
            if figures is not None:
                cpu = figures.cpu_us.median
                bar = Bar(cpu, f"{compact(cpu)} µs", peer.name == OURS)
                groups.append(Group(f"{group}: {peer.name}", (bar,)))
    return chart("CPU of one acquire, embedded", "microseconds, logarithmic; blue: this", groups)


def charts(result: Result) -> dict[str, str]:
    """Every chart by the name of its file."""
    return {
        "throughput.svg": grouped_chart(result, "Acquires per second", "throughput", 1, "/s"),
        "p99.svg": grouped_chart(result, "99th percentile of latency", "p99_us", 1000, "ms"),
        "cpu.svg": grouped_chart(result, "Client CPU of one acquire", "cpu_us", 1, "µs"),
        "embedded.svg": embedded_chart(result),
    }


def conditions(result: Result) -> str:
    """Where and when a result was taken: a line for each time that somebody sat down to it."""
    return "\n\n".join(described(it, result["sittings"]) for it in result["sittings"])


def compared_conditions(result: Result) -> str:
    """The same of the times when others were measured that the comparison is about."""
    shown = {DYNAMODB, MEMORY_SYNC, MEMORY_ASYNC, SQLITE, *SERVED}
    sittings = [it for it in result["sittings"] if shown & it["parts"].keys()]
    return conditions({"sittings": sittings})


def described(sitting: Result, sittings: Sequence[Result]) -> str:
    machine, versions = sitting["machine"], sitting["versions"]
    others = [name for name in versions if name[0].islower() and name not in (OURS, "zae-limiter")]
    facts = [
        f"{machine['cores']} cores of {machine['architecture']}",
        f"{machine['memory_gib']} GiB",
        f"{machine['system']}",
        f"load {machine['load']} at the start",
        *(f"{name} {versions[name]}" for name in ("Python", "DynamoDB Local", "Java", "SQLite")),
    ]
    libraries = [f"zae-limiter {versions['zae-limiter']}", *(f"{name} {versions[name]}" for name in others)]
    parts = f" Measured then: {', '.join(sitting['parts'])}." if len(sittings) > 1 else ""
    return (
        f"Taken on {sitting['taken']} ({sitting['mode']} run): {', '.join(facts)}. "
        f"This, version {versions[OURS]}, against {', '.join(libraries)}.{parts}"
    )


def section(title: str, text: str, make: Callable[[], str]) -> str:
    """A section, unless nothing of it was measured."""
    body = make()
    return f"## {title}\n\n{text}\n\n{body}\n" if body.count("\n") > 2 else ""


def embedded_section(result: Result) -> str:
    measured = [group for group in GROUPS if group in result.get("embedded", {}) and group != WEB]
    tables = [embedded_table(result, group) for group in measured]
    fastest = fastest_token_bucket(result)
    note = f"The fastest other token bucket in memory is {fastest[0]}.\n" if fastest else ""
    return "\n".join([*tables, note]) if tables else ""


def troubles(result: Result) -> str:
    """What did not go as a case wants, so that nobody has to look for it."""
    lines = [
        f"- {case}, {contestant}: {number} ended otherwise, such as `{example[:160]}`"
        for case, contestant, number, example in unwanted(result)
    ]
    if not lines:
        return "In every case every operation ended as the case wants.\n"
    return (
        "Operations that ended otherwise than their case wants are not counted as done:\n\n"
        + "\n".join(lines)
        + "\n"
    )


def page(result: Result) -> str:
    """The whole page in Markdown."""
    return "\n".join(
        part
        for part in (
            PREFACE,
            conditions(result) + "\n",
            SITTINGS_TEXT + "\n\n" + sittings_table(result),
            f"## Targets\n\n{targets_table(result)}{missed(result)}",
            section("On DynamoDB", RATIOS, lambda: ratio_table(result)),
            section("What the engine takes", CEILING_TEXT, lambda: ceiling_table(result)),
            "".join(f"![{alt}]({CHARTS}/{name})\n\n" for name, alt in CHART_TEXTS.items()),
            section("The same in numbers", NUMBERS, lambda: absolute_table(result)),
            section("A lone acquire", LONE_TEXT, lambda: lone_table(result)),
            section("Embedded", EMBEDDED_TEXT, lambda: embedded_section(result)),
            f"![CPU of one acquire, embedded]({CHARTS}/embedded.svg)\n" if result.get("embedded") else "",
            section("Processes on one SQLite file", CROWD_TEXT, lambda: crowd_section(result)),
            section("On Redis and PostgreSQL", SERVED_TEXT, lambda: served_section(result)),
            section("In front of an application", WEB_TEXT, lambda: web_table(result)),
            section("Looking up limits", CONFIG_TEXT, lambda: config_section(result)),
            section("Starting cold", COLD_TEXT, lambda: cold_section(result)),
            section("Idle entities", IDLE_TEXT, lambda: idle_section(result)),
            f"## How it is measured\n\n{METHOD}\n",
            troubles(result),
        )
        if part
    )


def comparison_tables(result: Result) -> str:
    """What the comparison shows: when and where, then ratios only."""
    return f"{compared_conditions(result)}\n\n{ratio_table(result, COMPARED_CASES)}\n{others_table(result)}"


def others_table(result: Result) -> str:
    """How many times theirs our throughput is, wherever somebody else was measured; the worst first."""
    found: list[tuple[float, list[str]]] = []
    embedded = [(GROUPS[p.group], p.name, of_embedded(result, p.group, p.name), p.group) for p in EMBEDDED]
    for place, name, figures, group in embedded:
        times_theirs = compared(of_embedded(result, group, OURS), figures, "throughput")
        if name not in OUR_ENVIRONMENT and group != WEB and times_theirs is not None:
            found.append((times_theirs, [place, name, times(times_theirs)]))
    for group, server in SERVED.items():
        for work, about in WORKLOADS.items():
            for name in ON_SERVERS[group]:
                mine, figures = (of_server(result, group, work, one) for one in (OURS, name))
                times_theirs = compared(mine, figures, "throughput")
                if name not in OUR_ENVIRONMENT and times_theirs is not None:
                    found.append((times_theirs, [f"{server}: {about.title}", name, times(times_theirs)]))
    return table(["where", "beside", "ours is"], [row for _, row in sorted(found)])


def terminal(result: Result) -> str:
    """What the run prints in the end."""
    parts = [QUICK_TEXT + "\n"] if any(it["mode"] == "quick" for it in result["sittings"]) else []
    parts += [conditions(result), ratio_table(result), ceiling_table(result)]
    groups = list(result.get("embedded", {}))
    parts += [web_table(result) if group == WEB else embedded_table(result, group) for group in groups]
    parts += [lone_table(result), crowd_section(result), served_section(result), cold_section(result)]
    parts += [targets_table(result), troubles(result)]
    return "\n".join(parts)
