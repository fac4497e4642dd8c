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
from typing import NamedTuple, TypeAlias

from ..bucket import calculate_available
from ..engine.law import Rate, gain
from ..exceptions import RateLimitExceeded
from ..models import Limit, UsageWindow
from ..runtime.world import World
from ..sync import SyncRateLimiter

RESOURCE = "chat"
CALLS = Limit.custom("calls", capacity=5, refill_amount=1, refill_period_seconds=1)
TOKENS = Limit.custom("tokens", capacity=1000, refill_amount=500, refill_period_seconds=1)
TEAM_CALLS = Limit.custom("calls", capacity=6, refill_amount=1, refill_period_seconds=1)
PARENTS = {"carol": "team", "dave": "team"}

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


class Balance(NamedTuple):
    """The tokens that were left at a moment, counted from the first."""

    at_ms: int
    left: int


Event: TypeAlias = Step | Balance


class Used(NamedTuple):
    """What an entity used of a limit, net of what was given back."""

    limit: str
    entity_id: str
    used: int


class Attempt(NamedTuple):
    """What an acquire came to, and between which two moments."""

    before_ms: int
    after_ms: int
    refusal: RateLimitExceeded | None

    @property
    def wait_seconds(self) -> float:
        if self.refusal is None:
            raise Untrue("a request was admitted that should have been refused")
        return self.refusal.retry_after_seconds

    @property
    def wait_ms(self) -> int:
        return round(self.wait_seconds * 1000)

    def refused_by(self, *limits: tuple[str, str]) -> bool:
        """Whether it was refused by these limits of these entities and by no others."""
        short = self.refusal.violations if self.refusal else ()
        return [(one.entity_id, one.limit_name) for one in short] == list(limits)


class Reading(NamedTuple):
    """The tokens of an entity between two moments."""

    before_ms: int
    after_ms: int
    tokens: int


class Demonstration:
    """A limiter, the clock it goes by and a way to let time pass; what was claimed and used so far."""

    def __init__(self, limiter: SyncRateLimiter, world: World, sleep: Callable[[float], None]) -> None:
        self.limiter = limiter
        self.world = world
        self.sleep = sleep
        self.checks: int = 0
        self.used: Counter[tuple[str, str]] = Counter()
        """What the acts took, by limit and entity."""

    def require(self, condition: bool, claim: str) -> None:
        """Go on only if a claim holds."""
        self.checks += 1
        if not condition:
            raise Untrue(f"this should hold and does not: {claim}")

    def ask(self, entity_id: str, amounts: Mapping[str, int]) -> Attempt:
        """Acquire, and be done with it at once."""
        before_ms, refusal = self.world.now_ms(), None
        try:
            with self.limiter.acquire(entity_id, RESOURCE, amounts):
                self.note(entity_id, amounts)
        except RateLimitExceeded as error:
            refusal = error
        return Attempt(before_ms, self.world.now_ms(), refusal)

    def note(self, entity_id: str, amounts: Mapping[str, int]) -> None:
        """Remember what was taken; what a child takes, its parent gives too."""
        for one in filter(None, (entity_id, PARENTS.get(entity_id))):
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
        found = dict.fromkeys(entity_ids, CALLS.capacity)
        for one in entity_ids:
            for state in self.limiter.repository.get_bucket(one, RESOURCE):
                if state.limit_name == CALLS.name:
                    found[one] = calculate_available(state, self.world.now_ms())
        return found

    def sleep_until(self, moment_ms: int) -> None:
        while (left_ms := moment_ms - self.world.now_ms()) > 0:
            self.sleep(left_ms / 1000)


def burst(demo: Demonstration) -> Iterator[Step]:
    """Ask until it is refused, and then wait as long as the refusal says."""
    demo.limiter.repository.set_resource_defaults(RESOURCE, [CALLS, TOKENS])
    amounts, started_ms = {CALLS.name: 1, TOKENS.name: 100}, demo.world.now_ms()
    for n in range(1, BURST_MAX + 1):
        attempt = demo.ask("alice", amounts)
        if attempt.refusal is not None:
            break
        yield Step(f"request {n}", amounts, "admitted", None, demo.left("alice"))
    extra = -(-gain(Rate.of(CALLS), started_ms, attempt.after_ms) // 1000)
    demo.require(0 <= n - 1 - CALLS.capacity <= extra, "a burst gets the capacity, no more")
    demo.require(attempt.refused_by(("alice", CALLS.name)), "the calls ran out first")
    yield Step(f"request {n}", amounts, "refused", attempt.wait_seconds, demo.left("alice"))
    yield from wait_out(demo, "alice", amounts, attempt, lambda: demo.left("alice"))


def all_or_nothing(demo: Demonstration) -> Iterator[Step]:
    """A refusal by one limit takes nothing from the other; more than the capacity never passes."""
    first, second = {CALLS.name: 1, TOKENS.name: 800}, {CALLS.name: 1, TOKENS.name: 700}
    demo.admitted("bob", first, "a fresh bucket is full")
    before = demo.left("bob")
    yield Step("large", first, "admitted", None, before)
    attempt, left = demo.ask("bob", second), demo.left("bob")
    demo.require(attempt.refused_by(("bob", TOKENS.name)), "only the tokens were short")
    demo.require(left[CALLS.name] >= before[CALLS.name], "a refusal takes nothing")
    yield Step("large again", second, "refused", attempt.wait_seconds, left)
    yield from wait_out(demo, "bob", second, attempt, lambda: demo.left("bob"))
    huge = {TOKENS.name: TOKENS.capacity + 1}
    never = demo.ask("bob", huge).wait_seconds
    demo.require(math.isinf(never), "more than the capacity can never pass")
    yield Step("too large", huge, "refused", never, demo.left("bob"))


def cascade(demo: Demonstration) -> Iterator[Step]:
    """A parent with less left than its child refuses for it."""
    repository = demo.limiter.repository
    repository.create_entity("team")
    repository.set_limits("team", [TEAM_CALLS], RESOURCE)
    for child, parent in PARENTS.items():
        repository.create_entity(child, parent_id=parent, cascade=True)
    five, two = {CALLS.name: 5}, {CALLS.name: 2}

    def left() -> dict[str, int]:
        return demo.calls_of("dave", "team")

    demo.admitted("carol", five, "carol and her team have five calls")
    yield Step("carol", five, "admitted", None, demo.calls_of("carol", "team"))
    attempt = demo.ask("dave", two)
    demo.require(attempt.refused_by(("team", CALLS.name)), "the team refuses, not dave's own limit")
    demo.require(left()["dave"] == CALLS.capacity, "what dave's own bucket gave was given back")
    yield Step("dave", two, "refused", attempt.wait_seconds, left())
    yield from wait_out(demo, "dave", two, attempt, left)


def debt(demo: Demonstration) -> Iterator[Event]:
    """Work that cost more than was thought leaves a debt, which is paid off by waiting."""
    estimate, surplus, one = {TOKENS.name: 100}, {TOKENS.name: 1600}, {TOKENS.name: 1}

    def left() -> dict[str, int]:
        return {TOKENS.name: demo.read("erin").tokens}

    started_ms = demo.world.now_ms()
    with demo.limiter.acquire("erin", RESOURCE, estimate) as lease:
        yield Step("estimate", estimate, "admitted", None, left())
        demo.note("erin", estimate)
        lease.adjust(surplus)
        demo.note("erin", surplus)
    owed = demo.read("erin")
    spent = TOKENS.capacity - estimate[TOKENS.name] - surplus[TOKENS.name]
    most = _grown(spent, started_ms, owed.after_ms)
    demo.require(spent <= owed.tokens <= most, "all that it cost is debited")
    demo.require(owed.tokens < 0, "an adjustment is never refused and may leave a debt")
    yield Step("real cost", surplus, "adjusted", None, {TOKENS.name: owed.tokens})
    attempt = demo.ask("erin", one)
    yield Step("next", one, "refused", attempt.wait_seconds, left())
    due_ms = attempt.after_ms + attempt.wait_ms
    yield from recovery(demo, owed.before_ms, due_ms)
    demo.admitted("erin", one, "a debt is paid off after exactly the wait that was stated")
    yield Step("after the wait", one, "admitted", None, left())
    yield from recovery(demo, owed.before_ms, due_ms + AFTERWARDS_MS)


def recovery(demo: Demonstration, origin_ms: int, until_ms: int) -> Iterator[Balance]:
    """Read the balance now and then; it must grow by the rate of its limit and by nothing else."""
    first = demo.read("erin")
    yield Balance(first.before_ms - origin_ms, first.tokens)
    while (next_ms := demo.world.now_ms() + SAMPLE_MS) < until_ms:
        demo.sleep_until(next_ms)
        now = demo.read("erin")
        least = first.tokens + gain(Rate.of(TOKENS), first.after_ms, now.before_ms) // 1000
        most = _grown(first.tokens, first.before_ms, now.after_ms)
        demo.require(least <= now.tokens <= most, "a bucket fills at the rate of its limit")
        yield Balance(now.before_ms - origin_ms, now.tokens)
    demo.sleep_until(until_ms)


def _grown(tokens: int, since_ms: int, now_ms: int) -> int:
    """The most that whole tokens, which may have been rounded down, can have become."""
    return (tokens * 1000 + 999 + gain(Rate.of(TOKENS), since_ms, now_ms)) // 1000


def wait_out(
    demo: Demonstration,
    entity_id: str,
    amounts: Mapping[str, int],
    refused: Attempt,
    left: Callable[[], Mapping[str, int]],
) -> Iterator[Step]:
    """Look half-way whether the moment has moved; at the moment, ask again."""
    demo.sleep_until(refused.after_ms + refused.wait_ms // 2)
    before_ms = demo.world.now_ms()
    seconds = demo.limiter.time_until_available(entity_id, RESOURCE, amounts)
    after_ms, wait_ms = demo.world.now_ms(), round(seconds * 1000)
    earliest_ms, latest_ms = refused.before_ms + refused.wait_ms, refused.after_ms + refused.wait_ms
    demo.require(after_ms + wait_ms >= earliest_ms, "it is not admitted before the wait is over")
    demo.require(not wait_ms or before_ms + wait_ms <= latest_ms, "the moment it passes does not move away")
    yield Step("half-way", amounts, "not yet" if wait_ms else "now", seconds, left())
    demo.sleep_until(latest_ms)
    demo.admitted(entity_id, amounts, "it is admitted after exactly the wait that was stated")
    yield Step("after the wait", amounts, "admitted", None, left())


def usage(demo: Demonstration) -> list[Used]:
    """What was used in all acts as the aggregator counted it, which must be what they took."""
    snapshots, _ = demo.limiter.repository.get_usage_snapshots(
        resource=RESOURCE, window_type=UsageWindow.HOURLY
    )
    counted, used = Counter[tuple[str, str]](), demo.used
    for one in snapshots:  # two for an entity if an hour ended in between
        counted.update({(name, one.entity_id): amount for name, amount in one.counters.items()})
    wrong = [
        f"{entity_id} used {used[limit, entity_id]} {limit}, {counted[limit, entity_id]} were counted"
        for limit, entity_id in sorted(used.keys() | counted.keys())
        if used[limit, entity_id] != counted[limit, entity_id]
    ]
    if wrong:
        raise Miscounted("; ".join(wrong))
    demo.checks += len(used)
    return [Used(*key, amount) for key, amount in sorted(counted.items()) if amount]


class Act(NamedTuple):
    title: str
    says: str
    play: Callable[[Demonstration], Iterator[Event]]


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
    Act("3. A parent refuses", "carol and dave have 5 calls each, but their team has 6 for both.", cascade),
    Act(
        "4. A debt, and how it is paid off",
        "A lease for 100 tokens turns out to cost 1700. The work is done, so it is debited in full, "
        "and the next request waits until the debt is paid.",
        debt,
    ),
)
