"""Limits that count and never refuse: what is taken of them has no floor. Pure.

A soft limit may be in debt, by as much as was used beyond it. So what is given back is just what was taken,
and a limit that is made to refuse one day does so until that is paid, or forgiven.
"""

from __future__ import annotations

from collections.abc import Mapping

from .account import Terms


def hard(terms: Terms, amounts: Mapping[str, int]) -> Mapping[str, int]:
    """The amounts of which a bucket must have enough."""
    return {name: amount for name, amount in amounts.items() if name not in terms.soft}
