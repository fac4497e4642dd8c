"""What the demo tells: four acts on a real limiter, and the checks that make them true.

An act is a generator of what happens, so that whoever shows it can do so while it happens. Time is
real: between two lines some milliseconds pass, and more on a busy machine. So no check compares with
the number of an ideal run; each allows exactly for what the limits gain between the moments before
and after a call. What was used is known to the token, whatever the time, so that check is exact.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from ..bucket import Rate, calculate_available, gain
from ..exceptions import RateLimitExceeded
from ..models import Limit, UsageWindow
from ..runtime.world import World
from ..sync import SyncRateLimiter

RESOURCE = "chat"
CALLS = Limit.custom("calls", capacity=5, refill_amount=1, refill_period_seconds=1)
TOKENS = Limit.custom("tokens", capacity=1000, refill_amount=500, refill_period_seconds=1)
TEAM_CALLS = Limit.custom("calls", capacity=6, refill_amount=1, refill_period_seconds=1)

BURST_MAX = 20
SAMPLE_MS = 200
AFTERWARDS_MS = 500


class Untrue(Exception):
    """The limiter did something else than was told."""


class Miscounted(Untrue):
    """The aggregator counted something else than was used."""


class Step(NamedTuple):
    """One line of the story; ``wait_seconds`` is ``None`` where nobody has to wait."""

    step: str
    asked: Mapping[str, int]
    answer: str
    wait_seconds: float | None
    left: Mapping[str, int]


class Sample(NamedTuple):
    """A balance at a moment, counted from the first sample."""

    at_ms: int
    left: int


Event: TypeAlias = Step | Sample


class Usage(NamedTuple):
    """What an entity used of a limit, net of what was given back."""

    limit: str
    entity_id: str
    used: int


class Answer(NamedTuple):
    """What an acquire came to, and between which two moments."""

    before_ms: int
    after_ms: int
    refusal: RateLimitExceeded | None

    @property
    def refused(self) -> RateLimitExceeded:
        if self.refusal is None:
            raise Untrue("a request was admitted that should have been refused")
        return self.refusal

    @property
    def wait_ms(self) -> int:
        return round(self.refused.retry_after_seconds * 1000)


class Reading(NamedTuple):
    """The tokens of an entity between two moments."""

    before_ms: int
    after_ms: int
    tokens: int


@dataclass
class Stage:
    """A limiter, the clock it goes by, and a way to let time pass."""

    limiter: SyncRateLimiter
    world: World
    sleep: Callable[[float], None]
    checks: int = field(default=0, init=False)
    parents: dict[str, str] = field(default_factory=dict, init=False)
    used: Counter[tuple[str, str]] = field(default_factory=Counter, init=False)
    """What the acts took, by limit and entity."""

    def require(self, condition: bool, claim: str) -> None:
        """Go on only if a claim holds."""
        self.checks += 1
        if not condition:
            raise Untrue(f"this should hold and does not: {claim}")

    def ask(self, entity_id: str, amounts: Mapping[str, int]) -> Answer:
        """Acquire, and be done with it at once."""
        before_ms, refusal = self.world.now_ms(), None
        try:
            with self.limiter.acquire(entity_id, RESOURCE, amounts):
                self.note(entity_id, amounts)
        except RateLimitExceeded as error:
            refusal = error
        return Answer(before_ms, self.world.now_ms(), refusal)

    def note(self, entity_id: str, amounts: Mapping[str, int]) -> None:
        """Remember what was taken; what a child takes, its parent gives too."""
        for one in (entity_id, self.parents.get(entity_id)):
            if one is not None:
                self.used.update({(name, one): amount for name, amount in amounts.items()})

    def admitted(self, entity_id: str, amounts: Mapping[str, int], claim: str) -> None:
        """Acquire; a refusal makes the claim untrue."""
        self.require(self.ask(entity_id, amounts).refusal is None, claim)

    def read(self, entity_id: str) -> Reading:
        before_ms = self.world.now_ms()
        tokens = self.left(entity_id)[TOKENS.name]
        return Reading(before_ms, self.world.now_ms(), tokens)

    def left(self, entity_id: str) -> dict[str, int]:
        return self.limiter.available(entity_id, RESOURCE)

    def calls_of(self, *entity_ids: str) -> dict[str, int]:
        """The calls in each entity's own bucket, whatever its parent has."""
        found = {}
        for one in entity_ids:
            states = self.limiter.repository.get_bucket(one, RESOURCE)
            mine = [calculate_available(s, self.world.now_ms()) for s in states if s.limit_name == CALLS.name]
            found[one] = mine[0] if mine else CALLS.capacity
        return found

    def sleep_until(self, moment_ms: int) -> None:
        while (left_ms := moment_ms - self.world.now_ms()) > 0:
            self.sleep(left_ms / 1000)


def burst(stage: Stage) -> Iterator[Step]:
    """Ask until it is refused, and then wait as long as the refusal says."""
    stage.limiter.repository.set_resource_defaults(RESOURCE, [CALLS, TOKENS])
    amounts, started_ms = {CALLS.name: 1, TOKENS.name: 100}, stage.world.now_ms()
    for n in range(1, BURST_MAX + 1):
        answer = stage.ask("alice", amounts)
        if answer.refusal is not None:
            break
        yield Step(f"request {n}", amounts, "admitted", None, stage.left("alice"))
    admitted = n - 1
    extra = -(-gain(Rate.of(CALLS), started_ms, answer.after_ms) // 1000)
    stage.require(CALLS.capacity <= admitted <= CALLS.capacity + extra, "a burst gets the capacity, no more")
    stage.require(
        [s.limit_name for s in answer.refused.violations] == [CALLS.name], "the calls ran out first"
    )
    yield Step(f"request {n}", amounts, "refused", answer.refused.retry_after_seconds, stage.left("alice"))
    yield from wait_out(stage, "alice", amounts, answer, lambda: stage.left("alice"))


def all_or_nothing(stage: Stage) -> Iterator[Step]:
    """A refusal by one limit takes nothing from the other; more than the capacity never passes."""
    first, second = {CALLS.name: 1, TOKENS.name: 800}, {CALLS.name: 1, TOKENS.name: 700}
    stage.admitted("bob", first, "a fresh bucket is full")
    before = stage.left("bob")
    yield Step("large", first, "admitted", None, before)
    answer = stage.ask("bob", second)
    left = stage.left("bob")
    stage.require(
        [s.limit_name for s in answer.refused.violations] == [TOKENS.name], "only the tokens were short"
    )
    stage.require(left[CALLS.name] >= before[CALLS.name], "a refusal takes nothing")
    yield Step("large again", second, "refused", answer.refused.retry_after_seconds, left)
    yield from wait_out(stage, "bob", second, answer, lambda: stage.left("bob"))
    huge = {TOKENS.name: TOKENS.capacity + 1}
    never = stage.ask("bob", huge).refused.retry_after_seconds
    stage.require(math.isinf(never), "more than the capacity can never pass")
    yield Step("too large", huge, "refused", never, stage.left("bob"))


def cascade(stage: Stage) -> Iterator[Step]:
    """A parent with less left than its child refuses for it."""
    repository = stage.limiter.repository
    repository.create_entity("team")
    repository.set_limits("team", [TEAM_CALLS], RESOURCE)
    for child in ("carol", "dave"):
        repository.create_entity(child, parent_id="team", cascade=True)
        stage.parents[child] = "team"
    five, two = {CALLS.name: 5}, {CALLS.name: 2}

    def left() -> dict[str, int]:
        return stage.calls_of("dave", "team")

    stage.admitted("carol", five, "carol and her team have five calls")
    yield Step("carol", five, "admitted", None, stage.calls_of("carol", "team"))
    answer = stage.ask("dave", two)
    refused_by = [(s.entity_id, s.limit_name) for s in answer.refused.violations]
    stage.require(refused_by == [("team", CALLS.name)], "the team refuses, not dave's own limit")
    stage.require(left()["dave"] == CALLS.capacity, "what dave's own bucket gave was given back")
    yield Step("dave", two, "refused", answer.refused.retry_after_seconds, left())
    yield from wait_out(stage, "dave", two, answer, left)


def debt(stage: Stage) -> Iterator[Event]:
    """Work that cost more than was thought leaves a debt, which is paid off by waiting."""
    estimate, surplus, one = {TOKENS.name: 100}, {TOKENS.name: 1600}, {TOKENS.name: 1}
    started_ms = stage.world.now_ms()
    with stage.limiter.acquire("erin", RESOURCE, estimate) as lease:
        yield Step("estimate", estimate, "admitted", None, {TOKENS.name: stage.read("erin").tokens})
        stage.note("erin", estimate)
        lease.adjust(surplus)
        stage.note("erin", surplus)
    owed = stage.read("erin")
    spent = TOKENS.capacity - estimate[TOKENS.name] - surplus[TOKENS.name]
    stage.require(
        spent <= owed.tokens <= grown(spent, started_ms, owed.after_ms), "all that it cost is debited"
    )
    stage.require(owed.tokens < 0, "an adjustment is never refused and may leave a debt")
    yield Step("real cost", surplus, "adjusted", None, {TOKENS.name: owed.tokens})
    answer = stage.ask("erin", one)
    yield Step(
        "next", one, "refused", answer.refused.retry_after_seconds, {TOKENS.name: stage.read("erin").tokens}
    )
    due_ms = answer.after_ms + answer.wait_ms
    yield from recovery(stage, owed.before_ms, due_ms)
    stage.admitted("erin", one, "a debt is paid off after exactly the wait that was stated")
    yield Step("after the wait", one, "admitted", None, {TOKENS.name: stage.read("erin").tokens})
    yield from recovery(stage, owed.before_ms, due_ms + AFTERWARDS_MS)


def recovery(stage: Stage, origin_ms: int, until_ms: int) -> Iterator[Sample]:
    """Read the balance now and then; it must grow by the rate of its limit and by nothing else."""
    first = stage.read("erin")
    yield Sample(first.before_ms - origin_ms, first.tokens)
    while (next_ms := stage.world.now_ms() + SAMPLE_MS) < until_ms:
        stage.sleep_until(next_ms)
        now = stage.read("erin")
        least = first.tokens + gain(Rate.of(TOKENS), first.after_ms, now.before_ms) // 1000
        most = grown(first.tokens, first.before_ms, now.after_ms)
        stage.require(least <= now.tokens <= most, "a bucket fills at the rate of its limit")
        yield Sample(now.before_ms - origin_ms, now.tokens)
    stage.sleep_until(until_ms)


def grown(tokens: int, since_ms: int, now_ms: int) -> int:
    """The most that whole tokens, which may have been rounded down, can have become."""
    return (tokens * 1000 + 999 + gain(Rate.of(TOKENS), since_ms, now_ms)) // 1000


def wait_out(
    stage: Stage,
    entity_id: str,
    amounts: Mapping[str, int],
    refused: Answer,
    left: Callable[[], Mapping[str, int]],
) -> Iterator[Step]:
    """Look half-way whether the moment has moved; at the moment, ask again."""
    stage.sleep_until(refused.after_ms + refused.wait_ms // 2)
    before_ms = stage.world.now_ms()
    seconds = stage.limiter.time_until_available(entity_id, RESOURCE, amounts)
    after_ms, wait_ms = stage.world.now_ms(), round(seconds * 1000)
    earliest_ms, latest_ms = refused.before_ms + refused.wait_ms, refused.after_ms + refused.wait_ms
    stage.require(after_ms + wait_ms >= earliest_ms, "it is not admitted before the wait is over")
    stage.require(not wait_ms or before_ms + wait_ms <= latest_ms, "the moment it passes does not move away")
    yield Step("half-way", amounts, "not yet" if wait_ms else "now", seconds, left())
    stage.sleep_until(latest_ms)
    stage.admitted(entity_id, amounts, "it is admitted after exactly the wait that was stated")
    yield Step("after the wait", amounts, "admitted", None, left())


def usage(stage: Stage) -> list[Usage]:
    """What was used in all acts as the aggregator counted it, which must be what they took."""
    counted, next_key = Counter[tuple[str, str]](), None
    while True:
        snapshots, next_key = stage.limiter.repository.get_usage_snapshots(
            resource=RESOURCE, window_type=UsageWindow.HOURLY, next_key=next_key
        )
        for one in snapshots:  # two for an entity if an hour ended in between
            counted.update({(name, one.entity_id): amount for name, amount in one.counters.items()})
        if next_key is None:
            break
    wrong = [
        f"{entity_id} used {stage.used[limit, entity_id]} {limit}, {counted[limit, entity_id]} were counted"
        for limit, entity_id in sorted(stage.used.keys() | counted.keys())
        if stage.used[limit, entity_id] != counted[limit, entity_id]
    ]
    if wrong:
        raise Miscounted("; ".join(wrong))
    stage.checks += len(stage.used)
    return [Usage(*key, amount) for key, amount in sorted(counted.items()) if amount]


class Act(NamedTuple):
    title: str
    says: str
    play: Callable[[Stage], Iterator[Event]]


ACTS = (
    Act(
        "1. A burst against two limits",
        "5 calls at once and 1 more each second; 1000 tokens at once and 500 more each second. "
        "Whoever is refused learns how long to wait, and nobody waits longer.",
        burst,
    ),
    Act(
        "2. All or nothing",
        "A request takes from every limit or from none. One that exceeds a capacity can never pass.",
        all_or_nothing,
    ),
    Act(
        "3. A parent refuses",
        "carol and dave have 5 calls each, but their team has 6 for both.",
        cascade,
    ),
    Act(
        "4. A debt, and how it is paid off",
        "A lease for 100 tokens turns out to cost 1700. The work is done, so it is debited in full, "
        "and the next request waits until the debt is paid.",
        debt,
    ),
)
