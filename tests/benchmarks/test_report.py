"""From a stored result to verdicts, tables, charts and the page that is published."""

import json
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from benchmarks.__main__ import DOCS, PUBLISHED, beside, busiest, main, told_time
from benchmarks.cases import (
    BARE_APP,
    BARE_APP_PEERS,
    CASES,
    EMBEDDED,
    FULL_SCALE,
    GROUPS,
    HOT,
    KEYS,
    LIMITS_FIXED,
    ON_SERVERS,
    OURS,
    PARTS,
    POSTGRES,
    PYRATE,
    QUICK,
    REDIS,
    REFERENCE,
    SERVED,
    SLOWAPI,
    SLOWAPI_ASGI,
    SQLITE,
    THROTTLED,
    WEB,
)
from benchmarks.chart import Bar, Group, chart
from benchmarks.config_report import rows
from benchmarks.embedded import ASYNC_STEPS, SYNC_STEPS
from benchmarks.explained import EXPLAINED, explanation
from benchmarks.machine import busy_between, busy_cores, ticks
from benchmarks.report import charts, comparison_tables, page, ratio_table, terminal
from benchmarks.run import AskedFor, Timer
from benchmarks.served import TAKES
from benchmarks.summary import added_us, late_growth
from benchmarks.targets import TARGETS, Target, verdicts
from benchmarks.texts import SERVED_TEXT
from tests.benchmarks.stored import result, sample, sitting
from tests.engines.postgres import IN_A_HURRY


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
    assert EXPLAINED.keys() == {target.what for target in TARGETS}, (
        "any of them may be missed by the next run"
    )
    assert [name for name in EXPLAINED if f"- *{name}*: " in page(stored)] == [
        name for name in EXPLAINED if name in missed
    ]


@pytest.mark.parametrize(
    ("metric", "times", "missed"),
    [
        ("p50_us", 1, []),
        ("p99_us", 1.2, []),
        ("p99_us", 2.5, ["p99 against slowapi", "p99 against slowapi, pure ASGI"]),
        ("p99_us", 10, ["what it adds to p99", "p99 against slowapi", "p99 against slowapi, pure ASGI"]),
        ("p50_us", 1.7, ["p50 against slowapi, pure ASGI"]),
    ],
)
def test_a_judge_fails_new_misses(
    metric: str,
    times: float,
    missed: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A middleware about as slow as published passes, where that is a miss too; a far slower one does not."""
    stored = json.loads(PUBLISHED.read_text(encoding="utf-8"))
    for taken in stored["embedded"][WEB][OURS]:
        taken[metric] *= times
    measured = tmp_path / "result.json"
    measured.write_text(json.dumps(stored), encoding="utf-8")
    monkeypatch.setattr("sys.argv", ["benchmarks", "--report", str(measured), "--judge"])
    assert main() == bool(missed)
    assert re.findall("^missed: middleware: (.*?): ", capsys.readouterr().err, re.MULTILINE) == missed


def test_what_was_not_measured_is_neither_met_nor_missed() -> None:
    """A run of a few cases shows only what it knows."""
    stored = result()
    part = stored | {"cases": {"hot-1": stored["cases"]["hot-1"]}, "embedded": {}, "config": {}}
    for name in ("idle", "cold", "cold_bills", "lone", "starting", "crowd"):
        del part[name]
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
    samples = [{"entities": n * 100, "rss_bytes": 10_000_000 * (n + 1)} for n in range(11)]
    growing = stored | {"idle": {"memory": samples}}
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
    """And what went wrong there is told."""
    rounds = {
        OURS: [sample(1000)] * 3,
        LIMITS_FIXED: [sample(100), sample(100) | {"unwanted": 2, "messages": ["no"]}],
    }
    stored = result() | {"servers": {REDIS: {HOT: rounds}}}
    assert words_of(stored)["Redis, hot key: throughput against limits"] == "met"
    assert words_of(stored)["Redis, 1,000 keys: throughput against limits"] == "not measured"
    assert "redis, hot, limits fixed window: 2 ended otherwise" in page(stored)


def test_parts_are_published_beside_what_another_run_found() -> None:
    """They have a date and a load of their own; all else stays what it was."""
    machine = sitting()["machine"] | {"load": 0.6}
    rounds = {OURS: [sample(1_000, 60.0)], BARE_APP: [sample(1_000, 10.0)]}
    old = {REDIS: {HOT: {OURS: [sample(1)]}}, POSTGRES: {HOT: {OURS: [sample(2)]}}}
    stored = result() | {"servers": old}
    new = {
        "sittings": [
            sitting(
                taken="2026-01-03",
                mode="full",
                machine=machine,
                parts={WEB: 12, REDIS: 34},
                before={WEB: {"load": 1.8, "cores": 0.02}},
            )
        ],
        "cases": {},
        "embedded": {WEB: rounds},
        "servers": {REDIS: {HOT: {OURS: [sample(3)]}}},
    }
    merged = beside(stored, new)
    shown = page(merged)
    assert f"| {PARTS[WEB]} (`web`) | 2026-01-03 | full | 1.8 | 0.02 | 12 s |" in shown
    assert f"| {PARTS[REDIS]} (`redis`) | 2026-01-03 | full | 0.6 | – | 34 s |" in shown
    assert f"| {PARTS['idle']} (`idle`) | 2026-01-01 | quick | 0.1 | – | 7 s |" in shown
    assert shown.count("(`web`)") == shown.count("(`redis`)") == 1
    assert "Taken on 2026-01-03 (full run)" in shown
    assert "| 50 | 500 |" in shown
    assert ratio_table(stored) in shown
    assert merged["servers"] == {REDIS: new["servers"][REDIS], POSTGRES: old[POSTGRES]}
    assert merged["cases"] == stored["cases"]


@pytest.mark.parametrize("part", PARTS)
def test_every_part_can_be_published_apart(part: str) -> None:
    """What a run found of it, and nothing else, takes the place of what was stored."""
    stored, new = result(), result()
    new["sittings"] = [sitting(taken="2026-01-03", parts={part: 1})]
    for name in ("cases", "config", "cold", "cold_bills", "idle", "lone", "starting", "crowd"):
        new[name] = {"new": name}
    new["embedded"] = {name: {"new": name} for name in GROUPS}
    new["servers"] = {name: {"new": name} for name in SERVED}
    merged = beside(stored | {"servers": {name: {} for name in SERVED}}, new)
    places = merged | merged["embedded"] | merged["servers"]
    changed = {name for name, found in places.items() if found == {"new": name}}
    also = {"cold": {"cold", "cold_bills"}, "dynamodb": {"cases"}}
    assert changed == also.get(part, {part})
    assert [it["parts"].keys() for it in merged["sittings"]] == [PARTS.keys() - {part}, {part}]


def test_a_published_sitting_is_gone_when_all_of_it_was_measured_again() -> None:
    """So a whole run in one go has one date."""
    (only,) = beside(result(), result() | {"sittings": [sitting(taken="2026-02-02")]})["sittings"]
    assert only["taken"] == "2026-02-02"


def test_a_ratio_has_the_range_of_its_rounds() -> None:
    """Round by round; what is counted has none."""
    stored = result()
    stored["cases"]["first"]["rounds"][OURS] = [sample(300), sample(600), sample(1200)]
    stored["cases"]["first"]["rounds"][REFERENCE] = [sample(100), sample(50), sample(100)]
    lines = page(stored).splitlines()
    assert "| first acquire: throughput | ≥ 5× | 6× | 3× to 12× | met |" in lines
    assert "| first acquire: calls | ≤ 2 | 0.05 | – | met |" in lines
    assert "| lone acquire, sync: CPU against a bare request | ≤ 2.5× | 2× | 2× to 3× | met |" in lines


def test_single_processes_are_judged() -> None:
    """A lone acquire, a start, what is remembered: as they are in the result."""
    found = {it.target.what: (it.reached, it.word) for it in verdicts(result())}
    assert found["lone acquire, async, TLS: CPU against a bare request"] == ("1.5×", "met")
    assert found["import: CPU of the process"] == ("20 ms", "met")
    assert found["--help: CPU of the process"] == ("20 ms", "met")
    assert found["fresh process, first lease: round trips"] == ("5", "missed")
    assert found["fresh process, first lease: RCU"] == ("9", "missed")
    assert found["idle entities on DynamoDB: remembered of one"] == ("2 KB", "missed")
    shown = page(result())
    assert "| sync | 20 (20–30) | 2 (2–3)× |" in shown
    assert "| `import zae_limiter` | 20 | 40 | 1 | 1 |" in shown
    assert f"| {OURS} | 5 | 9 | 1 |" in shown
    assert f"| {OURS} | 1,500 | 0.2 | 0.50 | 0 | 1× |" in shown


@pytest.mark.parametrize("name", EXPLAINED)
def test_an_explanation_quotes_the_result_that_is_shown(name: str) -> None:
    """Also a result of a run that measured little; none shows a hole where nothing is missing."""
    told = explanation(name, result())
    assert told.endswith((".", "median."))
    assert explanation(name, {"sittings": []})
    if "Redis" not in name and "PostgreSQL" not in name:
        assert "–" not in told


def test_who_is_the_limit_is_decided_by_the_cores_that_were_busy() -> None:
    """A client that is idle for a quarter of the time has more to give, so it is not the limit."""
    name = "Redis, 1,000 keys: throughput against throttled-py"
    for cpu_seconds, said in ((0.95, "the client is the limit"), (0.77, "the server or the trip to it is")):
        rounds = {OURS: [sample(1000, cpu_seconds=cpu_seconds)], THROTTLED: [sample(900)]}
        told = explanation(name, result() | {"servers": {REDIS: {KEYS: rounds}}})
        assert told.startswith(said)
        assert f"{cpu_seconds} cores busy" in told


def test_what_others_did_before_a_part_is_kept() -> None:
    """The most of it, of a part that begins several times; not while another part is at work beside it."""
    busy = iter([0.1, 0.7, 0.3])
    timer = Timer(lambda: next(busy))
    for _ in range(3):
        with timer(WEB):
            pass
    with timer(WEB, alone=False), timer(SQLITE, alone=False):
        pass
    assert timer.before.keys() == {WEB}
    assert timer.before[WEB]["cores"] == 0.7
    assert busiest({"before": timer.before | {REDIS: {"cores": None}}}) == 0.7


def test_busy_cores_are_counted_as_the_system_tells(tmp_path: Path) -> None:
    """Of two cores one was busy for 30 of 50 ticks: idling and waiting for a disk are no work."""
    before = "cpu  100 0 100 500 50 0 0 0 9 9\ncpu0 1\ncpu1 1\nintr 5\n"
    after = "cpu  120 0 110 560 60 0 0 0 9 9\ncpu0 1\ncpu1 1\nintr 5\n"
    assert busy_between(ticks(before), ticks(after)) == 0.6
    assert busy_between(ticks(before), ticks(before)) == 0
    assert busy_cores(tmp_path / "nobody-tells") is None
    (tmp_path / "stat").write_text(before)
    assert busy_cores(tmp_path / "stat", seconds=0) == 0


def test_the_page_says_what_the_servers_do_without() -> None:
    """Whoever compares must know that nobody waited for a disk."""
    said = {*re.findall(r"`([^`]+)`", SERVED_TEXT)}
    assert {name for name in IN_A_HURRY if name.endswith("=off")} <= said
    assert "neither snapshots nor an append-only file" in " ".join(SERVED_TEXT.split())


def test_a_quick_run_that_was_slow_says_so_loudly() -> None:
    """Five minutes are promised, unless others want the machine; a full run may take as long as it takes."""
    assert told_time(299.6, "quick", 0.0) == ("the run took 300 s", 0)
    assert told_time(2_000, "full", 0.0) == ("the run took 2000 s", 0)
    loud, status = told_time(301, "quick", 0.1)
    assert "the run took 301 s" in loud
    assert "!!!!!" in loud
    assert status == 1
    assert told_time(301, "quick", None)[1] == 0
    excused, status = told_time(301, "quick", 1.4)
    assert ("others kept 1.4 cores busy" in excused, status) == (True, 0)


def test_a_quick_run_says_so_first() -> None:
    """Nobody takes its figures for more than a first look; a full run says nothing of that kind."""
    assert terminal(result()).startswith("QUICK: ")
    assert not terminal(result() | {"sittings": [sitting(mode="full")]}).startswith("QUICK")


def test_a_quick_run_leaves_out_what_takes_minutes() -> None:
    """Unless it is named; a full run leaves out nothing."""
    parts = ("config", "cold", "idle")
    assert not any(AskedFor(QUICK, ()).has(part) for part in parts)
    assert all(AskedFor(QUICK, (part,)).has(part) for part in parts)
    assert all(AskedFor(FULL_SCALE, ()).has(part) for part in PARTS if part != "dynamodb")
    assert not AskedFor(FULL_SCALE, ("idle",)).has("cold")
    assert AskedFor(FULL_SCALE, ("dynamodb",)).cases == AskedFor(FULL_SCALE, ()).cases == list(CASES)
    assert AskedFor(FULL_SCALE, ("idle",)).cases == []
    assert set(QUICK.counted) <= set(QUICK.unasked) < set(FULL_SCALE.unasked)
