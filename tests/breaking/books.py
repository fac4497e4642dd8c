"""What a client knows it has consumed, kept where a SIGKILL cannot reach it.

Before an operation a client writes down the most that it could cost; when it is over, between what and what
it has cost. Both are one line each, appended by one system call. An operation without a second line was
under way when its client died: it has cost nothing, everything, or something in between.
"""

import json
import logging
import os
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

Amounts = Mapping[str, int]
"""Whole tokens by limit."""

KILLED = "killed"


@dataclass
class Operation:
    """One acquire from beginning to end."""

    number: int
    most: Amounts
    since: float
    lost: bool = False
    """The limiter said that it could not store a refund or a settlement."""


CURRENT: ContextVar[Operation | None] = ContextVar("CURRENT", default=None)


class Witness(logging.Handler):
    """Notes whose operation it was when the limiter warns: a lost refund raises nothing."""

    def emit(self, record: logging.LogRecord) -> None:  # noqa: ARG002 - that it warns is enough
        operation = CURRENT.get()
        if operation is not None:
            operation.lost = True


class Book:
    """One client's file; its tasks and threads write into it one line at a time."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._numbers = count(1)

    def intend(self, payers: Sequence[str], most: Amounts) -> Operation:
        operation = Operation(next(self._numbers), most, time.monotonic())
        self._write({"n": operation.number, "payers": payers, "most": most})
        return operation

    def settle(self, operation: Operation, how: str, low: Amounts, high: Amounts) -> None:
        ms = round((time.monotonic() - operation.since) * 1000)
        self._write({"n": operation.number, "how": how, "low": low, "high": high, "ms": ms})

    def close(self) -> None:
        os.close(self._file)

    def _write(self, line: Mapping[str, object]) -> None:
        os.write(self._file, json.dumps(line).encode() + b"\n")


@dataclass
class Ledger:
    """The books of all clients together, by payer and limit, in tokens."""

    low: Counter[tuple[str, str]] = field(default_factory=Counter)
    high: Counter[tuple[str, str]] = field(default_factory=Counter)
    how: Counter[str] = field(default_factory=Counter)
    uncertain: int = 0
    """Operations of which nobody knows what they cost; those of killed clients are among them."""
    slowest_ms: int = 0

    @property
    def operations(self) -> int:
        return self.how.total()

    def enter(self, payers: Iterable[str], low: Amounts, high: Amounts) -> None:
        for payer in payers:
            self.low.update({(payer, name): amount for name, amount in low.items()})
            self.high.update({(payer, name): amount for name, amount in high.items()})
        self.uncertain += low != high

    def complaints(self, stored_milli: Mapping[tuple[str, str], int]) -> list[str]:
        """Where the store's books are outside of what the clients know."""
        found = []
        for payer, name in sorted(self.high.keys() | self.low.keys() | stored_milli.keys()):
            stored, low, high = (
                stored_milli.get((payer, name), 0),
                self.low[payer, name],
                self.high[payer, name],
            )
            if not low * 1000 <= stored <= high * 1000:
                found.append(
                    f"{payer}: {stored / 1000} of {name} by the store, {low} to {high} by the clients"
                )
        return found


def read_books(paths: Iterable[Path]) -> Ledger:
    """What all clients wrote down; a last line that was cut short was never acted upon."""
    ledger = Ledger()
    for path in paths:
        begun: dict[int, dict[str, object]] = {}
        *lines, _ = path.read_bytes().split(b"\n")
        for line in map(json.loads, lines):
            if "how" not in line:
                begun[line["n"]] = line
                continue
            ledger.enter(begun.pop(line["n"])["payers"], line["low"], line["high"])  # type: ignore[arg-type]
            ledger.how[line["how"]] += 1
            ledger.slowest_ms = max(ledger.slowest_ms, line["ms"])
        for line in begun.values():
            ledger.enter(line["payers"], {}, line["most"])  # type: ignore[arg-type]
            ledger.how[KILLED] += 1
    return ledger
