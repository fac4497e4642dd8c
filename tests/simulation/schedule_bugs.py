"""Ways to break limits whose numbers change with the time of day, which the simulation must find."""

from __future__ import annotations

from typing import Any

from zae_limiter.engine.account import Terms
from zae_limiter.engine.law import Rate, balance
from zae_limiter.engine.phased import terms_at
from zae_limiter.engine.phases import crossed, rate_at
from zae_limiter.engine.posting import Posting
from zae_limiter.models import LimitStatus
from zae_limiter.repository_protocol import Item


def _own_clock(image: Item | None, now_ms: int) -> int:
    """Everybody goes by its own clock: whoever is late takes a phase back."""
    del image
    return now_ms


def _late_numbers(terms: Terms, at_ms: int) -> Terms:
    """The numbers of before count for a while after a boundary."""
    return terms_at(terms, at_ms - 500)


def _by_the_first_phase(
    rate: Rate, tokens: int, origin_ms: int, since_ms: int, t_ms: int, booked_ms: int = 0
) -> int:
    """What nobody used fills by the numbers that it had, however many phases have passed."""
    del since_ms, booked_ms
    return crossed(rate, rate_at(rate, t_ms), balance(rate, tokens, origin_ms, t_ms))


def _unbounded(terms: Terms, posting: Posting, image: Item | None, now_ms: int) -> Posting:
    """A slot that lies beyond the phase."""
    del terms, image, now_ms
    return posting


def _in_debt(balance_milli: int, before_milli: int, capacity_milli: int) -> int:
    """A cut that takes what is not there."""
    del before_milli, capacity_milli
    return balance_milli


def _each_for_itself(statuses: list[LimitStatus], *_: Any) -> list[LimitStatus]:
    """A wait that is told as if nothing were cut meanwhile."""
    return statuses


def _in_engine(name: str, modules: str, broken: Any) -> dict[str, Any]:
    return {f"zae_limiter.engine.{module}.{name}": broken for module in modules.split()}


SCHEDULE_BUGS: dict[str, dict[str, Any]] = {
    "phases_go_back": _in_engine("instant", "phased phase_writes bucket_view booking", _own_clock),
    "late_numbers": _in_engine("terms_at", "phase_writes bucket_view booking", _late_numbers),
    "first_phase_for_ever": _in_engine("held_at", "phased level", _by_the_first_phase),
    "booked_beyond_the_phase": _in_engine("within_phase", "phase_writes booking fitting", _unbounded),
    "cut_into_debt": _in_engine("floored", "phases", _in_debt),
    "cut_while_waiting": _in_engine("_at_once", "refusal", _each_for_itself),
}
