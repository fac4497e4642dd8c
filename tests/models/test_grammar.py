"""The text of limits: what it means, what is wrong with it, and that it can be written back."""

import doctest
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zae_limiter import Limit, ValidationError
from zae_limiter.cli import output
from zae_limiter.models import grammar
from zae_limiter.models.accruals import PERIODS
from zae_limiter.models.grammar import SECONDS, limit_text, parse_limit, parse_limits_json


@pytest.mark.parametrize(
    ("text", "limit"),
    [
        ("rpm:60", Limit("rpm", 60, 60, 60)),
        ("rpm:60/min", Limit("rpm", 60, 60, 60)),
        ("rps:10/sec", Limit("rps", 10, 10, 1)),
        ("rps:10/sec:50", Limit("rps", 50, 10, 1)),
        ("rpm:60:5", Limit("rpm", 5, 60, 60)),
        ("rph:7/hour", Limit("rph", 7, 7, 3600)),
        ("rpd:1000/day:10", Limit("rpd", 10, 1000, 86400)),
        ("gpt-4.tokens_in:1/sec", Limit("gpt-4.tokens_in", 1, 1, 1)),
        ("big:1000000000000", Limit("big", 10**12, 10**12, 60)),
        ("zeros:007", Limit("zeros", 7, 7, 60)),
        ("rps:10/second", Limit("rps", 10, 10, 1)),
        ("rps:10/s:50", Limit("rps", 50, 10, 1)),
        ("rpm:60/minute", Limit("rpm", 60, 60, 60)),
        ("rpm:60/m", Limit("rpm", 60, 60, 60)),
        ("rph:7/h", Limit("rph", 7, 7, 3600)),
        ("rpd:7/d", Limit("rpd", 7, 7, 86400)),
        ("tpm:10k", Limit("tpm", 10_000, 10_000, 60)),
        ("tpm:10_000", Limit("tpm", 10_000, 10_000, 60)),
        ("tpm:1.5M/day:2M", Limit("tpm", 2_000_000, 1_500_000, 86400)),
        ("tpm:0.5k:1_000_000", Limit("tpm", 1_000_000, 500, 60)),
        ("usd:100/month@Europe/Berlin", Limit.per_month("usd", 100, tz="Europe/Berlin")),
        ("usd:100/month:250", Limit.per_month("usd", 100, 250)),
        ("runs:5/day@UTC", Limit.per_day("runs", 5, calendar=True)),
        ("runs:5/h@Asia/Kathmandu", Limit.per_hour("runs", 5, calendar=True, tz="Asia/Kathmandu")),
        ("runs:5/week", Limit.per_week("runs", 5)),
        ("runs:5/year@America/Argentina/Ushuaia", Limit.per_year("runs", 5, tz="America/Argentina/Ushuaia")),
        ("runs:5/cron(*/30 6 * * mon)", Limit.cron("runs", 5, "*/30 6 * * mon")),
        ("msgs:50/session(5h)", Limit.session("msgs", 50, "5h")),
        ("jobs:10/concurrent(5m)", Limit.concurrent("jobs", 10)),
        ("jobs:10/concurrent(1h30m)", Limit.concurrent("jobs", 10, 5_400)),
        ("rpm:60:soft", Limit("rpm", 60, 60, 60, soft=True)),
        ("rps:10/sec:50:soft", Limit.per_second("rps", 10, 50).softly()),
        ("soft:60/month@Europe/Berlin:soft", Limit.per_month("soft", 60, tz="Europe/Berlin").softly()),
        ("jobs:10/concurrent(5m):soft", Limit.concurrent("jobs", 10).softly()),
        ("usd:99.5USD/month", Limit.per_month("usd", 99_500_000, unit="usd_micro")),
        ("eur:1EUR/day:2.000001EUR", Limit.per_day("eur", 1_000_000, 2_000_001, unit="eur_micro")),
    ],
)
def test_a_limit_is_read(text: str, limit: Limit) -> None:
    """Name, rate, unit and burst; the unit is a minute and the burst the rate unless said otherwise."""
    assert parse_limit(text) == limit


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "write NAME:RATE"),
        ("rpm", "write NAME:RATE"),
        ("rpm:", "write NAME:RATE"),
        (":60", "write NAME:RATE"),
        ("rpm:sixty", "is no whole number; write it as 60, 10_000, 10k or 1.5M"),
        ("rpm:-60", "'-60' is below zero; write how many, such as 60"),
        ("usd:-5USD", "'-5USD' is below zero"),
        ("msgs:50/session(5h)@UTC", "session has no time zone; leave it out"),
        ("msgs:50/session(5h):100", "session has no burst; write msgs:50/session(5h)"),
        (
            "rpm:60;600(* 9-16 * * *)@UTC:soft",
            "soft stands before the windows: rpm:60:soft;600(* 9-16 * * *)@UTC",
        ),
        ("rpm:60;600(* 16-9 * * *)", "'16-9' runs backwards; write 16-23,0-9"),
        ("rpm:6.5", "is no whole number; write it as 60, 10_000, 10k or 1.5M"),
        ("rpm:60/", "write NAME:RATE"),
        ("rpm:60:", "write NAME:RATE"),
        ("rpm:60:5/min", "write NAME:RATE"),
        ("rpm:60/min:5:5", "write NAME:RATE"),
        ("rpm:60 ", "is no whole number; write it as 60, 10_000, 10k or 1.5M"),
        ("rpm:६०", "is no whole number; write it as 60, 10_000, 10k or 1.5M"),
        ("rpm:60\n", "is no whole number; write it as 60, 10_000, 10k or 1.5M"),
        ("rpm:60/fortnight", "'fortnight' is no unit; use sec, min, hour, day, week, month, year"),
        ("rpm:60/min@UTC", "'min' has no time zone; use one with hour, day, week, month, year"),
        ("rpm:60/month@Mars", "no such time zone is known here"),
        ("rpm:60/cron(0 6)", "write minute, hour, day, month and day of the week"),
        ("usd:1USD/day:5", "its rate and its burst are of different units"),
        ("rpm:60/MIN", "'MIN' is no unit"),
        ("rpm:60/s:6.5", "'6.5' is no whole number"),
        ("rpm:1.2345k", "'1.2345k' is no whole number"),
        ("rpm:10m", "'10m' is no whole number"),
        ("rpm:10K", "'10K' is no whole number"),
        ("rpm:10G", "'10G' is no whole number"),
        ("rpm:10,000", "'10,000' is no whole number"),
        ("rpm:10_00", "'10_00' is no whole number"),
        ("rpm:1e3", "'1e3' is no whole number"),
        ("rpm:.5k", "'.5k' is no whole number"),
        ("rpm:0", "at least 1"),
        ("rpm:0.0k", "at least 1"),
        ("rpm:2000000M", "at most 1000000000000"),
        ("rpm:60:0", "at least 1"),
        ("rpm:1000000000001", "at most 1000000000000"),
        ("rpm:" + "9" * 5000, "is no whole number"),
        ("9lives:60", "start with a letter"),
        ("a#b:60", "'#' is reserved"),
        ("wcu:60", "reserved for internal use"),
    ],
)
def test_a_wrong_limit_is_explained(text: str, said: str) -> None:
    """Whatever is wrong, the message shows the way out."""
    with pytest.raises(ValidationError) as raised:
        parse_limit(text)
    assert said in str(raised.value)


@given(
    name=st.from_regex(r"[A-Za-z][A-Za-z0-9_.\-]{0,20}", fullmatch=True).filter(lambda n: n != "wcu"),
    capacity=st.integers(1, 10**12),
    rate=st.integers(1, 10**12),
    seconds=st.sampled_from(sorted(SECONDS.values())),
)
def test_a_limit_that_was_written_is_read_back(name: str, capacity: int, rate: int, seconds: int) -> None:
    """What a table shows can be given to an option."""
    limit = Limit(name, capacity, rate, seconds)
    assert parse_limit(limit_text(limit)) == limit


def test_a_period_without_a_unit_is_shown_in_seconds() -> None:
    """The grammar has no word for it, so it is not read back as something else."""
    text = limit_text(Limit("slow", 5, 1, 30))
    assert text == "slow:1/30s:5"
    with pytest.raises(ValidationError):
        parse_limit(text)


def test_limits_in_json_are_read() -> None:
    """The format is that of ``Limit.to_dict``."""
    limits = (Limit("slow", 5, 1, 30), Limit.per_minute("rpm", 60))
    assert parse_limits_json(json.dumps([one.to_dict() for one in limits])) == limits


def test_the_way_out_names_every_unit() -> None:
    """Also those that say more in parentheses: whoever mistypes one wants to see how it is written."""
    with pytest.raises(ValidationError) as raised:
        parse_limit("rpm=60")
    for unit in (*SECONDS, *PERIODS, "concurrent(5m)", "session(5h)", "cron(0 6 * * 1)"):
        assert unit in raised.value.reason


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[", "it is not JSON"),
        ("{}", "write a list"),
        ("[1]", "write a list"),
        ("null", "write a list"),
        ("[]", "at least one limit"),
        ('[{"name": "rpm"}]', "capacity, refill_amount, refill_period_seconds missing"),
        (
            '[{"name": "a", "capacity": 1.5, "refill_amount": 1, "refill_period_seconds": 1}]',
            "must be a whole number",
        ),
        (
            '[{"name": "a", "capacity": 1, "refill_amount": 1, "refill_period_seconds": 1, "burst": 2}]',
            "unknown keys burst",
        ),
        (json.dumps([Limit.per_minute("a", 1).to_dict()] * 2), "a given more than once"),
    ],
)
def test_wrong_json_is_explained(text: str, said: str) -> None:
    """Bad JSON, the wrong shape, missing and unknown keys, wrong numbers, a name twice."""
    with pytest.raises(ValidationError) as raised:
        parse_limits_json(text)
    assert said in str(raised.value)


@pytest.mark.parametrize("module", [grammar, output])
def test_the_examples_in_docstrings_hold(module: object) -> None:
    """They are the specification of the small functions."""
    failed, tried = doctest.testmod(module)  # type: ignore[arg-type]
    assert tried
    assert not failed
