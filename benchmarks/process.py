"""The run's end of a worker: start it, give orders, read answers, and end it whatever happens."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from .cases import OUR_ENVIRONMENT
from .engine import ROOT, EngineMissing, environment

PEERS = ".engines/peers/bin/python"
FAREWELL_SECONDS_MAX = 3
"""A worker that has closed what it had, and still does not end, has nothing more to say."""


class WorkerFailed(Exception):
    """A contestant's process ended instead of answering."""


def interpreter(contestant: str) -> str:
    """The Python of the environment in which a contestant is installed."""
    if contestant in OUR_ENVIRONMENT:
        return sys.executable
    python = ROOT / PEERS
    if not Path(python).exists():
        raise EngineMissing("the peers are not installed; run: make bench")
    return str(python)


def environment_of(contestant: str) -> dict[str, str]:
    """Of a contestant's process: a path to our own package must not hide theirs, which has its name."""
    variables = environment()
    if contestant not in OUR_ENVIRONMENT:
        variables.pop("PYTHONPATH", None)
    return variables


class Worker:
    def __init__(self, contestant: str, **asked: Any) -> None:
        self.contestant = contestant
        argument = json.dumps({"contestant": contestant, **asked})
        self._process = subprocess.Popen(
            [interpreter(contestant), "-m", "benchmarks.worker", argument],
            cwd=ROOT,
            env=environment_of(contestant),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,  # an interrupt from the keyboard is for the run, which then ends it
        )

    def tell(self, order: str, **arguments: Any) -> None:
        """Give an order without waiting for its answer."""
        assert self._process.stdin is not None
        # A process that has ended is noticed when its answer is missing.
        with suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps({"do": order, **arguments}) + "\n")
            self._process.stdin.flush()

    def answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise WorkerFailed(f"{self.contestant} ended with exit code {self._process.wait()}")
        return json.loads(line)

    def ask(self, order: str, **arguments: Any) -> Any:
        self.tell(order, **arguments)
        return self.answer()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self.ask("close")
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(FAREWELL_SECONDS_MAX if kind is None else 1)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()


def output(contestant: str, module: str, *arguments: str) -> Any:
    """What a module prints as JSON when it is run once in a contestant's environment."""
    ran = subprocess.run(
        [interpreter(contestant), "-m", module, *arguments],
        cwd=ROOT,
        env=environment_of(contestant),
        capture_output=True,
        text=True,
        check=False,
    )
    if ran.returncode:
        raise WorkerFailed(f"{contestant} ended with exit code {ran.returncode}\n{ran.stderr[-2000:]}")
    return json.loads(ran.stdout.splitlines()[-1])
