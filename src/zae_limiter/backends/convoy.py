"""Calls that set out together: what many tasks ask of a server at the same time goes there as one request.

A server answers a request of thirty writes nearly as fast as one of a single write, and the client pays for
sending and waiting once. So who comes while as many requests are under way as there are ways waits for the
next one, and all who wait then travel together. Nobody waits for company: alone, a call leaves at once.
Where many ask, they share the ways: all in one request, they would come back and ask again together, and
client and server would work by turns.

The convoy knows nothing of what it carries. Each passenger has its own answer or failure, and its own
deadline; one who is cancelled before it set out has asked for nothing.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, NamedTuple, TypeVar

P = TypeVar("P")
A = TypeVar("A")

SHARE_MIN = 16
"""So few travel together in any case: a request has a price of its own."""


class Passenger(NamedTuple, Generic[P, A]):
    asked: P
    weight: int
    answer: asyncio.Future[A]


class Convoy(Generic[P, A]):
    """Carries what is asked on one event loop to ``send``, which returns an answer for each or raises."""

    def __init__(
        self,
        send: Callable[[Sequence[P]], Awaitable[Sequence[A]]],
        ways: int,
        weight_max: int,
        refuse: Callable[[P], A | None] = lambda _: None,  # answers who is too late to set out
    ) -> None:
        self._send, self._ways, self._weight_max, self._refuse = send, ways, weight_max, refuse
        self._waiting: deque[Passenger[P, A]] = deque()
        self._under_way: set[asyncio.Task[None]] = set()
        self._asking = 0  # how many wait or are under way
        self._leaving = False

    @property
    def is_idle(self) -> bool:
        return not self._waiting and not self._under_way and not self._leaving

    def ride(self, asked: P, weight: int = 1) -> asyncio.Future[A]:
        """The answer to what is asked, once somebody awaits it."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[A] = loop.create_future()
        self._waiting.append(Passenger(asked, weight, answer))
        self._asking += 1
        if not self._leaving and len(self._under_way) < self._ways:
            self._leaving = True
            loop.call_soon(self._leave)  # with all who come in this turn of the loop
        return answer

    def _leave(self) -> None:
        self._leaving = False
        while self._waiting and len(self._under_way) < self._ways:
            carried: list[Passenger[P, A]] = []
            share, room = max(SHARE_MIN, -(-self._asking // self._ways)), self._weight_max
            while self._waiting and len(carried) < share and (not carried or self._waiting[0].weight <= room):
                passenger = self._waiting.popleft()
                refused = None if passenger.answer.done() else self._refuse(passenger.asked)
                if refused is not None:
                    passenger.answer.set_result(refused)
                if passenger.answer.done():  # also of who was cancelled, and asks for nothing
                    self._asking -= 1
                    continue
                carried.append(passenger)
                room -= passenger.weight
            if carried:
                task = asyncio.get_running_loop().create_task(self._carry(carried))
                self._under_way.add(task)
                task.add_done_callback(self._arrived)

    def _arrived(self, task: asyncio.Task[None]) -> None:
        self._under_way.discard(task)
        self._leave()

    async def _carry(self, carried: Sequence[Passenger[P, A]]) -> None:
        try:
            answers = await self._send([passenger.asked for passenger in carried])
        except BaseException as error:
            for passenger in carried:
                if not passenger.answer.done():
                    passenger.answer.set_exception(error)
                    passenger.answer.exception()  # it may be that nobody awaits it any more
            if not isinstance(error, Exception):
                raise
        else:
            for passenger, answer in zip(carried, answers, strict=True):
                if not passenger.answer.done():
                    passenger.answer.set_result(answer)
        finally:
            self._asking -= len(carried)
