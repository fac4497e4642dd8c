"""``python -m tests.mutation``: change the code in one place after another and see whether a test notices."""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

from tests.engines import dynamodb_local

from .mutations import ROOT, Target, all_mutants, sample, target_of, unexplained
from .operators import Mutant
from .proving import LIMIT_SECONDS, Trial, Yard

RESULTS = ROOT / ".mutation.json"
PAGE = ROOT / "docs" / "mutation.md"


def main() -> int:
    options = _options()
    with tempfile.TemporaryDirectory(prefix="mutation-") as place:
        yard = Yard(Path(place), options.limit)
        yard.prepare()
        mutants = [m for m in all_mutants(yard.base / "src") if options.only in m.name]
        known = {} if options.fresh else _known(options.results)
        if options.sample:
            mutants = sample(mutants, options.sample)
        due = [
            m
            for m in mutants
            if m.name not in known or (options.again and known[m.name].verdict == "survived")
        ]
        print(f"{len(mutants)} mutants, {len(mutants) - len(due)} of them known", flush=True)
        if options.list:
            print("\n".join(mutant.name for mutant in due))
            return 0
        engine = dynamodb_local.start() if any(target_of(m).on_dynamodb for m in due) else None
        try:
            if due:
                _try_all(yard, due, known, options)
        finally:
            if engine is not None:
                dynamodb_local.stop(engine)
    return _report([known[m.name] for m in mutants if m.name in known])


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__)
    parser.add_argument("--sample", type=int, default=0, help="try only so many, the same ones every time")
    parser.add_argument("--only", default="", help="try only mutants whose name contains this")
    parser.add_argument("--fresh", action="store_true", help="forget what earlier runs found")
    parser.add_argument("--again", action="store_true", help="try the survivors of earlier runs again")
    parser.add_argument(
        "--quick", action="store_true", help="give up on a mutant after the tests that know it best"
    )
    parser.add_argument("--workers", type=int, default=2, help="how many to try at once")
    parser.add_argument("--list", action="store_true", help="show what would be tried")
    parser.add_argument(
        "--limit", type=float, default=LIMIT_SECONDS, help="seconds until a trial counts as hung"
    )
    parser.add_argument("--results", type=Path, default=RESULTS, help="the file that keeps the verdicts")
    return parser.parse_args()


def _try_all(yard: Yard, due: list[Mutant], known: dict[str, Trial], options: argparse.Namespace) -> None:
    with ThreadPoolExecutor(options.workers) as workers:
        trials = [workers.submit(yard.try_out, m, _target(m, quick=options.quick)) for m in due]
        for done, future in enumerate(as_completed(trials), 1):
            trial = future.result()
            if trial.verdict != "survived" or not options.quick:
                known[trial.name] = trial
            options.results.write_text(
                json.dumps({name: list(it[1:]) for name, it in sorted(known.items())}, indent=0)
            )
            print(f"{done}/{len(due)} {trial.verdict} in {trial.seconds} s: {trial.name}", flush=True)
    for test in sorted(yard.spoilt):
        print(f"left out, for it fails without any mutation: {test}", flush=True)


def _target(mutant: Mutant, *, quick: bool) -> Target:
    target = target_of(mutant)
    return target._replace(then=()) if quick else target


def _known(results: Path) -> dict[str, Trial]:
    if not results.exists():
        return {}
    return {name: Trial(name, *rest) for name, rest in json.loads(results.read_text()).items()}


def _report(trials: list[Trial]) -> int:
    verdicts = Counter(trial.verdict for trial in trials)
    survivors = [trial.name for trial in trials if trial.verdict == "survived"]
    open_questions = unexplained(survivors, PAGE.read_text())
    print(
        f"{len(trials)} mutants: {verdicts['killed']} killed, {verdicts['hung']} hung, "
        f"{len(survivors)} survived, {len(survivors) - len(open_questions)} of them explained"
    )
    for name in open_questions:
        print(f"nobody noticed: {name}")
    return 1 if open_questions else 0


if __name__ == "__main__":
    os.chdir(ROOT)
    sys.exit(main())
