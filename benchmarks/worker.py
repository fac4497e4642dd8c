"""The process of one contestant: it does what it is told, a line of JSON at a time.

Started as ``python -m benchmarks.worker '{"bench": …}'`` with the interpreter of the contestant's
environment. Answers go to the standard output it was started with; whatever a library prints goes to
standard error.
"""

from __future__ import annotations

import json
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from .cases import ASYNC_GROUPS, BARE, CASES, CEILING, COLD, WARM_UP, Case


def bench_of(asked: dict[str, Any]) -> Any:
    """What an argument asks for; its methods are the orders that it understands.

    It is imported only then, because half of the libraries are missing in each environment.
    """
    contestant = asked["contestant"]
    if asked["bench"] == "embedded":
        from .embedded import AsyncEmbeddedBench, SyncEmbeddedBench

        made = AsyncEmbeddedBench if asked["group"] in ASYNC_GROUPS else SyncEmbeddedBench
        return made(asked["group"], contestant)
    if asked["bench"] == "served":
        from .served import ServedBench

        return ServedBench(asked["group"], contestant, asked["url"])
    if asked["bench"] == "config":
        from .config_study import ConfigBench

        return ConfigBench(contestant, asked["endpoint"], asked["users"])
    return CaseBenches(contestant, asked["endpoint"])


class CaseBenches:
    """All cases of one contestant on DynamoDB, each with a table of its own."""

    def __init__(self, contestant: str, endpoint: str) -> None:
        self._contestant, self._endpoint = contestant, endpoint
        self._benches: dict[str, Any] = {}

    def found(self, cases: list[str]) -> None:
        """Make the tables of some cases, and write something into each.

        At once, because theirs waits for seconds for a CloudFormation that the engine has not.
        """
        for name in cases:
            case = next(case for case in (*CASES, WARM_UP, COLD) if case.name == name)
            self._benches[name] = self._bench(case)
        with ThreadPoolExecutor(len(cases)) as threads:
            list(threads.map(lambda bench: bench.found(), self._benches.values()))

    def prepare(self, case: str) -> None:
        self._benches[case].prepare()

    def arrange(self, case: str) -> None:
        self._benches[case].arrange()

    def round(self, case: str, seconds: float) -> Any:
        return self._benches[case].round(seconds)

    def close(self) -> None:
        for bench in self._benches.values():
            bench.close()

    def _bench(self, case: Case) -> Any:
        if self._contestant == BARE:
            from .floors import BareBench

            return BareBench(self._endpoint)
        if self._contestant == CEILING:
            from .ceiling import CeilingBench, SyncCeilingBench

            return (SyncCeilingBench if case.sync else CeilingBench)(self._endpoint, case)
        from .tables import AsyncBench, SyncBench

        return (SyncBench if case.sync else AsyncBench)(self._contestant, self._endpoint, case)


def main() -> None:
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    bench = bench_of(json.loads(sys.argv[1]))
    for line in sys.stdin:
        order = json.loads(line)
        answer = getattr(bench, order.pop("do"))(**order)
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
