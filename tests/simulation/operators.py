"""Operators among the clients: they top up, reset and forgive, lose replies, and send the same again.

The ideal bucket is given what a verb says that it gave the first time it is written, and nothing for whatever
else is written under the same key. So a gift that counts twice is more than is right.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, NamedTuple

from tests.simulation.actors import Timed, idle
from tests.simulation.ideal import Intent
from tests.simulation.simulation import Network, Process, Simulation
from tests.simulation.waiting import ended_limits
from zae_limiter.engine.bucket_view import in_line
from zae_limiter.engine.line_over import unbooked
from zae_limiter.engine.posting import Posting
from zae_limiter.exceptions import RateLimiterUnavailable
from zae_limiter.models.changes import BucketChange
from zae_limiter.repository import Repository
from zae_limiter.repository_protocol import Item, Key, Outcome, Update, Write
from zae_limiter.schema import (
    BOOKED,
    booking_attributes,
    bucket_key,
    bucket_limit_names,
    limit_attributes,
    number,
    sk_state,
)

ONCE = "#ONCE#"


class Errand(NamedTuple):
    """Something that somebody asks for, as often as it takes."""

    verb: str
    arguments: tuple[Any, ...]
    key: str

    def sent(self, repository: Repository) -> Coroutine[Any, Any, BucketChange]:
        verb: Callable[..., Coroutine[Any, Any, BucketChange]] = getattr(repository, self.verb)
        return verb(*self.arguments, key=self.key)


class Sent(NamedTuple):
    """One transaction on its way, by the key of its verb."""

    key: str
    number: int
    last: Write
    given: Counter[str]
    """What all shards got that were seen so far."""


class Operators:
    """All operators of a world, and what they have given."""

    def __init__(
        self,
        simulation: Simulation,
        intents: dict[int, Intent],
        seed: int,
        items: Mapping[Key, Item],
    ) -> None:
        self._simulation, self._intents, self._items = simulation, intents, items
        self.dice = random.Random(f"operators {seed}")
        """Of their own, so that a world in which nobody gives is the same with and without them."""
        self._errands: list[Errand] = []
        self._answers: dict[str, BucketChange] = {}
        self._under_way: dict[int, tuple[Write, Sent]] = {}
        self._first: dict[str, int] = {}
        """Which transaction was the first to be written, by its key."""
        self._given: Counter[tuple[str, str]] = Counter()
        self._transactions = 0

    def send(self, writes: Sequence[Write], process: Process) -> None:
        """A transaction sets out."""
        keys = [write.key.sort for write in writes if write.key.sort.startswith(ONCE)]
        if keys:
            self._transactions += 1
            client_ms = process.honest_ms(process.world.now_ms())
            shards = [write for write in writes if write.key.sort == sk_state()]
            sent = Sent(keys[0], self._transactions, (shards or writes)[-1], Counter())
            for write in shards:
                self._under_way[id(write)] = write, sent
                self._intents[id(write)] = Intent(write, {}, client_ms)

    def judged(self, intent: Intent, before: Item | None, after: Item) -> Intent:
        """An intent with what it gives, if it is a gift, and was not given before.

        All shards were written at once, so what they hold together is judged when all of them were seen.
        """
        _, sent = self._under_way.pop(id(intent.write), (None, None))
        if sent is None or before is None:
            return intent
        given = _given(intent.write, before, after)
        if self._first.setdefault(sent.key, sent.number) != sent.number:
            given = {}
        sent.given.update(given)
        intent = intent._replace(together=sent.given if intent.write is sent.last else None)
        self._given.update({(sent.key, name): amount for name, amount in given.items()})
        self._simulation.faults["given"] += 1
        self._simulation.faults["bookings ended"] += bool(ended_limits(before, after))
        return intent._replace(credit=given, postings=(Posting(credit=given),))

    async def operate(self, repository: Repository, resource: str, entities: Sequence[str]) -> None:
        """Run errands: new ones, and those that somebody has sent before."""
        for _ in range(self.dice.choice((8, 16))):
            await idle(self._simulation, 6)
            errand = self._errand(repository.namespace_id, resource, entities)
            for _ in range(3):
                try:
                    answer = await errand.sent(repository)
                except RateLimiterUnavailable:
                    self._simulation.faults["verb lost"] += 1
                    continue  # as whoever wants an answer does
                first = self._answers.setdefault(errand.key, answer)
                assert answer == first, f"{errand} was answered {first}, and then {answer}"
                break

    def _errand(self, namespace_id: str, resource: str, entities: Sequence[str]) -> Errand:
        dice = self.dice
        if self._errands and dice.random() < 0.3:
            self._simulation.faults["verb repeated"] += 1
            return dice.choice(self._errands)
        verb, whose = dice.choice(("top_up", "top_up", "reset", "forgive")), (dice.choice(entities), resource)
        keys = {who: bucket_key(namespace_id, who, resource) for who in entities}
        now_ms = self._simulation.now_ms
        waited_for = [who for who, key in keys.items() if in_line(self._items.get(key) or {}, now_ms)]
        if waited_for and dice.random() < 0.9:
            verb, whose = dice.choice(("reset", "reset", "forgive")), (dice.choice(waited_for), resource)
        limits = dice.choice((("fast",), ("slow",), ("fast", "slow")))
        amounts = {name: dice.choice((1, 4, 30)) for name in limits}
        arguments = (*whose, amounts if verb == "top_up" else list(limits))
        self._errands.append(Errand(verb, arguments, f"errand-{len(self._errands)}"))
        return self._errands[-1]

    def check(self) -> None:
        """Whatever was answered was given, to the token, and nothing else."""
        for key, answer in self._answers.items():
            for name, tokens in answer.given.items():
                given = self._given[f"{ONCE}{key}", name]
                assert abs(given - tokens * 1000) < 1000, f"{answer} gave {given} of {name}"


def _given(write: Write, before: Item, after: Item) -> dict[str, int]:
    """What a gift adds to each limit, be it there for all or set aside."""
    assert isinstance(write, Update)
    ended, given = ended_limits(before, after), {}
    is_over = BOOKED in before and BOOKED not in after and not ended
    found = unbooked(before) if is_over else before
    for name in bucket_limit_names(after):
        if name in ended:
            tokens, back = limit_attributes(name).tk, booking_attributes(name).back
            added = number(after, tokens) - number(before, tokens) - number(before, back)
            given[name] = max(0, added)  # what was set aside may have flown over
            continue
        attributes = limit_attributes(name).tk, booking_attributes(name).back
        given[name] = sum(number(after, one) - number(found, one) for one in attributes if one in after)
    return {name: amount for name, amount in given.items() if amount}


class Desk(Timed):
    """The way of an operator to the store."""

    def __init__(self, process: Process, network: Network, operators: Operators) -> None:
        super().__init__(process, network)
        self._operators = operators

    async def transact_write(self, writes: Sequence[Write]) -> list[Outcome]:
        self._operators.send(writes, self._process)
        return await super().transact_write(writes)
