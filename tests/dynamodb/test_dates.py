"""DynamoDB's own time: the date of each reply, and the clock that it corrects."""

import pytest

from tests.breaking.test_wrong_clocks import DAY_MS, wall_ms, wrong_by
from tests.dynamodb.peer import Peer, answer
from tests.dynamodb.tables import make_table, session
from tests.engines import dynamodb_local
from tests.stores import drive
from zae_limiter.backends.dynamodb import open_backend
from zae_limiter.backends.dynamodb.transport import Dates, seconds_of
from zae_limiter.repository_protocol import Key, Update
from zae_limiter.runtime.world import World

DATE = "Thu, 01 Jan 2032 12:00:00 GMT"
DATE_MS = 1_956_571_200_000


class Seen:
    """A world that only notes what it is told of the time."""

    def __init__(self) -> None:
        self.told: list[tuple[float, ...]] = []
        self.ticks_ms = 0.0
        self.world = World(ticks_ms=lambda: self.ticks_ms, observe=lambda *told: self.told.append(told))


@pytest.mark.parametrize("date", [DATE, DATE.lower()])
def test_a_date_is_worth_a_second(date: str) -> None:
    """It is cut to the second: the clock showed that second somewhere between request and reply."""
    seen = Seen()
    dates = Dates(seen.world)
    for seen.ticks_ms in (50.0, 90.0):
        dates.read(date, seen.ticks_ms - 40)
    assert seen.told == [(DATE_MS, DATE_MS + 1_000, at_ms - 40, at_ms) for at_ms in (50.0, 90.0)]


@pytest.mark.parametrize(
    "date", [None, "", "yesterday", "Thu, 99 Foo 2032 12:00:00 GMT", "Thu, 01 Jan 99999 12:00:00 GMT", "\xff"]
)
def test_a_date_that_is_none_says_nothing(date: str | None) -> None:
    seen = Seen()
    Dates(seen.world).read(date, 0)
    assert seen.told == []
    assert date is None or seconds_of(date) is None


@pytest.mark.parametrize("wrong_ms", [-DAY_MS, DAY_MS])
@pytest.mark.parametrize("transport", ["lean", "boto"])
@pytest.mark.parametrize("sync", [True, False], ids=["sync", "async"])
def test_a_reply_corrects_the_clock(sync: bool, transport: str, wrong_ms: int) -> None:
    """On either transport, and a second request is not needed."""

    async def run() -> None:
        world = wrong_by(wrong_ms).for_store()
        url = dynamodb_local.url(make_table(), timeout_ms=60_000, transport=transport)
        backend = open_backend(url, sync=sync, world=world, session=session(sync))
        since_ms = world.ticks_ms()
        await backend.ping()
        took_ms = world.ticks_ms() - since_ms
        error_ms = world.now_ms() - wall_ms()
        await backend.close()
        assert abs(error_ms) <= 1_000 + took_ms + 50

    drive(sync, run())


@pytest.mark.parametrize("transport", ["lean", "boto"])
@pytest.mark.parametrize("sync", [True, False], ids=["sync", "async"])
@pytest.mark.parametrize(
    ("status", "code", "counts"),
    [
        ("400 Bad Request", "AccessDeniedException", True),
        ("500 Internal Server Error", "InternalServerError", False),
    ],
)
def test_a_refusal_has_a_date_too(sync: bool, transport: str, status: str, code: str, counts: bool) -> None:
    """It comes from DynamoDB as well; but who is broken may be wrong about the time, too."""

    body = {"__type": f"com.amazonaws.dynamodb.v20120810#{code}", "message": "no"}

    async def run(peer: Peer) -> None:
        seen = Seen()
        at = f"endpoint_url={peer.url}&timeout_ms=20000&transport={transport}"
        backend = open_backend(
            f"dynamodb://table?region=eu-west-1&{at}", sync=sync, world=seen.world, session=session(sync)
        )
        peer.say(answer(body, status, {"Date": DATE}))
        (outcome,) = await backend.write_each([Update(Key("p", "s"), {"n": 1})])
        await backend.close()
        assert outcome.failure is not None
        assert [told[0] for told in seen.told] == ([DATE_MS] if counts else [])

    with Peer().running() as peer:
        drive(sync, run(peer))
