"""What is told of the images that an acquire saw: whole tokens, and only of what was shown."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.engine.fake_buckets import account_of, image_of
from tests.engine.fake_store import NOW, RATE
from tests.web.limits import limits_of
from zae_limiter import Limit
from zae_limiter.engine.account import Terms
from zae_limiter.engine.bucket_view import level, stored_terms, told_limit
from zae_limiter.engine.phased import terms_at
from zae_limiter.engine.remaining import UNSEEN, Standing, is_as_said, standings_of
from zae_limiter.engine.shares import Spread
from zae_limiter.models.header_data import HeaderData
from zae_limiter.repository_protocol import Item
from zae_limiter.schema import BOOKED, kind_attributes, limit_attributes

TEN = Limit("a", 10, 1, 1)
WIDER = account_of()._replace(terms=Terms({"a": RATE._replace(capacity_milli=99_000)}))
"""Who believes that the bucket is larger than it is."""


def told(*images: Item | None, account: Any = None, after_ms: int = 0) -> list[tuple[str, Limit, int, float]]:
    seen = standings_of((NOW + after_ms, (account or account_of(),), (images,)))
    statuses = [standing.status for standing in seen]
    return [(s.limit_name, s.limit, s.remaining, s.full_after_seconds) for s in statuses]


def test_every_limit_in_whole_tokens() -> None:
    """What is not whole is not there, in debt as well; the wait is exact."""
    two, debt = told(image_of(2_999, -1))
    assert two == ("a", TEN, 2, 7.001)
    assert debt == ("b", Limit("b", 10, 1, 1), -1, 10.001)


def test_it_is_told_of_the_instant_of_the_reply() -> None:
    first, _ = told(image_of(2_000), after_ms=1_500)
    assert first == ("a", TEN, 3, 6.5)
    first, _ = told(image_of(2_000), after_ms=60_000)
    assert first == ("a", TEN, 10, 0.0)


def test_nothing_is_told_of_what_was_not_shown() -> None:
    """No image, as after some transactions; no such limit, or one whose numbers cannot be right."""
    assert told(None) == []
    image = image_of(5_000)
    del image[limit_attributes("b").cp]
    assert told(image) == [("a", TEN, 5, 5.0)]
    assert standings_of(UNSEEN) == []


def test_the_bucket_knows_its_numbers_best() -> None:
    """What a process believed may be old by the time of the reply."""
    assert told(image_of(4_000), account=WIDER) == [("a", TEN, 4, 6.0)]


def test_shards_are_told_as_the_whole_that_they_are_parts_of() -> None:
    """Each knows its share alone, so the limit is the account's; a shard that was not seen has nothing."""
    (both,) = told(image_of(4_000), image_of(3_000), account=WIDER)
    assert both == ("a", Limit("a", 99, 1, 1), 7, 7.0)
    (one,) = told(image_of(4_000), None, account=WIDER)
    assert one == ("a", Limit("a", 99, 1, 1), 4, 6.0)


@st.composite
def buckets(draw: st.DrawFn) -> tuple[Terms, dict[str, Any]]:
    """Terms of limits of any kind, and a bucket that is as they say, or not quite."""
    names = draw(st.lists(st.sampled_from(["a", "b", "c"]), min_size=1, unique=True))
    terms = Terms.of([draw(limits_of(name)) for name in names], draw(st.none() | st.just(1)))
    image: dict[str, Any] = {"cv": 1, **terms_at(terms, NOW).said, "rf": NOW - draw(st.integers(-10, 10**10))}
    for name in names:
        for attribute in (limit_attributes(name).tk, limit_attributes(name).tc):
            image[attribute] = draw(st.integers(-(10**15), 10**15))
    first = terms.rates[names[0]]
    if first.accrual is first.schedule is None and draw(st.booleans()):  # another number is another limit
        image[limit_attributes(names[0]).cp] = draw(st.integers(1_000, 10**6))
    if draw(st.booleans()):
        image |= draw(
            st.fixed_dictionaries(
                {},
                optional={
                    "cv": st.integers(0, 3),
                    "rf": st.just(NOW + 10**9) | st.text(max_size=1),
                    BOOKED: st.integers(NOW - 9_000, NOW + 9_000),
                    limit_attributes(names[0]).tk: st.none(),
                    kind_attributes(names[0]).ac: st.just("month"),
                },
            )
        )
    return terms, image


@given(buckets(), st.integers(0, 10**8))
def test_a_bucket_that_is_as_its_account_says_is_read_like_any_other(
    bucket: tuple[Terms, dict[str, Any]], after_ms: int
) -> None:
    """Every number is the one that its image alone tells, whichever way it was read."""
    (terms, image), now_ms = bucket, NOW + after_ms
    account = account_of()._replace(terms=terms)
    stored = stored_terms(image)
    expected = []
    for name in terms.rates:
        if name in stored.rates:
            at = level(stored, name, image, now_ms)
            limit = told_limit(terms, name, at.rate)
            expected.append(Standing(account, name, limit, Spread([at]), now_ms).status)
    found = standings_of((now_ms, (account,), ((image,),)))
    assert [standing.status for standing in found] == expected
    for standing, status in zip(found, expected, strict=True):
        assert all(getattr(standing, name) == getattr(status, name) for name in ("remaining", "entity_id"))
        told = [name for name in HeaderData.__annotations__ if name != "limit"]
        assert all(getattr(standing, name) == getattr(status, name) for name in told)


def test_a_bucket_that_was_just_taken_from_is_as_its_account_says() -> None:
    """So that the shorter way is the usual one."""
    assert is_as_said(account_of().terms, image_of(2_999, -1), NOW)
    assert not is_as_said(WIDER.terms, image_of(), NOW)


def test_only_those_who_may_be_told_are_read() -> None:
    """Of a family the standings of one, or of all."""
    both = account_of(), account_of("p")
    seen = NOW, both, ((image_of(),), (image_of(),))
    assert {standing.entity_id for standing in standings_of(seen)} == {"e", "p"}
    assert {standing.entity_id for standing in standings_of(seen, ("e",))} == {"e"}
