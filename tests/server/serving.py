"""The command ``zae-limiter serve`` as a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple


class Serving(NamedTuple):
    """A server that runs, and how it is asked."""

    process: subprocess.Popen[str]
    port: int
    token: str
    told: list[str]
    """What it said when it began."""

    @property
    def url(self) -> str:
        return next(word.rstrip(";") for line in self.told for word in line.split() if "://127" in word)

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token}"}

    def workers(self) -> list[int]:
        pid = self.process.pid
        return [int(w) for w in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@contextmanager
def serving(store: str, *words: str, env: dict[str, str] | None = None) -> Iterator[Serving]:
    """A server on a free port; it is killed afterwards, if it has not ended by then."""
    process = subprocess.Popen(
        [sys.executable, "-m", "zae_limiter", "serve", "--store", store, "--port", "0", *words],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **(env or {})},
    )
    try:
        yield Serving(process, *_told(process))
    finally:
        process.kill()
        process.communicate()


def _told(process: subprocess.Popen[str]) -> tuple[int, str, list[str]]:
    assert process.stderr is not None
    port, lines = 0, list[str]()
    for line in process.stderr:
        lines.append(line)
        if " at http" in line:
            port = int(line.split(";")[0].rpartition(":")[2])
        if line.startswith("token: "):
            return port, line.split()[1], lines
    raise AssertionError("".join(lines))
