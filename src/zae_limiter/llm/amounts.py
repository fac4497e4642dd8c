"""From the usage of a call to amounts by limit: what ``UsageMeter(amounts=…)`` takes, ready made.

An ``Amounts`` is any function from a ``Usage`` to whole amounts by the names of limits. Those here count
every token once. One that is named ``None`` is counted by nobody; two of the same name add up.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from typing import TypeAlias

from ..exceptions import ValidationError
from ..models.checks import TOKENS_MAX
from ..naming import validate_limit_name
from .usage import Usage

Amounts: TypeAlias = Callable[[Usage], Mapping[str, int]]
"""What a usage costs, by limit."""


def total_tokens(limit: str = "tpm") -> Amounts:
    """One limit for all tokens, whatever they are.

    >>> total_tokens()(Usage(input_tokens=1_000, output_tokens=200))
    {'tpm': 1200}
    """
    validate_limit_name(limit)
    return lambda usage: {limit: usage.total_tokens}


def separate_tokens(
    input: str | None = "itpm", output: str | None = "otpm", cached: str | None = None
) -> Amounts:
    """A limit each for input, output, and input that was read from a cache, which nobody counts unless told.

    >>> separate_tokens(cached="ctpm")(Usage(input_tokens=1_000, output_tokens=200, cached_tokens=900))
    {'itpm': 100, 'otpm': 200, 'ctpm': 900}
    """
    names = [name for name in (input, output, cached) if name is not None]
    for name in names:
        validate_limit_name(name)
    if not names:
        raise ValidationError("limits", names, "name at least one limit")

    def amounts(usage: Usage) -> Mapping[str, int]:
        counts: Counter[str] = Counter(dict.fromkeys(names, 0))
        for name, count in (
            (input, usage.plain_input_tokens),
            (output, usage.output_tokens),
            (cached, usage.cached_tokens),
        ):
            if name is not None:
                counts[name] += count
        return dict(counts)

    return amounts


def priced_tokens(
    limit: str = "usd",
    *,
    input: str | int | Decimal,
    output: str | int | Decimal,
    cached: str | int | Decimal | None = None,
    cache_write: str | int | Decimal | None = None,
) -> Amounts:
    """A limit of money in millionths, by prices for a million tokens; what has no price of its own is input.

    >>> priced_tokens(input="2.50", output=10, cached="1.25")(Usage(1_000, 200, cached_tokens=400))
    {'usd': 4000}
    """
    validate_limit_name(limit)
    price = _price("input", input)
    of_output = _price("output", output)
    of_cached = price if cached is None else _price("cached", cached)
    of_write = price if cache_write is None else _price("cache_write", cache_write)

    def amounts(usage: Usage) -> Mapping[str, int]:
        plain = usage.plain_input_tokens - usage.cache_write_tokens
        cost = plain * price + usage.output_tokens * of_output
        cost += usage.cached_tokens * of_cached + usage.cache_write_tokens * of_write
        return {limit: min(math.ceil(cost), TOKENS_MAX)}

    return amounts


def _price(name: str, price: str | int | Decimal) -> Fraction:
    """The price of a million tokens is what one costs in millionths. Floats are refused, being inexact."""
    if not isinstance(price, bool) and isinstance(price, str | int | Decimal):
        try:
            exact = Decimal(price)
            if exact.is_finite() and 0 <= exact <= TOKENS_MAX:
                return Fraction(exact)
        except InvalidOperation:
            pass
    raise ValidationError(f"price of {name}", price, "pass the price of a million tokens, such as '2.50'")
