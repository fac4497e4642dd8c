"""Limits tried on traffic: the answers of the arithmetic itself."""

import math

import pytest

from zae_limiter import Limit, ValidationError
from zae_limiter.testing import simulate

RPM = Limit("rpm", capacity=10, refill_amount=30, refill_period_seconds=60)


def test_a_burst_and_then_the_rate() -> None:
    """Once a second of ten, and one more every two seconds: the 20th is the first that is refused."""
    answers = simulate([RPM], [(second, {"rpm": 1}) for second in range(60)])
    assert [answer.at_seconds for answer in answers if not answer.admitted] == list(range(19, 60, 2))
    assert {answer.retry_after_seconds for answer in answers if not answer.admitted} == {1.0}


def test_all_amounts_or_none() -> None:
    tpm = Limit.per_minute("tpm", 60)
    answers = simulate([RPM, tpm], [(0, {"rpm": 1, "tpm": 61}), (0, {"rpm": 10, "tpm": 60}), (2, {"rpm": 1})])
    assert [answer.admitted for answer in answers] == [False, True, True]
    assert answers[0].retry_after_seconds == math.inf


def test_requests_come_in_order() -> None:
    with pytest.raises(ValidationError, match=r"before the last one; sort the requests"):
        simulate([RPM], [(1, {"rpm": 1}), (0.5, {"rpm": 1})])
