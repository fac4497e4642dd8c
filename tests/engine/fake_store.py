"""One writer under test: a store that is watched, a bucket of ten tokens, orders on it."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from zae_limiter import RateLimitExceeded
from zae_limiter.backends.memory import MemoryBackend
from zae_limiter.backends.shelf import Shelf
from zae_limiter.engine.account import Account, Terms
from zae_limiter.engine.demand import BucketDemand
from zae_limiter.engine.group_commit import BucketWriter
from zae_limiter.engine.law import Rate, balance
from zae_limiter.engine.line import Lines, Ticket
from zae_limiter.engine.posting import Order, Posting
from zae_limiter.engine.refusal import remembered
from zae_limiter.engine.take import take as take_from
from zae_limiter.engine.visit import Visit
from zae_limiter.repository_protocol import Item, Key, Outcome, Write
from zae_limiter.runtime.colour import Blocking, Colour, ForkSafe, Signal, run_sync
from zae_limiter.schema import bucket_key, limit_attributes, number, stored_rate
from zae_limiter.testing import ManualClock
from zae_limiter.testing.stores import Wrapper

NOW = 1_700_000_000_000
RATE = Rate(10_000, 1_000, 1_000)
"""Ten tokens, one a second: a millitoken a millisecond."""
KEY, OTHER, THIRD = (bucket_key("ns", entity_id, "r") for entity_id in "efg")


class Store(Wrapper):
    """A store that notes what it is asked, and lets a test act while a call is on its way."""

    def __init__(self, **images: dict[str, Any]) -> None:
        self.clock, self.shelf = ManualClock(NOW), Shelf()
        backend = MemoryBackend(self.clock.world, self.shelf)
        backend.capabilities = replace(backend.capabilities, atomic_batches=False)
        super().__init__(backend)
        for entity_id, image in images.items():
            self.shelf.items[bucket_key("ns", entity_id, "r")] = image
        self.calls: list[tuple[str, list[Any]]] = []
        self.meanwhile: Callable[[], None] = lambda: None
        self.replies: list[Outcome] = []

    def tokens(self, key: Key = KEY) -> Any:
        return self.shelf.items[key]["b_a_tk"]

    def held(self, key: Key = KEY) -> int:
        """What the bucket holds now."""
        item = self.shelf.items[key]
        rate = stored_rate(item, "a")
        assert rate is not None
        return balance(rate, number(item, "b_a_tk"), number(item, "rf"), self.clock.now_ms)

    @property
    def sent(self) -> list[list[int]]:
        """What each call added to the tokens of each bucket."""
        return [[write.add.get("b_a_tk") for write in given] for _, given in self.calls]

    async def batch_get(self, keys: Sequence[Key]) -> list[Item | None]:
        self.calls.append(("batch_get", list(keys)))
        return await super().batch_get(keys)

    async def write_each(self, writes: Sequence[Write]) -> list[Outcome]:
        self.calls.append(("write_each", list(writes)))
        self.meanwhile()
        return self.replies or await super().write_each(writes)

    async def transact_write(self, writes: Sequence[Write]) -> list[Outcome]:
        self.calls.append(("transact_write", list(writes)))
        return self.replies or await super().transact_write(writes)


def image_of(a: int = 10_000, /, **more: Any) -> dict[str, Any]:
    return {"rf": NOW, "cv": 1, **dict(zip(limit_attributes("a"), (a, *RATE[:3], 0), strict=True)), **more}


def account_of(key: Key = KEY, /, version: int | None = 1, rate: Rate = RATE, **more: Any) -> Account:
    return Account(key, "ns", "e", "r", Terms({"a": rate}, version), **more)


def need(amount: int, account: Account | None = None) -> Order:
    return Order(account or account_of(), Posting(need={"a": amount}))


def debit(amount: int, account: Account | None = None) -> Order:
    return Order(account or account_of(), Posting(debit={"a": amount}))


def credit(amount: int, account: Account | None = None, name: str = "a") -> Order:
    return Order(account or account_of(), Posting(credit={name: amount}))


class Scripted(Blocking):
    """Waiting is what a test does: it is told for how long, and may give the signal or raise."""

    def __init__(self, *steps: Callable[[], None]) -> None:
        super().__init__()
        self.steps, self.waits = list(steps), list[float | None]()
        self.patient, self.left = True, list[tuple[float, Any]]()
        """What is not waited for to its end, if it is not."""

    async def at_most(self, seconds: float, coroutine: Any) -> Any:
        self.left.append((seconds, coroutine))
        return await coroutine if self.patient else None

    def signal(self) -> Any:
        return Flag(self)


class Flag:
    """A signal that nobody really waits for."""

    def __init__(self, colour: Scripted) -> None:
        self.colour, self.given = colour, False

    def give(self) -> None:
        self.given = True

    async def wait(self, seconds: float | None = None) -> None:
        self.colour.waits.append(seconds)
        if self.colour.steps:
            self.colour.steps.pop(0)()


class Bounded(Lines):
    """Lines that do not go on for ever when something is wrong with them."""

    def __init__(self) -> None:
        super().__init__()
        self._calls = 0

    def call_of(self, visit: Visit, colour: Colour) -> tuple[list[list[Ticket]], Signal | None]:
        self._calls += 1
        if self._calls > 1_000:
            raise GeneratorExit  # anything else would be taken for an interruption
        return super().call_of(visit, colour)


def writer_of(store: Store) -> BucketWriter:
    """A writer that has seen all there is."""
    writer = BucketWriter(store, store.clock.world)
    writer.colour, writer._lines = Scripted(), ForkSafe(Bounded)
    run_sync(writer.look(tuple(store.shelf.items)))
    store.calls.clear()
    return writer


def is_busy(writer: BucketWriter, key: Key) -> bool:
    """Whether a write to this bucket is in flight."""
    return key in writer.lines.by_key


def claim(writer: BucketWriter, key: Key) -> Ticket:
    """Make a bucket busy, as somebody does who came alone."""
    ticket = Ticket(need(1, account_of(key)), lambda: False)
    assert writer.lines.claim(ticket)
    return ticket


def release(writer: BucketWriter, key: Key) -> None:
    """Let whoever leads at a bucket be done."""
    writer.lines.hand_over([writer.lines.by_key[key].leader])


def call_of(writer: BucketWriter, visit: Visit) -> tuple[list[list[Ticket]], Signal | None]:
    """What a visitor has to do next."""
    return writer.lines.call_of(visit, writer.colour)


def in_line(writer: BucketWriter, *orders: Order) -> list[Visit]:
    """Visits in line for a bucket that is busy."""
    assert is_busy(writer, orders[0].account.key)
    visits = [Visit(writer, [order], binding=False) for order in orders]
    for visit in visits:
        assert call_of(writer, visit)[0] == []
        visit.signal = None  # nobody waits yet
    return visits


def group_of(writer: BucketWriter, *orders: Order) -> tuple[list[Visit], list[Ticket]]:
    """Visits whose first has been asked to lead them all."""
    claim(writer, orders[0].account.key)
    visits = in_line(writer, *orders)
    release(writer, orders[0].account.key)
    (group,) = call_of(writer, visits[0])[0]
    return visits, group


def waiting(writer: BucketWriter, visit: Visit) -> Signal:
    """What a visitor waits for who has nothing to do."""
    groups, signal = call_of(writer, visit)
    assert groups == []
    assert signal is not None
    assert not signal.given
    return signal


def outcomes(visits: Sequence[Visit]) -> list[Outcome | None]:
    return [visit.tickets[0].outcome for visit in visits]


def throw_away() -> None:
    """What happens to a coroutine that nobody waits for any more."""
    raise GeneratorExit


async def no_news(account: Account) -> Account:
    raise AssertionError(f"nobody changed the limits of {account.entity_id}")


def take(writer: BucketWriter, *demands: BucketDemand, **more: Any) -> tuple[BucketDemand, ...]:
    """What an acquire takes that goes by writes."""
    if writer.refusals and (refusal := remembered(writer, demands)):
        raise refusal
    charge = run_sync(take_from(writer, demands, more.pop("renew", no_news), **more))
    taken = tuple(charge)
    charge.clear()  # the test answers for it
    return taken


def demand(amount: int, account: Account | None = None) -> BucketDemand:
    return BucketDemand(account or account_of(), {"a": amount})


def calls(store: Store) -> list[tuple[str, int]]:
    return [(verb, len(given)) for verb, given in store.calls]


def waits(refused: RateLimitExceeded) -> list[tuple[int, int, float]]:
    return [(s.available, s.requested, s.retry_after_seconds) for s in refused.statuses]
