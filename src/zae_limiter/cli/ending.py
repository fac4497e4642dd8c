"""How a TERM signal ends a command that would go on until somebody ends it: as Ctrl-C does, by an exception.

So whatever it has in hand is given back: the screen, a directory, a thread.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


@contextmanager
def raised_on_terminate(error: BaseException) -> Iterator[None]:
    """A TERM signal raises this within the block."""

    def end(_number: int, _frame: FrameType | None) -> None:
        raise error

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before: Callable[..., Any] | int | None = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
