"""What is told of the images that an acquire saw: whole tokens, and only of what was shown."""

from typing import Any

from tests.engine.fake_buckets import account_of, image_of
from tests.engine.fake_store import NOW, RATE
from zae_limiter import Limit
from zae_limiter.engine.account import Terms
from zae_limiter.engine.remaining import UNSEEN, statuses_of
from zae_limiter.repository_protocol import Item
from zae_limiter.schema import limit_attributes

TEN = Limit("a", 10, 1, 1)
WIDER = account_of()._replace(terms=Terms({"a": RATE._replace(capacity_milli=99_000)}))
"""Who believes that the bucket is larger than it is."""


def told(*images: Item | None, account: Any = None, after_ms: int = 0) -> list[tuple[str, Limit, int, float]]:
    seen = statuses_of((NOW + after_ms, (account or account_of(),), (images,)))
    return [(s.limit_name, s.limit, s.remaining, s.full_after_seconds) for s in seen]


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
    assert list(statuses_of(UNSEEN)) == []


def test_the_bucket_knows_its_numbers_best() -> None:
    """What a process believed may be old by the time of the reply."""
    assert told(image_of(4_000), account=WIDER) == [("a", TEN, 4, 6.0)]


def test_shards_are_told_as_the_whole_that_they_are_parts_of() -> None:
    """Each knows its share alone, so the limit is the account's; a shard that was not seen has nothing."""
    (both,) = told(image_of(4_000), image_of(3_000), account=WIDER)
    assert both == ("a", Limit("a", 99, 1, 1), 7, 7.0)
    (one,) = told(image_of(4_000), None, account=WIDER)
    assert one == ("a", Limit("a", 99, 1, 1), 4, 6.0)
