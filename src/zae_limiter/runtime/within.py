"""Whether somebody was interrupted in the middle of this package, and how to do without waiting then.

Garbage is collected anywhere, also while a frame of this package further up the stack holds a lock: who finds
itself there leaves the work to a thread.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Coroutine
from types import FrameType
from typing import Any, TypeVar

T = TypeVar("T")

Work = Coroutine[Any, Any, T]
Lost = Callable[[], None]
"""Is told that something could not be brought to its end."""

NOT_OURS = ("zae_limiter.cli", "zae_limiter.decorator", "zae_limiter.testing", "zae_limiter.web")
"""Parts of this package that use it as others do, and hold no lock meanwhile."""


def is_within_ourselves() -> bool:
    """Whether the stack leads back into this package after it had left it: somebody was interrupted.

    The collector of garbage has no frame: who is finalized stands on whoever was at work just then.
    """
    frame: FrameType | None = sys._getframe(1)
    outside = False
    while frame is not None:
        name = frame.f_globals.get("__name__", "")
        ours = name.startswith("zae_limiter.") and not name.startswith(NOT_OURS)
        if ours and outside:
            return True
        outside = outside or not ours or frame.f_code.co_name == "__del__"
        frame = frame.f_back
    return False


def in_thread_of_its_own(work: Callable[[], None], lost: Lost) -> None:
    """Let a new thread do it; nobody waits."""
    try:
        threading.Thread(target=work, name="zae-limiter-settling").start()
    except RuntimeError:  # the interpreter is going down, or there are too many
        lost()
