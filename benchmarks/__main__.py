"""``python -m benchmarks``: measure, print, and keep the result."""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from pathlib import Path
from typing import Any

from . import telemetry
from .cases import CASES, FULL_SCALE, PARTS, QUICK
from .engine import ROOT, EngineMissing
from .process import WorkerFailed
from .report import CHARTS, charts, comparison_tables, page, terminal
from .run import run
from .targets import new_misses

DOCS = ROOT / "docs"
COMPARISON = DOCS / "comparison.md"
PUBLISHED = DOCS / CHARTS / "results.json"
LATEST = ROOT / "build" / "bench"
QUICK_SECONDS_MAX = 300
OTHERS_CORES_MAX = 0.3
"""More than that, and it may be others who make a run slow."""
MEASURED_BY = {
    "dynamodb": ("cases",),
    "redis": ("servers",),
    "postgres": ("servers",),
    "cold": ("cold", "cold_bills"),
}
"""Where a result keeps a part that is not kept under its own name."""


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    names = [case.name for case in CASES]
    parser.add_argument(
        "only",
        nargs="*",
        metavar="CASE",
        help=f"measure only these: {', '.join([*names, *PARTS])}; or serve or telemetry, each alone",
    )
    parser.add_argument("--quick", action="store_true", help="shorter rounds, for a first look")
    ending = parser.add_mutually_exclusive_group()
    ending.add_argument(
        "--publish", action="store_true", help="write the result into docs, its page and the comparison"
    )
    ending.add_argument(
        "--judge",
        action="store_true",
        help="fail if a target is missed that the published run does not miss so",
    )
    parser.add_argument("--report", type=Path, metavar="JSON", help="measure nothing, show this result")
    asked = parser.parse_args()
    if unknown := set(asked.only) - {*names, *PARTS}:
        parser.error(f"no case is called {', '.join(sorted(unknown))}")
    if asked.publish and not {*asked.only} <= PARTS.keys():
        parser.error(f"only whole parts can be published: {', '.join(PARTS)}")
    return asked


def write_report(result: dict[str, Any], stored: Path, shown: Path) -> None:
    """The result as JSON, and a page with charts that shows it."""
    folder = shown.parent / CHARTS
    folder.mkdir(parents=True, exist_ok=True)
    stored.parent.mkdir(parents=True, exist_ok=True)
    stored.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    shown.write_text(page(result), encoding="utf-8")
    for name, svg in charts(result).items():
        (folder / name).write_text(svg, encoding="utf-8")


def beside(stored: dict[str, Any], result: dict[str, Any]) -> dict[str, Any]:
    """What other runs found, but what this one has measured, which is no longer theirs."""
    (sitting,) = result["sittings"]
    older = [
        it | {"parts": {part: took for part, took in it["parts"].items() if part not in sitting["parts"]}}
        for it in stored["sittings"]
    ]
    merged = stored | {"sittings": [*(it for it in older if it["parts"]), sitting]}
    for part in sitting["parts"]:
        for name in MEASURED_BY.get(part, (part,)):
            if name in result:
                of_several = name == "servers"
                merged[name] = (
                    {**merged.get(name, {}), part: result[name][part]} if of_several else result[name]
                )
    embedded = {group: rounds for group, rounds in result["embedded"].items() if group in sitting["parts"]}
    return merged | {"embedded": merged["embedded"] | embedded}


def update_comparison(result: dict[str, Any]) -> None:
    """Put the result's tables where the comparison has them."""
    text = COMPARISON.read_text(encoding="utf-8")
    shown, count = re.subn(
        r"(?:^Taken on .*\n\n)+(?:\|.*\n)+\n(?:\|.*\n)+",
        lambda _: comparison_tables(result),
        text,
        flags=re.MULTILINE,
    )
    assert count == 1, "the comparison has these two tables once"
    COMPARISON.write_text(shown, encoding="utf-8")


def progress(started: float, line: str) -> None:
    print(f"[{time.monotonic() - started:4.0f} s] {line}", file=sys.stderr, flush=True)


def told_time(seconds: float, mode: str, others: float | None) -> tuple[str, int]:
    """How long a run took, and the status to end with; nobody overlooks that a quick one was not.

    That is a failure only where others left the machine to it: ``others`` is how many cores they kept busy.
    """
    told = f"the run took {seconds:.0f} s"
    if mode != "quick" or seconds <= QUICK_SECONDS_MAX:
        return told, 0
    loud = f"{told}, AND A QUICK ONE IS TO END WITHIN {QUICK_SECONDS_MAX} s"
    is_ours = others is not None and others <= OTHERS_CORES_MAX
    if not is_ours:
        loud += f"; others kept {'nobody knows how many' if others is None else others} cores busy"
    return f"{'!' * 80}\n{loud}\n{'!' * 80}", int(is_ours)


def busiest(sitting: dict[str, Any]) -> float | None:
    """The most cores that others kept busy before any part of a run."""
    return max((it["cores"] for it in sitting["before"].values() if it["cores"] is not None), default=None)


def judged(result: dict[str, Any]) -> int:
    """The status to end with: 1 if a target is missed that the published run does not miss so."""
    missed = new_misses(result, json.loads(PUBLISHED.read_text(encoding="utf-8")))
    for line in missed:
        print(f"missed: {line}", file=sys.stderr)
    return 1 if missed else 0


def main() -> int:
    if sys.argv[1:2] == ["serve"]:  # which kills what it measures, and has options of its own
        from .serve import main as serve

        del sys.argv[1]
        serve()
        return 0
    if "telemetry" in sys.argv[1:]:  # it compares us with ourselves, in a run of its own
        return telemetry.main(telemetry.ROUNDS // 10 if "--quick" in sys.argv else telemetry.ROUNDS)
    asked = arguments()
    took, status = "", 0
    if asked.report:
        result = json.loads(asked.report.read_text(encoding="utf-8"))
    else:
        started = time.monotonic()
        scale, mode = (QUICK, "quick") if asked.quick else (FULL_SCALE, "full")
        try:
            result = run(scale, mode, asked.only, lambda line: progress(started, line))
        except (EngineMissing, WorkerFailed) as error:
            print(f"error: {error}", file=sys.stderr)
            return 1
        except KeyboardInterrupt:
            return 130
        (sitting,) = result["sittings"]
        took, status = told_time(time.monotonic() - started, mode, busiest(sitting))
        write_report(result, LATEST / "results.json", LATEST / "benchmarks.md")
    if asked.publish:
        if asked.only:
            result = beside(json.loads(PUBLISHED.read_text(encoding="utf-8")), result)
        write_report(result, PUBLISHED, DOCS / "benchmarks.md")
        update_comparison(result)
    print(terminal(result))
    print(took, end="\n" if took else "")
    return max(status, judged(result)) if asked.judge else status


if __name__ == "__main__":
    sys.exit(main())
