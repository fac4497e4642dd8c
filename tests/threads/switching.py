"""Let threads come between any two steps of some files: what holds then holds without a GIL too."""

from __future__ import annotations

import random
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

Trace = Callable[[FrameType, str, Any], Any]


@contextmanager
def often() -> Iterator[None]:
    """Threads are switched as often as the interpreter can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def yielding(files: Sequence[str], seed: int, odds: float = 0.2) -> Trace:
    """A trace function that gives way to other threads before lines and steps of these files."""
    chance = random.Random(seed)

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        if not frame.f_code.co_filename.endswith(tuple(files)):
            return None
        frame.f_trace_opcodes = True
        if event in ("line", "opcode") and chance.random() < odds:
            time.sleep(0)
        return trace

    return trace


def together(tasks: Sequence[Callable[[], None]], files: Sequence[str] = (), seed: int = 0) -> None:
    """Run tasks at once, each in a thread; what one of them raises is raised."""
    raised: list[BaseException] = []
    ready = threading.Barrier(len(tasks))

    def run(number: int, task: Callable[[], None]) -> None:
        ready.wait()
        if files:
            sys.settrace(yielding(files, seed * 1_000 + number))
        try:
            task()
        except BaseException as error:
            raised.append(error)
        finally:
            sys.settrace(None)

    threads = [threading.Thread(target=run, args=pair) for pair in enumerate(tasks)]
    with often():
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    if raised:
        raise raised[0]
