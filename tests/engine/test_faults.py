"""A fault at every call that a leader makes: everybody has an answer, and the line goes on.

A profiler raises at the first call, the second, the third, until the story ends before it is hit. What is
called does not matter; that it may be a mistake in our own code, or memory that ran out, does.
"""

import asyncio
import contextlib
import gc
import inspect
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import Any
from unittest import mock

import pytest

from tests.engine.fake_store import (
    KEY,
    OTHER,
    Scripted,
    Store,
    account_of,
    call_of,
    claim,
    group_of,
    image_of,
    in_line,
    is_busy,
    need,
    outcomes,
    release,
    writer_of,
)
from zae_limiter.engine.group_commit import BucketWriter
from zae_limiter.engine.posting import Order
from zae_limiter.engine.visit import Visit
from zae_limiter.engine.waiting_room import Courtesy
from zae_limiter.exceptions import RateLimiterUnavailable
from zae_limiter.repository_protocol import Outcome, Write
from zae_limiter.runtime.colour import run_sync
from zae_limiter.runtime.loops import Asyncio

pytestmark = pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")
"""A fault can come before a coroutine has begun."""

CALLS_MAX = 5_000


@pytest.fixture(autouse=True)
def _leave_no_garbage() -> Iterator[None]:
    """What was never awaited is collected here, and not in the test of somebody else."""
    yield
    gc.collect()


class Fault(Exception):
    """Something that nobody expects."""


class Injector:
    """Raises at a call that the package makes."""

    def __init__(self, at: int) -> None:
        self.at, self.calls = at, 0

    @property
    def is_over(self) -> bool:
        """Whether the story ended before it could be hit."""
        return self.calls < self.at

    def __enter__(self) -> "Injector":
        sys.setprofile(self._see)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def _see(self, frame: FrameType, event: str, called: Any) -> None:
        if event == "c_call" and called.__name__ in ("__exit__", "release"):
            return  # a lock that cannot be given back is beyond help
        code = frame.f_code
        if code.co_flags & inspect.CO_GENERATOR:
            return  # it may be on its way out, and nobody would hear
        if event in ("call", "c_call") and "/zae_limiter/" in code.co_filename:
            self.calls += 1
            if self.calls == self.at:
                raise Fault


def unharmed(act: Callable[[], None]) -> Callable[[], None]:
    """What somebody else does meanwhile, to whom nothing happens."""

    def acted() -> None:
        profiler = sys.getprofile()
        sys.setprofile(None)
        act()
        sys.setprofile(profiler)

    return acted


def at_every_call(story: Callable[[Injector], None]) -> None:
    for at in range(1, CALLS_MAX):
        injector = Injector(at)
        story(injector)
        if injector.is_over:
            assert at > 50
            return
    raise AssertionError("the story never ends")


def end_all(writer: BucketWriter, visits: Sequence[Visit]) -> None:
    """Let everybody who is left come to its end; nobody waits for somebody who is not there."""
    for visit in visits:
        groups, signal = call_of(writer, visit)
        assert signal is None, "it waits for ever"
        if groups:
            run_sync(visit.run())
    assert not is_busy(writer, KEY)
    for outcome in outcomes(visits):
        assert outcome is not None


def taken(outcomes: Sequence[Outcome | None], orders: Sequence[Order]) -> tuple[int, int]:
    """The least and the most that can be gone from the bucket by what everybody was told."""
    least = most = 0
    for outcome, order in zip(outcomes, orders, strict=True):
        assert outcome is not None
        amount = order.posting.need["a"]
        unknown = outcome.failure is not None and outcome.failure.ambiguous
        least += amount if outcome.applied else 0
        most += amount if outcome.applied or unknown else 0
    return least, most


def test_a_fault_at_any_call_of_a_leader_leaves_nobody_without_an_answer() -> None:
    """Its group, those who came later, and who does not fit; what went out unseen is told as unknown."""
    orders = need(4_000), need(5_000), need(9_000)

    def story(injector: Injector) -> None:
        store = Store(e=image_of())
        writer = writer_of(store)
        visits, group = group_of(writer, *orders)
        with contextlib.suppress(Fault), injector:
            run_sync(writer.serve([group]))
        end_all(writer, visits)
        least, most = taken(outcomes(visits), orders)
        assert least <= 10_000 - store.tokens() <= most

    at_every_call(story)


@pytest.mark.parametrize("binding", [False, True])
@pytest.mark.parametrize("followers", [0, 1])
def test_a_fault_at_any_call_of_a_visit_is_returned_beside_its_outcomes(
    binding: bool, followers: int
) -> None:
    """Alone, or in line behind somebody, with others behind it, at two buckets."""
    later = [need(2_000) for _ in range(followers)]

    def story(injector: Injector) -> None:
        store = Store(e=image_of(), f=image_of())
        writer = writer_of(store)
        others: list[Visit] = []

        def come() -> None:
            others.extend(in_line(writer, *later))
            release(writer, KEY)

        if followers:
            claim(writer, KEY)
            writer.colour = Scripted(unharmed(come))
        orders = [need(3_000), need(1_000, account_of(OTHER))][: 1 + followers]
        told, interruption, error = list[Outcome](), None, None
        work = writer.post(orders, binding=binding)
        try:
            with injector:
                told, interruption = run_sync(work)
        except Fault as fault:  # before it began
            work.close()
            error = fault
            told = [Outcome(False, None) for _ in orders]
        if is_busy(writer, KEY) and not others and followers:
            release(writer, KEY)
        end_all(writer, others)
        assert injector.is_over is (interruption is None and error is None)
        least, most = taken([*told[:1], *outcomes(others)], [*orders[:1], *later[: len(others)]])
        assert least <= 10_000 - store.tokens() <= most
        if injector.is_over:
            assert all(outcome.applied for outcome in told)

    at_every_call(story)


@pytest.mark.parametrize("busy", [False, True])
def test_a_fault_at_any_call_of_a_single_order_is_returned_beside_its_outcome(busy: bool) -> None:
    order = need(3_000)

    def story(injector: Injector) -> None:
        store = Store(e=image_of())
        writer = writer_of(store)
        lost = writer.refunds_lost
        if busy:
            claim(writer, KEY)
            writer.colour = Scripted(unharmed(lambda: release(writer, KEY)))
        outcome: Outcome | None = Outcome(False, None)
        try:
            with injector:
                outcome, _ = run_sync(writer.post_one(order))
        except Fault:  # before it began
            pass
        if is_busy(writer, KEY):
            assert busy, "somebody else leads"
            release(writer, KEY)
        assert not is_busy(writer, KEY)
        least, most = taken([outcome], [order])
        assert least <= 10_000 - store.tokens() <= most
        assert (most > least) is (writer.refunds_lost > lost), "who is interrupted is told nothing else"

    at_every_call(story)


def test_a_fault_at_any_call_of_a_transaction_tells_what_became_of_it() -> None:
    orders = need(3_000), need(1_000, account_of(OTHER))

    def story(injector: Injector) -> None:
        store = Store(e=image_of(), f=image_of())
        writer = BucketWriter(store, store.clock.world)
        told = [Outcome(False, None) for _ in orders]
        try:
            with injector:
                told, _ = run_sync(writer.post_together(orders, Courtesy(math.inf)))
        except Fault:  # before it began
            pass
        least, most = taken(told, orders)
        assert least <= 20_000 - store.tokens() - store.tokens(OTHER) <= most
        assert (most > least) is (writer.refunds_lost > 0)

    at_every_call(story)


@pytest.mark.parametrize(
    "place",
    [
        "group_commit.BucketWriter._shape",
        "seen_buckets.SeenBuckets.learn",
        "group_commit.BucketWriter._judge",
        "group_commit.BucketWriter._chosen",
        "group_commit.BucketWriter._fitting",
        "group_commit.write_for",
        "group_commit.merged",
        "group_commit.fitting",
        "line.Lines.call_of",
        "line.Lines._line_up",
        "line.Lines.send",
        "line.Lines.tell",
    ],
)
def test_a_fault_that_stays_answers_everybody(place: str) -> None:
    """One after another leads, fails, and is told so; then the bucket is idle."""
    store = Store(e=image_of())
    writer = writer_of(store)
    visits, group = group_of(writer, need(4_000), need(5_000), need(6_000))
    told: list[Outcome] = []
    with mock.patch(f"zae_limiter.engine.{place}", side_effect=Fault):
        with contextlib.suppress(Fault):
            run_sync(writer.serve([group]))
        for visit in visits:
            told += run_sync(visit.run())
        (lone,), interruption = run_sync(writer.post([need(1_000)]))
    assert len(told) == 3
    assert isinstance(interruption, Fault) or lone.applied or place.endswith(("tell", "fitting", "merged"))
    assert not is_busy(writer, KEY)
    least, most = taken([*told, lone], [need(4_000), need(5_000), need(6_000), need(1_000)])
    assert least <= 10_000 - store.tokens() <= most
    (after,), _ = run_sync(writer.post([need(1)]))
    assert after.applied or after.item is not None


class OnLoop(Store):
    """A store that answers some turns later."""

    async def write_each(self, writes: Sequence[Write]) -> list[Outcome]:
        await asyncio.sleep(0)
        replies = await super().write_each(writes)
        await asyncio.sleep(0)
        return replies


def test_a_fault_at_any_call_of_tasks_leaves_none_waiting() -> None:
    """Each of them is answered or raises, and the bucket is idle in the end."""
    orders = [need(2_000), need(3_000), need(4_000), need(8_000)]

    async def tasks(injector: Injector, writer: BucketWriter) -> list[Any]:
        posts = [asyncio.ensure_future(writer.post([order])) for order in orders]
        with injector:
            done, waiting = await asyncio.wait(posts, timeout=60)
        assert not waiting
        return [post.exception() or post.result() for post in posts if post in done]

    def story(injector: Injector) -> None:
        store = OnLoop(e=image_of())
        writer = writer_of(store)
        writer.colour = Asyncio()
        ends = asyncio.run(tasks(injector, writer))
        assert not is_busy(writer, KEY)
        faults, told = 0, []
        for end in ends:
            if isinstance(end, Fault):
                faults, told = faults + 1, [*told, Outcome(False, None)]
            else:
                (outcome,), interruption = end
                faults += interruption is not None
                told.append(outcome)
                failure = outcome.failure
                assert failure is None or isinstance(failure, RateLimiterUnavailable)
        assert faults == (0 if injector.is_over else 1), "a fault is told to one"
        least, most = taken(told, orders)
        assert least <= 10_000 - store.tokens() <= most

    at_every_call(story)
