"""From usage to amounts by limit: every token counts once."""

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zae_limiter import ValidationError
from zae_limiter.llm import Usage, priced_tokens, separate_tokens, total_tokens
from zae_limiter.models import TOKENS_MAX

counts = st.integers(0, 10**9)


@st.composite
def usages(draw: st.DrawFn) -> Usage:
    whole, out = draw(counts), draw(counts)
    cached = draw(st.integers(0, whole))
    return Usage(whole, out, cached, draw(st.integers(0, whole - cached)), draw(st.integers(0, out)))


@given(usage=usages(), cached=st.sampled_from(["ctpm", "itpm", "otpm"]))
def test_separate_limits_count_every_token_once(usage: Usage, cached: str) -> None:
    """Whichever limit the cached ones are put to."""
    separate = separate_tokens(cached=cached)(usage)
    assert sum(separate.values()) == sum(total_tokens()(usage).values()) == usage.total_tokens
    assert separate_tokens()(usage) == {
        "itpm": usage.input_tokens - usage.cached_tokens,
        "otpm": usage.output_tokens,
    }


def test_a_limit_without_use_is_settled_to_nothing() -> None:
    """So that what was reserved for it comes back."""
    assert separate_tokens(cached="ctpm")(Usage(5)) == {"itpm": 5, "otpm": 0, "ctpm": 0}
    assert separate_tokens(input=None)(Usage(5, 7)) == {"otpm": 7}


@given(usage=usages())
def test_prices_are_exact(usage: Usage) -> None:
    """In whole millionths, rounded up once."""
    price = priced_tokens(input="2.50", output="10", cached="1.25", cache_write="3.125")
    plain = usage.input_tokens - usage.cached_tokens - usage.cache_write_tokens
    thousandths = 2_500 * plain + 10_000 * usage.output_tokens
    thousandths += 1_250 * usage.cached_tokens + 3_125 * usage.cache_write_tokens
    assert price(usage) == {"usd": min(-(-thousandths // 1_000), TOKENS_MAX)}
    flat = priced_tokens("eur", input=1, output=Decimal(1))
    assert flat(usage) == {"eur": usage.total_tokens}


@pytest.mark.parametrize("price", ["", "a lot", "-1", "NaN", "Infinity", 2.5, True, None, 10**13])
def test_odd_prices_are_refused(price: object) -> None:
    """Floats too: 0.1 is not a tenth."""
    with pytest.raises(ValidationError, match="price of output"):
        priced_tokens(input=1, output=price)  # type: ignore[arg-type]


def test_odd_names_are_refused() -> None:
    """When the function is made, not when a response ends."""
    for make in (total_tokens, separate_tokens, lambda name: priced_tokens(name, input=1, output=1)):
        with pytest.raises(ValidationError, match="limit name"):
            make("no name")
    with pytest.raises(ValidationError, match="at least one"):
        separate_tokens(None, None, None)
