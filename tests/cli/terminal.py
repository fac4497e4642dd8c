"""A command on a terminal of its own, and what it has drawn there: as much of one as is needed for that.

It knows how lines are written over one another, and how a screen of its own is entered and left. Colours and
the like are passed over.
"""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from tests.patience import PATIENCE_SECONDS, wait_until

HOME = "\x1b[H"
CONTROL = re.compile(r"\x1b\[([?0-9;]*)([A-Za-z])|\x1b[()][A-Z0-9]|\x1b[=>78]")


class Terminal:
    """A process whose standard streams are a terminal of some size."""

    def __init__(self, *words: str, columns: int, rows: int, directory: Path, **variables: str) -> None:
        self._file, inner = pty.openpty()
        self.text = ""
        """All that was ever written."""
        self._undecoded = b""
        self._words, self._inner, self._directory, self._variables = words, inner, directory, variables
        self.resize(columns, rows)

    def __enter__(self) -> Self:
        inherited = {
            k: v for k, v in os.environ.items() if k not in {"COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR"}
        }
        environment = {**inherited, "TERM": "xterm-256color", "PYTHONIOENCODING": "utf-8", **self._variables}

        def own_the_terminal() -> None:
            os.setsid()
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)

        self.process = subprocess.Popen(
            [sys.executable, "-m", "zae_limiter.cli", *self._words],
            stdin=self._inner,
            stdout=self._inner,
            stderr=self._inner,
            env=environment,
            cwd=self._directory,
            preexec_fn=own_the_terminal,  # noqa: PLW1509 - it takes no lock
        )
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(PATIENCE_SECONDS)
        os.close(self._file)
        os.close(self._inner)

    def resize(self, columns: int, rows: int) -> None:
        """What a window does that somebody makes larger or smaller."""
        fcntl.ioctl(self._file, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self.columns, self.rows = columns, rows

    def press(self, keys: str) -> None:
        os.write(self._file, keys.encode())

    def read(self) -> str:
        """What is to be seen by now: the screen as it was drawn last."""
        while select.select([self._file], [], [], 0)[0]:
            self._undecoded += os.read(self._file, 65_536)
        whole = self._undecoded.decode("utf-8", "ignore") if self._undecoded else ""
        rest = len(self._undecoded) - len(whole.encode())
        self._undecoded = self._undecoded[len(self._undecoded) - rest :] if rest else b""
        self.text += whole
        return self.screen()

    def screen(self) -> str:
        """The lines that stand there now: of a screen of its own, the last frame that is whole."""
        lines, row, column, at, text = [""], 0, 0, 0, self.text
        if (start := text.rfind(HOME)) > text.rfind("\x1b[?1049l"):
            before = text.rfind(HOME, 0, start)
            text = text[before if before >= 0 else start : start if before >= 0 else None]
        while at < len(text):
            if found := CONTROL.match(text, at):
                at = found.end()
                if found[2] == "H":
                    row, column = 0, 0
                elif found[2] == "J" and found[1] in ("2", ""):
                    lines = [*lines[:row], lines[row][:column]] if found[1] == "" else [""] * (row + 1)
                elif found[2] == "K":
                    lines[row] = lines[row][:column] if found[1] in ("", "0") else ""
                continue
            letter, at = text[at], at + 1
            if letter == "\n":
                row, column = row + 1, 0
                lines += [""] * (row + 1 - len(lines))
            elif letter == "\r":
                column = 0
            else:
                lines[row] = f"{lines[row]:<{column}}"[:column] + letter + lines[row][column + 1 :]
                column += 1
        return "\n".join(line.rstrip() for line in lines)

    def until(self, is_so: Callable[[str], Any], what: str) -> str:
        """The first screen of which it is so."""
        wait_until(lambda: bool(is_so(self.read())) or self.process.poll() is not None, what)
        screen = self.read()
        assert is_so(screen), f"{what}:\n{screen}"
        return screen

    def ended(self) -> int:
        """How it ended; what it wrote last is read."""
        wait_until(lambda: (self.read(), self.process.poll())[1] is not None, "it did not end")
        self.read()
        assert self.process.returncode is not None
        return self.process.returncode
