"""From a stored result to verdicts, tables, charts and the page that is published."""

import json
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from benchmarks.__main__ import DOCS, PUBLISHED, beside
from benchmarks.cases import (
    BARE_APP,
    BARE_APP_PEERS,
    CASES,
    EMBEDDED,
    FULL_SCALE,
    HOT,
    LIMITS_FIXED,
    ON_SERVERS,
    OURS,
    PYRATE,
    QUICK,
    REDIS,
    REFERENCE,
    SLOWAPI,
    SLOWAPI_ASGI,
    THROTTLED,
    WEB,
)
from benchmarks.chart import Bar, Group, chart
from benchmarks.config_report import rows
from benchmarks.embedded import ASYNC_STEPS, SYNC_STEPS
from benchmarks.explained import EXPLAINED
from benchmarks.report import charts, comparison_tables, page, ratio_table, terminal
from benchmarks.run import is_run
from benchmarks.served import TAKES
from benchmarks.summary import added_us, late_growth
from benchmarks.targets import TARGETS, Target, verdicts
from tests.benchmarks.stored import result, sample


def words_of(stored: dict[str, object]) -> dict[str, str]:
    return {verdict.target.what: verdict.word for verdict in verdicts(stored)}


def test_targets_are_judged() -> None:
    """Ten times as much is enough for some targets and not for others; a tenth of the CPU is for most."""
    words = words_of(result())
    assert words["first acquire: throughput"] == "met"
    assert words["hot key, 100 tasks: throughput"] == "missed"
    assert words["hot key, 100 tasks: WCU per acquire"] == "met"
    assert words["1,000 keys, 50 tasks: client CPU"] == "met"
    assert words["hot key, 100 tasks: p99"] == "missed"
    assert words["idle entities: growth over the last quarter"] == "met"
    assert len(words) == len(TARGETS)


def test_what_the_published_run_misses_is_explained() -> None:
    """By a sentence with a measurement, which the page shows; nothing is explained that is no target."""
    stored = json.loads(PUBLISHED.read_text(encoding="utf-8"))
    missed = [name for name, word in words_of(stored).items() if word == "missed"]
    assert set(missed) <= EXPLAINED.keys() <= {target.what for target in TARGETS}
    assert [name for name in EXPLAINED if f"- *{name}*: " in page(stored)] == [
        name for name in EXPLAINED if name in missed
    ]


def test_what_was_not_measured_is_neither_met_nor_missed() -> None:
    """A run of a few cases shows only what it knows."""
    stored = result()
    part = stored | {"cases": {"hot-1": stored["cases"]["hot-1"]}, "embedded": {}, "config": {}}
    del part["idle"], part["cold"]
    assert set(words_of(part).values()) == {"not measured"}
    assert "hot key, 1 task" in page(part)
    assert "## Idle entities" not in page(part)
    assert terminal(part)


@pytest.mark.parametrize(
    ("target", "value", "is_met", "bound"),
    [
        (Target("", lambda _: None, at_least=2.5), 2.5, True, "≥ 2.5×"),
        (Target("", lambda _: None, at_least=2.5), 2.49, False, "≥ 2.5×"),
        (Target("", lambda _: None, at_most=1 / 50), 0.0201, False, "≤ 1/50"),
        (Target("", lambda _: None, at_most=1 / 50), 0.0199, True, "≤ 1/50"),
        (Target("", lambda _: None, at_most=2, unit=""), 2.0, True, "≤ 2"),
    ],
)
def test_a_bound_is_exact(target: Target, value: float, is_met: bool, bound: str) -> None:
    """A ratio just beyond its bound is a miss."""
    assert (target.is_met(value), target.bound) == (is_met, bound)


def test_memory_that_keeps_growing_is_seen() -> None:
    """Bounded means that the last entities add next to nothing."""
    stored = result()
    growing = stored | {"idle": [{"entities": n * 100, "rss_bytes": 10_000_000 * (n + 1)} for n in range(11)]}
    growth = late_growth(growing)
    assert growth is not None
    assert growth > 0.2
    assert words_of(growing)["idle entities: growth over the last quarter"] == "missed"


def test_the_table_of_ratios() -> None:
    """Throughput as a multiple, latency and CPU as a part, counts side by side."""
    line = next(line for line in ratio_table(result()).splitlines() if line.startswith("| hot key, 1 task "))
    assert line == "| hot key, 1 task | 10× | 1× | 1× | 1/10 | 0.05 / 1 | 0.05 / 2 |"
    few, others = comparison_tables(result()).split("\n\n")[1:]
    assert few.count("\n") < ratio_table(result()).count("\n")
    beside = {row.split(" | ")[1] for row in others.splitlines()[2:]}
    assert {PYRATE, THROTTLED} <= beside
    assert [name for name in beside if name in (OURS, REFERENCE) or name.startswith("bare")] == []


def test_what_went_wrong_is_on_the_page() -> None:
    """A failure that is not counted must not be hidden either."""
    stored = result()
    stored["cases"]["hot-1"]["rounds"][OURS][0] |= {"unwanted": 7, "messages": ["TimeoutError: late"]}
    assert "hot-1, this: 7 ended otherwise, such as `TimeoutError: late`" in page(stored)
    assert "ended as the case wants" in page(result())


def test_predictions_stand_beside_what_was_found() -> None:
    """Every prediction has a figure of ours and of theirs, if it could be measured."""
    found = {what: cells for what, *cells in rows(result())}
    assert found["config read, cold cache: RCU"] == ["1.5", "0", "1.5"]
    assert found["100 sparse users: requests without a read"] == ["0–10 %", "10.0 %", "10.0 %"]
    assert found["100 sparse users: hit rate of the cache itself"] == ["–", "25.0 %", "25.0 %"]
    assert found["the same, negative caching off: RCU"] == ["1.5", "0", "–"]


def test_charts_are_wellformed_and_linked() -> None:
    """Every chart of the page is drawn, and every chart that is drawn is on the page."""
    drawn = charts(result())
    linked = re.findall(r"!\[[^]]+]\(benchmarks/([^)]+)\)", page(result()))
    assert sorted(linked) == sorted(drawn)
    for svg in drawn.values():
        ElementTree.fromstring(svg)


def test_longer_bars_are_larger_values() -> None:
    """And text of any kind does not break the document."""
    bars = (Bar(1.0, "1 < 2"), Bar(100.0, 'a "hundred" & more', is_ours=False))
    root = ElementTree.fromstring(chart('"<title>"', "note", [Group("label", bars)]))
    widths = [float(node.get("width", 0)) for node in root.iter("{http://www.w3.org/2000/svg}rect")]
    assert 0 < widths[0] < widths[1]


def test_every_contestant_is_there() -> None:
    """Each library that is listed can be asked for, and nobody else."""
    assert {(peer.group, peer.name) for peer in EMBEDDED} == {*SYNC_STEPS, *ASYNC_STEPS}
    assert {(group, name) for group, names in ON_SERVERS.items() for name in names} == {*TAKES}
    assert all(case.contestants[:2] == (OURS, REFERENCE) for case in CASES)
    assert len({case.name for case in CASES}) == len(CASES)


def test_the_published_page_shows_the_published_result() -> None:
    """Page, charts and the comparison are generated; who edits one by hand or forgets one is told."""
    stored = json.loads(PUBLISHED.read_text(encoding="utf-8"))
    assert Path(DOCS / "benchmarks.md").read_text(encoding="utf-8") == page(stored)
    for name, svg in charts(stored).items():
        assert (PUBLISHED.parent / name).read_text(encoding="utf-8") == svg
    assert comparison_tables(stored) in Path(DOCS / "comparison.md").read_text(encoding="utf-8")


def test_what_a_middleware_adds() -> None:
    """Its percentile less that of the bare application in the same environment; only what was measured."""
    rounds = {
        OURS: [sample(1_000, 60.0)],
        BARE_APP: [sample(1_000, 10.0)],
        SLOWAPI: [sample(1_000, 220.0)],
        BARE_APP_PEERS: [sample(1_000, 20.0)],
    }
    stored = result() | {"embedded": {WEB: rounds}}
    assert (added_us(stored, OURS, "p50_us"), added_us(stored, SLOWAPI, "p99_us")) == (50.0, 2_000.0)
    assert added_us(stored, SLOWAPI_ASGI, "p50_us") is None
    words = words_of(stored)
    assert words["middleware: what it adds to p99"] == "missed"
    assert words["middleware: p99 against slowapi"] == words["middleware: p50 against slowapi"] == "met"
    assert words["middleware: p50 against slowapi, pure ASGI"] == "not measured"
    assert "## In front of an application" in page(stored)
    assert "| 50 | 500 |" in terminal(stored)


def test_limiters_on_a_server_stand_beside_each_other() -> None:
    """With a date of their own, and what went wrong there is told."""
    rounds = {
        OURS: [sample(1000)] * 3,
        LIMITS_FIXED: [sample(100), sample(100) | {"unwanted": 2, "messages": ["no"]}],
    }
    stored = result() | {
        "servers": {"taken": "2026-01-02", "mode": "full", "load": 0.5, REDIS: {HOT: rounds}}
    }
    assert words_of(stored)["Redis, hot key: throughput against limits"] == "met"
    assert words_of(stored)["Redis, 1,000 keys: throughput against limits"] == "not measured"
    shown = page(stored)
    assert "Taken on 2026-01-02 (full run), load 0.5" in shown
    assert "redis, hot, limits fixed window: 2 ended otherwise" in shown


def test_parts_are_published_beside_what_another_run_found() -> None:
    """They have dates of their own; all else stays what it was."""
    web = {"taken": "2026-01-03", "mode": "full", "load": 0.6, "slowapi": "0.1.10"}
    rounds = {OURS: [sample(1_000, 60.0)], BARE_APP: [sample(1_000, 10.0)]}
    stored = result()
    shown = page(beside(stored, {"taken": "2026-01-03", "embedded": {WEB: rounds}, "web": web, "cases": {}}))
    assert "Taken on 2026-01-03 (full run), load 0.6 at the start, against slowapi 0.1.10." in shown
    assert "| 50 | 500 |" in shown
    others = page(stored).partition("## In front of an application")[0]
    assert others.partition("## Targets")[0] == shown.partition("## Targets")[0]
    assert ratio_table(stored) in shown
    assert "servers" not in beside(stored, {"embedded": {}})


def test_a_quick_run_says_so_first() -> None:
    """Nobody takes its figures for more than a first look; a full run says nothing of that kind."""
    assert terminal(result()).startswith("QUICK: ")
    assert not terminal(result() | {"mode": "full"}).startswith("QUICK")


def test_a_quick_run_leaves_out_what_takes_minutes() -> None:
    """Unless it is named; a full run leaves out nothing."""
    parts = ("config", "cold", "idle")
    assert not any(is_run(part, (), QUICK) for part in parts)
    assert all(is_run(part, (part,), QUICK) for part in parts)
    assert all(is_run(part, (), FULL_SCALE) for part in parts)
    assert not is_run("cold", ("idle",), FULL_SCALE)
    assert set(QUICK.counted) <= set(QUICK.unasked) < set(FULL_SCALE.unasked)
