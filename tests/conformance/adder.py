"""Another process on the same store, for the tests; run as ``adder.py <role> <url> <name>``.

It answers on standard output, one line at a time, so that whoever started it knows what it has seen.
"""

import os
import sys

from zae_limiter.backends import open_backend
from zae_limiter.repository_protocol import Backend, Key, Update
from zae_limiter.runtime.colour import run_sync
from zae_limiter.runtime.world import World

FIRST, SECOND, TURNS = (Key("counters", name) for name in ("first", "second", "turns"))
TIMES = 25
WAIT_MS = 60_000


def opened(url: str, *, sync: bool = True) -> Backend:
    return open_backend(url, sync=sync, world=World(), timeout_ms=WAIT_MS)


async def add(backend: Backend, name: str) -> int:
    """Count one for all and one for ``name``, twice in one transaction, then alone: the total after that."""
    one = {"total": 1, name: 1}
    outcomes = await backend.transact_write([Update(FIRST, one), Update(SECOND, one)])
    assert [outcome.applied for outcome in outcomes] == [True, True], outcomes
    (outcome,) = await backend.write_each([Update(TURNS, one)])
    assert outcome.item is not None, outcome
    total = outcome.item["total"]
    assert isinstance(total, int)
    return total


def say(what: object) -> None:
    sys.stdout.write(f"{what}\n")
    sys.stdout.flush()


def count(url: str, name: str) -> None:
    """Add some times, after a line on standard input starts everybody at once."""
    backend = opened(url)
    run_sync(backend.setup())
    say("ready")
    sys.stdin.readline()
    for _ in range(TIMES):
        say(run_sync(add(backend, name)))
    run_sync(backend.close())


def until_killed(url: str, name: str) -> None:
    """Add for ever, and say each time that it is done."""
    backend = opened(url)
    run_sync(backend.setup())
    while True:
        run_sync(add(backend, name))
        say("added")


def forked(url: str, name: str) -> None:
    """Use the store, fork twice, and go on with what was opened in parent and children at once."""
    backend = opened(url)
    run_sync(backend.setup())
    say(run_sync(add(backend, name)))
    children = [os.fork()]
    if children[0]:
        children.append(os.fork())
    for _ in range(TIMES):
        say(run_sync(add(backend, name)))
    if not all(children):
        os._exit(0)
    for child in children:
        assert os.waitpid(child, 0)[1] == 0
    run_sync(backend.close())


if __name__ == "__main__":
    {"count": count, "until-killed": until_killed, "forked": forked}[sys.argv[1]](*sys.argv[2:])
