"""Limits of every kind for properties, headers read back by a parser that is not ours, and a plain meter."""

from collections.abc import Iterable
from typing import Any

import http_sfv
from hypothesis import strategies as st

from zae_limiter import Limit
from zae_limiter.web.drafts import Header

names = st.from_regex(r"\A[A-Za-z][A-Za-z0-9_.\-]{0,8}\Z").filter(lambda name: name != "wcu")
amounts = st.integers(1, 12) | st.integers(1, 10**12)
periods = st.sampled_from([1, 7, 60, 90, 3_600, 86_400]) | st.integers(1, 10 * 366 * 86_400)
units = st.sampled_from([None, None, "usd_micro", "eur_micro"])


@st.composite
def rates(draw: st.DrawFn, name: str) -> Limit:
    limit = Limit(name, draw(amounts), draw(amounts), draw(periods), unit=draw(units))
    return limit.softly() if draw(st.integers(0, 9)) == 0 else limit


@st.composite
def quotas(draw: st.DrawFn, name: str) -> Limit:
    make = draw(st.sampled_from([Limit.per_week, Limit.per_month, Limit.per_year]))
    burst = draw(st.none() | amounts)
    return make(name, draw(amounts), burst, tz=draw(st.sampled_from(["UTC", "Europe/Berlin"])), unit=None)


def limits_of(name: str) -> st.SearchStrategy[Limit]:
    """A limit of any kind."""
    schedule = st.builds(
        lambda limit, amount: Limit(name, limit, limit, 60).during("*/2 * * * *", amount),
        st.integers(1, 100),
        st.integers(1, 100),
    )
    session = st.builds(
        lambda amount, seconds: Limit.session(name, amount, seconds), amounts, st.integers(60, 86_400)
    )
    seats = st.builds(lambda count: Limit.concurrent(name, count, 30), st.integers(1, 99_999))
    return rates(name) | quotas(name) | schedule | session | seats


class Bytes:
    """Each byte costs a token."""

    def __init__(self, *_: Any) -> None:
        self.seen = 0

    def feed(self, chunk: bytes) -> None:
        self.seen += len(chunk)

    def amounts(self) -> dict[str, int]:
        return {"tpm": self.seen}


def read_back(headers: Iterable[Header], name: str) -> dict[str, dict[str, Any]]:
    """The items of a field by their names, as somebody else reads them; empty if the field is not there."""
    found: dict[str, dict[str, Any]] = {}
    for field, value in headers:
        if field.lower() == name.lower():
            items = http_sfv.List()
            items.parse(value.encode("ascii"))
            for one in items:
                assert one.value not in found
                found[one.value] = dict(one.params)
    return found
