"""Upgrades in processes that die or fall asleep: ``python -m tests.older.upgrades NOW_MS TOGETHER_MAX``.

It loads everything once and lets children run the command, at an instant that stands still. At most
``TOGETHER_MAX`` writes go in one transaction, or as many as a record needs. Each line of its input is a
task, and it answers with how the children ended:

    one URL SIGNAL write AT     an upgrade gets the signal in front of its write number AT, if it has so many
    one URL SIGNAL request AT   the same, and reads count too
    wake                        those who fell asleep go on
    race URL SEEDS              an upgrade for each seed, at once; dice say how long each waits for its turns
"""

import itertools
import os
import random
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from zae_limiter.backends.dynamodb import aioboto, boto, http  # noqa: F401 - what the command loads later
from zae_limiter.backends.dynamodb.retries import Calls
from zae_limiter.cli import upgrade
from zae_limiter.cli.app import program
from zae_limiter.infra import clients, stack_manager  # noqa: F401 - the same
from zae_limiter.operate.migrations import moving
from zae_limiter.runtime.world import World

WRITES = frozenset({"TransactWriteItems", "PutItem", "UpdateItem", "DeleteItem"})
TURN_SECONDS_MAX = 0.02

Before = Callable[[str], None]
"""Is called with the name of each request before it is sent."""


def struck(how: str, what: str, at: str) -> Before:
    numbers = itertools.count(1)

    def strike(operation: str) -> None:
        if (what == "request" or operation in WRITES) and next(numbers) == int(at):
            os.kill(os.getpid(), signal.Signals[how])

    return strike


def dawdling(seed: int) -> Before:
    dice = random.Random(seed)
    return lambda _: time.sleep(dice.uniform(0, TURN_SECONDS_MAX))


def born(url: str, before: Before) -> int:
    """A child that runs the command."""
    return os.fork() or be_upgrade(url, before)


def be_upgrade(url: str, before: Before) -> NoReturn:
    ask = Calls.ask

    async def asked(calls: Calls, operation: str, *rest: Any, **options: Any) -> Any:
        before(operation)
        return await ask(calls, operation, *rest, **options)

    code: Any = 1
    try:
        os.dup2(os.open(os.devnull, os.O_RDWR), sys.stdout.fileno())
        Calls.ask = asked  # type: ignore[assignment,method-assign]
        program(["upgrade", "--store", url, "--yes", "--output", "json"])
    except SystemExit as over:
        code = over.code
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def main(now_ms: int, together_max: int) -> None:
    world, asleep = World(lambda: now_ms), list[int]()
    upgrade.store_world = lambda *_: world
    moving.TRANSACT_WRITES_MAX = together_max

    def ends(children: Sequence[int]) -> None:
        said = []
        for child in children:
            status = os.waitpid(child, os.WUNTRACED)[1]
            if os.WIFSTOPPED(status):
                asleep.append(child)
            said.append("asleep" if os.WIFSTOPPED(status) else str(os.waitstatus_to_exitcode(status)))
        print(*said, flush=True)

    try:
        for line in sys.stdin:
            match line.split():
                case "one", url, how, what, at:
                    ends([born(url, struck(how, what, at))])
                case "race", url, *seeds:
                    ends([born(url, dawdling(int(seed))) for seed in seeds])
                case _:
                    woken = [asleep.pop() for _ in asleep[:]]
                    for child in woken:
                        os.kill(child, signal.SIGCONT)
                    ends(woken)
    finally:  # whoever gave the tasks may be gone
        for child in asleep:
            os.kill(child, signal.SIGKILL)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
