"""The process of one contestant in one case: it does what it is told, a line of JSON at a time.

Started as ``python -m benchmarks.worker '{"bench": …}'`` with the interpreter of the contestant's
environment. Answers go to the standard output it was started with; whatever a library prints goes to
standard error.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from typing import Any

from .cases import BARE, CASES, COLD, MEMORY_ASYNC, WARM_UP


def bench_of(asked: dict[str, Any]) -> Any:
    """What an argument asks for; its methods are the orders that it understands.

    It is imported only then, because half of the libraries are missing in each environment.
    """
    contestant = asked["contestant"]
    if asked["bench"] == "embedded":
        from .embedded import AsyncEmbeddedBench, SyncEmbeddedBench

        made = AsyncEmbeddedBench if asked["group"] == MEMORY_ASYNC else SyncEmbeddedBench
        return made(asked["group"], contestant)
    if asked["bench"] == "config":
        from .config_study import ConfigBench

        return ConfigBench(contestant, asked["endpoint"], asked["users"])
    if contestant == BARE:
        from .floors import BareBench

        return BareBench(asked["endpoint"])
    from .tables import AsyncBench, SyncBench

    case = next(case for case in (*CASES, WARM_UP, COLD) if case.name == asked["case"])
    case = replace(case, entities=min(case.entities, asked.get("entities_max", case.entities)))
    return (SyncBench if case.sync else AsyncBench)(contestant, asked["endpoint"], case)


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
