"""Words and numbers of charts, measured in the columns that a terminal gives them. Pure.

A letter may take two columns, or none: names of entities are any text. What is too long loses its middle,
because names often differ at their ends only.
"""

from __future__ import annotations

import textwrap

from rich.cells import cell_len, chop_cells, set_cell_size

from ..models.money import MICRO, SIGNS, currency_of, decimal

DIGITS_MAX = 4  # that count, in a number that has to be short


def cut(text: str, columns: int) -> str:
    """A text without its middle where it is too wide.

    >>> cut("tenant-1-user-1", 10), cut("東京の顧客", 6)
    ('tenan~er-1', '東~客')
    """
    if cell_len(text) <= columns:
        return text
    tail = max(0, columns - 1) // 2
    return f"{_first(text, columns - 1 - tail)}~{_first(text[::-1], tail)[::-1]}"


def _first(text: str, columns: int) -> str:
    """As many letters from the start as fit."""
    taken = 0
    for n, letter in enumerate(text):
        taken += cell_len(letter)
        if taken > columns:
            return text[:n]
    return text


def padded(text: str, columns: int) -> str:
    """A text in exactly so many columns, cut if need be.

    >>> padded("ab", 4), padded("東京", 5)
    ('ab  ', '東京 ')
    """
    return set_cell_size(cut(text, columns), columns)


def wrapped(text: str, columns: int) -> list[str]:
    """A text in lines; only a word that is wider than a line is broken.

    >>> wrapped("who asks for 東京の顧客", 10)
    ['who asks', 'for', '東京の顧客']
    """
    if cell_len(text) == len(text):
        return textwrap.wrap(text, columns, break_on_hyphens=False)
    lines = [""]
    for word in (part for long in text.split() for part in chop_cells(long, columns)):
        joined = f"{lines[-1]} {word}".strip()
        lines = [*lines[:-1], joined] if cell_len(joined) <= columns else [*lines, word]
    return lines


def short(amount: int, unit: str | None = None) -> str:
    """A number that reads well, rounded to few letters; of money without the letters of its currency.

    >>> [short(amount) for amount in (0, 500, 1500, 2000, -50_000, 1_000_000, 20_000_000_000)]
    ['0', '500', '1.5k', '2k', '-50k', '1M', '20G']
    >>> [short(amount, "usd_micro") for amount in (0, 5, 500_000, -1_500_000_000)]
    ['$0', '$0.000005', '$0.5', '-$1.5k']
    >>> short(-1_582_105), short(1_582_105, "usd_micro")
    ('-1.582M', '$1.582')
    """
    step = 10 ** max(0, len(str(abs(amount))) - DIGITS_MAX)
    amount = (amount + step // 2) // step * step
    if unit is not None:
        whole, rest = divmod(abs(amount), MICRO)
        digits = decimal(abs(amount)).rstrip("0").rstrip(".") if rest and whole < 1000 else short(whole)
        return f"{'-' if amount < 0 else ''}{SIGNS.get(currency_of(unit), '')}{digits}"
    for power, letter in ((18, "E"), (15, "P"), (12, "T"), (9, "G"), (6, "M"), (3, "k")):
        if abs(amount) >= 10**power:
            return f"{amount / 10**power:g}{letter}"
    return str(amount)
