"""What providers say in headers, read alike, and nothing that they say breaks the reader."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.patience import PATIENCE_SECONDS
from zae_limiter.outbound import ProviderAnswer, ToldLimit, read_answer
from zae_limiter.outbound.told import FIELDS_MAX, NUMBER_MAX, SECONDS_MAX

NOW_MS = 1_767_225_600_000  # 2026-01-01T00:00:00Z


@pytest.mark.parametrize(
    ("headers", "told"),
    [
        (
            {
                "X-RateLimit-Limit-Requests": "60",
                "x-ratelimit-remaining-requests": "59",
                "x-ratelimit-reset-requests": "1s",
                "x-ratelimit-limit-tokens": "150000",
                "x-ratelimit-remaining-tokens": "149984",
                "x-ratelimit-reset-tokens": "6m0s",
            },
            [
                ToldLimit("requests", 60, 59, 1.0, 60, is_window_least=True),
                ToldLimit("tokens", 150_000, 149_984, 360.0, 60, is_window_least=True),
            ],
        ),
        (
            {
                "anthropic-ratelimit-input-tokens-limit": "50000",
                "anthropic-ratelimit-input-tokens-remaining": "49000",
                "anthropic-ratelimit-input-tokens-reset": "2026-01-01T00:00:12Z",
            },
            [ToldLimit("input-tokens", 50_000, 49_000, 12.0, 60)],
        ),
        (
            {"RateLimit-Policy": '"rpm";q=100;w=60, "tpm";q=10000;w=3600', "RateLimit": '"rpm";r=50;t=30'},
            [ToldLimit("rpm", 100, 50, 30.0, 60), ToldLimit("tpm", 10_000, None, None, 3_600)],
        ),
        (
            {"X-RateLimit-Limit": "5000", "X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "1767225660"},
            [ToldLimit("requests", 5_000, 0, 60.0)],
        ),
        (
            {"RateLimit-Limit": "100, 100;w=60", "RateLimit-Remaining": "4", "RateLimit-Reset": "7"},
            [ToldLimit("requests", 100, 4, 7.0, 60)],
        ),
        (
            {"RateLimit-Limit": "100", "RateLimit-Policy": "10;w=1, 100 ; w=900;comment=x"},
            [ToldLimit("requests", 100, None, None, 900)],
        ),
        ({"RateLimit-Limit": "100", "RateLimit-Policy": "10;w=1"}, [ToldLimit("requests", 100)]),
        (
            {"x-ratelimit-limit-requests-day": "14400", "X-RateLimit-Limit-Minute": "20"},
            [
                ToldLimit("requests-day", 14_400, None, None, 86_400),
                ToldLimit("minute", 20, None, None, 60),
            ],
        ),
        (
            {"x-ratelimit-limit-rpm": "600", "RateLimit-Policy": '"rpm";q=9;w=1'},
            [ToldLimit("rpm", 9, None, None, 1)],
        ),
        (
            {"x-ratelimit-limit-rpm": "600", "RateLimit-Policy": '"rpm";w=1'},
            [ToldLimit("rpm", 600, None, None, 60, is_window_least=True)],
        ),
        ({"RateLimit-Policy": '"rpm";q=100;w=0, "tpm";q=5'}, [ToldLimit("rpm", 100), ToldLimit("tpm", 5)]),
        ({"x-ratelimit-remaining-tokens": "-1", "x-ratelimit-limit-tokens": "-1"}, []),
        ({"X-RateLimit-Reset": "1767225660000"}, [ToldLimit("requests", None, None, 60.0)]),
        ({"x-ratelimit-reset-requests": "20ms"}, [ToldLimit("requests", None, None, 0.02)]),
        ({"x-ratelimit-reset-requests": "1h2m3.5s"}, [ToldLimit("requests", None, None, 3723.5)]),
        ({"x-ratelimit-limit-requests": "many", "date": "today", "ratelimit": "?"}, []),
    ],
)
def test_what_providers_say(headers: dict[str, str], told: list[ToldLimit]) -> None:
    """In whichever words; what cannot be read is not told."""
    assert list(read_answer(200, headers.items(), NOW_MS).told) == told


@pytest.mark.parametrize(
    ("status", "headers", "refused", "wait"),
    [
        (429, {"retry-after": "2"}, True, 2.0),
        (429, {"retry-after": "2", "retry-after-ms": "1250"}, True, 1.25),
        (429, {"retry-after": "Thu, 01 Jan 2026 00:00:30 GMT"}, True, 30.0),
        (429, {"retry-after": "Thu, 01 Jan 2025 00:00:30 GMT"}, True, 0.0),
        (429, {"retry-after": "soon"}, True, None),
        (429, {}, True, None),
        (503, {"retry-after": "5"}, True, 5.0),
        (503, {}, False, None),
        (500, {"retry-after": "5"}, False, 5.0),
        (200, {}, False, None),
    ],
)
def test_a_refusal_and_how_long_it_lasts(
    status: int, headers: dict[str, str], refused: bool, wait: float | None
) -> None:
    """To the millisecond where the provider says so."""
    assert read_answer(status, headers.items(), NOW_MS) == ProviderAnswer(refused, wait, ())


FIELD = st.sampled_from(
    [
        "retry-after", "retry-after-ms", "ratelimit", "ratelimit-policy", "x-ratelimit-limit",
        "ratelimit-limit",
        "x-ratelimit-limit-requests", "x-ratelimit-remaining-tokens", "x-ratelimit-reset-tokens",
        "anthropic-ratelimit-requests-reset", "anthropic-ratelimit-tokens-limit",
    ]
)  # fmt: skip
VALUE = st.one_of(
    st.text(max_size=40),
    st.text('";,=qrtw 019\t\\', max_size=400),
    st.from_regex(r'("[a-z]{1,3}"( {0,3}; {0,3}[qrtw]=? {0,3}[0-9]{0,20}){0,30},? ?){1,4}', fullmatch=True),
    st.from_regex(r"-?[0-9]{1,25}(\.[0-9]{1,5})?(ms|s|m|h)?", fullmatch=True),
    st.datetimes().map(str),
)


@given(st.lists(st.tuples(st.one_of(FIELD, st.text(max_size=30)), VALUE), max_size=60), st.integers(100, 599))
@example([("ratelimit", '"a";t=40000000')], 200)
@example([("x-ratelimit-reset-tokens", "9999999999")], 200)
@example([("ratelimit", '"a"' + ";b=  " * 12 + ";1")], 200)
def test_no_answer_breaks_the_reader(headers: list[tuple[str, str]], status: int) -> None:
    """Whatever is sent, numbers are within bounds and there are not too many of them."""
    answer = read_answer(status, headers, NOW_MS)
    assert answer.retry_after_seconds is None or 0 <= answer.retry_after_seconds <= SECONDS_MAX
    assert len(answer.told) <= FIELDS_MAX
    for told in answer.told:
        assert told.limit is None or 0 <= told.limit <= NUMBER_MAX
        assert told.remaining is None or 0 <= told.remaining <= NUMBER_MAX
        assert told.reset_seconds is None or 0 <= told.reset_seconds <= SECONDS_MAX
        assert told.window_seconds is None or 0 < told.window_seconds <= SECONDS_MAX


LONG = [
    *(
        '"a"' + ";b=  " * 800 + ";1",
        '"a";b=' * 600,
        '"a"' + " " * 4_000 + ";",
        " " * 4_000 + '"a',
        '"' * 60_000,
    ),
    *("1" * 60_000, "1." + "1" * 60_000, "1;w=" * 15_000, "1, " * 20_000, "," * 60_000, "1" + " " * 60_000),
    *("2026-" * 12_000, "Thu, " * 12_000, "1d1h1m1s1ms" * 5_000),
]
READING = """
import json, sys
from zae_limiter.outbound import read_answer
for field, value in json.load(sys.stdin):
    read_answer(429, [(field, value)], 0)
print("read")
"""


def test_no_answer_keeps_the_reader_busy() -> None:
    """Not even one that was written to; another process reads it, for nothing interrupts a pattern."""
    fields = (
        "ratelimit", "ratelimit-policy", "ratelimit-limit", "x-ratelimit-reset-tokens", "retry-after",
        "retry-after-ms", "anthropic-ratelimit-tokens-reset",
    )  # fmt: skip
    text = json.dumps([(field, value) for field in fields for value in LONG])
    reader = [sys.executable, "-c", READING]
    said = subprocess.check_output(reader, input=text, text=True, timeout=PATIENCE_SECONDS)
    assert said == "read\n"
