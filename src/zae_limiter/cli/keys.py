"""Keys as they are pressed, where a terminal can tell them; elsewhere it only waits.

The terminal goes on to answer Ctrl-C and Ctrl-Z by itself. It is given back as it was, whatever ends the
block.
"""

from __future__ import annotations

import os
import select
import sys
import time
from typing import Any, Self

try:
    import termios
    import tty
except ImportError:  # no terminal of this kind
    termios = tty = None  # type: ignore[assignment]

BYTES_MAX = 64


class Keys:
    """Reads what is typed into standard input, without waiting for a line's end."""

    def __init__(self) -> None:
        self._file: int | None = None
        self._before: list[Any] = []

    def __enter__(self) -> Self:
        if termios is None or not sys.stdin.isatty():
            return self
        file = sys.stdin.fileno()
        if os.tcgetpgrp(file) != os.getpgrp():  # in the background nobody may set a terminal
            return self
        self._before = termios.tcgetattr(file)
        tty.setcbreak(file)
        self._file = file
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            termios.tcsetattr(self._file, termios.TCSADRAIN, self._before)
            self._file = None

    def within(self, seconds: float) -> str:
        """What was typed meanwhile; at once if something was."""
        if self._file is None:
            time.sleep(seconds)
            return ""
        ready, _, _ = select.select([self._file], [], [], seconds)
        typed = os.read(self._file, BYTES_MAX) if ready else b""
        if ready and not typed:  # the terminal is gone
            self._file = None
        return typed.decode("latin-1")
