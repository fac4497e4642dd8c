"""What a call comes to that is given anything at all: a result, or an error of ours, within some work."""

import inspect
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from zae_limiter import ZAELimiterError
from zae_limiter.runtime.colour import run_sync

CPU_SECONDS_MAX = 5.0
"""More work than any call of ours is worth; whoever takes longer will never end."""


class Endless(Exception):
    """A call that would not come to an end."""


@contextmanager
def patience() -> Iterator[None]:
    """Fail a call that takes more of the processor than any should; a busy machine is not to blame."""

    def give_up(*_: Any) -> None:
        raise Endless(f"more than {CPU_SECONDS_MAX} s of work")

    before = signal.signal(signal.SIGVTALRM, give_up)
    signal.setitimer(signal.ITIMER_VIRTUAL, CPU_SECONDS_MAX)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def outcome(call: Callable[[], Any]) -> Any:
    """What a call comes to: its result, or the error of ours that it raised. Others are not caught."""
    with patience():
        try:
            return entered(call())
        except ZAELimiterError as error:
            refusal = error
    assert str(refusal), "an error says something"
    assert repr(refusal)
    return refusal


def entered(returned: Any) -> Any:
    """What a call came to: coroutines are run, acquisitions entered and left."""
    if hasattr(returned, "__enter__"):
        with returned as value:
            return value
    if hasattr(returned, "__aenter__"):
        value = run_sync(returned.__aenter__())
        run_sync(returned.__aexit__(None, None, None))
        return value
    return run_sync(returned) if inspect.iscoroutine(returned) else returned
