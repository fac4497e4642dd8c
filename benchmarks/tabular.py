"""Tables in Markdown, and how a figure stands in one. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from .figures import Figure, compact


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---", *("---:" for _ in header[1:])], *rows]
    return "\n".join("| " + " | ".join(row) + " |" for row in lines) + "\n"


def ranged(figure: Figure, unit: float = 1) -> str:
    """A median with the range of its rounds."""
    low, high = compact(figure.low / unit), compact(figure.high / unit)
    return f"{compact(figure.median / unit)} ({low}–{high})"
