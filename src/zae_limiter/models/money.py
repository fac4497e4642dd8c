"""Amounts as people read them: money where a limit counts millionths of a currency, else plain numbers."""

from __future__ import annotations

import re

from ..exceptions import ValidationError

MICRO = 1_000_000
SIGNS = {"USD": "$", "EUR": "€", "GBP": "£", "JPY": "¥"}

_UNIT = re.compile(r"([a-z]{3})_micro")


def check_unit(field_name: str, unit: str) -> str:
    """A unit of money: millionths of a currency, by its three letters."""
    if isinstance(unit, str) and _UNIT.fullmatch(unit):
        return unit
    raise ValidationError(
        field_name, unit, "use millionths of a currency, such as 'usd_micro', or leave it out"
    )


def currency_of(unit: str) -> str:
    """``USD`` for ``usd_micro``."""
    return unit.removesuffix("_micro").upper()


def unit_of(currency: str) -> str:
    """``usd_micro`` for ``USD``."""
    return f"{currency.lower()}_micro"


def decimal(amount: int, *, grouped: bool = False) -> str:
    """Millionths as a number of currency units, with at least two decimals and as many as it needs."""
    whole, rest = divmod(abs(amount), MICRO)
    decimals = f"{rest:06}".rstrip("0").ljust(2, "0")
    return f"{'-' if amount < 0 else ''}{whole:{',' if grouped else ''}}.{decimals}"


def grouped_amount(amount: int, unit: str | None = None) -> str:
    """The same with marks between thousands, for numbers that stand by themselves.

    >>> grouped_amount(1_250_000, "usd_micro"), grouped_amount(1_250_000)
    ('$1.25', '1,250,000')
    """
    return f"{amount:,}" if unit is None else shown_amount(amount, unit)


def rounded_amount(amount: int, unit: str | None = None) -> str:
    """The same of money to the cent, for sums that nobody settles by; what is less than a cent in full.

    >>> rounded_amount(3_178_092_963, "usd_micro"), rounded_amount(-4_999, "usd_micro"), rounded_amount(1_250)
    ('$3,178.09', '-$0.004999', '1,250')
    """
    is_money = unit is not None and abs(amount) >= MICRO // 100
    cents, sign = (abs(amount) + MICRO // 200) // (MICRO // 100), -1 if amount < 0 else 1
    return grouped_amount(sign * cents * (MICRO // 100) if is_money else amount, unit)


def shown_amount(amount: int, unit: str | None = None) -> str:
    """An amount of a limit for a reader.

    >>> shown_amount(1_250_000, "usd_micro"), shown_amount(-1, "chf_micro"), shown_amount(1_250_000)
    ('$1.25', '-0.000001 CHF', '1250000')
    """
    if unit is None:
        return str(amount)
    currency, text = currency_of(unit), decimal(amount, grouped=True)
    if currency not in SIGNS:
        return f"{text} {currency}"
    return f"-{SIGNS[currency]}{text[1:]}" if amount < 0 else f"{SIGNS[currency]}{text}"
