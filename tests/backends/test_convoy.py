"""Calls that set out together: who travels with whom, and what becomes of each."""

import asyncio
from collections.abc import Sequence

import pytest

from zae_limiter.backends.convoy import SHARE_MIN, Convoy


class Server:
    """Answers every request with its doubled numbers, when it is told to."""

    def __init__(self) -> None:
        self.requests: list[list[int]] = []
        self.gate = asyncio.Event()

    async def send(self, asked: Sequence[int]) -> list[int]:
        self.requests.append(list(asked))
        await self.gate.wait()
        if -1 in asked:
            raise ConnectionError("cut")
        return [2 * number for number in asked]


async def test_who_comes_in_one_turn_of_the_loop_travels_together() -> None:
    """Ten tasks are one request, and each has its own answer."""
    server = Server()
    server.gate.set()
    convoy = Convoy(server.send, ways=2, weight_max=100)

    async def ask(number: int) -> int:
        return await convoy.ride(number)

    assert await asyncio.gather(*map(ask, range(10))) == [2 * n for n in range(10)]
    assert server.requests == [list(range(10))]


async def test_who_comes_while_all_ways_are_taken_waits_for_the_next_request() -> None:
    """At most as many requests are under way as there are ways, and no weight is above the most."""
    server = Server()
    convoy = Convoy(server.send, ways=1, weight_max=3)
    first = convoy.ride(0)
    await asyncio.sleep(0)
    later = [convoy.ride(n) for n in range(1, 6)]
    await asyncio.sleep(0)
    assert server.requests == [[0]]
    server.gate.set()
    assert await asyncio.gather(first, *later) == [0, 2, 4, 6, 8, 10]
    assert server.requests == [[0], [1, 2, 3], [4, 5]]


async def test_what_weighs_more_than_a_convoy_holds_travels_alone() -> None:
    server = Server()
    server.gate.set()
    convoy = Convoy(server.send, ways=1, weight_max=3)
    assert await asyncio.gather(convoy.ride(1), convoy.ride(2, weight=9), convoy.ride(3)) == [2, 4, 6]
    assert server.requests == [[1], [2], [3]]


async def test_who_is_cancelled_before_it_set_out_has_asked_for_nothing() -> None:
    """The others of its convoy are answered as if it had never come."""
    server = Server()
    convoy = Convoy(server.send, ways=1, weight_max=100)
    first = convoy.ride(0)
    await asyncio.sleep(0)
    second, third = convoy.ride(1), convoy.ride(2)
    second.cancel()
    server.gate.set()
    assert await asyncio.gather(first, third) == [0, 4]
    assert server.requests == [[0], [2]]


async def test_who_is_cancelled_on_the_way_does_not_hold_up_the_others() -> None:
    server = Server()
    convoy = Convoy(server.send, ways=1, weight_max=100)
    one, other = convoy.ride(1), convoy.ride(2)
    await asyncio.sleep(0)
    one.cancel()
    server.gate.set()
    assert await other == 4


async def test_a_failure_is_told_to_all_who_travelled_and_nobody_else() -> None:
    server = Server()
    convoy = Convoy(server.send, ways=1, weight_max=100)
    failing = [convoy.ride(-1), convoy.ride(1)]
    await asyncio.sleep(0)
    after = convoy.ride(2)
    server.gate.set()
    for one in failing:
        with pytest.raises(ConnectionError):
            await one
    assert await after == 4


async def test_who_is_too_late_is_told_before_the_others_arrive() -> None:
    """It does not travel, so it does not wait for those who do."""
    server, late = Server(), set[int]()
    convoy = Convoy(server.send, ways=1, weight_max=100, refuse=lambda n: -n if n in late else None)
    first = convoy.ride(1)
    await asyncio.sleep(0)
    second, third = convoy.ride(2), convoy.ride(3)
    late.add(2)
    server.gate.set()
    assert await first == 2
    server.gate.clear()
    assert await second == -2
    assert not third.done()
    server.gate.set()
    assert await third == 6
    assert server.requests == [[1], [3]]


async def test_many_who_ask_at_once_share_the_ways() -> None:
    """Fifty tasks, over and over: once they are under way, each request carries about half of them."""
    carried: list[int] = []

    async def send(asked: Sequence[int]) -> Sequence[int]:
        carried.append(len(asked))
        for _ in range(3):
            await asyncio.sleep(0)
        return asked

    convoy = Convoy(send, ways=2, weight_max=100)

    async def work(number: int) -> None:
        for _ in range(20):
            assert await convoy.ride(number) == number

    await asyncio.gather(*map(work, range(50)))
    assert sum(carried) == 50 * 20
    assert max(carried) <= 25
    assert len(carried) <= 50 * 20 / SHARE_MIN
    carried.clear()
    await asyncio.gather(*map(work, range(SHARE_MIN)))
    assert carried == [SHARE_MIN] * 20


async def test_who_gave_up_does_not_count_among_those_who_share() -> None:
    """However it ended: cancelled before it set out or on the way, too late, or failed."""
    server, late = Server(), {1}
    convoy = Convoy(server.send, ways=2, weight_max=100, refuse=lambda n: -n if n in late else None)
    given_up = [convoy.ride(n) for n in (0, 1, -1, 2) for _ in range(10)]
    for ride in given_up[:10]:
        ride.cancel()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    for ride in given_up[30:]:
        ride.cancel()
    server.gate.set()
    await asyncio.gather(*given_up, return_exceptions=True)
    server.requests.clear()
    await asyncio.gather(*(convoy.ride(n) for n in range(2, 52)))
    assert [len(request) for request in server.requests] == [25, 25]
